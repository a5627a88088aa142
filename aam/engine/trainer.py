"""The trainer: epochs of steps, validation, early stopping, state for resume; a task trained in a
run.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aam.device.distributed import SINGLE, World, step_watch
from aam.device.precision import make_scaler
from aam.device.rng import random_state, set_random_state
from aam.device.sharding import full_tensor, is_sharded, parallelize, shard_like, start_alike
from aam.engine.capture import CapturedSteps
from aam.engine.checkpoint import URGENT, CheckpointManager, State
from aam.engine.logger import METRICS, Record, RunLogger
from aam.engine.ranks import RankSteps
from aam.engine.run import CHECKPOINTS, TrainingFolder
from aam.engine.step import (
    RunningMeans,
    StepOutcome,
    StepSetup,
    load_optimizer_state,
    optimizer_state,
)
from aam.engine.task import Metrics, Task
from aam.errors import RunError
from aam.options import RunConfig, TrainingOptions

log = logging.getLogger("aam")

# Steps between two records of the losses.
LOG_STEPS = 10
# Steps of the first epoch after which a run says its speed; each epoch says its own.
SPEED_STEPS = 100


@dataclass
class Progress:
    """The progress of a run without weights and optimizer; epoch 0 is before training.

    `position` counts the batches done in the epoch, `samples` their samples, `seconds` their time,
    `stale` the validations since the best one.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    samples: int = 0
    seconds: float = 0.0
    best: float = float("inf")
    best_epoch: int = 0
    stale: int = 0


@dataclass(eq=False)
class Trainer:
    """A task in training: its network on all ranks, optimizer, schedule, progress, and the best
    weights so far.

    Parameters
    ----------
    task : Task
    options : TrainingOptions
    runtime : RunConfig
        Precision and parallelism.
    world : World
        The ranks that train together.
    on_record : callable, optional
        Takes a record of each step and of each epoch.
    after_step : callable, optional
        Called with the trainer where its state may be saved: after each step, or where ranks train
        different parameters after each `LOG_STEPS`.
    """

    task: Task
    options: TrainingOptions
    runtime: RunConfig
    world: World = SINGLE
    on_record: Callable[[Record], object] | None = None
    after_step: Callable[[Trainer], object] | None = None

    def __post_init__(self) -> None:
        task, options = self.task, self.options
        self.model, self.device = task.model, task.device
        self.step_world = SINGLE if task.steps_alone else self.world
        if task.shares_vectors:
            start_alike(task.model, self.step_world)
            self.network = task.network
        else:
            self.network = parallelize(task.network, self.runtime, self.step_world, task.blocks())
        self.scaler = make_scaler(self.runtime, self.device)
        self.optimizer = task.configure_optimizer(options)
        self.setup = StepSetup(
            self.network, task, self.optimizer, self.scaler, self.step_world, options.max_grad_norm
        )
        self.rank_steps = RankSteps(self.setup) if task.shares_vectors else None
        self.steps = self._steps()
        # What this rank wishes, and what ranks wished in the steps read since the last `agree`.
        self.wish = self.arrived = 0
        epoch_steps = math.ceil(task.batches_per_epoch / options.gradient_accumulation_steps)
        self.total_steps = epoch_steps * options.epochs
        self.average = copy.deepcopy(self.model.state_dict()) if options.ema_decay > 0 else {}
        self.progress, self.resumed = Progress(), False
        self.pending: StepOutcome | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.last_weights: dict[str, Tensor] = {}
        # Of the losses in this epoch and since the last record.
        self.means = {name: RunningMeans(task.loss_names) for name in ("epoch", "recent")}

    def _steps(self) -> StepSetup | RankSteps | CapturedSteps:
        """Return what takes the steps: eager, as several ranks do, in graphs, or the last two."""
        steps = self.rank_steps or self.setup
        is_whole = self.rank_steps is not None or self.world.size == 1
        is_simple = self.options.gradient_accumulation_steps == 1 and not self.scaler.is_enabled()
        may_capture = self.task.has_constant_shapes and not self.runtime.no_capture
        if self.device.type == "cuda" and may_capture and is_whole and is_simple:
            return CapturedSteps(self.setup, steps.parts)
        return steps

    def path(self) -> str:
        """Path that the steps take, in words: captured, compiled or eager."""
        task = self.task
        path = f"eager ({task.refusal})" if task.refusal else "eager"
        if isinstance(self.steps, CapturedSteps) and not task.refusal:
            path = "captured as graphs, if they pass a check"
        return f"compiled by {task.compiler}, {path}" if task.compiler else path

    def agree(self, wish: int) -> int:
        """Return the largest wish of all ranks, 0 to `URGENT`; all of them call it after a step.

        Where ranks add up gradients, wishes travel with those of the next step. They arrive two
        steps later, and no rank waits for them.
        """
        if self.rank_steps is None:
            return self.world.all_reduce_max(wish)
        arrived, self.arrived = self.arrived, 0
        # One that has arrived is about to be granted.
        wish = 0 if arrived else wish
        if wish != self.wish:
            self.rank_steps.gradients.wish.fill_(wish)
            self.wish = wish
        return arrived

    def state(self) -> State:
        """Return everything that `restore` needs to continue the run bit for bit.

        Every rank must call it.
        """
        self._read_pending()
        # A wish that is not granted by this very state is sent again.
        self.arrived = 0
        self._gather_weights()
        weights = {"best": self.best_weights, "average": self.average}
        kinds = {"model": self.model.state_dict(), **weights}
        for name, means in self.means.items():
            kinds[f"{name}_means"] = {"values": self._all_reduce(means).values}
        for rank, random in enumerate(self.world.all_gather(random_state(self.device))):
            kinds[f"random{rank}"] = random
        kinds["optimizer"] = self.task.gather(optimizer_state(self.optimizer, self.model))
        tensors = {f"{kind}.{name}": kinds[kind][name] for kind in kinds for name in kinds[kind]}
        facts = {"progress": dataclasses.asdict(self.progress), "scale": self.scaler.state_dict()}
        return State(tensors, {**facts, "task": self.task.state()})

    def restore(self, state: State) -> None:
        """Continue from `state`."""
        self.model.load_state_dict(self._shard(state.part("model")))
        self.best_weights = self._shard(state.part("best"))
        self.average = self._shard(state.part("average"))
        for name, means in self.means.items() if self.world.is_main else ():
            means.values = state.part(f"{name}_means")["values"].to(self.device)
        load_optimizer_state(self.optimizer, self.model, state.part("optimizer"))
        self.scaler.load_state_dict(state.facts.get("scale", {}))
        self.task.restore(state.facts.get("task", {}))
        self.progress, self.resumed = Progress(**state.facts["progress"]), True
        # A rank that the run did not have before keeps its initial random state.
        if random := state.part(f"random{self.world.rank}"):
            set_random_state(random, self.device)

    def fit(self) -> None:
        """Train until the last epoch or until patience runs out, then load the best weights."""
        epochs, patience = self.options.epochs, self.options.patience or math.inf
        if self.task.validates_first and not self.resumed:
            self._record_epoch(self._validate())
        while self.progress.epoch < epochs and self.progress.stale < patience:
            metrics = self._train_epoch()
            progress = self.progress
            progress.epoch += 1
            progress.position, progress.samples, progress.seconds = 0, 0, 0.0
            self.means["epoch"] = RunningMeans(self.task.loss_names)
            self._record_epoch(metrics)
        if self.progress.epoch and not self.best_weights:
            problem = f"{self.task.best_metric} is finite in no epoch: no weights are the best"
            raise RunError(f"{problem}; lower --lr {self.options.lr}, or take more for validation")
        final = self.average or self.model.state_dict()
        self.last_weights, self.best_weights = (
            {name: full_tensor(value).clone() for name, value in weights.items()}
            for weights in (final, self.best_weights or final)
        )
        self.model.load_state_dict(self._shard(self.best_weights))

    def _shard(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sharded = self.model.state_dict()
        return {name: shard_like(value, sharded[name]) for name, value in weights.items()}

    def _gather_weights(self) -> None:
        """Give every rank the weights that another one trains."""
        if self.task.steps_alone:
            self.model.load_state_dict(self.task.gather(self.model.state_dict()))
            self.average = self.task.gather(self.average)

    def _train_epoch(self) -> Metrics:
        self.model.train()
        progress = self.progress
        started = time.perf_counter() - progress.seconds
        self.task.start_epoch(progress.epoch, self.optimizer)
        batches = iter(self.task.batches(progress.epoch, progress.position))
        number = self.options.gradient_accumulation_steps
        while step_batches := list(itertools.islice(batches, number)):
            with step_watch(self.step_world):
                rate = self._take_step(step_batches)
                progress.seconds = time.perf_counter() - started
                self._record_step(rate)
            if progress.step == SPEED_STEPS and not progress.epoch:
                rate = progress.samples / progress.seconds
                log.info("the first %d steps: %.4g samples/s", SPEED_STEPS, rate)
            may_save = not self.task.steps_alone or progress.step % LOG_STEPS == 0
            if may_save and self.after_step is not None:
                self.after_step(self)
        self._read_pending()
        self._gather_weights()
        rates = {"samples_per_s": progress.samples / progress.seconds}
        return {**self._mean_losses("epoch"), **rates, **self._validate()}

    def _take_step(self, step_batches: Sequence[Any]) -> float:
        """Take one step on batches; return its learning rate."""
        task, options, progress = self.task, self.options, self.progress
        first = progress.step * options.gradient_accumulation_steps
        window = [task.prepare(batch, number) for number, batch in enumerate(step_batches, first)]
        rate = task.learning_rate(options, progress.step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        outcome = self.steps.take(window)
        weights = self.model.state_dict() if self.average else {}
        for name, value in self.average.items():
            if value.is_floating_point():
                value.lerp_(weights[name], 1 - options.ema_decay)
        for means in self.means.values():
            means.add(outcome.terms, outcome.nonfinite)
        # Read a step late, so that the device has work while the host waits.
        self._read_pending()
        self.pending = outcome
        progress.step += 1
        progress.position += len(step_batches)
        progress.samples += sum(map(task.samples, window))
        return rate

    def _all_reduce(self, means: RunningMeans) -> RunningMeans:
        # Ranks that share the rows of a model have the same losses.
        is_joint = is_sharded(self.model) and not self.task.splits_batches
        return means if is_joint else means.all_reduce(self.world)

    def _mean_losses(self, period: str) -> Metrics:
        means = self._all_reduce(self.means[period]).read(self.task.loss_weights)
        return {f"train_{name}": value for name, value in means.items()}

    def _record_step(self, rate: float) -> None:
        """Record a step, and every `LOG_STEPS` the mean losses since the last time."""
        record: Record = {"event": "step", "step": self.progress.step, "lr": rate}
        if self.progress.step % LOG_STEPS == 0:
            self._read_pending()
            record |= self._mean_losses("recent")
            self.means["recent"] = RunningMeans(self.task.loss_names)
        if self.on_record is not None:
            self.on_record(record)

    def _read_pending(self) -> None:
        """Read whether the last step was finite; if not, end the run.

        Raises
        ------
        RunError
            Loss or gradient are not finite; the weights are as before the step.
        """
        outcome, self.pending = self.pending, None
        if outcome is not None and outcome.wish is not None:
            self.arrived = max(self.arrived, min(int(outcome.wish), URGENT))
        if outcome is None or not bool(outcome.nonfinite):
            return
        losses = {name: f"{float(total / n):g}" for name, (total, n) in outcome.terms.items()}
        # The step is read after it was counted.
        where = f"step {self.progress.step - 1}: loss or gradient are not finite ({losses})"
        advice = f"the weights are as before it; lower --lr {self.options.lr}"
        raise RunError(f"{where}; {advice}")

    def _validate(self) -> Metrics:
        """Return metrics of the validation samples, with averaged weights where an average is
        kept.
        """
        weights = copy.deepcopy(self.model.state_dict()) if self.average else {}
        if weights:
            self.model.load_state_dict(self.average)
        self.model.eval()
        with torch.no_grad():
            metrics = self.task.validate(self.network)
        if weights:
            self.model.load_state_dict(weights)
        return metrics

    def _record_epoch(self, metrics: Metrics) -> None:
        """Compare an epoch with the best so far and record it."""
        progress, key = self.progress, self.task.best_metric
        # Without validation the last epoch is the best.
        score = metrics.get(key, -float(progress.epoch))
        score = -score if self.task.higher_is_better and key in metrics else score
        is_better = score < progress.best
        if is_better:
            progress.best, progress.best_epoch, progress.stale = score, progress.epoch, 0
            self.best_weights = copy.deepcopy(self.average or self.model.state_dict())
        else:
            progress.stale += 1
        if self.on_record is not None:
            record = {"event": "epoch", "epoch": progress.epoch, "best": int(is_better), **metrics}
            self.on_record(record)


def fit(task: Task, options: TrainingOptions, folder: TrainingFolder) -> Trainer:
    """Train a task in a folder, from its checkpoint if there is one, with logs and checkpoints;
    return its trainer.
    """
    run, title, state = folder.run, folder.title, folder.state
    world = run.world
    manager = CheckpointManager(folder.path / CHECKPOINTS, run.runtime, run.signals, world)
    trainer = Trainer(task, options, run.runtime, world)
    logger = RunLogger(folder, trainer) if world.is_main else None
    trainer.on_record = logger.record if logger else None

    # A closure over the trainer would keep its memory and its workers after a fold.
    def full_state(trainer: Trainer) -> State:
        state, texts = trainer.state(), {METRICS: logger.text} if logger else {}
        facts = {**state.facts, "logger": logger.state() if logger else {}, "run": run.record}
        return State(state.tensors, facts, texts)

    def after_step(trainer: Trainer) -> None:
        manager.maybe_save(trainer.progress.step, lambda: full_state(trainer), trainer.agree)

    trainer.after_step = after_step
    if state is not None:
        trainer.restore(state)
        log.info("%s: continues after step %d", title, trainer.progress.step)
    steps, size = options.gradient_accumulation_steps, options.samples_per_batch
    devices = world.size if task.splits_batches else 1
    factors = f" ({steps} x {size} on each of {devices} devices)" if steps * devices > 1 else ""
    log.info("%s: %d samples per step%s", title, steps * size * devices, factors)
    log.info("%s: steps are %s", title, trainer.path())
    with logger or contextlib.nullcontext():
        trainer.fit()
    best, epochs = trainer.progress.best_epoch, trainer.progress.epoch
    start = ", the start: no epoch made the network better on the validation samples"
    if epochs:
        log.info("%s: best epoch %d of %d%s", title, best, epochs, "" if best else start)
    return trainer
