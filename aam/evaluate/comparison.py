"""The model compared with baselines: metrics of the samples that both predict, and tests of their
difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from aam.device.rng import generator
from aam.evaluate import intervals, metrics
from aam.evaluate.intervals import LEAST_GROUPS, WEIGHTS_AT_ONCE, Interval, inflation_of_difference
from aam.evaluate.metrics import LOWER_IS_BETTER
from aam.evaluate.predictions import TargetPredictions
from aam.typing import Array

MEDIAN, MAJORITY = "the training median", "the majority class"

# Of the evaluated samples, where a model that learned from others is judged on them.
OWN_MEDIAN, OWN_MAJORITY = "the median of these samples", "the majority class of these samples"

CONSTANTS = (MEDIAN, MAJORITY, OWN_MEDIAN, OWN_MAJORITY)

DEPTH, RICHNESS = "depth alone", "richness alone"

DEPTH_AND_RICHNESS, COVARIATES = "depth and richness alone", "covariates alone"

# Up to this number of groups all swaps are tried; above, this number of random ones.
EXACT_GROUPS, RANDOM_SWAPS = 12, 1999

PERMUTATIONS = 1999

# Sums, and differences as a share of the largest, that are closer than this are equal but for
# rounding.
SUM_ROUNDING = 1e-10

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


# --- paired tests ------------------------------------------------------------------------------


def _signs(groups: int, seed: int) -> Array:
    """Return +1 (kept) or -1 (swapped) for each group, [R, groups]; the first row swaps
    nothing.
    """
    if groups <= EXACT_GROUPS:
        # The mirror image of each pattern gives the opposite difference, so that half of them
        # suffice.
        codes = np.arange(2 ** (groups - 1))[:, None] >> np.arange(groups)
        return 1.0 - 2.0 * (codes & 1)
    random = generator(seed, "paired test").integers(2, size=(RANDOM_SWAPS, groups))
    return np.concatenate([np.ones((1, groups)), 1.0 - 2.0 * random])


def _additive_differences(
    predictions: TargetPredictions, other: Array, group: Array, signs: Array
) -> Array:
    """Return the difference of MAE or accuracy under each row of signs, [R]."""
    truth, both = predictions.truth, (predictions.predicted, other)
    if predictions.labels:
        model, baseline = ((values.argmax(axis=1) == truth).astype(np.float64) for values in both)
    else:
        model, baseline = (np.abs(values - truth) for values in both)
    by_group = np.bincount(group, weights=model - baseline, minlength=signs.shape[1])
    return np.asarray(signs @ by_group / len(truth))


def _ranks(score: Array, fold: Array, group: Array) -> Array:
    """Return ranks of scores [N] inside their fold, as shares of it, so that two predictions have
    one scale.

    Each group counts as one in these shares: by samples, the rank of a group that has half of all
    samples depends most on itself, and its swap is no longer that of equals.
    """
    ranks, weight = np.empty(len(score)), (1 / np.bincount(group))[group]
    for part in metrics.rows_by_level(fold):
        _, place = np.unique(score[part], return_inverse=True)
        held = np.bincount(place, weight[part])
        ranks[part] = ((np.cumsum(held) - held / 2) / held.sum())[place]
    return ranks


def _auroc_differences(
    predictions: TargetPredictions, other: Array, group: Array, signs: Array
) -> Array:
    """Return the difference of AUROC under each row of signs, [R], after ranking (Venkatraman and
    Begg 1996): the mean over the folds with both classes, weighted by their samples.
    """
    fold, positive = predictions.folds, predictions.truth == 1
    ranks = [_ranks(values[:, 1], fold, group) for values in (predictions.predicted, other)]
    parts = [part for part in metrics.rows_by_level(fold) if 0 < positive[part].mean() < 1]
    if not parts:
        return np.full(len(signs), math.nan)
    total = sum(map(len, parts))
    differences, at_once = np.zeros(len(signs)), max(1, WEIGHTS_AT_ONCE // (2 * len(positive)))
    for part in parts:
        both, scores = np.tile(positive[part], 2), np.concatenate([rank[part] for rank in ranks])
        for start in range(0, len(signs), at_once):
            rows = slice(start, start + at_once)
            kept = (signs[rows, group[part]] + 1) / 2
            model = metrics.weighted_auroc(both, scores, np.hstack([kept, 1 - kept]))
            baseline = metrics.weighted_auroc(both, scores, np.hstack([1 - kept, kept]))
            differences[rows] += (model - baseline) * len(part) / total
    return differences


def paired_p(predictions: TargetPredictions, other: Array, key: str, seed: int) -> float:
    """Return the two-sided p of the difference between two predictions of the same samples in one
    metric.

    If they are equally good, swapping model and baseline in any of the groups gives as likely a
    difference. All swaps are tried up to `EXACT_GROUPS` groups, else `RANDOM_SWAPS` random ones. A
    swap whose metric is undefined counts as one at least as large as the observed one. Under
    cross-validation the observed difference counts for less, because the models of the folds share
    samples (`intervals.FOLD_INFLATION`). NaN below `LEAST_GROUPS` groups.

    Parameters
    ----------
    predictions : TargetPredictions
        Samples that all have a truth and a prediction.
    other : float [N] or [N, K]
        The other prediction of them.
    key : {"mae", "accuracy", "auroc"}
    """
    _, group = np.unique(predictions.resampling_units, return_inverse=True)
    groups = int(group.max(initial=-1)) + 1
    if groups < LEAST_GROUPS:
        return math.nan
    differences_of = _auroc_differences if key == "auroc" else _additive_differences
    differences = np.abs(differences_of(predictions, other, group, _signs(groups, seed)))
    if np.isnan(differences[0]):
        return math.nan
    observed = differences[0] / inflation_of_difference(predictions)
    least = observed - SUM_ROUNDING * np.nanmax(differences)
    return float(np.mean(np.isnan(differences) | (differences >= least)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p corrected for all tests of the list (Holm 1979), in its order; NaN stays and does
    not count.
    """
    p = np.array(p_values, np.float64)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]
    corrected = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    p[order] = np.minimum(corrected, 1.0)
    return [float(value) for value in p]


def _exchangeable(truth: Array, fold: Array, group: Array) -> tuple[Array, Array, Array]:
    """Return the unit [N] of each sample, and label and block [U] of the units, which exchange
    labels inside a block.

    A group of one label, in its fold, is a unit that exchanges it with other such groups; samples
    of a group of several labels exchange them with each other.
    """
    cell = np.unique(fold * (group.max() + 1) + group, return_inverse=True)[1]
    positives, sizes = np.bincount(cell, truth), np.bincount(cell)
    mixed = ((positives > 0) & (positives < sizes))[cell]
    block = np.where(mixed, fold.max() + 1 + cell, fold)
    member = np.where(mixed, np.arange(len(truth)), len(truth) + cell)
    pairs = np.stack([block, member], axis=1)
    units, first, unit = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    return unit.ravel(), truth[first], units[:, 0]


def permutation_p(predictions: TargetPredictions, seed: int, repeats: int = PERMUTATIONS) -> float:
    """Return the one-sided p that positives rank no higher inside the folds than by chance.

    The statistic is the sum over folds of the ranks of the positives as shares of the fold, which
    weighs the AUROC of each fold by how sure it is (van Elteren 1960). Labels are permuted (Ojala
    and Garriga 2010, test 1), always inside the folds: those of whole groups where a group has one
    label, else inside the groups. Under cross-validation the models of two folds have each learned
    from the labels of the other, and permuting labels with fixed predictions gives sums
    too close to each other: the observed sum then counts for less (`intervals.FOLD_INFLATION`). NaN
    below `LEAST_GROUPS` groups.

    Parameters
    ----------
    predictions : TargetPredictions
        Samples of two classes that all have a truth and a prediction.
    """
    if predictions.group_count < LEAST_GROUPS:
        return math.nan
    size, truth = len(predictions.truth), (predictions.truth == 1).astype(np.float64)
    fold = np.unique(predictions.folds, return_inverse=True)[1]
    group = np.unique(predictions.resampling_units, return_inverse=True)[1]
    score = np.empty(size)
    for level in range(fold.max() + 1):
        part = fold == level
        score[part] = rankdata(predictions.predicted[part, 1]) / (part.sum() + 1) - 0.5
    unit, label, block = _exchangeable(truth, fold, group)
    unit_scores = np.bincount(unit, score)
    random, sums, at_once = generator(seed, "chance"), [], max(1, WEIGHTS_AT_ONCE // size)
    for start in range(0, repeats, at_once):
        keys = block + random.random((min(at_once, repeats - start), len(block)))
        sums.append(label[np.argsort(keys, axis=1)] @ unit_scores)
    permuted, observed = np.concatenate(sums), float(label @ unit_scores)
    excess = (observed - permuted.mean()) / inflation_of_difference(predictions)
    return float((1 + np.sum(permuted - permuted.mean() >= excess - SUM_ROUNDING)) / (1 + repeats))


# --- comparisons -------------------------------------------------------------------------------


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
    def tested_difference(self) -> Interval:
        """The difference with limits of the level at which it is tested: they hold 0 where no
        difference is shown.

        Half-widths of the 95 % interval are scaled as those of a normal distribution, to 1 -
        `SIGNIFICANT` divided by what the correction multiplies p with; against the constant, whose
        test is one-sided, to 90 %. Where these limits and the test disagree on whether 0 is left
        out, they are those of the test (Miettinen 1976): of the normal distribution that has this
        p.
        """
        if math.isnan(self.corrected_p) or math.isnan(self.difference.low) or not self.corrected_p:
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
    `SIGNIFICANT`.

    The one-sided p of the constant shows that the model is worse where it is near 1, by half of
    `SIGNIFICANT`.
    """
    p = comparison.corrected_p
    if math.isnan(p):
        return "untested"
    better = (comparison.difference.value < 0) == (comparison.key in LOWER_IS_BETTER)
    worse_p = 2 * (1 - p) if comparison.constant else p
    if (p if better else worse_p) > SIGNIFICANT:
        return "not shown"
    if not better:
        return "worse"
    close = comparison.trivial and share_of_gain(comparison, constant) >= CLOSE_SHARE
    return "close" if close else "better"
