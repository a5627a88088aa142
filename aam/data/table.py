"""Tables of counts, read from any file: columns in order, with sequences where there are some."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from aam.data.totals import refuse_computed
from aam.errors import InputError, Problems, problem, shown
from aam.files.atomic import read_bytes
from aam.io.ids import difference
from aam.io.sequences import LEAST_DNA, clean, fasta_ids, is_sequence, read_fasta
from aam.io.tables import MAX_COUNT, AmpliconTable, read_hdf5, read_tsv, write_hdf5
from aam.io.text import HDF5_MAGIC, IS_ID_NAME, decoded, read_content, read_text, unix
from aam.typing import Ids

log = logging.getLogger("aam")


# NumPy draws no hypergeometric samples from this number of reads or more.
TOO_MANY_READS = 10**9


def make_table(
    counts: csr_array, sample_ids: Ids, feature_ids: Ids, sequences: Ids = (), merge: bool = True
) -> AmpliconTable:
    """Put columns in the order of their sequences, or of their ids without sequences.

    `counts` are whole numbers from 0 to 2^32 - 1, each position stored once. With `merge` columns
    of one sequence (clean DNA) become one, under the smallest of their ids; otherwise they are
    refused. `InputError` where the sum of reads exceeds 2^32 - 1.
    """
    names, ids = sequences or feature_ids, dict[str, str]()
    keys, column_of = np.unique(np.array(names, dtype=object), return_inverse=True)
    for name, feature in zip(names, feature_ids, strict=True):
        ids[name] = min(feature, ids.get(name, feature))
    merged = len(names) - len(keys)
    if merged and not merge:
        pairs = ((ids[name], feature) for name, feature in zip(names, feature_ids, strict=True))
        pair = next(pair for pair in pairs if pair[0] != pair[1])
        fault = f"{merged} of {len(names)} features have the sequence of another feature"
        remedy = "pass --trim to merge features of one sequence"
        raise InputError(f"{fault}, such as {shown(pair)}; {remedy}")
    if merged:
        log.info("merged %d ASVs of the same sequence as another", merged)
    data = counts.data.astype(np.uint64 if merged else counts.dtype)
    # SciPy widens the columns where the ends are wide, and a table has less than 2^31 entries.
    ends, columns = counts.indptr.astype(np.int32), column_of.astype(np.int32)[counts.indices]
    reads = csr_array((data, columns, ends), shape=(counts.shape[0], len(keys)))
    reads.sum_duplicates()
    if (largest := int(reads.data.max(initial=0))) > MAX_COUNT:
        fault = f"merged ASVs have {largest} reads in a sample, expected at most {MAX_COUNT}"
        raise InputError(fault)
    reads, features = reads.astype(np.min_scalar_type(largest)), tuple(ids[key] for key in keys)
    return AmpliconTable(reads, tuple(sample_ids), features, tuple(keys) if sequences else ())


def _sequences(
    feature_ids: Sequence[str], source: str, fasta: Path | None, sequence_of: Mapping[str, str]
) -> list[str]:
    """Return the clean sequences of the features of the table `source`: those of a FASTA file, or
    their ids; none if no id is DNA.

    Raises `InputError`: some features have a sequence and others do not.
    """
    if fasta is not None:
        if unnamed := [name for name in feature_ids if name not in sequence_of]:
            fault = f"no sequence for {len(unnamed)} of the {len(feature_ids)} features of {source}"
            listed = f"{shown(unnamed)}{difference(feature_ids, fasta_ids(fasta))}"
            remedy = "pass the --sequences that belong to this table"
            raise InputError(problem(fasta, f"{fault}: {listed}", remedy=remedy))
        return [sequence_of[name] for name in feature_ids]
    names = [name for name in feature_ids if not is_sequence(name)]
    if not names:
        return clean(feature_ids)
    are_aligned = any(is_sequence(re.sub("[-.]", "", name)) for name in names)
    if len(names) == len(feature_ids) and not are_aligned:
        text = "%s: feature ids such as %r are not DNA, so features are known by their ids"
        log.info(text, source, names[0][:60])
        return []
    fault = f"{len(names)} of {len(feature_ids)} feature ids are not DNA of {LEAST_DNA} letters"
    remedy = "pass sequences without gaps with --sequences rep-seqs.fasta|.qza"
    raise InputError(problem(source, f"{fault} or more: {shown(names)}", remedy=remedy))


def read_table(
    path: Path, sequences: Path | None = None, need_sequences: bool = True, merge: bool = False
) -> AmpliconTable:
    """Read a table of counts: BIOM 2.1 (HDF5), .qza or text, recognized by its content.

    `sequences` names FASTA (plain or gzip) or .qza; without it feature ids that are DNA of at least
    30 letters are the sequences, and a table of other ids has none. Without `need_sequences`
    feature ids are tips of a tree and nothing else. `merge` is that of `make_table`.
    A table that has its samples where others have features is refused.

    Raises `InputError`: the file cannot be read as such a table, counts are not whole, ids are
    empty or repeated, or only some features have a sequence.
    """
    where = str(path)
    blob = read_bytes(path, head=len(HDF5_MAGIC))
    if blob != HDF5_MAGIC:
        reason = "rarefaction needs counts of reads, pass the table before it was normalised"
        inside = {"FeatureTable[Frequency]": "feature-table.biom"}
        blob = read_content(path, inside, reason, "; a table of this size can be BIOM HDF5")
    if blob.startswith(HDF5_MAGIC):
        raw = read_hdf5(path if blob == HDF5_MAGIC else blob, where)
    else:
        raw = read_tsv(decoded(blob, path), where)
    return table_of_counts(raw, where, sequences, need_sequences, merge)


def table_of_counts(
    raw: AmpliconTable, source: str, sequences: Path | None, need_sequences: bool, merge: bool
) -> AmpliconTable:
    """Return a table of checked counts; `source` is its name in messages, all else is as of
    `read_table`.
    """
    refuse_computed(raw, source)
    names = (*raw.sample_ids, *raw.feature_ids)
    sequence_of = {} if sequences is None else read_fasta(sequences, names)
    is_asv = is_sequence if sequences is None else sequence_of.__contains__
    if all(map(is_asv, raw.sample_ids)) and not any(map(is_asv, raw.feature_ids)):
        fault = f"sample ids such as {raw.sample_ids[0][:60]!r} are sequences, and feature ids such"
        fault += f" as {raw.feature_ids[0][:60]!r} are none: the table is turned"
        remedy = "transpose it (t(x) in R, .T in pandas, .transpose() of a biom.Table)"
        raise InputError(problem(source, fault, remedy=remedy))
    dna = _sequences(raw.feature_ids, source, sequences, sequence_of) if need_sequences else ()
    problems = Problems()
    with problems.collected():
        return make_table(raw.counts, raw.sample_ids, raw.feature_ids, dna, merge)
    raise InputError(*(problem(source, message) for message in problems.messages))


def select_samples(table: AmpliconTable, ids: Collection[str]) -> AmpliconTable:
    """Return the samples `ids` of the table in that order, with all columns."""
    rows = np.array([table.row_of[name] for name in ids], dtype=np.int64)
    return table if np.array_equal(rows, np.arange(len(table))) else table[rows]


def excluded_ids(path: Path | None, sample_ids: Collection[str]) -> tuple[str, ...]:
    """Read the ids of samples to leave out, one a line; a first line that heads ids is no id, and
    lines that begin with # are comments.

    Raises `InputError`: ids that are not among `sample_ids`, or no other sample.
    """
    if path is None:
        return ()
    lines = dict.fromkeys(line.strip() for line in unix(read_text(path)).split("\n"))
    names = [x for x in lines if x and (x in sample_ids or not x.startswith("#"))]
    if names and names[0] not in sample_ids and IS_ID_NAME(names[0]):
        names = names[1:]
    if not names:
        log.warning("warning: %s contains no sample ids; no sample is left out", path)
        return ()
    if unknown := [name for name in names if name not in sample_ids]:
        fault = f"{len(unknown)} of {len(names)} ids are no samples of the table: {shown(unknown)}"
        fault += difference(names, sample_ids)
        remedy = "correct them; each line contains a sample id and nothing else"
        raise InputError(problem(path, fault, remedy=remedy))
    if len(names) == len(sample_ids):
        raise InputError(f"{path}: names all {len(names)} samples; leave some of them in")
    log.info("--exclude: %d of %d samples are left out", len(names), len(sample_ids))
    return tuple(names)


def without_samples(table: AmpliconTable, ids: Collection[str]) -> AmpliconTable:
    """Return the table without the samples `ids`, with all columns."""
    return select_samples(table, [name for name in table.sample_ids if name not in ids])


def deep_enough(table: AmpliconTable, depth: int) -> AmpliconTable:
    """Return the samples with at least `depth` reads; the others are logged.

    Raises `InputError` if no sample has this depth.
    """
    names = np.array(table.sample_ids, object)
    if len(too_deep := names[table.depths >= TOO_MANY_READS]):
        fault = f"{len(too_deep)} samples have {TOO_MANY_READS:,} reads or more: {shown(too_deep)}"
        raise InputError(f"{fault}; no sequencer gives this number; pass the counted reads")
    dropped = names[table.depths < depth]
    if len(dropped) == len(names):
        remedy = "lower --rarefy-depth; a trained model keeps its depth and needs deeper samples"
        deepest = f"no sample has {depth} reads (the deepest has {max(table.depths)})"
        raise InputError(f"{deepest}; {remedy}")
    if len(dropped):
        text = "%d of %d samples have fewer than %d reads and are left out: %s"
        log.warning(text, len(dropped), len(names), depth, shown(dropped, 3))
    return select_samples(table, names[table.depths >= depth].tolist())


def write_biom(table: AmpliconTable, path: Path) -> None:
    """Write a BIOM 2.1 table (HDF5) whose feature ids are the sequences, or the ids where there are
    none.
    """
    write_hdf5(path, table.counts, table.sample_ids, table.names)
