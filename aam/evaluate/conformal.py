"""Conformal prediction intervals, calibrated by groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aam.evaluate.bootstrap import FEW_GROUPS
from aam.evaluate.metrics import Array
from aam.evaluate.target_predictions import TargetPredictions

# Share of new samples, each of a new group, that a conformal interval is to hold.
LEVEL = 0.9

# The scale of an interval is that of so many quantiles of the prediction.
SCALES = 5

# The least number of held-out groups for intervals of new samples; README and messages give this number.
LEAST_GROUPS = FEW_GROUPS

# With fewer groups no residual is large enough to hold `LEVEL` of new groups.
LEAST_GROUPS_IN_PART = 10

# No part of the predictions counts as this much surer than all of them.
SMALLEST_SCALE = 0.25

# Of more groups several are left out at once: one by one, 9,000 groups of 45,000 samples take a quarter of an hour.
LEFT_OUT_PARTS = 500

ROUNDING = 1e-9


@dataclass(frozen=True)
class Conformal:
    """An interval's half width: `quantile` times a scale that goes through `scales` at the predictions `knots`.

    It was fitted on so many `samples` and `groups`, and each of these groups, left out of the fit, had `held` of its
    samples inside on average. `bounds` are the values that a bounded model can predict; limits are cut there.
    """

    knots: tuple[float, ...]
    scales: tuple[float, ...]
    quantile: float
    samples: int
    groups: int
    held: float = math.nan
    bounds: tuple[float, float] | None = None

    @classmethod
    def fit(
        cls,
        predictions: TargetPredictions,
        scales: int = SCALES,
        least: int = LEAST_GROUPS,
        bounds: tuple[float, float] | None = None,
    ) -> Conformal | None:
        """Fit residuals of samples held out of training and early stopping; none below `least` groups.

        Each group counts alike, however many samples it has (Lee, Barber and Willett 2023, whose quantile is that of
        LEVEL (G + 1) / G for G groups). Scales are mean absolute residuals in so many quantiles of the prediction (Lei
        et al. 2018, section 5.2). Residuals count in units of scales that were fitted without their group, as those
        of new groups do. For groups of one sample and one scale the quantile is the rank ceil((G + 1) LEVEL) of split
        conformal prediction.
        """
        units, group = np.unique(predictions.resampling_units, return_inverse=True)
        if len(units) < least:
            return None
        residual = np.abs(predictions.truth - predictions.predicted)
        weight = (1 / np.bincount(group))[group] / len(units)
        for knots in dict.fromkeys((scales, 1)):
            score = _left_out_scores(predictions.predicted, residual, group, weight, knots)
            order = np.argsort(score, kind="stable")
            place = int(np.searchsorted(np.cumsum(weight[order]), LEVEL * (1 + 1 / len(units)) - ROUNDING))
            if place < len(order):
                fitted = _with_scales(predictions.predicted, residual, weight, knots)
                quantile = float(score[order[place]])
                held = float(weight[score <= quantile].sum())
                return replace(fitted, quantile=quantile, groups=len(units), held=held, bounds=bounds)
        return None

    @classmethod
    def from_json(cls, value: Any) -> Conformal:
        """Return the fit from what `dataclasses.asdict` gave and JSON kept."""
        bounds = value.get("bounds")
        lists = {"knots": tuple(value["knots"]), "scales": tuple(value["scales"])}
        return cls(**{**value, **lists, "bounds": None if bounds is None else (bounds[0], bounds[1])})

    def half_width(self, predicted: Array) -> Array:
        """Return half of the interval's width [N] for predictions [N], before it is cut at the bounds."""
        return np.asarray(self.quantile * np.interp(predicted, self.knots, self.scales))

    def limits(self, predicted: Array) -> Array:
        """Return lower and upper limit [N, 2]."""
        half = self.half_width(predicted)
        limits = np.stack([predicted - half, predicted + half], axis=1)
        return limits if self.bounds is None else np.clip(limits, *self.bounds)


def _with_scales(predicted: Array, residual: Array, weight: Array, count: int) -> Conformal:
    """Return the scales of residuals in `count` weighted quantiles of the prediction, and 1 for the quantile.

    One scale is 1 whatever the residuals are.
    """
    if count == 1:
        return Conformal((0.0,), (1.0,), 1.0, len(residual), 1)
    order = np.argsort(predicted, kind="stable")
    running = np.cumsum(weight[order]) / weight.sum()
    part = np.minimum((count * (running - ROUNDING)).astype(np.int64), count - 1)
    number, place = np.unique(part, return_inverse=True)
    total = np.bincount(place, weights=weight[order])
    knots = np.bincount(place, weights=(weight * predicted)[order]) / total
    means = np.bincount(place, weights=(weight * residual)[order]) / total
    least = SMALLEST_SCALE * float(np.average(residual, weights=weight)) or 1.0
    scales = np.maximum(means, least)
    return Conformal(tuple(knots.tolist()), tuple(scales.tolist()), 1.0, len(residual), len(number))


def _left_out_scores(predicted: Array, residual: Array, group: Array, weight: Array, count: int) -> Array:
    """Return the residuals in units of `count` scales that were fitted without their group, [N].

    Of more than `LEFT_OUT_PARTS` groups every `LEFT_OUT_PARTS`-th is left out together.
    """
    scores, part = np.empty(len(residual)), group % LEFT_OUT_PARTS
    for left_out in np.unique(part):
        inside = part == left_out
        fitted = _with_scales(predicted[~inside], residual[~inside], weight[~inside], count)
        scores[inside] = residual[inside] / fitted.half_width(predicted[inside])
    return scores
