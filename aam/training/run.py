"""A whole run, from configuration to saved models: `aam pretrain` and `aam train` are both this."""

from __future__ import annotations

import dataclasses
import json
import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import aam
from aam.config import FineTuneConfig, PretrainConfig, TargetConfig, out_of_range
from aam.config_file import to_dict
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
from aam.data.tokens import RegionProfile
from aam.errors import InputError, Problems, shown
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.runtime.device import prepare
from aam.runtime.files import file_digest, write_text
from aam.runtime.rng import generator
from aam.training.evaluate import Columns, evaluate_encoder, evaluate_targets, write_results
from aam.training.inference import AsvVectors, PredictionTable, encode_table, joined, predict_rows, write_predictions
from aam.training.journal import Journal, open_output
from aam.training.loop import Trainer
from aam.training.model_folder import MANIFEST, SavedModel, load_model, save_model
from aam.training.optim import fit_heads
from aam.training.report import ReportData, Table, TargetResult

log = logging.getLogger("aam")

SCALE_SAMPLES = 256


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
    if model.attention_heads < 1 or model.embedding_dim % model.attention_heads:
        width, heads = model.embedding_dim, model.attention_heads
        problems.add(f"--embedding-dim {width} is not divisible by --attention-heads {heads}")
    problems.raise_if_any()


def _encoder_of(config: FineTuneConfig, fold: str) -> Path | None:
    """Model folder of the pretrained encoder: itself, its ``model``, or that of the same fold."""
    path = config.targets.pretrained_encoder
    if path is None:
        return None
    for candidate in (path, path / f"fold-{fold}" / "model", path / "model"):
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
    first = _encoder_of(config, "0")
    if targets.pretrained_encoder is not None and first is not None:
        start = load_model(first, device)
        depth = data.rarefy_depth or start.depth
        config = dataclasses.replace(config, model=start.model, data=dataclasses.replace(data, rarefy_depth=depth))
        data = config.data
    asked = [*targets.metadata_column, data.group_column, data.batch_column, _fold_column(config)]
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


def _take_weights(network: Aam, start: Aam, source: Path) -> None:
    """Copy what fits from `start`, and say what was loaded, what is new and what was ignored."""
    have, own = start.state_dict(), network.state_dict()
    loaded = [name for name in own if name in have and own[name].shape == have[name].shape]
    if not loaded:
        raise InputError(f"{source}: no weight of it fits this model; pretrain again with the same sizes")
    network.load_state_dict({**own, **{name: have[name] for name in loaded}})
    parts = {"loaded": loaded, "new": own.keys() - set(loaded), "ignored": have.keys() - set(loaded)}
    for title, names in parts.items():
        heads = sorted({name.split(".")[0] for name in names})
        log.info("%s: %d tensors %s%s", source, len(names), title, f" ({', '.join(heads)})" if heads else "")


def _labelled(train_ids: Sequence[str], config: FineTuneConfig) -> tuple[str, ...]:
    """The training samples whose labels are used, in sorted order."""
    order = generator(config.runtime.seed, "labels").permutation(len(train_ids))
    return tuple(train_ids[at] for at in sorted(order[: max(2, round(config.targets.label_share * len(order)))]))


def _freeze(network: Aam) -> None:
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(("target", "labels")))


def train_one(prepared: Prepared, split: Split, folder: Path, title: str) -> SavedModel:
    """Train on one split and write its part of the run directory."""
    config, study, device = prepared.config, prepared.study, prepared.device
    wanted = config.targets.metadata_column
    train_ids = _labelled(split.ids("train"), config)
    targets = Targets(())
    if wanted and study.metadata is not None:
        targets = fit_targets(
            study.metadata, wanted, train_ids,
            classifier=config.targets.classifier, transform=config.targets.target_transform,
        )  # fmt: skip
        target, label = targets.encode(study.metadata, study.table.sample_ids)
        study = dataclasses.replace(study, target=target, label=label)
    heads = _heads(config, study, targets, train_ids)
    torch.manual_seed(config.runtime.seed)
    network = Aam(config.model, study.depth, heads)
    seen = set(train_ids) | set(split.ids("validation"))
    source = _encoder_of(config, split.test_fold)
    if source is not None:
        start = load_model(source, torch.device("cpu"))
        _take_weights(network, start.network, source)
        seen |= set(start.notes["seen_samples"])
    else:
        network.standardize(draw_batch(study, study.rows(train_ids[:SCALE_SAMPLES]), 0, distances=False))
    network.to(device)
    sides = {"train": study.rows(train_ids), "validation": study.rows(split.ids("validation"))}
    if targets.specs:
        fit_heads(network, study, sides["train"], sides["validation"], device, config.runtime)
    asvs: AsvVectors | None = None
    if config.targets.freeze_base:
        _freeze(network)
        asvs = encode_table(network, study, device, config.runtime)
    network.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    train = Loader(
        study, sides["train"], config.train.batch_size, True, config.runtime.num_workers,
        tokens=asvs is None, distances=heads.metric is not None,
        # Fewer reads, more variety; a precomputed distance would no longer be that of the draw.
        shallow=0.0 if study.tree is None else config.train.shallow_draws,
    )  # fmt: skip
    validation = dataclasses.replace(train, rows=sides["validation"], shuffle=False, shallow=0.0)
    write_split(folder / "split.tsv", split)
    steps = len(train) * config.train.epochs
    with Journal(folder, title, steps, config.train.epochs) as journal:
        trainer = Trainer(network, config, train, validation, device, journal.report, asvs)
        trainer.fit()
    log.info("%s: best epoch %d of %d", title, trainer.progress.best_epoch, trainer.progress.epoch)
    profile = RegionProfile.fit(
        [study.table.sequences[c] for c in np.unique(study.table.counts[sides["train"]].indices)]
    )
    notes = {
        "seen_samples": sorted(seen),
        "command": "train" if wanted else "pretrain",
        "best_epoch": trainer.progress.best_epoch,
    }
    saved = SavedModel(network, config.data, config.model, heads, study.depth, study.seed, targets, profile, notes)
    best = trainer.best_weights or trainer.last_weights
    for name, weights in (("last", trainer.last_weights), ("model", best)):
        network.load_state_dict(weights)
        save_model(folder / name, saved)
    return saved


def _describe(prepared: Prepared, command: str) -> str:
    """run.json: resolved options, versions, machine and checksums of the inputs."""
    config = prepared.config
    inputs = {
        name: {"path": str(path), "sha256": file_digest(path)}
        for name, path in dataclasses.asdict(config.data).items()
        if isinstance(path, Path)
    }
    options = to_dict(config)
    if command == "pretrain":
        del options["targets"]
    versions = {
        "aam": aam.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    described = {
        "command": command,
        "config": options,
        "inputs": inputs,
        "versions": versions,
        "device": str(prepared.device),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "depth": prepared.study.depth,
        "dropped_samples": prepared.study.dropped,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    return json.dumps(described, indent=1) + "\n"


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

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, model/ (best epoch) and last/, below
    fold-K/ when cross-validating, then predictions.tsv, metrics.json and report.html.
    """
    prepared = load_inputs(config)
    config = prepared.config
    output = config.runtime.output_dir
    if output is None:
        raise InputError("--output-dir: not given")
    open_output(output, config.runtime.overwrite)
    write_text(output / "run.json", _describe(prepared, command))
    many = config.data.cv is not None
    held_out: list[PredictionTable] = []
    tables: list[Table] = []
    transductive = False
    for split in prepared.splits:
        folder = output / f"fold-{split.test_fold}" if many else output
        title = f"{command} fold {split.test_fold}" if many else command
        saved = train_one(prepared, split, folder, title)
        ids = split.ids("test") or split.ids("validation")
        transductive = transductive or bool(set(split.ids("test")) & set(saved.notes["seen_samples"]))
        if saved.targets.specs and ids:
            passes, fold = config.targets.val_prediction_passes, split.test_fold
            held_out.append(predict_rows(saved, prepared.study, ids, config.runtime, prepared.device, passes, fold))
        elif ids:
            tables.extend(evaluate_encoder(saved, prepared.study, split, config.runtime, prepared.device))
    _report(prepared, command, output, held_out, tables, transductive)


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
