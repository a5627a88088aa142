"""Conformal intervals of predictions: fitted on held-out samples, applied, and what they hold."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from aam.config import DataConfig
from aam.data.splits import kfold
from aam.data.targets import TargetSpec
from aam.evaluate import intervals, metrics
from aam.evaluate.intervals import FEW_GROUPS, MetricIntervals, too_few
from aam.evaluate.predictions import PredictionTable, TargetPredictions, target_predictions
from aam.io.metadata import Metadata
from aam.typing import Array, Number, PositiveNumber, SmallNumber

log = logging.getLogger("aam")

# Without folds, intervals of held-out samples come from the other parts of this number of parts of
# whole groups.
PARTS = 5

# Share of new samples, each of a new group, that a conformal interval is to hold.
CONFORMAL_LEVEL = 0.9

# Number of quantiles of the prediction that have a scale of their own.
SCALES = 5

# The least number of held-out groups for intervals of new samples; messages give this number.
CONFORMAL_GROUPS = FEW_GROUPS

# With fewer groups no residual is large enough to hold `CONFORMAL_LEVEL` of new groups.
LEAST_GROUPS_IN_PART = 10

# No part of the predictions counts as this much surer than all of them.
SMALLEST_SCALE = 0.25

# Of more groups several are left out at once: one by one, 9,000 groups of 45,000 samples take a
# quarter of an hour.
LEFT_OUT_PARTS = 500

RANK_ROUNDING = 1e-9


@dataclass(frozen=True)
class Conformal:
    """An interval's half width: `quantile` times a scale that goes through `scales` at the
    predictions `knots`. Limits are not below the `floor`, if there is one.
    """

    knots: tuple[Number, ...]
    scales: tuple[PositiveNumber, ...]
    quantile: SmallNumber = 1.0
    floor: Annotated[float, Ge(0), Le(0)] | None = None

    def contradictions(self) -> Iterator[str]:
        """Say why the values cannot be fitted together."""
        if not 0 < len(self.knots) == len(self.scales) or (np.diff(self.knots) < 0).any():
            yield "its knots do not ascend, or are not each with a scale"

    @classmethod
    def fit(
        cls,
        predictions: TargetPredictions,
        least: int = CONFORMAL_GROUPS,
        floor: float | None = None,
    ) -> Conformal | None:
        """Fit residuals of samples held out of training and early stopping; none below `least`
        groups.

        Each group has the same weight, whatever its size (Lee, Barber and Willett 2023). Scales
        are mean absolute residuals in `SCALES` quantiles of the prediction (Lei et al. 2018,
        section 5.2). The quantile is the smallest that would have held `CONFORMAL_LEVEL` of the
        samples of each group had it been left out of the fit, scales included: the finite-sample
        correction.
        For groups of one sample and one scale it is the rank ceil((G + 1) CONFORMAL_LEVEL) of split
        conformal prediction, or the next.
        """
        group, groups = predictions.resampling_units, predictions.group_count
        if groups < least:
            return None
        predicted, residual = predictions.predicted, predictions.errors
        weight = (1 / np.bincount(group))[group] / groups
        # Few groups may need more than the largest residual; one scale for all needs less.
        for count in (SCALES, 1):
            share = _share_needed(predicted, residual, group, weight, count)
            fitted = _with_scales(predicted, residual, weight, count)
            quantile = _smallest(residual / fitted.half_width(predicted), weight, share)
            if math.isfinite(quantile):
                return replace(fitted, quantile=quantile, floor=floor)
        return None

    def half_width(self, predicted: Array) -> Array:
        """Return half of the interval's width [N] for predictions [N], before it is cut at the
        floor.
        """
        return np.asarray(self.quantile * np.interp(predicted, self.knots, self.scales))

    def limits(self, predicted: Array) -> Array:
        """Return lower and upper limit [N, 2]."""
        half = self.half_width(predicted)
        limits = np.stack([predicted - half, predicted + half], axis=1)
        cut = limits if self.floor is None else np.maximum(limits, self.floor)
        # One that lies outside whole stays: it would have no width.
        return np.where(cut[:, :1] < cut[:, 1:], cut, limits)


def _smallest(values: Array, weight: Array, share: float) -> float:
    """Return the smallest of the values [N] that holds a share of the weights; infinity where none
    does.
    """
    order = np.argsort(values, kind="stable")
    place = np.searchsorted(np.cumsum(weight[order]), share - RANK_ROUNDING)
    return float(np.append(values[order], math.inf)[place])


def _with_scales(predicted: Array, residual: Array, weight: Array, count: int) -> Conformal:
    """Return the scales of residuals in `count` weighted quantiles of the prediction, and 1 for the
    quantile.
    """
    order = np.argsort(predicted, kind="stable")
    running = np.cumsum(weight[order]) / weight.sum()
    part = np.minimum((count * (running - RANK_ROUNDING)).astype(np.int64), count - 1)
    place = np.unique(part, return_inverse=True)[1]
    total = np.bincount(place, weights=weight[order])
    knots = np.bincount(place, weights=(weight * predicted)[order]) / total
    means = np.bincount(place, weights=(weight * residual)[order]) / total
    least = SMALLEST_SCALE * float(np.average(residual, weights=weight)) or 1.0
    return Conformal(tuple(knots.tolist()), tuple(np.maximum(means, least).tolist()))


def _share_needed(
    predicted: Array, residual: Array, group: Array, weight: Array, count: int
) -> float:
    """Share of the residuals that the quantile must hold.

    It is that among the other groups which holds `CONFORMAL_LEVEL` of each group, left out, on
    average. Of more than `LEFT_OUT_PARTS` groups every `LEFT_OUT_PARTS`-th is left out together.
    """
    needed, part = np.empty(len(residual)), group % LEFT_OUT_PARTS
    for left_out in np.unique(part):
        inside = part == left_out
        others = ~inside
        fitted = _with_scales(predicted[others], residual[others], weight[others], count)
        score = residual / fitted.half_width(predicted)
        order = np.argsort(score[others], kind="stable")
        running = np.cumsum(weight[others][order]) / weight[others].sum()
        place = np.searchsorted(score[others][order], score[inside])
        needed[inside] = np.append(running, math.inf)[place]
    return _smallest(needed, weight, CONFORMAL_LEVEL)


def conformal_coverage(
    predictions: TargetPredictions, seed: int, repeats: int = 1000
) -> MetricIntervals:
    """Coverage and width of the conformal intervals, with limits over groups; nothing without
    intervals.
    """
    if predictions.limits is None:
        return {}
    complete = predictions.at(predictions.has_both & np.isfinite(predictions.limits).all(axis=1))
    if not len(complete.truth):
        return {}
    as_limits = replace(complete, predicted=np.asarray(complete.limits))
    measure = metrics.weighted_interval_metrics
    resampled = intervals.resample_metrics(as_limits, seed, repeats, measure)
    return intervals.intervals(as_limits, resampled, seed)


def with_conformal_intervals(
    table: PredictionTable, metadata: Metadata, data: DataConfig, seed: int
) -> tuple[PredictionTable, dict[str, Conformal]]:
    """Add conformal intervals to held-out predictions; fit, by target, those of new samples.

    All of these samples were held out of training and of early stopping. The interval of each comes
    from samples of other folds or, with one fold, of other fifths of the groups; that of new
    samples from all. If whole batches were held out, batches are the groups: an interval is then
    for a sample of a new batch. They are missing, which is logged, below `CONFORMAL_GROUPS` groups,
    or if the other folds have fewer than `LEAST_GROUPS_IN_PART`. Limits are cut at 0 if no value
    that they are fitted on is negative.
    """
    conformal = {}
    for spec in table.specs:
        if spec.kind != "numeric":
            continue
        predictions = target_predictions(table, spec, metadata, data)
        complete, units = predictions.complete(), "held-out groups"
        if complete.batches_held_out_whole:
            complete = replace(complete, groups=complete.batch)
            units = f"values of {data.batch_column}"
        fit = Conformal.fit(complete, floor=_floor(spec, complete))
        limits = None if fit is None else _held_out_limits(complete, seed, spec)
        if limits is None or fit is None:
            log.warning(
                f"{spec.name}: no {100 * CONFORMAL_LEVEL:.0f} % intervals, "
                f"{too_few(complete.group_count, units)}: {CONFORMAL_GROUPS} are needed, and "
                f"{LEAST_GROUPS_IN_PART} outside of each fold"
            )
            continue
        limits_of_table = np.full((len(table.sample_ids), 2), math.nan)
        limits_of_table[predictions.has_both] = limits
        table, conformal[spec.name] = table.with_limits(spec.name, limits_of_table), fit
    return table, conformal


def _floor(spec: TargetSpec, complete: TargetPredictions) -> float | None:
    """Lower bound of limits: 0 if no value of training, and no value that they are fitted on, is
    negative.
    """
    # The bounds of several folds are of all their training samples, those held out of one among
    # them.
    trained = spec.bounds[0] if spec.bounds is not None and complete.fold is None else 0.0
    lowest = min(trained, float(complete.truth.min(initial=0.0)))
    return None if lowest < 0 else 0.0


def _held_out_limits(complete: TargetPredictions, seed: int, spec: TargetSpec) -> Array | None:
    """Return limits [N, 2] of each sample's interval, fitted on the samples of other folds, or of
    other fifths of the groups; none where these are too few groups.
    """
    parts, limits = complete.fold, np.empty((len(complete.truth), 2))
    if parts is None:
        groups = None if complete.groups is None else complete.groups.tolist()
        split = kfold(complete.sample_ids, PARTS, groups, seed=seed)[0]
        part_of = dict(zip(split.sample_ids, split.folds, strict=True))
        parts = np.array([part_of[name] for name in complete.sample_ids])
    for part in np.unique(parts):
        inside = parts == part
        others = complete.at(~inside)
        conformal = Conformal.fit(others, LEAST_GROUPS_IN_PART, _floor(spec, others))
        if conformal is None:
            return None
        limits[inside] = conformal.limits(complete.predicted[inside])
    return limits
