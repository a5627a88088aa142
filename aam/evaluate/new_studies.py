"""How well samples of a study are predicted that was held out whole: by study, and on average over
studies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from aam.evaluate.comparison import headline
from aam.evaluate.intervals import LEVEL, Interval, metrics_with_intervals, number
from aam.evaluate.metrics import TITLES, Array, sorted_levels
from aam.evaluate.target_predictions import TargetPredictions

# A mean of fewer studies has no interval: two say next to nothing of how studies differ.
LEAST_STUDIES = 3


@dataclass(frozen=True)
class InNewStudies:
    """One metric in studies that were held out whole.

    Attributes
    ----------
    metric : str
    studies : mapping of str to (int, Interval)
        Number of samples of each study and its metric, with the interval of its own samples or
        groups.
    mean : float
        Of the studies, each alike.
    pooled : Interval
        Mean of the random-effects model, in which studies that are known better count more.
    further : Interval
        Where the metric of a further study is to be expected.
    deviation : float
        Standard deviation between studies beyond what their samples explain.
    heterogeneity : float
        Share of the variance between the studies' values that their samples do not explain (I2).
    """

    metric: str
    studies: Mapping[str, tuple[int, Interval]]
    mean: float
    pooled: Interval
    further: Interval
    deviation: float
    heterogeneity: float


def random_effects(values: Array, variances: Array) -> tuple[Interval, Interval, float, float]:
    """Return the mean of studies with its interval, where a further study is expected, deviation
    and heterogeneity.

    `values` [k] have sampling `variances` [k]. Variance between studies by DerSimonian and Laird
    1986, interval of the mean by Hartung and Knapp 2001, never narrower than without their factor,
    interval of a further study by Higgins, Thompson and Spiegelhalter 2009. Intervals need
    `LEAST_STUDIES`.
    """
    k, fixed = len(values), 1 / variances
    residual = float(fixed @ np.square(values - np.average(values, weights=fixed)))
    between = (
        max(0.0, (residual - (k - 1)) / (fixed.sum() - np.square(fixed).sum() / fixed.sum()))
        if k > 1
        else 0.0
    )
    heterogeneity = max(0.0, 1 - (k - 1) / residual) if residual > 0 else 0.0
    weights = 1 / (variances + between)
    mean = float(np.average(values, weights=weights))
    if k < LEAST_STUDIES:
        return Interval(mean), Interval(mean), math.sqrt(between), heterogeneity
    factor = max(1.0, float(weights @ np.square(values - mean)) / (k - 1))
    variance, tail = factor / weights.sum(), (1 + LEVEL) / 2
    half, wide = (
        stdtrit(k - 1, tail) * math.sqrt(variance),
        stdtrit(k - 2, tail) * math.sqrt(variance + between),
    )
    limits = [Interval(mean, mean - one, mean + one) for one in (float(half), float(wide))]
    return limits[0], limits[1], math.sqrt(between), heterogeneity


def in_new_studies(
    predictions: TargetPredictions, seed: int = 0, repeats: int = 1000
) -> InNewStudies | None:
    """Return the headline metric by study, where every study was held out whole; none for fewer
    than two studies.

    A study's interval is over its groups, or over its samples where it is one group. A study
    without the metric, as one of a single class, is left out.
    """
    complete = predictions.complete()
    if not batches_held_out_whole(complete):
        return None
    metric, studies = headline(complete.labels), {}
    for level in sorted_levels(np.asarray(complete.batch)):
        part = complete.at(np.asarray(complete.batch) == level)
        one_group = part.groups is not None and len(np.unique(part.groups)) == 1
        part = replace(part, fold=None, groups=None if one_group else part.groups)
        value = metrics_with_intervals(part, seed, repeats)[metric]
        if math.isfinite(value.value):
            studies[str(level)] = (len(part.truth), value)
    if len(studies) < 2:
        return None
    known = [one for _, one in studies.values() if one.low < one.high]
    pooled = further = Interval(math.nan)
    deviation = heterogeneity = math.nan
    if len(known) == len(studies):
        errors = np.array(
            [(one.high - one.low) / (2 * stdtrit(1e6, (1 + LEVEL) / 2)) for one in known]
        )
        values = np.array([one.value for one in known])
        pooled, further, deviation, heterogeneity = random_effects(values, np.square(errors))
        pooled, further = (_in_range(one, metric) for one in (pooled, further))
    mean = float(np.mean([one.value for _, one in studies.values()]))
    return InNewStudies(metric, studies, mean, pooled, further, deviation, heterogeneity)


def _in_range(limits: Interval, metric: str) -> Interval:
    """Return limits inside what the metric can be."""
    low, high = (0.0, math.inf) if metric == "mae" else (0.0, 1.0)
    return (
        Interval(limits.value, max(limits.low, low), min(limits.high, high))
        if limits.low < limits.high
        else limits
    )


def batches_held_out_whole(predictions: TargetPredictions) -> bool:
    """Return whether no batch has samples in two folds, so that each was predicted without any
    sample of its own.
    """
    fold, batch = predictions.fold, predictions.batch
    if fold is None or batch is None:
        return False
    levels = np.unique(batch)
    return predictions.cross_validated and all(
        len(np.unique(fold[batch == level])) == 1 for level in levels
    )


def new_study_sentence(result: InNewStudies, name: str) -> str:
    """Return what is to be expected in a study never seen."""
    values = [value.value for _, value in result.studies.values()]
    text = (
        f"In a {name} never seen the {TITLES[result.metric]} is {number(result.mean)} on average "
        "over "
        f"{len(values)}, each alike, from {number(min(values))} to {number(max(values))}"
    )
    if result.further.low < result.further.high:
        text += (
            f"; a further one is expected between {number(result.further.low)} and "
            f"{number(result.further.high)}"
        )
    return f"{text}."
