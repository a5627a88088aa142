"""Predictions of samples in the units of their targets: a table, tables joined and combined, their
file (.tsv).
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.config import RESERVED
from aam.data.targets import TargetSpec
from aam.errors import InputError, Problems, shown
from aam.files.atomic import write_text

Array = npt.NDArray[np.float64]

# Suffixes of columns TARGET.SUFFIX: standard deviation over rarefactions and over an ensemble,
# limits of the conformal interval.
RAREFACTIONS = "rarefaction-sd"
MEMBERS = "member-sd"
LOW = "low"
HIGH = "high"

# The parts of a table that hold numbers.
NUMBERS = ("values", "deviations", "probabilities", "derived")

SUFFIXES = (RAREFACTIONS, MEMBERS, LOW, HIGH)

# Files of others hold few digits: so far may probabilities be from a sum of 1, and a label's from
# the largest.
ROUNDING = 0.02


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """One row per sample.

    Attributes
    ----------
    sample_ids : tuple of str [N]
    specs : tuple of TargetSpec
        The targets, in the order of their columns.
    values : dict of target to float64 [N]
        Numeric targets in their own units; NaN where no prediction was made.
    deviations : dict of target to float64 [N]
        Standard deviation over rarefactions, when there were several.
    probabilities : dict of target to float64 [N, classes]
    notes : tuple of str [N]
        Why a value is missing; empty otherwise.
    folds : tuple of str [N]
        Fold in which the sample was held out; empty without folds.
    derived : dict of column to float64 [N]
        More of numeric targets, by name of the column: `MEMBERS`, `LOW` and `HIGH` after a dot.
    subsets : tuple of str [N]
        What the sample was to the model: train, validation, test, or calibration (it fitted the
        conformal intervals); empty for a new sample, and for all where nothing is known.
    """

    sample_ids: tuple[str, ...]
    specs: tuple[TargetSpec, ...]
    values: dict[str, Array]
    deviations: dict[str, Array]
    probabilities: dict[str, Array]
    notes: tuple[str, ...]
    folds: tuple[str, ...]
    derived: dict[str, Array] = field(default_factory=dict)
    subsets: tuple[str, ...] = ()

    def spec(self, target: str) -> TargetSpec | None:
        """Return the target of that name, if the table has it."""
        return next((spec for spec in self.specs if spec.name == target), None)

    def predicted(self, target: str) -> Array:
        """Return the values [N] of a number, or the probabilities [N, classes]."""
        return self.values[target] if target in self.values else self.probabilities[target]

    def limits(self, target: str) -> Array | None:
        """Return the limits of the conformal intervals of a target, [N, 2], if there are any."""
        low, high = (self.derived.get(f"{target}.{suffix}") for suffix in (LOW, HIGH))
        return None if low is None or high is None else np.stack([low, high], axis=1)

    def with_limits(self, target: str, limits: Array) -> PredictionTable:
        """Return the table with the conformal intervals [N, 2] of a target."""
        ends = {f"{target}.{suffix}": limits[:, at] for at, suffix in enumerate((LOW, HIGH))}
        return replace(self, derived={**self.derived, **ends})

    def with_rows(self, sample_ids: Sequence[str], notes: dict[str, str]) -> PredictionTable:
        """Return rows for `sample_ids` in their order; those without a prediction are empty and say
        why.
        """
        place = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([place.get(name, -1) for name in sample_ids], np.int64)

        def in_order(values: Array) -> Array:
            result = np.full((len(rows), *values.shape[1:]), math.nan)
            result[rows >= 0] = values[rows[rows >= 0]]
            return result

        numbers: dict[str, Any] = {
            part: {name: in_order(values) for name, values in getattr(self, part).items()}
            for part in NUMBERS
        }
        return replace(
            self,
            sample_ids=tuple(sample_ids),
            **numbers,
            notes=tuple(notes.get(name, "") for name in sample_ids),
            folds=tuple(self.folds[row] if row >= 0 else "" for row in rows),
            subsets=tuple(self.subsets[row] if row >= 0 else "" for row in rows)
            if self.subsets
            else (),
        )


def _union_of_bounds(versions: Sequence[TargetSpec]) -> tuple[float, float] | None:
    """Return the smallest and largest training value of a target in any of the tables."""
    bounds = [spec.bounds for spec in versions if spec.bounds is not None]
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None


def _with_same_labels(tables: Sequence[PredictionTable]) -> list[PredictionTable]:
    """Return tables whose targets have the labels of all; a label that one never saw gets
    probability 0.
    """
    specs, probabilities = [], [dict[str, Array]() for _ in tables]
    for column, versions in enumerate(zip(*(table.specs for table in tables), strict=True)):
        union = {label for version in versions for label in version.labels}
        labels = next(
            (version.labels for version in versions if set(version.labels) == union),
            tuple(sorted(union)),
        )
        specs.append(spec := replace(versions[0], labels=labels, bounds=_union_of_bounds(versions)))
        for table, of_table in zip(tables, probabilities, strict=True):
            if spec.kind == "class":
                of_table[spec.name] = np.zeros((len(table.sample_ids), len(spec.labels)))
                places = [spec.labels.index(label) for label in table.specs[column].labels]
                of_table[spec.name][:, places] = table.probabilities[spec.name]
    return [
        replace(table, specs=tuple(specs), probabilities=of)
        for table, of in zip(tables, probabilities, strict=True)
    ]


def joined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Return the tables one below the other, without derived columns."""
    tables = [replace(table, derived={}) for table in _with_same_labels(tables)]
    parts: dict[str, Any] = {
        part: tuple(
            text
            for table in tables
            for text in getattr(table, part) or ("",) * len(table.sample_ids)
        )
        for part in ("sample_ids", "notes", "folds", "subsets")
    }
    for part in NUMBERS:
        names = getattr(tables[0], part)
        parts[part] = {
            name: np.concatenate([getattr(table, part)[name] for table in tables]) for name in names
        }
    return replace(tables[0], **parts)


def combined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Return what several models predict of the same samples: means of values, limits and
    probabilities.

    The standard deviation over rarefactions is that within a model; the one between the models
    stands beside it.
    """
    if len(tables) == 1:
        return tables[0]
    tables = _with_same_labels(tables)

    def mean(part: str, power: int = 1) -> dict[str, Array]:
        shared = [
            name
            for name in getattr(tables[0], part)
            if all(name in getattr(table, part) for table in tables)
        ]
        return {
            name: np.mean([getattr(table, part)[name] ** power for table in tables], axis=0)
            for name in shared
        }

    between = {
        f"{name}.{MEMBERS}": np.std([table.values[name] for table in tables], axis=0)
        for name in tables[0].values
    }
    return replace(
        tables[0],
        values=mean("values"),
        probabilities=mean("probabilities"),
        deviations={name: np.sqrt(variance) for name, variance in mean("deviations", 2).items()},
        derived={**between, **mean("derived")},
    )


def _target_columns(table: PredictionTable, spec: TargetSpec) -> dict[str, Array | list[str]]:
    """Columns of a target: its values, what is derived from them, or probabilities of classes."""
    name = spec.name
    if spec.kind == "class":
        shares = table.probabilities[name]
        chosen = ["" if np.isnan(row).any() else spec.labels[int(row.argmax())] for row in shares]
        of_classes = zip(spec.labels, shares.T, strict=True)
        return {name: chosen, **{f"{name}={label}": column for label, column in of_classes}}
    columns: dict[str, Array | list[str]] = {name: table.values[name]}
    if name in table.deviations:
        columns[f"{name}.{RAREFACTIONS}"] = table.deviations[name]
    suffixed = [f"{name}.{suffix}" for suffix in (MEMBERS, LOW, HIGH)]
    return columns | {
        column: table.derived[column] for column in suffixed if column in table.derived
    }


def name_problems(specs: Iterable[TargetSpec]) -> list[str]:
    """Say which columns of predictions would have the same name, or the name of a derived one."""
    specs = list(specs)
    names = [
        name
        for spec in specs
        for name in (
            spec.name,
            *(f"{spec.name}={label}" for label in spec.labels),
            *(f"{spec.name}.{suffix}" for suffix in SUFFIXES if spec.kind == "numeric"),
        )
    ]
    repeated = sorted({name for name in names if names.count(name) > 1})
    return [
        f"--metadata-column: two columns of predictions would be called {name!r}; rename one in "
        "the metadata"
        for name in repeated
    ]


def prediction_columns(table: PredictionTable) -> list[tuple[str, Array | list[str]]]:
    """Columns of the file: ``sample-id``; per target TARGET, TARGET.SUFFIX, TARGET=LABEL; ``fold``,
    ``subset`` and ``note``. Numbers are arrays, NaN where there is none.

    Raises
    ------
    InputError
        Two columns would have the same name.
    """
    columns: list[tuple[str, Array | list[str]]] = [("sample-id", list(table.sample_ids))]
    for spec in table.specs:
        columns += _target_columns(table, spec).items()
    columns += [("fold", list(table.folds))] if any(table.folds) else []
    columns += [("subset", list(table.subsets))] if any(table.subsets) else []
    columns.append(("note", list(table.notes)))
    header = [name for name, _ in columns]
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(
            f"two columns of predictions would be called {shown(repeated)}; rename the metadata "
            "column"
        )
    return columns


def write_predictions(path: Path, table: PredictionTable) -> None:
    """Write the `prediction_columns` of a table, numbers with seven digits; `InputError` as they
    raise it.
    """
    columns = prediction_columns(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    cells = [
        values
        if isinstance(values, list)
        else ["" if math.isnan(value) else f"{value:.7g}" for value in values]
        for _, values in columns
    ]
    writer.writerows(zip(*cells, strict=True))
    write_text(path, text.getvalue())


def _derived_from(header: Sequence[str]) -> dict[str, str]:
    """Target of each column that is derived from a number: TARGET.SUFFIX next to TARGET."""
    derived = {}
    for name in header:
        target, _, suffix = name.rpartition(".")
        whole = suffix in (RAREFACTIONS, MEMBERS) or {f"{target}.{LOW}", f"{target}.{HIGH}"} <= set(
            header
        )
        if target in header and suffix in SUFFIXES and whole:
            derived[name] = target
    return derived


def _labels(header: Sequence[str]) -> dict[str, list[str]]:
    """Return the labels of each class target."""
    labels: dict[str, list[str]] = {}
    for name in header:
        # Target and label may both hold "=": the target is the shortest column that begins the
        # name.
        target = min(
            (other for other in header if name.startswith(f"{other}=")), key=len, default=None
        )
        if target is not None:
            labels.setdefault(target, []).append(name.removeprefix(f"{target}="))
    return labels


# What a file of predictions must have, for messages.
COLUMNS = (
    "tab-separated columns: sample-id first, and one for each target, called as in the metadata; "
    "for a target with "
    "classes also TARGET=CLASS, a probability for each"
)
MOST_LINES = 8
# Squares of larger ones overflow.
LARGEST = 1e38


def _cells(path: Path) -> dict[str, list[str]]:
    """Return the cells of each column as text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, dialect="excel-tab"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as predictions ({error})") from None
    if not rows or rows[0][:1] != ["sample-id"]:
        start = f"the first line is {shown(rows[0], 3)}" if rows else "the file is empty"
        raise InputError(f"{path}: no predictions, {start}; expected {COLUMNS}")
    header, body = rows[0], rows[1:]
    problems = Problems()
    for line, row in enumerate(body, 2):
        if len(row) != len(header) and len(problems.messages) < MOST_LINES:
            problems.add(
                f"{path}: line {line} has {len(row)} cells, expected {len(header)} as in the header"
            )
    for what, names in {"columns": header, "samples": [row[0] for row in body if row]}.items():
        if twice := [
            f"{name} ({times} times)" for name, times in Counter(names).items() if times > 1
        ]:
            problems.add(f"{path}: {what} occur more than once: {shown(twice)}; leave each in once")
    if unnamed := [line for line, row in enumerate(body, 2) if row and not row[0].strip()]:
        problems.add(
            f"{path}: line {unnamed[0]} has no sample id; name its sample, or leave it out"
        )
    if not body:
        problems.add(f"{path}: no sample below the header; expected {COLUMNS}")
    problems.raise_if_any()
    return {name: [row[place] for row in body] for place, name in enumerate(header)}


def _numbers(path: Path, name: str, cells: Sequence[str]) -> Array:
    try:
        return np.array([math.nan if cell == "" else float(cell) for cell in cells])
    except ValueError as error:
        raise InputError(
            f"{path}: column {name!r} holds text where numbers belong ({error}); correct it, or, "
            f"where {name!r} has "
            f"classes, add a probability for each: {name}=CLASS"
        ) from None


def read_predictions(path: Path) -> PredictionTable:
    """Read what `write_predictions` wrote.

    Raises
    ------
    InputError
        Columns or numbers cannot be read as such, or hold what `check_predictions` refuses.
    """
    columns = _cells(path)
    header = list(columns)
    labels, derived = _labels(header), _derived_from(header)
    probabilities = {f"{target}={label}" for target in labels for label in labels[target]}
    names = [name for name in header if name not in {*RESERVED, *derived, *probabilities}]
    if not names:
        classes = {name.partition("=")[0] for name in header if "=" in name}
        hint = f" (is {shown(sorted(classes))} missing?)" if classes else ""
        raise InputError(
            f"{path}: no target column beside {shown(header)}{hint}; expected {COLUMNS}"
        )
    as_text = {*RESERVED, *(labels.keys() - derived.keys())}
    numbers = {name: _numbers(path, name, columns[name]) for name in header if name not in as_text}
    parts = {column: numbers[column] for column in derived}
    empty = ("",) * len(columns["sample-id"])
    table = PredictionTable(
        tuple(columns["sample-id"]),
        tuple(
            TargetSpec(name, "class" if name in labels else "numeric", tuple(labels.get(name, ())))
            for name in names
        ),
        {name: numbers[name] for name in names if name not in labels},
        {
            name: parts[f"{name}.{RAREFACTIONS}"]
            for name in names
            if f"{name}.{RAREFACTIONS}" in parts
        },
        {
            name: np.stack([numbers[f"{name}={label}"] for label in of], 1)
            for name, of in labels.items()
        },
        tuple(columns.get("note", empty)),
        tuple(columns.get("fold", empty)),
        {
            column: values
            for column, values in parts.items()
            if column.rpartition(".")[2] in (MEMBERS, LOW, HIGH)
        },
        tuple(columns.get("subset", ())),
    )
    check_predictions(path, table, columns)
    return table


def _probability_problems(
    table: PredictionTable, probabilities: Array, labels: Sequence[str], cells: Sequence[str]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which samples have each problem, [N], of probabilities [N, K] and of the labels in the
    cells [N].
    """
    given = np.isfinite(probabilities).all(axis=1)
    outside = (probabilities < -ROUNDING) | (probabilities > 1 + ROUNDING)
    sums = np.abs(probabilities.sum(axis=1) - 1)
    place = {label: column for column, label in enumerate(labels)}
    column = np.array([place.get(cell, -1) for cell in cells], np.int64)
    of_label = probabilities[np.arange(len(column)), column]
    named = np.array([cell != "" for cell in cells], bool)
    disagrees = (column < 0) | (of_label < probabilities.max(axis=1) - ROUNDING)
    return {
        "probabilities that are no numbers from 0 to 1 with a sum of 1": given
        & (outside.any(axis=1) | (sums > ROUNDING)),
        "a label that has not the largest probability": given & named & disagrees,
        "infinite probabilities": np.isinf(probabilities).any(axis=1),
    }


def check_predictions(
    path: Path, table: PredictionTable, cells: Mapping[str, Sequence[str]]
) -> None:
    """Refuse predictions that are infinite, no probabilities, or have limits the wrong way round.

    `cells` are the columns of the file as text. A missing value (empty, or nan) is none of these.

    Raises
    ------
    InputError
        With every such column, how many samples it has wrong, and the first of them.
    """
    problems = Problems()
    for spec in table.specs:
        wrong: dict[str, npt.NDArray[np.bool_]] = {}
        if spec.labels:
            values = table.probabilities[spec.name]
            wrong = _probability_problems(table, values, spec.labels, cells[spec.name])
        else:
            sizes = np.abs(table.values[spec.name])
            wrong["an infinite prediction"] = np.isinf(sizes)
            wrong[f"a prediction above {LARGEST:g}"] = np.isfinite(sizes) & (sizes > LARGEST)
            limits = table.limits(spec.name)
            if limits is not None:
                wrong["a lower limit above the upper one"] = limits[:, 0] > limits[:, 1]
        for what, rows in wrong.items():
            if rows.any():
                ids = shown([table.sample_ids[row] for row in np.flatnonzero(rows)], 3)
                problems.add(
                    f"{path}: {rows.sum()} of {len(rows)} samples ({ids}) have {what} in "
                    f"{spec.name!r}; correct them"
                )
    problems.raise_if_any()
