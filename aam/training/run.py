"""A whole run, from configuration to saved models: `aam pretrain` and `aam train` are both this."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aam.config import FineTuneConfig, PretrainConfig
from aam.config_commands import ForestConfig
from aam.config_file import contradictions, out_of_range, to_dict
from aam.data.batch import Budget, RegionProfile
from aam.data.loader import Loader, Withheld, draw_batch
from aam.data.split import SIDES, Split, restricted, twins_apart, write_split
from aam.data.study import Study, divided, division_columns, division_problems, load_study
from aam.data.supervision import Covariates, optional_columns, supervised
from aam.data.targets import Targets
from aam.errors import FINISHED, InputError, Problems, shown
from aam.model.aam import Aam
from aam.runtime.device import decide, generator, prepare
from aam.runtime.distributed import ALONE, World, devices, launched, started, world_of
from aam.runtime.files import MANIFEST, remove
from aam.training.checkpoint import RETRAIN, Keeper, SavedModel, Signals, State, load_model, save_ensemble, save_model
from aam.training.doctor import compiler_for
from aam.training.evaluate import Rivals, evaluate_encoder, evaluate_targets, with_intervals, write_results
from aam.training.forest import Columns
from aam.training.inference import encode_table, predict_rows
from aam.training.journal import Journal
from aam.training.loop import Trainer
from aam.training.losses import class_weights
from aam.training.memory import budget_of, sized
from aam.training.optim import SCALE_SAMPLES, fit_heads, freeze_base, head_config, take_weights
from aam.training.pipeline import stage_problems
from aam.training.predictions import PredictionTable, joined, write_predictions
from aam.training.record import CHECKPOINTS, RunFolder, decided_before, describe
from aam.training.report import ReportData, Table, TargetResult

log = logging.getLogger("aam")

Sides = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Inputs of a run, read and checked."""

    config: FineTuneConfig
    study: Study
    splits: tuple[Split, ...]
    device: torch.device
    world: World = ALONE
    budget: Budget | None = None


def _check_options(config: FineTuneConfig, world: World) -> None:
    """Refuse, together, options that contradict each other or lie outside their range."""
    data, model, problems = config.data, config.model, Problems()
    problems.found += [*out_of_range(config), *contradictions(config), *division_problems(data)]
    problems.found += stage_problems(config, world)
    for name, value in {**vars(data), **vars(config.targets)}.items():
        if isinstance(value, Path) and not value.exists():
            problems.add(f"--{name.replace('_', '-')}: {value}: no such file or folder")
    reserved = {"sample-id", "fold", "note"} & set(config.targets.metadata_column)
    if reserved:
        problems.add(f"--metadata-column: {shown(sorted(reserved))} cannot be told from columns of predictions.tsv")
    if config.targets.ensemble and data.cv is None:
        problems.add("--ensemble needs --cv, whose folds are its members; other models: aam predict --model A B")
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
    raise InputError(f"--pretrained-encoder: {path} holds no model ({expected}); run `aam pretrain` first{RETRAIN}")


def load_inputs(config: FineTuneConfig, world: World = ALONE) -> Prepared:
    """Read every input of a run and divide the samples.

    Raises
    ------
    InputError
        Problems of options, files or splits, before any long work.
    """
    _check_options(config, world)
    device = prepare(config.runtime)
    data, targets = config.data, config.targets
    if targets.metadata_column and not targets.count_prediction:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, count_penalty=0.0))
    first = _encoder_of(config, "*")
    if targets.pretrained_encoder is not None and first is not None:
        start = load_model(first, device)
        depth = data.rarefy_depth or start.depth
        config = dataclasses.replace(config, model=start.model, data=dataclasses.replace(data, rarefy_depth=depth))
        data = config.data
    columns = [*targets.metadata_column, *filter(None, [targets.normalize_by]), *division_columns(data)]
    study = load_study(
        data, config.model.max_bp, config.runtime.seed, columns, list(targets.metadata_column), targets.classifier,
        optional_columns(targets, config.covariates),
    )  # fmt: skip
    return Prepared(config, study, divided(study, data, config.runtime.seed), device, world)


def _labelled(train_ids: Sequence[str], config: FineTuneConfig) -> tuple[str, ...]:
    """The training samples whose labels are used, in sorted order."""
    order = generator(config.runtime.seed, "labels").permutation(len(train_ids))
    return tuple(train_ids[at] for at in sorted(order[: max(2, round(config.targets.label_share * len(order)))]))


def _supervised(prepared: Prepared, train_ids: Sequence[str]) -> tuple[Study, Targets, Covariates]:
    config = prepared.config
    activation = config.regressor.output_activation
    return supervised(prepared.study, config.targets, config.covariates, activation, train_ids)


def _check_targets(prepared: Prepared) -> None:
    """Raise `InputError` for targets and sides that cannot be learned from, before anything is written."""
    problems, ranks = Problems(), prepared.world.size
    for split in prepared.splits:
        few = {side: len(split.ids(side)) for side in ("train", "validation") if 0 < len(split.ids(side)) < ranks}
        problems.found += [
            f"the {side} side has {n} samples for {ranks} devices; take fewer" for side, n in few.items()
        ]
        train_ids = _labelled(split.ids("train"), prepared.config)
        study, targets, _ = _supervised(prepared, train_ids)
        if study.label is not None:
            sizes = [len(spec.labels) for spec in targets.classes]
            class_weights(prepared.config.targets.class_weights, study.label[study.rows(train_ids)], sizes)
    problems.raise_if_any()


def _loaders(prepared: Prepared, study: Study, sides: Sides, tokens: bool, distances: bool) -> tuple[Loader, Loader]:
    config = prepared.config
    train = Loader(
        study, sides["train"], config.train.batch_size, True, config.runtime.num_workers,
        tokens=tokens, distances=distances,
        # Fewer reads, more variety; a precomputed distance would no longer be that of the draw.
        shallow=0.0 if study.tree is None else config.train.shallow_draws,
        withheld=Withheld(config.train.asv_dropout, config.covariates.categorical_dropout),
        world=prepared.world, budget=prepared.budget,
    )  # fmt: skip
    held_out = dataclasses.replace(train, rows=sides["validation"], shuffle=False, budget=None)
    return train, dataclasses.replace(held_out, shallow=0.0, withheld=Withheld())


def train_one(prepared: Prepared, run: RunFolder, split: Split, folder: Path, title: str) -> SavedModel:
    """Train on one split, from its newest checkpoint where there is one, and write its part of the run directory."""
    config, device = prepared.config, prepared.device
    train_ids = _labelled(split.ids("train"), config)
    study, targets, covariates = _supervised(prepared, train_ids)
    heads = head_config(config, study, targets, covariates, train_ids)
    torch.manual_seed(config.runtime.seed)
    network = Aam(config.model, study.depth, heads)
    sides = {"train": study.rows(train_ids), "validation": study.rows(split.ids("validation"))}
    seen = set(train_ids) | set(split.ids("validation"))
    source, state = _encoder_of(config, split.test_fold), run.state(folder)
    if source is not None:
        start = load_model(source, torch.device("cpu"))
        alike = (start.targets.specs, start.covariates) == (targets.specs, covariates)
        take_weights(network, start.network, source, alike)
        seen |= set(start.notes["seen_samples"])
    elif state is None:
        network.standardize(draw_batch(study, study.rows(train_ids[:SCALE_SAMPLES]), 0, distances=False))
    network.to(device)
    if state is not None:
        network.load_state_dict(state.part("model"))
    frozen, begins = config.targets.freeze_base, state is None and bool(targets.specs)
    asvs = encode_table(network, study, device, config.runtime) if frozen or begins else None
    if begins and asvs is not None:
        fit_heads(network, study, (sides["train"], sides["validation"]), asvs, device, config)
    if frozen:
        freeze_base(network)
    network.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    network.compile_encoders(run.about["decisions"].get("compile", {}).get("backend"))
    train, validation = _loaders(prepared, study, sides, not frozen, heads.metric is not None)
    if run.world.lead:
        write_split(folder / "split.tsv", split)
    with run.signals:
        known = asvs if frozen else None
        trainer = Trainer(network, config, train, validation, device, asvs=known, folder=folder, world=run.world)
        _fit(run, trainer, state, title)
        seen_asvs = np.unique(study.table.counts[sides["train"]].indices)
        profile = RegionProfile.fit([study.table.sequences[column] for column in seen_asvs])
        notes = {"seen_samples": sorted(seen), "command": run.about["command"]}
        notes["best_epoch"] = trainer.progress.best_epoch
        # Another network: that which was trained may be in shards.
        network = Aam(config.model, study.depth, heads).to(device)
        saved = SavedModel(
            network, config.data, config.model, heads, study.depth, study.seed, targets, profile, notes, covariates
        )
        for name, weights in (("last", trainer.last_weights), ("model", trainer.best_weights)):
            network.load_state_dict(weights)
            if run.world.lead:
                save_model(folder / name, saved)
        if run.world.lead:
            remove(folder / CHECKPOINTS)
    run.signals.pause(run.world)
    return saved


def _fit(run: RunFolder, trainer: Trainer, state: State | None, title: str) -> None:
    """Train, journal, and keep checkpoints."""
    config, world = trainer.config, run.world
    if state is not None:
        trainer.restore(state)
        log.info("%s: goes on after step %d", title, trainer.progress.step)
    train, once = config.train, config.train.gradient_accumulation_steps
    shares = trainer.train.world.size
    said = f"{once} x {train.batch_size} on each of {shares} devices"
    log.info("%s: %d samples per step (%s)", title, once * train.batch_size * shares, said)
    keeper = Keeper(trainer.folder / CHECKPOINTS, config.runtime, run.signals, world)
    before = None if state is None else state.facts["journal"]
    journal = Journal(trainer.folder, title, trainer.total_steps, train.epochs, before) if world.lead else None
    with journal or contextlib.nullcontext():

        def whole(trainer: Trainer) -> State:
            state, said = trainer.state(), journal.facts() if journal else {}
            return State(state.tensors, {**state.facts, "journal": said, "run": run.about})

        trainer.report = journal.report if journal else dict
        trainer.offer = lambda trainer: keeper.offer(trainer.progress.step, lambda: whole(trainer))
        trainer.fit()
    log.info("%s: best epoch %d of %d", title, trainer.progress.best_epoch, trainer.progress.epoch)


def pretrain(config: PretrainConfig) -> int:
    """Run `aam pretrain`: an encoder from a table and a tree, without labels; the exit status."""
    own = FineTuneConfig(data=config.data, model=config.model, train=config.train, runtime=config.runtime)
    return run(own, "pretrain")


def train(config: FineTuneConfig) -> int:
    """Run `aam train`: a model of metadata columns; `InputError` where none is named. Returns the exit status."""
    if not config.targets.metadata_column:
        raise InputError("--metadata-column: not given; name the column to predict (aam pretrain needs none)")
    return run(config, "train")


def _decided(prepared: Prepared) -> tuple[Prepared, dict[str, Any]]:
    """Attention, batch size and compiler as this machine, or the run before, settles them; all take the lead's."""
    runtime, model, world = prepared.config.runtime, prepared.config.model, prepared.world
    before = decided_before(runtime) if world.lead else json.loads(world.told(b""))
    decisions = decide(runtime, prepared.device, model.head_width, before)
    config, decisions["batch"] = sized(prepared.config, prepared.study, prepared.device, before)
    budget = budget_of(config, prepared.study, prepared.device, before, world.size)
    decisions |= {} if budget is None else {"memory": budget._asdict()}
    if runtime.compile_model:
        decisions["compile"] = compiler_for(model, runtime, prepared.device, before)
    if world.lead:
        world.told(json.dumps(decisions).encode())
    return dataclasses.replace(prepared, config=config, budget=budget), decisions


def run(config: FineTuneConfig, command: str) -> int:
    """Train on every split of `config` and report on the held-out samples.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while it lasts, model/
    (best epoch) and last/, below fold-K/ when cross-validating, then predictions.tsv, report.html and metrics.json.
    Raises `CallAgain` after a signal, with the state saved. Returns the exit status.
    """
    if config.runtime.data_parallel and not started(os.environ):
        return launched(devices(config.runtime), sys.argv[1:])
    with Signals() as signals, world_of(config.runtime) as world:
        prepared = load_inputs(config, world)
        prepared, decisions = _decided(prepared)
        study, ranks = prepared.study, 1 if config.runtime.pipeline else world.size
        where = {"device": str(prepared.device), "ranks": ranks}
        facts = {**where, "depth": study.depth, "dropped_samples": study.dropped, "decisions": decisions}
        about = describe(command, prepared.config, facts)
        _check_targets(prepared)
        world.wait()
        with RunFolder.opened(about, prepared.config.runtime, signals, world) as folder:
            if folder.finished:
                log.info("%s: finished already", folder.path)
            else:
                _train_all(prepared, folder, command)
    return FINISHED


def _train_all(prepared: Prepared, run: RunFolder, command: str) -> None:
    config, study, device, lead = prepared.config, prepared.study, prepared.device, run.world.lead
    held_out: list[PredictionTable] = []
    tables: list[Table] = []
    models: dict[Path, SavedModel] = {}
    warnings = [said for split in prepared.splits for said in twins_apart(study.table, split)]
    for said in warnings:
        log.warning("warning: %s", said)
    transductive, many = False, config.data.cv is not None
    for split in prepared.splits:
        folder = run.path / f"fold-{split.test_fold}" if many else run.path
        title = f"{command} fold {split.test_fold}" if many else command
        saved = run.trained(folder, device) if lead else None
        if not run.world.any(saved is not None):
            saved = train_one(prepared, run, split, folder, title)
        if saved is None or not lead:
            continue
        models[folder] = saved
        ids = split.held_out
        transductive = transductive or bool(set(split.ids("test")) & set(saved.notes["seen_samples"]))
        if saved.targets.specs and ids:
            passes, fold = config.targets.val_prediction_passes, split.test_fold
            held_out.append(predict_rows(saved, study, ids, config.runtime, device, passes, fold))
        elif ids:
            tables.extend(evaluate_encoder(saved, study, split, config.runtime, device))
    if not lead:
        return
    targets = _results(prepared, run.path, held_out, models)
    if config.targets.ensemble:
        save_ensemble(run.path / "model", {folder.name: folder / "model" for folder in models})
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
        warnings=tuple(warnings),
        transductive=transductive,
        configuration=to_dict(config),
    )
    write_results(run.path, results)
    log.info("all tables: %s", run.path / "report.html")


def _labels_used(prepared: Prepared, split: Split) -> Split:
    """The split without the samples whose labels were not used, from which baselines may not learn either."""
    used = _labelled(split.ids("train"), prepared.config)
    return restricted(split, [*used, *split.ids("validation"), *split.ids("test")])


def _results(
    prepared: Prepared, output: Path, held_out: Sequence[PredictionTable], models: Mapping[Path, SavedModel]
) -> tuple[TargetResult, ...]:
    """Write predictions.tsv, give the models what makes intervals, and compare with baselines."""
    config, study = prepared.config, prepared.study
    if not held_out or study.metadata is None:
        return ()
    by = tuple(filter(None, [config.targets.normalize_by]))
    columns = Columns(config.data.group_column, config.data.batch_column, by)
    table = joined(held_out)
    # Without a test side early stopping has seen what is held out, which cannot vouch for new samples.
    if all(split.ids("test") for split in prepared.splits):
        table, fitted = with_intervals(table, study.metadata, columns, config.runtime.seed)
        intervals = {name: dataclasses.asdict(one) for name, one in fitted.items()}
        for folder, saved in models.items() if intervals else ():
            save_model(folder / "model", dataclasses.replace(saved, notes={**saved.notes, "intervals": intervals}))
    elif table.values:
        log.info("no intervals: early stopping has seen what is held out; --cv or --test-size hold out more")
    write_predictions(output / "predictions.tsv", table)
    forest = ForestConfig(n_jobs=config.runtime.threads or -1) if config.targets.rf_baseline else None
    splits = [_labels_used(prepared, split) for split in prepared.splits]
    return evaluate_targets(table, study.metadata, columns, Rivals(study, splits, forest))
