"""Metadata in memory: one value for each sample, aligned with a table, as the metadata that the commands read."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aam.errors import InputError, shown
from aam.io.metadata import Metadata, make_metadata, read_metadata


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


def metadata_of_columns(
    sample_ids: Sequence[str], columns: Mapping[str, Sequence[Any]], categorical: Collection[str], source: str
) -> Metadata:
    """Return columns of values in the order of `sample_ids` as metadata, of which some are categorical.

    In a categorical column only an empty cell is missing: ``none`` is a class like any other. `source` is what
    messages call the metadata.

    Raises
    ------
    InputError
        A numeric column holds text, or sample ids could not stand in the files of a run.
    """
    if unreadable := [name for name in sample_ids if name.startswith("#") or name != name.strip() or not name]:
        raise InputError(
            f"{len(unreadable)} of {len(sample_ids)} sample ids cannot stand in metadata: {shown(unreadable)}; QIIME 2 "
            "takes what begins with # for a comment and drops white space around ids; rename these samples"
        )
    cells = {name: tuple(map(_text, values)) for name, values in columns.items()}
    types = ["categorical" if name in categorical else "numeric" for name in columns]
    missing = ["blank" if name in categorical else "" for name in columns]
    return make_metadata(sample_ids, cells, types, missing, source)


def metadata_from(source: Any, decimal: str = ".", name: str = "metadata") -> Metadata:
    """Return the metadata of a file or of a DataFrame by sample id; `InputError`, with `name`, for anything else."""
    if isinstance(source, Metadata):
        return source
    if isinstance(source, (str, os.PathLike)):
        return read_metadata(Path(source), decimal)
    if not hasattr(source, "columns") or not hasattr(source, "index"):
        raise InputError(f"{name} is {type(source).__name__}, expected a DataFrame by sample id, or a path")
    if repeated := [str(column) for column, times in Counter(map(str, source.columns)).items() if times > 1]:
        raise InputError(f"{name}: columns of the same name: {shown(repeated)}; rename them")
    columns = {str(column): source[column].tolist() for column in source.columns}
    categorical = [str(column) for column in source.columns if not is_numeric(source[column])]
    return metadata_of_columns([str(sample) for sample in source.index], columns, categorical, name)
