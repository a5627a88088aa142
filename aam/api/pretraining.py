"""A run of `aam pretrain`: read tables, split the samples, pretrain an encoder, report on it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aam.api.memory import inputs_of, metadata_from, option_of, sample_table
from aam.config import NO_TREE, PretrainConfig
from aam.data.region import RegionProfile
from aam.data.splits import (
    SUBSETS,
    Split,
    duplicates_across_subsets,
    fold_folder,
    make_splits,
    write_split,
)
from aam.data.splits import split_columns as columns_of_splits
from aam.data.study import Inputs, MetadataColumns, Study, make_study, read_inputs
from aam.data.targets import Targets
from aam.device.distributed import World
from aam.device.environment import is_rank
from aam.device.platform import device_name, prepare_device
from aam.encoders import model_folder
from aam.engine.run import LAST, MODEL, RunDirectory, RunPlan, run_command, train_once
from aam.engine.run import training_outputs as outputs_of_training
from aam.errors import CallAgain, InputError, shown
from aam.files.output_folder import FIGURES
from aam.options import IN_MEMORY, check, configured, to_dict
from aam.predict.saved_model import SavedModel, load_model, save_model
from aam.report.encoder_quality import evaluate_encoder
from aam.report.report import ReportData
from aam.report.results import write_results
from aam.report.training_figures import loss_figures, loss_names, read_epochs
from aam.training.decisions import decide
from aam.training.network import Place, encoder_folder
from aam.training.pretrain import fit_encoder, pretraining_loaders

if TYPE_CHECKING:
    from aam.api.models import Model

log = logging.getLogger("aam")


@dataclass(frozen=True, eq=False)
class Pretraining:
    """What a pretraining reads, checked and split."""

    config: PretrainConfig
    study: Study
    splits: tuple[Split, ...]
    device: torch.device
    world: World

    def folder(self, path: Path, split: Split) -> Path:
        """Return the folder of a split in the run directory `path`."""
        return path if self.config.data.cv is None else path / fold_folder(split.test_fold)

    def name(self, split: Split) -> str:
        """Return which of the splits one is."""
        at, count = self.splits.index(split) + 1, len(self.splits)
        return f"fold {split.test_fold} ({at} of {count})" if split.test_fold else "samples"

    def losses(self) -> list[str]:
        """Return the losses that have a weight above 0, in words."""
        train, metric = self.config.train, self.study.metric
        names = {
            str(metric): metric is not None and train.penalty > 0,
            "masked nucleotides": train.nuc_penalty > 0,
            "masked counts": train.count_penalty > 0,
        }
        return [name for name, weighs in names.items() if weighs]


def prepared(
    given: PretrainConfig, world: World, inputs: Inputs | None = None
) -> tuple[Pretraining, dict[str, Any]]:
    """Read the inputs of a run, split the samples, and decide what this machine decides.

    Raises
    ------
    InputError
        Problems of the encoder, the inputs or the splits, before any long work.
    """
    config, device, encoder = given, prepare_device(given.runtime), None
    folder = encoder_folder(config.train, "*")
    if folder is not None:
        encoder = load_model(folder, device)
        _ = encoder.required_network  # an encoder without a network is refused
        if problems := config.model.encoder_problems(encoder.model):
            raise InputError(*problems)
        data = replace(config.data, rarefy_depth=config.data.rarefy_depth or encoder.depth)
        config = replace(config, model=encoder.model, data=data)
    # Without labels there is nothing to hold out for, unless it is asked for.
    config = replace(config, data=replace(config.data, test_size=config.data.test_size or 0.0))
    data = config.inputs
    columns = MetadataColumns(columns_of_splits(data))
    inputs = inputs or read_inputs(data, columns)
    study = make_study(inputs, data, config.model.max_bp, config.runtime.seed, columns)
    study.require_sequences()
    model = replace(config.model, max_bp=config.model.max_bp or study.longest)
    config = replace(config, model=model)
    if encoder is not None:
        study = study.placed_on(encoder.reference)
        for sentence in encoder.profile.compare(study.table):
            log.warning("warning: --pretrained-encoder: %s", sentence)
    splits = make_splits(study, data, config.runtime.seed)
    _check_sizes(study, splits, world)
    config, decisions = decide(config, study, device, world)
    return Pretraining(config, study, splits, device, world), decisions


def _check_sizes(study: Study, splits: Sequence[Split], world: World) -> None:
    """Refuse subsets from which nothing can be learned."""
    train = min((split.ids("train") for split in splits), key=len)
    asvs = len(study.table.columns_of(study.rows(train)))
    for number, what in ((len(train), "samples"), (asvs, "ASVs")):
        if number < 2:
            raise InputError(
                f"--table: {number} of its {what} to train on, expected 2 or more; give a larger "
                "table, or lower --test-size and --validation-size"
            )
    sizes = {subset: min(len(one.ids(subset)) for one in splits) for subset in SUBSETS[:2]}
    if problems := [
        f"the {subset} subset has {size} samples for {world.size} devices; take fewer devices"
        for subset, size in sizes.items()
        if 0 < size < world.size
    ]:
        raise InputError(*problems)


def run(given: PretrainConfig, report: bool = True, inputs: Inputs | None = None) -> int:
    """Run `aam pretrain`; return the exit status.

    `inputs` are there where they are no files: the options then name them as `IN_MEMORY`.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while
    it lasts, model/ (best epoch) and last/, below fold-K/ when cross-validating; then, with
    `report`, report.html and metrics.json.

    Raises
    ------
    CallAgain
        A signal came; the state is saved.
    """

    def prepare(world: World) -> RunPlan:
        if is_rank(given.runtime):
            check(given)
        work, decisions = prepared(given, world, inputs)
        for line in _start_message(work) if world.is_main else ():
            log.info("%s", line)
        facts = {
            "device": str(work.device),
            "ranks": world.size,
            "depth": work.study.depth,
            "dropped_samples": work.study.selection.dropped,
            "decisions": decisions,
        }
        return RunPlan(
            to_dict(work.config),
            _files(work.config),
            facts,
            _outputs(work.config),
            lambda run: _pretrain_splits(work, run, report),
            lambda: [*_dry_run_message(work)],
            {} if inputs is None else inputs.checksums(work.config.inputs),
        )

    return run_command("pretrain", given.runtime, prepare)


def _pretrain_splits(work: Pretraining, run: RunDirectory, report: bool) -> None:
    """Pretrain an encoder on each split that has none yet, and write the report."""
    warnings = _leaks(work)
    models = {split: _pretrain_split(work, run, split) for split in work.splits}
    if report and run.world.is_main:
        _write_report(work, run.path, models, warnings)


def _pretrain_split(work: Pretraining, run: RunDirectory, split: Split) -> SavedModel | None:
    """Return the encoder of a split; ranks but the main one may get None."""
    folder, study = work.folder(run.path, split), work.study
    fold = f" fold {split.test_fold}" if split.test_fold else ""
    rows = study.rows(split.ids("train")), study.rows(split.ids("validation"))

    def train(place: Place) -> SavedModel:
        fitted = fit_encoder(study, rows, work.config, place)
        sequences = [study.table.sequences[at] for at in study.table.columns_of(rows[0])]
        saved = SavedModel(
            fitted.network,
            work.config.inputs,
            work.config.model,
            fitted.heads,
            study.depth,
            study.seed,
            Targets(()),
            RegionProfile.fit(sequences),
            {
                "seen_samples": sorted(fitted.seen_samples),
                "labelled_samples": sorted(fitted.labelled_samples),
                "command": "pretrain",
                "best_epoch": fitted.best_epoch,
            },
            reference=study.reference,
        )
        if run.world.is_main:
            best = {name: value.clone() for name, value in fitted.network.state_dict().items()}
            for name, weights in ((LAST, fitted.last_weights), (MODEL, best)):
                fitted.network.load_state_dict(weights)
                save_model(folder / name, saved)
        return saved

    if run.world.is_main:
        write_split(folder / "split.tsv", split)
    return train_once(
        run,
        folder,
        lambda state: (
            lambda: train(
                Place(work.device, run, folder, f"pretrain{fold}", split.test_fold, state)
            )
        ),
        lambda: load_model(folder / MODEL, work.device) if run.world.is_main else None,
    )


def _write_report(
    work: Pretraining, path: Path, models: dict[Split, SavedModel | None], warnings: list[str]
) -> None:
    """Write report.html, figures and metrics.json."""
    config, study = work.config, work.study
    tables, figures = [], []
    for split, saved in models.items():
        if saved is None or not split.held_out:
            continue
        # What ASVs another encoder has seen is not known.
        own = config.train.pretrained_encoder is None
        some, drawn, advice = evaluate_encoder(
            saved, study, split, config.runtime, work.device, bases=own
        )
        tables += some
        figures += drawn
        warnings = [*warnings, *advice]
    epochs = {
        f"fold {split.test_fold}" if split.test_fold else "": read_epochs(work.folder(path, split))
        for split in work.splits
    }
    data = ReportData(
        title="aam pretrain",
        task={"command": "pretrain", "losses": ", ".join(work.losses())},
        data={
            "table": shown(config.data.tables, 20),
            "samples": len(study.table.sample_ids),
            "ASVs": len(study.table.sequences),
            "rarefaction depth": study.depth,
            "samples below the depth": len(study.selection.dropped),
        },
        split={work.name(split): _sizes(split) for split in work.splits},
        targets=(),
        tables=tuple(tables),
        encoder_figures=tuple(figures),
        curves=tuple(loss_figures(epochs, loss_names((), ()))),
        warnings=tuple(warnings),
        configuration=to_dict(config),
    )
    write_results(path, data)


def _sizes(split: Split) -> str:
    """Return the number of samples of each subset, in words."""
    uses = zip(("learns from", "is validated on", "is judged on"), SUBSETS, strict=True)
    sizes = {use: len(split.ids(subset)) for use, subset in uses}
    return ", ".join(f"{use} {size} samples" for use, size in sizes.items() if size)


def _leaks(work: Pretraining) -> list[str]:
    """Return and log warnings of samples that are in two subsets under different names."""
    table, column = work.study.table, work.config.data.group_column
    found = [
        text for split in work.splits for text in duplicates_across_subsets(table, split, column)
    ]
    for message in found:
        log.warning("warning: %s", message)
    return found


def _files(config: PretrainConfig) -> dict[str, Path]:
    """Return the files that a run reads, by option."""
    encoder = config.train.pretrained_encoder
    values: dict[str, Any] = dict(vars(config.inputs))
    values["pretrained_encoder"] = None if encoder is None else model_folder(encoder)
    if len(config.data.tables) > 1:
        values |= {f"table {number}": path for number, path in enumerate(config.data.tables, 1)}
        values |= {
            f"tree {number}": Path(tree)
            for number, tree in enumerate(config.data.trees, 1)
            if tree != NO_TREE
        }
    return {
        name: path for name, path in values.items() if isinstance(path, Path) and path != IN_MEMORY
    }


def _outputs(config: PretrainConfig) -> list[str]:
    """Return the names of what a run may write, next to those of every run."""
    folders = [""] if config.data.cv is None else ["", "fold-*/"]
    return [
        "report.html",
        *FIGURES,
        *(f"{folder}split.tsv" for folder in folders),
        *(name for folder in folders for name in outputs_of_training(folder, ("model.json",))),
    ]


def _start_message(work: Pretraining) -> list[str]:
    """Return lines on device, samples, ASVs, depth and losses."""
    study, losses = work.study, work.losses()
    ranks = f" x {work.world.size}" if work.world.size > 1 else ""
    lines = [
        f"pretrain: {device_name(work.device)}{ranks}; {len(study.table.sample_ids)} samples, "
        f"{len(study.table.sequences)} ASVs, rarefied to {study.depth} reads; losses: "
        f"{', '.join(losses)}"
    ]
    if study.metric is None:
        lines.append(
            "without --tree or --unifrac-matrix no UniFrac term is learned: the encoder learns "
            f"from {' and '.join(losses)} only"
        )
    return lines


def _dry_run_message(work: Pretraining) -> Iterator[str]:
    """Yield what ``--dry-run`` shows: the samples of each split, and the steps."""
    _leaks(work)
    train = work.config.train
    for split in work.splits:
        rows = work.study.rows(split.ids("train")), work.study.rows(split.ids("validation"))
        loader, _ = pretraining_loaders(work.study, rows, work.config, work.world)
        steps = math.ceil(len(loader) / train.gradient_accumulation_steps)
        yield (
            f"{work.name(split)}: {_sizes(split)}; at most {train.epochs} epochs of {steps} "
            f"step{'s' if steps > 1 else ''}"
        )


@contextlib.contextmanager
def interrupts_as_in_python() -> Iterator[None]:
    """Turn the signal that ends a run, whose state is saved, into the KeyboardInterrupt that Python
    users expect.
    """
    try:
        yield
    except CallAgain as error:
        raise KeyboardInterrupt(str(error)) from error


def pretrain(
    table: Any,
    tree: Any = None,
    *,
    output_dir: str | os.PathLike[str],
    metadata: Any = None,
    **options: Any,
) -> Model:
    """Pretrain an encoder without labels, as `aam pretrain` does, and return it.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
    tree : skbio.TreeNode or path, optional
        Rooted phylogeny of the ASVs.
    output_dir : path
        Folder of the run: model, metrics, report.
    metadata : DataFrame or path, optional
        Columns that options such as ``group_column`` name.
    **options
        Of `aam pretrain`, such as ``epochs``, ``embedding_dim`` or ``rarefy_depth``.

    Raises
    ------
    InputError
        Bad options or inputs, or a folder that holds other files.
    """
    from aam.api.models import load

    config = configured(PretrainConfig(), options, "aam.pretrain")
    data, runtime = config.data, replace(config.runtime, output_dir=Path(output_dir))
    if data.tables or data.trees:
        raise InputError(
            "aam.pretrain: takes one table and its tree; `aam pretrain` takes several, from files"
        )
    named = replace(
        data, table=option_of(table), tree=option_of(tree), metadata=option_of(metadata)
    )
    config = replace(config, data=named, runtime=runtime)
    check(config)
    described = (
        None
        if metadata is None
        else metadata_from(metadata, data.decimal, missing_values=data.missing_values)
    )
    inputs = inputs_of(data, sample_table(table, data.sequences, merge=data.trim), tree, described)
    with interrupts_as_in_python():
        run(config, inputs=inputs)
    machine = {name: getattr(runtime, name) for name in ("device", "threads", "mixed_precision")}
    return load(Path(output_dir) / "model", **machine)
