"""BIOM 2.1 tables (HDF5) written part by part, in the layout and the bytes of biom-format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
from scipy import sparse

import aam
from aam.device.deferred_errors import DeferredErrorFile
from aam.errors import InputError, shown
from aam.files.atomic import parts_folder

# Constant, so that the same table gives the same bytes on every day.
CREATED = datetime(1970, 1, 1)

# Entries of the matrix, and ids, that are held at a time.
SLAB = 1 << 22
ID_SLAB = 1 << 16

Counts: TypeAlias = sparse.csr_matrix | sparse.csr_array
Values: TypeAlias = npt.NDArray[Any]


class _Entries:
    """The matrix, sample by sample, in temporary files beside the table: what is written twice is drawn once."""

    def __init__(self, folder: Path, parts: Iterable[Counts], features: int) -> None:
        self.lengths: list[Values] = []
        self.of_feature = np.zeros(features, np.int64)
        self._paths = {"data": folder / "data", "indices": folder / "indices"}
        with self._paths["data"].open("wb") as data, self._paths["indices"].open("wb") as indices:
            for given in parts:
                part = given
                if not part.has_canonical_format:
                    part = part.copy()
                    part.sum_duplicates()
                kept = np.flatnonzero(part.data)
                ends = np.searchsorted(kept, part.indptr)
                columns = part.indices[kept].astype(np.int32)
                data.write(part.data[kept].astype(np.float64).tobytes())
                indices.write(columns.tobytes())
                self.lengths.append(np.diff(ends))
                self.of_feature += np.bincount(columns, minlength=features)
        self.starts = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *self.lengths]))])

    def read(self, name: str, start: int, stop: int) -> Values:
        """Return some of the numbers: ``data`` float64 or ``indices`` int32."""
        dtype = np.dtype(np.float64 if name == "data" else np.int32)
        return np.fromfile(self._paths[name], dtype, stop - start, offset=start * dtype.itemsize)

    def by_sample(self, name: str, size: int) -> Iterator[Values]:
        """Yield the numbers of all samples, at most `size` at a time."""
        for start in range(0, int(self.starts[-1]), size):
            yield self.read(name, start, min(start + size, int(self.starts[-1])))

    def by_feature(self, size: int) -> Iterator[tuple[Values, Values]]:
        """Yield data and samples of all features, those of as many at a time as have about `size` entries."""
        ends = np.cumsum(self.of_feature)
        first = 0
        while first < len(ends) and ends[-1]:
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + size, side="right")))
            yield self._features(first, last)
            first = last

    def _features(self, first: int, last: int) -> tuple[Values, Values]:
        parts: list[tuple[Values, Values, Values]] = []
        total = int(self.starts[-1])
        for start in range(0, total, SLAB):
            stop = min(start + SLAB, total)
            columns = self.read("indices", start, stop)
            at = np.flatnonzero((columns >= first) & (columns < last))
            rows = np.searchsorted(self.starts, start + at, side="right") - 1
            parts.append((columns[at], self.read("data", start, stop)[at], rows.astype(np.int32)))
        columns, data, rows = (np.concatenate([part[i] for part in parts]) for i in range(3))
        order = np.argsort(columns, kind="stable")
        return data[order], rows[order]


def _fill(group: h5py.Group, name: str, total: int, parts: Iterable[Values]) -> None:
    """Write arrays one behind the other, whole chunks of the dataset at a time, so that none is compressed twice."""
    dtype = np.dtype(np.float64 if name == "data" else np.int32)
    if not total:
        group.create_dataset(f"matrix/{name}", data=np.zeros(0, dtype), compression="gzip")
        return
    dataset = group.create_dataset(f"matrix/{name}", (total,), dtype, compression="gzip")
    pending, start = np.zeros(0, dtype), 0
    for part in parts:
        pending = np.concatenate([pending, part])
        ready = len(pending) // dataset.chunks[0] * dataset.chunks[0]
        dataset[start : start + ready] = pending[:ready]
        pending, start = pending[ready:], start + ready
    if len(pending):
        dataset[start:] = pending


def _write_axis(group: h5py.Group, ids: Sequence[str], indptr: Values, fill: Callable[[h5py.Group], None]) -> None:
    group.create_group("metadata")
    group.create_group("group-metadata")
    group.create_group("matrix")
    fill(group)
    group.create_dataset("matrix/indptr", data=indptr.astype(np.int32), compression="gzip")
    texts = group.create_dataset("ids", (len(ids),), h5py.special_dtype(vlen=str), compression="gzip")
    step = -(-ID_SLAB // texts.chunks[0]) * texts.chunks[0]
    for start in range(0, len(ids), step):
        texts[start : start + step] = [name.encode("utf-8") for name in ids[start : start + step]]


def _write(file: h5py.File, entries: _Entries, sample_ids: Sequence[str], feature_ids: Sequence[str]) -> None:
    total = int(entries.starts[-1])
    attributes = {
        "id": "No Table ID", "type": "OTU table", "format-url": "http://biom-format.org", "format-version": (2, 1),
        "generated-by": f"aam {aam.__version__}", "creation-date": CREATED.isoformat(),
        "shape": (len(feature_ids), len(sample_ids)), "nnz": total,
    }  # fmt: skip
    for name, value in attributes.items():
        file.attrs[name] = value

    def features(group: h5py.Group) -> None:
        _fill(group, "data", total, (data for data, _ in entries.by_feature(SLAB)))
        _fill(group, "indices", total, (rows for _, rows in entries.by_feature(SLAB)))

    def samples(group: h5py.Group) -> None:
        for name in ("data", "indices"):
            _fill(group, name, total, entries.by_sample(name, SLAB))

    starts = np.concatenate([[0], np.cumsum(entries.of_feature)])
    _write_axis(file.create_group("observation"), feature_ids, starts, features)
    _write_axis(file.create_group("sample"), sample_ids, entries.starts, samples)


def write_hdf5(path: Path, parts: Iterable[Counts], sample_ids: Sequence[str], feature_ids: Sequence[str]) -> None:
    """Write reads as a BIOM 2.1 file, at a memory that does not grow with the samples; equal tables give equal bytes.

    Write below `aam.files.atomic.atomic_file` to have a whole file or none.

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
    for kind, ids in (("sample", sample_ids), ("feature", feature_ids)):
        if len(set(ids)) < len(ids):
            raise InputError(f"{path}: Duplicate {kind} ids")
    with parts_folder(path) as folder:
        entries = _Entries(folder, parts, len(feature_ids))
        if len(entries.starts) - 1 != len(sample_ids):
            raise InputError(f"{path}: {len(entries.starts) - 1} samples have the ids {shown(sample_ids)}")
        with contextlib.closing(DeferredErrorFile(path)) as patient, h5py.File(patient, "w") as file:
            _write(file, entries, sample_ids, feature_ids)
