"""How well a column or the microbes tell a target, and whether it can be told from the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.stats import norm, spearmanr
from sklearn.metrics.cluster import contingency_matrix
from sklearn.tree import DecisionTreeRegressor

from aam.data.columns import Column
from aam.evaluate.intervals import FOLD_INFLATION
from aam.evaluate.metrics import auroc
from aam.predict.column_estimators import ShrunkenLevelMean
from aam.predict.estimator import MIN_SAMPLES
from aam.predict.members import PENALTY, RidgePath, joint_kernel
from aam.predict.out_of_fold import Fold, out_of_fold
from aam.typing import Floats, Ints

# A column is named if the chance of a false alarm over all columns is at most `ALPHA`, and if it
# removes at least the share `LEAST_GAIN` of the error of guessing.
ALPHA, LEAST_GAIN = 0.05, 0.2
# Rank correlation with a number from which a column is a copy of it; share of pairs of samples of
# different levels whose order is that of the target; share of the samples of each level that have
# its most frequent class.
SAME_RANKS, SAME_ORDER, SAME_CLASS = 0.98, 0.995, 0.98
# Classes of fewer samples are not scored; fewer samples with both values are no copy.
LEAST_OF_LEVEL, LEAST_OF_COPY = 5, 8
# A class needs this number of values of its own.
LEAST_GROUPS_OF_CLASS = 3
# Leaves of a tree hold at least this number of samples, and a share of a fiftieth.
LEAST_OF_LEAF, LEAVES = 5, 50


# --- predictions and their scores --------------------------------------------------------------


def indicators(column: Column, classes: bool = False) -> Floats:
    """Numbers [N, 1], or indicators of levels [N, K]; missing values are the median, or 0."""
    if classes or not column.is_number:
        return np.asarray(column.codes[:, None] == np.arange(column.levels), np.float64)
    return np.nan_to_num(column.numbers, nan=float(np.nanmedian(column.numbers)))[:, None]


def predicted_by(column: Column, target: Floats, folds: Sequence[Fold]) -> Floats:
    """Target [N, K] of each fold, predicted from one column of the other folds.

    Whole numbers are read as levels too, and the better of both is taken. A missing value is a
    level, and the smallest number: an empty cell may tell the target.
    """
    predictions, present = [], column.numbers[np.isfinite(column.numbers)]
    if not (present % 1).any():
        predictions.append(out_of_fold(ShrunkenLevelMean(), column.codes, target, folds))
    if len(present):
        filled = np.nan_to_num(column.numbers, nan=present.min() - 1)[:, None]
        leaf = max(LEAST_OF_LEAF, len(target) // LEAVES)
        tree = DecisionTreeRegressor(max_depth=3, min_samples_leaf=leaf, random_state=0)
        predictions.append(out_of_fold(tree, filled, target, folds).reshape(target.shape))
    return min(predictions, key=lambda predicted: float(((target - predicted) ** 2).sum()))


def predicted_by_microbes(
    presence: sparse.csr_matrix, targets: Floats, folds: Sequence[Fold]
) -> Floats:
    """Targets [N, K] of each fold, predicted by a linear model of presence of the other folds."""
    common = presence[:, np.asarray(presence.sum(axis=0)).ravel() >= MIN_SAMPLES]
    kernel, *_ = joint_kernel([common.astype(np.float64)], np.zeros((len(targets), 0)))
    ridge, weights = RidgePath(np.array([PENALTY])), np.ones(len(targets))
    return out_of_fold(ridge, kernel, targets, folds, sample_weight=weights)[:, 0]


class Score(NamedTuple):
    """AUROC of `classes`, or mean absolute error of numbers, with the share of the error of
    guessing that is removed, and its simultaneous lower limit.
    """

    value: float = np.nan
    gain: float = 0.0
    low: float = -np.inf

    @property
    def alarms(self) -> bool:
        """Whether the target is predicted better than by chance, and by enough."""
        return self.low > 0 and self.gain >= LEAST_GAIN


def score(truth: Floats, predicted: Floats, units: Ints, tests: int) -> Score:
    """Judge predictions [N, K] of numbers [N, 1] or of indicators of classes [N, K].

    The limit counts `units`, groups of samples, and holds for `tests` tests together. That of an
    AUROC has the variance of the rank sum test (Mann and Whitney 1947), that of numbers is normal.
    Both are wider by `FOLD_INFLATION`, as each pair of folds learns from the same samples.
    """
    z = FOLD_INFLATION * float(norm.ppf(1 - ALPHA / max(tests, 1)))
    if truth.shape[1] == 1:
        away = np.abs(truth[:, 0] - np.median(truth))
        guess = max(float(away.mean()), 1e-12)
        saved = away - np.abs(truth[:, 0] - predicted[:, 0])
        unit_gains = np.bincount(units, saved) / np.bincount(units)
        spread = unit_gains.std(ddof=1) if len(unit_gains) > 1 else np.inf
        gain = float(saved.mean()) / guess
        low = gain - z * spread / len(unit_gains) ** 0.5 / guess
        return Score(guess * (1 - gain), gain, low)
    areas = []
    for positive, class_score in zip(truth.T > 0, predicted.T, strict=True):
        if min(positive.sum(), (~positive).sum()) >= LEAST_OF_LEVEL:
            m, n = len(np.unique(units[positive])), len(np.unique(units[~positive]))
            deviation = ((m + n + 1) / (12 * m * n)) ** 0.5
            areas.append((auroc(positive, class_score), deviation, positive.sum()))
    if not areas:
        return Score()
    values, deviations, sizes = np.array(areas).T
    area = float(np.average(values, weights=sizes))
    gain, limit = 2 * area - 1, 2 * z * float(np.average(deviations, weights=sizes))
    return Score(area, gain, gain - limit)


# --- columns that cannot be told from the target -------------------------------------------------


def share_decided(codes: Ints, others: Ints) -> float:
    """Return how well codes tell other codes: for each other code the share of its samples that the
    most frequent other code of each code finds; the mean of these shares, over samples with both.
    """
    both = (codes >= 0) & (others >= 0)
    if not both.any():
        return np.nan
    counts = contingency_matrix(codes[both], others[both])
    right = np.bincount(counts.argmax(axis=1), counts.max(axis=1), counts.shape[1])
    return float((right / counts.sum(axis=0)).mean())


def is_copy_of_number(column: Column, target: Floats) -> bool:
    """Whether a column is monotone with numbers [N], or cuts them into levels."""
    both = (column.codes >= 0) & np.isfinite(target)
    codes, values = column.codes[both], target[both]
    levels = np.unique(codes)
    if both.sum() < LEAST_OF_COPY or len(levels) < 2 or len(levels) > len(np.unique(values)):
        return False
    if column.is_number:
        ranks = spearmanr(column.numbers[both], values).statistic
        if abs(ranks) >= SAME_RANKS:
            return True
    if 4 * len(levels) > len(codes) or np.sort(np.bincount(codes))[-2] < LEAST_OF_LEVEL:
        return False
    medians = pd.Series(values).groupby(codes).transform("median").to_numpy()
    apart = np.sign(medians[:, None] - medians) * (codes[:, None] != codes)
    agreed = apart * np.sign(values[:, None] - values)
    return bool((agreed > 0).sum() >= SAME_ORDER * (apart != 0).sum() > 0)


def is_confounded(column: Column, goal: Column) -> bool:
    """Whether each repeated value of a column has one class, and fewer than two classes have enough
    values of their own to be told from them.
    """
    both = (column.codes >= 0) & (goal.codes >= 0)
    if 2 * both.sum() < len(both) or 2 * column.levels > column.samples:
        return False
    if not share_decided(column.codes, goal.codes) >= SAME_CLASS:
        return False
    levels_of_class = (contingency_matrix(column.codes[both], goal.codes[both]) > 0).sum(axis=0)
    return int((levels_of_class >= LEAST_GROUPS_OF_CLASS).sum()) < 2
