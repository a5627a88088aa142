"""`aam pretrain`: read tables, pretrain an encoder on each split, report on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.api.memory import inputs_of, metadata_from, option_of, sample_table
from aam.config import PretrainConfig
from aam.data.splits import Split, make_splits, split_columns
from aam.data.study import Inputs, MetadataColumns, Study, read_inputs
from aam.device.distributed import World
from aam.device.platform import prepare_device
from aam.engine.run import RunDirectory
from aam.engine.signals import interrupts_as_in_python
from aam.errors import InputError
from aam.options import check, configured, to_dict
from aam.predict.folds import (
    Folds,
    Models,
    losses_in_words,
    run_folds,
    save_models,
    study_for,
    with_encoder,
)
from aam.predict.saved_model import SavedModel
from aam.report.encoder_quality import evaluate_encoder
from aam.report.figures import loss_figures, read_epochs
from aam.report.page import ReportData, write_results
from aam.training.decisions import decide
from aam.training.pretrain import Place, fit_encoder

if TYPE_CHECKING:
    from aam.api.models import Model

Pretraining = Folds[PretrainConfig]


def run(config: PretrainConfig, report: bool = True, inputs: Inputs | None = None) -> int:
    """Run `aam pretrain`; return the exit status.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while
    it lasts, model/ (best epoch) and last/, below fold-K/ when cross-validating; then, with
    `report`, report.html and metrics.json. `inputs` are those of memory. Raises `CallAgain` after
    a signal, with the state saved.
    """

    def prepare(world: World) -> tuple[Pretraining, list[str]]:
        folds = load_folds(config, world, inputs)
        return folds, _start_message(folds)

    finish = partial(_write_report, report)
    return run_folds("pretrain", config, prepare, fit_model, finish, inputs)


def load_folds(config: PretrainConfig, world: World, inputs: Inputs | None = None) -> Pretraining:
    """Read the inputs of a run, split the samples, and decide what this machine decides.

    Raises
    ------
    InputError
        Problems of the encoder, the inputs or the splits, before any long work.
    """
    device = prepare_device(config.runtime)
    config, encoder = with_encoder(config)
    # Without labels there is nothing to hold out for, unless it is asked for.
    config = replace(config, data=replace(config.data, test_size=config.data.test_size or 0.0))
    data = config.inputs
    columns = MetadataColumns(split_columns(data))
    inputs = inputs or read_inputs(data, columns)
    config, study = study_for(config, data, inputs, columns, encoder)
    study.require_sequences()
    splits = make_splits(study, data, config.runtime.seed)
    _check_sizes(study, splits)
    config, decisions = decide(config, study, device, world)
    folds = Folds(config, data, study, splits, device, world, decisions, config.train.epochs)
    if problems := folds.rank_problems():
        raise InputError(*problems)
    return folds


def _check_sizes(study: Study, splits: Sequence[Split]) -> None:
    """Refuse subsets from which nothing can be learned."""
    train = min((split.ids("train") for split in splits), key=len)
    asvs = len(study.table.columns_of(study.rows(train)))
    for number, what in ((len(train), "samples"), (asvs, "ASVs")):
        if number < 2:
            few = f"--table: {number} of its {what} to train on, expected 2 or more"
            remedy = "give a larger table, or lower --test-size and --validation-size"
            raise InputError(f"{few}; {remedy}")


def fit_model(folds: Pretraining, split: Split, place: Place) -> SavedModel:
    """Pretrain an encoder on a split, and save its best and its last weights."""
    study, ids = folds.study, (*split.ids("train"), *split.ids("validation"))
    rows = study.rows(split.ids("train")), study.rows(split.ids("validation"))
    fitted = fit_encoder(study, rows, folds.config, place)
    saved = folds.model(place, ids, fitted)
    if place.world.is_main:
        save_models(place.folder, saved, fitted)
    return saved


def _write_report(
    report: bool, folds: Pretraining, run: RunDirectory, models: Models, warnings: list[str]
) -> None:
    """Write report.html, figures and metrics.json."""
    config, study, tables, figures = folds.config, folds.study, [], []
    if not report or not run.world.is_main:
        return
    # What ASVs another encoder has seen is not known.
    judge = partial(evaluate_encoder, bases=config.train.pretrained_encoder is None)
    for split, saved in models.items():
        if saved is not None and split.held_out:
            shown_tables, drawn, advice = judge(saved, study, split, config.runtime, folds.device)
            tables += shown_tables
            figures += drawn
            warnings = [*warnings, *advice]
    epochs = {name: read_epochs(folder) for name, folder in folds.folders(run.path).items()}
    data = ReportData(
        title="aam pretrain",
        task={"command": "pretrain", "losses": ", ".join(losses_in_words(study, config.train))},
        data=folds.inputs_by_name,
        split=folds.sizes_by_name,
        targets=(),
        tables=tuple(tables),
        encoder_figures=tuple(figures),
        curves=tuple(loss_figures(epochs)),
        warnings=tuple(warnings),
        configuration=to_dict(config),
    )
    write_results(run.path, data)


def _start_message(folds: Pretraining) -> list[str]:
    """Lines on device, samples, ASVs, depth and losses."""
    losses = losses_in_words(folds.study, folds.config.train)
    lines = [f"pretrain: {folds.inputs_in_words}; losses: {', '.join(losses)}"]
    if folds.study.metric is None:
        without = "without --tree or --unifrac-matrix no UniFrac term is learned"
        lines.append(f"{without}: the encoder learns from {' and '.join(losses)} only")
    return lines


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
        takes = "takes one table and its tree; `aam pretrain` takes several, from files"
        raise InputError(f"aam.pretrain: {takes}")
    places = option_of(table), option_of(tree), option_of(metadata)
    named = replace(data, table=places[0], tree=places[1], metadata=places[2])
    config = replace(config, data=named, runtime=runtime)
    check(config)
    described, missing = None, data.missing_values
    if metadata is not None:
        described = metadata_from(metadata, data.decimal, missing_values=missing)
    inputs = inputs_of(data, sample_table(table, data.sequences, merge=data.trim), tree, described)
    with interrupts_as_in_python():
        run(config, inputs=inputs)
    machine = {name: getattr(runtime, name) for name in ("device", "threads", "mixed_precision")}
    return load(Path(output_dir) / "model", **machine)
