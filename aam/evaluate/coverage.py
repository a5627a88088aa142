"""How many of the truths conformal intervals and predicted quantiles hold: metrics, sentences, and levels."""

from __future__ import annotations

import math

import numpy as np

from aam.evaluate import bootstrap, conformal, metrics
from aam.evaluate.bootstrap import Interval
from aam.evaluate.metrics import Array
from aam.evaluate.numbers import number, with_limits
from aam.evaluate.target_predictions import TargetPredictions

Metrics = dict[str, Interval]

# Quantiles whose coverage differs by more than this from what was asked for are warned of.
QUANTILE_TOLERANCE = 0.05


def _interval_metrics(truth: Array, limits: Array, groups: Array, seed: int, repeats: int) -> Metrics:
    """Return coverage and mean width of limits [N, 2], with intervals over groups."""
    resampled = bootstrap.resample_metrics(metrics.weighted_interval_metrics, truth, limits, groups, seed, repeats)
    units = bootstrap.effective_groups(groups)
    return {
        "coverage": bootstrap.share_interval(resampled["coverage"], units, len(truth)),
        "width": bootstrap.interval(resampled["width"], len(np.unique(groups))),
    }


def conformal_coverage(predictions: TargetPredictions, seed: int, repeats: int = 1000) -> Metrics:
    """Return coverage and width of the conformal intervals, and of one width for all; nothing without intervals."""
    bounded = predictions.with_limits()
    if bounded.limits is None or not len(bounded.truth):
        return {}
    values = _interval_metrics(bounded.truth, bounded.limits, bounded.resampling_units, seed, repeats)
    same = conformal.Conformal.fit(bounded, scales=1)
    width = math.nan if same is None else 2 * same.quantile * same.scales[0]
    return {**values, "one_width": Interval(width)}


def quantile_coverage(predictions: TargetPredictions, seed: int, repeats: int = 1000) -> Metrics:
    """Return what share of the truths lies between the outermost predicted quantiles, and below each of them.

    Keys are ``coverage`` and ``width`` of the interval from the first to the last quantile, and ``below LEVEL`` for
    each level; nothing where no quantiles were predicted.
    """
    complete = predictions.complete()
    if complete.quantiles is None or not len(complete.truth):
        return {}
    rows = np.isfinite(complete.quantiles).all(axis=1)
    truth, quantiles, groups = complete.truth[rows], complete.quantiles[rows], complete.resampling_units[rows]
    if not len(truth):
        return {}
    values = _interval_metrics(truth, quantiles[:, [0, -1]], groups, seed, repeats)
    for column, level in enumerate(complete.levels):
        below = np.stack([np.full(len(truth), truth.min()), quantiles[:, column]], axis=1)
        values[f"below {level:g}"] = _interval_metrics(truth, below, groups, seed, repeats)["coverage"]
    return values


def tenths(truth: Array) -> Array:
    """Return in which tenth of the values each lies, equal values in one, [N] of text."""
    edges = np.unique(np.quantile(truth, np.arange(1, 10) / 10))
    tenth = np.searchsorted(edges, truth, side="right")
    ends = {part: f"{number(truth[tenth == part].min())} to {number(truth[tenth == part].max())}" for part in tenth}
    return np.array([ends[part] for part in tenth], dtype=object)


def coverage_by(bounded: TargetPredictions, levels: Array) -> dict[str, tuple[int, dict[str, float]]]:
    """Return samples, coverage and mean width at each level, in the order of their truths."""
    names = levels.astype(str)
    result = {}
    for level in sorted(np.unique(names), key=lambda level: float(np.median(bounded.truth[names == level]))):
        truth, limits = bounded.truth[names == level], np.asarray(bounded.limits)[names == level]
        values = metrics.unweighted_metrics(metrics.weighted_interval_metrics, truth, limits)
        result[str(level)] = (len(truth), values)
    return result


def conformal_sentences(predictions: TargetPredictions, coverage: Metrics) -> list[str]:
    """Return how many of the truths the intervals hold, over all and in the tenths of the target."""
    if not coverage:
        return []
    bounded = predictions.with_limits()
    shares = [values["coverage"] for _, values in coverage_by(bounded, tenths(bounded.truth)).values()]
    width, same = coverage["width"].value, coverage["one_width"].value
    beside = f"; one width for all samples would be {number(same)}" if same > 0 else ""
    return [
        f"The {100 * conformal.LEVEL:.0f} % intervals hold {with_limits(coverage['coverage'])} of the values, "
        f"{number(min(shares))} to {number(max(shares))} in tenths of them; they are {number(width)} wide on average"
        f"{beside}."
    ]


def quantile_sentences(predictions: TargetPredictions, coverage: Metrics, conformal_interval: bool) -> list[str]:
    """Return how many of the truths lie between the outermost quantiles, beside how many should.

    With `conformal_interval` there is one of `conformal.LEVEL` to use instead of quantiles that do not hold theirs.
    """
    if not coverage or len(predictions.levels) < 2:
        return []
    lowest, highest = predictions.levels[0], predictions.levels[-1]
    expected, held = highest - lowest, coverage["coverage"]
    sentence = (
        f"The quantiles {lowest:g} to {highest:g} hold {with_limits(held)} of the values; they should hold "
        f"{number(expected)}"
    )
    if abs(held.value - expected) <= QUANTILE_TOLERANCE:
        return [f"{sentence}."]
    width = "narrow" if held.value < expected else "wide"
    if not (held.high < expected or held.low > expected):
        return [f"{sentence}. They may be too {width}; these samples do not tell."]
    instead = "; use the conformal interval instead" if conformal_interval and expected >= conformal.LEVEL - 0.1 else ""
    return [f"{sentence}. They are too {width}{instead}."]
