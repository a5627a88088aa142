"""Audit: how well each metadata column predicts a target without microbes, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.special import gammaln
from scipy.stats import norm, rankdata
from sklearn.kernel_ridge import KernelRidge
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
from aam.options import not_none
from aam.predict.columns import (
    MOST_LEVELS,
    STUDY_WORDS,
    Column,
    Form,
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

# Columns of the frame of an audit: values of the scores, then gains.
SCORES = ("random", "split", "random_gain", "split_gain", "microbes_gain")
ABOUT = ("column", "kind", "form", "levels", "within")
COLUMNS = (*ABOUT, *SCORES, "danger", "part", "state")

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
    classes: bool = True

    @property
    def alarms(self) -> bool:
        """Whether the target is predicted better than by chance, and by enough."""
        return self.low > 0 and self.gain >= LEAST_GAIN


NOTHING = Score()


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
        return Score(guess * (1 - gain), gain, low, classes=False)
    areas = []
    for positive, values in zip(truth.T > 0, predicted.T, strict=True):
        if min(positive.sum(), (~positive).sum()) >= LEAST_OF_LEVEL:
            m, n = len(np.unique(units[positive])), len(np.unique(units[~positive]))
            deviation = ((m + n + 1) / (12 * m * n)) ** 0.5
            areas.append((auroc(positive, values), deviation, positive.sum()))
    if not areas:
        return Score()
    found, deviations, sizes = np.array(areas).T
    area = float(np.average(found, weights=sizes))
    gain, limit = 2 * area - 1, 2 * z * float(np.average(deviations, weights=sizes))
    return Score(area, gain, gain - limit)


def noticeable(truth: Floats, units: Ints, tests: int) -> float:
    """Return the gain above which a column would be named; infinite where nothing can be."""
    perfect = score(truth, truth, units, tests)
    return perfect.gain - perfect.low


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
    counts = np.zeros((codes.max() + 1, others.max() + 1))
    np.add.at(counts, (codes[both], others[both]), 1)
    right = np.bincount(counts.argmax(axis=1), counts.max(axis=1), counts.shape[1])
    present = counts.sum(axis=0) > 0
    return float((right[present] / counts.sum(axis=0)[present]).mean())


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
    signs = []
    for part in np.unique(fold[both]):
        others = fold[both] != part
        pairs = np.cov(ranks[others], goal[others]) if others.sum() > 1 else np.zeros((2, 2))
        signs.append(np.sign(pairs[0, 1]))
    rho = float(np.corrcoef(ranks, goal)[0, 1])
    return abs(rho) >= SAME_RANKS and set(signs) == {np.sign(rho)}


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


@dataclass(frozen=True, eq=False)
class Design:
    """What every column of an audit is judged by; N samples, K classes (1 for numbers).

    Attributes
    ----------
    goal : Column
        The target.
    classes : bool
    truth : float64 [N, K]
    random, split : int64 [N]
        The fold of each sample on a random split and on that of `aam train`.
    units : int64 [N]
        The group of each sample.
    tests : int
        Number of columns and parts that are judged together.
    scale : float
        By which numbers of the target were divided.
    """

    goal: Column
    classes: bool
    truth: Floats
    random: Ints
    split: Ints
    units: Ints
    tests: int
    scale: float = 1.0

    def is_copy(self, column: Column) -> bool:
        """Whether a column states the target in other words: another unit, a cut, other codes."""
        goal, codes = self.goal, column.codes
        alike = ("biology", goal.kind) if self.classes else ("biology", "time", goal.kind)
        if column.kind not in alike or not column.varies or column.is_id:
            return False
        few = column.is_repeated and column.levels <= min(MOST_LEVELS, len(codes) // 4)
        if not self.classes:
            if np.isfinite(column.numbers).any():
                same = _ranks_agree(column.numbers, goal.numbers, self.random)
                if same:
                    return True
            cut = few and column.has_levels and _order_agrees(codes, goal.numbers, self.random)
            return cut and not _can_be_chance(codes, codes, self.units, self.tests)
        if not few:
            return False
        recoded = share_decided(codes, goal.codes) >= SAME_CLASS
        one_to_one = recoded and share_decided(goal.codes, codes) >= SAME_CLASS
        units = np.arange(len(codes)) if one_to_one else self.units
        if recoded and not _can_be_chance(codes, goal.codes, units, self.tests):
            return True
        merged = 2 < goal.levels <= len(codes) // LEAST_OF_LEVEL and goal.kind != "identity"
        merged = merged and share_decided(goal.codes, codes) >= SAME_CLASS
        return merged and not _can_be_chance(goal.codes, codes, self.units, self.tests)

    def is_confounded(self, column: Column) -> bool:
        """Whether each of a few studies, plates, days or subjects has one value of the target."""
        kinds = {"technical", "identity", *(["time"] if self.classes else [])}
        kinds -= {self.goal.kind} - {"identity"}
        levels = column.levels
        if column.kind not in kinds or not column.is_repeated or column.is_split:
            return False
        if not (column.has_levels or column.form == "date") or 2 * levels > len(column.codes):
            return False
        if not self.classes:
            return levels < LEAST_GROUPS_OF_CLASS * 2 and self._decides_number(column.codes)
        if share_decided(column.codes, self.goal.codes) < SAME_CLASS:
            return False
        pairs = pd.DataFrame({"level": column.codes, "goal": self.goal.codes})
        counts = pairs[(pairs >= 0).all(axis=1)].value_counts().reset_index()
        most = counts.drop_duplicates("level")
        return int((most["goal"].value_counts() >= LEAST_GROUPS_OF_CLASS).sum()) < 2

    def _decides_number(self, codes: Ints) -> bool:
        target = pd.Series(self.goal.numbers)
        left = (target - target.groupby(codes).transform("median")).abs().mean()
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


# --- the audit ---------------------------------------------------------------------------------


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
    microbes: Score = NOTHING
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


def single_valued(columns: Sequence[Column]) -> set[str]:
    """Names of columns without a repeated value."""
    return {column.name for column in columns if not column.is_repeated}


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
    for name, reads in ((DEPTH, study.table.depths[rows]), (RICHNESS, np.diff(presence.indptr))):
        columns.append(make_column(name, pd.Series(reads), "reads", reads.astype(np.float64)))
    duplicates = nearly_identical(select_samples(study.table, ids))
    if target is None:
        view = overview(columns, kinds or {}, presence, np.zeros(len(ids), np.int64))
        frame = pd.DataFrame([_row(column, view) for column in view.columns], columns=COLUMNS)
        return Audit(None, False, _ordered(frame), duplicates, group=view.subject)
    classes = classifier or metadata.kinds[target] != "numeric"
    goal = read_column(metadata, target, ids)
    view = overview([*columns, goal], kinds or {}, presence, _strata(goal, classes))
    *columns, goal = view.columns
    view = Overview(columns, None if view.subject == target else view.subject, view.within)
    # Groups of one sample each keep nothing together.
    group_column = None if group_column in single_valued(columns) else group_column
    group = group_column or view.subject
    groups = ids if group is None else metadata.groups(group, ids)
    units = np.unique(groups, return_inverse=True)[1]
    random = split = _folds(ids, goal, classes, None)
    if (whole := fold_column or group) is not None and len(set(groups)) > 1:
        split = _folds(ids, goal, classes, metadata.groups(whole, ids))
    parts = {(column.name, column.form): parts_of(column) for column in columns}
    tests = sum(map(len, parts.values())) + sum(c.varies and not c.is_id for c in columns)
    truth = goal.indicators(classes)
    design = Design(goal, classes, _scaled(truth), random, split, units, tests, _scale(truth))
    chosen = (fold_column, group_column, group)
    result = _judged(design, view, parts, presence, chosen, duplicates)
    return replace(result, has_gaps=_has_gaps(study, columns, result.recommendation))


def _has_gaps(study: Study, columns: Sequence[Column], options: Recommendation) -> bool:
    """Whether samples were left out for lack of metadata, or lack a recommended column."""
    needed = [column for column in columns if column.name in (options.batch, options.study)]
    are_left_out = len(study.selection.aligned) < len(study.selection.of_file)
    return are_left_out or any((column.codes < 0).any() for column in needed)


def _row(column: Column, view: Overview, danger: str = "", part: str = "") -> dict[str, object]:
    """Return what is known of a column without a target, a row of the frame of an audit."""
    state = "" if column.varies else "constant" if column.levels else "empty"
    about = (column.name, column.kind, column.form, column.levels, view.within.get(column.name, ""))
    row: dict[str, object] = dict(zip(ABOUT, about, strict=True)) | dict.fromkeys(SCORES, np.nan)
    state = "id" if column.varies and column.is_id else state
    return {**row, "danger": danger, "part": part, "state": state}


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of an audit, the most dangerous first."""
    danger = frame["danger"].map(["", *DANGERS].index).replace(0, len(DANGERS) + 1)
    state = frame["state"].map(STATES.index)
    gain = frame["random_gain"].fillna(-np.inf)
    order = np.lexsort((-gain, state, danger))
    return frame.iloc[order].reset_index(drop=True)


def _danger(
    column: Column,
    design: Design,
    divider: str | None,
    group: str | None,
    scores: tuple[Score, Score],
) -> str:
    """Return the danger of a column, one of `DANGERS` or ''."""
    random, split = scores
    if design.is_confounded(column):
        return "confounded"
    if design.is_copy(column):
        return "same"
    limit = noticeable(design.truth, design.units, design.tests)
    few = limit > LARGEST_LIMIT
    if column.name == group and divider is None:
        return "random split" if random.alarms or (few and random.gain >= SUSPECT) else ""
    if split.alarms:
        exact = split.gain >= SAME and column.kind == "biology"
        return "same" if exact and not column.is_id else "split"
    few_levels = column.has_levels and 2 * column.levels <= len(column.codes)
    decided = few_levels and share_decided(column.codes, design.goal.codes) >= SAME_CLASS
    unscored = design.classes and np.isnan(split.value) and decided
    if few and (split.gain >= SUSPECT or unscored):
        return "suspect"
    return "prevented" if random.alarms else ""


def _judged(
    design: Design,
    view: Overview,
    parts: Mapping[tuple[str, Form], Sequence[Column]],
    presence: sparse.csr_matrix,
    chosen: tuple[str | None, str | None, str | None],
    duplicates: list[tuple[str, str]],
) -> Audit:
    """Judge every column of an audit; `chosen` are the columns of folds and groups that the user
    gives, and that of the groups that count.
    """
    fold, group_option, group = chosen
    divider = fold or group_option
    judged = [column for column in view.columns if column.varies and not column.is_id]
    microbes, gains = _scores_of_microbes(presence, design, judged)
    rows = []
    for column in view.columns:
        scores, danger, part = (Score(), Score()), "", ""
        if column in judged:
            scores = design.scores(column)
            danger = _danger(column, design, divider, group, scores)
        if danger in ("", "prevented") and column.name != group:
            of_parts = [
                (*design.scores(piece), piece.name) for piece in parts[column.name, column.form]
            ]
            telling = [result for result in of_parts if result[1].alarms]
            if telling:
                of_random, of_split, part = max(telling, key=lambda result: result[1].gain)
                scores, danger = (of_random, of_split), "part"
        row = _row(column, view, danger, part)
        row |= {"random": scores[0].value, "split": scores[1].value}
        row |= {"random_gain": scores[0].gain, "split_gain": scores[1].gain}
        row["microbes_gain"] = gains.get((column.name, column.form), np.nan)
        rows.append(row)
    frame = _ordered(pd.DataFrame(rows, columns=COLUMNS))
    limit = noticeable(design.truth, design.units, design.tests)
    folds, groups = len(np.unique(design.split)), len(np.unique(design.units))
    if folds < LEAST_GROUPS_OF_CLASS or groups < LEAST_UNITS:
        limit = np.inf
    advice = _recommendation(design, view, frame, fold, group)
    units, name = len(np.unique(design.units)), design.goal.name
    about = microbes, group, fold or group, units, limit, advice
    return Audit(name, design.classes, frame, duplicates, *about)


def _scores_of_microbes(
    presence: sparse.csr_matrix, design: Design, columns: Sequence[Column]
) -> tuple[Score, dict[tuple[str, Form], float]]:
    """The microbes' score of the target, and the gain by which they predict each column of not too
    many levels.
    """
    few = [c for c in columns if c.form != "category" or 2 <= c.levels <= MOST_LEVELS]
    blocks = [design.truth, *(_scaled(column.indicators()) for column in few)]
    ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
    predicted = predicted_by_microbes(presence, np.hstack(blocks), design.random)
    target, *others = np.split(predicted, ends, axis=1)
    gains = {}
    for column, truth, values in zip(few, blocks[1:], others, strict=True):
        gains[column.name, column.form] = score(truth, values, design.units, design.tests).gain
    return design.score(target), gains


def _recommendation(
    design: Design, view: Overview, frame: pd.DataFrame, fold: str | None, group: str | None
) -> Recommendation:
    """Choose at most one column of each option of `aam train`, the one that tells most."""
    by_name = {column.name: column for column in view.columns if column.form != "reads"}
    rows = frame[(frame["danger"] == "split") & (frame["form"] != "reads")].sort_values(
        "split_gain", ascending=False
    )
    leaks = [by_name[name] for name in rows["column"]]
    subjects = by_name.get(group or "")

    def can_be_held_out(column: Column) -> bool:
        nested = subjects is None or is_nested(subjects, column)
        return column.levels >= LEAST_GROUPS_OF_CLASS and nested

    def decides(column: Column) -> bool:
        if not design.classes:
            return design._decides_number(column.codes)
        return share_decided(column.codes, design.goal.codes) >= SAME_CLASS

    technical = [
        column
        for column in leaks
        if column.kind in ("technical", "time")
        and column.has_levels
        and 2 <= column.levels <= MOST_LEVELS
        and not column.is_split
        and column.name != group
    ]
    studies = [
        column
        for column in technical
        if can_be_held_out(column) and (is_named(column.name, STUDY_WORDS) or decides(column))
    ]
    study = studies[0].name if studies else None
    # A column that holds one class each divides nothing.
    useless = set(frame["column"][frame["danger"] == "confounded"])
    group = view.subject if group in useless else group
    study = study if fold is None or fold in useless else fold
    group = None if group == study else group
    batches = [column for column in technical if column.name != study and not decides(column)]
    covariates = list[Column]()
    for column in leaks:
        fits = column.form == "number" or (
            column.form == "category" and column.levels <= MOST_LEVELS
        )
        usual = column.kind == "biology" or (column.kind == "time" and column.form == "number")
        equal = any(is_equal(column, other) for other in covariates)
        if fits and usual and not equal and len(covariates) < MOST_COVARIATES:
            covariates.append(column)
    batch = next((column.name for column in batches), None)
    covariates = [column for column in covariates if column.name not in (batch, group)]
    return Recommendation(
        group,
        batch,
        study,
        tuple(column.name for column in covariates if column.form == "category"),
        tuple(column.name for column in covariates if column.form == "number"),
    )
