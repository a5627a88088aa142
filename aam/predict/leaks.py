"""How well a column or the microbes tell a target, and whether a column is a copy of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import gammaln
from scipy.stats import norm, rankdata
from sklearn.dummy import DummyRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.cluster import contingency_matrix
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KernelCenterer

from aam.evaluate.intervals import FOLD_INFLATION
from aam.evaluate.metrics import auroc
from aam.predict.column_estimators import LevelMedian, ShallowTree, ShrunkenLevelMean
from aam.predict.column_kinds import has_role
from aam.predict.columns import MOST_LEVELS, Column
from aam.predict.estimator import MIN_SAMPLES
from aam.predict.members import PENALTY
from aam.predict.out_of_fold import Fold, out_of_fold
from aam.typing import Floats, Ints

# A column is named if the chance of a false alarm over all columns is at most `ALPHA`, and if it
# removes at least the share `LEAST_GAIN` of the error of guessing. One that removes nearly all of
# it, `SAME`, states the target itself.
ALPHA, LEAST_GAIN, SAME = 0.05, 0.2, 0.98
# Where only a larger share than `LARGEST_LIMIT` could be told from chance, absence is not said, and
# columns from the share `SUSPECT` on are listed.
LARGEST_LIMIT, SUSPECT = 0.8, 0.5

# Rank correlation with a number from which a column is a copy of it; share of pairs of samples of
# different levels whose order is that of the target; share of the samples of each level that have
# its most frequent class.
SAME_RANKS, SAME_ORDER, SAME_CLASS = 0.98, 0.995, 0.98

# Classes of fewer samples are not scored.
LEAST_OF_LEVEL = 5
# A class needs this number of groups in folds, an audit `LEAST_LEAK_UNITS` groups to say that
# nothing was seen.
LEAST_GROUPS_OF_CLASS, LEAST_LEAK_UNITS = 3, 10

# Dangers of a column, the worst first.
DANGERS = ("confounded", "same", "random split", "split", "part", "suspect", "prevented")

# Trees read float32.
LARGEST_NUMBER = 1e30


# --- predictions and their scores --------------------------------------------------------------


def predicted_by(column: Column, target: Floats, folds: Sequence[Fold]) -> Floats:
    """Target [N, K] of each fold, predicted from one column of the other folds.

    Whole numbers are read as levels too, and the better of both is taken. A missing value is a
    level, and the smallest number: an empty cell may tell the target.
    """
    has_numbers, predictions = bool(np.isfinite(column.numbers).any()), []
    if column.has_levels or not has_numbers:
        predictions.append(out_of_fold(ShrunkenLevelMean(), column.codes, target, folds))
    if has_numbers:
        numbers = np.clip(column.numbers, -LARGEST_NUMBER, LARGEST_NUMBER)
        filled = np.nan_to_num(numbers, nan=np.nanmin(numbers) - 1)
        predictions.append(out_of_fold(ShallowTree(), filled, target, folds))
    return min(predictions, key=lambda predicted: float(((target - predicted) ** 2).sum()))


def predicted_by_microbes(
    presence: sparse.csr_matrix, targets: Floats, folds: Sequence[Fold]
) -> Floats:
    """Targets [N, K] of each fold, predicted by a linear model of presence of the other folds."""
    common = presence[:, np.asarray(presence.sum(axis=0)).ravel() >= MIN_SAMPLES]
    kernel = np.asarray((common @ common.T).todense(), np.float64)
    variance = float(np.trace(KernelCenterer().fit_transform(kernel))) / len(kernel)
    kernel /= variance if variance > 1e-9 * np.diag(kernel).mean() else 1.0
    ridge = KernelRidge(alpha=PENALTY, kernel="precomputed")
    # A centred kernel predicts differences from the mean of the other folds.
    around = out_of_fold(make_pipeline(KernelCenterer(), ridge), kernel, targets, folds)
    return around + out_of_fold(DummyRegressor(), targets, targets, folds)


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


def scale_of(values: Floats) -> float:
    """Return a divisor of numbers whose squares would overflow, else 1."""
    largest = float(np.abs(values).max(initial=0))
    return largest if largest > LARGEST_NUMBER else 1.0


def scaled(values: Floats) -> Floats:
    """Return numbers divided by `scale_of` them."""
    return values / scale_of(values)


# --- copies of the target, and columns that cannot be told from it -------------------------------


def _can_be_chance(codes: Ints, others: Ints, units: Ints, tests: int) -> bool:
    """Whether levels of a column may decide others by chance in one of `tests` columns.

    Rows that are equal within a unit, such as a subject, count once.
    """
    rows = np.unique(np.stack([units, codes, others]), axis=1)
    rows = rows[:, rows[2] >= 0]
    sizes, levels = np.bincount(rows[2]), len(np.unique(codes))
    orders = gammaln(float(sizes.sum()) + 1) - gammaln(sizes + 1).sum()
    maps = levels * math.log(max(int((sizes > 0).sum()), 1))
    return bool(orders - maps < math.log(max(tests, 1) / ALPHA))


def share_decided(codes: Ints, others: Ints) -> float:
    """Return how well codes tell other codes: for each other code the share of its samples that the
    most frequent other code of each code finds; the mean of these shares.

    0 where fewer than four fifths of the samples have both.
    """
    both = (codes >= 0) & (others >= 0)
    if both.mean() < 0.8:
        return 0.0
    counts = contingency_matrix(codes[both], others[both])
    right = np.bincount(counts.argmax(axis=1), counts.max(axis=1), counts.shape[1])
    return float((right / counts.sum(axis=0)).mean())


def _ranks_agree(numbers: Floats, target: Floats, folds: Sequence[Fold]) -> bool:
    """Whether numbers rank samples of each fold as the target does, in the direction of the other
    folds.
    """
    both = np.isfinite(numbers) & np.isfinite(target)
    if both.sum() < LEAST_OF_LEVEL + 3 or both.mean() < 0.5:
        return False
    ranks, goal = np.full((2, len(both)), np.nan)
    ranks[both], goal[both] = rankdata(numbers[both]), rankdata(target[both])
    if min(np.ptp(ranks[both]), np.ptp(goal[both])) == 0:
        return False
    rho = float(np.corrcoef(ranks[both], goal[both])[0, 1])
    directions = set[float]()
    for train, test in folds:
        rows = train[both[train]]
        if both[test].any():
            covariance = np.cov(ranks[rows], goal[rows])[0, 1] if len(rows) > 1 else 0.0
            directions.add(float(np.sign(covariance)))
    return abs(rho) >= SAME_RANKS and directions == {np.sign(rho)}


def _order_agrees(codes: Ints, target: Floats, folds: Sequence[Fold]) -> bool:
    """Whether levels are an ordered cut of the target: samples of different levels lie in the order
    of the medians of their levels in the other folds.
    """
    medians = out_of_fold(LevelMedian(), codes, target, folds)
    rows = np.flatnonzero(np.isfinite(medians) & np.isfinite(target) & (codes >= 0))
    if len(rows) < 0.8 * len(codes) or len(np.unique(codes[rows])) < 2:
        return False
    level_medians, values = medians[rows], target[rows]
    apart = np.sign(level_medians[:, None] - level_medians) * (codes[rows][:, None] != codes[rows])
    agreed = apart * np.sign(values[:, None] - values)
    return float((agreed > 0).sum()) >= SAME_ORDER * float((apart != 0).sum()) > 0


# --- what a column is judged by ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Design:
    """What every column of an audit is judged by; N samples, K classes (1 for numbers).

    Attributes
    ----------
    goal : Column
        The target.
    classes : bool
        Whether it is predicted as classes.
    random, split : sequence of Fold
        The folds of a random split, and of that of `aam train`.
    units : int64 [N]
        The group of each sample.
    tests : int
        Number of columns and parts that are judged together.
    group, fold : str, optional
        The column of the groups that count, and the one whose values the user holds out.
    has_option : bool
        Whether an option of the user divides the samples.
    """

    goal: Column
    classes: bool
    random: Sequence[Fold]
    split: Sequence[Fold]
    units: Ints
    tests: int
    group: str | None
    fold: str | None
    has_option: bool

    @cached_property
    def truth(self) -> Floats:
        """The target as numbers [N, 1] or indicators of classes [N, K], divided by `scale`."""
        return scaled(self.goal.indicators(self.classes))

    @cached_property
    def scale(self) -> float:
        """A divisor of the target."""
        return scale_of(self.goal.indicators(self.classes))

    @cached_property
    def noticeable(self) -> float:
        """Gain above which a column would be named; infinite with too few groups or folds."""
        folds, groups = len(self.split), len(np.unique(self.units))
        if folds < LEAST_GROUPS_OF_CLASS or groups < LEAST_LEAK_UNITS:
            return np.inf
        perfect = score(self.truth, self.truth, self.units, self.tests)
        return perfect.gain - perfect.low

    def is_copy(self, column: Column) -> bool:
        """Whether a column states the target in other words: another unit, a cut, other codes."""
        kinds = {"biology", self.goal.kind} if self.classes else {"biology", "time", self.goal.kind}
        if column.kind not in kinds or not column.varies or column.is_id:
            return False
        return self._is_copy_of_class(column) if self.classes else self._is_copy_of_number(column)

    def _has_few_levels(self, column: Column) -> bool:
        return column.is_repeated and column.levels <= min(MOST_LEVELS, len(column.codes) // 4)

    def _is_copy_of_number(self, column: Column) -> bool:
        """Whether a column is the target in another unit or direction, or cut into levels."""
        numbers, codes = self.goal.numbers, column.codes
        if _ranks_agree(column.numbers, numbers, self.random):
            return True
        if not self._has_few_levels(column) or not column.has_levels:
            return False
        is_cut = _order_agrees(codes, numbers, self.random)
        return is_cut and not _can_be_chance(codes, codes, self.units, self.tests)

    def _is_copy_of_class(self, column: Column) -> bool:
        """Whether a column has other codes for the classes, finer or coarser ones."""
        goal, codes = self.goal, column.codes
        if not self._has_few_levels(column):
            return False
        decides_goal = share_decided(codes, goal.codes) >= SAME_CLASS
        is_decided = share_decided(goal.codes, codes) >= SAME_CLASS
        # One-to-one codes are no property of subjects, so that each sample counts.
        units = np.arange(len(codes)) if decides_goal and is_decided else self.units
        if decides_goal and not _can_be_chance(codes, goal.codes, units, self.tests):
            return True
        if goal.kind == "identity" or not 2 < goal.levels <= len(codes) // LEAST_OF_LEVEL:
            return False
        return is_decided and not _can_be_chance(goal.codes, codes, self.units, self.tests)

    def is_confounded(self, column: Column) -> bool:
        """Whether each of a few studies, plates, days or subjects has one value of the target."""
        kinds = {"technical", "identity", *(["time"] if self.classes else [])}
        kinds -= {self.goal.kind} - {"identity"}
        if column.kind not in kinds or not column.is_repeated or has_role(column, "folds"):
            return False
        if not (column.has_levels or column.form == "date"):
            return False
        if 2 * column.levels > len(column.codes) or not self.is_decided_by(column):
            return False
        if not self.classes:
            return column.levels < 2 * LEAST_GROUPS_OF_CLASS
        # Classes with enough levels of their own can be told from the column.
        pairs = pd.DataFrame({"level": column.codes, "goal": self.goal.codes})
        counts = pairs[(pairs >= 0).all(axis=1)].value_counts().reset_index()
        levels_of_class = counts.drop_duplicates("level")["goal"].value_counts()
        return int((levels_of_class >= LEAST_GROUPS_OF_CLASS).sum()) < 2

    def is_decided_by(self, column: Column) -> bool:
        """Whether each level of a column has one class, or nearly one number, of the target."""
        if self.classes:
            return share_decided(column.codes, self.goal.codes) >= SAME_CLASS
        target = pd.Series(self.goal.numbers)
        left = (target - target.groupby(column.codes).transform("median")).abs().mean()
        return bool(left <= (1 - SAME) * (target - target.median()).abs().mean())

    def score(self, predicted: Floats) -> Score:
        """Judge predictions [N, K] of the target."""
        result = score(self.truth, predicted, self.units, self.tests)
        return result._replace(value=result.value * self.scale)

    def scores(self, column: Column) -> tuple[Score, Score]:
        """Judge a column on the random split and on that of `aam train`."""
        random = self.score(predicted_by(column, self.truth, self.random))
        if self.split is self.random:
            return random, random
        return random, self.score(predicted_by(column, self.truth, self.split))

    def danger(self, column: Column, random: Score, split: Score) -> str:
        """Return the danger of a column with its scores on both splits, one of `DANGERS` or ''."""
        if self.is_confounded(column):
            return "confounded"
        if self.is_copy(column):
            return "same"
        has_few_units = self.noticeable > LARGEST_LIMIT
        if column.name == self.group and not self.has_option:
            is_suspect = has_few_units and random.gain >= SUSPECT
            return "random split" if random.alarms or is_suspect else ""
        if split.alarms:
            is_exact = split.gain >= SAME and column.kind == "biology" and not column.is_id
            return "same" if is_exact else "split"
        if has_few_units and (split.gain >= SUSPECT or self._decides_unscored(column, split)):
            return "suspect"
        return "prevented" if random.alarms else ""

    def _decides_unscored(self, column: Column, split: Score) -> bool:
        """Whether repeated levels have one class each, where no class can be scored."""
        if not self.classes or not np.isnan(split.value) or not column.has_levels:
            return False
        return 2 * column.levels <= len(column.codes) and self.is_decided_by(column)
