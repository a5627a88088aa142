"""Intervals of metrics, by resampling groups, and their text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import betaincinv, ndtr, stdtrit

from aam.device.rng import generator
from aam.evaluate.metrics import CLASS_MEANS, RANKING, Array, Measure, sorted_levels
from aam.evaluate.predictions import TargetPredictions

# Weights held at once: 16 MiB stay near the processor.
WEIGHTS_AT_ONCE = 1 << 21

# Below this many groups there is no interval, no test, and nothing is said to be better.
LEAST_GROUPS = 6

# Below this many groups, intervals and tests are given and called rough; conformal intervals are
# not given.
FEW_GROUPS = 20

# The same of the groups that hold samples of the rarest class, and of the share of all samples that
# one group has.
FEW_IN_A_CLASS = 10
LARGEST_SHARE = 1 / 3

# Cross-validation: the models that predict folds k and l have learned from each other's samples, so
# that each pair of folds counts twice. Without signal the variance of a ranking metric's mean over
# folds is twice that of fixed predictions; that of the difference between two learners was 1.5 to
# 1.9 times as large in simulations, with and without signal. Nadeau and Bengio 2003 give 1 + 1 / (1
# - 1 / K) of it, 2.25 for five folds, as an upper bound.
FOLD_INFLATION = math.sqrt(2)

LEVEL = 0.95

# A share that rests on fewer trials than this, as where one group has most samples of a class, has
# no interval: with one degree of freedom it would be from 0 to 1.
LEAST_UNITS = 3

# Metrics between 0 and 1 that are shares, or means of shares: of samples, or of pairs of samples.
SHARES = ("accuracy", "coverage", "balanced_accuracy", "macro_f1", "auroc", "auprc")


@dataclass(frozen=True)
class Interval:
    """A metric, or a difference of two, with 95 % limits; NaN = none."""

    value: float
    low: float = math.nan
    high: float = math.nan


Metrics = dict[str, Interval]

# By level of a column, the number of samples and their metrics.
Levels = dict[str, tuple[int, Metrics]]


def resample_metrics(
    predictions: TargetPredictions, seed: int, repeats: int = 1000, measure: Measure | None = None
) -> dict[str, Array]:
    """Return metrics [1 + repeats] of samples that have both a truth and a prediction: as they are,
    then of as many groups drawn with replacement.

    The draws depend on the groups and the seed only, so that those of two predictions are paired.
    With fewer than `LEAST_GROUPS` groups nothing is drawn. A draw without one of the classes has no
    `CLASS_MEANS`.
    """
    truth, predicted = predictions.truth, predictions.predicted
    measure = predictions.measure if measure is None else measure
    _, group = np.unique(predictions.resampling_units, return_inverse=True)
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
        for name in CLASS_MEANS & values.keys():
            members = weights @ (truth[:, None] == np.unique(truth)).astype(np.float64)
            values[name] = np.where((members == 0).any(axis=1), math.nan, values[name])
        parts.append(values)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def interval(values: Array, groups: int, inflation: float = 1.0) -> Interval:
    """Return the first of the resampled `values` with expanded percentile limits for a number of
    groups.

    Few groups make plain percentiles too narrow; they are widened as Student's t exceeds the
    normal (Hesterberg 2015, section 5.3). Limits are then `inflation` times as far from the
    value. They are missing if fewer than half of the resamples have the metric, where all of them
    are equal, or below `LEAST_GROUPS` groups.
    """
    value, drawn = float(values[0]), _defined(values)
    if groups < LEAST_GROUPS or not len(drawn):
        return Interval(value)
    tail = (1 - LEVEL) / 2
    expanded = ndtr(stdtrit(groups - 1, tail) * math.sqrt(groups / (groups - 1)))
    limits = np.percentile(drawn, [100 * expanded, 100 * (1 - expanded)])
    low, high = value + inflation * (limits - value)
    return Interval(value, float(low), float(high)) if low < high else Interval(value)


def _defined(values: Array) -> Array:
    """Return the resamples, all but the first of `values`, that are defined; nothing where fewer
    than half are.
    """
    defined = values[1:][~np.isnan(values[1:])]
    return defined if 2 * len(defined) >= len(values) - 1 else defined[:0]


def effective_groups(groups: Array) -> float:
    """Return the number of groups of equal size with the same information, if samples of a group
    are identical (Kish 1965).
    """
    sizes = np.unique(groups, return_counts=True)[1].astype(np.float64)
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 0.0


def effective_units(name: str, truth: Array, groups: Array) -> float:
    """Return the number of right-or-wrong trials that say as much as the groups do of a metric that
    is a share.

    For coverage that is the number of groups. Metrics of classes, each with a weight w_k
    (its share of the samples in accuracy, 1 / K in means over K classes and in AUROC near 1,
    Newcombe 2006, whose variance is that of 4 m n / (m + n + 2) trials), rest on the groups n_k of
    each class, 1 / sum(w_k^2 / n_k), as AUPRC of more than two classes does; that of two rests on
    the rarer one. Groups of several classes may be right or wrong as a whole, which few errors do
    not show: what is more than the number of groups counts by its root.
    """
    whole = effective_groups(groups)
    if name == "coverage" or not len(truth):
        return whole
    levels, counts = np.unique(truth, return_counts=True)
    of_classes = np.array([effective_groups(groups[truth == level]) for level in levels])
    if name == "auprc" and len(levels) <= 2:
        return float(of_classes.min())
    weights = counts / len(truth) if name == "accuracy" else np.full(len(levels), 1 / len(levels))
    trials = float(1 / (weights**2 / of_classes).sum())
    return min(trials, math.sqrt(trials * whole))


def share_interval(
    values: Array, units: float, groups: float, samples: int, inflation: float = 1.0
) -> Interval:
    """Return the first of the resampled `values` of a share with limits that hold near 0 and 1 too.

    The exact interval of a binomial share (Clopper and Pearson 1934) for the effective number of
    samples, which is share (1 - share) / variance (Korn and Graubard 1998), with the variance of
    the resamples. Where all are right, the resamples do not vary: one right and one wrong trial are
    added to share and variance (Wilson 1927, Agresti and Coull 1998) as if there were `units` of
    them, so that without errors the effective number is `units`. Few units or `groups` count for
    less, as Student's t does compared with that of the `samples`; below `LEAST_UNITS` there is no
    interval.
    """
    share, drawn, tail = float(values[0]), _defined(values), (1 - LEVEL) / 2
    few = min(units, groups)
    if not len(drawn) or math.isnan(share) or few < LEAST_UNITS:
        return Interval(share)
    middle = (units * share + 1) / (units + 2)
    added = units * (share - middle) ** 2 + middle**2 + (1 - middle) ** 2
    variance = (units**2 * float(np.var(drawn)) + added) / (units + 2) ** 2
    size = float(np.clip(middle * (1 - middle) / variance - 2, 1, samples)) / inflation**2
    if samples > 1:
        size *= float(stdtrit(samples - 1, tail) / stdtrit(few - 1, tail)) ** 2
    right, wrong = share * size, (1 - share) * size
    low = float(betaincinv(right, wrong + 1, tail)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, wrong, 1 - tail)) if wrong > 0 else 1.0
    return Interval(share, low, high)


def inflation_of_difference(predictions: TargetPredictions) -> float:
    """Factor by which folds that share training samples widen the interval of a difference between
    two predictions.
    """
    return FOLD_INFLATION if predictions.cross_validated else 1.0


def rough(predictions: TargetPredictions) -> str:
    """Describe small samples behind intervals and tests, such as `5 groups of the class 'case'
    only`; empty if they are large enough.
    """
    units = pd.Series(predictions.resampling_units)
    if (count := units.nunique()) < FEW_GROUPS:
        return f"{count} groups only"
    if predictions.labels:
        of_class = units.groupby(predictions.truth).nunique()
        rarest, few = predictions.labels[int(of_class.idxmin())], int(of_class.min())
        if few < FEW_IN_A_CLASS:
            return f"{few} group{'s' if few > 1 else ''} of the class {rarest!r} only"
    largest = float(units.value_counts(normalize=True).max())
    above = f"one group above all, which has {100 * largest:.0f} % of the samples"
    return above if largest > LARGEST_SHARE else ""


def intervals(predictions: TargetPredictions, resampled: dict[str, Array]) -> Metrics:
    """Return each of the `resampled` metrics with its limits: exact ones of shares, percentiles of
    all others.
    """
    truth, units = predictions.truth, predictions.resampling_units
    groups, result = effective_groups(units), {}
    for name, values in resampled.items():
        inflation = inflation_of_difference(predictions) if name in RANKING else 1.0
        if name in SHARES:
            trials = effective_units(name, truth, units)
            result[name] = share_interval(values, trials, groups, len(truth), inflation)
            continue
        if name == "ece" and len(values) > 1:
            # Resampling scatters the tenths once more, which raises it: its limits are without that
            # rise.
            rise = values[1:].mean() - values[0]
            values = np.append(values[0], np.maximum(values[1:] - rise, 0.0))
        found = interval(values, predictions.group_count, inflation)
        if name in RANKING:
            found = Interval(found.value, *np.clip([found.low, found.high], -1.0, 1.0).tolist())
        result[name] = found
    return result


def metrics_with_intervals(
    predictions: TargetPredictions, seed: int, repeats: int = 1000
) -> Metrics:
    """Return the metrics of all samples that have a truth and a prediction, with intervals."""
    known = predictions.complete()
    return intervals(known, resample_metrics(known, seed, repeats))


def metrics_by_level(
    predictions: TargetPredictions, levels: Array, seed: int, repeats: int = 1000
) -> Levels:
    """Return number of samples and metrics at each level of `levels` [N]: fold, batch, category,
    true class.

    There are no limits where the groups of a level say less than `LEAST_GROUPS` of one size would.
    A batch that is one group and was held out whole has limits over its samples.
    """
    result, is_batch = {}, levels is predictions.batch
    whole = is_batch and predictions.complete().batches_held_out_whole
    for level in sorted_levels(levels):
        part = predictions.at(levels == level).complete()
        if whole and part.group_count == 1:
            part = replace(part, groups=None)
        few = effective_groups(part.resampling_units) < LEAST_GROUPS
        found = metrics_with_intervals(part, seed, 0 if few else repeats)
        result[str(level)] = len(part.truth), found
    return result


def number(value: float) -> str:
    """Return three significant digits, and up to nine that stand before the point; a dash for
    NaN.
    """
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if 100 <= abs(value) < 1e9 else f"{value:#.3g}"


def too_few(count: int, unit: str = "group", of: str = "") -> str:
    """Return `1 group is too few`, `3 values of subject are too few`."""
    return f"{count} {unit}{of} is too few" if count == 1 else f"{count} {unit}s{of} are too few"


def limits_text(value: Interval) -> str:
    """Return `LOW to HIGH`; nothing where there are no limits."""
    return "" if math.isnan(value.low) else f"{number(value.low)} to {number(value.high)}"


def with_limits(value: Interval) -> str:
    """Return a metric with its limits if it has any."""
    limits = limits_text(value)
    return f"{number(value.value)} ({limits})" if limits else number(value.value)
