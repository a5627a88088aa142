"""Paired tests of two predictions that swap whole groups, and the correction for several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aam.device.rng import generator
from aam.evaluate import metrics
from aam.evaluate.bootstrap import LEAST_GROUPS, WEIGHTS_AT_ONCE, inflation_of_difference
from aam.evaluate.metrics import Array
from aam.evaluate.target_predictions import TargetPredictions

# Up to so many groups all swaps are tried; above, so many random ones.
EXACT_GROUPS = 12
RANDOM_SWAPS = 1999

# With so many groups the smallest exact p is far below what random swaps can give.
FLOORED_GROUPS = 60

# Differences closer than this share of the largest are equal but for rounding.
ROUNDING = 1e-10


def smallest_p(groups: int, inflation: float = 1.0) -> float:
    """Return the smallest two-sided p that the test of so many groups can give; NaN below `LEAST_GROUPS`.

    With an `inflation` of the difference by folds, that of as many groups of one difference, and others of none, as
    give the smallest.
    """
    if groups < LEAST_GROUPS:
        return float("nan")
    exact = min(
        # Of m equal differences so many may be swapped while their sum stays at least m / inflation.
        math.ldexp(sum(math.comb(m, swapped) for swapped in range(int(m * (1 - 1 / inflation) / 2) + 1)), 1 - m)
        for m in range(LEAST_GROUPS, min(groups, FLOORED_GROUPS) + 1)
    )
    return exact if groups <= EXACT_GROUPS else max(exact, 1 / (RANDOM_SWAPS + 1))


def _signs(groups: int, seed: int) -> Array:
    """Return +1 (as it is) or -1 (swapped) for each group, [R, groups]; the first row swaps nothing."""
    if groups <= EXACT_GROUPS:
        # The mirror image of each pattern gives the opposite difference, so that half of them suffice.
        codes = np.arange(2 ** (groups - 1))[:, None] >> np.arange(groups)
        return 1.0 - 2.0 * (codes & 1)
    random = generator(seed, "paired test").integers(2, size=(RANDOM_SWAPS, groups))
    return np.concatenate([np.ones((1, groups)), 1.0 - 2.0 * random])


def _additive_differences(predictions: TargetPredictions, other: Array, group: Array, signs: Array) -> Array:
    """Return the difference of MAE or accuracy under each row of signs, [R]."""
    truth = predictions.truth
    if predictions.labels:
        score = [(p.argmax(axis=1) == truth).astype(np.float64) for p in (predictions.predicted, other)]
    else:
        score = [np.abs(p - truth) for p in (predictions.predicted, other)]
    by_group = np.bincount(group, weights=score[0] - score[1], minlength=signs.shape[1])
    return np.asarray(signs @ by_group / len(truth))


def _ranks(score: Array, fold: Array, group: Array) -> Array:
    """Return ranks of scores [N] inside their fold, as shares of it, so that two predictions have one scale.

    Each group counts as one in these shares: by samples, the rank of a group that has half of all samples depends
    most on itself, and its swap is no longer that of equals.
    """
    ranks, weight = np.empty(len(score)), (1 / np.bincount(group))[group]
    for level in np.unique(fold):
        part = fold == level
        _, place = np.unique(score[part], return_inverse=True)
        held = np.bincount(place, weight[part])
        ranks[part] = ((np.cumsum(held) - held / 2) / held.sum())[place]
    return ranks


def _auroc_differences(predictions: TargetPredictions, other: Array, group: Array, signs: Array) -> Array:
    """Return the difference of AUROC under each row of signs, [R], after ranking (Venkatraman and Begg 1996)."""
    truth = predictions.truth
    fold = np.zeros(len(truth)) if predictions.fold is None else predictions.fold
    scores = np.concatenate([_ranks(values[:, 1], fold, group) for values in (predictions.predicted, other)])
    measure = metrics.by_fold(metrics.weighted_auroc, np.tile(fold, 2), pooled=False)
    both = np.tile(truth == 1, 2)
    differences = []
    at_once = max(1, WEIGHTS_AT_ONCE // (2 * len(truth)))
    for start in range(0, len(signs), at_once):
        kept = (signs[start : start + at_once, group] + 1) / 2
        model, baseline = (
            measure(both, scores, np.concatenate(weights, axis=1))["auroc"]
            for weights in ((kept, 1 - kept), (1 - kept, kept))
        )
        differences.append(model - baseline)
    return np.concatenate(differences)


def paired_p(predictions: TargetPredictions, other: Array, key: str, seed: int) -> float:
    """Return the two-sided p of the difference between two predictions of the same samples in one metric.

    If they are equally good, swapping model and baseline in any of the groups gives as likely a difference. All swaps
    are tried up to `EXACT_GROUPS` groups, else `RANDOM_SWAPS` random ones. A swap whose metric is undefined counts
    as one at least as large as what was seen. Under cross-validation what was seen counts for less, because the models
    of the folds share samples (`bootstrap.FOLD_INFLATION`). NaN below `LEAST_GROUPS` groups.

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
        return float("nan")
    differences_of = _auroc_differences if key == "auroc" else _additive_differences
    differences = np.abs(differences_of(predictions, other, group, _signs(groups, seed)))
    if np.isnan(differences[0]):
        return float("nan")
    seen = differences[0] / inflation_of_difference(predictions)
    least = seen - ROUNDING * np.nanmax(differences, initial=0.0)
    return float(np.mean(np.isnan(differences) | (differences >= least)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p corrected for all tests of the list (Holm 1979), in its order; NaN stays and does not count."""
    p = np.array(p_values, np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    corrected = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    p[order] = np.minimum(corrected, 1.0)
    return [float(value) for value in p]
