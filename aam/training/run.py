"""A whole run, from configuration to saved models: `aam pretrain` and `aam train` are both this."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from aam.config import FineTuneConfig, PretrainConfig, TargetConfig
from aam.config_file import out_of_range, to_dict
from aam.data.batch import RegionProfile
from aam.data.loader import Loader
from aam.data.split import (
    SIDES,
    Split,
    check_groups,
    from_column,
    kfold,
    make_split,
    read_split,
    restricted,
    write_split,
)
from aam.data.study import Study, draw_batch, load_study
from aam.data.targets import Targets, fit_targets
from aam.errors import InputError, Problems, shown
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.runtime.device import generator, prepare
from aam.runtime.files import MANIFEST, remove
from aam.training.checkpoint import Keeper, SavedModel, Signals, State, load_model, save_model
from aam.training.evaluate import Columns, evaluate_encoder, evaluate_targets, write_results
from aam.training.inference import AsvVectors, PredictionTable, encode_table, joined, predict_rows, write_predictions
from aam.training.journal import Journal
from aam.training.loop import Trainer
from aam.training.losses import class_weights
from aam.training.optim import fit_heads, freeze_base, take_weights
from aam.training.record import CHECKPOINTS, RunFolder, describe
from aam.training.report import ReportData, Table, TargetResult

log = logging.getLogger("aam")

SCALE_SAMPLES = 256
# A fold names a folder.
FOLD = re.compile(r"(?!\.)[\w.,+=-]([\w.,+= -]{0,98}[\w.,+=-])?")
Sides = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Inputs of a run, read and checked."""

    config: FineTuneConfig
    study: Study
    splits: tuple[Split, ...]
    device: torch.device


def _fold_column(config: FineTuneConfig) -> str | None:
    cv = config.data.cv
    return config.data.split_column if cv is None else None if cv.isdigit() else cv


def _check_options(config: FineTuneConfig) -> None:
    """Refuse, together, options that contradict each other or lie outside their range."""
    data, model, problems = config.data, config.model, Problems()
    problems.found += out_of_range(config)
    if data.cv is not None and data.cv.isdigit() and int(data.cv) < 2:
        problems.add(f"--cv is {data.cv}, expected 2 or more folds, or a metadata column")
    chosen = {"--split": data.split, "--split-column": data.split_column, "--cv": data.cv}
    given = [name for name, value in chosen.items() if value is not None]
    if len(given) > 1:
        problems.add(f"{' and '.join(given)} all choose the split; give one of them")
    if (data.split_column is None) != (data.test_fold is None):
        problems.add("--split-column and --test-fold need each other")
    reserved = {"sample-id", "fold", "note"} & set(config.targets.metadata_column)
    if reserved:
        problems.add(f"--metadata-column: {shown(sorted(reserved))} cannot be told from columns of predictions.tsv")
    if config.runtime.output_dir is None:
        problems.add("--output-dir: not given; name the folder of the run")
    if data.cv is not None and config.runtime.resume_from not in (None, "auto"):
        problems.add(f"--resume-from is {config.runtime.resume_from}, expected auto with --cv")
    if model.attention_heads < 1 or model.embedding_dim % model.attention_heads:
        width, heads = model.embedding_dim, model.attention_heads
        problems.add(f"--embedding-dim {width} is not divisible by --attention-heads {heads}")
    problems.raise_if_any()


def _encoder_of(config: FineTuneConfig, fold: str) -> Path | None:
    """Model folder of the pretrained encoder: itself, its ``model``, or that of the same fold (``*``: of any)."""
    path = config.targets.pretrained_encoder
    if path is None:
        return None
    for candidate in (path, *sorted(path.glob(f"fold-{fold}/model")), path / "model"):
        if (candidate / MANIFEST).is_file():
            return candidate
    expected = f"{MANIFEST}, model/ or fold-{fold}/model/"
    raise InputError(f"--pretrained-encoder: {path} holds no model ({expected}); run `aam pretrain` first")


def load_inputs(config: FineTuneConfig) -> Prepared:
    """Read every input of a run and divide the samples.

    Raises
    ------
    InputError
        Problems of options, files or splits, before any long work.
    """
    _check_options(config)
    device = prepare(config.runtime)
    data, targets = config.data, config.targets
    first = _encoder_of(config, "*")
    if targets.pretrained_encoder is not None and first is not None:
        start = load_model(first, device)
        depth = data.rarefy_depth or start.depth
        config = dataclasses.replace(config, model=start.model, data=dataclasses.replace(data, rarefy_depth=depth))
        data = config.data
    asked = [*targets.metadata_column, targets.normalize_by, data.group_column, data.batch_column, _fold_column(config)]
    columns = [name for name in asked if name is not None]
    study = load_study(
        data, config.model.max_bp, config.runtime.seed, columns, list(targets.metadata_column), targets.classifier
    )
    return Prepared(config, study, _splits(config, study), device)


def _splits(config: FineTuneConfig, study: Study) -> tuple[Split, ...]:
    data, ids, seed = config.data, study.table.sample_ids, config.runtime.seed
    groups = None
    if study.metadata is not None and data.group_column is not None:
        groups = study.metadata.values(data.group_column, ids)
    size = data.validation_size
    if data.split is not None:
        split = restricted(read_split(data.split), ids)
        if groups is not None:
            check_groups(split, dict(zip(ids, groups, strict=True)))
        return (split,)
    column = _fold_column(config)
    if column is not None and study.metadata is not None:
        folds = study.metadata.values(column, ids)
        if unsafe := sorted({fold for fold in folds if fold is not None and not FOLD.fullmatch(fold)}):
            raise InputError(
                f"{data.metadata}: column {column!r} has folds that cannot name a folder: {shown(unsafe)}; expected "
                "letters, digits and .,_+=- and spaces inside"
            )
        wanted = sorted({fold for fold in folds if fold is not None}) if data.cv else [str(data.test_fold)]
        return tuple(from_column(ids, folds, fold, groups, size, seed=seed) for fold in wanted)
    if data.cv is not None:
        return tuple(kfold(ids, int(data.cv), groups, None, size, seed=seed))
    return (make_split(ids, groups=groups, test_size=data.test_size, validation_size=size, seed=seed),)


def _scale(study: Study, train_ids: Sequence[str]) -> tuple[float, float]:
    """Mean and standard deviation of the distance, or of Faith PD, in one draw of the training samples."""
    batch = draw_batch(study, study.rows(train_ids[:SCALE_SAMPLES]), 0, tokens=False)
    values = batch.faith_pd
    if batch.distance is not None:
        rows, columns = torch.triu_indices(len(batch.distance), len(batch.distance), 1)
        values = batch.distance[rows, columns]
    if values is None or len(values) < 2 or not values.std() > 0:
        return 0.0, 1.0
    return float(values.double().mean()), float(values.double().std())


def _heads(config: FineTuneConfig, study: Study, targets: Targets, train_ids: Sequence[str]) -> HeadConfig:
    metric = study.metric if config.train.penalty > 0 else None
    return HeadConfig(
        metric=metric,
        scale=(0.0, 1.0) if metric is None else _scale(study, train_ids),
        counts=config.train.count_penalty > 0,
        n_targets=len(targets.numeric),
        n_classes=tuple(len(spec.labels) for spec in targets.classes),
    )


def _labelled(train_ids: Sequence[str], config: FineTuneConfig) -> tuple[str, ...]:
    """The training samples whose labels are used, in sorted order."""
    order = generator(config.runtime.seed, "labels").permutation(len(train_ids))
    return tuple(train_ids[at] for at in sorted(order[: max(2, round(config.targets.label_share * len(order)))]))


def _targets(prepared: Prepared, train_ids: Sequence[str]) -> tuple[Study, Targets]:
    """The study with its targets, which know the training samples only."""
    config, study = prepared.config.targets, prepared.study
    if not config.metadata_column or study.metadata is None:
        return study, Targets(())
    targets = fit_targets(
        study.metadata, config.metadata_column, train_ids,
        classifier=config.classifier, transform=config.target_transform, normalize_by=config.normalize_by,
    )  # fmt: skip
    target, label = targets.encode(study.metadata, study.table.sample_ids)
    return dataclasses.replace(study, target=target, label=label), targets


def _check_targets(prepared: Prepared) -> None:
    """Raise `InputError` for targets that cannot be learned on some split, before anything is written."""
    for split in prepared.splits:
        train_ids = _labelled(split.ids("train"), prepared.config)
        study, targets = _targets(prepared, train_ids)
        if study.label is not None:
            sizes = [len(spec.labels) for spec in targets.classes]
            class_weights(prepared.config.targets.class_weights, study.label[study.rows(train_ids)], sizes)


def _loaders(
    config: FineTuneConfig, study: Study, sides: Sides, tokens: bool, distances: bool
) -> tuple[Loader, Loader]:
    train = Loader(
        study, sides["train"], config.train.batch_size, True, config.runtime.num_workers,
        tokens=tokens, distances=distances,
        # Fewer reads, more variety; a precomputed distance would no longer be that of the draw.
        shallow=0.0 if study.tree is None else config.train.shallow_draws,
    )  # fmt: skip
    return train, dataclasses.replace(train, rows=sides["validation"], shuffle=False, shallow=0.0)


def train_one(prepared: Prepared, run: RunFolder, split: Split, folder: Path, title: str) -> SavedModel:
    """Train on one split, from its newest checkpoint where there is one, and write its part of the run directory."""
    config, device = prepared.config, prepared.device
    train_ids = _labelled(split.ids("train"), config)
    study, targets = _targets(prepared, train_ids)
    heads = _heads(config, study, targets, train_ids)
    torch.manual_seed(config.runtime.seed)
    network = Aam(config.model, study.depth, heads)
    sides = {"train": study.rows(train_ids), "validation": study.rows(split.ids("validation"))}
    seen = set(train_ids) | set(split.ids("validation"))
    source, state = _encoder_of(config, split.test_fold), run.state(folder)
    if source is not None:
        start = load_model(source, torch.device("cpu"))
        take_weights(network, start.network, source)
        seen |= set(start.notes["seen_samples"])
    elif state is None:
        network.standardize(draw_batch(study, study.rows(train_ids[:SCALE_SAMPLES]), 0, distances=False))
    network.to(device)
    if state is not None:
        network.load_state_dict(state.part("model"))
    elif targets.specs:
        fit_heads(network, study, sides["train"], sides["validation"], device, config.runtime)
    asvs: AsvVectors | None = None
    if config.targets.freeze_base:
        freeze_base(network)
        asvs = encode_table(network, study, device, config.runtime)
    network.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    train, validation = _loaders(config, study, sides, asvs is None, heads.metric is not None)
    write_split(folder / "split.tsv", split)
    with run.signals:
        trainer = _fit(run, Trainer(network, config, train, validation, device, asvs=asvs, folder=folder), state, title)
        seen_asvs = np.unique(study.table.counts[sides["train"]].indices)
        profile = RegionProfile.fit([study.table.sequences[column] for column in seen_asvs])
        notes = {
            "seen_samples": sorted(seen),
            "command": run.about["command"],
            "best_epoch": trainer.progress.best_epoch,
        }
        saved = SavedModel(network, config.data, config.model, heads, study.depth, study.seed, targets, profile, notes)
        best = trainer.best_weights or trainer.last_weights
        for name, weights in (("last", trainer.last_weights), ("model", best)):
            network.load_state_dict(weights)
            save_model(folder / name, saved)
        remove(folder / CHECKPOINTS)
    run.signals.pause()
    return saved


def _fit(run: RunFolder, trainer: Trainer, state: State | None, title: str) -> Trainer:
    """Train, journal, and keep checkpoints."""
    config, runtime = trainer.config, trainer.config.runtime
    if state is not None:
        trainer.restore(state)
        log.info("%s: goes on after step %d", title, trainer.progress.step)
    train, once = config.train, config.train.gradient_accumulation_steps
    log.info("%s: %d samples per step (%d batches of %d)", title, once * train.batch_size, once, train.batch_size)
    keeper = Keeper(trainer.folder / CHECKPOINTS, runtime.checkpoint_minutes, runtime.keep_checkpoints, run.signals)
    before = None if state is None else state.facts["journal"]
    with Journal(trainer.folder, title, trainer.total_steps, config.train.epochs, before) as journal, run.signals:

        def whole(trainer: Trainer) -> State:
            state = trainer.state()
            return State(state.tensors, {**state.facts, "journal": journal.facts(), "run": run.about})

        trainer.report = journal.report
        trainer.offer = lambda trainer: keeper.offer(trainer.progress.step, lambda: whole(trainer))
        trainer.fit()
    log.info("%s: best epoch %d of %d", title, trainer.progress.best_epoch, trainer.progress.epoch)
    return trainer


def pretrain(config: PretrainConfig) -> None:
    """Run `aam pretrain`: an encoder from a table and a tree, without labels."""
    run(FineTuneConfig(config.data, TargetConfig(), config.model, config.train, config.runtime), "pretrain")


def train(config: FineTuneConfig) -> None:
    """Run `aam train`: a model of metadata columns; `InputError` where none is named."""
    if not config.targets.metadata_column:
        raise InputError("--metadata-column: not given; name the column to predict (aam pretrain needs none)")
    run(config, "train")


def run(config: FineTuneConfig, command: str) -> None:
    """Train on every split of `config` and report on the held-out samples.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while it lasts, model/
    (best epoch) and last/, below fold-K/ when cross-validating, then predictions.tsv, report.html and metrics.json.
    Raises `CallAgain` after a signal, with the state saved.
    """
    with Signals() as signals:
        prepared = load_inputs(config)
        study = prepared.study
        facts = {"device": str(prepared.device), "depth": study.depth, "dropped_samples": study.dropped}
        about = describe(command, prepared.config, facts)
        _check_targets(prepared)
        with RunFolder.opened(about, prepared.config.runtime, signals) as folder:
            if folder.finished:
                log.info("%s: finished already", folder.path)
                return
            _train_all(prepared, folder, command)


def _train_all(prepared: Prepared, run: RunFolder, command: str) -> None:
    config, study, device = prepared.config, prepared.study, prepared.device
    held_out: list[PredictionTable] = []
    tables: list[Table] = []
    transductive, many = False, config.data.cv is not None
    for split in prepared.splits:
        folder = run.path / f"fold-{split.test_fold}" if many else run.path
        title = f"{command} fold {split.test_fold}" if many else command
        saved = run.trained(folder, device) or train_one(prepared, run, split, folder, title)
        ids = split.ids("test") or split.ids("validation")
        transductive = transductive or bool(set(split.ids("test")) & set(saved.notes["seen_samples"]))
        if saved.targets.specs and ids:
            passes, fold = config.targets.val_prediction_passes, split.test_fold
            held_out.append(predict_rows(saved, study, ids, config.runtime, device, passes, fold))
        elif ids:
            tables.extend(evaluate_encoder(saved, study, split, config.runtime, device))
    _report(prepared, command, run.path, held_out, tables, transductive)


def _report(
    prepared: Prepared,
    command: str,
    output: Path,
    held_out: Sequence[PredictionTable],
    tables: Sequence[Table],
    transductive: bool,
) -> None:
    config, study = prepared.config, prepared.study
    targets: tuple[TargetResult, ...] = ()
    if held_out and study.metadata is not None:
        table = joined(held_out)
        write_predictions(output / "predictions.tsv", table)
        columns = Columns(config.data.group_column, config.data.batch_column)
        targets = evaluate_targets(table, study.metadata, columns, study, prepared.splits)
    sides = {str(side): len(prepared.splits[0].ids(side)) for side in SIDES}
    results = ReportData(
        title=f"aam {command}",
        task={"command": command, "targets": ", ".join(config.targets.metadata_column) or "none"},
        data={
            "table": config.data.table,
            "samples": len(study.table.sample_ids),
            "ASVs": len(study.table.sequences),
            "rarefaction depth": study.depth,
            "samples below the depth": len(study.dropped),
        },
        split={"splits": len(prepared.splits), "held out": "test" if sides["test"] else "validation", **sides},
        targets=targets,
        tables=tuple(tables),
        transductive=transductive,
        configuration=to_dict(config),
    )
    write_results(output, results)
    log.info("all tables: %s", output / "report.html")
