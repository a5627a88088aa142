"""Whether two classes are ranked better than by chance: labels permuted inside folds."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import rankdata

from aam.device.rng import generator
from aam.evaluate.bootstrap import LEAST_GROUPS, WEIGHTS_AT_ONCE, inflation_of_difference
from aam.evaluate.metrics import Array
from aam.evaluate.target_predictions import TargetPredictions

PERMUTATIONS = 1999

# Sums closer than this are equal but for rounding.
ROUNDING = 1e-10


def _exchangeable(truth: Array, fold: Array, group: Array) -> tuple[Array, Array, Array]:
    """Return the unit [N] of each sample, and label and block [U] of the units, which exchange labels inside a block.

    A group of one label, in its fold, is a unit that exchanges it with other such groups; samples of a group of
    several labels exchange them with each other.
    """
    cell = np.unique(fold * (group.max() + 1) + group, return_inverse=True)[1]
    positives, sizes = np.bincount(cell, truth), np.bincount(cell)
    mixed = ((positives > 0) & (positives < sizes))[cell]
    block = np.where(mixed, fold.max() + 1 + cell, fold)
    member = np.where(mixed, np.arange(len(truth)), len(truth) + cell)
    pairs = np.stack([block, member], axis=1)
    units, first, unit = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    return unit.ravel(), truth[first], units[:, 0]


def permutation_p(predictions: TargetPredictions, seed: int, permutations: int = PERMUTATIONS) -> float:
    """Return the one-sided p that positives rank no higher inside the folds than by chance.

    The statistic is the sum over folds of the ranks of the positives as shares of the fold, which weighs the AUROC of
    each fold by how sure it is (van Elteren 1960). Labels are permuted (Ojala and Garriga 2010, test 1), always inside
    the folds: those of whole groups where a group has one label, else inside the groups. Under cross-validation the
    models of two folds have each learned from the labels of the other, and permuting beside predictions that stay
    as they are gives sums too close to each other: what was seen then counts for less (`bootstrap.FOLD_INFLATION`).
    NaN below `LEAST_GROUPS` groups.

    Parameters
    ----------
    predictions : TargetPredictions
        Samples of two classes that all have a truth and a prediction.
    """
    if predictions.group_count < LEAST_GROUPS:
        return math.nan
    size, truth = len(predictions.truth), (predictions.truth == 1).astype(np.float64)
    folds = np.zeros(size) if predictions.fold is None else predictions.fold
    fold, group = (np.unique(of, return_inverse=True)[1] for of in (folds, predictions.resampling_units))
    score = np.empty(size)
    for level in range(fold.max() + 1):
        part = fold == level
        score[part] = rankdata(predictions.predicted[part, 1]) / (part.sum() + 1) - 0.5
    unit, label, block = _exchangeable(truth, fold, group)
    of_unit = np.bincount(unit, score)
    random, sums, at_once = generator(seed, "chance"), [], max(1, WEIGHTS_AT_ONCE // size)
    for start in range(0, permutations, at_once):
        keys = block + random.random((min(at_once, permutations - start), len(block)))
        sums.append(label[np.argsort(keys, axis=1)] @ of_unit)
    drawn = np.concatenate(sums)
    seen = (float(label @ of_unit) - drawn.mean()) / inflation_of_difference(predictions)
    return float((1 + np.sum(drawn - drawn.mean() >= seen - ROUNDING)) / (1 + permutations))
