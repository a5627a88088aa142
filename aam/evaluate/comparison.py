"""The model beside baselines: metrics on the samples that both predict, and the corrected paired test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from aam.evaluate import bootstrap, chance, metrics, paired_test
from aam.evaluate.baselines import Baseline
from aam.evaluate.bootstrap import Interval
from aam.evaluate.metrics import Array
from aam.evaluate.target_predictions import TargetPredictions

# A baseline with this share of the model's gain over the constant is close to it, however small the p.
CLOSE_SHARE = 0.9

# A difference is shown where the corrected p is at most this.
SIGNIFICANT = 0.05

Outcome = Literal["better", "close", "not shown", "worse", "untested"]


@dataclass(frozen=True)
class Comparison:
    """A baseline beside the model, on the samples that both predict.

    `metrics` are the baseline's and `model` those of the model; `difference` is the model's headline metric minus the
    baseline's, `p` that of the paired test over so many `groups`, and `corrected_p` the one corrected for all
    baselines of the target (Holm). Against the constant there is one test of its own, one-sided and not corrected.
    """

    name: str
    trivial: bool
    constant: bool
    samples: int
    groups: int
    metrics: dict[str, Interval]
    model: dict[str, float]
    difference: Interval
    p: float
    corrected_p: float = math.nan


def headline(labels: Sequence[str]) -> str:
    """Return the metric that decides: MAE, AUROC of two classes, accuracy of more."""
    return {0: "mae", 2: "auroc"}.get(len(labels), "accuracy")


def _p_of_gain(part: TargetPredictions, other: Array, gain: float, seed: int) -> float:
    """Return the one-sided p that the model is no better than the constant `other`, of which it has such a `gain`.

    Of two classes it is that of permuted labels; else half of the two-sided one, because swaps are symmetric.
    """
    key = headline(part.labels)
    if math.isnan(gain):
        return gain
    if key == "auroc":
        return chance.permutation_p(part, seed)
    half = paired_test.paired_p(part, other, key, seed) / 2
    return half if gain > 0 else 1 - half


def _compare(
    predictions: TargetPredictions, baseline: Baseline, seed: int, repeats: int, known: dict[bytes, dict[str, Array]]
) -> Comparison | None:
    """Return one comparison; none where the two predict no sample in common.

    `known` keeps the resampled metrics of the model by the samples that they are of.
    """
    key = headline(predictions.labels)
    in_both = predictions.has_both & metrics.has_prediction(baseline.predicted)
    if not in_both.any():
        return None
    part, other = predictions.at(in_both), baseline.predicted[in_both]
    resample = partial(bootstrap.resample_metrics, part.measure, part.truth)
    units = part.resampling_units
    if (samples := in_both.tobytes()) not in known:
        known[samples] = resample(part.predicted, units, seed, repeats)
    of_model, of_baseline = known[samples], resample(other, units, seed, repeats)
    if baseline.constant and predictions.labels:
        # A constant ranks nothing, though pooling folds whose majority differs would say otherwise.
        flat = resample(np.full_like(other, 1 / len(predictions.labels)), units, seed, repeats)
        of_baseline |= {name: values for name, values in flat.items() if name.startswith(("auroc", "auprc"))}
    difference = of_model[key] - of_baseline[key]
    paired = bootstrap.interval(difference, part.group_count, bootstrap.inflation_of_difference(part))
    intervals = bootstrap.intervals(part, of_baseline)
    if baseline.constant:
        gain = -paired.value if key in metrics.LOWER_IS_BETTER else paired.value
        p = _p_of_gain(part, other, gain, seed)
    else:
        p = paired_test.paired_p(part, other, key, seed)
    if baseline.constant and key == "auroc":
        # A constant's AUROC is known, so that the difference is as sure as the model's AUROC.
        of_key = bootstrap.intervals(part, {key: of_model[key]})[key]
        intervals[key] = Interval(intervals[key].value)
        paired = Interval(paired.value, *(limit - intervals[key].value for limit in (of_key.low, of_key.high)))
    return Comparison(
        name=baseline.name,
        trivial=baseline.trivial,
        constant=baseline.constant,
        samples=int(in_both.sum()),
        groups=part.group_count,
        metrics=intervals,
        model={name: float(values[0]) for name, values in of_model.items()},
        difference=paired,
        p=p,
    )


def compare_with_baselines(
    predictions: TargetPredictions, baselines: Sequence[Baseline], seed: int, repeats: int = 1000
) -> tuple[Comparison, ...]:
    """Return each baseline beside the model, with the rows of `predictions`; p is corrected for all but the constant.

    A baseline that predicts none of the samples is left out.
    """
    known: dict[bytes, dict[str, Array]] = {}
    compared = [_compare(predictions, baseline, seed, repeats, known) for baseline in baselines]
    comparisons = [comparison for comparison in compared if comparison is not None]
    corrected = paired_test.holm([math.nan if one.constant else one.p for one in comparisons])
    return tuple(
        replace(one, corrected_p=one.p if one.constant else p) for one, p in zip(comparisons, corrected, strict=True)
    )


def tests_corrected_for(comparisons: Sequence[Comparison]) -> int:
    """Return the number of tests that each corrected p allows for."""
    return sum(not one.constant and not math.isnan(one.p) for one in comparisons)


def share_of_gain(comparison: Comparison, constant: Comparison, key: str) -> float:
    """Return what part of the model's gain over the constant the baseline has too; NaN where there is none."""
    start = constant.metrics[key].value
    gain = comparison.model[key] - start
    gains = gain < 0 if key in metrics.LOWER_IS_BETTER else gain > 0
    alike = comparison.samples == constant.samples
    return (comparison.metrics[key].value - start) / gain if gains and alike else math.nan


def outcome(comparison: Comparison, constant: Comparison, key: str) -> Outcome:
    """Return what the model is beside a baseline; nothing is shown where the corrected p is above `SIGNIFICANT`.

    The one-sided p of the constant shows that the model is worse where it is near 1, by half of `SIGNIFICANT`.
    """
    p = comparison.corrected_p
    if math.isnan(p):
        return "untested"
    better = (comparison.difference.value < 0) == (key in metrics.LOWER_IS_BETTER)
    worse_p = 2 * (1 - p) if comparison.constant else p
    if (p if better else worse_p) > SIGNIFICANT:
        return "not shown"
    if not better:
        return "worse"
    close = comparison.trivial and share_of_gain(comparison, constant, key) >= CLOSE_SHARE
    return "close" if close else "better"
