"""Training on one split: from the network to the saved model."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import numpy as np
import torch

from aam.data.draw import draw_batch
from aam.data.region import RegionProfile
from aam.data.split import Split, write_split
from aam.engine.checkpoint import CheckpointManager, State
from aam.engine.logger import METRICS, RunLogger
from aam.engine.run_directory import RunDirectory
from aam.engine.run_record import CHECKPOINTS
from aam.engine.trainer import Trainer, total_steps
from aam.model.aam import Aam
from aam.runtime.files import remove
from aam.training.heads import SCALE_SAMPLES, head_config
from aam.training.inference import encode_table
from aam.training.inputs import Prepared, encoder_folder, labelled, make_loaders, supervise
from aam.training.linear_start import fit_heads
from aam.training.member_fit import with_members
from aam.training.pipeline import PipelineTask
from aam.training.saved_model import SavedModel, load_model, save_model
from aam.training.task import AmpliconTask
from aam.training.warm_start import freeze_base, take_weights

log = logging.getLogger("aam")


def train_one(prepared: Prepared, run: RunDirectory, split: Split, folder: Path, title: str) -> SavedModel:
    """Train on one split, from its newest checkpoint where there is one, and write its part of the run directory."""
    config, device = prepared.config, prepared.device
    train_ids = labelled(split.ids("train"), config)
    study, targets, covariates = supervise(prepared, train_ids)
    heads = head_config(config, study, targets, covariates, train_ids)
    torch.manual_seed(config.runtime.seed)
    network = Aam(config.model, study.depth, heads)
    sides = {"train": study.rows(train_ids), "validation": study.rows(split.ids("validation"))}
    seen = set(train_ids) | set(split.ids("validation"))
    source, state = encoder_folder(config, split.test_fold), run.state(folder)
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
    train, validation = make_loaders(prepared, study, sides, not frozen, heads.metric is not None)
    if run.world.is_main:
        write_split(folder / "split.tsv", split)
    task_type = PipelineTask if config.runtime.pipeline else AmpliconTask
    task = task_type(network, config, train, validation, device, asvs=asvs if frozen else None, world=run.world)
    with run.signals:
        trainer = fit(task, run, folder, state, title)
        seen_asvs = np.unique(study.table.counts[sides["train"]].indices)
        profile = RegionProfile.fit([study.table.sequences[column] for column in seen_asvs])
        notes = {"seen_samples": sorted(seen), "command": run.about["command"]}
        notes["best_epoch"] = trainer.progress.best_epoch
        # Another network: that which was trained may be in shards.
        network = Aam(config.model, study.depth, heads).to(device)
        saved = SavedModel(
            network, config.data, config.model, heads, study.depth, study.seed, targets, profile, notes, covariates
        )
        last, best = trainer.last_weights, trainer.best_weights
        if run.world.is_main:
            network.load_state_dict(best)
            saved = with_members(saved, prepared, study, split, train_ids)
        for name, weights in (("last", last), ("model", best)):
            network.load_state_dict(weights)
            if run.world.is_main:
                save_model(folder / name, saved)
        if run.world.is_main:
            remove(folder / CHECKPOINTS)
    run.signals.raise_if_requested(run.world)
    return saved


def fit(task: AmpliconTask, run: RunDirectory, folder: Path, state: State | None, title: str) -> Trainer:
    """Train a task in `folder`, from `state` where there is one, with logs and checkpoints; return its trainer."""
    config, world = task.config, run.world
    manager = CheckpointManager(folder / CHECKPOINTS, config.runtime, run.signals, world)
    before, text = (None, "") if state is None else (state.facts["logger"], state.texts.get(METRICS, ""))
    steps = total_steps(task, config.train)
    logger = RunLogger(folder, title, steps, config.train.epochs, before, text) if world.is_main else None

    def full_state(trainer: Trainer) -> State:
        state = trainer.state()
        facts = {**state.facts, "logger": logger.state() if logger else {}, "run": run.about}
        return State(state.tensors, facts, {METRICS: logger.text} if logger else {})

    trainer = Trainer(
        task, config.train, config.runtime, world, folder,
        on_record=logger.record if logger else dict,
        after_step=lambda trainer: manager.maybe_save(trainer.progress.step, lambda: full_state(trainer)),
    )  # fmt: skip
    if state is not None:
        trainer.restore(state)
        log.info("%s: goes on after step %d", title, trainer.progress.step)
    _log_batch_size(task, title)
    with logger or contextlib.nullcontext():
        trainer.fit()
    log.info("%s: best epoch %d of %d", title, trainer.progress.best_epoch, trainer.progress.epoch)
    return trainer


def _log_batch_size(task: AmpliconTask, title: str) -> None:
    train, devices = task.config.train, task.train.world.size
    per_device = f"{train.gradient_accumulation_steps} x {train.batch_size}"
    samples = train.gradient_accumulation_steps * train.batch_size * devices
    log.info("%s: %d samples per step (%s on each of %d devices)", title, samples, per_device, devices)
