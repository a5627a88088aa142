"""Training on one split: build the network, fit it with logs and checkpoints, and save the models."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import numpy as np

from aam.data.region import RegionProfile
from aam.data.split import Split
from aam.data.split_file import write_split
from aam.engine.checkpoint import CheckpointManager, State
from aam.engine.logger import METRICS, RunLogger
from aam.engine.run_directory import RunDirectory
from aam.engine.run_record import CHECKPOINTS
from aam.engine.trainer import Trainer, total_steps
from aam.model.aam import Aam
from aam.runtime.files import remove
from aam.training.build import Built, build, make_task
from aam.training.inputs import Prepared, labels_used
from aam.training.member_fit import with_members
from aam.training.saved_model import SavedModel, save_model
from aam.training.task import AmpliconTask

log = logging.getLogger("aam")


def train_one(prepared: Prepared, run: RunDirectory, split: Split, folder: Path, title: str) -> SavedModel:
    """Train on one split, from its newest checkpoint where there is one, and write its part of the run directory."""
    state = run.state(folder)
    built = build(prepared, split, state, run.about["decisions"].get("compile", {}).get("backend"))
    task = make_task(prepared, built)
    if run.world.is_main:
        write_split(folder / "split.tsv", split)
    with run.signals:
        trainer = fit(task, run, folder, state, title)
        saved = save(prepared, run, built, trainer, folder, labels_used(prepared, split))
    run.signals.raise_if_requested(run.world)
    return saved


def fit(task: AmpliconTask, run: RunDirectory, folder: Path, state: State | None, title: str) -> Trainer:
    """Train a task in `folder`, from `state` where there is one, with logs and checkpoints; return its trainer."""
    config, world = task.config, run.world
    manager = CheckpointManager(folder / CHECKPOINTS, config.runtime, run.signals, world)
    logger_state = None if state is None else state.facts["logger"]
    text = "" if state is None else state.texts.get(METRICS, "")
    steps = total_steps(task, config.train)
    logger = RunLogger(folder, title, steps, config.train.epochs, logger_state, text) if world.is_main else None

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


def save(
    prepared: Prepared, run: RunDirectory, built: Built, trainer: Trainer, folder: Path, split: Split
) -> SavedModel:
    """Write the last and the best weights as models, with the members that predict beside them; return the best.

    `split` holds the samples whose labels are used. The checkpoints are removed.
    """
    config, study = prepared.config, built.study
    seen_asvs = np.unique(study.table.counts[built.rows["train"]].indices)
    profile = RegionProfile.fit([study.table.sequences[column] for column in seen_asvs])
    notes = {
        "seen_samples": sorted(built.seen_samples),
        "labelled_samples": sorted(built.labelled_samples),
        "command": run.about["command"],
        "best_epoch": trainer.progress.best_epoch,
    }
    # A new network: the trained one may be sharded.
    network = Aam(config.model, study.depth, built.heads).to(prepared.device)
    saved = SavedModel(
        network, config.data, config.model, built.heads, study.depth, study.seed, built.targets, profile, notes,
        built.covariates,
    )  # fmt: skip
    blended = saved
    if run.world.is_main:
        network.load_state_dict(trainer.best_weights)
        blended = with_members(saved, prepared, study, split, split.ids("train"))
    for name, weights in (("last", trainer.last_weights), ("model", trainer.best_weights)):
        network.load_state_dict(weights)
        if run.world.is_main:
            save_model(folder / name, blended if name == "model" else saved)
    if run.world.is_main:
        remove(folder / CHECKPOINTS)
    return blended
