"""Tests of the difference between two predictions, and of ranks against chance, over groups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from aam.device.rng import generator
from aam.evaluate import metrics
from aam.evaluate.intervals import LEAST_GROUPS, WEIGHTS_AT_ONCE, inflation_of_difference
from aam.evaluate.predictions import TargetPredictions
from aam.typing import Array

# Up to this number of groups all swaps are tried; above, this number of random ones.
EXACT_GROUPS, RANDOM_SWAPS = 12, 1999

PERMUTATIONS = 1999

# Sums, and differences as a share of the largest, that are closer than this are equal but for
# rounding.
SUM_ROUNDING = 1e-10


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
    group, groups = predictions.resampling_units, predictions.group_count
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
    score = np.empty(size)
    for part in metrics.rows_by_level(fold):
        score[part] = rankdata(predictions.predicted[part, 1]) / (len(part) + 1) - 0.5
    unit, label, block = _exchangeable(truth, fold, predictions.resampling_units)
    unit_scores = np.bincount(unit, score)
    random, sums, at_once = generator(seed, "chance"), [], max(1, WEIGHTS_AT_ONCE // size)
    for start in range(0, repeats, at_once):
        keys = block + random.random((min(at_once, repeats - start), len(block)))
        sums.append(label[np.argsort(keys, axis=1)] @ unit_scores)
    permuted, observed = np.concatenate(sums), float(label @ unit_scores)
    excess = (observed - permuted.mean()) / inflation_of_difference(predictions)
    return float((1 + np.sum(permuted - permuted.mean() >= excess - SUM_ROUNDING)) / (1 + repeats))
