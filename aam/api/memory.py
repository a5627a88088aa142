"""Tables, trees and metadata from whatever researchers have: a BIOM table, a DataFrame, AnnData or
a file.
"""

from __future__ import annotations

import io
import logging
import math
import numbers
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

import aam.data.table
from aam.config import DataConfig
from aam.data.study import Inputs
from aam.data.table import table_of_counts
from aam.errors import InputError, shown
from aam.io.matrices import read_distances
from aam.io.metadata import Metadata, is_missing, make_metadata, may_be_missing, read_metadata
from aam.io.phylogeny import Phylogeny, read_tree, rooted_tree
from aam.io.tables import AmpliconTable, checked_table
from aam.io.text import difference
from aam.options import IN_MEMORY

log = logging.getLogger("aam")

EXPECTED = (
    "expected a biom.Table, a DataFrame of samples whose columns are the ASVs' sequences, AnnData, "
    "aam.read_table(PATH), or the path of a table (.biom, .qza or .tsv)"
)


def read_table(source: Any) -> AmpliconTable:
    """Read a table of reads, whose rows scikit-learn can divide.

    Parameters
    ----------
    source : biom.Table, pandas.DataFrame, anndata.AnnData, AmpliconTable, or path
        Rows of a DataFrame, and observations of AnnData, are samples called by the index; columns
        are ASVs. A path is read as the commands read ``--table``.

    Raises
    ------
    InputError
        Anything else, a file that is no table, reads that are not whole numbers, or ids that occur
        twice.
    """
    return sample_table(source)


def _in_memory(source: Any) -> AmpliconTable:
    """Return the table of an object of Python, with the checks that every file passes."""
    if hasattr(source, "matrix_data") and hasattr(source, "ids"):
        return _checked(
            source.matrix_data.T, source.ids(), source.ids(axis="observation"), "the BIOM table"
        )
    if hasattr(source, "obs_names") and hasattr(source, "var_names"):
        return _checked(source.X, source.obs_names, source.var_names, "the AnnData")
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        in_parts = len(source.columns) > 0 and all(
            getattr(kind, "fill_value", None) == 0 for kind in source.dtypes
        )
        values = source.sparse.to_coo() if in_parts else _dense(source)
        return _checked(values, source.index, source.columns, "the DataFrame")
    raise InputError(
        f"X is {type(source).__name__}, which has no sequences of ASVs or no sample ids; {EXPECTED}"
    )


def _dense(frame: Any) -> npt.NDArray[Any]:
    """Return the values of a DataFrame, NaN where they are missing; `InputError` names the first
    that is no number.
    """
    values = frame.to_numpy()
    if values.dtype != object:
        return np.asarray(values)
    try:
        return np.asarray(frame.to_numpy(np.float64, na_value=math.nan))
    except (TypeError, ValueError):
        places = (
            (row, column) for (row, column), value in np.ndenumerate(values) if not _is_real(value)
        )
        row, column = next(places, (0, 0))
        raise InputError(
            f"the DataFrame: {str(values[row, column])[:60]!r} at sample "
            f"{str(frame.index[row])!r}, column {str(frame.columns[column])[:60]!r} is not a "
            "number; expected reads with samples as rows and ASVs as columns"
        ) from None


def _is_real(value: Any) -> bool:
    """Return whether a value is missing or a real number."""
    return is_missing_value(value) or isinstance(value, numbers.Real)


def _checked(
    values: Any, sample_ids: Sequence[Any], feature_ids: Sequence[Any], where: str
) -> AmpliconTable:
    """Return `values` [N, F], dense or sparse, as whole reads."""
    try:
        entries = sparse.coo_array(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} does not hold numbers ({error}); {EXPECTED}") from None
    if entries.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {entries.dtype}, expected whole reads")
    for kind, ids in (("sample", sample_ids), ("feature", feature_ids)):
        if missing := [number for number, name in enumerate(ids, 1) if is_missing_value(name)]:
            raise InputError(
                f"{where}: {len(missing)} {kind} ids are missing, the first is {kind} {missing[0]}"
            )
    samples, features = tuple(map(str, sample_ids)), tuple(map(str, feature_ids))
    return checked_table(entries.tocsr(), samples, features, where)


def option_of(source: Any) -> Path | None:
    """Value of the option of an input: its path, `IN_MEMORY`, or None without an input."""
    if source is None:
        return None
    return Path(source) if isinstance(source, (str, os.PathLike)) else IN_MEMORY


def sample_table(
    source: Any, sequences: Path | None = None, need_sequences: bool = True, merge: bool = False
) -> AmpliconTable:
    """Return the table of a file, or of what `read_table` takes, as a model reads it.

    Parameters and errors are those of `aam.data.table.read_table`, and of `read_table`.
    """
    if isinstance(source, (str, os.PathLike)):
        return aam.data.table.read_table(Path(source), sequences, need_sequences, merge)
    table = source
    if not isinstance(source, AmpliconTable):
        table = _in_memory(source)
    elif sequences is None:
        return source
    return table_of_counts(table, "the table", sequences, need_sequences, merge)


def phylogeny(source: Any, midpoint: bool = False) -> Phylogeny | None:
    """Return the tree of a file or of a skbio.TreeNode, rooted at its midpoint if asked; None
    without a tree.
    """
    if source is None:
        return None
    if isinstance(source, (str, os.PathLike)):
        return read_tree(Path(source), midpoint)
    if not hasattr(source, "write"):
        raise InputError(
            f"tree is {type(source).__name__}, expected a skbio.TreeNode, or the path of a tree"
        )
    text = io.StringIO()
    source.write(text, format="newick")
    return rooted_tree(text.getvalue(), "tree", midpoint)


def inputs_of(
    data: DataConfig, table: AmpliconTable, tree: Any = None, metadata: Metadata | None = None
) -> Inputs:
    """Return the inputs of a training: what is in memory, and the matrix of distances that `data`
    names.
    """
    matrix = None if data.unifrac_matrix is None else read_distances(data.unifrac_matrix)
    return Inputs(
        (table,), trees=(phylogeny(tree, data.midpoint_root),), matrix=matrix, metadata=metadata
    )


# --- metadata ----------------------------------------------------------------------------------


def is_missing_value(value: Any) -> bool:
    """Return whether a value is missing as Python, NumPy or pandas say it: None, NaN, NaT or
    ``pandas.NA``.
    """
    value = value.item() if isinstance(value, np.generic) else value
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or str(value) in ("<NA>", "NaT")
    )


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


def _index_of(values: Any, sample_ids: Sequence[str]) -> list[str] | None:
    """Labels of a pandas index; None without one, and for the default one, 0 to N - 1, unless the
    samples are called so.
    """
    index = getattr(values, "index", None)
    if index is None or callable(index):
        return None
    is_default = type(index).__name__ == "RangeIndex" and (index.start, index.step) == (0, 1)
    labels = [str(label) for label in index]
    return None if is_default and set(labels) != set(sample_ids) else labels


def aligned(values: Any, sample_ids: Sequence[str], name: str) -> list[Any]:
    """Return one value per sample: by id if `values` has an index, else by position.

    Only arrays, lists and a Series with the default index (0 to N - 1) are taken by position.

    Raises
    ------
    InputError
        No values in an order, another number of them, several for a sample, or an index without
        some samples; it names the change of ids that explains the mismatch.
    """
    if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping, Set)):
        raise InputError(
            f"{name} is {type(values).__name__}, expected an array, a list, or a Series by "
            "sample id"
        )
    if hasattr(values, "columns") and len(values.columns) == 1:
        values = values.iloc[:, 0] if hasattr(values, "iloc") else values
    if getattr(values, "ndim", 1) != 1:
        raise InputError(
            f"{name} has the shape {values.shape}, expected ({len(sample_ids)},): a value for "
            "each sample"
        )
    labels = _index_of(values, sample_ids)
    listed = np.asarray(values, dtype=object).tolist() if not isinstance(values, list) else values
    if labels is None and len(listed) != len(sample_ids):
        raise InputError(
            f"{name} has {len(listed)} values, and the table has {len(sample_ids)} samples; give "
            "one each"
        )
    if labels is None:
        return listed
    row_of = {label: row for row, label in enumerate(labels)}
    absent = [sample for sample in sample_ids if sample not in row_of]
    if len(row_of) < len(labels):
        repeated = [label for label, times in Counter(labels).items() if times > 1]
        raise InputError(f"{name}: its index holds sample ids twice: {shown(repeated)}")
    if absent:
        raise InputError(
            f"{name}: {len(absent)} of {len(sample_ids)} samples are not in its index: "
            f"{shown(absent)}; the index has {shown(labels, 3)}{difference(absent, labels)}. "
            f"Correct the index, or pass {name}.to_numpy() if it is in the order of the table"
        )
    return [listed[row_of[sample]] for sample in sample_ids]


def _check_sample_ids(sample_ids: Sequence[str]) -> None:
    """Raise `InputError` for sample ids that could not stand in the files of a run."""
    if unreadable := [
        name for name in sample_ids if name.startswith("#") or name != name.strip() or not name
    ]:
        raise InputError(
            f"{len(unreadable)} of {len(sample_ids)} sample ids cannot stand in metadata: "
            f"{shown(unreadable)}; QIIME 2 "
            "takes what begins with # for a comment and drops white space around ids; rename "
            "these samples"
        )


def metadata_of_columns(
    sample_ids: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    categorical: Collection[str],
    source: str,
) -> Metadata:
    """Return columns of values in the order of `sample_ids` as metadata; some are categorical.

    In a categorical column only None, NaN and empty text are missing, as Python says it; other text
    that may mean missing is named in a warning. `source` is what messages call the metadata.

    Raises
    ------
    InputError
        A numeric column holds text, or sample ids could not stand in the files of a run.
    """
    _check_sample_ids(sample_ids)
    cells = {name: tuple(map(_text, values)) for name, values in columns.items()}
    types = ["categorical" if name in categorical else "numeric" for name in columns]
    missing = ["blank" if name in categorical else "" for name in columns]
    for name in categorical:
        found = {cell for cell in cells[name] if is_missing(cell) or may_be_missing(cell)} - {""}
        if found:
            log.warning(
                "warning: %s: %s in %r may mean a missing value; if so, pass None or NaN",
                source,
                shown(sorted(found)),
                name,
            )
    return make_metadata(sample_ids, cells, types, missing, source)


def check_column_names(frame: Any, name: str) -> None:
    """Raise `InputError` where two columns of a DataFrame have the same name as text."""
    if repeated := [
        column for column, times in Counter(map(str, frame.columns)).items() if times > 1
    ]:
        raise InputError(f"{name}: columns of the same name: {shown(repeated)}; rename them")


def metadata_from(
    source: Any, decimal: str = ".", name: str = "metadata", missing_values: Collection[str] = ()
) -> Metadata:
    """Return the metadata of a file or of a DataFrame by sample id; `InputError`, with `name`, for
    anything else.
    """
    if isinstance(source, Metadata):
        return source
    if isinstance(source, (str, os.PathLike)):
        return read_metadata(Path(source), decimal, missing_values)
    if not hasattr(source, "columns") or not hasattr(source, "index"):
        raise InputError(
            f"{name} is {type(source).__name__}, expected a DataFrame by sample id, or a path"
        )
    check_column_names(source, name)
    columns = {str(column): source[column].tolist() for column in source.columns}
    ids = [str(sample) for sample in source.index]
    _check_sample_ids(ids)
    types = [
        "numeric" if is_numeric(source[column]) else "categorical" for column in source.columns
    ]
    cells = {column: tuple(map(_text, values)) for column, values in columns.items()}
    return make_metadata(ids, cells, types, [""] * len(types), name, missing_values=missing_values)
