"""BIOM tables, 2.1 (HDF5) and 1.0 (JSON), read straight into sample rows with every size checked first."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.data.readers import MAX_COUNT, RawTable, whole_counts
from aam.errors import InputError

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_JSON = 512 << 20
MAX_ENTRIES = 2**31 - 1
MAX_ID_BYTES = 4 << 30
SLAB = 1 << 20
ID_SLAB = 1 << 12
# Deflate, the only filter of BIOM tables, reaches 1032:1; what claims more has no data behind it.
MAX_RATIO = 1100
EXEMPT = 1 << 20


def _dataset(file: h5py.File, name: str, kinds: str, where: str) -> h5py.Dataset:
    """A one-dimensional dataset of one of the numpy `kinds` that is no larger than what is stored of it."""
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise InputError(
            f"{where}: no dataset {name!r}, expected a BIOM 2.1 table; write one with biom convert"
        )
    if found.ndim != 1 or found.dtype.kind not in kinds:
        raise InputError(f"{where}: {name} is {found.dtype} {found.shape}, expected a list of kind {kinds!r}")
    if found.size > MAX_ENTRIES:
        raise InputError(
            f"{where}: {name} has {found.size} entries, expected at most {MAX_ENTRIES}; split the table"
        )
    claimed, stored = found.size * found.dtype.itemsize, found.id.get_storage_size()
    if claimed > EXEMPT + MAX_RATIO * stored:
        raise InputError(f"{where}: {name} claims {claimed} bytes and stores {stored}; the file is damaged")
    return found


def _ids(file: h5py.File, axis: str, where: str) -> list[str]:
    group = file.get(f"{axis}/ids")
    # biom-format stores the ids of an empty axis as numbers.
    if isinstance(group, h5py.Dataset) and group.shape == (0,):
        return []
    dataset = _dataset(file, f"{axis}/ids", "OS", where)
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise InputError(f"{where}: {axis}/ids is {dataset.dtype}, expected text")
    ids: list[str] = []
    left = MAX_ID_BYTES
    for start in range(0, dataset.size, ID_SLAB):
        for name in dataset[start : start + ID_SLAB]:
            left -= len(name)
            try:
                ids.append(bytes(name).decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{where}: {axis}/ids[{len(ids)}] is not UTF-8: {bytes(name)[:40]!r}"
                ) from error
        if left < 0:
            raise InputError(f"{where}: {axis}/ids are longer than {MAX_ID_BYTES} bytes together")
    return ids


def _indptr(file: h5py.File, n_rows: int, n_entries: int, where: str) -> npt.NDArray[np.int64]:
    dataset = _dataset(file, "sample/matrix/indptr", "iu", where)
    if dataset.size != n_rows + 1:
        raise InputError(f"{where}: sample/matrix/indptr has {dataset.size} entries, expected {n_rows + 1}")
    indptr: npt.NDArray[np.int64] = dataset[:].astype(np.int64)
    if indptr[0] != 0 or indptr[-1] != n_entries or (np.diff(indptr) < 0).any():
        raise InputError(
            f"{where}: sample/matrix/indptr does not rise from 0 to {n_entries}; the file is damaged"
        )
    return indptr


def _matrix(file: h5py.File, samples: list[str], features: list[str], where: str) -> csr_array:
    data = _dataset(file, "sample/matrix/data", "iuf", where)
    positions = _dataset(file, "sample/matrix/indices", "iu", where)
    if data.size != positions.size:
        raise InputError(f"{where}: sample/matrix has {data.size} counts and {positions.size} indices")
    indptr = _indptr(file, len(samples), data.size, where)
    counts = np.empty(data.size, dtype=np.uint32)
    indices = np.empty(data.size, dtype=np.int32)
    for start in range(0, data.size, SLAB):
        slab = slice(start, min(start + SLAB, data.size))
        index = positions[slab]
        if index.min() < 0 or index.max() >= len(features):
            wrong = index[np.argmax((index < 0) | (index >= len(features)))]
            raise InputError(
                f"{where}: sample/matrix/indices holds {wrong}, expected 0 to {len(features) - 1}"
            )
        indices[slab] = index

        def place(k: int, start: int = start) -> str:
            row = int(np.searchsorted(indptr, start + k, side="right")) - 1
            return f"sample {samples[row]!r}, feature {features[indices[start + k]]!r}"

        counts[slab] = whole_counts(data[slab], where, place)
    return csr_array((counts, indices, indptr), shape=(len(samples), len(features)))


def _read(file: h5py.File, where: str) -> RawTable:
    version = np.asarray(file.attrs.get("format-version", (2, 1))).ravel().tolist()
    if version[:1] != [2]:
        raise InputError(f"{where}: BIOM format-version is {version}, expected [2, 1]")
    samples, features = _ids(file, "sample", where), _ids(file, "observation", where)
    shape = np.asarray(file.attrs.get("shape", ())).ravel().tolist()
    if shape != [len(features), len(samples)]:
        raise InputError(
            f"{where}: attribute 'shape' is {shape}, expected {[len(features), len(samples)]} as the ids"
        )
    return RawTable(_matrix(file, samples, features, where), samples, features)


def read_hdf5(source: Path | bytes, where: str) -> RawTable:
    """Read a BIOM 2.1 table from a file or from bytes, its sample-major matrix only.

    Raises
    ------
    InputError
        Not such a table: a dataset is missing, of another type or length, or larger than what is stored; an
        index out of bounds; a count that is not whole.
    """
    try:
        with h5py.File(io.BytesIO(source) if isinstance(source, bytes) else source, "r") as file:
            return _read(file, where)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{where}: no such file") from error
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"{where}: not a readable HDF5 file ({error})") from error


# --- BIOM 1.0 ----------------------------------------------------------------------------------------------


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


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
    """A list of equally long lists of numbers as an array [rows, width]."""
    if not isinstance(rows, list) or not set(map(type, rows)) <= {list}:
        raise InputError(f"{where}: 'data' is not a list of lists")
    if not set(map(len, rows)) <= {width}:
        found = next(number for number, row in enumerate(rows) if len(row) != width)
        raise InputError(f"{where}: data[{found}] has {len(rows[found])} entries, expected {width}")
    if not set(map(type, itertools.chain.from_iterable(rows))) <= {int, float}:
        raise InputError(f"{where}: 'data' holds something that is not a number")
    try:
        return np.array(rows, dtype=np.float64).reshape(len(rows), width)
    except OverflowError as error:
        raise InputError(f"{where}: 'data' holds a number above {MAX_COUNT}") from error


def _json_sparse(data: Any, shape: tuple[int, int], where: str) -> tuple[npt.NDArray[Any], ...]:
    triples = _json_numbers(data, 3, where)
    rows, columns, values = triples.T
    for name, index, size in (("row", rows, shape[0]), ("column", columns, shape[1])):
        bad = ~((index >= 0) & (index < size) & (np.floor(index) == index))
        if bad.any():
            found = int(np.argmax(bad))
            raise InputError(
                f"{where}: data[{found}] names {name} {index[found]:g}, expected 0 to {size - 1}"
            )
    return rows.astype(np.int64), columns.astype(np.int64), values


def read_json(blob: bytes, where: str) -> RawTable:
    """A BIOM 1.0 table, sparse or dense; `InputError` when it is not one."""
    if len(blob) > MAX_JSON:
        raise InputError(
            f"{where}: {len(blob)} bytes of JSON, expected at most {MAX_JSON}; use biom convert --to-hdf5"
        )
    try:
        table = json.loads(blob.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: byte {error.start} is not UTF-8 text, expected BIOM 1.0 JSON in UTF-8"
        ) from error
    except RecursionError as error:
        raise InputError(f"{where}: the JSON is nested too deeply for a BIOM table") from error
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(table, dict):
        raise InputError(f"{where}: the JSON is no object, expected a BIOM 1.0 table")
    features, samples = _json_ids(table, "rows", where), _json_ids(table, "columns", where)
    shape = (len(features), len(samples))
    if table.get("shape") != list(shape):
        raise InputError(
            f"{where}: 'shape' is {_brief(table.get('shape'))}, expected {list(shape)} from rows and columns"
        )
    if table.get("matrix_type") == "dense":
        dense = _json_numbers(table.get("data"), shape[1], where)
        if len(dense) != shape[0]:
            raise InputError(f"{where}: 'data' has {len(dense)} rows, expected {shape[0]}")
        rows, columns = np.nonzero(dense)
        values = dense[rows, columns]
    elif table.get("matrix_type") == "sparse":
        rows, columns, values = _json_sparse(table.get("data"), shape, where)
    else:
        raise InputError(
            f"{where}: 'matrix_type' is {_brief(table.get('matrix_type'))}, expected 'sparse' or 'dense'"
        )
    counts = whole_counts(
        values, where, lambda k: f"sample {samples[columns[k]]!r}, feature {features[rows[k]]!r}"
    )
    order = np.argsort(columns, kind="stable")
    indptr = np.searchsorted(columns[order], np.arange(shape[1] + 1))
    matrix = csr_array((counts[order], rows[order], indptr), shape=shape[::-1])
    return RawTable(matrix, samples, features)
