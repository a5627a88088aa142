"""Predictions of samples in the units of their targets, and their file (.tsv)."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from aam.config import RESERVED
from aam.data.targets import TargetSpec
from aam.errors import InputError, Problems, shown
from aam.files.atomic import write_text

Array = npt.NDArray[np.float64]

# Suffixes of columns TARGET.SUFFIX: standard deviation over rarefactions and over models, limits
# of the conformal interval.
RAREFACTIONS, MEMBERS, LOW, HIGH = SUFFIXES = ("rarefaction-sd", "member-sd", "low", "high")

# Columns of text, "" where nothing is known: the fold that held a sample out; what it was to the
# model (train, validation, test, or calibration if it fitted the intervals); why it has no value.
TEXTS = ("fold", "subset", "note")

# Files of others hold few digits: so far may probabilities be from a sum of 1, and a label's from
# the largest. Squares of numbers above the largest overflow.
ROUNDING, LARGEST = 0.02, 1e38

# What a file of predictions must have, for messages, and how many lines a message names.
COLUMNS = (
    "tab-separated columns: sample-id first, and one for each target, called as in the metadata; "
    "for a target with classes also TARGET=CLASS, a probability for each"
)
MOST_LINES = 8


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """One row per sample.

    Attributes
    ----------
    specs : tuple of TargetSpec
        The targets, in the order of their columns.
    frame : DataFrame [N]
        By sample id: TARGET and TARGET.SUFFIX of a number, TARGET=LABEL of classes, NaN where there
        is no prediction; and `TEXTS`.
    """

    specs: tuple[TargetSpec, ...]
    frame: pd.DataFrame

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Sample ids [N]."""
        return tuple(self.frame.index)

    def texts(self, column: str) -> tuple[str, ...]:
        """A column of `TEXTS`, [N]."""
        return tuple(self.frame[column])

    def predicted(self, target: str) -> Array:
        """The values [N] of a number, or the probabilities [N, classes]."""
        (spec,) = (spec for spec in self.specs if spec.name == target)
        columns = _columns(spec) if spec.labels else target
        return np.asarray(self.frame[columns], np.float64)

    def limits(self, target: str) -> Array | None:
        """The limits of the conformal intervals of a target, [N, 2], if there are any."""
        names = [f"{target}.{LOW}", f"{target}.{HIGH}"]
        if not set(names) <= set(self.frame):
            return None
        return np.asarray(self.frame[names], np.float64)

    def with_columns(self, columns: Mapping[str, Any]) -> PredictionTable:
        """Add or replace columns of the table, such as ``note``."""
        frame = self.frame.copy()
        for name, values in columns.items():
            frame[name] = values
        return replace(self, frame=frame)

    def with_limits(self, target: str, limits: Array) -> PredictionTable:
        """Set the conformal intervals [N, 2] of a target."""
        ends = {f"{target}.{suffix}": limits[:, at] for at, suffix in enumerate((LOW, HIGH))}
        return self.with_columns(ends)

    def with_rows(self, sample_ids: Sequence[str], notes: Mapping[str, str]) -> PredictionTable:
        """Rows for `sample_ids` in their order; those without a prediction say why."""
        frame = self.frame.reindex(pd.Index(sample_ids, name="sample-id"))
        frame["note"] = [notes.get(name, "") for name in sample_ids]
        return replace(self, frame=frame.fillna(dict.fromkeys(TEXTS, "")))


def _columns(spec: TargetSpec) -> list[str]:
    """Columns of numbers that a target may have, in the order of the file."""
    suffixed = [f"{spec.name}.{suffix}" for suffix in SUFFIXES]
    classes = [f"{spec.name}={label}" for label in spec.labels]
    return classes if spec.kind == "class" else [spec.name, *suffixed]


def make_predictions(
    sample_ids: Sequence[str],
    specs: Sequence[TargetSpec],
    predicted: Mapping[str, Array],
    deviations: Mapping[str, Array] | None = None,
    **texts: Sequence[str] | str,
) -> PredictionTable:
    """Make a table of values [N] or probabilities [N, classes] by target.

    `deviations` are the standard deviations over rarefactions, by target; `texts` the columns of
    text.
    """
    columns: dict[str, object] = {}
    for spec in specs:
        values = predicted[spec.name]
        columns |= zip(_columns(spec), values.T if spec.labels else [values], strict=False)
    columns |= {
        f"{name}.{RAREFACTIONS}": deviation for name, deviation in (deviations or {}).items()
    }
    columns |= {name: texts.get(name, "") for name in TEXTS}
    frame = pd.DataFrame(columns, pd.Index(sample_ids, name="sample-id", dtype=object))
    return PredictionTable(tuple(specs), frame)


def _with_same_labels(tables: Sequence[PredictionTable]) -> list[PredictionTable]:
    """The tables with the labels of all; a label that one never saw has probability 0."""
    specs = []
    for versions in zip(*(table.specs for table in tables), strict=True):
        union = {label for version in versions for label in version.labels}
        ordered = next(
            (version.labels for version in versions if set(version.labels) == union), sorted(union)
        )
        bounds = [spec.bounds for spec in versions if spec.bounds is not None]
        ends = (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None
        specs.append(replace(versions[0], labels=tuple(ordered), bounds=ends))
    names = [name for spec in specs if spec.labels for name in _columns(spec)]
    return [
        replace(
            table.with_columns({name: 0.0 for name in names if name not in table.frame}),
            specs=tuple(specs),
        )
        for table in tables
    ]


def joined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Put tables one below the other, without limits and deviations between models."""
    tables = _with_same_labels(tables)
    frame = pd.concat([table.frame for table in tables])
    removed = [f"{spec.name}.{suffix}" for spec in tables[0].specs for suffix in SUFFIXES[1:]]
    return replace(tables[0], frame=frame.drop(columns=removed, errors="ignore"))


def combined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Average what several models predict of the same samples: values, limits and probabilities.

    The standard deviation over rarefactions is that within a model; the one between the models
    has a column of its own.
    """
    if len(tables) == 1:
        return tables[0]
    tables = _with_same_labels(tables)
    frame = tables[0].frame.copy()
    for name in frame.columns.drop(list(TEXTS)):
        if not all(name in table.frame for table in tables):
            frame = frame.drop(columns=name)
            continue
        power = 2 if name.endswith(f".{RAREFACTIONS}") else 1
        of_models = np.stack([table.frame[name].to_numpy() ** power for table in tables])
        frame[name] = of_models.mean(axis=0) ** (1 / power)
    for spec in tables[0].specs:
        if spec.kind == "numeric":
            values = [table.frame[spec.name] for table in tables]
            frame[f"{spec.name}.{MEMBERS}"] = np.std(values, axis=0)
    return replace(tables[0], frame=frame)


def name_problems(specs: Iterable[TargetSpec]) -> list[str]:
    """Say which columns of predictions would have the same name, or the name of a derived one."""
    names = Counter(name for spec in specs for name in dict.fromkeys([spec.name, *_columns(spec)]))
    return [
        f"--metadata-column: two columns of predictions would be called {name!r}; rename one in "
        "the metadata"
        for name in sorted(names)
        if names[name] > 1
    ]


def file_frame(table: PredictionTable) -> pd.DataFrame:
    """Columns of the file by sample id: TARGET, TARGET.SUFFIX, TARGET=LABEL; fold, subset, note.

    Raises
    ------
    InputError
        Two columns would have the same name.
    """
    if problems := name_problems(table.specs):
        raise InputError(*problems)
    columns: dict[str, object] = {}
    for spec in table.specs:
        present = [name for name in _columns(spec) if name in table.frame]
        if spec.kind == "class":
            shares = table.predicted(spec.name)
            columns[spec.name] = [
                "" if np.isnan(row).any() else spec.labels[int(row.argmax())] for row in shares
            ]
        columns |= {name: table.frame[name] for name in present}
    kept = [name for name in TEXTS if name == "note" or any(table.frame[name])]
    return pd.DataFrame(columns | {name: table.frame[name] for name in kept}, table.frame.index)


def write_predictions(path: Path, table: PredictionTable) -> None:
    """Write the `file_frame` of a table, numbers with seven digits; `InputError` as it raises."""
    text = io.StringIO(newline="")
    file_frame(table).to_csv(text, sep="\t", float_format="%.7g", lineterminator="\n")
    write_text(path, text.getvalue())


# --- reading -----------------------------------------------------------------------------------


def _cells(path: Path) -> pd.DataFrame:
    """The cells of a file as text, by sample id."""
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
    ragged = [(line, len(row)) for line, row in enumerate(body, 2) if len(row) != len(header)]
    for line, count in ragged[:MOST_LINES]:
        problems.add(
            f"{path}: line {line} has {count} cells, expected {len(header)} as in the header"
        )
    for what, names in {"columns": header, "samples": [row[0] for row in body if row]}.items():
        if twice := [f"{name} ({n} times)" for name, n in Counter(names).items() if n > 1]:
            problems.add(f"{path}: {what} occur more than once: {shown(twice)}; leave each in once")
    if unnamed := [line for line, row in enumerate(body, 2) if row and not row[0].strip()]:
        problems.add(
            f"{path}: line {unnamed[0]} has no sample id; name its sample, or leave it out"
        )
    if not body:
        problems.add(f"{path}: no sample below the header; expected {COLUMNS}")
    problems.raise_if_any()
    return pd.DataFrame(body, columns=header, dtype=object).set_index("sample-id")


def _specs(path: Path, header: Sequence[str]) -> tuple[TargetSpec, ...]:
    """The targets of a file with such columns."""
    suffixed, labels = set[str](), dict[str, list[str]]()
    for name in header:
        target, _, suffix = name.rpartition(".")
        limits = {f"{target}.{LOW}", f"{target}.{HIGH}"}
        if target in header and (suffix in SUFFIXES[:2] or name in limits <= set(header)):
            suffixed.add(name)
        # Target and label may both hold "=": the target is the shortest column that begins the
        # name.
        of_label = [other for other in header if name.startswith(f"{other}=")]
        if of_label:
            target = min(of_label, key=len)
            labels.setdefault(target, []).append(name.removeprefix(f"{target}="))
    probabilities = {f"{target}={label}" for target in labels for label in labels[target]}
    names = [name for name in header if name not in {*RESERVED, *suffixed, *probabilities}]
    if not names:
        classes = {name.partition("=")[0] for name in header if "=" in name}
        hint = f" (is {shown(sorted(classes))} missing?)" if classes else ""
        found = shown(["sample-id", *header])
        raise InputError(f"{path}: no target column next to {found}{hint}; expected {COLUMNS}")
    return tuple(
        TargetSpec(name, "class" if name in labels else "numeric", tuple(labels.get(name, ())))
        for name in names
    )


def read_predictions(path: Path) -> PredictionTable:
    """Read what `write_predictions` wrote.

    Raises
    ------
    InputError
        Columns or numbers cannot be read, or cannot be predictions: infinite values, no
        probabilities, exchanged limits. Missing values (empty or nan) are allowed.
    """
    cells = _cells(path)
    specs = _specs(path, list(cells))
    frame = cells[[name for name in TEXTS if name in cells]].reindex(columns=TEXTS, fill_value="")
    for name in (name for spec in specs for name in _columns(spec) if name in cells):
        try:
            numbers = [math.nan if cell == "" else float(cell) for cell in cells[name]]
        except ValueError as error:
            raise InputError(
                f"{path}: column {name!r} holds text where numbers belong ({error}); correct it, "
                f"or, where {name!r} has classes, add a probability for each: {name}=CLASS"
            ) from None
        frame[name] = np.array(numbers)
    table = PredictionTable(specs, frame)
    problems = Problems()
    for spec in specs:
        for what, rows in _impossible(table, spec, cells).items():
            if rows.any():
                ids = shown([table.sample_ids[row] for row in np.flatnonzero(rows)], 3)
                problems.add(
                    f"{path}: {rows.sum()} of {len(rows)} samples ({ids}) have {what} in "
                    f"{spec.name!r}; correct them"
                )
    problems.raise_if_any()
    return table


def _impossible(
    table: PredictionTable, spec: TargetSpec, cells: pd.DataFrame
) -> dict[str, npt.NDArray[np.bool_]]:
    """Samples with each problem, bool [N], in the predictions of a target."""
    values = table.predicted(spec.name)
    if not spec.labels:
        sizes, limits = np.abs(values), table.limits(spec.name)
        crossed = np.zeros(len(sizes), bool) if limits is None else limits[:, 0] > limits[:, 1]
        return {
            "an infinite prediction": np.isinf(sizes),
            f"a prediction above {LARGEST:g}": np.isfinite(sizes) & (sizes > LARGEST),
            "a lower limit above the upper one": crossed,
        }
    known = np.isfinite(values).all(axis=1)
    outside = (values < -ROUNDING) | (values > 1 + ROUNDING)
    no_shares = outside.any(axis=1) | (np.abs(values.sum(axis=1) - 1) > ROUNDING)
    named = (cells[spec.name] != "").to_numpy()
    column = pd.Index(spec.labels).get_indexer(cells[spec.name])
    of_label = values[np.arange(len(column)), column]
    disagrees = (column < 0) | (of_label < values.max(axis=1) - ROUNDING)
    return {
        "probabilities that are no numbers from 0 to 1 with a sum of 1": known & no_shares,
        "a label that has not the largest probability": known & named & disagrees,
        "infinite probabilities": np.isinf(values).any(axis=1),
    }
