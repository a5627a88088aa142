"""What gives a target away: how well each metadata column predicts it without microbes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.stats import norm
from sklearn.tree import DecisionTreeRegressor

from aam.data.splits import kfold, nearly_alike
from aam.evaluate.metrics import auroc
from aam.io.metadata import Metadata, is_number
from aam.io.tables import AmpliconTable
from aam.predict.linear import PENALTY, centred_variance, ridge_duals
from aam.predict.samples import MIN_SAMPLES
from aam.report.tables import Table, shortened

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FOLDS = 5

# Day, month and year in any order, with or without a time.
DATE = re.compile(r"\d{1,4}[-/. ](\d{1,2}|[A-Za-z]{3,9})[-/., ]+\d{1,4}")

# A column is named if the chance of a false alarm over all columns is at most 5 %, and if it
# removes at least this share of the error of guessing.
ALPHA, LEAST_GAIN = 0.05, 0.2

# A column that removes so much of the error of guessing states the target itself.
SAME = 0.98

# Levels with so many samples or fewer on average are subjects; larger levels are batches.
MOST_PER_SUBJECT, LEAST_SUBJECTS = 30, 6

# Classes of fewer samples are not scored, and leaves of trees are not smaller.
LEAST_OF_LEVEL = 5

# Microbes are asked for levels of columns of at most so many.
MOST_LEVELS = 50

# Samples whose decomposition takes a second on one core.
MOST_SAMPLES = 1500

# Where a column gives the target away, the worst first.
ORDER = ("same", "split", "random split", "prevented", "")
ON_RANDOM = ("random split", "prevented")

DEPTH, RICHNESS = "sequencing depth", "richness"


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
    levels : int
    """

    name: str
    kind: str
    codes: Ints
    numbers: Floats
    levels: int

    @property
    def is_id(self) -> bool:
        """Whether every sample has a value of its own."""
        known = self.codes >= 0
        return self.kind in ("category", "date") and self.levels == known.sum()

    @property
    def is_subject(self) -> bool:
        """Whether the levels are as small as subjects with a few samples each."""
        known = max(int((self.codes >= 0).sum()), 1)
        repeated = LEAST_SUBJECTS <= self.levels < known
        return self.may_be_levels and repeated and known / self.levels <= MOST_PER_SUBJECT

    @property
    def may_be_levels(self) -> bool:
        """Whether the values are categories or whole numbers, which may be ids."""
        numbers = self.numbers[np.isfinite(self.numbers)]
        return self.kind == "category" or (self.kind == "number" and not (numbers % 1).any())


def _dates(values: Sequence[str | None]) -> Floats | None:
    """Days of dates in any usual format; None if the values are not dates."""
    text = pd.Series([value or None for value in values], dtype=object)
    known = text.dropna()
    if known.empty or not all(DATE.search(value) for value in known):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = pd.to_datetime(text, errors="coerce", format="mixed", utc=True)
    if parsed.notna().sum() < 0.9 * len(known):
        return None
    seconds = parsed.dt.as_unit("s").astype("int64").where(parsed.notna(), np.nan)
    return np.asarray(seconds, np.float64) / 86_400


def make_column(metadata: Metadata, name: str, ids: Sequence[str]) -> Column:
    """Read one column of the samples `ids`."""
    values = metadata.values(name, ids)
    levels = {value: code for code, value in enumerate(sorted({*values} - {None}, key=str))}
    codes = np.array([-1 if value is None else levels[value] for value in values], np.int64)
    if metadata.kinds[name] == "numeric" and all(is_number(value) for value in levels if value):
        numbers = np.array([np.nan if value is None else float(value) for value in values])
        return Column(name, "number", codes, numbers, len(levels))
    days = _dates(values)
    empty = np.full(len(codes), np.nan)
    kind = "category" if days is None else "date"
    return Column(name, kind, codes, empty if days is None else days, len(levels))


# --- predictions of the target ------------------------------------------------------------------


def _by_level(column: Column, target: Floats, train: Ints, test: Ints) -> Floats:
    """Shrunken training mean of the target [n, K] in the level of each test sample."""
    prior = target[train].mean(axis=0)
    known = train[column.codes[train] >= 0]
    sums = np.zeros((column.levels + 1, target.shape[1]))
    np.add.at(sums, column.codes[known], target[known])
    sizes = np.bincount(column.codes[known], minlength=column.levels + 1)
    means = (sums + prior) / (sizes + 1)[:, None]
    return np.asarray(means[column.codes[test]])


def _by_tree(column: Column, target: Floats, train: Ints, test: Ints) -> Floats:
    """Predictions [n, K] of a tree of depth 3 on the numbers of a column."""
    filled = np.nan_to_num(column.numbers, nan=np.nanmin(column.numbers) - 1)[:, None]
    leaf = max(LEAST_OF_LEVEL, len(train) // 50)
    tree = DecisionTreeRegressor(max_depth=3, min_samples_leaf=leaf, random_state=0)
    return np.asarray(tree.fit(filled[train], target[train]).predict(filled[test])).reshape(
        len(test), -1
    )


def predicted_by(column: Column, target: Floats, fold: Ints) -> Floats:
    """Target [N, K] of each fold, predicted from one column of the other folds.

    Whole numbers are read as levels too, and the better of both is taken.
    """
    ways = []
    if column.may_be_levels:
        ways.append(_by_level)
    if column.kind != "category" and np.isfinite(column.numbers).any():
        ways.append(_by_tree)
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
        cross = kernel[np.ix_(test, train)] - inner.mean(axis=0)
        result[test] = cross @ duals[0] + mean
    return result


@dataclass(frozen=True)
class Score:
    """AUROC of classes, or mean absolute error of numbers, with the share of the error of guessing
    that is removed, and its simultaneous lower limit.
    """

    value: float
    gain: float
    low: float

    @property
    def alarms(self) -> bool:
        """Whether the target is predicted better than by chance, and by enough."""
        return self.low > 0 and self.gain >= LEAST_GAIN


def score(truth: Floats, predicted: Floats, units: Ints, tests: int) -> Score:
    """Judge predictions [N, K] of numbers [N, 1] or of indicators of classes [N, K].

    The limit counts `units`, groups of samples, and holds for so many `tests` together. That of an
    AUROC is Hanley and McNeil's (1982), that of numbers is normal. Both are wider by the square
    root of 2, as each pair of folds learns from the same samples.
    """
    z = 2**0.5 * float(norm.ppf(1 - ALPHA / max(tests, 1)))
    if truth.shape[1] == 1:
        middle = float(np.median(truth))
        saved = np.abs(truth[:, 0] - middle) - np.abs(truth[:, 0] - predicted[:, 0])
        guess = max(float(np.abs(truth[:, 0] - middle).mean()), 1e-12)
        sums = np.bincount(units, saved) / np.bincount(units)
        error = float(sums.std(ddof=1)) / len(sums) ** 0.5 if len(sums) > 1 else np.inf
        gain = float(saved.mean()) / guess
        return Score(guess * (1 - gain), gain, gain - z * error / guess)
    areas, limits, sizes = [], [], []
    for label in range(truth.shape[1]):
        positive = truth[:, label] > 0
        pair = len(np.unique(units[positive])), len(np.unique(units[~positive]))
        if min(positive.sum(), (~positive).sum()) < LEAST_OF_LEVEL:
            continue
        area = auroc(positive, predicted[:, label])
        first, second = area / (2 - area), 2 * area**2 / (1 + area)
        variance = area * (1 - area) + (pair[0] - 1) * (first - area**2)
        variance = (variance + (pair[1] - 1) * (second - area**2)) / (pair[0] * pair[1])
        chance = (sum(pair) + 1) / (12 * pair[0] * pair[1])
        areas.append(area)
        limits.append(area - z * max(variance, chance / 4) ** 0.5)
        sizes.append(int(positive.sum()))
    if not areas:
        return Score(np.nan, 0.0, -np.inf)
    area, low = float(np.average(areas, weights=sizes)), float(np.average(limits, weights=sizes))
    return Score(area, 2 * area - 1, 2 * low - 1)


# --- the audit ----------------------------------------------------------------------------------


def indicators(column: Column, classes: bool) -> Floats:
    """A column as numbers [N, 1] or as indicators of its levels [N, K]; missing values are 0."""
    if classes or column.kind == "category":
        return np.asarray(column.codes[:, None] == np.arange(column.levels), np.float64)
    return np.nan_to_num(column.numbers, nan=float(np.nanmedian(column.numbers)))[:, None]


def _folds(ids: Sequence[str], target: Column, classes: bool, groups: Sequence[str] | None) -> Ints:
    """Number of the fold of each sample, [N]; whole groups stay together."""
    number = min(FOLDS, len(set(ids if groups is None else groups)))
    strata = [str(c) for c in target.codes] if classes else target.numbers
    fold_of = {
        name: place
        for place, split in enumerate(kfold(ids, number, groups, strata, 0.0, seed=0))
        for name in split.ids("test")
    }
    return np.array([fold_of[name] for name in ids], np.int64)


def _kernel(counts: sparse.csr_matrix) -> Floats:
    """Kernel [N, N] of the presence of features that enough samples have, of variance 1."""
    present = counts.astype(bool).astype(np.float32)
    common = np.asarray(present.sum(axis=0)).ravel() >= MIN_SAMPLES
    present = present[:, common]
    kernel = np.asarray((present @ present.T).todense(), np.float64)
    return kernel / (centred_variance(kernel) or 1.0)


def _sentence(column: Column, target: str, words: str, danger: str) -> str:
    """Say what a column does and which option helps."""
    name = column.name
    if column.is_id:
        return f"{name} has a different value for every sample: an id, no leak."
    if column.levels < 2:
        return f"{name} is constant."
    if not danger:
        return ""
    start = f"{name} predicts {target} with {words}"
    if name == DEPTH:
        return f"{start}: ask how the samples were sequenced."
    if name == RICHNESS:
        return f"{start}: the report compares the model with it."
    if danger == "random split":
        return f"{start} on a random split: use --group-column {name}."
    if danger == "prevented":
        return f"{start} on a random split; the groups of the split prevent this."
    if danger == "same":
        return f"{start}: it may state the target in other words. Leave it out of the covariates."
    if column.may_be_levels and column.levels <= MOST_LEVELS:
        return (
            f"{start}: use --batch-column {name}, or --study-column {name} to hold its values out."
        )
    return f"{start}: compare with a model that has it as a covariate."


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


def _goal(
    metadata: Metadata, target: str, ids: Sequence[str], classes: bool, groups: Sequence[str] | None
) -> Goal:
    column = make_column(metadata, target, ids)
    random = _folds(ids, column, classes, None)
    fold = random if groups is None else _folds(ids, column, classes, groups)
    units = np.unique(ids if groups is None else groups, return_inverse=True)[1]
    truth = indicators(column, classes)
    return Goal(column, truth, classes, groups is not None, units, random, fold)


def audit_samples(
    table: AmpliconTable,
    counts: sparse.csr_matrix,
    metadata: Metadata,
    target: str,
    classes: bool,
    groups: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Audit the samples of a table.

    Parameters
    ----------
    table : AmpliconTable
        Samples that have a value of the target.
    counts : csr [N, F]
        Their reads after rarefaction.
    metadata : Metadata
    target : str
    classes : bool
        Whether the target is predicted as classes.
    groups : sequence of str [N], optional
        Groups that the split of `aam train` keeps together.

    Returns
    -------
    DataFrame
        One row per column, the most dangerous first: `column`, `kind`, `levels`, `random` and
        `split` (AUROC or MAE of the target predicted from the column alone, on a random split and
        on that of `aam train`), `random_gain`, `split_gain` (share of the error of guessing that
        is removed), `microbes_gain` (how well microbes predict the column), `danger`, `advice`.
    list of str
        Notes about samples and the microbes' own score.
    """
    ids = table.sample_ids
    goal = _goal(metadata, target, ids, classes, groups)
    columns = [make_column(metadata, name, ids) for name in metadata.columns if name != target]
    for name, numbers in ((DEPTH, table.depths), (RICHNESS, np.diff(counts.indptr))):
        codes = np.unique(numbers, return_inverse=True)[1]
        columns.append(
            Column(name, "reads", codes, numbers.astype(np.float64), int(codes.max()) + 1)
        )
    asked = [column for column in columns if not column.is_id and column.levels > 1]
    few = [c for c in asked if c.kind != "category" or c.levels <= MOST_LEVELS]
    blocks = [goal.truth, *(indicators(column, False) for column in few)]
    kernel = _kernel(counts)
    of_microbes = predicted_by_microbes(kernel, np.hstack(blocks), goal.random)
    parts = np.split(of_microbes, np.cumsum([block.shape[1] for block in blocks])[:-1], axis=1)
    seen = {
        column.name: score(block, part, goal.units, len(asked)).gain
        for column, block, part in zip(few, blocks[1:], parts[1:], strict=True)
    }
    rows = [_row(column, goal, seen, len(asked) if column in asked else 0) for column in columns]
    frame = pd.DataFrame(rows)
    rank = frame["danger"].map(ORDER.index)
    order = np.lexsort((-frame["random_gain"], rank))
    frame = frame.iloc[order].reset_index(drop=True)
    notes = _notes(table, metadata, frame, columns, (kernel, goal, parts[0]))
    return frame, notes


def _row(column: Column, goal: Goal, seen: Mapping[str, float], tests: int) -> dict[str, Any]:
    """The row of a column, which is one of so many `tests`; 0 if it is not judged."""
    random = fold = Score(np.nan, 0.0, -np.inf)
    if tests:
        random, fold = (
            score(goal.truth, predicted_by(column, goal.truth, where), goal.units, tests)
            for where in (goal.random, goal.fold)
        )
    danger = _danger(column, random, fold, goal.grouped)
    words = _words(random if danger in ON_RANDOM else fold, goal)
    return {
        "column": column.name,
        "kind": column.kind,
        "levels": column.levels,
        "random": random.value,
        "split": fold.value,
        "random_gain": random.gain,
        "split_gain": fold.gain,
        "microbes_gain": seen.get(column.name, np.nan),
        "danger": danger,
        "advice": _sentence(column, goal.column.name, words, danger),
    }


def _danger(column: Column, random: Score, fold: Score, grouped: bool) -> str:
    """Where a column gives the target away: a key of `ORDER`."""
    if fold.alarms and not (column.is_subject and not grouped):
        return "same" if fold.gain >= SAME else "split"
    if not random.alarms:
        return ""
    return "prevented" if grouped else "random split"


def _words(one: Score, goal: Goal) -> str:
    if goal.classes:
        return f"AUROC {one.value:.2f}"
    return f"a mean error of {one.value:.3g} ({100 * one.gain:.0f} % less than guessing)"


def _notes(
    table: AmpliconTable,
    metadata: Metadata,
    frame: pd.DataFrame,
    columns: Sequence[Column],
    fitted: tuple[Floats, Goal, Floats],
) -> list[str]:
    """Say how well microbes predict the target on both splits, and which samples are too alike."""
    (kernel, goal, predicted), ids = fitted, table.sample_ids
    plain = score(goal.truth, predicted, goal.units, 1)
    notes = [f"A linear model of presence has {_words(plain, goal)} on a random split."]
    named = set(frame[frame["danger"].isin(ON_RANDOM)]["column"])
    for column in [column for column in columns if column.is_subject and column.name in named][:1]:
        groups = metadata.groups(column.name, ids)
        fold = _folds(ids, goal.column, goal.classes, groups)
        kept = score(goal.truth, predicted_by_microbes(kernel, goal.truth, fold), goal.units, 1)
        codes = column.codes
        both = sum(
            int(np.isin(codes[goal.random == k], codes[(goal.random != k) & (codes >= 0)]).sum())
            for k in np.unique(goal.random)
        )
        notes += [
            f"With --group-column {column.name} it has {_words(kept, goal)}.",
            f"On a random split, {both} of {len(ids)} samples have samples of the same "
            f"{column.name} in training.",
        ]
    if alike := nearly_alike(table):
        notes.append(f"{len(alike)} pairs of samples are nearly identical, such as {alike[0]}.")
    return notes


def audit_table(frame: pd.DataFrame, target: str, classes: bool) -> Table:
    """The audit as a table of a report."""

    def shown(value: float) -> str:
        return "-" if np.isnan(value) else f"{value:.2f}" if classes else f"{value:.3g}"

    def gain(value: float) -> str:
        return "-" if np.isnan(value) else f"{max(value, 0.0):.2f}"

    metric = "AUROC" if classes else "mean error"
    header = (
        "column",
        "levels",
        f"{metric}, random split",
        f"{metric}, this split",
        "microbes predict it",
    )
    rows = tuple(
        (
            shortened(str(row["column"]), 30),
            str(row["levels"]),
            shown(float(row["random"])),
            shown(float(row["split"])),
            gain(float(row["microbes_gain"])),
        )
        for row in frame.to_dict("records")
    )
    return Table(f"How well each column alone predicts {target}", header, rows, "audit")
