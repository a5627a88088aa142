"""The trainer: steps, epochs, validation, early stopping, and all that is needed to resume."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig
from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.data.study import EVALUATION
from aam.engine.checkpoint import State, save
from aam.engine.losses import RunningMeans, Terms, sum_terms, total_loss
from aam.engine.optimizer import load_optimizer_state, make_optimizer, optimizer_state
from aam.engine.schedule import learning_rate
from aam.errors import RunError
from aam.model.aam import Aam, Masks, Outputs
from aam.model.heads import Readout
from aam.runtime.distributed import SINGLE, World, full_tensor, parallelize, shard_like, sync_gradients
from aam.runtime.precision import UNSCALED, Scaler, autocast, make_scaler
from aam.runtime.rng import random_state, set_random_state
from aam.runtime.watchdog import Watch
from aam.training.inference import AsvVectors, Predicted, collect, mean_scores
from aam.training.losses import ClassWeights, class_weights, loss_counts, loss_names, loss_terms, penalties
from aam.training.masking import draw_masks
from aam.training.pipeline import staged
from aam.training.warm_start import unfreeze

log = logging.getLogger("aam")


Figures = dict[str, float]

HIGHER_IS_BETTER = ("r2", "accuracy", "f1", "auroc")

# Steps between two records of the losses.
LOG_STEPS = 10

# Batches of steps that were not finite that a run keeps.
MOST_KEPT = 20

# Steps in a row that may be skipped.
MOST_SKIPPED = 10


@dataclass(frozen=True, eq=False)
class Objective:
    """What one step minimizes, and in which precision."""

    config: FineTuneConfig
    depth: int
    device: torch.device
    weights: ClassWeights = ()
    scaler: Scaler = UNSCALED
    losses: tuple[str, ...] = ()
    world: World = SINGLE

    def masks(self, batch: Batch, step: int) -> Masks | None:
        """What is withheld in `step`."""
        return draw_masks(batch, self.config.train, self.config.model.patch, self.config.runtime.seed, step)

    def run(self, model: nn.Module, batch: Batch, masks: Masks | None, asvs: Tensor | None) -> tuple[Outputs, Terms]:
        """Outputs of one batch, and every loss of them as ``name -> (sum, count)``."""
        with autocast(self.config.runtime, self.device):
            outputs = model(batch, masks, asvs).full()
        known = self.config.targets, self.depth, self.weights, self.losses
        return outputs, loss_terms(outputs, batch, masks, *known)

    def total(self, terms: Terms, counts: dict[str, Tensor] | None = None) -> Tensor:
        """The weighted sum of the mean losses, or this batch's share, times the ranks whose gradients are averaged."""
        return self.world.size * total_loss(terms, penalties(self.config.train, self.config.targets), counts)

    def counts(self, window: Sequence[tuple[Batch, Masks | None]]) -> dict[str, Tensor] | None:
        """What each loss counts in all batches of a step; nothing where there is one, which counts its own."""
        shared = len(window[0][0].samples_by_rank) > 1
        if len(window) == 1 and not shared:
            return None
        every = [loss_counts(batch, masks, self.weights) for batch, masks in window]
        label, zero = window[0][0].label, torch.zeros((), device=self.device)
        names = loss_names(0 if label is None else label.shape[1])
        found = [torch.stack([counts.get(name, zero).to(zero) for counts in every]).sum() for name in names]
        return dict(zip(names, self.world.all_reduce_sum(torch.stack(found)) if shared else found, strict=True))


class Micro(NamedTuple):
    """A batch of a step or a part of one: itself, vectors of its ASVs where known, the number that names its masks."""

    batch: Batch
    asvs: Tensor | None
    number: int
    part: int = 0


class Step(NamedTuple):
    """What a step gave: the loss terms, detached, and whether loss or gradient were not finite; both on the device."""

    terms: Terms
    broken: Tensor


def train_step(
    model: nn.Module, window: Sequence[Micro], objective: Objective, optimizer: torch.optim.Optimizer
) -> Step:
    """One step of the optimizer on the batches of `window`, as if they were one but for pairs across them.

    Where loss or gradient are not finite, the weights stay as they are.
    """
    optimizer.zero_grad(set_to_none=True)
    masked = [(micro.batch, objective.masks(micro.batch, micro.number)) for micro in window]
    counts, parts, losses = objective.counts(masked), [], []
    for micro, (batch, masks) in zip(window, masked, strict=True):
        with sync_gradients(model, micro is window[-1]):
            _, terms = objective.run(model, batch, masks, micro.asvs)
            loss = objective.total(terms, counts)
            objective.scaler.scale(loss).backward()
        parts.append(terms)
        losses.append(loss.detach())
    objective.scaler.unscale_(optimizer)
    norm = full_tensor(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    nn.utils.clip_grads_with_norm_(model.parameters(), objective.config.train.max_grad_norm, norm)
    lost = objective.world.all_reduce_sum((~torch.isfinite(torch.stack(losses).sum())).float()) > 0
    broken = lost | ~torch.isfinite(norm)
    # As torch's GradScaler does it: fused optimizers leave out the step on the device.
    optimizer.grad_scale, optimizer.found_inf = None, broken.float()  # type: ignore[attr-defined]
    optimizer.step()
    return Step(sum_terms(parts), lost | objective.scaler.moved(broken))


@dataclass
class Progress:
    """Where a run stands, beside weights and optimizer; epoch 0 is before training.

    `position` counts the batches done in the epoch, `samples` theirs, `seconds` their time, `skipped` the last steps
    in a row that were not finite, `plateaus` how often the learning rate was lowered.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    samples: int = 0
    seconds: float = 0.0
    skipped: int = 0
    best: float = float("inf")
    best_epoch: int = 0
    stale: int = 0
    plateaus: int = 0


class Pending(NamedTuple):
    """A step whose outcome the host has not read yet."""

    window: Sequence[Micro]
    outcome: Step
    place: dict[str, int]


@dataclass(eq=False)
class Trainer:
    """A model with its data, optimizer and progress.

    `report` takes records, `offer` is called where the state may be saved, and batches that are not finite are
    written below `folder`.
    """

    model: Aam
    config: FineTuneConfig
    train: Loader
    validation: Loader
    device: torch.device
    report: Callable[[dict[str, float | int | str]], object] = dict
    asvs: AsvVectors | None = None
    folder: Path = Path()
    offer: Callable[[Trainer], object] = id
    world: World = SINGLE

    def __post_init__(self) -> None:
        self.model.gather = self.world.all_gather_rows
        self.stages: dict[str, Any] = {}
        network, self.train = staged(self.model, self.train, self.config.runtime, self.stages)
        self.parallel = parallelize(network, self.config.runtime, self.world)
        study, sizes = self.train.study, [len(h.linear.bias) for h in self.model.labels if isinstance(h, Readout)]
        labels = np.zeros((0, 0), np.int64) if study.label is None else study.label[self.train.rows]
        weights = class_weights(self.config.targets.class_weights, labels, sizes)
        scaler, own = make_scaler(self.config.runtime, self.device), self.model.losses
        self.objective = Objective(self.config, study.depth, self.device, weights, scaler, own, self.world)
        self.optimizer = make_optimizer(self.model, self.config.train, self.config.covariates.categorical_lr)
        train, self.weights = self.config.train, penalties(self.config.train, self.config.targets)
        self.at_once = train.gradient_accumulation_steps
        self.epoch_steps = math.ceil(len(self.train) / self.at_once)
        self.total_steps = self.epoch_steps * train.epochs
        self.average = copy.deepcopy(self.model.state_dict()) if train.ema_decay > 0 else {}
        self.progress, self.resumed, self.pending = Progress(), False, cast(Pending | None, None)
        self.best_weights, self.last_weights = dict[str, Tensor](), dict[str, Tensor]()
        self.means, self.recent = RunningMeans(), RunningMeans()

    def state(self) -> State:
        """All that `restore` needs for the rest of the run to be as if it had never stopped; every rank must ask."""
        self._settle()
        kinds = {"model": self.model.state_dict(), "best": self.best_weights, "average": self.average}
        kinds |= {"means": self._of_all(self.means).tensors(), "recent": self._of_all(self.recent).tensors()}
        for name, value in random_state(self.device).items():
            for rank, own in enumerate(self.world.all_gather_arrays(value.cpu().numpy())):
                kinds.setdefault(f"random{rank}", {})[name] = torch.from_numpy(own)
        kinds["optimizer"] = optimizer_state(self.optimizer)
        tensors = {f"{kind}.{name}": value for kind, values in kinds.items() for name, value in values.items()}
        facts = {"progress": dataclasses.asdict(self.progress), "scale": self.objective.scaler.state_dict()}
        return State(tensors, {**facts, "stages": self.stages})

    def restore(self, state: State) -> None:
        """Stand where `state` was taken."""
        own = self.model.state_dict()
        weights, self.best_weights, self.average = (
            {name: shard_like(value, own[name]) for name, value in state.part(kind).items()}
            for kind in ("model", "best", "average")
        )
        self.model.load_state_dict(weights)
        if self.world.is_main:
            self.means, self.recent = (RunningMeans.of(state.part(name), self.device) for name in ("means", "recent"))
        load_optimizer_state(self.optimizer, state.part("optimizer"))
        self.objective.scaler.load_state_dict(state.facts.get("scale", {}))
        self.stages.update(state.facts.get("stages", {}))
        self.progress, self.resumed = Progress(**state.facts["progress"]), True
        # A rank that the run did not have before goes on as it began.
        if random := state.part(f"random{self.world.rank}"):
            set_random_state(random, self.device)

    def fit(self) -> None:
        """Train until the last epoch or until patience runs out, then take the best weights back."""
        patience = self.config.train.patience
        if self.config.targets.metadata_column and not self.resumed:
            self._judge(self._validate())
        with Watch(log.warning) as self.watch:
            while self.progress.epoch < self.config.train.epochs and not (0 < patience <= self.progress.stale):
                figures = self._epoch()
                ended = self.progress.epoch + 1
                self.progress = dataclasses.replace(self.progress, epoch=ended, position=0, samples=0, seconds=0.0)
                self.means = RunningMeans()
                self._judge(figures)
        last = self.average or self.model.state_dict()
        both = last, self.best_weights or last
        self.last_weights, self.best_weights = ({n: full_tensor(v).clone() for n, v in one.items()} for one in both)
        own = self.model.state_dict()
        self.model.load_state_dict({name: shard_like(value, own[name]) for name, value in self.best_weights.items()})

    def _here(self, batch: Batch) -> tuple[Batch, Tensor | None]:
        return (moved := batch.to(self.device)), None if self.asvs is None else self.asvs.of(moved)

    def _epoch(self) -> Figures:
        self.model.train()
        train, progress, started = self.config.train, self.progress, time.perf_counter() - self.progress.seconds
        unfreeze(self.model, self.optimizer, self.config.targets.unfreeze_epochs, self.progress.epoch)
        batches = self.train.windows(progress.epoch, progress.position)
        while drawn := list(itertools.islice(batches, self.at_once)):
            self.watch.beat("a step")
            parts = [(at, own, part) for at, parts in enumerate(drawn) for own, part in enumerate(parts)]
            window = [Micro(*self._here(part), progress.step * self.at_once + at, own) for at, own, part in parts]
            rate = learning_rate(train, progress.step, self.total_steps, self.epoch_steps, progress.plateaus)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["factor"]
            if not self.config.runtime.pipeline:
                self.world.work.extend(micro.batch.work(self.config.model.patch) for micro in window)
            outcome = train_step(self.parallel, window, self.objective, self.optimizer)
            self._average()
            for means in (self.means, self.recent):
                means.add(*outcome)
            # Read a step late, so that the device has work while the host waits.
            self._settle()
            place = {"step": progress.step, "epoch": progress.epoch, "position": progress.position}
            self.pending = Pending(window, outcome, place)
            progress.step += 1
            progress.position += len(drawn)
            progress.samples += sum(sum(micro.batch.samples_by_rank) for micro in window)
            progress.seconds = time.perf_counter() - started
            self._log(rate)
            self.offer(self)
            self.watch.beat("the next batch")
        self._settle()
        self.watch.rest(f"epoch {progress.epoch + 1}")
        found = {f"train_{name}": value for name, value in self._read(self.means).items()}
        found["samples_per_s"] = progress.samples / progress.seconds
        return {**found, **self.world.communication_metrics(), **self._validate()}

    def _of_all(self, means: RunningMeans) -> RunningMeans:
        return means.summed(loss_names(len(self.model.labels)), self.world)

    def _read(self, means: RunningMeans) -> Figures:
        return self._of_all(means).read(self.weights)

    def _log(self, rate: float) -> None:
        """Report a step, and every `LOG_STEPS` the mean losses since the last time."""
        record: dict[str, float | int | str] = {"event": "step", "step": self.progress.step, "lr": rate}
        if self.progress.step % LOG_STEPS == 0:
            self._settle()
            record |= {f"train_{name}": value for name, value in self._read(self.recent).items()}
            self.recent = RunningMeans()
        self.report(record)

    def _settle(self) -> None:
        """Read whether the last step was finite; if not, keep its batch and go by ``--nonfinite``.

        Raises
        ------
        RunError
            With ``--nonfinite stop``, or after `MOST_SKIPPED` steps in a row.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            return
        if not bool(pending.outcome.broken):
            self.progress.skipped = 0
            return
        self.progress.skipped += 1
        place, kept = pending.place, self.folder / "nonfinite"
        values = {name: float(total / count) for name, (total, count) in pending.outcome.terms.items()}
        losses = {name: f"{value:g}" for name, value in values.items()}
        for micro in pending.window[: MOST_KEPT - len(list(kept.glob("batch-*")))]:
            named = {name: value for name, value in vars(micro.batch).items() if isinstance(value, Tensor)}
            facts = {**place, "losses": losses, "masks": micro.number, "sample_ids": micro.batch.sample_ids}
            self._keep(kept / f"batch-{micro.number}{f'-{micro.part}' * bool(micro.part)}", State(named, facts))
        said = f"step {place['step']}: loss or gradient are not finite ({losses}); its batch is kept in {kept}"
        if self.config.train.nonfinite == "stop" or self.progress.skipped >= MOST_SKIPPED:
            lower = f"lower --lr {self.config.train.lr}"
            raise RunError(f"{said}, the weights are as before it; {lower}, or pass --nonfinite skip for a rare one")
        log.warning("%s and left out", said)

    def _keep(self, path: Path, state: State) -> None:
        try:
            save(path, state)
        except OSError as error:
            log.warning("%s: not kept (%s)", path, error)

    def _average(self) -> None:
        """Move the average of the weights towards them."""
        own = self.model.state_dict()
        for name, value in self.average.items():
            if value.is_floating_point():
                value.lerp_(own[name], 1 - self.config.train.ema_decay)

    def _validate(self) -> Figures:
        """Figures of the validation samples, with the averaged weights where there are such."""
        if not (self.average and len(self.validation)):
            return self._validated() if len(self.validation) else {}
        own = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.average)
        figures = self._validated()
        self.model.load_state_dict(own)
        return figures

    def _validated(self) -> Figures:
        self.model.eval()
        means, parts = RunningMeans(), []
        supervised = self.model.target is not None or len(self.model.labels) > 0
        with torch.no_grad():
            for batch, asvs in map(self._here, self.validation.epoch(EVALUATION)):
                masks = self.objective.masks(batch, EVALUATION)
                terms: Terms = {}
                if masks is not None or not supervised:
                    _, terms = self.objective.run(self.parallel, batch, masks, asvs)
                if supervised:
                    # Targets are judged as they are predicted, with no count withheld.
                    outputs, judged = self.objective.run(self.parallel, batch, None, asvs)
                    parts.append(collect(outputs, batch))
                    terms |= judged
                means.add(terms)
        figures = {f"val_{name}": value for name, value in self._read(means).items()}
        if parts:
            predicted = Predicted.joined(parts).of_all(self.world, study := self.validation.study)
            scores = mean_scores(study.target, study.label, study.rows(predicted.sample_ids), predicted)
            figures |= {f"val_{name}": value for name, value in scores.items()}
            figures["val_loss"] = sum(v for n, v in figures.items() if n.startswith(("val_target", "val_label")))
        return figures

    def _judge(self, figures: Figures) -> None:
        """Compare the epoch with the best so far and report it."""
        metric = self.config.targets.best_metric
        key = metric if metric == "val_loss" else f"val_{metric}"
        score = figures.get(key, -float(self.progress.epoch))
        score = -score if metric in HIGHER_IS_BETTER and key in figures else score
        better = score < self.progress.best
        if better:
            self.progress.best, self.progress.best_epoch, self.progress.stale = score, self.progress.epoch, 0
            self.best_weights = copy.deepcopy(self.average or self.model.state_dict())
        else:
            self.progress.stale += 1
            self.progress.plateaus += self.progress.stale % (self.config.train.scheduler_patience + 1) == 0
        self.report({"event": "epoch", "epoch": self.progress.epoch, "best": int(better), **figures})
