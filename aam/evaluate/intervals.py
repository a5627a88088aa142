"""Intervals of metrics, by resampling groups, and their text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import betaincinv, ndtr, stdtrit

from aam.device.rng import generator
from aam.evaluate.metrics import CLASS_MEANS, RANKING, Measure, sorted_levels
from aam.evaluate.predictions import TargetPredictions
from aam.typing import Array

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
LARGEST_GROUP_SHARE = 1 / 3

# Cross-validation: the models that predict folds k and l have learned from each other's samples, so
# that each pair of folds counts twice. Without signal the variance of a ranking metric's mean over
# folds is twice that of fixed predictions; that of the difference between two learners was 1.5 to
# 1.9 times as large in simulations, with and without signal. Nadeau and Bengio 2003 give 1 + 1 / (1
# - 1 / K) of it, 2.25 for five folds, as an upper bound.
FOLD_INFLATION = math.sqrt(2)

# The same for errors of numbers, which depend less on the models that folds share: with it, limits
# held the error of the models of the folds on new groups in 91 to 95 % of simulated studies
# (docs/adr/007-grouped-intervals-and-tests.md).
ERROR_INFLATION = 1.15

INTERVAL_LEVEL = 0.95

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


MetricIntervals = dict[str, Interval]

# By level of a column, the number of samples and their metrics.
Levels = dict[str, tuple[int, MetricIntervals]]


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
    group = predictions.resampling_units
    parts = [measure(truth, predicted, np.ones((1, len(truth))))]
    for times in resamples(predictions.group_count, seed, repeats, len(group)):
        weights = times[:, group]
        values = measure(truth, predicted, weights)
        for name in CLASS_MEANS & values.keys():
            members = weights @ (truth[:, None] == np.unique(truth)).astype(np.float64)
            values[name] = np.where((members == 0).any(axis=1), math.nan, values[name])
        parts.append(values)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def resamples(groups: int, seed: int, repeats: int, width: int) -> Iterator[Array]:
    """Yield how often each group is drawn, float64 [R, G], `repeats` rows in all.

    R is so small that weights [R, `width`] fit into memory. Below `LEAST_GROUPS` groups nothing is
    drawn.
    """
    random = generator(seed, "bootstrap")
    at_once = max(1, WEIGHTS_AT_ONCE // max(width, 1))
    for start in range(0, repeats if groups >= LEAST_GROUPS else 0, at_once):
        rows = min(at_once, repeats - start)
        drawn = random.integers(groups, size=(rows, groups)) + groups * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * groups)
        yield times.reshape(rows, groups).astype(np.float64)


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
    tail = (1 - INTERVAL_LEVEL) / 2
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


# Errors of numbers, whose logarithm is that of a ratio of two sums over groups.
ERRORS = ("mae", "rmse", "nrmse", "r2")


class _Errors:
    """Logarithms of MAE, RMSE and 1 - R2 of whole groups, with their standard errors.

    A row of `sums` [5, G] holds for each group: samples, absolute errors, squared errors, truths
    (minus their mean) and squared truths.
    """

    def __init__(self, predictions: TargetPredictions) -> None:
        group, self.groups = predictions.resampling_units, predictions.group_count
        truth = predictions.truth - predictions.truth.mean()
        error = predictions.predicted - predictions.truth
        parts = np.ones(len(truth)), np.abs(error), error**2, truth, truth**2
        self.sums = np.stack([np.bincount(group, part, self.groups) for part in parts])

    def logarithms(self, totals: Array) -> Array:
        """Return log MAE, log RMSE and log(1 - R2), [3, R], from `totals` [5, R] of the groups."""
        samples, absolute, squared, truths, squared_truths = totals
        around = squared_truths - truths**2 / samples
        rmse = np.log(squared / samples) / 2
        return np.stack([np.log(absolute / samples), rmse, np.log(squared / around)])

    def standard_errors(self, weights: Array) -> Array:
        """Return the standard errors of `logarithms` for draws of groups [R, G], [3, R].

        They are those of the linear approximation of each ratio (infinitesimal jackknife).
        """
        totals = self.sums @ weights.T
        mean = (totals[3] / totals[0])[:, None]
        samples, absolute, squared, truths, squared_truths = self.sums
        around = squared_truths - 2 * mean * truths + mean**2 * samples
        total_around = (totals[4] - totals[3] ** 2 / totals[0])[:, None]
        share, squared_share = samples / totals[0][:, None], squared / totals[2][:, None]
        influences = (
            absolute / totals[1][:, None] - share,
            (squared_share - share) / 2,
            squared_share - around / total_around,
        )
        few = self.groups / (self.groups - 1)
        return np.stack([np.sqrt(few * (weights * part**2).sum(axis=1)) for part in influences])


def largest_error(predictions: TargetPredictions) -> float:
    """The largest absolute error that any of the predictions has for any of the true values."""
    truth, predicted = predictions.truth, predictions.predicted
    return float(max(predicted.max() - truth.min(), truth.max() - predicted.min()))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def error_intervals(
    predictions: TargetPredictions, seed: int, repeats: int = 1000
) -> dict[str, tuple[float, float]]:
    """Return the limits of `ERRORS`: studentized bootstrap intervals of their logarithms.

    Errors are skewed, so that percentiles miss their upper end. A group is resampled as in
    `resample_metrics`; each resample is standardized by its own standard error, and the limits use
    the jackknife's (Efron and Tibshirani 1993, section 12.5). They are never narrower than those of
    Student's t. Limits of NRMSE are those of RMSE over the range of the truth. They are for the
    error of these predictions on new groups; under cross-validation that of the models of the
    folds. No error exceeds `largest_error`. NaN where an error is 0 or does not vary.
    """
    if predictions.group_count < LEAST_GROUPS or not repeats:
        return dict.fromkeys(ERRORS, (math.nan, math.nan))
    errors = _Errors(predictions)
    total = errors.sums.sum(axis=1, keepdims=True)
    value = errors.logarithms(total)
    without = errors.logarithms(total - errors.sums)
    spread = without - without.mean(axis=1, keepdims=True)
    deviation = np.sqrt((1 - 1 / errors.groups) * (spread**2).sum(axis=1))
    drawn = [
        (errors.logarithms(errors.sums @ weights.T) - value) / errors.standard_errors(weights)
        for weights in resamples(errors.groups, seed, repeats, errors.groups)
    ]
    student = -float(stdtrit(errors.groups - 1, (1 - INTERVAL_LEVEL) / 2))
    inflation = ERROR_INFLATION if predictions.cross_validated else 1.0
    limits = []
    for center, scale, t in zip(value[:, 0], deviation, np.concatenate(drawn, axis=1), strict=True):
        t = t[np.isfinite(t)]
        if 2 * len(t) < repeats or not 0 < scale < math.inf:
            limits.append((math.nan, math.nan))
            continue
        lower, upper = np.percentile(t, [50 * (1 - INTERVAL_LEVEL), 50 * (1 + INTERVAL_LEVEL)])
        reach = np.array([-max(upper, student), -min(lower, -student)]) * scale * inflation
        limits.append(tuple(np.exp(center + reach).tolist()))
    largest = largest_error(predictions)
    mae, rmse = ((low, min(high, largest)) for low, high in limits[:2])
    unexplained = limits[2]
    scope = float(np.ptp(predictions.truth)) or math.nan
    nrmse = (rmse[0] / scope, rmse[1] / scope)
    return {
        "mae": mae,
        "rmse": rmse,
        "nrmse": nrmse,
        "r2": (1 - unexplained[1], 1 - unexplained[0]),
    }


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
    total = effective_groups(groups)
    if name == "coverage" or not len(truth):
        return total
    levels, counts = np.unique(truth, return_counts=True)
    class_groups = np.array([effective_groups(groups[truth == level]) for level in levels])
    if name == "auprc" and len(levels) <= 2:
        return float(class_groups.min())
    weights = counts / len(truth) if name == "accuracy" else np.full(len(levels), 1 / len(levels))
    trials = float(1 / (weights**2 / class_groups).sum())
    return min(trials, math.sqrt(trials * total))


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
    share, drawn, tail = float(values[0]), _defined(values), (1 - INTERVAL_LEVEL) / 2
    smallest = min(units, groups)
    if not len(drawn) or math.isnan(share) or smallest < LEAST_UNITS:
        return Interval(share)
    middle = (units * share + 1) / (units + 2)
    added = units * (share - middle) ** 2 + middle**2 + (1 - middle) ** 2
    variance = (units**2 * float(np.var(drawn)) + added) / (units + 2) ** 2
    size = float(np.clip(middle * (1 - middle) / variance - 2, 1, samples)) / inflation**2
    if samples > 1:
        size *= float(stdtrit(samples - 1, tail) / stdtrit(smallest - 1, tail)) ** 2
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
    """Describe small samples behind intervals and tests, such as `few groups of the class 'case'
    (5)`; empty if they are large enough.
    """
    units = pd.Series(predictions.resampling_units)
    if (count := units.nunique()) < FEW_GROUPS:
        return f"few groups ({count})"
    if predictions.labels:
        class_groups = units.groupby(predictions.truth).nunique()
        if (count := class_groups.min()) < FEW_IN_A_CLASS:
            return (
                f"few groups of the class {predictions.labels[class_groups.idxmin()]!r} ({count})"
            )
    largest = float(units.value_counts(normalize=True).max())
    above = f"one group above all, which has {100 * largest:.0f} % of the samples"
    return above if largest > LARGEST_GROUP_SHARE else ""


def intervals(
    predictions: TargetPredictions, resampled: dict[str, Array], seed: int
) -> MetricIntervals:
    """Return each of the `resampled` metrics with its limits: exact ones of shares, studentized
    ones of errors of numbers, percentiles of all others.
    """
    truth, units = predictions.truth, predictions.resampling_units
    groups, result = effective_groups(units), {}
    errors: dict[str, tuple[float, float]] = {}
    if resampled.keys() & set(ERRORS):
        errors = error_intervals(predictions, seed, len(next(iter(resampled.values()))) - 1)
    for name, values in resampled.items():
        if name in errors:
            result[name] = Interval(float(values[0]), *errors[name])
            continue
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
        limits = interval(values, predictions.group_count, inflation)
        if name in RANKING:
            low, high = np.clip([limits.low, limits.high], -1.0, 1.0).tolist()
            limits = Interval(limits.value, low, high)
        result[name] = limits
    return result


def metrics_with_intervals(
    predictions: TargetPredictions, seed: int, repeats: int = 1000
) -> MetricIntervals:
    """Return the metrics of all samples that have a truth and a prediction, with intervals."""
    complete = predictions.complete()
    return intervals(complete, resample_metrics(complete, seed, repeats), seed)


def metrics_by_level(
    predictions: TargetPredictions, levels: Array, seed: int, repeats: int = 1000
) -> Levels:
    """Return number of samples and metrics at each level of `levels` [N]: fold, batch, category,
    true class.

    There are no limits where the groups of a level say less than `LEAST_GROUPS` of one size would.
    A batch that is one group and was held out whole has limits over its samples.
    """
    result, is_batch = {}, levels is predictions.batch
    is_new_batch = is_batch and predictions.complete().batches_held_out_whole
    for level in sorted_levels(levels):
        part = predictions.at(levels == level).complete()
        if is_new_batch and part.group_count == 1:
            part = replace(part, groups=None)
        has_few_groups = effective_groups(part.resampling_units) < LEAST_GROUPS
        metrics = metrics_with_intervals(part, seed, 0 if has_few_groups else repeats)
        result[str(level)] = len(part.truth), metrics
    return result


def number(value: float) -> str:
    """Return three significant digits, and up to nine that stand before the point; a dash for
    NaN.
    """
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if 100 <= abs(value) < 1e9 else f"{value:#.3g}"


def too_few(count: int, units: str) -> str:
    """Return `too few groups (1)`, `too few values of subject (3)`."""
    return f"too few {units} ({count})"


def limits_text(value: Interval) -> str:
    """Return `LOW to HIGH`; nothing where there are no limits."""
    return "" if math.isnan(value.low) else f"{number(value.low)} to {number(value.high)}"


def with_limits(value: Interval) -> str:
    """Return a metric with its limits if it has any."""
    limits = limits_text(value)
    return f"{number(value.value)} ({limits})" if limits else number(value.value)
