"""Tables of counts as a file holds them, text and BIOM: the checks that every table passes."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array, csr_matrix

import aam
from aam.errors import InputError, Problems, refuse, reworded, shown
from aam.files.atomic import atomic_file
from aam.io.packed import dataset, open_hdf5
from aam.io.text import (
    decoded,
    is_lineage_header,
    is_sample_header,
    read_header,
    repeated,
    until_full,
)

MAX_COUNT = 2**32 - 1

EXPECTED = (
    "a table: BIOM, .qza, or text with tabs, commas or semicolons and a header line '#OTU ID', "
    "features in rows and samples in columns"
)

# Entries of the matrix that are looked at together.
ENTRIES = 1 << 20

# Parsed, JSON takes up to twenty times its size.
MAX_JSON = 64 << 20
# What the matrix of samples consists of in HDF5, and the kinds of number.
MATRIX = {"data": "iuf", "indices": "iu", "indptr": "iu"}

# Constant, so that the same table gives the same bytes on every day.
CREATED = datetime(1970, 1, 1)

# What biom-format raises of JSON that is no table.
BAD_JSON = (OverflowError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

Integers = npt.NDArray[np.integer]
Counts: TypeAlias = csr_array | csr_matrix


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

    def __getitem__(self, rows: Any) -> AmpliconTable:
        """Return the samples at `rows`: a slice, a mask or positions; all features stay."""
        rows = rows[0] if isinstance(rows, tuple) else rows
        chosen = np.atleast_1d(np.arange(len(self))[rows])
        names = tuple(self.sample_ids[row] for row in chosen)
        return replace(self, counts=self.counts[chosen], sample_ids=names)

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
    def depths(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def row(self, row: int) -> tuple[Integers, Integers]:
        """Return the columns [S], ascending, and their reads [S] in one sample."""
        start, stop = self.counts.indptr[row], self.counts.indptr[row + 1]
        return self.counts.indices[start:stop], self.counts.data[start:stop]

    def blocks(
        self, rows: npt.NDArray[np.int64] | None = None
    ) -> Iterator[tuple[slice, csr_array]]:
        """Yield the counts of all samples, or of those at `rows`, some at a time, and which these
        are.
        """
        rows = np.arange(len(self)) if rows is None else rows
        size = max(1, ENTRIES * len(self) // max(self.counts.nnz, 1))
        for start in range(0, len(rows), size):
            part = slice(start, min(start + size, len(rows)))
            yield part, self.counts[rows[part]]

    def columns_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the columns, ascending, in which samples at `rows` have reads."""
        present = np.zeros(self.counts.shape[1], bool)
        present[self.counts[rows].indices] = True
        return np.flatnonzero(present)

    @cached_property
    def reads_of_asvs(self) -> npt.NDArray[np.int64]:
        """Reads of each ASV in all samples, [F]."""
        return np.asarray(self.counts.sum(axis=0, dtype=np.int64))

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Nucleotides of each ASV, [F]."""
        return np.fromiter(map(len, self.sequences), np.int64, len(self.sequences))


def _whole_reads(
    values: csr_array, samples: Sequence[str], features: Sequence[str]
) -> tuple[npt.NDArray[np.uint32], str]:
    """Return the stored values as uint32, and what is wrong with those that are no whole number
    from 0 to 2^32 - 1, or nothing.
    """
    stored = values.data if values.dtype.kind in "iuf" else values.data.astype(np.float64)
    # What is negative, not finite, not whole or too large is changed by it.
    with np.errstate(invalid="ignore"):
        reads = stored.astype(np.uint32)
    wrong = np.flatnonzero(reads != stored)
    if not len(wrong):
        return reads, ""
    first = wrong[0]
    row = np.searchsorted(values.indptr, first, side="right") - 1
    place = f"sample {samples[row]!r}, feature {features[values.indices[first]]!r}"
    found = f"{float(stored[first]):g} at {place}, expected whole reads from 0 to {MAX_COUNT}"
    is_nan = np.isnan(stored[wrong])
    raw = "raw counts, not normalised, scaled or logarithmic ones"
    remedies = {raw: not is_nan.all(), "0 for missing reads": is_nan.any()}
    remedy = " and ".join(words for words, is_needed in remedies.items() if is_needed)
    return reads, f"{found} (values that are no reads: {len(wrong)}); pass {remedy}"


def checked_table(
    values: csr_array, sample_ids: Sequence[str], feature_ids: Sequence[str], where: str
) -> AmpliconTable:
    """Return a table of the numbers `values` [N, F], with ids without blanks around them, rows
    sorted by column, and zeros dropped.

    Raises `InputError`: numbers that are no reads; no samples, features or reads; ids that are
    empty, cannot be printed or occur twice; two counts of one feature in a sample.
    """
    samples, features = (tuple(map(str.strip, ids)) for ids in (sample_ids, feature_ids))
    reads, wrong = _whole_reads(values, samples, features)
    rules = dict[str, bool]()
    for kind, ids in (("sample", samples), ("feature", features)):
        empty = [number for number, name in enumerate(ids, start=1) if not name]
        odd, twice = [ascii(name) for name in ids if not name.isprintable()], repeated(ids)
        place = f"the first is {kind} {[*empty, 0][0]}"
        rules |= {
            f"the table is empty, it has no {kind}s": not ids,
            f"{len(empty)} {kind} ids are empty, {place}": empty != [],
            f"{kind} ids hold characters that cannot be printed: {shown(odd)}": odd != [],
            f"{len(twice)} {kind} ids occur more than once: {shown(twice)}": twice != [],
        }
    refuse(where, rules | {wrong: wrong != ""})
    counts = csr_array((reads, values.indices, values.indptr), shape=values.shape)
    counts.sort_indices()
    if not counts.has_canonical_format:
        rows, columns = counts.tocoo().coords
        first = int(np.argmax((np.diff(columns) == 0) & (np.diff(rows) == 0)))
        place = f"sample {samples[rows[first]]!r}, feature {features[columns[first]]!r}"
        raise InputError(f"{where}: {place} has two counts, expected one")
    counts.eliminate_zeros()
    if counts.nnz == 0:
        raise InputError(f"{where}: the table is empty, all counts are 0")
    return AmpliconTable(counts, samples, features)


def read_tsv(text: str, where: str) -> AmpliconTable:
    """Read a table of text: header ``#OTU ID``, a row per feature, a column per sample, at most a
    taxonomy column.

    Tabs, commas or semicolons separate the cells. Where the first column is called after samples,
    it is turned.

    Raises `InputError`: not UTF-8, no header, a row of another length, a cell that is no count.
    """
    header, body = read_header(text, where, EXPECTED)
    names = header[1:-1] if is_lineage_header(header[-1]) else header[1:]
    by_sample = is_sample_header(header[0])
    kind = "feature" if by_sample else "sample"
    problems, row_names = Problems(), list[str]()
    rows, columns, values = array("i"), array("i"), array("d")
    for line, cells in until_full(body, problems):
        # Spreadsheets fill rows up with empty cells.
        while len(cells) > len(header) and not cells[-1].strip():
            cells.pop()
        if len(cells) != len(header):
            expected = f"expected {len(header)} as in the header"
            problems.add(f"{where}: line {line} has {len(cells)} columns, {expected}")
            continue
        wrong = []
        for column, cell in enumerate(cells[1 : len(names) + 1]):
            if cell in ("0", "0.0"):
                continue
            try:
                # Python also reads 1_000 as a number.
                values.append(float(cell.replace("_", "?")))
            except ValueError:
                wrong.append(f"{kind} {names[column]!r} has {cell[:40]!r}")
                continue
            rows.append(len(row_names))
            columns.append(column)
        if wrong:
            more = f" (and {len(wrong) - 1} more cells)" if len(wrong) > 1 else ""
            problems.add(f"{where}: line {line}: {wrong[0]}{more}, expected a count")
        row_names.append(cells[0])
    problems.raise_if_any()
    matrix = coo_array((np.array(values), (rows, columns)), shape=(len(row_names), len(names)))
    if by_sample:
        return checked_table(matrix.tocsr(), row_names, names, where)
    return checked_table(matrix.T.tocsr(), names, row_names, where)


# --- BIOM --------------------------------------------------------------------------------------


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
        wanted = ("sample/ids", "observation/ids", *(f"sample/matrix/{name}" for name in MATRIX))
        missing = shown(name for name in wanted if name not in file)
        remedy = "make one of another file with `biom convert --to-hdf5`"
        rules = {
            f"BIOM format-version is {version}, expected [2, 1]": version[:1] != [2],
            f"no dataset {missing}, expected a BIOM 2.1 table; {remedy}": missing != "",
        }
        refuse(where, rules)
        samples, features = _ids(file, "sample", where), _ids(file, "observation", where)
        found = [dataset(file, f"sample/matrix/{x}", kind, where) for x, kind in MATRIX.items()]
        data, indices, ends = (part[()] for part in found)
        shape = np.asarray(file.attrs.get("shape", ())).ravel().tolist()
        of_ids = [len(features), len(samples)]
        rules = {
            f"attribute 'shape' is {shape}, expected {of_ids} as the ids": shape != of_ids,
            f"sample/matrix/indptr does not end at {data.size}": ends[-1:].tolist() != [data.size],
        }
        refuse(where, rules)
        with reworded((ValueError,), f"{where}: sample/matrix is damaged"):
            values = csr_array((data, indices, ends), shape=(len(samples), len(features)))
            values.check_format(full_check=True)
    return checked_table(values, samples, features, where)


def read_json(blob: bytes, where: str) -> AmpliconTable:
    """Read a BIOM 1.0 table, sparse or dense, by biom-format; `InputError` when it is not one."""
    if len(blob) > MAX_JSON:
        raise InputError(f"{where}: above {MAX_JSON} bytes of JSON; use biom convert --to-hdf5")
    from biom import Table
    from biom.exception import BiomException

    with reworded((BiomException, *BAD_JSON), f"{where}: not a readable BIOM 1.0 table"):
        document = json.loads(decoded(blob, where))
        wanted = ("rows", "columns", "shape", "data")
        if lacking := [name for name in wanted if name not in document]:
            raise InputError(f"{where}: BIOM 1.0 without {shown(lacking)}; is it cut off?")
        shape, entries = [len(document[axis]) for axis in ("rows", "columns")], document["data"]
        if document["shape"] != shape:
            raise InputError(f"{where}: 'shape' is {document['shape']!r:.60}, expected {shape}")
        table = Table.from_json(document)
        samples, features = ([str(x) for x in table.ids(a)] for a in ("sample", "observation"))
        values = csr_array(table.matrix_data.T)
        # biom-format adds counts that stand there twice, and takes rows that do not for zeros.
        if document["matrix_type"] == "dense":
            is_whole = len(entries) == shape[0]
        else:
            is_whole = sum(entry[2] != 0 for entry in entries) == values.nnz
        if not is_whole:
            problem = "'data' lacks a row, or has two counts for one feature in a sample"
            raise InputError(f"{where}: {problem}")
    return checked_table(values, samples, features, where)


def write_hdf5(
    path: Path, counts: Counts, sample_ids: Sequence[str], feature_ids: Sequence[str]
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

    # As objects; of text NumPy makes four bytes for each letter of the longest id.
    names = (np.array(ids, dtype=object) for ids in (feature_ids, sample_ids))
    table = Table(csr_matrix(counts, copy=True).T, *names, type="OTU table")
    # In memory first: HDF5 may crash where a write to a full disk fails.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        table.to_hdf5(file, f"aam {aam.__version__}", creation_date=CREATED)
    with atomic_file(path) as temporary:
        temporary.write_bytes(content.getbuffer())
