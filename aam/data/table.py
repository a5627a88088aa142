"""SampleTable: counts of ASVs in samples, read from any table file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.data.artifact import ZIP_MAGIC, read_artifact
from aam.data.biom import HDF5_MAGIC, read_hdf5, read_json
from aam.data.biom_writing import write_hdf5
from aam.data.classic import read_tsv
from aam.data.counts import MAX_COUNT, RawTable, checked_table
from aam.data.fasta import clean, first_not_dna, read_fasta
from aam.data.text import GZIP_MAGIC, read_bytes
from aam.errors import InputError, shown
from aam.runtime.files import atomic_file

log = logging.getLogger("aam")


Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Reads of each ASV in each sample; made by `make_table`, never by hand.

    `counts` [N, F] are of the narrowest unsigned type, without stored zeros, columns of each row ascending.
    Samples and `feature_ids` are called as the file has them; `sequences` are upper-case DNA in ascending
    order, or empty where ids are all that is needed; then `feature_ids` ascend.
    """

    counts: csr_array
    sample_ids: tuple[str, ...]
    feature_ids: tuple[str, ...]
    sequences: tuple[str, ...]

    @cached_property
    def depths(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def row(self, row: int) -> tuple[Integers, Integers]:
        """Return the columns [S], ascending, and their reads [S] in one sample."""
        start, stop = self.counts.indptr[row], self.counts.indptr[row + 1]
        return self.counts.indices[start:stop], self.counts.data[start:stop]


def make_table(
    counts: csr_array, sample_ids: Sequence[str], feature_ids: Sequence[str], sequences: Sequence[str] = ()
) -> SampleTable:
    """Put columns in the order of their sequences (of their ids without sequences) and merge identical ones.

    `counts` are whole numbers from 0 to 2^32 - 1, each position stored once. Columns of one sequence (clean
    DNA) become one, under the smallest of their ids; `InputError` where the sum of reads exceeds 2^32 - 1.
    """
    keys, target = np.unique(np.array(sequences or feature_ids, dtype=object), return_inverse=True)
    merging = len(keys) < len(target)
    data = counts.data.astype(np.uint64 if merging else counts.dtype)
    columns = target.astype(np.int32)[counts.indices]
    merged = csr_array((data, columns, counts.indptr.copy()), shape=(counts.shape[0], len(keys)))
    merged.sum_duplicates()
    if merging:
        log.info("merged %d ASVs of the same sequence as another", len(target) - len(keys))
    smallest_id: dict[int, str] = {}
    for column, name in zip(target.tolist(), feature_ids, strict=True):
        smallest_id[column] = min(name, smallest_id.get(column, name))
    largest = int(merged.data.max(initial=0))
    if largest > MAX_COUNT:
        raise InputError(f"merged ASVs have {largest} reads in a sample, expected at most {MAX_COUNT}")
    return SampleTable(
        counts=merged.astype(np.min_scalar_type(largest)),
        sample_ids=tuple(sample_ids),
        feature_ids=tuple(smallest_id[column] for column in range(len(keys))),
        sequences=tuple(keys) if sequences else (),
    )


def _read_raw(path: Path) -> RawTable:
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


def _sequences(raw: RawTable, path: Path, fasta: Path | None) -> list[str]:
    if fasta is not None:
        sequence_of = read_fasta(fasta, raw.feature_ids)
        if missing := [name for name in raw.feature_ids if name not in sequence_of]:
            raise InputError(
                f"{fasta}: no sequence for {len(missing)} of the {len(raw.feature_ids)} features of {path}: "
                f"{shown(missing)}; pass the --sequences that belong to this table"
            )
        return [sequence_of[name] for name in raw.feature_ids]
    if wrong := [name for name in raw.feature_ids if first_not_dna(name)]:
        raise InputError(
            f"{path}: {len(wrong)} of {len(raw.feature_ids)} feature ids are not DNA: {shown(wrong)}, the "
            f"first holds {first_not_dna(wrong[0])!r}; pass sequences with --sequences rep-seqs.fasta|.qza"
        )
    return clean(raw.feature_ids)


def read_table(path: Path, sequences: Path | None = None, need_sequences: bool = True) -> SampleTable:
    """Read a table of counts: BIOM 2.1 (HDF5), BIOM 1.0 (JSON), .qza or classic TSV, recognized by its content.

    `sequences` names FASTA (plain or gzip) or .qza; without it feature ids are the sequences. Without
    `need_sequences` feature ids are tips of a tree and nothing else.

    Raises `InputError`: the file cannot be read as such a table, counts are not whole, ids are empty or
    repeated, or a feature has no sequence.
    """
    raw = checked_table(_read_raw(path), str(path))
    sequences_of_features = _sequences(raw, path, sequences) if need_sequences else ()
    try:
        return make_table(raw.counts, raw.sample_ids, raw.feature_ids, sequences_of_features)
    except InputError as error:
        raise InputError(*(f"{path}: {problem}" for problem in error.problems)) from error


def check_length(table: SampleTable, max_bp: int) -> None:
    """Raise `InputError` when an ASV is longer than `max_bp` nucleotides."""
    if long := [len(sequence) for sequence in table.sequences if len(sequence) > max_bp]:
        longest = max(long)
        raise InputError(
            f"{len(long)} of {len(table.sequences)} ASVs are longer than --max-bp {max_bp}, the longest has "
            f"{longest} nucleotides; pass --trim to cut them to {max_bp}, or --max-bp {longest}"
        )


def trim(table: SampleTable, max_bp: int) -> SampleTable:
    """Cut ASVs to `max_bp` nucleotides; those that become identical are merged and their reads added."""
    if all(len(sequence) <= max_bp for sequence in table.sequences):
        return table
    cut = [sequence[:max_bp] for sequence in table.sequences]
    return make_table(table.counts, table.sample_ids, table.feature_ids, cut)


def select_samples(table: SampleTable, ids: Collection[str]) -> SampleTable:
    """Return the samples `ids` in that order, with all columns; `InputError` names those the table does not have."""
    rows = {name: row for row, name in enumerate(table.sample_ids)}
    if missing := [name for name in ids if name not in rows]:
        raise InputError(f"{len(missing)} samples are not in the table: {shown(missing)}")
    chosen = np.array([rows[name] for name in ids], dtype=np.int64)
    return replace(table, counts=table.counts[chosen], sample_ids=tuple(ids))


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
