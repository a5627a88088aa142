"""SampleTable: counts of ASVs in samples, read from any table file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.data.prepared import Prepared, find_prepared
from aam.errors import InputError, shown
from aam.files.atomic import atomic_file
from aam.io.biom import HDF5_MAGIC, read_hdf5, read_json
from aam.io.biom_writing import write_hdf5
from aam.io.classic import read_tsv
from aam.io.counts import MAX_COUNT, RawTable, checked_table
from aam.io.fasta import clean, first_not_dna, read_fasta
from aam.io.qza import ZIP_MAGIC, read_artifact
from aam.io.text import GZIP_MAGIC, read_bytes

log = logging.getLogger("aam")


Integers = npt.NDArray[np.integer]


# Entries of the matrix that are looked at together.
ENTRIES = 1 << 20


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Reads of each ASV in each sample; made by `make_table` or `read_table`, never by hand.

    Samples and `feature_ids` are called as the file has them; `sequences` are upper-case DNA in ascending
    order, or empty where ids are all that is needed; then `feature_ids` ascend.

    Attributes
    ----------
    stored : csr
        Counts of the narrowest unsigned type, without stored zeros, columns of each row ascending; in memory, or mapped
        from a prepared file that all processes of a machine share.
    places : int64 [N], optional
        The rows of `stored` that the samples are; all of them, in order, where it is not given.
    prepared : Prepared, optional
        What was computed of the ASVs when the table was prepared.
    """

    stored: csr_array
    sample_ids: tuple[str, ...]
    feature_ids: Sequence[str]
    sequences: Sequence[str]
    places: npt.NDArray[np.int64] | None = None
    prepared: Prepared | None = None

    @cached_property
    def counts(self) -> csr_array:
        """Return the reads [N, F]; a copy where `places` are given, which large tables do without."""
        return self.stored if self.places is None else self.stored[self.places]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Return the row of each sample by its id."""
        return {name: row for row, name in enumerate(self.sample_ids)}

    @cached_property
    def depths(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        totals = [np.asarray(block.sum(axis=1, dtype=np.int64)) for _, block in self.blocks()]
        return np.concatenate([np.zeros(0, np.int64), *totals])

    def row(self, row: int) -> tuple[Integers, Integers]:
        """Return the columns [S], ascending, and their reads [S] in one sample."""
        at = row if self.places is None else int(self.places[row])
        start, stop = self.stored.indptr[at], self.stored.indptr[at + 1]
        return self.stored.indices[start:stop], self.stored.data[start:stop]

    def blocks(self, rows: npt.NDArray[np.int64] | None = None) -> Iterator[tuple[slice, csr_array]]:
        """Yield the counts of all samples, or of those at `rows`, some at a time, and which these are."""
        rows = np.arange(len(self.sample_ids)) if rows is None else rows
        at = rows if self.places is None else self.places[rows]
        size = max(1, ENTRIES * self.stored.shape[0] // max(self.stored.nnz, 1))
        for start in range(0, len(at), size):
            yield slice(start, min(start + size, len(at))), self.stored[at[start : start + size]]

    def columns_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the columns, ascending, of which some of the samples at `rows` have reads."""
        present = np.zeros(self.stored.shape[1], bool)
        for _, block in self.blocks(rows):
            present[block.indices] = True
        return np.flatnonzero(present)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Nucleotides of each ASV, [F]."""
        if self.prepared is not None:
            return self.prepared.lengths
        return np.fromiter(map(len, self.sequences), np.int64, len(self.sequences))


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table in the order of their sequences, or of their ids without sequences, identical ones merged.

    `target` int32 tells for each feature of the file which column it is.
    """

    feature_ids: Sequence[str]
    sequences: Sequence[str]
    target: npt.NDArray[np.int32]

    @property
    def merging(self) -> bool:
        """Return whether several features are one column."""
        return len(self.feature_ids) < len(self.target)

    def order(self, counts: csr_array) -> csr_array:
        """Return the counts of some samples with these columns; `InputError` where sums of reads are too large."""
        data = counts.data.astype(np.uint64 if self.merging else counts.dtype)
        columns = self.target[counts.indices]
        # SciPy widens the columns where the ends are wide, and a table has less than 2^31 entries.
        merged = csr_array(
            (data, columns, counts.indptr.astype(np.int32)), shape=(counts.shape[0], len(self.feature_ids))
        )
        merged.sum_duplicates()
        largest = int(merged.data.max(initial=0))
        if largest > MAX_COUNT:
            raise InputError(f"merged ASVs have {largest} reads in a sample, expected at most {MAX_COUNT}")
        return merged


def make_columns(feature_ids: Sequence[str], sequences: Sequence[str] = ()) -> Columns:
    """Return the columns of features; those of one sequence become one, under the smallest of their ids."""
    names = np.array(sequences or feature_ids, dtype=object)
    keys, first, target = np.unique(names, return_index=True, return_inverse=True)
    smallest = [feature_ids[place] for place in first.tolist()]
    if len(keys) < len(target):
        log.info("merged %d ASVs of the same sequence as another", len(target) - len(keys))
        for column, name in zip(target.tolist(), feature_ids, strict=True):
            smallest[column] = min(name, smallest[column])
    return Columns(tuple(smallest), tuple(keys) if sequences else (), target.astype(np.int32))


def make_table(
    counts: csr_array, sample_ids: Sequence[str], feature_ids: Sequence[str], sequences: Sequence[str] = ()
) -> SampleTable:
    """Put columns in the order of their sequences (of their ids without sequences) and merge identical ones.

    `counts` are whole numbers from 0 to 2^32 - 1, each position stored once. Columns of one sequence (clean
    DNA) become one, under the smallest of their ids; `InputError` where the sum of reads exceeds 2^32 - 1.
    """
    columns = make_columns(feature_ids, sequences)
    merged = columns.order(counts)
    stored = merged.astype(np.min_scalar_type(int(merged.data.max(initial=0))))
    return SampleTable(stored, tuple(sample_ids), columns.feature_ids, columns.sequences)


def read_raw(path: Path) -> RawTable:
    """Return a table as its file holds it, unchecked; `InputError` where the file cannot be read as one."""
    head = read_bytes(path, 4096)
    if head.startswith(HDF5_MAGIC):
        return read_hdf5(path, str(path))
    if head.startswith(GZIP_MAGIC):
        raise InputError(f"{path}: compressed with gzip; unpack it with gunzip")
    if head.startswith(ZIP_MAGIC):
        reason = "rarefaction needs counts of reads, pass the table as it was before it was normalised"
        blob = read_artifact(path, ["FeatureTable[Frequency]"], reason).file("feature-table.biom")
        return read_hdf5(blob, str(path)) if blob.startswith(HDF5_MAGIC) else read_json(blob, str(path))
    if not head.strip():
        raise InputError(f"{path}: the file is empty, expected a table")
    reader = read_json if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") else read_tsv
    return reader(read_bytes(path), str(path))


def sequences_of(feature_ids: Sequence[str], path: Path, fasta: Path | None) -> list[str]:
    """Return the clean sequences of the features of the table `path`: those of a FASTA file, or their ids.

    Raises `InputError`: a feature has no sequence, or its id is none.
    """
    if fasta is not None:
        sequence_of = read_fasta(fasta, feature_ids)
        if missing := [name for name in feature_ids if name not in sequence_of]:
            raise InputError(
                f"{fasta}: no sequence for {len(missing)} of the {len(feature_ids)} features of {path}: "
                f"{shown(missing)}; pass the --sequences that belong to this table"
            )
        return [sequence_of[name] for name in feature_ids]
    if wrong := [name for name in feature_ids if first_not_dna(name)]:
        raise InputError(
            f"{path}: {len(wrong)} of {len(feature_ids)} feature ids are not DNA: {shown(wrong)}, the "
            f"first holds {first_not_dna(wrong[0])!r}; pass sequences with --sequences rep-seqs.fasta|.qza"
        )
    return clean(feature_ids)


def read_table(path: Path, sequences: Path | None = None, need_sequences: bool = True) -> SampleTable:
    """Read a table of counts: BIOM 2.1 (HDF5), BIOM 1.0 (JSON), .qza or classic TSV, recognized by its content.

    A table that `aam prepare` wrote is mapped into memory, also where it lies beside the table that was asked for.

    `sequences` names FASTA (plain or gzip) or .qza; without it feature ids are the sequences. Without
    `need_sequences` feature ids are tips of a tree and nothing else.

    Raises `InputError`: the file cannot be read as such a table, counts are not whole, ids are empty or
    repeated, or a feature has no sequence.
    """
    if (prepared := find_prepared(path, sequences, by_ids=not need_sequences)) is not None:
        of_features = prepared.sequences if need_sequences else ()
        return SampleTable(prepared.counts, prepared.sample_ids, prepared.feature_ids, of_features, None, prepared)
    raw = checked_table(read_raw(path), str(path))
    sequences_of_features = sequences_of(raw.feature_ids, path, sequences) if need_sequences else ()
    try:
        return make_table(raw.counts, raw.sample_ids, raw.feature_ids, sequences_of_features)
    except InputError as error:
        raise InputError(*(f"{path}: {problem}" for problem in error.problems)) from error


def check_length(table: SampleTable, max_bp: int) -> None:
    """Raise `InputError` when an ASV is longer than `max_bp` nucleotides."""
    long = table.lengths[table.lengths > max_bp]
    if len(long):
        longest = int(long.max())
        raise InputError(
            f"{len(long)} of {len(table.sequences)} ASVs are longer than --max-bp {max_bp}, the longest has "
            f"{longest} nucleotides; pass --trim to cut them to {max_bp}, or --max-bp {longest}"
        )


def trim(table: SampleTable, max_bp: int) -> SampleTable:
    """Cut ASVs to `max_bp` nucleotides; those that become identical are merged and their reads added."""
    if not (table.lengths > max_bp).any():
        return table
    cut = [sequence[:max_bp] for sequence in table.sequences]
    return make_table(table.counts, table.sample_ids, table.feature_ids, cut)


def select_samples(table: SampleTable, ids: Collection[str]) -> SampleTable:
    """Return the samples `ids` in that order, with all columns; `InputError` names those the table does not have."""
    rows = table.row_of
    if missing := [name for name in ids if name not in rows]:
        raise InputError(f"{len(missing)} samples are not in the table: {shown(missing)}")
    chosen = np.array([rows[name] for name in ids], dtype=np.int64)
    if np.array_equal(chosen, np.arange(len(rows))):
        return table
    return replace(table, places=chosen if table.places is None else table.places[chosen], sample_ids=tuple(ids))


def deep_enough(table: SampleTable, depth: int) -> tuple[SampleTable, dict[str, int]]:
    """Return the samples with at least `depth` reads, and the dropped ones with their reads, which are logged."""
    if depth < 1:
        raise InputError(f"--rarefy-depth is {depth}, expected 1 or more reads")
    kept = [name for name, reads in zip(table.sample_ids, table.depths, strict=True) if reads >= depth]
    reads_of = dict(zip(table.sample_ids, table.depths.tolist(), strict=True))
    dropped = {name: reads for name, reads in reads_of.items() if reads < depth}
    if not kept:
        raise InputError(
            f"no sample has {depth} reads (the deepest has {table.depths.max()}); lower --rarefy-depth, "
            "or give samples as deep as those that the model was trained on"
        )
    if dropped:
        few = f"{len(dropped)} of {len(table.sample_ids)} samples have fewer than {depth} reads"
        log.warning("%s and are left out: %s", few, shown(dropped, 10))
    return select_samples(table, kept), dropped


def write_biom(table: SampleTable, path: Path) -> None:
    """Write a BIOM 2.1 table (HDF5) whose feature ids are the sequences, or the ids where there are none."""
    with atomic_file(path) as temporary:
        write_hdf5(temporary, [table.counts], table.sample_ids, table.sequences or table.feature_ids)
