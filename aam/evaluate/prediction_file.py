"""The file of predictions (.tsv): which column is a target and which is derived from one, written and read."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from aam.config import RESERVED
from aam.data.targets import TargetSpec
from aam.errors import InputError, Problems, shown
from aam.evaluate.prediction_checks import check_predictions
from aam.evaluate.predictions import HIGH, LOW, MEMBERS, Array, PredictionTable
from aam.files.atomic import write_text
from aam.io.metadata import is_number

# Follows the name of a derived column where a target has that very name.
MARK = " (derived)"
# What a file of predictions must have, for messages.
COLUMNS = (
    "tab-separated columns: sample-id first, and one for each target, called as in the metadata; for a target with "
    "classes also TARGET=CLASS, a probability for each"
)
MOST_LINES = 8


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.7g}"


def _derived_name(name: str, targets: Collection[str]) -> str:
    return f"{name}{MARK}" if name in targets else name


def _target_columns(table: PredictionTable, spec: TargetSpec) -> Iterable[tuple[str, Array | list[str]]]:
    """Yield name and values of the column of a target and, right behind it, of those derived from it."""
    name, targets = spec.name, {spec.name for spec in table.specs}
    if spec.kind == "class":
        probabilities = table.probabilities[name]
        yield name, ["" if np.isnan(row).any() else spec.labels[int(row.argmax())] for row in probabilities]
        for column, label in enumerate(spec.labels):
            yield f"{name}={label}", probabilities[:, column]
        return
    yield name, table.values[name]
    derived = {}
    if name in table.quantiles:
        derived = {f"{name}_q{level:g}": table.quantiles[name][:, at] for at, level in enumerate(spec.quantiles)}
    if name in table.spreads:
        derived[f"{name}.sd"] = table.spreads[name]
    suffixed = [f"{name}.{suffix}" for suffix in (MEMBERS, LOW, HIGH)]
    derived |= {column: table.derived[column] for column in suffixed if column in table.derived}
    for derived_name, values in derived.items():
        yield _derived_name(derived_name, targets), values


def name_problems(specs: Iterable[TargetSpec]) -> list[str]:
    """Return why predictions of some targets could not be written: two columns that would have the same name."""
    names = [name for spec in specs for name in (spec.name, *(f"{spec.name}={label}" for label in spec.labels))]
    repeated = sorted({name for name in names if names.count(name) > 1})
    return [
        f"--metadata-column: two columns of predictions would be called {name!r}; rename one in the metadata"
        for name in repeated
    ]


def prediction_columns(table: PredictionTable) -> list[tuple[str, Array | list[str]]]:
    """Return ``sample-id``; per target TARGET, TARGET_qLEVEL, TARGET.sd and others, TARGET=LABEL; ``fold``, ``note``.

    A target whose name is also that of a column derived from another one stands before that one, and the derived
    column is marked with `MARK`. ``subset`` is there where something is known of it. Numbers are arrays, NaN where
    there is none.

    Raises
    ------
    InputError
        Two columns would have the same name.
    """
    columns: list[tuple[str, Array | list[str]]] = [("sample-id", list(table.sample_ids))]
    # A derived column stands right behind its target, so that a target before both cannot be taken for one.
    names = {spec.name for spec in table.specs}
    specs = sorted(table.specs, key=lambda spec: _base(spec.name) not in names)
    for spec in specs:
        columns += _target_columns(table, spec)
    columns += [("fold", list(table.folds))] if any(table.folds) else []
    columns += [("subset", list(table.subsets))] if any(table.subsets) else []
    columns.append(("note", list(table.notes)))
    header = [name for name, _ in columns]
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(f"two columns of predictions would be called {shown(repeated)}; rename the metadata column")
    return columns


def write_predictions(path: Path, table: PredictionTable) -> None:
    """Write the `prediction_columns` of a table, numbers with seven digits; `InputError` as they raise it."""
    columns = prediction_columns(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    cells = [values if isinstance(values, list) else list(map(_number, values)) for _, values in columns]
    writer.writerows(zip(*cells, strict=True))
    write_text(path, text.getvalue())


def _level(name: str, target: str) -> str:
    """Return the level of a quantile of `target`, inside (0, 1); empty text where the column is none."""
    level = name.removeprefix(f"{target}_q") if name.startswith(f"{target}_q") else ""
    return level if is_number(level) and 0 < float(level) < 1 else ""


def _base(name: str) -> str:
    """Return the name of the target that a derived column of that name would have; empty text where it is none."""
    target, _, suffix = name.rpartition(".")
    if suffix in ("sd", MEMBERS, LOW, HIGH):
        return target
    target = name.rpartition("_q")[0]
    return target if _level(name, target) else ""


def _family_is_whole(name: str, target: str, columns: Collection[str]) -> bool:
    """Return whether the columns that are written together with a derived one are there: limits, quantiles."""
    if level := _level(name, target):
        levels = {float(other) for column in columns if (other := _level(column, target))}
        return float(level) in levels and 0.5 in levels and len(levels) > 1
    limits = {f"{target}.{LOW}", f"{target}.{HIGH}"}
    return name not in limits or limits <= set(columns)


def _derived_from(header: Sequence[str], targets: Collection[str]) -> dict[str, str]:
    """Return the target of each column that is derived from a number.

    A name of `targets`, the columns of the metadata, is derived only where the columns from its target up to it are.
    """
    present = set(header)
    columns = [name.removesuffix(MARK) if _base(name.removesuffix(MARK)) in present else name for name in header]
    derived: dict[str, str] = {}
    behind = ""
    for name, plain in zip(header, columns, strict=True):
        target = _base(plain)
        if not target or target not in present or not _family_is_whole(plain, target, columns):
            behind = name
            continue
        marked = plain != name
        if marked or (f"{plain}{MARK}" not in present and (target == behind or plain not in targets)):
            derived[name] = target
        else:
            behind = name
    return derived


def _labels(header: Sequence[str]) -> dict[str, list[str]]:
    """Return the labels of each class target."""
    labels: dict[str, list[str]] = {}
    for name in header:
        # Target and label may both hold "=": the target is the shortest column that begins the name.
        target = min((other for other in header if name.startswith(f"{other}=")), key=len, default=None)
        if target is not None:
            labels.setdefault(target, []).append(name.removeprefix(f"{target}="))
    return labels


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
            problems.add(f"{path}: line {line} has {len(row)} cells, expected {len(header)} as in the header")
    for what, names in {"columns": header, "samples": [row[0] for row in body if row]}.items():
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            problems.add(f"{path}: {what} occur more than once: {shown(twice)}; leave each in once")
    if not body:
        problems.add(f"{path}: no sample below the header; expected {COLUMNS}")
    problems.raise_if_any()
    return {name: [row[place] for row in body] for place, name in enumerate(header)}


def _numbers(path: Path, name: str, cells: Sequence[str]) -> Array:
    try:
        return np.array([math.nan if cell == "" else float(cell) for cell in cells])
    except ValueError as error:
        raise InputError(
            f"{path}: column {name!r} holds text where numbers belong ({error}); correct it, or, where {name!r} has "
            f"classes, add a probability for each: {name}=CLASS"
        ) from None


def read_predictions(path: Path, targets: Collection[str] = ()) -> PredictionTable:
    """Read what `write_predictions` wrote.

    Parameters
    ----------
    path : Path
    targets : collection of str
        Names of metadata columns: one that could also be derived from another target, such as ``ph.low``, is a target
        unless it stands where a derived column does.

    Raises
    ------
    InputError
        Columns or numbers cannot be read as such, or hold what `check_predictions` refuses.
    """
    columns = _cells(path)
    header = list(columns)
    labels, derived = _labels(header), _derived_from(header, targets)
    probabilities = {f"{target}={label}" for target in labels for label in labels[target]}
    names = [name for name in header if name not in {*RESERVED, *derived, *probabilities}]
    if not names:
        classes = {name.partition("=")[0] for name in header if "=" in name}
        hint = f" (is {shown(sorted(classes))} missing?)" if classes else ""
        raise InputError(f"{path}: no target column beside {shown(header)}{hint}; expected {COLUMNS}")
    of_target: dict[str, dict[str, Array]] = {name: {} for name in names}
    for name, target in derived.items():
        if target in of_target:
            of_target[target][name.removesuffix(MARK)] = _numbers(path, name, columns[name])
    levels = {name: [level for column in of_target[name] if (level := _level(column, name))] for name in names}
    specs = tuple(
        TargetSpec(
            name,
            "class" if name in labels else "numeric",
            tuple(labels.get(name, ())),
            quantiles=tuple(map(float, levels[name])),
        )
        for name in names
    )
    empty = [""] * len(columns["sample-id"])
    more = [(name, f"{name}.{suffix}") for name in names for suffix in (MEMBERS, LOW, HIGH)]
    table = PredictionTable(
        tuple(columns["sample-id"]),
        specs,
        {name: _numbers(path, name, columns[name]) for name in names if name not in labels},
        {name: of_target[name][f"{name}.sd"] for name in names if f"{name}.sd" in of_target[name]},
        {
            name: np.stack([_numbers(path, column, columns[column]) for column in _columns_of(name, labels)], axis=1)
            for name in names
            if name in labels
        },
        tuple(columns.get("note", empty)),
        tuple(columns.get("fold", empty)),
        {column: of_target[name][column] for name, column in more if column in of_target[name]},
        {
            name: np.stack([of_target[name][f"{name}_q{level}"] for level in levels[name]], axis=1)
            for name in names
            if levels[name]
        },
        tuple(columns.get("subset", ())),
    )
    check_predictions(path, table, columns)
    return table


def _columns_of(target: str, labels: dict[str, list[str]]) -> list[str]:
    """Return the columns of the probabilities of a class target."""
    return [f"{target}={label}" for label in labels[target]]
