"""BIOM tables: 2.1 (HDF5) read with sizes checked first, 1.0 (JSON) read and 2.1 written by
biom-format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import h5py
import numpy as np
from scipy import sparse

import aam
from aam.errors import InputError, refuse, reworded, shown
from aam.io.hdf5 import create_hdf5, dataset, open_hdf5
from aam.io.tables import AmpliconTable, checked_table
from aam.io.text import decoded

Counts: TypeAlias = sparse.csr_matrix | sparse.csr_array

# Parsed, JSON takes up to twenty times its size.
MAX_JSON = 64 << 20
# What the matrix of samples consists of, and the kinds of number.
MATRIX = {"data": "iuf", "indices": "iu", "indptr": "iu"}

# Constant, so that the same table gives the same bytes on every day.
CREATED = datetime(1970, 1, 1)

# What biom-format raises of JSON that is no table.
DAMAGED = (OverflowError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


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
        wanted = ("sample/ids", "observation/ids", *(f"sample/matrix/{name}" for name in MATRIX))
        if missing := [name for name in wanted if name not in file]:
            raise InputError(
                f"{where}: no dataset {shown(missing)}, expected a BIOM 2.1 table; make one of "
                "another file with `biom convert --to-hdf5`"
            )
        samples, features = _ids(file, "sample", where), _ids(file, "observation", where)
        found = [dataset(file, f"sample/matrix/{x}", kind, where) for x, kind in MATRIX.items()]
        data, indices, indptr = (part[()] for part in found)
        shape = np.asarray(file.attrs.get("shape", ())).ravel().tolist()
        low, high = int(indices.min(initial=0)), int(indices.max(initial=0))
        rules = {
            f"attribute 'shape' is {shape}, expected {[len(features), len(samples)]} as the ids": (
                shape != [len(features), len(samples)]
            ),
            f"sample/matrix has {data.size} counts and {indices.size} indices": (
                data.size != indices.size
            ),
            f"sample/matrix/indptr has {indptr.size} entries, expected {len(samples) + 1}": (
                indptr.size != len(samples) + 1
            ),
            f"sample/matrix/indptr does not rise from 0 to {data.size}; it is damaged": (
                indptr[:1].tolist() != [0]
                or indptr[-1] != data.size
                or (np.diff(indptr.astype(np.int64)) < 0).any()
            ),
            f"sample/matrix/indices holds {low} to {high}, expected 0 to {len(features) - 1}": (
                data.size > 0 and not 0 <= low <= high < len(features)
            ),
        }
        refuse(where, rules)
        # As narrow as the columns, which SciPy would widen otherwise.
        parts = (data, indices.astype(np.int32), indptr.astype(np.int32))
        values = sparse.csr_array(parts, shape=(len(samples), len(features)))
    return checked_table(values, samples, features, where)


def read_json(blob: bytes, where: str) -> AmpliconTable:
    """Read a BIOM 1.0 table, sparse or dense, by biom-format; `InputError` when it is not one."""
    if len(blob) > MAX_JSON:
        raise InputError(f"{where}: above {MAX_JSON} bytes of JSON; use biom convert --to-hdf5")
    text = decoded(blob, where)
    from biom import Table
    from biom.exception import BiomException

    with reworded((BiomException, *DAMAGED), f"{where}: not a readable BIOM 1.0 table"):
        document = json.loads(text)
        wanted = ("rows", "columns", "shape", "data")
        if lacking := [name for name in wanted if name not in document]:
            raise InputError(f"{where}: BIOM 1.0 without {shown(lacking)}; is it cut off?")
        shape = [len(document[axis]) for axis in ("rows", "columns")]
        if document["shape"] != shape:
            raise InputError(f"{where}: 'shape' is {document['shape']!r:.60}, expected {shape}")
        table = Table.from_json(document)
        samples, features = ([str(x) for x in table.ids(a)] for a in ("sample", "observation"))
        values = sparse.csr_array(table.matrix_data.T)
        # biom-format adds counts that stand there twice, and takes rows that do not for zeros.
        entries = document["data"]
        if document["matrix_type"] == "dense":
            is_whole = len(entries) == shape[0]
        else:
            is_whole = sum(entry[2] != 0 for entry in entries) == values.nnz
        if not is_whole:
            raise InputError(
                f"{where}: 'data' lacks a row, or has two counts for one feature in a sample"
            )
    return checked_table(values, samples, features, where)


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
    from biom.exception import BiomException

    counts = sparse.csr_matrix(sparse.vstack(list(parts), format="csr"))
    counts.sum_duplicates()
    # As objects; of text NumPy makes four bytes for each letter of the longest id.
    names = (np.array(ids, dtype=object) for ids in (feature_ids, sample_ids))
    with reworded((BiomException,), f"{path}: ids do not fit the table"):
        table = Table(counts.T, *names, type="OTU table")
    with create_hdf5(path) as file:
        table.to_hdf5(file, f"aam {aam.__version__}", creation_date=CREATED)
