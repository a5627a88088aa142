"""The training loop: one step, one epoch, validation, and when to stop."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig
from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.data.study import EVALUATION
from aam.errors import InputError
from aam.model.aam import Aam, Masks, Outputs
from aam.runtime.device import autocast
from aam.training.inference import AsvVectors, Predicted, collect
from aam.training.losses import Terms, draw_masks, loss_terms, penalties, total_loss
from aam.training.metrics import classification_metrics, regression_metrics
from aam.training.optim import learning_rate, make_optimizer

Figures = dict[str, float]
HIGHER_IS_BETTER = ("r2", "accuracy", "f1", "auroc")


@dataclass(frozen=True, eq=False)
class Objective:
    """What one step minimizes, and in which precision."""

    config: FineTuneConfig
    depth: int
    device: torch.device

    def masks(self, batch: Batch, step: int) -> Masks | None:
        """What is withheld in `step`."""
        return draw_masks(batch, self.config.train, self.config.model.patch, self.config.runtime.seed, step)

    def run(self, model: Aam, batch: Batch, masks: Masks | None, asvs: Tensor | None) -> tuple[Outputs, Terms]:
        """Outputs of one batch, and every loss of them as ``name -> (sum, count)``."""
        with autocast(self.config.runtime, self.device):
            outputs = model(batch, masks, asvs)
        spread = model.scale[1]
        return outputs, loss_terms(outputs, batch, masks, self.config.targets, self.depth, spread)

    def total(self, terms: Terms) -> Tensor:
        """The weighted sum of the mean losses."""
        return total_loss(terms, penalties(self.config.train, self.config.targets))


def train_step(
    model: Aam,
    batch: Batch,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    step: int,
    asvs: Tensor | None = None,
) -> Terms:
    """One step of the optimizer on one batch; returns the loss terms, detached."""
    optimizer.zero_grad(set_to_none=True)
    _, terms = objective.run(model, batch, objective.masks(batch, step), asvs)
    objective.total(terms).backward()
    trained = [p for p in model.parameters() if p.grad is not None]
    nn.utils.clip_grad_norm_(trained, objective.config.train.max_grad_norm)
    optimizer.step()
    return {name: (total.detach(), count) for name, (total, count) in terms.items()}


@dataclass
class Progress:
    """Where a run stands, beside weights and optimizer; epoch 0 is before training."""

    step: int = 0
    epoch: int = 0
    best: float = float("inf")
    best_epoch: int = 0
    stale: int = 0


class Means:
    """Running means of loss terms, kept on the device until they are read."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(self, terms: Terms) -> None:
        """Take the terms of one batch."""
        for name, (total, count) in terms.items():
            self.sums[name] = self.sums.get(name, 0) + total.double()
            self.counts[name] = self.counts.get(name, 0) + count

    def read(self, weights: dict[str, float]) -> Figures:
        """Mean of each term and, as ``loss``, their weighted sum."""
        means = {name: float(self.sums[name] / self.counts[name].clamp_min(1)) for name in self.sums}
        loss = sum(weights[name.rstrip("0123456789")] * value for name, value in means.items())
        return {"loss": loss, **means}


@dataclass(eq=False)
class Trainer:
    """A model with its data, optimizer and progress."""

    model: Aam
    config: FineTuneConfig
    train: Loader
    validation: Loader
    device: torch.device
    report: Callable[[dict[str, float | int | str]], None]
    asvs: AsvVectors | None = None

    def __post_init__(self) -> None:
        self.objective = Objective(self.config, self.train.study.depth, self.device)
        self.optimizer = make_optimizer(self.model, self.config.train)
        self.weights = penalties(self.config.train, self.config.targets)
        self.total_steps = len(self.train) * self.config.train.epochs
        self.progress = Progress()
        self.best_weights: dict[str, Tensor] = {}
        self.last_weights: dict[str, Tensor] = {}

    def fit(self) -> None:
        """Train until the last epoch or until patience runs out, then take the best weights back."""
        patience = self.config.train.patience
        if self.config.targets.metadata_column:
            self._judge(self._validate())
        while self.progress.epoch < self.config.train.epochs:
            figures = self._epoch()
            self.progress.epoch += 1
            self._judge(figures)
            if patience and self.progress.stale >= patience:
                break
        self.last_weights = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.best_weights or self.last_weights)

    def _batches(self, loader: Loader, draw: int) -> Iterator[tuple[Batch, Tensor | None]]:
        for batch in loader.epoch(draw):
            moved = batch.to(self.device)
            yield moved, None if self.asvs is None else self.asvs.of(moved)

    def _epoch(self) -> Figures:
        self.model.train()
        started, samples, means = time.perf_counter(), 0, Means()
        for batch, asvs in self._batches(self.train, self.progress.epoch):
            rate = learning_rate(self.config.train, self.progress.step, self.total_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            means.add(train_step(self.model, batch, self.objective, self.optimizer, self.progress.step, asvs))
            self.progress.step += 1
            samples += len(batch.counts)
            self.report({"event": "step", "step": self.progress.step, "lr": rate})
        figures = means.read(self.weights)
        if not np.isfinite(figures["loss"]):
            rate = self.config.train.lr
            raise InputError(f"epoch {self.progress.epoch}: the loss is {figures['loss']}; lower --lr {rate}")
        seconds = time.perf_counter() - started
        result = {f"train_{name}": value for name, value in figures.items()}
        return {**result, "samples_per_s": samples / seconds, **self._validate()}

    def _validate(self) -> Figures:
        if not len(self.validation):
            return {}
        self.model.eval()
        means, parts = Means(), []
        supervised = self.model.target is not None or len(self.model.labels) > 0
        with torch.inference_mode():
            for batch, asvs in self._batches(self.validation, EVALUATION):
                masks = self.objective.masks(batch, EVALUATION)
                terms: Terms = {}
                if masks is not None or not supervised:
                    _, terms = self.objective.run(self.model, batch, masks, asvs)
                if supervised:
                    # Targets are judged as they are predicted, with no count withheld.
                    outputs, judged = self.objective.run(self.model, batch, None, asvs)
                    parts.append(collect(outputs, batch))
                    terms |= judged
                means.add(terms)
        figures = {f"val_{name}": value for name, value in means.read(self.weights).items()}
        if parts:
            figures.update(self._scores(Predicted.joined(parts)))
            figures["val_loss"] = sum(v for n, v in figures.items() if n.startswith(("val_target", "val_label")))
        return figures

    def _scores(self, predicted: Predicted) -> Figures:
        """Mean figures over the target columns, numeric ones in transformed units."""
        study = self.validation.study
        rows = study.rows(predicted.sample_ids)
        collected: dict[str, list[float]] = defaultdict(list)
        if study.target is not None:
            for column in range(study.target.shape[1]):
                truth = study.target[rows, column]
                known = np.isfinite(truth)
                scores = regression_metrics(truth[known], predicted.target[known, column])
                for name in ("mae", "r2"):
                    collected[name].append(scores[name])
        for column, probabilities in enumerate(predicted.probabilities):
            truth = study.label[rows, column]  # type: ignore[index]
            scores = classification_metrics(truth[truth >= 0], probabilities[truth >= 0])
            for name, key in (("accuracy", "accuracy"), ("f1", "macro_f1"), ("auroc", "auroc")):
                collected[name].append(scores[key])
        return {f"val_{name}": float(np.mean(values)) for name, values in collected.items()}

    def _judge(self, figures: Figures) -> None:
        """Compare the epoch with the best so far and report it."""
        metric = self.config.targets.best_metric
        key = metric if metric == "val_loss" else f"val_{metric}"
        score = figures.get(key, -float(self.progress.epoch))
        score = -score if metric in HIGHER_IS_BETTER and key in figures else score
        better = score < self.progress.best
        if better:
            self.progress.best, self.progress.best_epoch, self.progress.stale = score, self.progress.epoch, 0
            self.best_weights = copy.deepcopy(self.model.state_dict())
        else:
            self.progress.stale += 1
        self.report({"event": "epoch", "epoch": self.progress.epoch, "best": int(better), **figures})
