"""Tables of reads and trees in memory, from whatever researchers have: a BIOM table, a DataFrame, AnnData or a file."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

import aam.data.table
from aam.config import DataConfig
from aam.data.study import Inputs
from aam.data.table import SampleTable, table_of_counts
from aam.errors import InputError
from aam.io.counts import RawTable, checked_table, whole_counts
from aam.io.matrices import read_distances
from aam.io.metadata import Metadata
from aam.io.newick import read_tree, rooted_tree
from aam.io.phylogeny import Phylogeny
from aam.options import IN_MEMORY

EXPECTED = (
    "expected a biom.Table, a DataFrame of samples whose columns are the ASVs' sequences, AnnData, "
    "aam.read_table(PATH), or the path of a table (.biom, .qza or .tsv)"
)


@dataclass(frozen=True, eq=False)
class AmpliconTable:
    """Reads of each ASV in each sample, which scikit-learn can divide: rows are samples.

    Attributes
    ----------
    counts : scipy.sparse.csr_array [N, F]
        Whole reads.
    sample_ids, feature_ids : tuple of str
        Names of rows and columns; features are called by their sequence, or by ids with ``sequences=FASTA``.
    """

    counts: sparse.csr_array
    sample_ids: tuple[str, ...]
    feature_ids: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return len(self.sample_ids), len(self.feature_ids)

    @property
    def depths(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]: ``table[table.depths >= 1000]`` are the deep ones."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, rows: Any) -> AmpliconTable:
        """Return the samples at `rows`: a slice, a mask or positions; all features stay."""
        rows = rows[0] if isinstance(rows, tuple) else rows
        chosen = np.atleast_1d(np.arange(len(self))[rows])
        return AmpliconTable(self.counts[chosen], tuple(self.sample_ids[row] for row in chosen), self.feature_ids)

    def __repr__(self) -> str:
        return f"AmpliconTable({len(self)} samples, {len(self.feature_ids)} features, {self.counts.sum()} reads)"


def read_table(source: Any) -> AmpliconTable:
    """Return a table of reads whose rows scikit-learn can divide.

    Parameters
    ----------
    source : biom.Table, pandas.DataFrame, anndata.AnnData, AmpliconTable, or path
        Rows of a DataFrame, and observations of AnnData, are samples called by the index; columns are ASVs. A
        path is read as the commands read ``--table``.

    Raises
    ------
    InputError
        Anything else, a file that is no table, reads that are not whole numbers, or ids that occur twice.
    """
    if isinstance(source, AmpliconTable):
        return source
    if isinstance(source, (str, os.PathLike)):
        table = aam.data.table.read_table(Path(source), need_sequences=False)
        return AmpliconTable(table.counts, table.sample_ids, tuple(table.feature_ids))
    if hasattr(source, "matrix_data") and hasattr(source, "ids"):
        return _checked(source.matrix_data.T, source.ids(), source.ids(axis="observation"), "the BIOM table")
    if hasattr(source, "obs_names") and hasattr(source, "var_names"):
        return _checked(source.X, source.obs_names, source.var_names, "the AnnData")
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        in_parts = len(source.columns) > 0 and all(hasattr(kind, "fill_value") for kind in source.dtypes)
        values = source.sparse.to_coo() if in_parts else source.to_numpy()
        return _checked(values, source.index, source.columns, "the DataFrame")
    raise InputError(f"X is {type(source).__name__}, which has no sequences of ASVs or no sample ids; {EXPECTED}")


def _checked(values: Any, sample_ids: Sequence[Any], feature_ids: Sequence[Any], where: str) -> AmpliconTable:
    """Return the table of `values` [N, F], dense or sparse, with the checks that every file passes."""
    raw = checked_table(_raw_table(values, sample_ids, feature_ids, where), where)
    return AmpliconTable(raw.counts, tuple(raw.sample_ids), tuple(raw.feature_ids))


def _raw_table(values: Any, sample_ids: Sequence[Any], feature_ids: Sequence[Any], where: str) -> RawTable:
    """Return `values` [N, F] as whole reads."""
    try:
        entries = sparse.coo_array(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} does not hold numbers ({error}); {EXPECTED}") from None
    samples, features = [str(name) for name in sample_ids], [str(name) for name in feature_ids]
    rows, columns = entries.coords

    def place(position: int) -> str:
        return f"sample {samples[rows[position]]!r}, feature {features[columns[position]]!r}"

    counts = whole_counts(entries.data, where, place)
    return RawTable(sparse.csr_array((counts, (rows, columns)), shape=entries.shape), samples, features)


def option_of(source: Any) -> Path | None:
    """Return what an option says of an input: its path, `IN_MEMORY`, or None where there is none."""
    if source is None:
        return None
    return Path(source) if isinstance(source, (str, os.PathLike)) else IN_MEMORY


def sample_table(
    source: Any, sequences: Path | None = None, need_sequences: bool = True, transpose: bool = False
) -> SampleTable:
    """Return the table of a file, or of what `read_table` takes, as a model reads it.

    Parameters and errors are those of `aam.data.table.read_table`, and of `read_table`.
    """
    if isinstance(source, (str, os.PathLike)):
        return aam.data.table.read_table(Path(source), sequences, need_sequences, transpose)
    table = read_table(source)
    raw = _raw_table(table.counts, table.sample_ids, table.feature_ids, "the table")
    return table_of_counts(raw.transposed() if transpose else raw, "the table", sequences, need_sequences)


def phylogeny(source: Any, midpoint: bool = False) -> Phylogeny | None:
    """Return the tree of a file or of a skbio.TreeNode, rooted at its midpoint if asked; None where there is none."""
    if source is None:
        return None
    if isinstance(source, (str, os.PathLike)):
        return read_tree(Path(source), midpoint)
    if not hasattr(source, "write"):
        raise InputError(f"tree is {type(source).__name__}, expected a skbio.TreeNode, or the path of a tree")
    text = io.StringIO()
    source.write(text, format="newick")
    return rooted_tree(text.getvalue(), "tree", midpoint)


def inputs_of(data: DataConfig, table: SampleTable, tree: Any = None, metadata: Metadata | None = None) -> Inputs:
    """Return the inputs of a training: what is in memory, and the matrix of distances that `data` names."""
    matrix = None if data.unifrac_matrix is None else read_distances(data.unifrac_matrix)
    return Inputs((table,), trees=(phylogeny(tree, data.midpoint_root),), matrix=matrix, metadata=metadata)
