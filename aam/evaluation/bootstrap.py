"""Confidence intervals and paired tests that resample groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.evaluation.metrics import (
    Array,
    Measure,
    auroc,
    classification_figures,
    levels_of,
    mean_known,
    pearson,
    predicted_rows,
    regression_figures,
)
from aam.runtime.rng import generator

# Weights held at once: 16 MiB stay near the processor.
WEIGHTS_AT_ONCE = 1 << 21

# Percentile intervals over fewer groups are too narrow to be read as 95 %, and conformal ones too uncertain.
FEW_GROUPS = 20


@dataclass(frozen=True)
class Interval:
    """A figure or a difference of two with 95 % limits, and the difference's two-sided p; NaN = none."""

    value: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of one target on N samples that took no part in training.

    `truth` is float in the column's units, NaN = missing, or the int index into `labels`, -1 = missing;
    `predicted` float or probabilities [N, K], NaN = none was made; `labels` the K classes, none for numbers;
    each sample was held out in `fold` and belongs to `groups` (subject) and `batch` (study, run, plate); `limits`
    float [N, 2] are those of its conformal interval.
    """

    sample_ids: tuple[str, ...]
    truth: Array
    predicted: Array
    labels: tuple[str, ...] = ()
    fold: Array | None = None
    groups: Array | None = None
    batch: Array | None = None
    limits: Array | None = None

    def __post_init__(self) -> None:
        size = len(self.sample_ids)
        for name in ("truth", "predicted", "fold", "groups", "batch"):
            shape = (size, len(self.labels)) if name == "predicted" and self.labels else (size,)
            values = getattr(self, name)
            if values is not None and values.shape != shape:
                raise ValueError(f"{name} has shape {values.shape}, expected {shape}")

    @property
    def measure(self) -> Measure:
        """The figures of this kind of target."""
        return classification_figures if self.labels else regression_figures

    @property
    def resampled(self) -> Array:
        """What the bootstrap draws: groups, or single samples where there are none."""
        return np.arange(len(self.truth)) if self.groups is None else self.groups

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Which samples have both a truth and a prediction, [N]."""
        truth = self.truth >= 0 if self.labels else np.isfinite(self.truth)
        return truth & predicted_rows(self.predicted)

    def at(self, rows: Array) -> Predictions:
        """The same for a choice of samples: a mask or positions."""
        chosen: dict[str, Any] = {k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, sample_ids=tuple(np.asarray(self.sample_ids, dtype=object)[rows]), **chosen)

    def known(self) -> Predictions:
        """The samples that have both a truth and a prediction."""
        return self.at(self.complete)


def within_batches(known: Predictions) -> dict[str, float]:
    """What is predicted beyond the batch itself: differences among samples of one batch.

    For a numeric target the R2 against each batch's own mean and the Pearson correlation of truth and
    prediction after subtracting their batch means; for classes the AUROC of the pairs that lie in one batch.
    """
    parts = [known.batch == level for level in np.unique(np.asarray(known.batch))]
    if known.labels:
        areas = []
        for k in [1] if len(known.labels) == 2 else range(len(known.labels)):
            rows = [(known.truth[part] == k, known.predicted[part, k]) for part in parts]
            pairs = np.array([float(own.sum()) * float((~own).sum()) for own, _ in rows])
            ordered = np.nansum(pairs * np.array([auroc(own, score) for own, score in rows]))
            areas.append(ordered / pairs.sum() if pairs.any() else math.nan)
        return {"auroc": float(mean_known(np.array(areas)[None])[0])}
    truth, predicted = known.truth.astype(np.float64), known.predicted.astype(np.float64)
    for part in parts:
        truth[part] -= truth[part].mean()
        predicted[part] -= predicted[part].mean()
    squares, spread = float(np.square(known.predicted - known.truth).sum()), float(truth @ truth)
    return {"r2": 1 - squares / spread if spread else math.nan, "pearson": pearson(truth, predicted)}


def resampled(
    measure: Measure, truth: Array, predicted: Array, groups: Array, seed: int, repeats: int = 1000
) -> dict[str, Array]:
    """Figures [1 + repeats]: of the samples as they are, then of as many groups drawn with replacement.

    The draws depend on the groups and the seed only, so that those of two predictions are paired. With fewer
    than two groups nothing is drawn.
    """
    _, group = np.unique(groups, return_inverse=True)
    count, parts = int(group.max(initial=-1)) + 1, [measure(truth, predicted, np.ones((1, len(truth))))]
    draws, at_once = generator(seed, "bootstrap"), max(1, WEIGHTS_AT_ONCE // max(len(group), 1))
    for start in range(0, repeats if count > 1 else 0, at_once):
        rows = min(at_once, repeats - start)
        drawn = draws.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        parts.append(measure(truth, predicted, times[:, group].astype(np.float64)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def interval(values: Array, paired: bool = False) -> Interval:
    """The first of `resampled` values, or of their paired differences, with 95 % percentile limits.

    No limits where fewer than half of the resamples have the figure. p is twice the smaller share of
    resamples on one side of zero, each share counted as (k + 1) / (n + 1).
    """
    value, drawn = float(values[0]), values[1:]
    kept = drawn[~np.isnan(drawn)]
    if 2 * len(kept) < max(len(drawn), 2):
        return Interval(value)
    low, high = map(float, np.percentile(kept, [2.5, 97.5]))
    fewer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return Interval(value, low, high, min(1.0, 2 * (fewer + 1) / (len(drawn) + 1)) if paired else math.nan)


def figures(predictions: Predictions, seed: int, repeats: int = 1000) -> dict[str, Interval]:
    """Pooled figures of all samples that have a truth and a prediction, with intervals."""
    known = predictions.known()
    drawn = resampled(known.measure, known.truth, known.predicted, known.resampled, seed, repeats)
    return {name: interval(values) for name, values in drawn.items()}


def figures_by(
    predictions: Predictions, levels: Array, seed: int, repeats: int = 1000
) -> dict[str, tuple[int, dict[str, Interval]]]:
    """Number of samples and figures at every level of `levels` [N]: fold, batch, category, true class."""
    parts = {str(level): predictions.at(levels == level).known() for level in levels_of(levels)}
    return {level: (len(part.truth), figures(part, seed, repeats)) for level, part in parts.items()}
