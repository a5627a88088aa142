"""Writes BIOM 2.1 tables (HDF5) a few samples at a time, in memory that does not grow with the counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np
import numpy.typing as npt
from scipy import sparse

import aam
from aam.errors import InputError, shown

# Constant, so that the same table gives the same bytes on every day.
CREATED = "1970-01-01T00:00:00"
HDF5_CHUNK = 1 << 14
ENTRIES_IN_MEMORY = 1 << 22
ENTRIES_AT_ONCE = 1 << 20

Ints = npt.NDArray[np.int64]
Entries = tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]


class _Column:
    """A dataset that grows by whole HDF5 chunks, so that appends of any size give the same bytes."""

    def __init__(self, group: h5py.Group, name: str, dtype: type[np.generic]) -> None:
        self.dtype = dtype
        self.dataset = group.create_dataset(
            name,
            shape=(0,),
            maxshape=(None,),
            dtype=dtype,
            chunks=(HDF5_CHUNK,),
            compression="gzip",
            track_times=False,
        )
        self.pending: list[npt.NDArray[np.generic]] = []
        self.waiting = 0

    def append(self, values: npt.NDArray[np.generic]) -> None:
        self.pending.append(values.astype(self.dtype))
        self.waiting += len(values)
        if self.waiting >= HDF5_CHUNK:
            self.flush(self.waiting - self.waiting % HDF5_CHUNK)

    def flush(self, count: int) -> None:
        values = np.concatenate(self.pending) if self.pending else np.empty(0, self.dtype)
        start = self.dataset.shape[0]
        self.dataset.resize(start + count, axis=0)
        self.dataset[start:] = values[:count]
        self.pending, self.waiting = [values[count:]], len(values) - count


class _Axis:
    """One of the two compressed copies of the matrix that BIOM asks for."""

    def __init__(self, file: h5py.File, name: str) -> None:
        self.group = file.create_group(name)
        for empty in ("metadata", "group-metadata"):
            self.group.create_group(empty)
        matrix = self.group.create_group("matrix")
        self.data = _Column(matrix, "data", np.float64)
        self.indices = _Column(matrix, "indices", np.int32)

    def append(self, data: npt.NDArray[np.generic], indices: npt.NDArray[np.generic]) -> None:
        self.data.append(data)
        self.indices.append(indices)

    def finish(self, ids: Sequence[str], indptr: Ints) -> None:
        for column in (self.data, self.indices):
            column.flush(column.waiting)
        offset = np.int32 if indptr[-1] <= np.iinfo(np.int32).max else np.int64
        options = {"compression": "gzip", "track_times": False} if len(ids) else {"track_times": False}
        matrix = self.group["matrix"]
        matrix.create_dataset("indptr", data=indptr.astype(offset), compression="gzip", track_times=False)
        kind = h5py.string_dtype()
        self.group.create_dataset("ids", shape=(len(ids),), dtype=kind, data=list(ids) or None, **options)


class BiomWriter:
    """A BIOM 2.1 file that is appended to by samples; equal tables give equal bytes, however they are cut.

    The samples are written as they come; `close` writes the copy ordered by feature from them, reading
    the file once for every `entries_in_memory` counts. Write below `aam.runtime.files.whole_file` when
    a half-written file must not be seen::

        with whole_file(path) as temporary, BiomWriter(temporary, feature_ids) as writer:
            writer.append(counts, sample_ids)

    Parameters
    ----------
    path : Path
        The file to create; a file that is there is replaced.
    feature_ids : sequence of str
        Ids of the columns of every appended matrix.
    entries_in_memory : int
        Most counts held while the copy ordered by feature is written, 12 bytes each.
    """

    def __init__(
        self, path: Path, feature_ids: Sequence[str], *, entries_in_memory: int = ENTRIES_IN_MEMORY
    ) -> None:
        self.path = path
        self.feature_ids = list(feature_ids)
        self.entries_in_memory = entries_in_memory
        self._sample_ids: list[str] = []
        self._ends: list[Ints] = [np.zeros(1, np.int64)]
        self._of_feature = np.zeros(len(self.feature_ids), np.int64)
        self._file = h5py.File(path, "w")
        self._observation, self._sample = (_Axis(self._file, name) for name in ("observation", "sample"))

    def append(self, counts: sparse.csr_matrix | sparse.csr_array, sample_ids: Sequence[str]) -> None:
        """Add samples.

        Parameters
        ----------
        counts : scipy.sparse CSR [samples, features]
            Reads; zeros that are stored are left out.
        sample_ids : sequence of str
            Ids of the rows.

        Raises
        ------
        InputError
            The shape does not fit the ids.
        """
        if counts.shape != (len(sample_ids), len(self.feature_ids)):
            raise InputError(
                f"{self.path}: counts of shape {counts.shape}, expected {len(sample_ids)} samples x "
                f"{len(self.feature_ids)} features"
            )
        counts = counts.copy()
        counts.sum_duplicates()
        counts.eliminate_zeros()
        self._sample.append(counts.data, counts.indices)
        self._ends.append(self._ends[-1][-1] + counts.indptr[1:].astype(np.int64))
        self._of_feature += np.bincount(counts.indices, minlength=len(self.feature_ids))
        self._sample_ids.extend(sample_ids)

    def close(self) -> None:
        """Write the copy ordered by feature, the ids and the attributes, then close the file.

        Raises
        ------
        InputError
            A sample or a feature occurs twice.
        """
        try:
            self._check_ids()
            samples = np.concatenate(self._ends)
            features = np.concatenate([[0], np.cumsum(self._of_feature)])
            self._sample.finish(self._sample_ids, samples)
            for data, indices in self._by_feature(samples, features):
                self._observation.append(data, indices)
            self._observation.finish(self.feature_ids, features)
            attributes = {
                "id": "No Table ID",
                "type": "OTU table",
                "format-url": "http://biom-format.org",
                "format-version": (2, 1),
                "generated-by": f"aam {aam.__version__}",
                "creation-date": CREATED,
                "shape": (len(self.feature_ids), len(self._sample_ids)),
                "nnz": int(samples[-1]),
            }
            for name, value in attributes.items():
                self._file.attrs[name] = value
        finally:
            self._file.close()

    def _check_ids(self) -> None:
        for axis, ids in (("sample", self._sample_ids), ("feature", self.feature_ids)):
            if len(set(ids)) < len(ids):
                values, times = np.unique(np.asarray(ids, dtype=object), return_counts=True)
                twice = shown(values[times > 1])
                raise InputError(f"{self.path}: {axis} ids found more than once: {twice}; expected once")

    def _by_feature(self, samples: Ints, features: Ints) -> Iterator[Entries]:
        """The entries in feature order, as many whole features at a time as fit in memory, at least one."""
        first = 0
        while first < len(features) - 1:
            fitting = (
                int(np.searchsorted(features, features[first] + self.entries_in_memory, side="right")) - 1
            )
            last = max(fitting, first + 1)
            yield self._features(samples, features, first, last)
            first = last

    def _features(self, samples: Ints, features: Ints, first: int, last: int) -> Entries:
        """The entries of features `first` to `last`, ordered by feature, then by sample."""
        cursor = features[first:last] - features[first]
        size = features[last] - features[first]
        values, rows = np.empty(size, np.float64), np.empty(size, np.int32)
        for start in range(0, int(samples[-1]), ENTRIES_AT_ONCE):
            stop = min(start + ENTRIES_AT_ONCE, int(samples[-1]))
            column = self._sample.indices.dataset[start:stop]
            chosen = np.flatnonzero((column >= first) & (column < last))
            feature = column[chosen] - first
            order = np.argsort(feature, kind="stable")
            feature, chosen = feature[order], chosen[order]
            number = np.bincount(feature, minlength=last - first)
            rank = np.arange(len(feature)) - np.repeat(np.cumsum(number) - number, number)
            place = cursor[feature] + rank
            values[place] = self._sample.data.dataset[start:stop][chosen]
            rows[place] = np.searchsorted(samples, chosen + start, side="right") - 1
            cursor = cursor + number
        return values, rows

    def __enter__(self) -> BiomWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
