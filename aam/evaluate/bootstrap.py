"""Confidence intervals that resample groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

from aam.device.rng import generator
from aam.evaluate.metrics import CLASS_MEANS, POOLED, RANKING, Array, WeightedMetrics, sorted_levels
from aam.evaluate.target_predictions import TargetPredictions

# Weights held at once: 16 MiB stay near the processor.
WEIGHTS_AT_ONCE = 1 << 21

# Below this many groups there is no interval, no test, and nothing is said to be better.
LEAST_GROUPS = 6

# Below this many groups, intervals and tests are given and called rough; conformal intervals are not given.
FEW_GROUPS = 20

# Cross-validation: the models that predict folds k and l have learned from each other's samples, so that each pair of
# folds counts twice. Without signal the variance of a ranking metric's mean over folds is twice that of fixed
# predictions; that of the difference between two learners was 1.5 to 1.9 times as large in simulations, with and
# without signal. Nadeau and Bengio 2003 give 1 + 1 / (1 - 1 / K) of it, 2.25 for five folds, as an upper bound.
FOLD_INFLATION = math.sqrt(2)

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A metric, or a difference of two, with 95 % limits; NaN = none."""

    value: float
    low: float = math.nan
    high: float = math.nan


def _lacks_a_class(truth: Array, weights: Array) -> Array:
    """Return which rows of weights [R, N] leave out a class that the truth, int [N], has; none for numbers."""
    if not np.issubdtype(truth.dtype, np.integer):
        return np.zeros(len(weights), bool)
    members = weights @ (truth[:, None] == np.unique(truth)).astype(np.float64)
    return np.asarray((members == 0).any(axis=1))


def resample_metrics(
    measure: WeightedMetrics, truth: Array, predicted: Array, groups: Array, seed: int, repeats: int = 1000
) -> dict[str, Array]:
    """Return metrics [1 + repeats]: of the samples as they are, then of as many groups drawn with replacement.

    The draws depend on the groups and the seed only, so that those of two predictions are paired. With fewer
    than `LEAST_GROUPS` groups nothing is drawn. A draw without one of the classes has no `CLASS_MEANS`.
    """
    _, group = np.unique(groups, return_inverse=True)
    count = int(group.max(initial=-1)) + 1
    parts = [measure(truth, predicted, np.ones((1, len(truth))))]
    random = generator(seed, "bootstrap")
    at_once = max(1, WEIGHTS_AT_ONCE // max(len(group), 1))
    for start in range(0, repeats if count >= LEAST_GROUPS else 0, at_once):
        rows = min(at_once, repeats - start)
        drawn = random.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        weights = times[:, group].astype(np.float64)
        values = measure(truth, predicted, weights)
        absent = _lacks_a_class(truth, weights)
        parts.append({name: np.where(absent, math.nan, v) if name in CLASS_MEANS else v for name, v in values.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def interval(values: Array, groups: int, inflation: float = 1.0) -> Interval:
    """Return the first of the resampled `values` with expanded percentile limits over so many groups.

    Few groups make plain percentiles too narrow; they are widened as Student's t is beside the normal (Hesterberg
    2015, section 5.3). Limits then stand `inflation` times as far from the value. There are none where
    fewer than half of the resamples have the metric, or below `LEAST_GROUPS` groups.
    """
    value, drawn = float(values[0]), values[1:]
    defined = drawn[~np.isnan(drawn)]
    if groups < LEAST_GROUPS or 2 * len(defined) < max(len(drawn), 2):
        return Interval(value)
    tail = (1 - LEVEL) / 2
    expanded = ndtr(stdtrit(groups - 1, tail) * math.sqrt(groups / (groups - 1)))
    limits = np.percentile(defined, [100 * expanded, 100 * (1 - expanded)])
    low, high = value + inflation * (limits - value)
    return Interval(value, float(low), float(high))


def inflation_of(name: str, predictions: TargetPredictions) -> float:
    """Return by how much the interval of a metric is widened for what folds share."""
    return inflation_of_difference(predictions) if name.removesuffix(POOLED) in RANKING else 1.0


def inflation_of_difference(predictions: TargetPredictions) -> float:
    """Return by how much a difference between two predictions, of any metric, is less sure for what folds share."""
    return FOLD_INFLATION if predictions.cross_validated else 1.0


def _within_range(name: str, limits: Interval) -> Interval:
    """Return the interval cut to the values that a ranking metric can take."""
    name = name.removesuffix(POOLED)
    if name not in RANKING or math.isnan(limits.low):
        return limits
    lowest = 0.0 if name in ("auroc", "auprc") else -1.0
    return Interval(limits.value, max(limits.low, lowest), min(limits.high, 1.0))


def intervals(predictions: TargetPredictions, resampled: dict[str, Array]) -> dict[str, Interval]:
    """Return each of the `resampled` metrics with its limits."""
    groups = predictions.group_count
    return {
        name: _within_range(name, interval(values, groups, inflation_of(name, predictions)))
        for name, values in resampled.items()
    }


def metrics_with_intervals(predictions: TargetPredictions, seed: int, repeats: int = 1000) -> dict[str, Interval]:
    """Return the metrics of all samples that have a truth and a prediction, with intervals."""
    complete = predictions.complete()
    units = complete.resampling_units
    resampled = resample_metrics(complete.measure, complete.truth, complete.predicted, units, seed, repeats)
    return intervals(complete, resampled)


def metrics_by_level(
    predictions: TargetPredictions, levels: Array, seed: int, repeats: int = 1000
) -> dict[str, tuple[int, dict[str, Interval]]]:
    """Return number of samples and metrics at each level of `levels` [N]: fold, batch, category, true class."""
    parts = {str(level): predictions.at(levels == level).complete() for level in sorted_levels(levels)}
    return {level: (len(part.truth), metrics_with_intervals(part, seed, repeats)) for level, part in parts.items()}
