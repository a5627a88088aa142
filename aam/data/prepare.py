"""Writing prepared tables: one pass over the table, at a memory that does not grow with its samples."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.data.prepared import DTYPES, FORMAT
from aam.data.table import Columns, make_columns, read_raw, sequences_of
from aam.data.tokens import encode
from aam.errors import InputError
from aam.files.atomic import BLOCK, file_digest, parts_folder
from aam.io.biom import HDF5_MAGIC, open_hdf5
from aam.io.counts import check_counts, check_ids
from aam.io.newick import pruned_tree
from aam.io.text import read_bytes

# Texts that are written at a time.
AT_ONCE = 1 << 14

Values = npt.NDArray[Any]


class _Array:
    """An array that grows in a temporary file of its own, and its checksum."""

    def __init__(self, path: Path, dtype: str, width: int | None = None) -> None:
        self.path, self.dtype, self.width, self.size = path, dtype, width, 0
        self.digest = hashlib.sha256()
        self._file = path.open("wb")

    def append(self, values: Values) -> None:
        """Write more numbers."""
        blob = np.ascontiguousarray(values, DTYPES[self.dtype]).data
        self._file.write(blob)
        self.digest.update(blob)
        self.size += values.size

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    @property
    def shape(self) -> list[int]:
        """Return the shape of the array."""
        return [self.size] if self.width is None else [self.size // max(self.width, 1), self.width]

    @property
    def bytes(self) -> int:
        """Return the size of the array in bytes."""
        return self.size * int(np.dtype(DTYPES[self.dtype]).itemsize)


@dataclass
class _Writer:
    """Arrays by name, in a temporary folder until all of them are known."""

    folder: Path
    arrays: dict[str, _Array] = field(default_factory=dict)

    def open(self, name: str, dtype: str, width: int | None = None) -> _Array:
        """Return a new array."""
        self.arrays[name] = _Array(self.folder / name, dtype, width)
        return self.arrays[name]

    def write(self, name: str, dtype: str, values: Values) -> None:
        """Write an array that is in memory."""
        self.open(name, dtype).append(values)

    def write_texts(self, name: str, ends_name: str, texts: Sequence[str]) -> None:
        """Write texts as `aam.data.texts.Texts` reads them."""
        letters, lengths = self.open(name, "U8"), [np.zeros(1, np.int64)]
        for start in range(0, len(texts), AT_ONCE):
            some = [text.encode("utf-8") for text in texts[start : start + AT_ONCE]]
            letters.append(np.frombuffer(b"".join(some), np.uint8))
            lengths.append(np.fromiter(map(len, some), np.int64, len(some)))
        self.write(ends_name, "I64", np.cumsum(np.concatenate(lengths)))

    def narrow(self, name: str, dtype: str) -> None:
        """Write an array of counts again with a narrower type."""
        wide = self.arrays.pop(name)
        wide.close()
        wide.path.rename(wide.path.with_name("wide"))
        narrow = self.open(name, dtype)
        with wide.path.with_name("wide").open("rb") as file:
            while block := file.read(BLOCK):
                narrow.append(np.frombuffer(block, DTYPES[wide.dtype]))
        wide.path.with_name("wide").unlink()

    def finish(self, path: Path, about: dict[str, str]) -> None:
        """Write the safetensors file: widest types first, so that every array is aligned."""
        order = sorted(self.arrays, key=lambda name: list(DTYPES).index(self.arrays[name].dtype))
        layout: dict[str, Any] = {}
        start = 0
        for name in order:
            array = self.arrays[name]
            array.close()
            stop = start + array.bytes
            layout[name] = {"dtype": array.dtype, "shape": array.shape, "data_offsets": [start, stop]}
            start = stop
        about = about | {"sha256": json.dumps({name: self.arrays[name].digest.hexdigest() for name in order})}
        header = json.dumps({"__metadata__": about, **layout}).encode()
        header += b" " * (-len(header) % 64 + 56)
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name in order:
                with self.arrays[name].path.open("rb") as part:
                    shutil.copyfileobj(part, file, BLOCK)
                self.arrays[name].path.unlink()


@dataclass(frozen=True)
class Source:
    """The ids of a table, and its counts, the samples in order and some at a time."""

    samples: Sequence[str]
    features: Sequence[str]
    blocks: Iterator[csr_array]


def _read_hdf5(path: Path) -> Iterator[Any]:
    """Yield the ids of a BIOM 2.1 table, then its counts; what a reader of this raises is its own."""
    with open_hdf5(path, str(path)) as table:
        yield table.samples, table.features
        yield from table.blocks()


def open_source(path: Path) -> Source:
    """Return a table that is read in one pass; all but BIOM 2.1 is in memory.

    Raises `InputError`: as `read_table` does, some of it when the counts are read.
    """
    if read_bytes(path, 4096).startswith(HDF5_MAGIC):
        parts = _read_hdf5(path)
        samples, features = next(parts)
        return Source(samples, features, parts)
    raw = read_raw(path)
    return Source(raw.sample_ids, raw.feature_ids, iter([raw.counts]))


def _write_counts(writer: _Writer, source: Source, columns: Columns, where: str) -> None:
    indices, counts, lengths, largest = writer.open("columns", "I32"), writer.open("counts", "U32"), [0], 0
    for block in source.blocks:
        first = len(lengths) - 1
        check_counts(block, source.samples[first : first + block.shape[0]], source.features, where)
        ordered = columns.order(block)
        indices.append(ordered.indices)
        counts.append(ordered.data)
        largest = max(largest, int(ordered.data.max(initial=0)))
        lengths += np.diff(ordered.indptr).tolist()
    if not largest:
        raise InputError(f"{where}: the table is empty, all counts are 0")
    writer.write("indptr", "I64", np.cumsum(np.array(lengths, np.int64)))
    narrowest = np.min_scalar_type(largest)
    if narrowest != np.uint32:
        writer.narrow("counts", {1: "U8", 2: "U16"}[narrowest.itemsize])


def _write_columns(writer: _Writer, columns: Columns) -> bool:
    """Write sequences, tokens and, where they differ, ids; return whether the ids are the sequences."""
    sequences = columns.sequences
    writer.write_texts("sequences", "sequence_ends", sequences)
    longest = max(map(len, sequences))
    tokens = writer.open("tokens", "U8", longest)
    for start in range(0, len(sequences), AT_ONCE):
        some = encode(sequences[start : start + AT_ONCE])
        tokens.append(np.pad(some, ((0, 0), (0, longest - some.shape[1]))))
    if same := columns.feature_ids == sequences and not columns.merging:
        return same
    writer.write_texts("features", "feature_ends", columns.feature_ids)
    return False


def _write_tree(writer: _Writer, path: Path, columns: Columns, midpoint: bool, by_sequence: bool) -> None:
    tree, tips = pruned_tree(path, columns.feature_ids, "drop", midpoint, columns.sequences if by_sequence else ())
    for name in ("parent", "lo", "hi"):
        writer.write(name, "I64", getattr(tree, name))
    writer.write("length", "F64", tree.length)
    writer.write("tips", "I64", tips)
    feature_of_tip = np.zeros(len(tree.tips), np.int64)
    with_tip = np.flatnonzero(tips >= 0)[::-1]
    feature_of_tip[tips[with_tip]] = with_tip
    writer.write("feature_of_tip", "I64", feature_of_tip)


def write_prepared(
    path: Path, table: Path, sequences: Path | None = None, tree: Path | None = None, midpoint: bool = False
) -> tuple[int, int]:
    """Write the prepared form of a table, and return its samples and ASVs.

    Write below `aam.files.atomic.atomic_file` to have a whole file or none.

    Parameters
    ----------
    path : Path
        The file to write.
    table : Path
    sequences : Path, optional
        FASTA file or .qza of its features; without it their ids are the sequences.
    tree : Path, optional
        Pruned to the table and kept with it.
    midpoint : bool
        Whether the tree is rooted at its midpoint first.

    Raises
    ------
    InputError
        As `read_table` and `pruned_tree` do.
    """
    digest = file_digest(table)
    source = open_source(table)
    check_ids(source.samples, source.features, str(table))
    columns = make_columns(source.features, sequences_of(source.features, table, sequences))
    with parts_folder(path) as folder:
        writer = _Writer(folder)
        try:
            _write_counts(writer, source, columns, str(table))
            writer.write_texts("samples", "sample_ends", source.samples)
            same_ids = _write_columns(writer, columns)
            if tree is not None:
                _write_tree(writer, tree, columns, midpoint, sequences is not None)
            about = {
                "aam-table": FORMAT,
                "source": table.name,
                "source_bytes": str(table.stat().st_size),
                "source_sha256": digest,
                "sequences_sha256": "" if sequences is None else file_digest(sequences),
                "ids_are_sequences": str(int(same_ids)),
                "tree_sha256": "" if tree is None else file_digest(tree),
                "midpoint": str(int(midpoint)),
            }
            writer.finish(path, about)
        finally:
            for array in writer.arrays.values():
                with contextlib.suppress(OSError):
                    array.close()
    return len(source.samples), len(columns.feature_ids)
