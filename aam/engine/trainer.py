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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aam.device.distributed import SINGLE, World
from aam.device.precision import make_scaler
from aam.device.rng import random_state, set_random_state
from aam.device.sharding import full_tensor, is_sharded, parallelize, shard_like
from aam.engine.capture import CapturedSteps
from aam.engine.checkpoint import CheckpointManager, State
from aam.engine.logger import RunLogger, Tracking
from aam.engine.optimizer import load_optimizer_state, optimizer_state
from aam.engine.options import RunConfig, TrainingOptions
from aam.engine.run import CHECKPOINTS, METRICS, RunDirectory
from aam.engine.step import MicroBatch, RunningMeans, StepOutcome, train_step
from aam.engine.task import Metrics, Task
from aam.errors import RunError

log = logging.getLogger("aam")

Record = dict[str, float | int | str]

# Steps between two records of the losses.
LOG_STEPS = 10


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
    on_record : callable
        Takes a record of each step and of each epoch.
    after_step : callable
        Called with the trainer where its state may be saved: after each step, or where ranks train
        different parameters after each `LOG_STEPS`.
    """

    task: Task
    options: TrainingOptions
    runtime: RunConfig
    world: World = SINGLE
    on_record: Callable[[Record], object] = dict
    after_step: Callable[[Trainer], object] = id

    def __post_init__(self) -> None:
        self.model = self.task.model
        self.device = self.task.device
        self.step_world = SINGLE if self.task.steps_alone else self.world
        self.network = parallelize(
            self.task.network, self.runtime, self.step_world, self.task.blocks()
        )
        self.scaler = make_scaler(self.runtime, self.device)
        self.optimizer = self.task.configure_optimizer(self.options)
        self.take: Callable[..., StepOutcome] = train_step
        if self.device.type == "cuda" and self.world.size == 1:
            self.take = CapturedSteps(self.task, self.optimizer)
        # Of the optimizer.
        epoch_steps = math.ceil(
            self.task.batches_per_epoch / self.options.gradient_accumulation_steps
        )
        self.total_steps = epoch_steps * self.options.epochs
        self.average = copy.deepcopy(self.model.state_dict()) if self.options.ema_decay > 0 else {}
        self.progress = Progress()
        self.resumed = False
        self.pending: StepOutcome | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.last_weights: dict[str, Tensor] = {}
        self.epoch_means = RunningMeans(self.task.loss_names)
        self.recent_means = RunningMeans(self.task.loss_names)

    def state(self) -> State:
        """Return everything that `restore` needs to continue the run bit for bit.

        Every rank must call it.
        """
        self._read_pending()
        self._gather_weights()
        kinds = {
            "model": self.model.state_dict(),
            "best": self.best_weights,
            "average": self.average,
        }
        for name, means in (("epoch", self.epoch_means), ("recent", self.recent_means)):
            kinds[f"{name}_means"] = {"values": self._all_reduce(means).values}
        for name, value in random_state(self.device).items():
            for rank, state in enumerate(self.world.all_gather_arrays(value.cpu().numpy())):
                kinds.setdefault(f"random{rank}", {})[name] = torch.from_numpy(state)
        kinds["optimizer"] = self.task.gather(optimizer_state(self.optimizer, self.model))
        tensors = {
            f"{kind}.{name}": value
            for kind, values in kinds.items()
            for name, value in values.items()
        }
        facts = {"progress": dataclasses.asdict(self.progress), "scale": self.scaler.state_dict()}
        return State(tensors, {**facts, "task": self.task.state()})

    def restore(self, state: State) -> None:
        """Continue from `state`."""
        self.model.load_state_dict(self._shard(state.part("model")))
        self.best_weights = self._shard(state.part("best"))
        self.average = self._shard(state.part("average"))
        if self.world.is_main:
            for name, means in (("epoch", self.epoch_means), ("recent", self.recent_means)):
                means.values = state.part(f"{name}_means")["values"].to(self.device)
        load_optimizer_state(self.optimizer, self.model, state.part("optimizer"))
        self.scaler.load_state_dict(state.facts.get("scale", {}))
        self.task.restore(state.facts.get("task", {}))
        self.progress = Progress(**state.facts["progress"])
        self.resumed = True
        # A rank that the run did not have before keeps its initial random state.
        if random := state.part(f"random{self.world.rank}"):
            set_random_state(random, self.device)

    def fit(self) -> None:
        """Train until the last epoch or until patience runs out, then load the best weights."""
        patience = self.options.patience
        if self.task.validates_first and not self.resumed:
            self._record_epoch(self._validate())
        while self.progress.epoch < self.options.epochs and not (
            0 < patience <= self.progress.stale
        ):
            metrics = self._train_epoch()
            self.progress = dataclasses.replace(
                self.progress, epoch=self.progress.epoch + 1, position=0, samples=0, seconds=0.0
            )
            self.epoch_means = RunningMeans(self.task.loss_names)
            self._record_epoch(metrics)
        last = self.average or self.model.state_dict()
        self.last_weights = {name: full_tensor(value).clone() for name, value in last.items()}
        self.best_weights = {
            name: full_tensor(value).clone() for name, value in (self.best_weights or last).items()
        }
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
        while step_batches := list(
            itertools.islice(batches, self.options.gradient_accumulation_steps)
        ):
            rate = self._take_step(step_batches)
            progress.seconds = time.perf_counter() - started
            self._record_step(rate)
            if not self.task.steps_alone or progress.step % LOG_STEPS == 0:
                self.after_step(self)
        self._read_pending()
        self._gather_weights()
        metrics = {
            f"train_{name}": value for name, value in self._read_means(self.epoch_means).items()
        }
        metrics["samples_per_s"] = progress.samples / progress.seconds
        return {**metrics, **self._validate()}

    def _take_step(self, step_batches: Sequence[Any]) -> float:
        """Take one step on batches; return its learning rate."""
        progress = self.progress
        first = progress.step * self.options.gradient_accumulation_steps
        window = [
            MicroBatch(self.task.prepare(batch, number), number)
            for number, batch in enumerate(step_batches, first)
        ]
        rate = self.task.learning_rate(self.options, progress.step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        outcome = self.take(
            self.network,
            window,
            self.task,
            self.optimizer,
            self.scaler,
            self.step_world,
            self.options.max_grad_norm,
        )
        self._update_average()
        for means in (self.epoch_means, self.recent_means):
            means.add(*outcome)
        # Read a step late, so that the device has work while the host waits.
        self._read_pending()
        self.pending = outcome
        progress.step += 1
        progress.position += len(step_batches)
        progress.samples += sum(self.task.samples(micro.data) for micro in window)
        return rate

    def _all_reduce(self, means: RunningMeans) -> RunningMeans:
        # Ranks that share the rows of a model have the same losses.
        same = is_sharded(self.model) and not self.task.splits_batches
        return means if same else means.all_reduce(self.world)

    def _read_means(self, means: RunningMeans) -> Metrics:
        return self._all_reduce(means).read(self.task.loss_weights)

    def _record_step(self, rate: float) -> None:
        """Record a step, and every `LOG_STEPS` the mean losses since the last time."""
        record: Record = {"event": "step", "step": self.progress.step, "lr": rate}
        if self.progress.step % LOG_STEPS == 0:
            self._read_pending()
            record |= {
                f"train_{name}": value
                for name, value in self._read_means(self.recent_means).items()
            }
            self.recent_means = RunningMeans(self.task.loss_names)
        self.on_record(record)

    def _read_pending(self) -> None:
        """Read whether the last step was finite; if not, end the run.

        Raises
        ------
        RunError
            Loss or gradient are not finite; the weights are as before the step.
        """
        outcome, self.pending = self.pending, None
        if outcome is None or not bool(outcome.nonfinite):
            return
        losses = {
            name: f"{float(total / count):g}" for name, (total, count) in outcome.terms.items()
        }
        # The step is read after it was counted.
        raise RunError(
            f"step {self.progress.step - 1}: loss or gradient are not finite ({losses}); the "
            f"weights are as before it; lower --lr {self.options.lr}"
        )

    def _update_average(self) -> None:
        """Move the average of the weights towards them."""
        weights = self.model.state_dict()
        for name, value in self.average.items():
            if value.is_floating_point():
                value.lerp_(weights[name], 1 - self.options.ema_decay)

    def _validate(self) -> Metrics:
        """Return metrics of the validation samples, with averaged weights where an average is
        kept.
        """
        if not self.average:
            return self._validate_weights()
        weights = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.average)
        metrics = self._validate_weights()
        self.model.load_state_dict(weights)
        return metrics

    def _validate_weights(self) -> Metrics:
        self.model.eval()
        with torch.no_grad():
            return self.task.validate(self.network)

    def _record_epoch(self, metrics: Metrics) -> None:
        """Compare an epoch with the best so far and record it."""
        progress = self.progress
        key = self.task.best_metric
        # Without validation the last epoch is the best.
        score = metrics.get(key, -float(progress.epoch))
        score = -score if self.task.higher_is_better and key in metrics else score
        is_better = score < progress.best
        if is_better:
            progress.best, progress.best_epoch, progress.stale = score, progress.epoch, 0
            self.best_weights = copy.deepcopy(self.average or self.model.state_dict())
        else:
            progress.stale += 1
        self.on_record(
            {"event": "epoch", "epoch": progress.epoch, "best": int(is_better), **metrics}
        )


def fit(
    task: Task,
    options: TrainingOptions,
    run: RunDirectory,
    folder: Path,
    state: State | None,
    title: str,
) -> Trainer:
    """Train a task in `folder`, from `state` if given, with logs and checkpoints; return its
    trainer.
    """
    world, name = run.world, run.runtime.track
    manager = CheckpointManager(folder / CHECKPOINTS, run.runtime, run.signals, world)
    trainer = Trainer(task, options, run.runtime, world)
    logger = None
    if world.is_main:
        logger_state, text = (
            (None, "") if state is None else (state.facts["logger"], state.texts.get(METRICS, ""))
        )
        tracking = (
            None if name is None else Tracking(name, folder, title, run.about["config"], text)
        )
        logger = RunLogger(
            folder, title, trainer.total_steps, options.epochs, logger_state, text, tracking
        )
        trainer.on_record = logger.record

    def full_state(trainer: Trainer) -> State:
        state = trainer.state()
        facts = {**state.facts, "logger": logger.state() if logger else {}, "run": run.about}
        return State(state.tensors, facts, {METRICS: logger.text} if logger else {})

    trainer.after_step = lambda trainer: manager.maybe_save(
        trainer.progress.step, lambda: full_state(trainer)
    )
    if state is not None:
        trainer.restore(state)
        log.info("%s: continues after step %d", title, trainer.progress.step)
    devices = world.size if task.splits_batches else 1
    samples = options.gradient_accumulation_steps * options.samples_per_batch * devices
    per_device = (
        f" ({options.gradient_accumulation_steps} x {options.samples_per_batch} on each of "
        f"{devices} devices)"
    )
    is_single = samples == options.samples_per_batch
    log.info("%s: %d samples per step%s", title, samples, "" if is_single else per_device)
    with logger or contextlib.nullcontext():
        trainer.fit()
    best, epochs = trainer.progress.best_epoch, trainer.progress.epoch
    start = (
        "" if best else ", the start: no epoch made the network better on the validation samples"
    )
    if epochs:
        log.info("%s: best epoch %d of %d%s", title, best, epochs, start)
    return trainer
