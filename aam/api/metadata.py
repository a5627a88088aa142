"""Metadata in memory, one value for each sample, aligned with a table and written as the commands read it."""

from __future__ import annotations

import contextlib
import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aam.errors import InputError, shown


def is_missing_value(value: Any) -> bool:
    """Return whether a value is missing as Python, NumPy or pandas say it: None, NaN, NaT or ``pandas.NA``."""
    value = value.item() if isinstance(value, np.generic) else value
    return value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("<NA>", "NaT")


def _text(value: Any) -> str:
    """Return a value as a cell; empty where it is missing. Numbers keep all their bits."""
    value = value.item() if isinstance(value, np.generic) else value
    if is_missing_value(value):
        return ""
    if isinstance(value, bool):
        return str(value)
    return repr(value) if isinstance(value, float) else str(value).strip()


@contextlib.contextmanager
def named_in_messages(path: Path, name: str) -> Iterator[None]:
    """Call a file that Python users have not written by `name` in the problems of an `InputError`."""
    try:
        yield
    except InputError as error:
        raise InputError(*(problem.replace(str(path), name) for problem in error.problems)) from None


def is_numeric(values: Sequence[Any]) -> bool:
    """Return whether all values that are not missing are numbers, truth values aside."""
    present = [value for value in np.asarray(values).tolist() if not is_missing_value(value)]
    return np.asarray(present).dtype.kind in "iuf" and len(present) > 0


def aligned(values: Any, sample_ids: Sequence[str], name: str) -> list[Any]:
    """Return one value for each sample: by id where `values` is a Series of these ids, else in their order.

    Raises
    ------
    InputError
        Another number of values, several for a sample, or an index that holds only some of the samples.
    """
    if getattr(values, "ndim", 1) != 1:
        raise InputError(f"{name} has the shape {values.shape}, expected ({len(sample_ids)},): a value for each sample")
    index = getattr(values, "index", None)
    if index is not None and not callable(index):
        names = [str(label) for label in index]
        present = set(names) & set(sample_ids)
        if len(present) == len(set(sample_ids)):
            place = {label: row for row, label in enumerate(names)}
            if len(place) < len(names):
                raise InputError(f"{name}: its index holds sample ids twice")
            listed = values.tolist()
            return [listed[place[sample]] for sample in sample_ids]
        if present:
            absent = [sample for sample in sample_ids if sample not in present]
            raise InputError(
                f"{name}: {len(absent)} of {len(sample_ids)} samples are not in its index: {shown(absent)}"
            )
    listed = np.asarray(values, dtype=object).tolist() if not isinstance(values, list) else values
    if len(listed) != len(sample_ids):
        raise InputError(f"{name} has {len(listed)} values, and the table has {len(sample_ids)} samples; give one each")
    return listed


def write_metadata(
    path: Path, sample_ids: Sequence[str], columns: Mapping[str, Sequence[Any]], categorical: Sequence[str]
) -> None:
    """Write columns of values in the order of `sample_ids` as QIIME 2 metadata, of which some are categorical.

    In a categorical column only an empty cell is missing: ``none`` is a class like any other.
    """
    if unreadable := [name for name in sample_ids if name.startswith("#") or name != name.strip() or not name]:
        raise InputError(
            f"{len(unreadable)} of {len(sample_ids)} sample ids cannot stand in metadata: {shown(unreadable)}; QIIME 2 "
            "takes what begins with # for a comment and drops white space around ids; rename these samples"
        )
    names = list(columns)
    types = ["categorical" if name in categorical else "numeric" for name in names]
    missing = ["blank" if name in categorical else "" for name in names]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        writer.writerow(["sample-id", *names])
        writer.writerow(["#q2:types", *types])
        writer.writerow(["#q2:missing", *missing])
        cells = [[_text(value) for value in columns[name]] for name in names]
        writer.writerows([sample, *row] for sample, *row in zip(sample_ids, *cells, strict=True))


def metadata_file(source: Any, folder: Path) -> Path:
    """Return the file of a metadata table: the one that `source` names, or one written from a DataFrame."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source)
    if not hasattr(source, "columns") or not hasattr(source, "index"):
        raise InputError(f"metadata is {type(source).__name__}, expected a DataFrame by sample id, or a path")
    columns = {str(name): source[name].tolist() for name in source.columns}
    categorical = [str(name) for name in source.columns if not is_numeric(source[name])]
    path = folder / "metadata.tsv"
    write_metadata(path, [str(name) for name in source.index], columns, categorical)
    return path
