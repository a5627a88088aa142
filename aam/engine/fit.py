"""Training a task inside a run directory: logs, checkpoints, and the folders of its weights."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aam.engine.checkpoint import CheckpointManager, State, load, save
from aam.engine.logger import METRICS, RunLogger
from aam.engine.options import TrainingOptions
from aam.engine.run_directory import RunDirectory
from aam.engine.run_record import CHECKPOINTS
from aam.engine.task import Task
from aam.engine.tracking import Tracking
from aam.engine.trainer import Trainer, total_steps
from aam.files.atomic import remove

log = logging.getLogger("aam")

# Folders of the best and of the last weights of a task.
MODEL, LAST = "model", "last"


def fit(
    task: Task, options: TrainingOptions, run: RunDirectory, folder: Path, state: State | None, title: str
) -> Trainer:
    """Train a task in `folder`, from `state` where there is one, with logs and checkpoints; return its trainer."""
    world = run.world
    manager = CheckpointManager(folder / CHECKPOINTS, run.runtime, run.signals, world)
    logger_state = None if state is None else state.facts["logger"]
    text = "" if state is None else state.texts.get(METRICS, "")
    steps = total_steps(task, options)
    logger = None
    if world.is_main:
        name = run.runtime.track
        tracking = None if name is None else Tracking(name, folder, title, run.about["config"], text)
        logger = RunLogger(folder, title, steps, options.epochs, logger_state, text, tracking)

    def full_state(trainer: Trainer) -> State:
        state = trainer.state()
        facts = {**state.facts, "logger": logger.state() if logger else {}, "run": run.about}
        return State(state.tensors, facts, {METRICS: logger.text} if logger else {})

    trainer = Trainer(
        task, options, run.runtime, world, folder,
        on_record=logger.record if logger else dict,
        after_step=lambda trainer: manager.maybe_save(trainer.progress.step, lambda: full_state(trainer)),
    )  # fmt: skip
    if state is not None:
        trainer.restore(state)
        log.info("%s: goes on after step %d", title, trainer.progress.step)
    devices = world.size if task.splits_batches else 1
    samples = options.gradient_accumulation_steps * options.batch_size * devices
    per_device = f" ({options.gradient_accumulation_steps} x {options.batch_size} on each of {devices} devices)"
    alone = samples == options.batch_size
    log.info("%s: %d samples per step%s", title, samples, "" if alone else per_device)
    with logger or contextlib.nullcontext():
        trainer.fit()
    best, epochs = trainer.progress.best_epoch, trainer.progress.epoch
    start = "" if best else ", the start: no epoch made the network better on the validation samples"
    if epochs:
        log.info("%s: best epoch %d of %d%s", title, best, epochs, start)
    return trainer


def fit_and_save(
    make_task: Callable[[], Task], options: TrainingOptions, run: RunDirectory, folder: Path, title: str,
    description: dict[str, Any],
) -> State:  # fmt: skip
    """Train a task in `folder` unless that is done, write its best and last weights there, and return the best.

    Parameters
    ----------
    make_task : callable
        Makes the task, with new weights.
    description : dict
        What is needed to build the model again, as values of JSON; stands with the weights and in what is returned.
    """
    if run.world.any(run.world.is_main and run.is_trained(folder)):
        return load(folder / MODEL)
    state = run.state(folder)
    with run.signals:
        trainer = fit(make_task(), options, run, folder, state, title)
        description = {**description, "best_epoch": trainer.progress.best_epoch}
        for name, weights in ((LAST, trainer.last_weights), (MODEL, trainer.best_weights)):
            save(folder / name, State(weights, description), run.world)
        if run.world.is_main:
            remove(folder / CHECKPOINTS)
    run.signals.raise_if_requested(run.world)
    return State(trainer.best_weights, description)
