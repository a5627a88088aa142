"""Primers that reads still contain: found, cut, and named where ASVs are too long."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aam.data.table import make_table
from aam.data.tokens import encode, reverse_complement
from aam.errors import InputError
from aam.io.tables import AmpliconTable
from aam.typing import Ints, Tokens

log = logging.getLogger("aam")

# Bases at the ends of a sequence that are looked at.
POSITIONS = 50
PRIMERS = {
    "27F": "AGAGTTTGATYMTGGCTCAG",
    "338R": "TGCTGCCTCCCGTAGGAGT",
    "341F": "CCTAYGGGNBGCWSCAG",
    "515F": "GTGYCAGCMGCCGCGGTAA",
    "806R": "GGACTACNVGGGTWTCTAAT",
    "785R/805R": "GACTACHVGGGTATCTAATCC",
    "926R": "CCGYCAATTYMTTTRAGTTT",
    "1492R": "GGYTACCTTGTTACGACTT",
}
# Bases that may stand before a primer, and letters of it that may differ.
SPACER, MISMATCHES = 8, 1
# Share of the reads with a primer above which primers are named.
MOST_WITH_PRIMER = 0.05
# The bases that a letter of IUPAC means, as bits: A is 1, C 2, G 4, T 8, and N all of them.
LETTER_BITS = {letter: bits for bits, letter in enumerate("-ACMGRSVTWYHKDBN")}
# The same bits for each token: none for padding, all for an unknown base.
BASE_BITS = np.array([0, 1, 2, 4, 8, 15, 0], np.uint8)


def first_bases(sequences: Sequence[str], other_strand: bool = False) -> Tokens:
    """First bases of each sequence, or of its other strand, [F, POSITIONS]."""
    part = slice(-POSITIONS, None) if other_strand else slice(POSITIONS)
    tokens = encode([sequence[part] for sequence in sequences])
    tokens = reverse_complement(tokens) if other_strand else tokens
    return np.pad(tokens, ((0, 0), (0, POSITIONS - tokens.shape[1])))


def mismatches(tokens: Tokens, primer: str) -> npt.NDArray[np.int8]:
    """Count the letters of a primer that differ at each place of sequences [F, L] where it fits,
    [F, L - length + 1].
    """
    bits, places = BASE_BITS[tokens], max(tokens.shape[1] - len(primer) + 1, 0)
    misses = np.zeros((len(bits), places), np.int8)
    for at, letter in enumerate(primer):
        misses += (bits[:, at : at + places] & LETTER_BITS[letter]) == 0
    return misses


def find_primers(sequences: Sequence[str]) -> tuple[Ints, Ints]:
    """Find the primers at the two ends of sequences, as places in `PRIMERS` (-1 for none), and the
    bases to cut there, both [2, F].
    """
    primers, bases = np.full((2, len(sequences)), -1), np.zeros((2, len(sequences)), np.int64)
    for end in (0, 1):
        starts = first_bases(sequences, other_strand=bool(end))
        for number, primer in enumerate(PRIMERS.values()):
            misses = mismatches(starts[:, : SPACER + len(primer)], primer)
            fits = (misses.min(axis=1) <= MISMATCHES) & (primers[end] < 0)
            primers[end, fits] = number
            bases[end, fits] = misses[fits].argmin(axis=1) + len(primer)
    return primers, bases


def without_primers(table: AmpliconTable) -> AmpliconTable:
    """Cut primers from ASVs; those that become identical are merged and their reads added."""
    primers, bases = find_primers(table.sequences)
    ends = zip(table.sequences, *bases.tolist(), strict=True)
    trimmed = [dna[start : len(dna) - end] or dna for dna, start, end in ends]
    log.info("primers cut from %d of %d ASVs", (primers >= 0).any(axis=0).sum(), len(trimmed))
    return make_table(table.counts, table.sample_ids, table.feature_ids, trimmed)


def describe_primers(table: AmpliconTable) -> str:
    """Name the primers that reads still contain, and the number of reads; "" for few or none."""
    places, _ = find_primers(table.sequences)
    total = int(table.reads_of_asvs.sum())
    reads = int(table.reads_of_asvs[: places.shape[1]][(places >= 0).any(axis=0)].sum())
    if reads <= MOST_WITH_PRIMER * total:
        return ""
    times, primers = Counter(places[places >= 0].tolist()).most_common(), list(PRIMERS.items())
    listed = ", ".join("{} ({}) in {} ASVs".format(*primers[at], asvs) for at, asvs in times)
    share = f"{reads:,} of {total:,} reads ({reads / total:.0%})"
    remedy = "cut them before denoising (cutadapt), or to apply a model pass --trim-primers"
    return f"{share} still contain a primer: {listed}; {remedy}"


def warn_of_primers(table: AmpliconTable) -> None:
    """Warn of the primers of `describe_primers`."""
    if primers := describe_primers(table):
        log.warning("warning: %s", primers)


def fit_length(table: AmpliconTable, max_bp: int | None, trimmed: bool = False) -> AmpliconTable:
    """Return a table of ASVs of at most `max_bp` nucleotides: longer ones are cut if `trimmed`, and
    those that become identical are merged and their reads added.

    Raises `InputError` for longer ones otherwise, which names primers if they are the reason.
    """
    too_long = table.lengths[table.lengths > (max_bp or np.inf)]
    if max_bp is None or not len(too_long):
        return table
    if trimmed:
        beginnings = [sequence[:max_bp] for sequence in table.sequences]
        return make_table(table.counts, table.sample_ids, table.feature_ids, beginnings)
    fault = f"{len(too_long)} of {len(table.sequences)} ASVs are longer than"
    if primers := describe_primers(table):
        raise InputError(f"{fault} {max_bp} nucleotides, and {primers}")
    fault += f" --max-bp {max_bp}, the longest has {(longest := too_long.max())} nucleotides"
    remedy = f"pass --trim to cut them to {max_bp}, or train with --max-bp {longest}"
    raise InputError(f"{fault}; {remedy}")
