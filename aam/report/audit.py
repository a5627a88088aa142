"""Audit: how well each metadata column predicts a target without microbes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.stats import norm
from sklearn.tree import DecisionTreeRegressor

from aam.data.splits import kfold, nearly_identical
from aam.data.study import Study
from aam.data.table import select_samples
from aam.device.rng import generator
from aam.evaluate.intervals import FOLD_INFLATION
from aam.evaluate.metrics import auroc
from aam.io.metadata import Metadata, is_number
from aam.options import not_none
from aam.predict.linear import PENALTY, centred_variance, ridge_duals
from aam.predict.prediction import presence_of
from aam.predict.samples import MIN_SAMPLES
from aam.report.tables import Table, shortened

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
# predict columns of at most `MOST_LEVELS`. The decomposition of `MOST_SAMPLES` takes a second.
LEAST_OF_LEVEL, MOST_LEVELS, MOST_SAMPLES = 5, 50, 1500

# Trees read float32.
LARGEST = 1e30

DEPTH, RICHNESS = "sequencing depth", "richness"

# What to do, by the danger of a column, the worst first.
ADVICE = {
    "same": ": it may state the target in other words. Leave it out of the covariates.",
    "random split": " on a random split: use --group-column {name}.",
    "split": ": compare with a model that has it as a covariate.",
    "prevented": " on a random split; the groups of the split prevent this.",
    "": "",
}
LEVELS_ADVICE = ": use --batch-column {name}, or --study-column {name} to hold its values out."


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one metadata column.

    Attributes
    ----------
    name : str
    kind : "category", "number", "date" or "reads"
    codes : int64 [N]
        Level of each sample, -1 if missing.
    numbers : float64 [N]
        Numbers, days for dates, NaN if missing.
    """

    name: str
    kind: str
    codes: Ints
    numbers: Floats

    @property
    def levels(self) -> int:
        """Number of different values."""
        return int(self.codes.max(initial=-1)) + 1

    @property
    def is_id(self) -> bool:
        """Whether every sample has a value of its own."""
        return self.kind in ("category", "date") and self.levels == len(self.codes)

    @property
    def varies(self) -> bool:
        """Whether two samples differ; a missing value differs from any other."""
        return len(np.unique(self.codes)) > 1

    @property
    def has_levels(self) -> bool:
        """Whether the values are categories or whole numbers, which may be ids."""
        numbers = self.numbers[np.isfinite(self.numbers)]
        return self.kind == "category" or (self.kind == "number" and not (numbers % 1).any())

    @property
    def is_subject(self) -> bool:
        """Whether the levels are as small as subjects with a few samples each."""
        known = int((self.codes >= 0).sum())
        repeated = LEAST_SUBJECTS <= self.levels < known
        return self.has_levels and repeated and known / self.levels <= MOST_PER_SUBJECT

    def indicators(self, classes: bool = False) -> Floats:
        """Numbers [N, 1], or indicators of levels [N, K]; missing values are the median, or 0."""
        if classes or self.kind == "category":
            return np.asarray(self.codes[:, None] == np.arange(self.levels), np.float64)
        return np.nan_to_num(self.numbers, nan=float(np.nanmedian(self.numbers)))[:, None]


def make_column(metadata: Metadata, name: str, ids: Sequence[str]) -> Column:
    """Read one column of the samples `ids`; dates may have any usual format."""
    values = pd.Series(metadata.values(name, ids), dtype=object)
    codes, levels = pd.factorize(values, sort=True)
    if metadata.kinds[name] == "numeric" and all(is_number(value) for value in levels):
        return Column(name, "number", codes, values.astype(np.float64).to_numpy())
    if len(levels) and all(DATE.search(value) for value in levels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dates = pd.to_datetime(values, errors="coerce", format="mixed", utc=True)
        if dates.notna().sum() >= 0.9 * (codes >= 0).sum():
            days = (dates - pd.Timestamp(0, tz="utc")).dt.total_seconds() / 86_400
            return Column(name, "date", codes, days.to_numpy())
    return Column(name, "category", codes, np.full(len(codes), np.nan))


# --- predictions and their scores --------------------------------------------------------------


def _by_level(column: Column, target: Floats, train: Ints, test: Ints) -> Floats:
    """Shrunken training mean of the target [n, K] in the level of each test sample.

    Missing values are a level: an empty cell may tell the target.
    """
    codes = np.where(column.codes < 0, column.levels, column.codes)
    sums = np.zeros((column.levels + 1, target.shape[1]))
    np.add.at(sums, codes[train], target[train])
    sizes = np.bincount(codes[train], minlength=column.levels + 1)
    means = (sums + target[train].mean(axis=0)) / (sizes + 1)[:, None]
    return np.asarray(means[codes[test]])


def _by_tree(column: Column, target: Floats, train: Ints, test: Ints) -> Floats:
    """Predictions [n, K] of a tree of depth 3 on the numbers of a column."""
    numbers = np.clip(column.numbers, -LARGEST, LARGEST)
    filled = np.nan_to_num(numbers, nan=np.nanmin(numbers) - 1)[:, None]
    leaf = max(LEAST_OF_LEVEL, len(train) // 50)
    tree = DecisionTreeRegressor(max_depth=3, min_samples_leaf=leaf, random_state=0)
    return np.asarray(tree.fit(filled[train], target[train]).predict(filled[test])).reshape(
        len(test), -1
    )


def predicted_by(column: Column, target: Floats, fold: Ints) -> Floats:
    """Target [N, K] of each fold, predicted from one column of the other folds.

    Whole numbers are read as levels too, and the better of both is taken.
    """
    ways = [_by_level] if column.has_levels else []
    ways += [_by_tree] if np.isfinite(column.numbers).any() else []
    results = []
    for way in ways or [_by_level]:
        result = np.zeros_like(target)
        for number in np.unique(fold):
            train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            result[test] = way(column, target, train, test)
        results.append(result)
    return min(results, key=lambda result: float(((target - result) ** 2).sum()))


def predicted_by_microbes(kernel: Floats, targets: Floats, fold: Ints) -> Floats:
    """Targets [N, K] of each fold, predicted by a linear model of presence of the other folds.

    One decomposition per fold serves all targets.
    """
    result = np.zeros_like(targets)
    for number in np.unique(fold):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        inner, weights = kernel[np.ix_(train, train)], np.ones(len(train))
        duals, mean = ridge_duals(inner, targets[train], weights, np.array([PENALTY]), None)
        result[test] = (kernel[np.ix_(test, train)] - inner.mean(axis=0)) @ duals[0] + mean
    return result


class Score(NamedTuple):
    """AUROC of classes, or mean absolute error of numbers, with the share of the error of guessing
    that is removed, and its simultaneous lower limit.
    """

    value: float = np.nan
    gain: float = 0.0
    low: float = -np.inf

    @property
    def alarms(self) -> bool:
        """Whether the target is predicted better than by chance, and by enough."""
        return self.low > 0 and self.gain >= LEAST_GAIN

    def words(self, classes: bool) -> str:
        """The score in a sentence."""
        if classes:
            return f"AUROC {self.value:.2f}"
        return f"a mean error of {self.value:.3g} ({100 * self.gain:.0f} % less than guessing)"


def score(truth: Floats, predicted: Floats, units: Ints, tests: int) -> Score:
    """Judge predictions [N, K] of numbers [N, 1] or of indicators of classes [N, K].

    The limit counts `units`, groups of samples, and holds for `tests` tests together. That of an
    AUROC is Hanley and McNeil's (1982), that of numbers is normal. Both are wider by
    `FOLD_INFLATION`, as each pair of folds learns from the same samples.
    """
    z = FOLD_INFLATION * float(norm.ppf(1 - ALPHA / max(tests, 1)))
    if truth.shape[1] == 1:
        away = np.abs(truth[:, 0] - np.median(truth))
        guess = max(float(away.mean()), 1e-12)
        saved = away - np.abs(truth[:, 0] - predicted[:, 0])
        sums = np.bincount(units, saved) / np.bincount(units)
        error = float(sums.std(ddof=1)) / len(sums) ** 0.5 if len(sums) > 1 else np.inf
        gain = float(saved.mean()) / guess
        return Score(guess * (1 - gain), gain, gain - z * error / guess)
    areas = []
    for label, positive in enumerate(truth.T > 0):
        if min(positive.sum(), (~positive).sum()) < LEAST_OF_LEVEL:
            continue
        m, n = len(np.unique(units[positive])), len(np.unique(units[~positive]))
        area = auroc(positive, predicted[:, label])
        first, second = area / (2 - area), 2 * area**2 / (1 + area)
        spread = area * (1 - area) + (m - 1) * (first - area**2) + (n - 1) * (second - area**2)
        variance = max(spread / (m * n), (m + n + 1) / (48 * m * n))
        areas.append((area, area - z * variance**0.5, positive.sum()))
    if not areas:
        return Score()
    values, limits, sizes = np.array(areas).T
    area, low = float(np.average(values, weights=sizes)), float(np.average(limits, weights=sizes))
    return Score(area, 2 * area - 1, 2 * low - 1)


# --- the audit ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Goal:
    """The target: indicators or numbers [N, K], units that count, folds of the two splits [N]."""

    column: Column
    truth: Floats
    classes: bool
    grouped: bool
    units: Ints
    random: Ints
    fold: Ints


def _folds(ids: Sequence[str], target: Column, classes: bool, groups: Sequence[str] | None) -> Ints:
    """Number of the fold of each sample, [N]; whole groups stay together."""
    number = min(FOLDS, len(set(ids if groups is None else groups)))
    strata = [str(code) for code in target.codes] if classes else target.numbers
    splits = kfold(ids, number, groups, strata, 0.0, seed=0)
    fold_of = {name: place for place, split in enumerate(splits) for name in split.ids("test")}
    return np.array([fold_of[name] for name in ids], np.int64)


def _danger(column: Column, random: Score, fold: Score, grouped: bool) -> str:
    """Danger of a column: a key of `ADVICE`."""
    if fold.alarms and (grouped or not column.is_subject):
        return "same" if fold.gain >= SAME else "split"
    if not random.alarms:
        return ""
    return "prevented" if grouped else "random split"


def _advice(column: Column, goal: Goal, danger: str, found: Score) -> str:
    """Describe the danger of a column and the option that helps."""
    name = column.name
    if not column.varies:
        return f"{name} is constant." if column.levels else f"{name} is empty."
    if column.is_id:
        return f"{name} has a different value for every sample: an id, no leak."
    if not danger:
        return ""
    advice = ADVICE[danger]
    if name == DEPTH:
        advice = ": ask how the samples were sequenced."
    elif name == RICHNESS:
        advice = ": the report compares the model with it."
    elif danger == "split" and column.has_levels and column.levels <= MOST_LEVELS:
        advice = LEVELS_ADVICE
    words = found.words(goal.classes)
    return f"{name} predicts {goal.column.name} with {words}{advice.format(name=name)}"


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
        ``advice``.
    notes : list of str
        The microbes' own score, and samples that are nearly identical.
    """

    target: str
    classes: bool
    frame: pd.DataFrame
    notes: list[str]

    @property
    def advice(self) -> list[str]:
        """Sentences about columns, the most dangerous first."""
        return [text for text in self.frame["advice"] if text]

    def table(self, with_advice: bool = True) -> Table:
        """The audit as a table of a report."""
        metric, form = ("AUROC", ".2f") if self.classes else ("mean error", ".3g")
        scores = f"{metric}, random split", f"{metric}, this split"
        header = ("column", "levels", *scores, "microbes predict it", *["advice"] * with_advice)
        rows = [
            (
                shortened(row.column, 30),
                str(row.levels),
                *(
                    "-" if np.isnan(value) else f"{value:{form}}"
                    for value in (row.random, row.split)
                ),
                "-" if np.isnan(row.microbes_gain) else f"{max(row.microbes_gain, 0.0):.2f}",
                *[row.advice] * with_advice,
            )
            for row in self.frame.itertuples()
        ]
        title = f"How well each column alone predicts {self.target}"
        return Table(title, header, tuple(rows), "audit")


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
    column = make_column(metadata, target, ids)
    groups, whole = (
        None if name is None else metadata.groups(name, ids)
        for name in (group_column, fold_column or group_column)
    )
    units = np.unique(ids if groups is None else groups, return_inverse=True)[1]
    random = _folds(ids, column, classes, None)
    fold = random if whole is None else _folds(ids, column, classes, whole)
    truth = column.indicators(classes)
    goal = Goal(column, truth, classes, whole is not None, units, random, fold)
    columns = [make_column(metadata, name, ids) for name in metadata.columns if name != target]
    for name, numbers in ((DEPTH, study.table.depths[rows]), (RICHNESS, np.diff(presence.indptr))):
        codes = np.unique(numbers, return_inverse=True)[1]
        columns.append(Column(name, "reads", codes, numbers.astype(np.float64)))
    frame, kernel, own = _judged(columns, goal, presence)
    notes = _notes(metadata, ids, frame, columns, (kernel, goal, own))
    if pairs := nearly_identical(select_samples(study.table, ids)):
        notes.append(f"{len(pairs)} pairs of samples are nearly identical, such as {pairs[0]}.")
    return Audit(target, classes, frame, notes)


def _judged(
    columns: Sequence[Column], goal: Goal, presence: sparse.csr_matrix
) -> tuple[pd.DataFrame, Floats, Score]:
    """The rows of the columns, the kernel [N, N] of presence, and the microbes' score of the
    target.
    """
    common = presence[:, np.asarray(presence.sum(axis=0)).ravel() >= MIN_SAMPLES]
    kernel = np.asarray((common @ common.T).todense(), np.float64)
    kernel /= centred_variance(kernel) or 1.0
    asked = [column for column in columns if not column.is_id and column.varies]
    few = [
        column for column in asked if column.kind != "category" or 2 <= column.levels <= MOST_LEVELS
    ]
    blocks = [goal.truth, *(column.indicators() for column in few)]
    ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
    of_microbes = predicted_by_microbes(kernel, np.hstack(blocks), goal.random)
    own, *others = (
        score(block, part, goal.units, len(asked))
        for block, part in zip(blocks, np.split(of_microbes, ends, axis=1), strict=True)
    )
    seen = {column.name: found.gain for column, found in zip(few, others, strict=True)}
    rows = []
    for column in columns:
        random = fold = Score()
        if column in asked:
            random, fold = (
                score(goal.truth, predicted_by(column, goal.truth, by), goal.units, len(asked))
                for by in (goal.random, goal.fold)
            )
        danger = _danger(column, random, fold, goal.grouped)
        found = random if danger in ("random split", "prevented") else fold
        rows.append(
            {
                "column": column.name,
                "kind": column.kind,
                "levels": column.levels,
                "random": random.value,
                "split": fold.value,
                "random_gain": random.gain,
                "split_gain": fold.gain,
                "microbes_gain": seen.get(column.name, np.nan),
                "danger": danger,
                "advice": _advice(column, goal, danger, found),
            }
        )
    frame = pd.DataFrame(rows)
    rank = frame["danger"].map([*ADVICE].index)
    order = np.lexsort((-frame["random_gain"], rank))
    return frame.iloc[order].reset_index(drop=True), kernel, own


def _notes(
    metadata: Metadata,
    ids: Sequence[str],
    frame: pd.DataFrame,
    columns: Sequence[Column],
    fitted: tuple[Floats, Goal, Score],
) -> list[str]:
    """Say whether no column is dangerous, and how well microbes predict the target on a random
    split, and with groups of subjects.
    """
    kernel, goal, own = fitted
    if np.isnan(own.value):
        return [f"Nothing is judged: no class of {goal.column.name} has {LEAST_OF_LEVEL} samples."]
    quiet = [] if frame["danger"].any() else ["No column gives the target away."]
    notes = [*quiet, f"A linear model of presence has {own.words(goal.classes)} on a random split."]
    named = set(frame.loc[frame["danger"].isin(["random split", "prevented"]), "column"])
    for column in [column for column in columns if column.is_subject and column.name in named][:1]:
        fold = _folds(ids, goal.column, goal.classes, metadata.groups(column.name, ids))
        kept = score(goal.truth, predicted_by_microbes(kernel, goal.truth, fold), goal.units, 1)
        of_subject = pd.Series(goal.random).groupby(column.codes).transform("nunique")
        both = int(((of_subject > 1) & (column.codes >= 0)).sum())
        notes.append(
            f"With --group-column {column.name} it has {kept.words(goal.classes)}. On a random "
            f"split, {both} of {len(ids)} samples have samples of the same {column.name} in "
            "training."
        )
    return notes
