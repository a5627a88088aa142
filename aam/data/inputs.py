"""Inputs of a study: tables, trees and metadata from files, or from objects of Python: a BIOM
table, a DataFrame, a tree of scikit-bio.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

import aam.data.table
from aam.config import NO_TREE, DataConfig
from aam.data.table import excluded_ids, table_of_counts, without_samples
from aam.errors import InputError, Problems, shown
from aam.io.ids import difference
from aam.io.matrices import DistanceMatrix, read_distances
from aam.io.metadata import Metadata, make_metadata, read_metadata, with_point
from aam.io.phylogeny import Phylogeny, read_tree, rooted_tree
from aam.io.tables import AmpliconTable, checked_table
from aam.options import IN_MEMORY, configured, option_problems
from aam.typing import Floats, OptionValue, PathLike

if TYPE_CHECKING:
    import biom
    import skbio

log = logging.getLogger("aam")

Config = TypeVar("Config")


# What is taken for a table of reads, for metadata, for a tree, and for a value of each sample.
TableLike: TypeAlias = "biom.Table | pd.DataFrame | AmpliconTable | PathLike"
MetadataLike: TypeAlias = "pd.DataFrame | Metadata | PathLike"
TreeLike: TypeAlias = "skbio.TreeNode | PathLike"
Values: TypeAlias = "pd.Series | pd.DataFrame | npt.ArrayLike"

EXPECTED_OBJECT = (
    "expected a biom.Table, a DataFrame of samples whose columns are sequences of ASVs (of AnnData "
    ".to_df()), aam.read_table(PATH), or the path of a table (.biom, .qza or .tsv)"
)


def _in_memory(source: Any) -> AmpliconTable:
    """Return the table of an object of Python, with the checks that every file passes."""
    if hasattr(source, "matrix_data") and hasattr(source, "ids"):
        values, where = source.matrix_data.T, "the BIOM table"
        samples, features = source.ids(), source.ids("observation")
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
    names = [*map(_text, samples)], [*map(_text, features)]
    return checked_table(entries.tocsr(), names[0], names[1], where)


def _numbers(frame: pd.DataFrame) -> Any:
    """Return the values of a DataFrame, NaN where they are missing; `InputError` names the first
    that is no number.
    """
    if len(frame.columns) and all(getattr(kind, "fill_value", None) == 0 for kind in frame.dtypes):
        return frame.sparse.to_coo()
    values = frame.to_numpy()
    if values.dtype != object:
        return values
    cells = pd.Series(values.ravel())
    reads = pd.to_numeric(cells, errors="coerce")
    if len(others := np.flatnonzero(reads.isna() & cells.notna())):
        row, column = divmod(int(others[0]), len(frame.columns))
        place = f"sample {str(frame.index[row])!r}, column {str(frame.columns[column])[:60]!r}"
        expected = "expected reads with samples as rows and ASVs as columns"
        fault = f"the DataFrame: {str(values[row, column])[:60]!r} at {place} is not a number"
        raise InputError(f"{fault}; {expected}")
    return reads.to_numpy().reshape(values.shape)


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
    return repr(value) if isinstance(value, float) else str(value).strip()


def metadata_from(
    source: MetadataLike | None,
    decimal: str = ".",
    missing_values: Collection[str] = (),
    name: str = "metadata",
    scheme: str = "",
) -> Metadata:
    """Return the metadata of a file or of a DataFrame by sample id.

    Messages call a DataFrame by its `name`; `scheme` is what ``#q2:missing`` says of its columns.

    Raises
    ------
    InputError
        Anything else, or sample ids that could not stand in the files of a run.
    """
    if isinstance(source, Metadata):
        return source
    if isinstance(source, (str, os.PathLike)):
        return read_metadata(Path(source), decimal, missing_values)
    if not isinstance(source, pd.DataFrame):
        kind = type(source).__name__
        raise InputError(f"metadata is {kind}, expected a DataFrame by sample id, or a path")
    ids, names = [*map(str, source.index)], [*map(str, source.columns)]
    if unreadable := [name for name in ids if name[:1] in ("#", "") or name != name.strip()]:
        raise InputError(
            f"{len(unreadable)} of {len(ids)} sample ids cannot stand in metadata: "
            f"{shown(unreadable)}; QIIME 2 takes what begins with # for a comment and drops white "
            "space around ids; rename these samples"
        )
    columns, types = list[Sequence[str]](), list[str]()
    for place in range(len(names)):
        values = source.iloc[:, place]
        # Text is read as that of a file, which may hold numbers.
        cells = map(_text, values.tolist())
        columns.append([*map(with_point, cells)] if decimal == "," else [*cells])
        is_category = isinstance(values.dtype, pd.CategoricalDtype)
        types.append("numeric" if is_numeric(values) else "categorical" * is_category)
    said = types, [scheme] * len(names)
    return make_metadata(ids, names, columns, *said, name, None, missing_values)


# --- inputs of a study -------------------------------------------------------------------------

# File names that do not identify a study; the name of their folder is used.
PLAIN_NAMES = ("table", "feature-table")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a study, from files or from memory: one table, or one for each of several studies,
    with the name of each (a single one may be called ''), the tree of each if it has one, distances
    in place of a tree, and metadata. The tables are without the samples `excluded`; where there are
    some, `file_samples` are all samples.
    """

    tables: tuple[AmpliconTable, ...]
    names: tuple[str, ...] = ("",)
    trees: tuple[Phylogeny | None, ...] = (None,)
    matrix: DistanceMatrix | None = None
    metadata: Metadata | None = None
    excluded: tuple[str, ...] = ()
    file_samples: tuple[str, ...] = ()

    def without(self, path: Path | None) -> Inputs:
        """Leave out the samples that a file names, from every table that has them."""
        samples = tuple(name for table in self.tables for name in table.sample_ids)
        if not (ids := excluded_ids(path, dict.fromkeys(samples))):
            return self
        tables = tuple(without_samples(table, set(ids)) for table in self.tables)
        sizes = dict(zip(self.names, map(len, tables), strict=True))
        if empty := [name for name, size in sizes.items() if size == 0]:
            raise InputError(f"{path}: names all samples of {shown(empty)}; leave some of them in")
        return replace(self, tables=tables, excluded=ids, file_samples=samples)

    def checksums(self, options: Any) -> dict[str, str]:
        """SHA-256 of the table, tree and metadata of a study that `options` name as `IN_MEMORY`."""
        (table,), (tree,), metadata, digests = self.tables, self.trees, self.metadata, {}
        counts, names = table.counts, (table.sample_ids, table.names)
        parts: dict[str, Any] = {"table": (counts.indptr, counts.indices, counts.data, *names)}
        if tree is not None:
            parts["tree"] = tree.parent, tree.length, tree.tips
        if metadata is not None:
            cells = {name: metadata.values(name, metadata.ids) for name in metadata.columns}
            parts["metadata"] = metadata.ids, cells, metadata.kinds
        for name in parts:
            if getattr(options, name, None) == IN_MEMORY:
                values = (x if isinstance(x, np.ndarray) else repr(x).encode() for x in parts[name])
                digests[name] = hashlib.sha256(b"".join(map(bytes, values))).hexdigest()
        return digests


def study_names(tables: Sequence[Path]) -> tuple[str, ...]:
    """Name each study by its file, or by its folder if the file is called ``table``; add a number
    if others have the same name.
    """
    times, names = Counter[str](), []
    for path in tables:
        name = path.resolve().parent.name if path.stem in PLAIN_NAMES else path.stem
        times[name] += 1
        names.append(f"{name}-{times[name]}" if times[name] > 1 else name)
    return tuple(names)


def read_inputs(
    config: object,
    columns: Sequence[str] = (),
    table: TableLike | None = None,
    metadata: MetadataLike | None = None,
    tree: TreeLike | None = None,
    need_sequences: bool = True,
) -> Inputs:
    """Read tables, metadata and trees.

    Parameters
    ----------
    config : DataConfig, or the options of a command
        How they are read.
    columns : sequence of str
        Columns that the metadata must have.
    table, metadata, tree
        What is read; without a table the files that `config` names. A tree belongs to its table.
    need_sequences : bool
        Whether ids of features are sequences, and not only tips of a tree.

    Raises
    ------
    InputError
        With the problems of every input, and with metadata columns that are not there.
    """
    data: Any = SimpleNamespace(**vars(DataConfig()) | vars(getattr(config, "data", config)))
    names: tuple[str, ...] = ("",)
    tables, trees, is_passed = [table], [tree], table is not None
    if not is_passed:
        metadata, tables, trees = data.metadata, [data.table], [data.tree]
    if not is_passed and data.tables:
        names, tables = study_names(data.tables), data.tables
        trees = [None if path == NO_TREE else path for path in data.trees] or [None] * len(tables)
    problems, matrix, typed = Problems(), None, None
    read, rooted = list[AmpliconTable](), dict[object, Phylogeny | None]()
    for source in tables:
        with problems.collected():
            read.append(table_from(source, data.sequences, need_sequences, data.trim))
    with problems.collected():
        if metadata is not None or (is_passed and columns):
            typed = metadata_from(metadata, data.decimal, data.missing_values)
            typed.require(columns)
            typed = typed.nested(data.group_column, data.study_column)
    # A file of several studies is read once. Objects that are no trees may have no hash.
    keys = [source if isinstance(source, (str, os.PathLike)) else id(source) for source in trees]
    for key, source in dict(zip(keys, trees, strict=True)).items():
        with problems.collected():
            rooted[key] = tree_from(source, data.midpoint_root)
    with problems.collected():
        if data.unifrac_matrix is not None:
            matrix = read_distances(data.unifrac_matrix)
    problems.raise_if_any()
    rooted_trees = tuple(rooted[key] for key in keys)
    return Inputs(tuple(read), names, rooted_trees, matrix, typed).without(data.exclude)


# --- inputs in place of options ---------------------------------------------------------------


def read_table(source: TableLike) -> AmpliconTable:
    """Read a table of reads, whose rows scikit-learn can divide.

    Parameters
    ----------
    source : biom.Table, pandas.DataFrame, AmpliconTable, or path
        Rows of a DataFrame are samples called by the index; columns are ASVs. A path is read as the
        commands read ``--table``.

    Returns
    -------
    AmpliconTable
        ASVs in the order of their sequences, samples in the order of the source.

    Raises
    ------
    InputError
        Anything else, a file that is no table, reads that are not whole numbers, or ids that occur
        twice.

    Examples
    --------
    >>> table = aam.read_table("table.biom")
    >>> table.shape
    (60, 80)
    >>> len(table[table.depths >= 1000])
    46
    """
    return table_from(source)


def options_with(
    default: Config,
    options: Mapping[str, OptionValue],
    where: str,
    **inputs: TableLike | MetadataLike | TreeLike | None,
) -> Config:
    """Return the configuration `default` with options and inputs by name: the option of an input is
    its path, or `IN_MEMORY`.

    Raises
    ------
    InputError
        Options that do not exist, have a wrong value or contradict each other.
    """
    paths = {name: path_of(source) for name, source in inputs.items() if source is not None}
    config = configured(default, {**options, **paths}, where)
    if problems := option_problems(config):
        raise InputError(*problems)
    return config


def path_of(source: TableLike | MetadataLike | TreeLike) -> Path:
    """The path of an input, `IN_MEMORY` for one that is no file."""
    return Path(source) if isinstance(source, (str, os.PathLike)) else IN_MEMORY
