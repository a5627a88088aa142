"""Audit: how well each metadata column predicts a target without microbes, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.stats import rankdata

from aam.config import ColumnKind
from aam.data.splits import Groups
from aam.data.study import Study
from aam.device.rng import generator
from aam.io.metadata import Metadata
from aam.options import not_none
from aam.predict.column_kinds import Overview, has_role, overview
from aam.predict.columns import (
    MOST_LEVELS,
    STATES,
    Column,
    is_equal,
    is_nested,
    make_column,
    read_column,
)
from aam.predict.leaks import (
    DANGERS,
    LARGEST_LIMIT,
    LEAST_GROUPS_OF_CLASS,
    LEAST_OF_LEVEL,
    Design,
    Score,
    predicted_by_microbes,
    scaled,
    score,
)
from aam.predict.out_of_fold import Fold, group_folds
from aam.predict.prediction import presence_of
from aam.typing import Ids, Integers, Ints

AUDIT_FOLDS, MOST_COVARIATES = 5, 5
# The kernel of this number of samples takes a second.
MOST_AUDIT_SAMPLES = 1500

DEPTH_COLUMN, RICHNESS = "sequencing depth", "richness"

# Columns of the frame of an audit with numbers.
SCORES = ("random", "split", "random_gain", "split_gain", "microbes_gain")


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
        ``part`` (the part of a name or date that tells the target), ``state`` (id, constant or
        empty if it is not judged). Without a target the scores are missing.
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
    if len(rows) > MOST_AUDIT_SAMPLES:
        rows = np.sort(generator(0, "audit").choice(rows, MOST_AUDIT_SAMPLES, replace=False))
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    presence = presence_of(study, rows)
    columns = [read_column(metadata, name, ids) for name in metadata.columns if name != target]
    columns.append(_column_of_reads(DEPTH_COLUMN, study.table.depths[rows]))
    columns.append(_column_of_reads(RICHNESS, np.diff(presence.indptr)))
    if target is None:
        view = overview(columns, kinds or {}, presence, np.zeros(len(ids), np.int64))
        return Audit(None, False, _frame(view), group=view.subject)
    classes = classifier or metadata.kinds[target] != "numeric"
    goal = read_column(metadata, target, ids)
    view = overview([*columns, goal], kinds or {}, presence, _strata(goal, classes))
    *columns, goal = view.columns
    view = Overview(columns, None if view.subject == target else view.subject, view.within)
    design = _design(metadata, ids, goal, classes, view, (group_column, fold_column))
    microbes, gains = _scores_of_microbes(presence, design, columns)
    frame = _frame(view, _judgements(design, columns, gains))
    options = _recommendation(design, view, frame)
    return Audit(
        target,
        classes,
        frame,
        microbes,
        group=design.group,
        divided_by=design.fold or design.group,
        units=len(np.unique(design.units)),
        noticeable=design.noticeable,
        recommendation=options,
        has_gaps=_has_gaps(study, columns, options),
    )


# --- how the samples are divided -----------------------------------------------------------------


def _column_of_reads(name: str, numbers: Integers) -> Column:
    return make_column(name, pd.Series(numbers), "reads", numbers.astype(np.float64))


def _strata(goal: Column, classes: bool) -> Ints:
    """Classes of the target, or up to ten parts of its numbers of at least `LEAST_OF_LEVEL`."""
    if classes:
        return goal.codes
    parts = int(np.clip(len(goal.codes) // LEAST_OF_LEVEL, 1, 10))
    order = rankdata(goal.numbers, method="ordinal") - 1
    return np.asarray(order * parts // len(order), np.int64)


def _folds(ids: Ids, goal: Column, classes: bool, groups: Groups) -> list[Fold]:
    """Folds that spread the target evenly; whole groups stay together."""
    strata = [str(code) for code in goal.codes] if classes else goal.numbers
    return group_folds(ids, AUDIT_FOLDS, groups, strata, seed=0)


def _design(
    metadata: Metadata,
    ids: Ids,
    goal: Column,
    classes: bool,
    view: Overview,
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
    return Design(
        goal,
        classes,
        random,
        split,
        units=np.unique(groups, return_inverse=True)[1],
        tests=sum((not column.state) + len(column.parts) for column in view.columns),
        group=group,
        fold=fold_column,
        has_option=bool(fold_column or group_column),
    )


def _has_gaps(study: Study, columns: Sequence[Column], options: Recommendation) -> bool:
    """Whether samples were left out for lack of metadata, or lack a recommended column."""
    needed = [column for column in columns if column.name in (options.batch, options.study)]
    are_left_out = len(study.aligned) < len(study.samples)
    return are_left_out or any((column.codes < 0).any() for column in needed)


# --- the frame -----------------------------------------------------------------------------------


def _scores_of_microbes(
    presence: sparse.csr_matrix, design: Design, columns: Sequence[Column]
) -> tuple[Score, dict[Column, float]]:
    """The microbes' score of the target, and the gain by which they predict each column of not too
    many levels.
    """
    columns = [column for column in columns if not column.state]
    columns = [c for c in columns if c.form != "category" or 2 <= c.levels <= MOST_LEVELS]
    truths = [design.truth, *(scaled(column.indicators()) for column in columns)]
    ends = np.cumsum([truth.shape[1] for truth in truths])[:-1]
    predicted = predicted_by_microbes(presence, np.hstack(truths), design.random)
    target, *others = np.split(predicted, ends, axis=1)
    gains = {
        column: score(truth, values, design.units, design.tests).gain
        for column, truth, values in zip(columns, truths[1:], others, strict=True)
    }
    return design.score(target), gains


def _judgements(
    design: Design, columns: Sequence[Column], gains: Mapping[Column, float]
) -> pd.DataFrame:
    """The scores of each column, its danger, and the part of its values that tells the target."""
    rows = []
    for column in columns:
        random, split, danger, part = Score(), Score(), "", ""
        if not column.state:
            random, split = design.scores(column)
            danger = design.danger(column, random, split)
        if danger in ("", "prevented") and column.name != design.group:
            part_scores = [(*design.scores(part), part.name) for part in column.parts]
            alarms = [scores for scores in part_scores if scores[1].alarms]
            if alarms:
                random, split, part = max(alarms, key=lambda scores: scores[1].gain)
                danger = "part"
        values = random.value, split.value, random.gain, split.gain, gains.get(column, np.nan)
        rows.append((*values, danger, part))
    return pd.DataFrame(rows, columns=[*SCORES, "danger", "part"])


def _frame(view: Overview, judgements: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rows of an audit, the most dangerous first; without judgements scores are missing."""
    facts = [
        (column.name, column.kind, column.form, column.levels, view.within.get(column.name, ""))
        for column in view.columns
    ]
    frame = pd.DataFrame(facts, columns=["column", "kind", "form", "levels", "within"])
    if judgements is None:
        frame = frame.assign(**dict.fromkeys(SCORES, np.nan), danger="", part="")
    else:
        frame = frame.join(judgements)
    frame["state"] = [column.state for column in view.columns]
    danger, state = frame["danger"].map([*DANGERS, ""].index), frame["state"].map(STATES.index)
    order = np.lexsort((-frame["random_gain"].fillna(-np.inf), state, danger))
    return frame.iloc[order].reset_index(drop=True)


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
    if column.kind not in ("technical", "time") or has_role(column, "folds"):
        return False
    return column.has_levels and 2 <= column.levels <= MOST_LEVELS


def _is_study(column: Column, subjects: Column | None, design: Design) -> bool:
    """Whether the values of a column can be held out, whole subjects with them, and should be."""
    if column.levels < LEAST_GROUPS_OF_CLASS:
        return False
    if subjects is not None and not is_nested(subjects, column):
        return False
    return has_role(column, "studies") or design.is_decided_by(column)


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
