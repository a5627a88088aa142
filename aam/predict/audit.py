"""Audit: how well each metadata column predicts a target without microbes, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.special import gammaln
from scipy.stats import norm, rankdata
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.cluster import contingency_matrix
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KernelCenterer
from sklearn.tree import DecisionTreeRegressor

from aam.config import ColumnKind
from aam.data.splits import kfold, nearly_identical
from aam.data.study import Study
from aam.data.table import select_samples
from aam.device.rng import generator
from aam.evaluate.intervals import FOLD_INFLATION
from aam.evaluate.metrics import auroc
from aam.io.metadata import Metadata
from aam.options import not_none
from aam.predict.columns import (
    MOST_LEVELS,
    STUDY_WORDS,
    Column,
    Overview,
    is_equal,
    is_named,
    is_nested,
    make_column,
    overview,
    parts_of,
    read_column,
)
from aam.predict.estimator import MIN_SAMPLES
from aam.predict.members import PENALTY
from aam.predict.prediction import presence_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FOLDS = 5

# A column is named if the chance of a false alarm over all columns is at most 5 %, and if it
# removes at least this share of the error of guessing; one that removes nearly all states the
# target itself. Where only a larger share than `LARGEST_LIMIT` could be told from chance, absence
# is not said, and columns from `SUSPECT` on are listed.
ALPHA, LEAST_GAIN, SAME, LARGEST_LIMIT, SUSPECT = 0.05, 0.2, 0.98, 0.8, 0.5

# Rank correlation with a number from which a column is a copy of it; share of pairs of samples of
# different levels whose order is that of the target; share of the samples of each level that have
# its most frequent class.
SAME_RANKS, SAME_ORDER, SAME_CLASS = 0.98, 0.995, 0.98

# Classes of fewer samples are not scored, and leaves of trees are not smaller. The kernel of
# `MOST_SAMPLES` takes a second. A class needs this number of groups in folds, an audit this
# number of groups to say that nothing was seen.
LEAST_OF_LEVEL, MOST_SAMPLES, LEAST_GROUPS_OF_CLASS, LEAST_UNITS = 5, 1500, 3, 10

MOST_COVARIATES = 5

# Dangers of a column, the worst first, and what a column is that is not judged.
DANGERS = ("confounded", "same", "random split", "split", "part", "suspect", "prevented")
STATES = ("", "id", "constant", "empty")

# Trees read float32.
LARGEST = 1e30

DEPTH, RICHNESS = "sequencing depth", "richness"


# --- predictions and their scores --------------------------------------------------------------


def _by_level(codes: Ints, target: Floats, fold: Ints) -> Floats:
    """Target [N, K] of each fold: the mean of the same code in the other folds, shrunken to their
    mean.

    Missing values, -1, are a level: an empty cell may tell the target.
    """
    shape = fold.max() + 1, codes.max() + 2
    sums, sizes = np.zeros((*shape, target.shape[1])), np.zeros((*shape, 1))
    np.add.at(sums, (fold, codes), target)
    np.add.at(sizes, (fold, codes), 1)
    sums, sizes = sums.sum(axis=0) - sums, sizes.sum(axis=0) - sizes
    mean = sums.sum(axis=1, keepdims=True) / sizes.sum(axis=1, keepdims=True)
    return np.asarray(((sums + mean) / (sizes + 1))[fold, codes])


def _by_tree(numbers: Floats, target: Floats, fold: Ints) -> Floats:
    """Target [N, K] of each fold, predicted by a tree of depth 3 on numbers of the other folds."""
    numbers = np.clip(numbers, -LARGEST, LARGEST)
    filled = np.nan_to_num(numbers, nan=np.nanmin(numbers) - 1)[:, None]
    predicted = np.empty_like(target)
    for train, test in PredefinedSplit(fold).split():
        leaf = max(LEAST_OF_LEVEL, len(train) // 50)
        tree = DecisionTreeRegressor(max_depth=3, min_samples_leaf=leaf, random_state=0)
        of_test = tree.fit(filled[train], target[train]).predict(filled[test])
        predicted[test] = of_test.reshape(len(test), -1)
    return predicted


def predicted_by(column: Column, target: Floats, fold: Ints) -> Floats:
    """Target [N, K] of each fold, predicted from one column of the other folds.

    Whole numbers are read as levels too, and the better of both is taken.
    """
    has_numbers = bool(np.isfinite(column.numbers).any())
    predictions = [_by_tree(column.numbers, target, fold)] if has_numbers else []
    if column.has_levels or not has_numbers:
        predictions.insert(0, _by_level(column.codes, target, fold))
    return min(predictions, key=lambda predicted: float(((target - predicted) ** 2).sum()))


def predicted_by_microbes(presence: sparse.csr_matrix, targets: Floats, fold: Ints) -> Floats:
    """Targets [N, K] of each fold, predicted by a linear model of presence of the other folds."""
    common = presence[:, np.asarray(presence.sum(axis=0)).ravel() >= MIN_SAMPLES]
    kernel = np.asarray((common @ common.T).todense(), np.float64)
    variance = float(np.trace(KernelCenterer().fit_transform(kernel))) / len(kernel)
    kernel /= variance if variance > 1e-9 * np.diag(kernel).mean() else 1.0
    ridge = KernelRidge(alpha=PENALTY, kernel="precomputed")
    model = make_pipeline(KernelCenterer(), ridge)
    # A centred kernel predicts differences from the mean of the other folds.
    around = cross_val_predict(model, kernel, targets, cv=PredefinedSplit(fold))
    return np.asarray(around + _by_level(np.zeros_like(fold), targets, fold))


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
        of_units = np.bincount(units, saved) / np.bincount(units)
        spread = of_units.std(ddof=1) if len(of_units) > 1 else np.inf
        gain = float(saved.mean()) / guess
        low = gain - z * spread / len(of_units) ** 0.5 / guess
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


def _scale(values: Floats) -> float:
    """Return a divisor of numbers whose squares would overflow, else 1."""
    largest = float(np.abs(values).max(initial=0))
    return largest if largest > LARGEST else 1.0


def _scaled(values: Floats) -> Floats:
    return values / _scale(values)


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


def _ranks_agree(numbers: Floats, target: Floats, fold: Ints) -> bool:
    """Whether numbers rank samples of each fold as the target does, in the direction of the other
    folds.
    """
    both = np.isfinite(numbers) & np.isfinite(target)
    if both.sum() < LEAST_OF_LEVEL + 3 or both.mean() < 0.5:
        return False
    ranks, goal = rankdata(numbers[both]), rankdata(target[both])
    if min(np.ptp(ranks), np.ptp(goal)) == 0:
        return False
    rho = float(np.corrcoef(ranks, goal)[0, 1])
    directions = set[float]()
    for part in np.unique(fold[both]):
        train = fold[both] != part
        covariance = np.cov(ranks[train], goal[train])[0, 1] if train.sum() > 1 else 0.0
        directions.add(float(np.sign(covariance)))
    return abs(rho) >= SAME_RANKS and directions == {np.sign(rho)}


def _order_agrees(codes: Ints, target: Floats, fold: Ints) -> bool:
    """Whether levels are an ordered cut of the target: samples of different levels lie in the order
    of the medians of their levels in the other folds.
    """
    medians = np.full(len(codes), np.nan)
    for part in np.unique(fold):
        train = pd.Series(target[fold != part]).groupby(codes[fold != part]).median()
        inside = fold == part
        medians[inside] = train.reindex(codes[inside]).to_numpy()
    rows = np.flatnonzero(np.isfinite(medians) & np.isfinite(target) & (codes >= 0))
    if len(rows) < 0.8 * len(codes) or len(np.unique(codes[rows])) < 2:
        return False
    of_level, of_target = medians[rows], target[rows]
    apart = np.sign(of_level[:, None] - of_level) * (codes[rows][:, None] != codes[rows])
    agreed = apart * np.sign(of_target[:, None] - of_target)
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
    truth : float64 [N, K]
    random, split : int64 [N]
        The fold of each sample on a random split and on that of `aam train`.
    units : int64 [N]
        The group of each sample.
    tests : int
        Number of columns and parts that are judged together.
    scale : float
        By which numbers of the target were divided.
    group, fold : str, optional
        The column of the groups that count, and the one whose values the user holds out.
    has_option : bool
        Whether an option of the user divides the samples.
    """

    goal: Column
    classes: bool
    truth: Floats
    random: Ints
    split: Ints
    units: Ints
    tests: int
    scale: float
    group: str | None
    fold: str | None
    has_option: bool

    @cached_property
    def noticeable(self) -> float:
        """Gain above which a column would be named; infinite with too few groups or folds."""
        folds, groups = len(np.unique(self.split)), len(np.unique(self.units))
        if folds < LEAST_GROUPS_OF_CLASS or groups < LEAST_UNITS:
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
        if column.kind not in kinds or not column.is_repeated or column.is_split:
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


# --- the audit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recommendation:
    """Options of `aam train` that an audit recommends: at most one column of each kind, and
    covariates to compare with.
    """

    group: str | None = None
    batch: str | None = None
    study: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Audit:
    """The audit of a target, or of the columns alone.

    Attributes
    ----------
    target : str, optional
    classes : bool
        Whether the target is predicted as classes.
    frame : DataFrame
        One row per column, the most dangerous first: ``column``, ``kind`` (identity, technical,
        time, biology, reads), ``form`` (category, number, date, reads), ``levels``, ``within`` (the
        coarser column in which it is nested), ``random`` and ``split`` (AUROC or MAE of the target
        predicted from the column alone, on a random split and on that of `aam train`),
        ``random_gain``, ``split_gain`` (share of the error of guessing that is removed),
        ``microbes_gain`` (how well microbes predict the column), ``danger`` (one of `DANGERS`),
        ``part`` (the part of a name or date that tells the target), ``state`` (one of `STATES`).
        Without a target the scores are missing.
    duplicates : list of pairs of str
        Samples that are nearly identical.
    microbes : Score
        How well the microbes predict the target.
    group : str, optional
        The column of the groups that count.
    divided_by : str, optional
        The column whose values stay together in the split.
    units : int
        Number of its groups, or of samples.
    noticeable : float
        Share of the error of guessing that a column must remove to be named.
    recommendation : Recommendation
    has_gaps : bool
        Whether samples without metadata were left out, or lack a recommended column.
    """

    target: str | None
    classes: bool
    frame: pd.DataFrame
    duplicates: list[tuple[str, str]]
    microbes: Score = field(default_factory=Score)
    group: str | None = None
    divided_by: str | None = None
    units: int = 0
    noticeable: float = np.inf
    recommendation: Recommendation = field(default_factory=Recommendation)
    has_gaps: bool = False

    @property
    def can_judge(self) -> bool:
        """Whether a column that gives the target away would have been named."""
        return self.noticeable <= LARGEST_LIMIT


def _folds(ids: Sequence[str], target: Column, classes: bool, groups: Sequence[str] | None) -> Ints:
    """Number of the fold of each sample, [N]; whole groups stay together."""
    number = min(FOLDS, len(set(ids if groups is None else groups)))
    strata = [str(code) for code in target.codes] if classes else target.numbers
    split = kfold(ids, number, groups, strata, 0.0, seed=0)[0]
    return np.asarray(pd.Series(split.folds, split.sample_ids).loc[list(ids)], np.int64)


def _strata(goal: Column, classes: bool) -> Ints:
    """Classes of the target, or up to ten parts of its numbers of at least `LEAST_OF_LEVEL`."""
    if classes:
        return goal.codes
    parts = int(np.clip(len(goal.codes) // LEAST_OF_LEVEL, 1, 10))
    order = rankdata(goal.numbers, method="ordinal") - 1
    return np.asarray(order * parts // len(order), np.int64)


def _column_of_reads(name: str, numbers: npt.NDArray[np.integer]) -> Column:
    return make_column(name, pd.Series(numbers), "reads", numbers.astype(np.float64))


def make_audit(
    study: Study,
    target: str | None,
    classifier: bool = False,
    group_column: str | None = None,
    fold_column: str | None = None,
    kinds: Mapping[str, ColumnKind] | None = None,
) -> Audit:
    """Audit the samples of a study, or a random part of many, for one target.

    Parameters
    ----------
    study : Study
        Samples that have a value of the target.
    target : str, optional
        Unset: it is said what the columns are, and nothing is judged.
    classifier : bool
        Whether numbers are predicted as classes.
    group_column : str, optional
        Column of the groups that count, which the split of `aam train` keeps together; unset: that
        of the subjects, if there is one.
    fold_column : str, optional
        Column whose values that split holds out whole; unset: those of the groups.
    kinds : mapping of str to str, optional
        What columns are, where the user says so.
    """
    rows, metadata = np.arange(len(study.table.sample_ids)), not_none(study.metadata)
    if len(rows) > MOST_SAMPLES:
        rows = np.sort(generator(0, "audit").choice(rows, MOST_SAMPLES, replace=False))
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    presence = presence_of(study, rows)
    columns = [read_column(metadata, name, ids) for name in metadata.columns if name != target]
    columns.append(_column_of_reads(DEPTH, study.table.depths[rows]))
    columns.append(_column_of_reads(RICHNESS, np.diff(presence.indptr)))
    duplicates = nearly_identical(select_samples(study.table, ids))
    if target is None:
        view = overview(columns, kinds or {}, presence, np.zeros(len(ids), np.int64))
        return Audit(None, False, _description(view), duplicates, group=view.subject)
    classes = classifier or metadata.kinds[target] != "numeric"
    goal = read_column(metadata, target, ids)
    view = overview([*columns, goal], kinds or {}, presence, _strata(goal, classes))
    *columns, goal = view.columns
    view = Overview(columns, None if view.subject == target else view.subject, view.within)
    parts = {column: parts_of(column) for column in columns}
    design = _design(metadata, ids, goal, classes, view, parts, (group_column, fold_column))
    frame, microbes = _judge(design, view, parts, presence)
    options = _recommendation(design, view, frame)
    return Audit(
        target,
        classes,
        frame,
        duplicates,
        microbes,
        group=design.group,
        divided_by=design.fold or design.group,
        units=len(np.unique(design.units)),
        noticeable=design.noticeable,
        recommendation=options,
        has_gaps=_has_gaps(study, columns, options),
    )


def _design(
    metadata: Metadata,
    ids: Sequence[str],
    goal: Column,
    classes: bool,
    view: Overview,
    parts: Mapping[Column, Sequence[Column]],
    options: tuple[str | None, str | None],
) -> Design:
    """Divide the samples by the columns of groups and folds that the user gives, or by subject."""
    group_column, fold_column = options
    # Groups of one sample each keep nothing together.
    if not any(column.name == group_column and column.is_repeated for column in view.columns):
        group_column = None
    group = group_column or view.subject
    groups = ids if group is None else metadata.groups(group, ids)
    random = split = _folds(ids, goal, classes, None)
    divider = fold_column or group
    if divider is not None and len(set(groups)) > 1:
        split = _folds(ids, goal, classes, metadata.groups(divider, ids))
    truth = goal.indicators(classes)
    return Design(
        goal,
        classes,
        _scaled(truth),
        random,
        split,
        units=np.unique(groups, return_inverse=True)[1],
        tests=sum(map(len, parts.values())) + sum(map(_is_judged, view.columns)),
        scale=_scale(truth),
        group=group,
        fold=fold_column,
        has_option=bool(fold_column or group_column),
    )


def _is_judged(column: Column) -> bool:
    return column.varies and not column.is_id


def _has_gaps(study: Study, columns: Sequence[Column], options: Recommendation) -> bool:
    """Whether samples were left out for lack of metadata, or lack a recommended column."""
    needed = [column for column in columns if column.name in (options.batch, options.study)]
    are_left_out = len(study.selection.aligned) < len(study.selection.of_file)
    return are_left_out or any((column.codes < 0).any() for column in needed)


def _row(
    column: Column,
    view: Overview,
    scores: tuple[Score, Score],
    microbes_gain: float = np.nan,
    danger: str = "",
    part: str = "",
) -> dict[str, object]:
    """Return the row of a column in the frame of an audit."""
    state = "id" if column.is_id else ""
    if not column.varies:
        state = "constant" if column.levels else "empty"
    random, split = scores
    return {
        "column": column.name,
        "kind": column.kind,
        "form": column.form,
        "levels": column.levels,
        "within": view.within.get(column.name, ""),
        "random": random.value,
        "split": split.value,
        "random_gain": random.gain,
        "split_gain": split.gain,
        "microbes_gain": microbes_gain,
        "danger": danger,
        "part": part,
        "state": state,
    }


def _description(view: Overview) -> pd.DataFrame:
    """Return the frame of an audit without a target."""
    missing = Score(gain=np.nan)
    rows = [_row(column, view, (missing, missing)) for column in view.columns]
    return _ordered(pd.DataFrame(rows))


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of an audit, the most dangerous first."""
    danger = frame["danger"].map([*DANGERS, ""].index)
    state = frame["state"].map(STATES.index)
    gain = frame["random_gain"].fillna(-np.inf)
    order = np.lexsort((-gain, state, danger))
    return frame.iloc[order].reset_index(drop=True)


def _judge(
    design: Design,
    view: Overview,
    parts: Mapping[Column, Sequence[Column]],
    presence: sparse.csr_matrix,
) -> tuple[pd.DataFrame, Score]:
    """Return the frame of an audit, and how well the microbes predict the target."""
    microbes, gains = _scores_of_microbes(presence, design, [*filter(_is_judged, view.columns)])
    rows = []
    for column in view.columns:
        scores, danger, part = (Score(), Score()), "", ""
        if _is_judged(column):
            scores = design.scores(column)
            danger = design.danger(column, *scores)
        if danger in ("", "prevented") and column.name != design.group:
            scores_of_parts = [(design.scores(part), part.name) for part in parts[column]]
            alarms = [(pair, name) for pair, name in scores_of_parts if pair[1].alarms]
            if alarms:
                scores, part = max(alarms, key=lambda alarm: alarm[0][1].gain)
                danger = "part"
        rows.append(_row(column, view, scores, gains.get(column, np.nan), danger, part))
    return _ordered(pd.DataFrame(rows)), microbes


def _scores_of_microbes(
    presence: sparse.csr_matrix, design: Design, columns: Sequence[Column]
) -> tuple[Score, dict[Column, float]]:
    """The microbes' score of the target, and the gain by which they predict each column of not too
    many levels.
    """
    columns = [c for c in columns if c.form != "category" or 2 <= c.levels <= MOST_LEVELS]
    truths = [design.truth, *(_scaled(column.indicators()) for column in columns)]
    ends = np.cumsum([truth.shape[1] for truth in truths])[:-1]
    predicted = predicted_by_microbes(presence, np.hstack(truths), design.random)
    target, *others = np.split(predicted, ends, axis=1)
    gains = {
        column: score(truth, values, design.units, design.tests).gain
        for column, truth, values in zip(columns, truths[1:], others, strict=True)
    }
    return design.score(target), gains


# --- what to do ----------------------------------------------------------------------------------


def _recommendation(design: Design, view: Overview, frame: pd.DataFrame) -> Recommendation:
    """Choose at most one column of each option of `aam train`, the one that tells most."""
    by_name = {column.name: column for column in view.columns if column.form != "reads"}
    leaks = frame[(frame["danger"] == "split") & (frame["form"] != "reads")]
    leaks = leaks.sort_values("split_gain", ascending=False)
    columns = [by_name[name] for name in leaks["column"]]
    technical = [c for c in columns if _is_batch(c) and c.name != design.group]
    subjects = by_name.get(design.group or "")
    # A column that holds one class each divides nothing.
    confounded = set(frame["column"][frame["danger"] == "confounded"])
    study = design.fold
    if study is None or study in confounded:
        study = next((c.name for c in technical if _is_study(c, subjects, design)), None)
    group = view.subject if design.group in confounded else design.group
    group = None if group == study else group
    batches = [c.name for c in technical if c.name != study and not design.is_decided_by(c)]
    batch = next(iter(batches), None)
    covariates = [c for c in _covariates(columns) if c.name not in (batch, group)]
    return Recommendation(
        group,
        batch,
        study,
        tuple(column.name for column in covariates if column.form == "category"),
        tuple(column.name for column in covariates if column.form == "number"),
    )


def _is_batch(column: Column) -> bool:
    """Whether the values of a column can be compared within."""
    if column.kind not in ("technical", "time") or column.is_split:
        return False
    return column.has_levels and 2 <= column.levels <= MOST_LEVELS


def _is_study(column: Column, subjects: Column | None, design: Design) -> bool:
    """Whether the values of a column can be held out, whole subjects with them, and should be."""
    if column.levels < LEAST_GROUPS_OF_CLASS:
        return False
    if subjects is not None and not is_nested(subjects, column):
        return False
    return is_named(column.name, STUDY_WORDS) or design.is_decided_by(column)


def _covariates(columns: Sequence[Column]) -> list[Column]:
    """Return the first `MOST_COVARIATES` columns of biology or ages, without equal ones."""
    covariates = list[Column]()
    for column in columns:
        is_number = column.form == "number" and column.kind in ("biology", "time")
        is_short = column.form == "category" and column.levels <= MOST_LEVELS
        is_covariate = is_number or (is_short and column.kind == "biology")
        if is_covariate and not any(is_equal(column, other) for other in covariates):
            covariates.append(column)
    return covariates[:MOST_COVARIATES]
