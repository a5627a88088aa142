"""BIOM tables: 2.1 (HDF5) read in slabs with sizes checked first, 1.0 (JSON) read and 2.1 written
by biom-format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
from scipy import sparse

import aam
from aam.errors import InputError, shown
from aam.io.hdf5 import create_hdf5, dataset, open_hdf5
from aam.io.tables import AmpliconTable, whole_counts
from aam.io.text import decoded

Counts: TypeAlias = sparse.csr_matrix | sparse.csr_array

# Parsed, JSON takes up to twenty times its size.
MAX_JSON = 64 << 20
MAX_ID_BYTES = 4 << 30
SLAB = 1 << 20
ID_SLAB = 1 << 12
DATASETS = (
    "sample/ids",
    "observation/ids",
    *(f"sample/matrix/{name}" for name in ("data", "indices", "indptr")),
)

# Constant, so that the same table gives the same bytes on every day.
CREATED = datetime(1970, 1, 1)


def _ids(file: h5py.File, axis: str, where: str) -> list[str]:
    # biom-format stores the ids of an empty axis as numbers.
    if getattr(file.get(f"{axis}/ids"), "shape", None) == (0,):
        return []
    stored = dataset(file, f"{axis}/ids", "OS", where)
    if h5py.check_string_dtype(stored.dtype) is None:
        raise InputError(f"{where}: {axis}/ids is {stored.dtype}, expected text")
    ids: list[str] = []
    left = MAX_ID_BYTES
    for start in range(0, stored.size, ID_SLAB):
        names = stored[start : start + ID_SLAB].tolist()
        left -= sum(map(len, names))
        try:
            ids += [name.decode() for name in names]
        except UnicodeDecodeError as error:
            place = start + names.index(error.object)
            raise InputError(
                f"{where}: {axis}/ids[{place}] is not UTF-8: {error.object[:40]!r}"
            ) from error
        if left < 0:
            raise InputError(f"{where}: {axis}/ids are longer than {MAX_ID_BYTES} bytes together")
    return ids


def _indptr(file: h5py.File, samples: list[str], entries: int, where: str) -> npt.NDArray[np.int64]:
    ends = dataset(file, "sample/matrix/indptr", "iu", where)
    if ends.size != len(samples) + 1:
        raise InputError(
            f"{where}: sample/matrix/indptr has {ends.size} entries, expected {len(samples) + 1}"
        )
    indptr = np.asarray(ends[:].astype(np.int64))
    if indptr[0] != 0 or indptr[-1] != entries or (np.diff(indptr) < 0).any():
        raise InputError(
            f"{where}: sample/matrix/indptr does not rise from 0 to {entries}; it is damaged"
        )
    return indptr


def _matrix(
    file: h5py.File, samples: list[str], features: list[str], where: str
) -> sparse.csr_array:
    """Return the counts [N, F] of the sample-major matrix, a slab of its entries at a time."""
    data = dataset(file, "sample/matrix/data", "iuf", where)
    positions = dataset(file, "sample/matrix/indices", "iu", where)
    if data.size != positions.size:
        raise InputError(
            f"{where}: sample/matrix has {data.size} counts and {positions.size} indices"
        )
    indptr = _indptr(file, samples, data.size, where)
    counts, columns = np.empty(data.size, np.uint32), np.empty(data.size, np.int32)

    def place(entry: int) -> str:
        row = int(np.searchsorted(indptr, entry, side="right")) - 1
        return f"sample {samples[row]!r}, feature {features[columns[entry]]!r}"

    for start in range(0, data.size, SLAB):
        some = slice(start, start + SLAB)
        index = positions[some]
        wrong = index[(index < 0) | (index >= len(features))]
        if wrong.size:
            raise InputError(
                f"{where}: sample/matrix/indices holds {wrong[0]}, expected 0 to "
                f"{len(features) - 1}"
            )
        columns[some] = index
        counts[some] = whole_counts(
            data[some],
            where,
            lambda entry, start=start: place(start + entry),  # type: ignore[misc]
        )
    # As narrow as the columns, which SciPy would widen otherwise.
    return sparse.csr_array(
        (counts, columns, indptr.astype(np.int32)), shape=(len(samples), len(features))
    )


def read_hdf5(source: Path | bytes, where: str) -> AmpliconTable:
    """Read a BIOM 2.1 table, from a file or from bytes, of which the sample-major matrix only is
    read.

    Raises `InputError`: a dataset missing, of another type or length, or larger than what is
    stored; an index out of bounds; a count that is not whole.
    """
    with open_hdf5(source, f"{where}: not a readable HDF5 file") as file:
        version = np.asarray(file.attrs.get("format-version", (2, 1))).ravel().tolist()
        if version[:1] != [2]:
            raise InputError(f"{where}: BIOM format-version is {version}, expected [2, 1]")
        if missing := [name for name in DATASETS if name not in file]:
            raise InputError(
                f"{where}: no dataset {shown(missing, len(DATASETS))}, expected a BIOM 2.1 "
                "table; make one of another "
                "file with `biom convert --to-hdf5`"
            )
        samples, features = _ids(file, "sample", where), _ids(file, "observation", where)
        shape = np.asarray(file.attrs.get("shape", ())).ravel().tolist()
        expected = [len(features), len(samples)]
        if shape != expected:
            raise InputError(
                f"{where}: attribute 'shape' is {shape}, expected {expected} as the ids"
            )
        counts = _matrix(file, samples, features, where)
        return AmpliconTable(counts, tuple(samples), tuple(features))


def read_json(blob: bytes, where: str) -> AmpliconTable:
    """Read a BIOM 1.0 table, sparse or dense, by biom-format; `InputError` when it is not one."""
    if len(blob) > MAX_JSON:
        raise InputError(f"{where}: above {MAX_JSON} bytes of JSON; use biom convert --to-hdf5")
    text = decoded(blob, where)
    from biom import Table
    from biom.exception import BiomException

    try:
        document = json.loads(text)
        if isinstance(document, dict) and (
            lacking := [
                name for name in ("rows", "columns", "shape", "data") if name not in document
            ]
        ):
            raise InputError(f"{where}: BIOM 1.0 without {shown(lacking)}; is it cut off?")
        shape = [len(document[axis]) for axis in ("rows", "columns")]
        if document["shape"] != shape:
            raise InputError(f"{where}: 'shape' is {document['shape']!r:.60}, expected {shape}")
        table = Table.from_json(document)
        names = [[str(name) for name in table.ids(axis)] for axis in ("sample", "observation")]
        matrix = sparse.csr_array(table.matrix_data.T)
        # biom-format adds counts that stand there twice, and takes rows that do not for zeros.
        entries, is_dense = document["data"], document["matrix_type"] == "dense"
        if (
            (len(entries) != shape[0])
            if is_dense
            else (sum(entry[2] != 0 for entry in entries) != matrix.nnz)
        ):
            raise InputError(
                f"{where}: 'data' lacks a row, or has two counts for one feature in a sample"
            )
    except InputError:
        raise
    except (
        BiomException,
        OverflowError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise InputError(
            f"{where}: not a readable BIOM 1.0 table ({reason}); see biom validate-table"
        ) from error
    samples, features = names
    rows, columns = matrix.tocoo().coords

    def place(entry: int) -> str:
        return f"sample {samples[rows[entry]]!r}, feature {features[columns[entry]]!r}"

    counts = whole_counts(matrix.data, where, place)
    matrix = sparse.csr_array((counts, matrix.indices, matrix.indptr), shape=matrix.shape)
    return AmpliconTable(matrix, tuple(samples), tuple(features))


def write_hdf5(
    path: Path, parts: Iterable[Counts], sample_ids: Sequence[str], feature_ids: Sequence[str]
) -> None:
    """Write reads as a BIOM 2.1 file by biom-format, whole or not at all; equal tables give equal
    bytes.

    Parameters
    ----------
    path : Path
    parts : iterable of sparse matrices [samples, features]
        Some samples each, in order; how they are cut changes no byte.
    sample_ids, feature_ids : sequence of str

    Raises
    ------
    InputError
        Ids that do not fit the shape or occur twice.
    """
    from biom import Table

    for kind, ids in (("sample", sample_ids), ("feature", feature_ids)):
        if len(set(ids)) < len(ids):
            raise InputError(f"{path}: Duplicate {kind} ids")
    counts = sparse.csr_matrix(sparse.vstack(list(parts), format="csr"))
    if counts.shape[0] != len(sample_ids):
        raise InputError(f"{path}: {counts.shape[0]} samples have the ids {shown(sample_ids)}")
    counts.sum_duplicates()
    # As objects; of text NumPy makes four bytes for each letter of the longest id.
    names = (np.array(ids, dtype=object) for ids in (feature_ids, sample_ids))
    table = Table(counts.T, *names, type="OTU table")
    with create_hdf5(path) as file:
        table.to_hdf5(file, f"aam {aam.__version__}", creation_date=CREATED)
