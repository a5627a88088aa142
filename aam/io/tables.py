"""Tables of counts as a file holds them, text and BIOM: the checks that every table passes."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, csr_matrix

import aam
from aam.errors import InputError, problem, refuse, reworded, shown
from aam.files.atomic import atomic_file
from aam.io.ids import KEEP_ONE, repeated
from aam.io.packed import dataset, open_hdf5
from aam.io.text import MOST_LINES, Faults, folded, unix
from aam.typing import Integers, Ints

MAX_COUNT = 2**32 - 1

EXPECTED_TABLE = (
    "BIOM, .qza, or text with tabs whose header is '#OTU ID' and the sample ids, one feature a row"
)

# Entries of the matrix that are looked at together.
ENTRIES = 1 << 20

# What the matrix of samples consists of in HDF5, and the kinds of number.
MATRIX = {"data": "iuf", "indices": "iu", "indptr": "iu"}

# Constant, so that the same table gives the same bytes on every day.
CREATED = datetime(1970, 1, 1)

CsrCounts: TypeAlias = csr_array | csr_matrix


@dataclass(frozen=True, eq=False)
class AmpliconTable:
    """Reads of each feature in each sample, which scikit-learn can divide: rows are samples.

    Made by `aam.read_table`.

    Attributes
    ----------
    counts : csr [N, F]
        Reads in the narrowest unsigned type, without stored zeros, columns of each row ascending.
    sample_ids, feature_ids : tuple of str
        Names of rows and columns, as the file has them.
    sequences : tuple of str
        Upper-case DNA of the features in ascending order. It is empty for a table of OTUs, taxa or
        hashes, whose `feature_ids` ascend.

    Examples
    --------
    >>> table = aam.read_table("table.biom")
    >>> table.shape
    (60, 80)
    >>> table[:10].sample_ids == table.sample_ids[:10]
    True
    """

    counts: csr_array
    sample_ids: tuple[str, ...]
    feature_ids: tuple[str, ...]
    sequences: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return len(self.sample_ids), len(self.feature_ids)

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, rows: slice | npt.ArrayLike | tuple[npt.ArrayLike, ...]) -> AmpliconTable:
        """Return the samples at `rows`: a slice, a mask or positions; all features stay."""
        index: Any = rows[0] if isinstance(rows, tuple) else rows
        places = np.atleast_1d(np.arange(len(self))[index])
        names = tuple(self.sample_ids[place] for place in places)
        return replace(self, counts=self.counts[places], sample_ids=names)

    def __repr__(self) -> str:
        size = f"{len(self)} samples, {len(self.feature_ids)} features"
        return f"AmpliconTable({size}, {self.counts.sum()} reads)"

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which features of two tables are the same: sequences, or ids without them."""
        return self.sequences or self.feature_ids

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Return the row of each sample by its id."""
        return {name: row for row, name in enumerate(self.sample_ids)}

    @cached_property
    def depths(self) -> Ints:
        """Reads of each sample, [N]."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def row(self, row: int) -> tuple[Integers, Integers]:
        """Return the columns [S], ascending, and their reads [S] of the sample at `row`."""
        start, stop = self.counts.indptr[row], self.counts.indptr[row + 1]
        return self.counts.indices[start:stop], self.counts.data[start:stop]

    def blocks(self, rows: Ints | None = None) -> Iterator[tuple[slice, csr_array]]:
        """Yield the counts of all samples, or of those at `rows`, some at a time, and which these
        are.
        """
        rows = np.arange(len(self)) if rows is None else rows
        size = max(1, ENTRIES * len(self) // max(self.counts.nnz, 1))
        for start in range(0, len(rows), size):
            part = slice(start, min(start + size, len(rows)))
            yield part, self.counts[rows[part]]

    def columns_of(self, rows: Ints) -> Ints:
        """Return the columns, ascending, in which samples at `rows` have reads."""
        return np.flatnonzero(np.bincount(self.counts[rows].indices))

    @cached_property
    def reads_of_asvs(self) -> Ints:
        """Reads of each ASV in all samples, [F]."""
        return np.asarray(self.counts.sum(axis=0, dtype=np.int64))

    @cached_property
    def lengths(self) -> Ints:
        """Nucleotides of each ASV, [F]."""
        return np.fromiter(map(len, self.sequences), np.int64, len(self.sequences))


def _whole_reads(
    values: csr_array, samples: Sequence[str], features: Sequence[str]
) -> tuple[npt.NDArray[np.uint32], str]:
    """Return the stored values as uint32, and what is wrong with those that are no whole number
    from 0 to 2^32 - 1, or nothing.
    """
    stored = values.data if values.dtype.kind in "iuf" else values.data.astype(np.float64)
    # The conversion changes numbers that are negative, not finite, not whole or too large.
    with np.errstate(invalid="ignore"):
        reads = stored.astype(np.uint32)
    faulty = np.flatnonzero(reads != stored)
    if not len(faulty):
        return reads, ""
    first = faulty[0]
    row = np.searchsorted(values.indptr, first, side="right") - 1
    place = f"sample {samples[row]!r}, feature {features[values.indices[first]]!r}"
    fault = f"{float(stored[first]):g} at {place}, expected whole reads from 0 to {MAX_COUNT}"
    remedy = "pass raw counts, not normalised, scaled or logarithmic ones, and 0 for missing reads"
    return reads, f"{fault} (values that are no reads: {len(faulty)}); {remedy}"


# --- checks ------------------------------------------------------------------------------------


def checked_table(
    values: csr_array, sample_ids: Sequence[str], feature_ids: Sequence[str], where: str
) -> AmpliconTable:
    """Return a table of the numbers `values` [N, F], with ids without blanks around them, rows
    sorted by column, and zeros dropped.

    Raises `InputError`: numbers that are no reads; no samples, features or reads; ids that are
    empty, cannot be printed or occur twice; two counts of one feature in a sample.
    """
    samples, features = (tuple(map(str.strip, ids)) for ids in (sample_ids, feature_ids))
    reads, fault = _whole_reads(values, samples, features)
    rules = dict[str, bool]()
    for kind, ids in (("sample", samples), ("feature", features)):
        empty = [number for number, name in enumerate(ids, start=1) if not name]
        unprintable = [ascii(name) for name in ids if not name.isprintable()]
        duplicates = repeated(ids)
        place = f"the first is {kind} {[*empty, 0][0]}"
        rules |= {
            f"the table is empty, it has no {kind}s": not ids,
            f"{len(empty)} {kind} ids are empty, {place}": empty != [],
            f"{kind} ids hold characters that cannot be printed: {shown(unprintable)}": (
                unprintable != []
            ),
            f"{len(duplicates)} {kind} ids occur more than once: {shown(duplicates)}; {KEEP_ONE}": (
                duplicates != []
            ),
        }
    refuse(where, rules | {fault: fault != ""})
    counts = csr_array((reads, values.indices, values.indptr), shape=values.shape)
    counts.sort_indices()
    if not counts.has_canonical_format:
        raise InputError(f"{where}: a sample has two counts for one feature, expected one")
    counts.eliminate_zeros()
    if counts.nnz == 0:
        raise InputError(f"{where}: the table is empty, all counts are 0")
    return AmpliconTable(counts, samples, features)


# --- text --------------------------------------------------------------------------------------

# The first cell of the header, folded: "#OTU ID", "feature-id", "Feature ID".
FEATURE_IDS = ("otuid", "featureid")
BIOM_1 = "BIOM 1.0 (JSON); `biom convert -i FILE -o table.biom --to-hdf5` writes BIOM 2.1"
# What converts other tables with a header: separator and file are those of the table.
CONVERT_TABLE = (
    'convert it with python3 -c "import sys, pandas; pandas.read_csv(sys.argv[1], sep={!r}, '
    "dtype=str, index_col=0).to_csv('table.tsv', sep='\\t', index_label='#OTU ID')\" {}; write .T "
    "before .to_csv if its samples are in rows; of mothur, pass what make.biom writes"
)


def _check_header(line: str, where: str) -> None:
    """Raise `InputError`, with what converts the table, if a line is not the header of a table."""
    if folded(line.split("\t")[0]) not in FEATURE_IDS or '"' in line:
        remedy = CONVERT_TABLE.format(max("\t,; ", key=line.count), shlex.quote(where))
        raise InputError(problem(where, f"begins with {line[:60]!r}", EXPECTED_TABLE, remedy))


def _is_comment(line: str) -> bool:
    """Return whether a line above the header is blank, or text without cells."""
    return not line.strip() or (line.startswith("# ") and "\t" not in line)


def read_tsv(text: str, where: str) -> AmpliconTable:
    """Read a table of text as ``biom convert --to-tsv`` writes it: a header of ``#OTU ID`` (or
    ``feature-id``) and the sample ids, then a row for each feature, with tabs between the cells.

    Lines that begin with "# " above the header are comments, and a last column ``taxonomy`` is left
    out.

    Raises `InputError`: another form, rows of another length, cells that are no counts.
    """
    if text.lstrip().startswith("{"):
        raise InputError(f"{where}: is {BIOM_1}")
    lines = enumerate(unix(text).split("\n"), 1)
    first = next((line for _, line in lines if not _is_comment(line)), None)
    if first is None:
        raise InputError(problem(where, "empty or nothing but comments", EXPECTED_TABLE))
    # Imported here: it takes a second, and other tables need none of it.
    import pandas as pd

    _check_header(first, where)
    header, faults = [cell.strip() for cell in first.split("\t")], Faults(where)
    names = header[1:-1] if folded(header[-1]) == "taxonomy" else header[1:]
    ids, columns, values, ends = list[str](), [], [], [0]
    width = f"expected {len(header)} cells"
    for number, line in lines:
        cells = line.split("\t")
        if not line.strip():
            continue
        if len(cells) != len(header):
            faults.add(f"{width}, as in the header; is the file cut off?", number, str(len(cells)))
            continue
        row = np.array(cells[1 : len(names) + 1], object)
        counts = pd.to_numeric(row, errors="coerce").astype(np.float64)
        for place in np.flatnonzero(np.isnan(counts))[:MOST_LINES]:
            value = f"sample {names[place][:40]!r} has {row[place][:40]!r}"
            faults.add("expected a count, 0 where there are no reads", number, value)
        columns.append(np.flatnonzero(counts))
        values.append(counts[columns[-1]])
        ids.append(cells[0])
        ends.append(ends[-1] + len(columns[-1]))
    faults.raise_if_any()
    parts = np.concatenate([*values, []]), np.concatenate([*columns, np.zeros(0, np.int64)]), ends
    matrix = csr_array(parts, shape=(len(ids), len(names)))
    return checked_table(matrix.T.tocsr(), names, ids, where)


# --- BIOM --------------------------------------------------------------------------------------

# Strategy: a BIOM 2.1 file holds the matrix twice, by feature and by sample, as the three arrays of
# a compressed sparse row matrix. Only the copy by sample is read, and its arrays become the table
# without a change of order. Every array is checked before it is read for the size that it claims
# (`dataset`), then for indices within the matrix (`check_format`), and its values like those of any
# other table (`checked_table`).


def _ids(file: h5py.File, axis: str, where: str) -> list[str]:
    # biom-format stores the ids of an empty axis as numbers.
    if getattr(file.get(f"{axis}/ids"), "shape", None) == (0,):
        return []
    names: list[str] = dataset(file, f"{axis}/ids", "OS", where).asstr("utf-8")[()].tolist()
    return names


def read_hdf5(source: Path | bytes, where: str) -> AmpliconTable:
    """Read the sample-major matrix of a BIOM 2.1 table, from a file or from bytes.

    Raises `InputError`: a dataset missing, of another type or length, or larger than what is
    stored; an index out of bounds; a count that is not whole.
    """
    with open_hdf5(source, f"{where}: not a readable HDF5 file") as file:
        version = np.asarray(file.attrs.get("format-version", (2, 1))).ravel().tolist()
        if version[:1] != [2]:
            raise InputError(f"{where}: BIOM format-version is {version}, expected [2, 1]")
        place = f"{where}: expected BIOM 2.1, which `biom convert --to-hdf5` writes"
        samples, features = _ids(file, "sample", place), _ids(file, "observation", place)
        parts = [dataset(file, f"sample/matrix/{x}", kind, place) for x, kind in MATRIX.items()]
        data, indices, ends = (part[()] for part in parts)
        shape = np.asarray(file.attrs.get("shape", ())).ravel().tolist()
        size = [len(features), len(samples)]
        rules = {
            f"attribute 'shape' is {shape}, expected {size} as the ids": shape != size,
            f"sample/matrix/indptr does not end at {data.size}": ends[-1:].tolist() != [data.size],
        }
        refuse(where, rules)
        with reworded((ValueError,), f"{where}: sample/matrix is damaged"):
            values = csr_array((data, indices, ends), shape=(len(samples), len(features)))
            values.check_format(full_check=True)
    return checked_table(values, samples, features, where)


def write_hdf5(
    path: Path, counts: CsrCounts, sample_ids: Sequence[str], feature_ids: Sequence[str]
) -> None:
    """Write reads as a BIOM 2.1 file by biom-format, whole or not at all; equal tables give equal
    bytes.

    Parameters
    ----------
    path : Path
    counts : sparse matrix [samples, features]
    sample_ids, feature_ids : sequence of str
        Different ones, as many as `counts` has rows and columns; biom-format raises errors of its
        own for others.
    """
    from biom import Table

    # As objects, because an array of text takes four bytes per letter of the longest id.
    names = (np.array(ids, dtype=object) for ids in (feature_ids, sample_ids))
    table = Table(csr_matrix(counts, copy=True).T, *names, type="OTU table")
    # In memory first: HDF5 may crash where a write to a full disk fails.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        table.to_hdf5(file, f"aam {aam.__version__}", creation_date=CREATED)
    with atomic_file(path) as temporary:
        temporary.write_bytes(content.getbuffer())
