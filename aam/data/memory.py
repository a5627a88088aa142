"""Tables, trees and metadata from whatever researchers have: a BIOM table, a DataFrame, AnnData, a
tree of scikit-bio, or a file.
"""

from __future__ import annotations

import logging
import math
import numbers
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

import aam.data.table
from aam.data.table import table_of_counts
from aam.errors import InputError, shown
from aam.io.headers import row_numbers
from aam.io.ids import difference
from aam.io.metadata import (
    Cells,
    Metadata,
    make_metadata,
    number_text,
    read_cells,
    read_metadata,
    unnamed_columns,
    with_faults,
)
from aam.io.phylogeny import Phylogeny, read_tree, rooted_tree
from aam.io.tables import AmpliconTable, checked_table
from aam.typing import Floats, PathLike

if TYPE_CHECKING:
    import biom
    import skbio

log = logging.getLogger("aam")


class AnnData(Protocol):
    """An anndata.AnnData, whose ``X`` has reads, observations in rows and variables in columns."""

    @property
    def obs_names(self) -> pd.Index:
        """Ids of the samples [N]."""

    @property
    def var_names(self) -> pd.Index:
        """Ids of the features [F]."""


# What is taken for a table of reads, for metadata, for a tree, and for a value of each sample.
TableLike: TypeAlias = "biom.Table | pd.DataFrame | AnnData | AmpliconTable | PathLike"
MetadataLike: TypeAlias = "pd.DataFrame | Metadata | PathLike"
TreeLike: TypeAlias = "skbio.TreeNode | PathLike"
Values: TypeAlias = "pd.Series | pd.DataFrame | npt.ArrayLike"

EXPECTED_OBJECT = (
    "expected a biom.Table, a DataFrame of samples whose columns are the ASVs' sequences, AnnData, "
    "aam.read_table(PATH), or the path of a table (.biom, .qza or .tsv)"
)


def _in_memory(source: Any) -> AmpliconTable:
    """Return the table of an object of Python, with the checks that every file passes."""
    if hasattr(source, "matrix_data") and hasattr(source, "ids"):
        values, where = source.matrix_data.T, "the BIOM table"
        samples, features = source.ids(), source.ids("observation")
    elif hasattr(source, "obs_names") and hasattr(source, "var_names"):
        values, where = source.X, "the AnnData"
        samples, features = source.obs_names, source.var_names
    elif isinstance(source, pd.DataFrame):
        values, where = _numbers(source), "the DataFrame"
        samples, features = source.index, source.columns
    else:
        kind = type(source).__name__
        raise InputError(
            f"table is {kind}, without sequences of ASVs or sample ids; {EXPECTED_OBJECT}"
        )
    try:
        entries = sparse.coo_array(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} does not hold numbers ({error}); {EXPECTED_OBJECT}") from None
    if entries.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {entries.dtype}, expected whole reads")
    for kind, ids in (("sample", samples), ("feature", features)):
        if missing := [number for number, name in enumerate(ids, 1) if is_missing_value(name)]:
            first = f"the first is {kind} {missing[0]}"
            raise InputError(f"{where}: {len(missing)} {kind} ids are missing, {first}")
    return checked_table(entries.tocsr(), (*map(str, samples),), (*map(str, features),), where)


def _numbers(frame: pd.DataFrame) -> Any:
    """Return the values of a DataFrame, NaN where they are missing; `InputError` names the first
    that is no number.
    """
    if len(frame.columns) and all(getattr(kind, "fill_value", None) == 0 for kind in frame.dtypes):
        return frame.sparse.to_coo()
    values = frame.to_numpy()
    if values.dtype != object:
        return values
    try:
        return frame.to_numpy(np.float64, na_value=math.nan)
    except (TypeError, ValueError):
        for (row, column), value in np.ndenumerate(values):
            if is_missing_value(value) or isinstance(value, numbers.Real):
                continue
            place = f"sample {str(frame.index[row])!r}, column {str(frame.columns[column])[:60]!r}"
            expected = "expected reads with samples as rows and ASVs as columns"
            problem = f"the DataFrame: {str(value)[:60]!r} at {place} is not a number"
            raise InputError(f"{problem}; {expected}") from None
        raise


def table_from(
    source: TableLike,
    sequences: Path | None = None,
    need_sequences: bool = True,
    merge: bool = False,
) -> AmpliconTable:
    """Return the table of a file, or of what `aam.read_table` takes, as a model reads it.

    Parameters and errors are those of `aam.data.table.read_table`, and of `aam.read_table`.
    """
    if isinstance(source, (str, os.PathLike)):
        return aam.data.table.read_table(Path(source), sequences, need_sequences, merge)
    if isinstance(source, AmpliconTable) and sequences is None:
        return source
    table = source if isinstance(source, AmpliconTable) else _in_memory(source)
    return table_of_counts(table, "the table", sequences, need_sequences, merge)


def tree_from(source: TreeLike | None, midpoint: bool = False) -> Phylogeny | None:
    """Return the tree of a file or of a skbio.TreeNode, rooted at its midpoint if asked; None
    without a tree.
    """
    if source is None:
        return None
    if isinstance(source, (str, os.PathLike)):
        return read_tree(Path(source), midpoint)
    if not hasattr(source, "write"):
        kind = type(source).__name__
        raise InputError(f"tree is {kind}, expected a skbio.TreeNode, or the path of a tree")
    return rooted_tree(str(source), "tree", midpoint)


# --- metadata ----------------------------------------------------------------------------------


def is_missing_value(value: Any) -> bool:
    """Whether a value is missing as Python, NumPy or pandas say it: None, NaN, NaT or pandas.NA."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def is_numeric(values: Sequence[Any]) -> bool:
    """Return whether all values that are not missing are numbers, truth values aside."""
    present = [value for value in np.asarray(values).tolist() if not is_missing_value(value)]
    return np.asarray(present).dtype.kind in "iuf" and len(present) > 0


def aligned(
    values: Any, sample_ids: Sequence[str], name: str, by_position: str = "to_numpy()"
) -> list[Any]:
    """Return one value per sample: by id if `values` has an index, else by position, as those of
    the method `by_position` are.

    Only arrays, lists and a Series with the default index (0 to N - 1) are taken by position.

    Raises
    ------
    InputError
        No values in an order, another number of them, several for a sample, or an index without
        some samples; it names the change of ids that explains the mismatch.
    """
    if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping, Set)):
        kind = type(values).__name__
        raise InputError(f"{name} is {kind}, expected an array, a list, or a Series by sample id")
    if isinstance(values, pd.DataFrame) and len(values.columns) == 1:
        values = values.iloc[:, 0]
    samples, index = len(sample_ids), getattr(values, "index", None)
    if getattr(values, "ndim", 1) != 1:
        shape = f"{values.shape}, expected ({samples},): a value for each sample"
        raise InputError(f"{name} has the shape {shape}")
    listed = values if isinstance(values, list) else np.asarray(values, dtype=object).tolist()
    labels = [str(label) for label in index] if isinstance(index, pd.Index) else []
    is_default = isinstance(index, pd.RangeIndex) and (index.start, index.step) == (0, 1)
    if not isinstance(index, pd.Index) or (is_default and set(labels) != set(sample_ids)):
        if len(listed) != samples:
            counts = f"{len(listed)} values, and the table has {samples} samples"
            raise InputError(f"{name} has {counts}; give one each")
        return listed
    row_of = {label: row for row, label in enumerate(labels)}
    if len(row_of) < len(labels):
        repeated = [label for label, times in Counter(labels).items() if times > 1]
        raise InputError(f"{name}: its index holds sample ids twice: {shown(repeated)}")
    if absent := [sample for sample in sample_ids if sample not in row_of]:
        raise InputError(
            f"{name}: {len(absent)} of {samples} samples are not in its index: {shown(absent)}; "
            f"the index has {shown(labels, 3)}{difference(absent, labels)}. Correct the index, or "
            f"pass {name}.{by_position} if it is in the order of the table"
        )
    return [listed[row_of[sample]] for sample in sample_ids]


def numbers_of(values: Sequence[Any]) -> Floats:
    """Return numbers as float64, NaN where a value is missing."""
    present = (math.nan if is_missing_value(value) else float(value) for value in values)
    return np.fromiter(present, np.float64, len(values))


def _text(value: Any) -> str:
    """Return a value as a cell; empty where it is missing."""
    value = value.item() if isinstance(value, np.generic) else value
    if is_missing_value(value):
        return ""
    return number_text(value) if isinstance(value, float) else str(value).strip()


def _check_ids(sample_ids: Sequence[str]) -> None:
    """Raise `InputError` where sample ids could not stand in the files of a run."""
    if unreadable := [name for name in sample_ids if name[:1] in ("#", "") or name != name.strip()]:
        raise InputError(
            f"{len(unreadable)} of {len(sample_ids)} sample ids cannot stand in metadata: "
            f"{shown(unreadable)}; QIIME 2 takes what begins with # for a comment and drops white "
            "space around ids; rename these samples"
        )


def metadata_of_columns(
    sample_ids: Sequence[str], columns: Mapping[str, Floats | Sequence[Any]], source: str
) -> Metadata:
    """Return columns of values in the order of `sample_ids` as metadata: arrays of numbers, and
    other values, which are categories.

    Of these only None, NaN and empty text are missing, as Python says it. `source` is what messages
    call the metadata.

    Raises
    ------
    InputError
        Sample ids that could not stand in the files of a run.
    """
    _check_ids(sample_ids)
    described, types, schemes = dict[str, Cells](), dict[str, str](), dict[str, str]()
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            described[name], types[name] = values, "numeric"
            continue
        described[name] = tuple(map(_text, values))
        types[name], schemes[name] = "categorical", "blank"
    return make_metadata(sample_ids, described, types, schemes, source)


def check_column_names(frame: pd.DataFrame, name: str) -> None:
    """Raise `InputError` where two columns of a DataFrame have the same name as text."""
    times = Counter(map(str, frame.columns))
    if repeated := [column for column, number in times.items() if number > 1]:
        raise InputError(f"{name}: columns of the same name: {shown(repeated)}; rename them")


def metadata_from(
    source: MetadataLike | None, decimal: str = ".", missing_values: Collection[str] = ()
) -> Metadata:
    """Return the metadata of a file or of a DataFrame by sample id; `InputError` for anything
    else.
    """
    if isinstance(source, Metadata):
        return source
    if isinstance(source, (str, os.PathLike)):
        return read_metadata(Path(source), decimal, missing_values)
    if not isinstance(source, pd.DataFrame):
        kind = type(source).__name__
        raise InputError(f"metadata is {kind}, expected a DataFrame by sample id, or a path")
    ids = [*map(str, source.index)]
    _check_ids(ids)
    names, remedy = [*map(str, source.columns)], "pass metadata.set_index(COLUMN)"
    if numbered := row_numbers(["", *names], ids, remedy):
        raise InputError(f"metadata: {numbered}")
    columns, types = dict[str, Cells](), dict[str, str]()
    faults = {name: fault for name, fault in unnamed_columns(names).items() if name}
    for place, name in enumerate(names):
        if name in faults:
            continue
        values = source.iloc[:, place]
        # NumPy has no whole numbers with gaps: Int64 with pandas.NA would become 1.0 and NaN.
        is_array = isinstance(values.dtype, np.dtype) and values.dtype.kind in "iuf"
        # Text is read as that of a file, which may hold numbers.
        cells = () if is_array else read_cells(map(_text, values.tolist()), decimal)
        columns[name] = values.to_numpy() if is_array else cells
        is_category = isinstance(values.dtype, pd.CategoricalDtype)
        types[name] = "numeric" if is_numeric(values) else "categorical" * is_category
    metadata = make_metadata(ids, columns, types, {}, "metadata", missing_values=missing_values)
    return with_faults(metadata, faults)
