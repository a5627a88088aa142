"""Predictions of samples in the units of their targets: a table of several targets, its file
(.tsv), and one target next to its truth.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from aam.config import RESERVED
from aam.data.targets import TargetSpec
from aam.errors import InputError, Problems, problem, shown
from aam.evaluate.metrics import (
    Measure,
    by_fold,
    has_prediction,
    weighted_classification_metrics,
    weighted_regression_metrics,
)
from aam.files.atomic import write_text
from aam.io.metadata import DECIMAL_COMMA, NUMBER, Metadata, read_cells
from aam.io.missing import is_missing
from aam.io.text import read_table_text, read_text
from aam.typing import Array, Bools

# Suffixes of columns TARGET.SUFFIX: standard deviation over rarefactions and over models, limits
# of the conformal interval.
RAREFACTION_SD, MEMBER_SD, LOW, HIGH = SUFFIXES = ("rarefaction-sd", "member-sd", "low", "high")

# Columns of text, "" where nothing is known: the fold that held a sample out; what it was to the
# model (train, validation, test, or calibration if it fitted the intervals); why it has no value.
TEXT_COLUMNS = ("fold", "subset", "note")

# Files of others hold few digits: so far may probabilities be from a sum of 1, and a label's from
# the largest. Squares of numbers above the largest overflow.
SHARE_ROUNDING, LARGEST_PREDICTION = 0.02, 1e38

# What a file of predictions must have, for messages.
EXPECTED_COLUMNS = (
    "the columns sample-id and one for each target, called as in the metadata; for a target with "
    "classes also TARGET=CLASS, a probability for each"
)
# A whole number as spreadsheets write it.
WHOLE = re.compile(r"-?\d+\.0")
NO_FINITE = re.compile("nan|[+-]?inf(inity)?", re.I)

# What the samples of a report were to the model. Only "held-out" ones took no part in learning or
# choosing anything.
EvaluatedSubset = Literal["held-out", "validation", "training", "seen-group", "unknown"]

# The truth of a sample whose class no training sample had: the model has no probability of it.
UNKNOWN_CLASS = -2


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
    """The tables with the labels of all; a label that a model never saw has probability 0."""
    specs, absent = [], dict[str, float]()
    for versions in zip(*(table.specs for table in tables), strict=True):
        union = {label for version in versions for label in version.labels}
        complete = (version.labels for version in versions if set(version.labels) == union)
        labels = next(complete, tuple(sorted(union)))
        ranges = [version.bounds for version in versions if version.bounds is not None]
        bounds = None
        if ranges:
            bounds = min(low for low, _ in ranges), max(high for _, high in ranges)
        spec = replace(versions[0], labels=labels, bounds=bounds)
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
    kept = [name for name in TEXT_COLUMNS if name == "note" or any(table.frame[name])]
    return pd.DataFrame(columns | {name: table.frame[name] for name in kept}, table.frame.index)


def write_predictions(path: Path, table: PredictionTable) -> None:
    """Write the `file_frame` of a table, numbers with seven digits."""
    text = io.StringIO(newline="")
    file_frame(table).to_csv(text, sep="\t", float_format="%.7g", lineterminator="\n")
    write_text(path, text.getvalue())


def _cells(path: Path) -> pd.DataFrame:
    """The cells of a file as text, by sample id."""
    table, body = read_table_text(read_text(path), path, EXPECTED_COLUMNS), dict[str, list[str]]()
    faults = table.faults
    for name, count in Counter(table.header).items():
        if count > 1:
            faults.add(f"column {name!r} occurs {count} times; leave it in once")
    for line, (name, *cells) in table.rows():
        if not name.strip():
            faults.add("no sample id; name its sample, or leave it out", line)
        elif name in body:
            faults.add("a sample that stands there twice; leave it in once", line, repr(name))
        body[name] = cells
    faults.raise_if_any()
    if not body:
        raise InputError(f"{path}: no sample below the header; expected {EXPECTED_COLUMNS}")
    ids = pd.Index(body, name="sample-id", dtype=object)
    return pd.DataFrame([*body.values()], ids, table.header[1:], dtype=object)


def _specs(path: Path, header: Sequence[str]) -> tuple[TargetSpec, ...]:
    """The targets of a file with such columns."""
    derived, labels = set[str](RESERVED), dict[str, list[str]]()
    for name in header:
        target, _, suffix = name.rpartition(".")
        limits = {f"{target}.{LOW}", f"{target}.{HIGH}"}
        if target in header and (suffix in SUFFIXES[:2] or name in limits <= set(header)):
            derived.add(name)
        # Target and label may both hold "=": the target is the shortest column that begins the
        # name.
        if targets := [other for other in header if name.startswith(f"{other}=")]:
            target = min(targets, key=len)
            labels.setdefault(target, []).append(name.removeprefix(f"{target}="))
            derived.add(name)
    names = [name for name in header if name not in derived]
    if not names:
        classes = {name.partition("=")[0] for name in header if "=" in name}
        hint = f" (is {shown(sorted(classes))} missing?)" if classes else ""
        columns = f"{shown(['sample-id', *header])}{hint}"
        raise InputError(f"{path}: no target column next to {columns}; expected {EXPECTED_COLUMNS}")
    return tuple(
        TargetSpec(name, "class" if name in labels else "numeric", tuple(labels.get(name, ())))
        for name in names
    )


def _numbers(cells: Iterable[str], where: str, name: str, is_target: bool) -> Array:
    """Return the numbers of a column, NaN where missing, and infinite ones, which are refused
    later; `InputError`: text among them.
    """
    texts = [cell.strip() for cell in cells]
    values = ["nan" if is_missing(text) else text for text in texts]
    wrong = [text for text in values if not (NUMBER.fullmatch(text) or NO_FINITE.fullmatch(text))]
    if not wrong:
        return np.array(values, np.float64)
    fault, remedy = "text where numbers belong", "correct it"
    if all(map(DECIMAL_COMMA.fullmatch, wrong)):
        fault, remedy = "numbers with decimal commas", "pass --decimal ,"
    elif is_target:
        remedy += f"; if it has classes, add a probability for each: {name}=CLASS"
        remedy += "; if it is no target, remove the column"
    text = f"column {name!r} holds {fault}: {shown(dict.fromkeys(wrong), 3)}"
    raise InputError(problem(where, text, remedy=remedy))


def read_predictions(path: Path, decimal: str = ".") -> PredictionTable:
    """Read what `write_predictions` wrote, perhaps with another `decimal` mark.

    Raises `InputError` if columns or numbers cannot be read, or cannot be predictions: infinite
    values, no probabilities, exchanged limits. Missing values are those of metadata.
    """
    cells = _cells(path)
    specs, problems = _specs(path, list(cells)), Problems()
    frame = cells[[name for name in TEXT_COLUMNS if name in cells]].reindex(
        columns=TEXT_COLUMNS, fill_value=""
    )
    targets = {spec.name for spec in specs}
    for name in (name for spec in specs for name in _columns(spec) if name in cells):
        with problems.collected():
            column = read_cells(cells[name], decimal)
            frame[name] = _numbers(column, str(path), name, name in targets)
    problems.raise_if_any()
    table = PredictionTable(specs, frame)
    for spec in specs:
        for fault, rows in _impossible(table, spec, cells).items():
            if rows.any():
                ids = shown([table.sample_ids[row] for row in np.flatnonzero(rows)], 3)
                where = f"{path}: {rows.sum()} of {len(rows)} samples ({ids})"
                problems.add(f"{where} have {fault} in {spec.name!r}; correct them")
    problems.raise_if_any()
    return table


def check_targets(path: Path, table: PredictionTable, metadata: Metadata) -> None:
    """Refuse targets of a file that the metadata lack: columns that belong to a target without a
    column of its own, and others.
    """
    derived, problems = dict[str, list[str]](), Problems()
    for name in (spec.name for spec in table.specs if spec.name not in metadata.columns):
        parts = name.split("=")
        sources = ["=".join(parts[:number]) for number in range(1, len(parts))]
        sources += [name.removesuffix(f".{end}") for end in SUFFIXES if name.endswith(f".{end}")]
        if source := next((column for column in sources if column in metadata.columns), ""):
            derived.setdefault(source, []).append(name)
        else:
            with problems.collected():
                metadata.require([name])
            problems.add(problem(path, f"remove column {name!r} if it is no target"))
    for source, names in derived.items():
        remedy = "copy it from predictions.tsv of the run"
        fault = f"column {source!r} is missing next to {shown(names)}"
        problems.add(problem(path, fault, remedy=remedy))
    problems.raise_if_any()


def is_written(path: Path, targets: Collection[str]) -> bool:
    """Return whether a file is one of `aam predict`: its columns are those of `write_predictions`
    without folds, and its targets are `targets`, or classes, or have a column of their own kind.
    """
    with contextlib.suppress(InputError):
        header = read_text(path).partition("\n")[0].split("\t")
        table = read_predictions(path)
        has_columns = all(
            spec.labels or spec.name in targets or len(set(_columns(spec)) & set(table.frame)) > 1
            for spec in table.specs
        )
        is_whole = header[0] == "sample-id" and header[-1] == "note"
        return is_whole and has_columns and not any(table.texts("fold"))
    return False


def _impossible(table: PredictionTable, spec: TargetSpec, cells: pd.DataFrame) -> dict[str, Bools]:
    """Samples with each problem, bool [N], in the predictions of a target."""
    values = table.predicted(spec.name)
    if not spec.labels:
        limits = table.limits(spec.name)
        low, high = (values, values) if limits is None else limits.T
        return {
            "an infinite prediction": np.isinf(values),
            f"a prediction above {LARGEST_PREDICTION:g}": np.isfinite(values)
            & (np.abs(values) > LARGEST_PREDICTION),
            "a lower limit above the upper one": low > high,
        }
    has_values = np.isfinite(values).all(axis=1)
    outside = (values < -SHARE_ROUNDING) | (values > 1 + SHARE_ROUNDING)
    no_shares = outside.any(axis=1) | (np.abs(values.sum(axis=1) - 1) > SHARE_ROUNDING)
    has_label = (cells[spec.name] != "").to_numpy()
    column = pd.Index(spec.labels).get_indexer(cells[spec.name])
    label_share = values[np.arange(len(column)), column]
    disagrees = (column < 0) | (label_share < values.max(axis=1) - SHARE_ROUNDING)
    return {
        "probabilities that are no numbers from 0 to 1 with a sum of 1": has_values & no_shares,
        "a label that has not the largest probability": has_values & has_label & disagrees,
        "infinite probabilities": np.isinf(values).any(axis=1),
    }


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
    """

    sample_ids: tuple[str, ...]
    truth: Array
    predicted: Array
    labels: tuple[str, ...] = ()
    fold: Array | None = None
    groups: Array | None = None
    batch: Array | None = None
    limits: Array | None = None

    @property
    def measure(self) -> Measure:
        """The metrics of this kind of target, ranking metrics inside each fold."""
        of_classes, of_numbers = weighted_classification_metrics, weighted_regression_metrics
        return by_fold(of_classes if self.labels else of_numbers, self.fold)

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
        """The units of resampling, [N]: groups, or single samples without groups."""
        return np.arange(len(self.truth)) if self.groups is None else self.groups

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


@dataclass(frozen=True)
class Columns:
    """Metadata columns by which predictions are judged.

    `group` and `batch` divide the samples; a model is to hold in a new value of `study`; each value
    of `fold` was held out whole.
    """

    group: str | None = None
    batch: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    study: str | None = None
    fold: str | None = None

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of all covariates."""
        return (*self.categorical, *self.numeric)


def truth_of(metadata: Metadata, spec: TargetSpec, ids: Sequence[str]) -> Array:
    """True values of samples: numbers (NaN = missing), or the index of the class.

    -1 is a missing class, `UNKNOWN_CLASS` one that is not among the labels.
    """
    if spec.kind == "numeric":
        return metadata.numbers(spec.name, ids)
    values = np.array([value or "" for value in metadata.values(spec.name, ids)], object)
    place = pd.Index(spec.labels, dtype=object).get_indexer(values)
    return np.where(values == "", -1, np.where(place < 0, UNKNOWN_CLASS, place))


def column_values(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    """Values of a column as text ("25.0" as "25"), empty where missing; None without a column."""
    if column is None:
        return None
    return _as_whole_numbers([value or "" for value in metadata.values(column, ids)])


def group_values(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    """Group of each sample, one of its own where it has none; None without a column."""
    return None if column is None else _as_whole_numbers(metadata.groups(column, ids))


def _as_whole_numbers(values: Sequence[str]) -> Array:
    """Values [N] without the ".0" of whole numbers, if all are whole numbers."""
    if all(WHOLE.fullmatch(value) for value in values if value):
        values = [value.removesuffix(".0") for value in values]
    return np.array(values)


def guess(truth: Array, classes: int) -> Array:
    """Median of the known values [N], or all probability [K] on the most frequent class."""
    if not classes:
        return np.asarray(np.median(truth[np.isfinite(truth)]))
    return np.asarray(np.eye(classes)[np.bincount(truth[truth >= 0]).argmax()])


def target_predictions(
    table: PredictionTable, spec: TargetSpec, metadata: Metadata, columns: Columns
) -> TargetPredictions:
    """Predictions of one target of a table next to what the metadata say of the same samples."""
    ids, folds = table.sample_ids, table.texts("fold")
    return TargetPredictions(
        sample_ids=ids,
        truth=truth_of(metadata, spec, ids),
        predicted=table.predicted(spec.name),
        labels=spec.labels,
        fold=np.array(folds) if len(set(folds)) > 1 else None,
        groups=group_values(metadata, columns.group, ids),
        batch=column_values(metadata, columns.batch, ids),
        limits=table.limits(spec.name),
    )
