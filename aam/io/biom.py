"""BIOM tables: 2.1 (HDF5) and 1.0 (JSON) read with sizes checked first."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.errors import InputError
from aam.io.counts import MAX_COUNT, RawTable, whole_counts
from aam.io.text import decoded

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
# Parsed, JSON takes up to twenty times its size.
MAX_JSON = 64 << 20
MAX_ENTRIES = 2**31 - 1
MAX_ID_BYTES = 4 << 30
SLAB = 1 << 20
ID_SLAB = 1 << 12
# Deflate, the only filter of BIOM tables, reaches 1032:1; what claims more has no data behind it.
MAX_RATIO = 1100
EXEMPT = 1 << 20


def _dataset(file: h5py.File, name: str, kinds: str, where: str) -> h5py.Dataset:
    """Return a one-dimensional dataset of one of the numpy `kinds` that is no larger than what is stored of it."""
    dataset = file.get(name)
    if not isinstance(dataset, h5py.Dataset):
        raise InputError(f"{where}: no dataset {name!r}, expected a BIOM 2.1 table; see biom convert")
    if dataset.ndim != 1 or dataset.dtype.kind not in kinds:
        raise InputError(f"{where}: {name} is {dataset.dtype} {dataset.shape}, expected a list of kind {kinds!r}")
    if dataset.size > MAX_ENTRIES:
        raise InputError(f"{where}: {name} has {dataset.size} entries, expected at most {MAX_ENTRIES}")
    claimed, stored = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if claimed > EXEMPT + MAX_RATIO * stored:
        raise InputError(f"{where}: {name} claims {claimed} bytes and stores {stored}; the file is damaged")
    return dataset


def _ids(file: h5py.File, axis: str, where: str) -> list[str]:
    # biom-format stores the ids of an empty axis as numbers.
    if getattr(file.get(f"{axis}/ids"), "shape", None) == (0,):
        return []
    dataset = _dataset(file, f"{axis}/ids", "OS", where)
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise InputError(f"{where}: {axis}/ids is {dataset.dtype}, expected text")
    ids: list[str] = []
    left = MAX_ID_BYTES
    for start in range(0, dataset.size, ID_SLAB):
        for name in map(bytes, dataset[start : start + ID_SLAB]):
            left -= len(name)
            try:
                ids.append(name.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: {axis}/ids[{len(ids)}] is not UTF-8: {name[:40]!r}") from error
        if left < 0:
            raise InputError(f"{where}: {axis}/ids are longer than {MAX_ID_BYTES} bytes together")
    return ids


def _indptr(file: h5py.File, samples: list[str], entries: int, where: str) -> npt.NDArray[np.int64]:
    ends = _dataset(file, "sample/matrix/indptr", "iu", where)
    if ends.size != len(samples) + 1:
        raise InputError(f"{where}: sample/matrix/indptr has {ends.size} entries, expected {len(samples) + 1}")
    indptr = ends[:].astype(np.int64)
    if indptr[0] != 0 or indptr[-1] != entries or (np.diff(indptr) < 0).any():
        raise InputError(f"{where}: sample/matrix/indptr does not rise from 0 to {entries}; it is damaged")
    return np.asarray(indptr)


@dataclass(frozen=True)
class OpenTable:
    """A BIOM 2.1 table that is read part by part: its ids, its number of entries, and where each sample begins."""

    file: h5py.File
    samples: list[str]
    features: list[str]
    indptr: npt.NDArray[np.int64]
    where: str

    def blocks(self, size: int = SLAB) -> Iterator[sparse.csr_array]:
        """Yield the counts, uint32, of whole samples in order, as many at a time as have about `size` entries.

        Raises `InputError`: an index out of bounds; a count that is not whole.
        """
        first, samples = 0, len(self.samples)
        while first < samples:
            last = int(np.searchsorted(self.indptr, self.indptr[first] + size, side="right")) - 1
            last = min(max(last, first + 1), samples)
            yield self._rows(first, last)
            first = last

    def _rows(self, first: int, last: int) -> sparse.csr_array:
        start, stop, where = int(self.indptr[first]), int(self.indptr[last]), self.where
        index = self.file["sample/matrix/indices"][start:stop]
        wrong = index[(index < 0) | (index >= len(self.features))]
        if wrong.size:
            last_feature = len(self.features) - 1
            raise InputError(f"{where}: sample/matrix/indices holds {wrong[0]}, expected 0 to {last_feature}")

        def place(k: int) -> str:
            row = int(np.searchsorted(self.indptr, start + k, side="right")) - 1
            return f"sample {self.samples[row]!r}, feature {self.features[index[k]]!r}"

        counts = whole_counts(self.file["sample/matrix/data"][start:stop], where, place)
        ends = self.indptr[first : last + 1] - start
        return sparse.csr_array((counts, index.astype(np.int32), ends), shape=(last - first, len(self.features)))


@contextlib.contextmanager
def open_hdf5(source: Path | bytes, where: str) -> Iterator[OpenTable]:
    """Open a BIOM 2.1 table, from a file or from bytes, of which the sample-major matrix only is read.

    Raises `InputError`: a dataset missing, of another type or length, or larger than what is stored.
    """
    try:
        with h5py.File(io.BytesIO(source) if isinstance(source, bytes) else source, "r") as file:
            version = np.asarray(file.attrs.get("format-version", (2, 1))).ravel().tolist()
            if version[:1] != [2]:
                raise InputError(f"{where}: BIOM format-version is {version}, expected [2, 1]")
            samples, features = _ids(file, "sample", where), _ids(file, "observation", where)
            shape = np.asarray(file.attrs.get("shape", ())).ravel().tolist()
            expected = [len(features), len(samples)]
            if shape != expected:
                raise InputError(f"{where}: attribute 'shape' is {shape}, expected {expected} as the ids")
            data = _dataset(file, "sample/matrix/data", "iuf", where)
            positions = _dataset(file, "sample/matrix/indices", "iu", where)
            if data.size != positions.size:
                raise InputError(f"{where}: sample/matrix has {data.size} counts and {positions.size} indices")
            yield OpenTable(file, samples, features, _indptr(file, samples, data.size, where), where)
    except InputError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"{where}: not a readable HDF5 file ({error})") from error


def read_hdf5(source: Path | bytes, where: str) -> RawTable:
    """Read a BIOM 2.1 table from a file or from bytes; `InputError` as `open_hdf5` and `OpenTable.blocks` raise it."""
    with open_hdf5(source, where) as table:
        entries, start = int(table.indptr[-1]), 0
        counts, indices = np.empty(entries, np.uint32), np.empty(entries, np.int32)
        for block in table.blocks():
            counts[start : start + block.nnz], indices[start : start + block.nnz] = block.data, block.indices
            start += block.nnz
        matrix = sparse.csr_array((counts, indices, table.indptr), shape=(len(table.samples), len(table.features)))
        return RawTable(matrix, table.samples, table.features)


def _brief(value: object) -> str:
    return repr(value)[:60]


def _json_ids(table: dict[str, Any], key: str, where: str) -> list[str]:
    entries = table.get(key)
    if not isinstance(entries, list):
        raise InputError(f"{where}: no list {key!r}, expected a BIOM 1.0 table")
    ids: list[str] = []
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise InputError(f"{where}: {key}[{len(ids)}] has the id {_brief(name)}, expected text")
        ids.append(name)
    return ids


def _json_numbers(rows: Any, width: int, where: str) -> npt.NDArray[np.float64]:
    """Return a list of equally long lists of numbers as an array [rows, width]."""
    if not isinstance(rows, list) or not set(map(type, rows)) <= {list}:
        raise InputError(f"{where}: 'data' is not a list of lists")
    odd = next((number for number, row in enumerate(rows) if len(row) != width), None)
    if odd is not None:
        raise InputError(f"{where}: data[{odd}] has {len(rows[odd])} entries, expected {width}")
    if not set(map(type, itertools.chain.from_iterable(rows))) <= {int, float}:
        raise InputError(f"{where}: 'data' holds something that is not a number")
    try:
        return np.array(rows, dtype=np.float64).reshape(len(rows), width)
    except OverflowError as error:
        raise InputError(f"{where}: 'data' holds a number above {MAX_COUNT}") from error


def _json_entries(table: dict[str, Any], shape: tuple[int, int], where: str) -> tuple[npt.NDArray[Any], ...]:
    """Return rows, columns and values of the entries of the matrix."""
    data, kind = table.get("data"), table.get("matrix_type")
    if kind == "dense":
        dense = _json_numbers(data, shape[1], where)
        if len(dense) != shape[0]:
            raise InputError(f"{where}: 'data' has {len(dense)} rows, expected {shape[0]}")
        rows, columns, values = sparse.find(dense)
        return rows, columns, values
    if kind != "sparse":
        raise InputError(f"{where}: 'matrix_type' is {_brief(kind)}, expected 'sparse' or 'dense'")
    rows, columns, values = _json_numbers(data, 3, where).T
    for name, index, size in (("row", rows, shape[0]), ("column", columns, shape[1])):
        bad = np.flatnonzero(~((index >= 0) & (index < size) & (np.floor(index) == index)))
        if bad.size:
            place, wrong = bad[0], index[bad[0]]
            raise InputError(f"{where}: data[{place}] names {name} {wrong:g}, expected 0 to {size - 1}")
    return rows.astype(np.int64), columns.astype(np.int64), values


def read_json(blob: bytes, where: str) -> RawTable:
    """Read a BIOM 1.0 table, sparse or dense; `InputError` when it is not one."""
    if len(blob) > MAX_JSON:
        raise InputError(f"{where}: above {MAX_JSON} bytes of JSON; use biom convert --to-hdf5")
    try:
        table = json.loads(decoded(blob, where))
    except InputError:
        raise
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(table, dict):
        raise InputError(f"{where}: the JSON is no object, expected a BIOM 1.0 table")
    features, samples = _json_ids(table, "rows", where), _json_ids(table, "columns", where)
    shape = (len(features), len(samples))
    if table.get("shape") != list(shape):
        raise InputError(f"{where}: 'shape' is {_brief(table.get('shape'))}, expected {list(shape)}")
    rows, columns, values = _json_entries(table, shape, where)
    counts = whole_counts(values, where, lambda k: f"sample {samples[columns[k]]!r}, feature {features[rows[k]]!r}")
    # Not by way of scipy's COO, which adds counts that are given twice.
    order = np.argsort(columns, kind="stable")
    indptr = np.searchsorted(columns[order], np.arange(shape[1] + 1))
    matrix = sparse.csr_array((counts[order], rows[order], indptr), shape=shape[::-1])
    return RawTable(matrix, samples, features)
