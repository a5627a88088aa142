"""The model compared with baselines: metrics of the samples that both predict, and outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from aam.evaluate import intervals, metrics
from aam.evaluate.hypothesis_tests import holm, paired_p, permutation_p
from aam.evaluate.intervals import Interval, inflation_of_difference
from aam.evaluate.metrics import LOWER_IS_BETTER
from aam.evaluate.predictions import TargetPredictions
from aam.typing import Array

MEDIAN, MAJORITY = "the training median", "the majority class"

# Of the evaluated samples, where a model that learned from others is judged on them.
OWN_MEDIAN, OWN_MAJORITY = "the median of these samples", "the majority class of these samples"

CONSTANTS = (MEDIAN, MAJORITY, OWN_MEDIAN, OWN_MAJORITY)

DEPTH_ALONE, RICHNESS_ALONE = "depth alone", "richness alone"

DEPTH_AND_RICHNESS, COVARIATES = "depth and richness alone", "covariates alone"

# A difference is shown where the corrected p is at most this.
SIGNIFICANT = 0.05

# A baseline with this share of the model's gain over the constant is close to it, however small the
# p.
CLOSE_SHARE = 0.9

Outcome = Literal["better", "close", "not shown", "worse", "untested"]


@dataclass(frozen=True, eq=False)
class Baseline:
    """Held-out predictions of a baseline: float [N] or [N, K], NaN where it has none."""

    name: str
    predicted: Array
    trivial: bool = True

    @property
    def constant(self) -> bool:
        """Whether it knows nothing of a sample."""
        return self.name in CONSTANTS


@dataclass(frozen=True)
class Comparison:
    """A baseline compared with the model, on the samples that both predict.

    `metrics` are the baseline's and `model` those of the model; `difference` is the model's
    headline metric `key` minus the baseline's, `p` that of the paired test over `groups` groups,
    and `corrected_p` the one corrected for all baselines of the target (Holm). Against the constant
    there is one test of its own, one-sided and not corrected.
    """

    name: str
    trivial: bool
    constant: bool
    samples: int
    groups: int
    key: str
    metrics: dict[str, Interval]
    model: dict[str, float]
    difference: Interval
    p: float
    corrected_p: float = math.nan

    @property
    def interval_holds_chance(self) -> bool:
        """Whether this is guessing of two classes, and the interval of the model's AUROC holds what
        guessing has.
        """
        is_ranked = self.constant and self.key == "auroc"
        return is_ranked and self.difference.low <= 0 <= self.difference.high

    @property
    def tested_difference(self) -> Interval:
        """The difference with limits of the level at which it is tested: they hold 0 where no
        difference is shown.

        Half-widths of the 95 % interval are scaled as those of a normal distribution, to 1 -
        `SIGNIFICANT` divided by what the correction multiplies p with; against the constant, whose
        test is one-sided, to 90 %. Where these limits and the test disagree on whether 0 is left
        out, they are those of the test (Miettinen 1976): of the normal distribution that has this
        p.
        """
        if self.interval_holds_chance or math.isnan(self.difference.low):
            return self.difference
        if math.isnan(self.corrected_p) or not self.corrected_p:
            return self.difference
        error = 2 * SIGNIFICANT if self.constant else SIGNIFICANT * self.p / self.corrected_p
        p = min(2 * self.p, 1.0) if self.constant else self.p
        deviation, value = NormalDist().inv_cdf, self.difference.value
        limits = np.array([self.difference.low, self.difference.high])
        low, high = value + (limits - value) * deviation(1 - error / 2) / deviation(0.975)
        if (low <= 0 <= high) != (self.corrected_p > SIGNIFICANT) and 0 < p < 1:
            half = abs(value) * deviation(1 - error / 2) / deviation(1 - p / 2)
            low, high = value - half, value + half
        # Of shares the difference is between -1 and 1.
        most = math.inf if self.key == "mae" else 1.0
        return Interval(value, max(float(low), -most), min(float(high), most))

    def loss(self, key: str = "") -> float:
        """The headline metric of the baseline, or that of `key`, so that less is better."""
        key = key or self.key
        return self.metrics[key].value * (1 if key in LOWER_IS_BETTER else -1)


def headline(labels: Sequence[str]) -> str:
    """Return the metric that decides: MAE, AUROC of two classes, accuracy of more."""
    return {0: "mae", 2: "auroc"}.get(len(labels), "accuracy")


def _p_of_gain(part: TargetPredictions, other: Array, difference: float, seed: int) -> float:
    """Return the one-sided p of the hypothesis that the model, with this `difference` of its
    headline metric, is no better than the constant `other`.

    Of two classes it is that of permuted labels; else half of the two-sided one, because swaps are
    symmetric.
    """
    key = headline(part.labels)
    if math.isnan(difference):
        return difference
    if key == "auroc":
        return permutation_p(part, seed)
    half = paired_p(part, other, key, seed) / 2
    return half if (difference < 0) == (key in LOWER_IS_BETTER) and difference else 1 - half


def _compare(
    predictions: TargetPredictions,
    baseline: Baseline,
    seed: int,
    repeats: int,
    resampled: dict[bytes, dict[str, Array]],
) -> Comparison | None:
    """Return one comparison; none where the two predict no sample in common.

    `resampled` keeps the resampled metrics of the model by the samples that they are of.
    """
    key, constant = headline(predictions.labels), baseline.constant
    in_both = predictions.has_both & metrics.has_prediction(baseline.predicted)
    if not in_both.any():
        return None
    part, predicted = predictions.at(in_both), baseline.predicted[in_both]
    if (samples := in_both.tobytes()) not in resampled:
        resampled[samples] = intervals.resample_metrics(part, seed, repeats)
    model_metrics = resampled[samples]
    baseline_part = replace(part, predicted=predicted)
    baseline_metrics = intervals.resample_metrics(baseline_part, seed, repeats)
    inflation = inflation_of_difference(part)
    baseline_intervals = intervals.intervals(baseline_part, baseline_metrics, seed)
    differences = model_metrics[key] - baseline_metrics[key]
    difference = intervals.interval(differences, part.group_count, inflation)
    if constant:
        p = _p_of_gain(part, predicted, difference.value, seed)
    else:
        p = paired_p(part, predicted, key, seed)
    if constant and key == "auroc":
        # A constant's AUROC is known, so that the difference is as sure as the model's AUROC.
        model = intervals.intervals(part, {key: model_metrics[key]}, seed)[key]
        chance = baseline_intervals[key].value
        baseline_intervals[key] = Interval(chance)
        difference = Interval(difference.value, model.low - chance, model.high - chance)
    return Comparison(
        name=baseline.name,
        trivial=baseline.trivial,
        constant=constant,
        samples=int(in_both.sum()),
        groups=part.group_count,
        key=key,
        metrics=baseline_intervals,
        model={name: float(values[0]) for name, values in model_metrics.items()},
        difference=difference,
        p=p,
    )


def compare_with_baselines(
    predictions: TargetPredictions, baselines: Sequence[Baseline], seed: int, repeats: int = 1000
) -> tuple[Comparison, ...]:
    """Compare each baseline with the model, with the rows of `predictions`; p is corrected for all
    but the constant.

    A baseline that predicts none of the samples is left out.
    """
    resampled: dict[bytes, dict[str, Array]] = {}
    results = [_compare(predictions, baseline, seed, repeats, resampled) for baseline in baselines]
    comparisons = [comparison for comparison in results if comparison is not None]
    corrected = holm([math.nan if each.constant else each.p for each in comparisons])
    return tuple(
        replace(comparison, corrected_p=comparison.p if comparison.constant else p)
        for comparison, p in zip(comparisons, corrected, strict=True)
    )


def tests_corrected_for(comparisons: Sequence[Comparison]) -> int:
    """Return the number of tests that each corrected p allows for."""
    return sum(not tested.constant and not math.isnan(tested.p) for tested in comparisons)


def full_baselines(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Baselines that predict the most samples, the one with the best headline metric first."""
    scored = [comparison for comparison in comparisons if not math.isnan(comparison.loss())]
    most = max((comparison.samples for comparison in scored), default=0)
    return sorted((full for full in scored if full.samples == most), key=Comparison.loss)


def share_of_gain(comparison: Comparison, constant: Comparison) -> float:
    """Share of the model's gain over the constant that the baseline reaches; NaN without a gain."""
    key = comparison.key
    start = constant.metrics[key].value
    gain = comparison.model[key] - start
    gains = gain < 0 if key in LOWER_IS_BETTER else gain > 0
    same = comparison.samples == constant.samples
    return (comparison.metrics[key].value - start) / gain if gains and same else math.nan


def best_constant(comparisons: Sequence[Comparison]) -> Comparison | None:
    """The guess with the best headline metric, which a model must beat to be better than guessing.

    With two classes all constants have the same AUROC, so accuracy decides.
    """
    constants = [comparison for comparison in comparisons if comparison.constant]

    def loss(guess: Comparison) -> float:
        return guess.loss("accuracy" if guess.key == "auroc" else "")

    return min(constants, key=loss, default=None)


def outcome(comparison: Comparison, constant: Comparison) -> Outcome:
    """Outcome of the model compared with a baseline; nothing is shown if the corrected p is above
    `SIGNIFICANT`, or the interval of the model's AUROC holds that of guessing.

    The one-sided p of the constant shows that the model is worse where it is near 1, by half of
    `SIGNIFICANT`.
    """
    p = comparison.corrected_p
    if math.isnan(p):
        return "untested"
    better = (comparison.difference.value < 0) == (comparison.key in LOWER_IS_BETTER)
    worse_p = 2 * (1 - p) if comparison.constant else p
    if (p if better else worse_p) > SIGNIFICANT or comparison.interval_holds_chance:
        return "not shown"
    if not better:
        return "worse"
    close = comparison.trivial and share_of_gain(comparison, constant) >= CLOSE_SHARE
    return "close" if close else "better"
