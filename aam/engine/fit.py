"""The run machine: a command that trains, from its processes to its results, and a task trained in a run directory."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from aam.device.distributed import World, launch, process_count, process_group
from aam.device.environment import rank_of
from aam.engine.checkpoint import CheckpointManager, State
from aam.engine.logger import RunLogger, Tracking
from aam.engine.options import RunConfig, TrainingOptions
from aam.engine.run import CHECKPOINTS, METRICS, RunDirectory, describe
from aam.engine.signals import Signals
from aam.engine.task import Task
from aam.engine.trainer import Trainer, total_steps
from aam.errors import FINISHED
from aam.files.atomic import remove, write_text
from aam.files.output_folder import LIST, MEMORY, RUN

log = logging.getLogger("aam")

# The results of a run, which are written last.
RESULTS = "metrics.json"

# Folders of the best and of the last weights of a task.
MODEL, LAST = "model", "last"

Saved = TypeVar("Saved")


class RunPlan(NamedTuple):
    """What a command that trains is going to do, when all it reads is read and checked and nothing is written yet.

    Attributes
    ----------
    options : dict
        The options as values of JSON, for run.json.
    files : mapping of str to Path
        The files that the command reads, by option.
    facts : dict
        What else run.json holds.
    outputs : sequence of str
        Names that the command may write beside run.json and metrics.json.
    work : callable
        Trains in the run directory, and returns what metrics.json holds; None where it has written that itself.
    describe : callable
        Returns what ``--dry-run`` prints.
    in_memory : mapping of str to str, optional
        Checksums of the inputs that are no files, by option.
    """

    options: dict[str, Any]
    files: Mapping[str, Path]
    facts: dict[str, Any]
    outputs: Sequence[str]
    work: Callable[[RunDirectory], dict[str, Any] | None]
    describe: Callable[[], Sequence[str]] = tuple
    in_memory: Mapping[str, str] | None = None


def run_command(
    name: str, runtime: RunConfig, prepare: Callable[[World], RunPlan], program: str = "aam",
    processes: int | None = None,
) -> int:  # fmt: skip
    """Run a command that trains, on one or several processes, in its run directory; return the exit status.

    A run that is finished is left as it is.

    Parameters
    ----------
    name : str
        The command, as run.json names it.
    runtime : RunConfig
    prepare : callable
        Reads and checks what the command needs, on each rank.
    program : str
        The module that ``python -m`` runs, where ``--data-parallel`` starts processes.
    processes : int, optional
        How many ``--data-parallel`` starts; unset: as many as this machine has room for.

    Raises
    ------
    CallAgain
        A signal came; what is trained is saved.
    """
    if runtime.data_parallel and rank_of(os.environ) is None:
        return launch(processes or process_count(runtime), sys.argv[1:], program)
    with Signals() as signals, process_group(runtime) as world:
        plan = prepare(world)
        facts = {**plan.facts, LIST: [RUN, RESULTS, *MEMORY, *plan.outputs]}
        about = describe(name, plan.options, plan.files, facts, plan.in_memory)
        if runtime.dry_run:
            if world.is_main:
                folder = runtime.output_dir
                state = "not named" if folder is None else RunDirectory.check(about, runtime, signals).plan()
                last = f"output folder {folder or '(--output-dir)'}: {state}; --dry-run has changed nothing"
                print("\n".join([*plan.describe(), last]))
            return FINISHED
        world.barrier()
        with RunDirectory.open(about, runtime, signals, world) as run:
            if run.finished:
                log.info("%s: finished already", run.path)
                return FINISHED
            results = plan.work(run)
            if results is not None and world.is_main:
                write_text(run.path / RESULTS, json.dumps(results, indent=1) + "\n")
    return FINISHED


def train_once(
    run: RunDirectory, folder: Path, start: Callable[[State | None], Callable[[], Saved]],
    load_saved: Callable[[], Saved],
) -> Saved:  # fmt: skip
    """Train in `folder`, from its newest checkpoint where there is one, and save what came of it.

    Where that was done before the run was interrupted, it is loaded.

    Parameters
    ----------
    run : RunDirectory
    folder : Path
        The run directory, or a fold below it.
    start : callable
        Prepares from a state where there is one, and returns what trains, and saves as ``model`` and ``last``.
    load_saved : callable
        Loads what was saved before.
    """
    if run.world.any(run.world.is_main and run.is_trained(folder)):
        return load_saved()
    train = start(run.state(folder))
    with run.signals:
        saved = train()
        if run.world.is_main:
            remove(folder / CHECKPOINTS)
    run.signals.raise_if_requested(run.world)
    return saved


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
