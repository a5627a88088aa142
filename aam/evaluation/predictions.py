"""What is predicted of each sample, in original units: the table, written and read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.data.metadata import is_number
from aam.data.targets import TargetSpec
from aam.errors import InputError
from aam.runtime.files import write_text

Array = npt.NDArray[np.float64]

# Columns TARGET.SUFFIX: standard deviation over the models of an ensemble, limits of the conformal interval.
MEMBERS, LOW, HIGH = "member-sd", "low", "high"


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
    spreads : dict of target to float64 [N]
        Standard deviation over rarefied draws, when there were several.
    probabilities : dict of target to float64 [N, classes]
    quantiles : dict of target to float64 [N, Q]
        At the levels of the target's specification, in own units, where the model predicts them.
    notes : tuple of str [N]
        Why a value is missing; empty otherwise.
    folds : tuple of str [N]
        Fold in which the sample was held out; empty without folds.
    derived : dict of column to float64 [N]
        What more is said of numeric targets, by name of the column: `MEMBERS`, `LOW` and `HIGH` after a dot.
    """

    sample_ids: tuple[str, ...]
    specs: tuple[TargetSpec, ...]
    values: dict[str, Array]
    spreads: dict[str, Array]
    probabilities: dict[str, Array]
    notes: tuple[str, ...]
    folds: tuple[str, ...]
    derived: dict[str, Array] = field(default_factory=dict)
    quantiles: dict[str, Array] = field(default_factory=dict)

    def limits(self, target: str) -> Array | None:
        """Limits of the conformal intervals of a target, [N, 2], if there are any."""
        low, high = (self.derived.get(f"{target}.{suffix}") for suffix in (LOW, HIGH))
        return None if low is None or high is None else np.stack([low, high], axis=1)

    def with_limits(self, target: str, limits: Array) -> PredictionTable:
        """The table with the conformal intervals [N, 2] of a target."""
        ends = {f"{target}.{suffix}": limits[:, at] for at, suffix in enumerate((LOW, HIGH))}
        return replace(self, derived={**self.derived, **ends})

    def with_rows(self, sample_ids: Sequence[str], notes: dict[str, str]) -> PredictionTable:
        """Rows for `sample_ids` in their order; those without a prediction are empty and say why."""
        place = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([place.get(name, -1) for name in sample_ids], np.int64)

        def laid_out(values: Array) -> Array:
            result = np.full((len(rows), *values.shape[1:]), math.nan)
            result[rows >= 0] = values[rows[rows >= 0]]
            return result

        return replace(
            self,
            sample_ids=tuple(sample_ids),
            values={name: laid_out(column) for name, column in self.values.items()},
            spreads={name: laid_out(column) for name, column in self.spreads.items()},
            probabilities={name: laid_out(columns) for name, columns in self.probabilities.items()},
            derived={name: laid_out(column) for name, column in self.derived.items()},
            quantiles={name: laid_out(columns) for name, columns in self.quantiles.items()},
            notes=tuple(notes.get(name, "") for name in sample_ids),
            folds=tuple(self.folds[row] if row >= 0 else "" for row in rows),
        )


def _of_same_labels(tables: Sequence[PredictionTable]) -> tuple[tuple[TargetSpec, ...], list[dict[str, Array]]]:
    """Targets and probabilities of each table over the labels of all; a label that one never saw gets 0."""
    specs, probabilities = [], [dict[str, Array]() for _ in tables]
    for column, versions in enumerate(zip(*(table.specs for table in tables), strict=True)):
        every = {label for each in versions for label in each.labels}
        labels = next((each.labels for each in versions if set(each.labels) == every), tuple(sorted(every)))
        specs.append(spec := replace(versions[0], labels=labels))
        for table, found in zip(tables, probabilities, strict=True):
            if spec.kind == "class":
                found[spec.name] = np.zeros((len(table.sample_ids), len(spec.labels)))
                places = [spec.labels.index(label) for label in table.specs[column].labels]
                found[spec.name][:, places] = table.probabilities[spec.name]
    return tuple(specs), probabilities


def joined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """The tables one below the other."""
    specs, probabilities = _of_same_labels(tables)

    def below(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return PredictionTable(
        sum((table.sample_ids for table in tables), ()),
        specs,
        below([table.values for table in tables]),
        below([table.spreads for table in tables]),
        below(probabilities),
        sum((table.notes for table in tables), ()),
        sum((table.folds for table in tables), ()),
        quantiles=below([table.quantiles for table in tables]),
    )


def combined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """What several models predict of the same samples: means of values, limits and probabilities.

    The spread over draws is that within a model; the one between the models stands beside it.
    """
    if len(tables) == 1:
        return tables[0]
    specs, probabilities = _of_same_labels(tables)

    def mean(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.mean([part[name] for part in parts], axis=0) for name in shared}

    squares = mean([{name: spread**2 for name, spread in table.spreads.items()} for table in tables])
    between = {f"{name}.{MEMBERS}": np.std([one.values[name] for one in tables], axis=0) for name in tables[0].values}
    return replace(
        tables[0],
        specs=specs,
        values=mean([table.values for table in tables]),
        spreads={name: np.sqrt(square) for name, square in squares.items()},
        probabilities=mean(probabilities),
        derived={**between, **mean([table.derived for table in tables])},
        quantiles=mean([table.quantiles for table in tables]),
    )


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.7g}"


def write_predictions(path: Path, table: PredictionTable) -> None:
    """Write ``sample-id``, per target TARGET, TARGET_qLEVEL, TARGET.sd and others, TARGET=LABEL, ``fold``, ``note``."""
    header, columns = ["sample-id"], [list(table.sample_ids)]
    for spec in table.specs:
        if spec.kind == "numeric":
            header.append(spec.name)
            columns.append([_number(value) for value in table.values[spec.name]])
            for place, level in enumerate(spec.quantiles if spec.name in table.quantiles else ()):
                header.append(f"{spec.name}_q{level:g}")
                columns.append([_number(value) for value in table.quantiles[spec.name][:, place]])
            if spec.name in table.spreads:
                header.append(f"{spec.name}.sd")
                columns.append([_number(value) for value in table.spreads[spec.name]])
            for name in (f"{spec.name}.{suffix}" for suffix in (MEMBERS, LOW, HIGH)):
                if name in table.derived:
                    header.append(name)
                    columns.append([_number(value) for value in table.derived[name]])
            continue
        probabilities = table.probabilities[spec.name]
        header.append(spec.name)
        columns.append(["" if np.isnan(row).any() else spec.labels[int(row.argmax())] for row in probabilities])
        for column, label in enumerate(spec.labels):
            header.append(f"{spec.name}={label}")
            columns.append([_number(value) for value in probabilities[:, column]])
    if any(table.folds):
        header.append("fold")
        columns.append(list(table.folds))
    header.append("note")
    columns.append(list(table.notes))
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow(header)
    writer.writerows(zip(*columns, strict=True))
    write_text(path, text.getvalue())


def _derived(header: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, list[str]], set[str]]:
    """Labels and quantile levels of each target of predictions, and all columns that are no target."""
    labels: dict[str, list[str]] = {}
    levels: dict[str, list[str]] = {}
    for name in header:
        # Target and label may both hold "=": the target is the shortest column that begins the name.
        target = min((other for other in header if name.startswith(f"{other}=")), key=len, default=None)
        if target is not None:
            labels.setdefault(target, []).append(name.removeprefix(f"{target}="))
        target, _, level = name.rpartition("_q")
        if target in header and is_number(level):
            levels.setdefault(target, []).append(level)
    parts = {f"{t}{sign}{x}" for sign, found in (("=", labels), ("_q", levels)) for t in found for x in found[t]}
    more = {f"{name}.{suffix}" for name in header for suffix in ("sd", MEMBERS, LOW, HIGH)}
    return labels, levels, {"sample-id", "fold", "note", *more, *parts}


def read_predictions(path: Path) -> PredictionTable:
    """Read what `write_predictions` wrote.

    Raises
    ------
    InputError
        The file cannot be read, lacks ``sample-id`` or a target column, or holds text where numbers belong.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, dialect="excel-tab"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as predictions ({error})") from None
    if not rows or rows[0][:1] != ["sample-id"] or any(len(row) != len(rows[0]) for row in rows):
        expected = "rows of equal length below a header that begins with sample-id"
        raise InputError(f"{path}: no predictions; expected {expected}")
    header, body = rows[0], rows[1:]
    columns = {name: [row[place] for row in body] for place, name in enumerate(header)}
    if len(columns) < len(header) or len(set(columns["sample-id"])) < len(body) or not body:
        raise InputError(f"{path}: a column or a sample-id stands there twice, or there is no sample")
    labels, levels, derived = _derived(header)
    targets = [name for name in header if name not in derived]
    if not targets:
        raise InputError(f"{path}: no target column beside {header}")

    def numbers(name: str) -> Array:
        try:
            return np.array([math.nan if cell == "" else float(cell) for cell in columns[name]])
        except ValueError as error:
            raise InputError(f"{path}: column {name!r} holds text where numbers belong ({error})") from None

    specs = tuple(
        TargetSpec(
            name,
            "class" if name in labels else "numeric",
            tuple(labels.get(name, ())),
            quantiles=tuple(map(float, levels.get(name, ()))),
        )
        for name in targets
    )
    empty = [""] * len(body)
    return PredictionTable(
        tuple(columns["sample-id"]),
        specs,
        {name: numbers(name) for name in targets if name not in labels},
        {name: numbers(f"{name}.sd") for name in targets if f"{name}.sd" in columns},
        {t: np.stack([numbers(f"{t}={label}") for label in labels[t]], axis=1) for t in labels},
        tuple(columns.get("note", empty)),
        tuple(columns.get("fold", empty)),
        {f"{t}.{x}": numbers(f"{t}.{x}") for t in targets for x in (MEMBERS, LOW, HIGH) if f"{t}.{x}" in columns},
        {t: np.stack([numbers(f"{t}_q{level}") for level in levels[t]], axis=1) for t in levels if t in targets},
    )
