"""Audit: what each metadata column says about the target, microbes and samples, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from aam.data.columns import Column, column_of_numbers, is_constant_within, read_column
from aam.data.donors import Donors, find_donors, likeness_of, likeness_within
from aam.data.splits import Groups
from aam.data.study import Study
from aam.device.rng import subsample
from aam.options import not_none
from aam.predict import leaks
from aam.predict.out_of_fold import Fold, group_folds
from aam.predict.prediction import presence_of
from aam.typing import Floats, Ints

AUDIT_FOLDS = 5
# The likenesses of this number of samples take a second.
MOST_AUDIT_SAMPLES = 1000
# Columns of more levels are not predicted by microbes.
MOST_LEVELS = 50

DEPTH_COLUMN, RICHNESS = "sequencing depth", "richness"

# What follows from the figures of a column, the worst first.
REMARKS = ("same", "predicts", "donors", "ordered", "", "id", "constant")


@dataclass(frozen=True, eq=False)
class Audit:
    """The audit of a target, or of the columns alone.

    Attributes
    ----------
    target : str, optional
    frame : DataFrame
        One row per column: ``column``, ``levels``, ``samples`` (with a value), ``random`` and
        ``split`` (AUROC or MAE of the target predicted from the column alone, on random folds and
        on whole values of `divided_by`), ``random_gain`` and ``split_gain`` (share of the error of
        guessing that is removed), ``decides`` (share of the samples of each class of the target
        that the column tells), ``decided`` (the same with both exchanged), ``same_value`` and
        ``other_values`` (mean likeness of the reads of two samples with the same value and with
        others), ``microbes_gain`` (how well microbes predict the column), ``remark`` (one of
        `REMARKS`). Without a target its scores are missing.
    donors : tuple of str
        Columns that may name donors, found from the reads, but for those that `group` keeps whole.
    group : str, optional
        The column of groups that the user gives.
    divided_by : str, optional
        The column whose values stay together in the split.
    classes : bool
        Whether the target is predicted as classes.
    microbes : Score
        How well the microbes predict the target.
    units : int
        Number of groups, or of samples.
    has_gaps : bool
        Whether samples without metadata were left out.
    """

    target: str | None
    frame: pd.DataFrame
    donors: tuple[str, ...] = ()
    group: str | None = None
    divided_by: str | None = None
    classes: bool = False
    microbes: leaks.Score = field(default_factory=leaks.Score)
    units: int = 0
    has_gaps: bool = False

    @property
    def recommended_group(self) -> str | None:
        """The only column that may name donors, where the user gives no groups."""
        return self.donors[0] if len(self.donors) == 1 and self.group is None else None


def make_audit(
    study: Study,
    target: str | None,
    classifier: bool = False,
    group_column: str | None = None,
    fold_column: str | None = None,
    time_column: str | None = None,
) -> Audit:
    """Audit the samples of a study, or a random part of many, for one target.

    Parameters
    ----------
    study : Study
        Samples that have a value of the target.
    target : str, optional
        Unset: nothing is predicted.
    classifier : bool
        Whether numbers are predicted as classes.
    group_column : str, optional
        Column of groups that a split keeps together; unset: the only one that may name donors.
    fold_column : str, optional
        Column whose values that split holds out whole; unset: those of the groups.
    time_column : str, optional
        Column of times, which names no donors.
    """
    rows = subsample(len(study.table), 0, MOST_AUDIT_SAMPLES)
    metadata, data = not_none(study.metadata), study.config
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    presence, alike = presence_of(study, rows), likeness_of(study.table.counts[rows])
    read = {name: read_column(metadata, name, ids) for name in metadata.columns}
    columns = [column for name, column in read.items() if name != target]
    columns.append(column_of_numbers(DEPTH_COLUMN, study.table.depths[rows]))
    columns.append(column_of_numbers(RICHNESS, np.diff(presence.indptr)))
    ignored = {*filter(None, (target, data.study_column, data.batch_column, time_column))}
    candidates = find_donors([*read.values()], alike, ignored, read.get(data.study_column or ""))
    frame = pd.DataFrame([_description(column, alike, candidates) for column in columns])
    # Groups of one sample each keep nothing together.
    given = group_column if group_column and read[group_column].levels < len(ids) else None
    donors = _divided_donors(candidates, read[given] if given else None)
    audit = Audit(target, frame, donors, given, has_gaps=len(study.aligned) < len(study.samples))
    if target is None:
        return replace(audit, frame=_sorted(frame))
    group = given or audit.recommended_group
    divider = fold_column or data.study_column or group
    metadata = metadata.nested(group, data.study_column)
    groups, divided = (None if x is None else metadata.groups(x, ids) for x in (group, divider))
    goal, units = read[target], np.unique(groups or ids, return_inverse=True)[1]
    classes = classifier or not goal.is_number
    split, random = _folds(ids, goal, divided), _folds(ids, goal, None)
    design = Design(goal, classes, split, random, units, int((frame["remark"] == "").sum()))
    microbes, gains = _scores_of_microbes(presence, design, columns)
    return replace(
        audit,
        frame=_sorted(_judged(frame.assign(microbes_gain=gains), design, columns)),
        classes=classes,
        divided_by=divider,
        microbes=microbes,
        units=int(units.max()) + 1,
    )


# --- figures -------------------------------------------------------------------------------------


def _divided_donors(candidates: Sequence[Donors], groups: Column | None) -> tuple[str, ...]:
    """The columns that may name donors, but for those that the given groups keep whole."""
    columns = [donors.column for donors in candidates if not donors.is_ordered]
    return tuple(
        column.name
        for column in columns
        if groups is None or column.name == groups.name or not is_constant_within(groups, column)
    )


def _judged(frame: pd.DataFrame, design: Design, columns: Sequence[Column]) -> pd.DataFrame:
    """The rows of columns with their measurements, and the remark that follows from these."""
    frame = frame.join(pd.DataFrame([design.measurements(column) for column in columns]))
    pairs = zip(columns, frame.itertuples(), strict=True)
    return frame.assign(remark=[design.remark(column, row) for column, row in pairs])


def _description(column: Column, alike: Floats, candidates: Sequence[Donors]) -> dict[str, object]:
    """Levels, samples and likeness of a column, and what follows from them."""
    remark = {x.column.name: "ordered" if x.is_ordered else "donors" for x in candidates}
    likeness = likeness_within(column.codes, alike)
    if column.levels < 2 and column.samples in (0, len(column.codes)):
        state = "constant"
    elif column.levels == len(column.codes) and not column.is_number:
        state = "id"
    else:
        state = remark.get(column.name, "")
    return {
        "column": column.name,
        "levels": column.levels,
        "samples": column.samples,
        "same_value": likeness.same,
        "other_values": likeness.others,
        "remark": state,
    }


@dataclass(frozen=True, eq=False)
class Design:
    """What every column of an audit is judged by; N samples, K classes (1 for numbers).

    `split` and `random` are folds, `units` int64 [N] the group of each sample, and `tests` the
    number of columns that are judged together.
    """

    goal: Column
    classes: bool
    split: Sequence[Fold]
    random: Sequence[Fold]
    units: Ints
    tests: int

    @property
    def codes(self) -> Ints:
        """Classes of the target, or parts of its numbers, int64 [N]."""
        return self.goal.codes if self.classes else self.goal.strata

    @cached_property
    def truth(self) -> Floats:
        """The target as numbers [N, 1] or indicators of classes [N, K]."""
        return leaks.indicators(self.goal, self.classes)

    def score(self, predicted: Floats) -> leaks.Score:
        """Judge predictions [N, K] of the target."""
        return leaks.score(self.truth, predicted, self.units, self.tests)

    def measurements(self, column: Column) -> dict[str, float]:
        """Scores of a column on both splits, and how far it and the target decide each other."""
        few_levels = 2 * column.levels <= column.samples
        codes = column.codes if few_levels else column.strata
        random = self.score(leaks.predicted_by(column, self.truth, self.random))
        split = self.score(leaks.predicted_by(column, self.truth, self.split))
        return {
            "random": random.value,
            "split": split.value,
            "random_gain": random.gain,
            "split_gain": split.gain,
            "split_low": split.low,
            "decides": leaks.share_decided(codes, self.codes),
            "decided": leaks.share_decided(self.codes, codes),
        }

    def remark(self, column: Column, row: Any) -> str:
        """What follows from the figures of a column, one of `REMARKS`."""
        if row.remark in ("id", "constant", "donors"):
            return str(row.remark)
        if self.classes and leaks.is_confounded(column, self.goal):
            return "same"
        if not self.classes and leaks.is_copy_of_number(column, self.goal.numbers):
            return "same"
        alarms = leaks.Score(row.split, row.split_gain, row.split_low).alarms
        return "predicts" if alarms else str(row.remark)


def _folds(ids: Sequence[str], goal: Column, groups: Groups) -> list[Fold]:
    """Folds that spread the target evenly; whole groups stay together."""
    strata = goal.numbers if goal.is_number else [str(code) for code in goal.codes]
    return group_folds(ids, AUDIT_FOLDS, groups, strata, seed=0)


def _scores_of_microbes(
    presence: sparse.csr_matrix, design: Design, columns: Sequence[Column]
) -> tuple[leaks.Score, list[float]]:
    """The microbes' score of the target, and the gain by which they predict each column that varies
    and has not too many levels, else NaN.
    """
    told = [c for c in columns if c.is_number or 2 <= c.levels <= MOST_LEVELS]
    truths = [design.truth, *map(leaks.indicators, told)]
    ends = np.cumsum([truth.shape[1] for truth in truths])[:-1]
    predicted = leaks.predicted_by_microbes(presence, np.hstack(truths), design.random)
    target, *others = np.split(predicted, ends, axis=1)
    gains = {
        column.name: leaks.score(truth, values, design.units, design.tests).gain
        for column, truth, values in zip(told, truths[1:], others, strict=True)
    }
    return design.score(target), [gains.get(column.name, np.nan) for column in columns]


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of an audit: the most dangerous first, then those that tell most of the target."""
    gain = frame["split_gain"].to_numpy() if "split_gain" in frame else frame["same_value"]
    order = np.lexsort((-np.nan_to_num(gain, nan=-np.inf), frame["remark"].map(REMARKS.index)))
    return frame.iloc[order].reset_index(drop=True)
