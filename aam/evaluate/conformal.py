"""Conformal intervals of predictions: fitted on held-out samples, applied, and what they hold."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aam.data.splits import kfold
from aam.data.targets import TargetSpec
from aam.evaluate import metrics
from aam.evaluate.intervals import (
    FEW_GROUPS,
    Metrics,
    effective_groups,
    interval,
    number,
    resample_metrics,
    share_interval,
    too_few,
    with_limits,
)
from aam.evaluate.metrics import Array
from aam.evaluate.new_studies import batches_held_out_whole
from aam.evaluate.predictions import PredictionTable
from aam.evaluate.target_predictions import Columns, TargetPredictions, target_predictions
from aam.io.metadata import Metadata

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

ROUNDING = 1e-9

# The lowest and the highest value that a limit may have; none is open.
Bounds = tuple[float, float | None]


@dataclass(frozen=True)
class Conformal:
    """An interval's half width: `quantile` times a scale that goes through `scales` at the
    predictions `knots`.

    It was fitted on `samples` samples of `groups` groups. Each of these groups, left out of the
    fit, had a share `held` of its samples inside on average. Limits are cut at the `bounds`.
    """

    knots: tuple[float, ...]
    scales: tuple[float, ...]
    quantile: float
    samples: int
    groups: int
    held: float = math.nan
    bounds: Bounds | None = None

    @classmethod
    def fit(
        cls,
        predictions: TargetPredictions,
        scales: int = SCALES,
        least: int = CONFORMAL_GROUPS,
        bounds: Bounds | None = None,
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
        units, group = np.unique(predictions.resampling_units, return_inverse=True)
        if len(units) < least:
            return None
        residual = np.abs(predictions.truth - predictions.predicted)
        weight = (1 / np.bincount(group))[group] / len(units)
        for knots in dict.fromkeys((scales, 1)):
            share, held = _share_needed(predictions.predicted, residual, group, weight, knots)
            fitted = _with_scales(predictions.predicted, residual, weight, knots)
            score = residual / fitted.half_width(predictions.predicted)
            order = np.argsort(score, kind="stable")
            place = int(np.searchsorted(np.cumsum(weight[order]), share - ROUNDING))
            # Few groups may need more than the largest residual; one scale for all needs less.
            if place < len(order):
                quantile = float(score[order[place]])
                return replace(
                    fitted, quantile=quantile, groups=len(units), held=held, bounds=bounds
                )
        return None

    @classmethod
    def from_json(cls, value: Any) -> Conformal:
        """Return the fit from what `dataclasses.asdict` gave and JSON kept."""
        parts: dict[str, Any] = {
            name: tuple(part) if isinstance(part, list) else part for name, part in value.items()
        }
        return cls(**parts)

    def half_width(self, predicted: Array) -> Array:
        """Return half of the interval's width [N] for predictions [N], before it is cut at the
        bounds.
        """
        return np.asarray(self.quantile * np.interp(predicted, self.knots, self.scales))

    def limits(self, predicted: Array) -> Array:
        """Return lower and upper limit [N, 2]."""
        half = self.half_width(predicted)
        limits = np.stack([predicted - half, predicted + half], axis=1)
        if self.bounds is None:
            return limits
        cut = np.clip(limits, *self.bounds)
        # One that lies outside whole stays: it would have no width.
        return np.where(cut[:, :1] < cut[:, 1:], cut, limits)


def _with_scales(predicted: Array, residual: Array, weight: Array, count: int) -> Conformal:
    """Return the scales of residuals in `count` weighted quantiles of the prediction, and 1 for the
    quantile.
    """
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


def _share_needed(
    predicted: Array, residual: Array, group: Array, weight: Array, count: int
) -> tuple[float, float]:
    """Share of the residuals that the quantile must hold, and the share of the left-out groups that
    it held.

    The share is that among the other groups which holds `CONFORMAL_LEVEL` of each group, left out,
    on average. Of more than `LEFT_OUT_PARTS` groups every `LEFT_OUT_PARTS`-th is left out together.
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
    order = np.argsort(needed, kind="stable")
    held = np.cumsum(weight[order])
    share = float(needed[order[np.searchsorted(held, CONFORMAL_LEVEL - ROUNDING)]])
    return share, float(weight[needed <= share].sum())


def conformal_coverage(predictions: TargetPredictions, seed: int, repeats: int = 1000) -> Metrics:
    """Coverage and width of the conformal intervals, with limits over groups; nothing without
    intervals.
    """
    bounded = predictions.with_limits()
    if bounded.limits is None or not len(bounded.truth):
        return {}
    groups, measure = bounded.resampling_units, metrics.weighted_interval_metrics
    drawn = resample_metrics(measure, bounded.truth, bounded.limits, groups, seed, repeats)
    units = effective_groups(groups)
    return {
        "coverage": share_interval(drawn["coverage"], units, units, len(bounded.truth)),
        "width": interval(drawn["width"], bounded.group_count),
    }


def conformal_sentences(
    predictions: TargetPredictions, coverage: Metrics, unlike: Mapping[str, str]
) -> list[str]:
    """Say where intervals are withheld or hold too few of the true values.

    Samples `unlike` training, by their reason, have an interval here only to see what it holds.
    """
    if not coverage:
        return []
    bounded, level = predictions.with_limits(), f"{100 * CONFORMAL_LEVEL:.0f} %"
    reasons = Counter(unlike[name] for name in bounded.sample_ids if name in unlike)
    if not reasons:
        held = coverage["coverage"]
        few = f"The {level} intervals of predictions hold only {with_limits(held)} of the true "
        return [f"{few}values."] if held.high < CONFORMAL_LEVEL else []
    withheld = np.array([name in unlike for name in bounded.sample_ids])
    low, high = np.asarray(bounded.limits).T
    inside = (bounded.truth >= low) & (bounded.truth <= high)
    sentences = [
        f"{withheld.sum()} of {len(withheld)} samples get no interval, for example because "
        f"{reasons.most_common(1)[0][0]}. The {level} intervals of these samples would have held "
        f"{number(float(inside[withheld].mean()))} of their true values."
    ]
    if not withheld.all():
        sentences.append(
            f"The intervals of the other {(~withheld).sum()} samples hold "
            f"{number(float(inside[~withheld].mean()))} of their true values."
        )
    return sentences


def with_conformal_intervals(
    table: PredictionTable, metadata: Metadata, columns: Columns, seed: int
) -> tuple[PredictionTable, dict[str, Conformal]]:
    """Add conformal intervals to held-out predictions; fit, by target, those of new samples.

    All of these samples were held out of training and of early stopping. The interval of each comes
    from samples of other folds or, with one fold, of other fifths of the groups; that of new
    samples from all. If whole batches were held out, batches are the groups: an interval is then
    for a sample of a new batch. They are missing, which is logged, below `CONFORMAL_GROUPS` groups,
    or if the other folds have fewer than `LEAST_GROUPS_IN_PART`. Limits are cut at 0 if no value
    that they are fitted on is negative.
    """
    fitted = {}
    for spec in table.specs:
        if spec.kind != "numeric":
            continue
        predictions = target_predictions(table, spec, metadata, columns)
        complete, of = predictions.complete(), ""
        if batches_held_out_whole(complete):
            complete, of = replace(complete, groups=complete.batch), f" of {columns.batch}"
        fit = Conformal.fit(complete, bounds=_floor(spec, complete))
        limits = None if fit is None else _held_out_limits(complete, _parts(complete, seed), spec)
        if limits is None or fit is None:
            log.warning(
                "%s: no %.0f %% intervals, %s: %d are needed, and %d outside of each fold",
                spec.name,
                100 * CONFORMAL_LEVEL,
                too_few(complete.group_count, "held-out value" if of else "held-out group", of),
                CONFORMAL_GROUPS,
                LEAST_GROUPS_IN_PART,
            )
            continue
        of_all = np.full((len(table.sample_ids), 2), math.nan)
        of_all[predictions.has_both] = limits
        table, fitted[spec.name] = table.with_limits(spec.name, of_all), fit
    return table, fitted


def _floor(spec: TargetSpec, known: TargetPredictions) -> Bounds | None:
    """Lower bound of limits: 0 if no value of training, and no value that they are fitted on, is
    negative.
    """
    # The bounds of several folds are of all their training samples, those held out of one among
    # them.
    trained = spec.bounds[0] if spec.bounds is not None and known.fold is None else 0.0
    lowest = min(trained, float(known.truth.min(initial=0.0)))
    return None if lowest < 0 else (0.0, None)


def _held_out_limits(complete: TargetPredictions, parts: Array, spec: TargetSpec) -> Array | None:
    """Return limits [N, 2] of each sample's interval, fitted on the samples of the other `parts`
    [N] of groups.
    """
    limits = np.empty((len(parts), 2))
    for part in np.unique(parts):
        inside = parts == part
        known = complete.at(~inside)
        fitted = Conformal.fit(known, least=LEAST_GROUPS_IN_PART, bounds=_floor(spec, known))
        if fitted is None:
            return None
        limits[inside] = fitted.limits(complete.predicted[inside])
    return limits


def _parts(complete: TargetPredictions, seed: int) -> Array:
    """Return folds or, without them, five parts of whole groups, [N]."""
    if complete.fold is not None:
        return complete.fold
    groups = None if complete.groups is None else complete.groups.tolist()
    splits = kfold(complete.sample_ids, PARTS, groups, seed=seed)
    part_of = dict(zip(splits[0].sample_ids, splits[0].folds, strict=True))
    return np.array([part_of[name] for name in complete.sample_ids])
