"""Predictions of samples in the units of their targets: a table of several targets, its file
(.tsv), and one target next to its truth.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from aam.config import RESERVED, DataConfig
from aam.data.targets import TargetSpec
from aam.errors import InputError, problem, refuse, reworded, shown
from aam.evaluate.metrics import (
    Measure,
    by_fold,
    has_prediction,
    weighted_classification_metrics,
    weighted_regression_metrics,
)
from aam.files.atomic import write_text
from aam.io.metadata import Metadata
from aam.io.text import read_text
from aam.typing import Array, Bools

# Suffixes of columns TARGET.SUFFIX: standard deviation over rarefactions and over models, limits
# of the conformal interval.
RAREFACTION_SD, MEMBER_SD, LOW, HIGH = SUFFIXES = ("rarefaction-sd", "member-sd", "low", "high")

# Columns of text, which end every file: the fold that held a sample out, "" without folds; what the
# sample was to the model, one of `SAMPLE_SUBSETS`, "" without a prediction; why it has no value.
TEXT_COLUMNS = RESERVED[1:]

# Written where predictions are made. Limits were fitted on "calibration" samples, and no model has
# seen "new" ones; evaluation finds those of a "seen-group".
SampleSubset = Literal["train", "validation", "test", "calibration", "new", "seen-group"]
SAMPLE_SUBSETS: tuple[SampleSubset, ...] = get_args(SampleSubset)

# What judged samples are called: the first of these that one of them is decides. Only "held-out"
# ones took no part in learning or choosing anything.
EvaluatedSubset = Literal["held-out", "validation", "training", "seen-group"]
TAKEN_PART: dict[SampleSubset, EvaluatedSubset] = {
    "train": "training",
    "validation": "validation",
    "seen-group": "seen-group",
}

# How far the probabilities of a sample, each written with seven digits, may be from a sum of 1.
# Squares of numbers above the largest overflow.
SHARE_ROUNDING, LARGEST_PREDICTION = 1e-4, 1e38

WRITTEN = (
    f"predictions as aam writes them, with the columns {RESERVED[0]}, those of the targets and "
    f"{', '.join(TEXT_COLUMNS)}"
)
REMEDY = "pass such a file, unchanged, or predict anew with --model and --table"


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """Predictions of the targets `specs`, in a `frame` with a row per sample id [N].

    It has TARGET and TARGET.SUFFIX of a number, TARGET=LABEL of classes, NaN where there is no
    prediction; and `TEXT_COLUMNS`.
    """

    specs: tuple[TargetSpec, ...]
    frame: pd.DataFrame

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Sample ids [N]."""
        return tuple(self.frame.index)

    def texts(self, column: str) -> tuple[str, ...]:
        """A column of `TEXT_COLUMNS`, [N]."""
        return tuple(self.frame[column])

    def predicted(self, target: str) -> Array:
        """The values [N] of a number, or the probabilities [N, classes]."""
        (spec,) = (spec for spec in self.specs if spec.name == target)
        columns = _columns(spec) if spec.labels else target
        return np.asarray(self.frame[columns], np.float64)

    def limits(self, target: str) -> Array | None:
        """The limits of the conformal intervals of a target, [N, 2], if there are any."""
        names = [f"{target}.{LOW}", f"{target}.{HIGH}"]
        has_limits = set(names) <= set(self.frame)
        return np.asarray(self.frame[names], np.float64) if has_limits else None

    def with_columns(self, columns: Mapping[str, Any]) -> PredictionTable:
        """Add or replace columns of the table, such as ``note``."""
        return replace(self, frame=self.frame.assign(**columns))

    def with_limits(self, target: str, limits: Array) -> PredictionTable:
        """Set the conformal intervals [N, 2] of a target."""
        low, high = limits.T
        return self.with_columns({f"{target}.{LOW}": low, f"{target}.{HIGH}": high})

    def with_rows(self, sample_ids: Sequence[str], notes: Mapping[str, str]) -> PredictionTable:
        """Rows for `sample_ids` in their order; those without a prediction say why."""
        frame = self.frame.reindex(pd.Index(sample_ids, name="sample-id"))
        frame["note"] = [notes.get(name, "") for name in sample_ids]
        return replace(self, frame=frame.fillna(dict.fromkeys(TEXT_COLUMNS, "")))


def _columns(spec: TargetSpec) -> list[str]:
    """Columns of numbers that a target may have, in the order of the file."""
    if spec.kind == "class":
        return [f"{spec.name}={label}" for label in spec.labels]
    return [spec.name, *(f"{spec.name}.{suffix}" for suffix in SUFFIXES)]


def make_predictions(
    sample_ids: Sequence[str],
    specs: Sequence[TargetSpec],
    predicted: Mapping[str, Array],
    deviations: Mapping[str, Array] | None = None,
    **texts: Sequence[str] | str,
) -> PredictionTable:
    """Make a table of values [N] or probabilities [N, classes] by target.

    `deviations` are those over rarefactions, by target; `texts` the columns of text.
    """
    columns: dict[str, object] = {}
    for spec in specs:
        values = predicted[spec.name]
        columns |= zip(_columns(spec), values.T if spec.labels else [values], strict=False)
    for name, deviation in (deviations or {}).items():
        columns[f"{name}.{RAREFACTION_SD}"] = deviation
    columns |= {name: texts.get(name, "") for name in TEXT_COLUMNS}
    frame = pd.DataFrame(columns, pd.Index(sample_ids, name="sample-id", dtype=object))
    return PredictionTable(tuple(specs), frame)


def _with_same_labels(tables: Sequence[PredictionTable]) -> list[PredictionTable]:
    """The tables with the labels of all; a label that a model never saw has probability 0. Bounds
    are those of the first.
    """
    specs, absent = [], dict[str, float]()
    for versions in zip(*(table.specs for table in tables), strict=True):
        union = {label for version in versions for label in version.labels}
        complete = (version.labels for version in versions if set(version.labels) == union)
        labels = next(complete, tuple(sorted(union)))
        spec = replace(versions[0], labels=labels)
        specs.append(spec)
        absent |= dict.fromkeys(_columns(spec) if spec.labels else [], 0.0)
    made = []
    for table in tables:
        new = {name: share for name, share in absent.items() if name not in table.frame}
        made.append(PredictionTable(tuple(specs), table.frame.assign(**new)))
    return made


def joined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Put tables one below the other."""
    tables = _with_same_labels(tables)
    return replace(tables[0], frame=pd.concat([table.frame for table in tables]))


def combined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Average what several models predict of the same samples: values, limits and probabilities.

    The standard deviation over rarefactions is that within a model; the one between the models
    has a column of its own.
    """
    if len(tables) == 1:
        return tables[0]
    tables = _with_same_labels(tables)
    columns: dict[str, object] = {}
    for name, first in tables[0].frame.items():
        if name in TEXT_COLUMNS:
            columns[name] = first
        elif all(name in table.frame for table in tables):
            power = 2 if str(name).endswith(f".{RAREFACTION_SD}") else 1
            powers = np.stack([table.frame[name].to_numpy() ** power for table in tables])
            columns[name] = powers.mean(axis=0) ** (1 / power)
    for spec in tables[0].specs:
        if spec.kind == "numeric":
            values = [table.frame[spec.name] for table in tables]
            columns[f"{spec.name}.{MEMBER_SD}"] = np.std(values, axis=0)
    return replace(tables[0], frame=pd.DataFrame(columns, tables[0].frame.index))


def name_problems(specs: Iterable[TargetSpec]) -> list[str]:
    """Say which columns of predictions would have the same name, or the name of a derived one."""
    names = Counter(name for spec in specs for name in {spec.name, *_columns(spec)})
    return [
        f"--metadata-column: two columns of predictions would be called {name!r}; rename one in "
        "the metadata"
        for name in sorted(names)
        if names[name] > 1
    ]


def file_frame(table: PredictionTable) -> pd.DataFrame:
    """Columns of the file by sample id: TARGET, TARGET.SUFFIX, TARGET=LABEL; fold, subset, note."""
    columns: dict[str, object] = {}
    for spec in table.specs:
        if spec.kind == "class":
            shares = table.predicted(spec.name)
            labels = np.array(spec.labels, object)[shares.argmax(axis=1)]
            columns[spec.name] = np.where(np.isnan(shares).any(axis=1), "", labels)
        columns |= {name: table.frame[name] for name in _columns(spec) if name in table.frame}
    columns |= {name: table.frame[name] for name in TEXT_COLUMNS}
    return pd.DataFrame(columns, table.frame.index)


def write_predictions(path: Path, table: PredictionTable) -> None:
    """Write the `file_frame` of a table, numbers with seven digits."""
    text = io.StringIO(newline="")
    file_frame(table).to_csv(text, sep="\t", float_format="%.7g", lineterminator="\n")
    write_text(path, text.getvalue())


def _cells(path: Path) -> pd.DataFrame:
    """The cells of a file as text, by sample id."""
    lines = csv.reader(io.StringIO(read_text(path), newline=""), dialect="excel-tab", strict=True)
    with reworded((csv.Error,), f"{path}: expected {WRITTEN}"):
        names, *rows = [row for row in lines if row] or [[]]
    ends = [*names[:1], *names[1:][-len(TEXT_COLUMNS) :]]
    if ends != [*RESERVED] or len(names) == len(RESERVED):
        raise InputError(problem(path, f"has the columns {shown(names)}", WRITTEN, REMEDY))
    odd = sum(len(row) != len(names) for row in rows)
    if odd or not rows:
        fault = f"{odd} of {len(rows)} rows have not {len(names)} cells; is the file cut off?"
        raise InputError(problem(path, fault, WRITTEN, REMEDY))
    cells = pd.DataFrame(rows, columns=range(len(names)), dtype=object)
    # A sample may have the name of a column.
    counts = [*Counter(names).items(), *Counter(cells[0]).items()]
    if wrong := [name for name, count in counts if count > 1 or not name]:
        raise InputError(problem(path, f"{shown(wrong)} twice or empty", WRITTEN, REMEDY))
    return cells.set_axis(names, axis=1).set_index("sample-id")


def _specs(columns: Sequence[str]) -> tuple[TargetSpec, ...]:
    """The targets of the columns of a file: each stands before what is derived from it."""
    specs, rest = list[TargetSpec](), [*columns]
    while rest:
        name, labels = rest.pop(0), list[str]()
        while rest and rest[0].startswith(f"{name}="):
            labels.append(rest.pop(0).removeprefix(f"{name}="))
        specs.append(TargetSpec(name, "class" if labels else "numeric", tuple(labels)))
        while not labels and rest and rest[0] in _columns(specs[-1]):
            del rest[0]
    return tuple(specs)


def read_predictions(path: Path) -> PredictionTable:
    """Read what `write_predictions` wrote.

    Raises
    ------
    InputError
        Another file, or cells that `write_predictions` does not write: all of them are named.
    """
    cells = _cells(path)
    specs = _specs([*cells][: -len(TEXT_COLUMNS)])
    numbers = [name for spec in specs for name in _columns(spec) if name in cells]
    frame, faults = cells[[*TEXT_COLUMNS]].copy(), dict[str, pd.Series]()
    for name in numbers:
        frame[name] = pd.to_numeric(cells[name], errors="coerce").astype(np.float64)
        is_number = frame[name].abs() <= LARGEST_PREDICTION
        faults[f"column {name!r}: no number"] = (cells[name] != "") & ~is_number
    table, subset, has_fold = PredictionTable(specs, frame), frame["subset"], frame["fold"] != ""
    is_predicted = np.any([has_prediction(table.predicted(x.name)) for x in specs], axis=0)
    faults[f"column 'subset': none of {', '.join(SAMPLE_SUBSETS)}"] = ~subset.isin(
        SAMPLE_SUBSETS
    ) & (is_predicted | (subset != ""))
    faults["column 'fold': no value, though other samples have one"] = (
        is_predicted & ~has_fold & (subset == "test") & has_fold.any()
    )
    for spec in specs:
        if (limits := table.limits(spec.name)) is not None:
            fault = f"column {spec.name!r}: a lower limit above the upper one"
            faults[fault] = pd.Series(limits[:, 0] > limits[:, 1], frame.index)
    for spec in (spec for spec in specs if spec.labels):
        shares = frame[_columns(spec)]
        outside = ((shares < -SHARE_ROUNDING) | (shares > 1 + SHARE_ROUNDING)).any(axis=1)
        is_sum = (shares.sum(axis=1, skipna=False) - 1).abs() <= SHARE_ROUNDING
        fault = f"column {spec.name!r}: probabilities that are no numbers from 0 to 1 with a sum of"
        faults[f"{fault} 1"] = shares.notna().any(axis=1) & (outside | ~is_sum)
    listed = dict[str, bool]()
    for fault, rows in faults.items():
        text = f"{fault}, in {rows.sum()} of {len(rows)} samples ({shown(rows.index[rows], 3)})"
        listed[f"{text}; {REMEDY}"] = bool(rows.any())
    refuse(path, listed)
    return table


def is_written(path: Path) -> bool:
    """Return whether a file is one of `aam predict`: a file of predictions without folds."""
    with contextlib.suppress(InputError):
        return not any(read_predictions(path).texts("fold"))
    return False


@dataclass(frozen=True, eq=False)
class TargetPredictions:
    """Predictions of one target on N samples.

    Attributes
    ----------
    sample_ids : tuple of str [N]
    truth : float [N], or int [N] of classes
        In the column's units, NaN = missing; or the index into `labels`, -1 = missing,
        `UNKNOWN_CLASS` = none of them.
    predicted : float [N], or float [N, K] of classes
        Values or probabilities, NaN = none was made.
    labels : tuple of str [K]
        The classes; empty for numbers.
    fold, groups, batch : array [N], optional
        The fold that held each sample out; its group (subject); its batch (study, run, plate).
    limits : float [N, 2], optional
        Limits of the conformal intervals, NaN = none.
    subset : array [N], optional
        What each sample was to the model, one of `SAMPLE_SUBSETS`; unset: "test".
    """

    sample_ids: tuple[str, ...]
    truth: Array
    predicted: Array
    labels: tuple[str, ...] = ()
    fold: Array | None = None
    groups: Array | None = None
    batch: Array | None = None
    limits: Array | None = None
    subset: Array | None = None

    @property
    def measure(self) -> Measure:
        """The metrics of this kind of target, ranking metrics inside each fold."""
        of_classes, of_numbers = weighted_classification_metrics, weighted_regression_metrics
        return by_fold(of_classes if self.labels else of_numbers, self.fold)

    @property
    def evaluated_as(self) -> EvaluatedSubset:
        """What the samples are called as a whole."""
        kinds = {*()} if self.subset is None else {*self.subset.tolist()}
        return next((name for kind, name in TAKEN_PART.items() if kind in kinds), "held-out")

    @property
    def count_that_decides(self) -> int:
        """Number of samples for which all are called so."""
        if self.subset is None or self.evaluated_as == "held-out":
            return len(self.truth)
        return sum(TAKEN_PART.get(kind) == self.evaluated_as for kind in self.subset.tolist())

    @property
    def cross_validated(self) -> bool:
        """Whether samples of several folds, predicted by several models, stand together."""
        return self.fold is not None and len(np.unique(self.fold)) > 1

    @property
    def folds(self) -> Array:
        """The fold of each sample, [N]; 0 without folds."""
        return np.zeros(len(self.truth)) if self.fold is None else self.fold

    @property
    def batches_held_out_whole(self) -> bool:
        """Whether each batch was predicted by a model that saw none of its samples."""
        if self.batch is None or self.fold is None or not self.cross_validated:
            return False
        return bool((pd.Series(self.fold).groupby(self.batch).nunique() == 1).all())

    @property
    def resampling_units(self) -> Array:
        """Number of the unit of resampling of each sample, [N]: its group, or itself without."""
        names = np.arange(len(self.truth)) if self.groups is None else self.groups
        return np.unique(names, return_inverse=True)[1]

    @property
    def group_count(self) -> int:
        """Number of units of resampling."""
        return len(np.unique(self.resampling_units))

    @property
    def has_both(self) -> Bools:
        """Samples with both a truth and a prediction, [N]."""
        has_truth = self.truth >= 0 if self.labels else np.isfinite(self.truth)
        return has_truth & has_prediction(self.predicted)

    @property
    def errors(self) -> Array:
        """Absolute error, or 1 - probability of the true class, float [N]."""
        if self.labels:
            return np.asarray(1 - self.predicted[np.arange(len(self.truth)), self.truth])
        return np.asarray(np.abs(self.predicted - self.truth))

    def at(self, rows: Array) -> TargetPredictions:
        """Return the same for a choice of samples: a mask or positions."""
        arrays: Any = {k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        ids = tuple(np.asarray(self.sample_ids, dtype=object)[rows])
        return replace(self, sample_ids=ids, **arrays)

    def complete(self) -> TargetPredictions:
        """Return the samples that have both a truth and a prediction."""
        return self.at(self.has_both)


def column_values(
    metadata: Metadata, column: str | None, ids: Sequence[str], groups: bool = False
) -> Array | None:
    """Values of a column as text, empty where missing; None without a column. Of a column of
    `groups`, a sample without a value is a group of its own.
    """
    if column is None:
        return None
    values = metadata.groups(column, ids) if groups else metadata.values(column, ids)
    return np.array([value or "" for value in values])


def guess(truth: Array, classes: int) -> Array:
    """Median of the known values [N], or all probability [K] on the most frequent class."""
    if not classes:
        return np.asarray(np.median(truth[np.isfinite(truth)]))
    return np.asarray(np.eye(classes)[np.bincount(truth[truth >= 0]).argmax()])


def target_predictions(
    table: PredictionTable, spec: TargetSpec, metadata: Metadata, data: DataConfig
) -> TargetPredictions:
    """Predictions of one target of a table next to what the metadata say of the same samples, whose
    groups and batches are in columns that `data` names.
    """
    ids, folds = table.sample_ids, table.texts("fold")
    return TargetPredictions(
        sample_ids=ids,
        truth=spec.truth(metadata, ids),
        predicted=table.predicted(spec.name),
        labels=spec.labels,
        fold=np.array(folds) if len(set(folds)) > 1 else None,
        groups=column_values(metadata, data.group_column, ids, groups=True),
        batch=column_values(metadata, data.batch_column, ids),
        limits=table.limits(spec.name),
        subset=np.array(table.texts("subset"), object),
    )
