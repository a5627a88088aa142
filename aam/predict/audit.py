"""Audit: how well each metadata column predicts a target without microbes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.stats import norm
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KernelCenterer
from sklearn.tree import DecisionTreeRegressor

from aam.data.splits import kfold, nearly_identical
from aam.data.study import Study
from aam.data.table import select_samples
from aam.device.rng import generator
from aam.evaluate.intervals import FOLD_INFLATION
from aam.evaluate.metrics import auroc
from aam.io.metadata import Metadata, is_number
from aam.options import not_none
from aam.predict.estimator import MIN_SAMPLES
from aam.predict.members import PENALTY
from aam.predict.prediction import presence_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FOLDS = 5

# Day, month and year in any order, with or without a time.
DATE = re.compile(r"\d{1,4}[-/. ](\d{1,2}|[A-Za-z]{3,9})[-/., ]+\d{1,4}")

# A column is named if the chance of a false alarm over all columns is at most 5 %, and if it
# removes at least this share of the error of guessing; one that removes nearly all states the
# target itself.
ALPHA, LEAST_GAIN, SAME = 0.05, 0.2, 0.98

# Levels with at most this number of samples on average are subjects; larger levels are batches.
MOST_PER_SUBJECT, LEAST_SUBJECTS = 30, 6

# Classes of fewer samples are not scored, and leaves of trees are not smaller. Microbes
# predict columns of at most `MOST_LEVELS`. The kernel of `MOST_SAMPLES` takes a second.
LEAST_OF_LEVEL, MOST_LEVELS, MOST_SAMPLES = 5, 50, 1500

# Columns of the frame of an audit: values of the scores, then gains.
SCORES = ("random", "split", "random_gain", "split_gain", "microbes_gain")
COLUMNS = ("column", "kind", "levels", *SCORES, "danger", "state", "has_levels")

# Trees read float32.
LARGEST = 1e30

DEPTH, RICHNESS = "sequencing depth", "richness"

# Dangers of a column, the worst first.
DANGERS = ("same", "random split", "split", "prevented", "")


class Column:
    """A metadata column: ``codes`` of its ``levels`` [N], -1 if missing, and ``numbers`` [N], days
    for dates, NaN if missing; `kind` is category, number, date or reads.
    """

    def __init__(self, name: str, kind: str, values: pd.Series, numbers: Floats | None = None):
        self.name, self.kind = name, kind
        self.codes, levels = pd.factorize(values, sort=True)
        self.numbers = np.full(len(values), np.nan) if numbers is None else numbers
        self.levels, known = len(levels), int((self.codes >= 0).sum())
        # A missing value differs from any other.
        self.varies = len(np.unique(self.codes)) > 1
        self.is_id = kind in ("category", "date") and self.levels == len(values)
        whole = not (self.numbers[np.isfinite(self.numbers)] % 1).any()
        # Whole numbers may be ids.
        self.has_levels = kind == "category" or (kind == "number" and whole)
        empty = "constant" if self.levels else "empty"
        self.state = empty if not self.varies else "id" if self.is_id else ""
        repeated = LEAST_SUBJECTS <= self.levels < known <= MOST_PER_SUBJECT * self.levels
        self.is_subject = self.has_levels and repeated

    def indicators(self, classes: bool = False) -> Floats:
        """Numbers [N, 1], or indicators of levels [N, K]; missing values are the median, or 0."""
        if classes or self.kind == "category":
            return np.asarray(self.codes[:, None] == np.arange(self.levels), np.float64)
        return np.nan_to_num(self.numbers, nan=float(np.nanmedian(self.numbers)))[:, None]


def make_column(metadata: Metadata, name: str, ids: Sequence[str]) -> Column:
    """Read one column of the samples `ids`; dates may have any usual format."""
    values = pd.Series(metadata.values(name, ids), dtype=object)
    known = values.dropna()
    if metadata.kinds[name] == "numeric" and all(map(is_number, known)):
        return Column(name, "number", values, values.astype(np.float64).to_numpy())
    if len(known) and all(map(DATE.search, known)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dates = pd.to_datetime(values, errors="coerce", format="mixed", utc=True)
        if dates.notna().sum() >= 0.9 * len(known):
            days = (dates - pd.Timestamp(0, tz="utc")) / pd.Timedelta(days=1)
            return Column(name, "date", values, days.to_numpy())
    return Column(name, "category", values)


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
    found = [_by_tree(column.numbers, target, fold)] if has_numbers else []
    if column.has_levels or not has_numbers:
        found.insert(0, _by_level(column.codes, target, fold))
    return min(found, key=lambda predicted: float(((target - predicted) ** 2).sum()))


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


# --- the audit ---------------------------------------------------------------------------------


def _folds(ids: Sequence[str], target: Column, classes: bool, groups: Sequence[str] | None) -> Ints:
    """Number of the fold of each sample, [N]; whole groups stay together."""
    number = min(FOLDS, len(set(ids if groups is None else groups)))
    strata = [str(code) for code in target.codes] if classes else target.numbers
    split = kfold(ids, number, groups, strata, 0.0, seed=0)[0]
    return np.asarray(pd.Series(split.folds, split.sample_ids).loc[list(ids)], np.int64)


def _danger(column: Column, grouped: bool, random: Score, split: Score) -> str:
    """Return the danger of a column, one of `DANGERS`."""
    if not column.varies or column.is_id:
        return ""
    if split.alarms and (grouped or not column.is_subject):
        return "same" if split.gain >= SAME else "split"
    if random.alarms:
        return "prevented" if grouped else "random split"
    return ""


@dataclass(frozen=True, eq=False)
class Audit:
    """The audit of a target.

    Attributes
    ----------
    target : str
    classes : bool
        Whether the target is predicted as classes.
    frame : DataFrame
        One row per column, the most dangerous first: ``column``, ``kind``, ``levels``, ``random``
        and ``split`` (AUROC or MAE of the target predicted from the column alone, on a random split
        and on that of `aam train`), ``random_gain``, ``split_gain`` (share of the error of guessing
        that is removed), ``microbes_gain`` (how well microbes predict the column), ``danger``,
        ``state`` (empty, constant, id or '').
    microbes : Score
        How well the microbes predict the target.
    duplicates : list of pairs of str
        Samples that are nearly identical.
    """

    target: str
    classes: bool
    frame: pd.DataFrame
    microbes: Score
    duplicates: list[tuple[str, str]]


def make_audit(
    study: Study,
    target: str,
    classifier: bool = False,
    group_column: str | None = None,
    fold_column: str | None = None,
) -> Audit:
    """Audit the samples of a study, or a random part of many, for one target.

    Parameters
    ----------
    study : Study
        Samples that have a value of the target.
    target : str
    classifier : bool
        Whether numbers are predicted as classes.
    group_column : str, optional
        Column of the groups that count, which the split of `aam train` keeps together.
    fold_column : str, optional
        Column whose values that split holds out whole; unset: those of the groups.
    """
    rows, metadata = np.arange(len(study.table.sample_ids)), not_none(study.metadata)
    if len(rows) > MOST_SAMPLES:
        rows = np.sort(generator(0, "audit").choice(rows, MOST_SAMPLES, replace=False))
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    presence = presence_of(study, rows)
    classes = classifier or metadata.kinds[target] != "numeric"
    goal, whole = make_column(metadata, target, ids), fold_column or group_column
    groups = ids if group_column is None else metadata.groups(group_column, ids)
    units = np.unique(groups, return_inverse=True)[1]
    random = split = _folds(ids, goal, classes, None)
    if whole is not None:
        split = _folds(ids, goal, classes, metadata.groups(whole, ids))
    columns = [make_column(metadata, name, ids) for name in metadata.columns if name != target]
    for name, reads in ((DEPTH, study.table.depths[rows]), (RICHNESS, np.diff(presence.indptr))):
        columns.append(Column(name, "reads", pd.Series(reads), reads.astype(np.float64)))
    asked = [column for column in columns if column.varies and not column.is_id]
    truth, judge = goal.indicators(classes), partial(score, units=units, tests=len(asked))
    own, seen = _scores_of_microbes(presence, truth, asked, random, judge)
    found = []
    for column in columns:
        of_random = of_split = Score()
        if column in asked:
            predicted = (predicted_by(column, truth, fold) for fold in (random, split))
            of_random, of_split = (judge(truth, values) for values in predicted)
        about = column.name, column.kind, column.levels, of_random.value, of_split.value
        gains = of_random.gain, of_split.gain, seen.get(column.name, np.nan)
        danger = _danger(column, whole is not None, of_random, of_split)
        found.append((*about, *gains, danger, column.state, column.has_levels))
    frame = pd.DataFrame(found, columns=COLUMNS)
    order = np.lexsort((-frame["random_gain"], frame["danger"].map(DANGERS.index)))
    frame = frame.iloc[order].reset_index(drop=True)
    duplicates = nearly_identical(select_samples(study.table, ids))
    return Audit(target, classes, frame, own, duplicates)


def _scores_of_microbes(
    presence: sparse.csr_matrix,
    truth: Floats,
    columns: Sequence[Column],
    fold: Ints,
    judge: Callable[[Floats, Floats], Score],
) -> tuple[Score, dict[str, float]]:
    """The microbes' score of the target, and the gain by which they predict each column of not too
    many levels.
    """
    few = [c for c in columns if c.kind != "category" or 2 <= c.levels <= MOST_LEVELS]
    blocks = [truth, *(column.indicators() for column in few)]
    ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
    parts = np.split(predicted_by_microbes(presence, np.hstack(blocks), fold), ends, axis=1)
    own, *scores = map(judge, blocks, parts)
    return own, {column.name: of.gain for column, of in zip(few, scores, strict=True)}
