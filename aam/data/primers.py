"""Common primers of 16S: reads that still hold one, and where on the gene a reference has their sites."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aam.data.table import SampleTable, make_table
from aam.data.tokens import Tokens, encode, reverse_complement

log = logging.getLogger("aam")

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

# What a primer may have before it, and how many of its letters may be others.
SPACER, MISMATCHES = 8, 1

# Sequences that are searched together: the other strand of 3,000,000 of 150 bases takes 6.5 GB (docs/decisions.md).
SEQUENCES_AT_ONCE = 65_536

# Share of the reads that hold a primer above which this is said.
MOST_WITH_PRIMER = 0.05

# Where sites begin on the gene of Escherichia coli: those of primers, and in their complement of reverse ones.
SITES = {"341F": 341, "515F": 515, "806R": 787, "926R": 907}

# Where the middles of the variable regions lie there (Chakravorty et al. 2007).
VARIABLE = {"V1": 84, "V2": 190, "V3": 465, "V4": 629, "V5": 850, "V6": 1015, "V7": 1145, "V8": 1269, "V9": 1450}

LETTERS = {
    "A": 1, "C": 2, "G": 4, "T": 8, "R": 5, "Y": 10, "S": 6, "W": 9, "K": 12, "M": 3, "B": 14, "D": 13, "H": 11,
    "V": 7, "N": 15,
}  # fmt: skip
# The same of tokens: none of padding, any of an unknown base.
BITS = np.array([0, 1, 2, 4, 8, 15, 0], np.uint8)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FoundPrimers:
    """The primers at the ends of F sequences, as places in `PRIMERS` (-1 for none), and how many bases to cut there."""

    first: Ints
    last: Ints
    before: Ints
    after: Ints

    @property
    def any(self) -> npt.NDArray[np.bool_]:
        """Which sequences hold a primer, bool [F]."""
        return (self.first >= 0) | (self.last >= 0)


def _misses(bits: Tokens, primer: str) -> Ints:
    """Return how many letters of a primer differ at each place that it fits into, [F, L - length + 1]."""
    allowed = [LETTERS[letter] for letter in primer]
    places = bits.shape[1] - len(primer) + 1
    misses = np.zeros((len(bits), max(places, 0)), np.int64)
    for at, letter in enumerate(allowed):
        misses += (bits[:, at : at + places] & letter) == 0 if places > 0 else 0
    return misses


def _at_start(tokens: Tokens) -> tuple[Ints, Ints]:
    """Return the primer near the start of each sequence [F, L], and the bases up to its end."""
    found, cut = np.full(len(tokens), -1), np.zeros(len(tokens), np.int64)
    for number, primer in enumerate(PRIMERS.values()):
        misses = _misses(BITS[tokens[:, : SPACER + len(primer)]], primer)
        if not misses.shape[1]:
            continue
        fits = (misses.min(axis=1) <= MISMATCHES) & (found < 0)
        found[fits] = number
        cut[fits] = misses[fits].argmin(axis=1) + len(primer)
    return found, cut


def find_primers(tokens: Tokens) -> FoundPrimers:
    """Return the primers with which sequences ``[F, L]`` begin, and those whose complement ends them."""
    parts = [tokens[start : start + SEQUENCES_AT_ONCE] for start in range(0, max(len(tokens), 1), SEQUENCES_AT_ONCE)]
    first, before = map(np.concatenate, zip(*map(_at_start, parts), strict=True))
    last, after = map(np.concatenate, zip(*(_at_start(reverse_complement(part)) for part in parts), strict=True))
    return FoundPrimers(first, last, before, after)


def without_primers(table: SampleTable) -> SampleTable:
    """Cut primers from ASVs; those that become identical are merged and their reads added."""
    found = find_primers(encode(table.sequences))
    ends = zip(table.sequences, found.before.tolist(), found.after.tolist(), strict=True)
    cut = [sequence[before : len(sequence) - after] or sequence for sequence, before, after in ends]
    log.info("primers cut from %d of %d ASVs", found.any.sum(), len(found.any))
    return make_table(table.counts, table.sample_ids, table.feature_ids, cut)


def warn_of_primers(table: SampleTable, tokens: Tokens, of_model: bool) -> None:
    """Name the primers which reads still hold, and how many hold them; of a model an option cuts them."""
    found = find_primers(tokens)
    reads = np.asarray(table.counts.sum(axis=0)).ravel()
    held, total = int(reads[found.any].sum()), int(reads.sum())
    if held <= MOST_WITH_PRIMER * total:
        return
    names, sequences = list(PRIMERS), list(PRIMERS.values())
    number = Counter(int(at) for ends in (found.first, found.last) for at in ends if at >= 0)
    listed = ", ".join(f"{names[at]} ({sequences[at]}) in {asvs} ASVs" for at, asvs in number.most_common())
    remedy = "pass --trim-primers, or cut" if of_model else "cut"
    log.warning(
        "warning: %s of %s reads (%s) still hold a primer: %s; %s primers before denoising (cutadapt)",
        f"{held:,}", f"{total:,}", f"{held / total:.0%}", listed, remedy,
    )  # fmt: skip


def first_regions(references: Tokens, shift: Ints) -> list[str]:
    """Return the variable region before which each of some sequences begins, '' where that is not known.

    Parameters
    ----------
    references : uint8 [F, M]
        One sequence like each of them that is nearly the whole gene.
    shift : int64 [F]
        Where on its reference each of them begins.
    """
    sites = []
    for name, place in SITES.items():
        primer = PRIMERS[name]
        if name.endswith("R"):
            primer = "".join(reversed([_other(letter) for letter in primer]))
        misses = _misses(BITS[references], primer)
        at = misses.argmin(axis=1)
        known = misses[np.arange(len(at)), at] <= 2 * MISMATCHES
        sites.append(np.where(known, shift - at + place, np.iinfo(np.int64).min))
    # The nearest site says most of where a sequence begins.
    starts = np.stack(sites, axis=1)
    distance = np.where(starts >= -1000, np.abs(starts - np.array([*SITES.values()])), np.iinfo(np.int64).max)
    nearest = distance.argmin(axis=1)
    chosen = starts[np.arange(len(starts)), nearest]
    names, middles = list(VARIABLE), np.array([*VARIABLE.values()])
    after = np.minimum(np.searchsorted(middles, chosen), len(names) - 1)
    return [names[at] if start >= -1000 else "" for at, start in zip(after.tolist(), chosen.tolist(), strict=True)]


def _other(letter: str) -> str:
    """Return the letter of the other strand: A for T, of several letters the one that means their complements."""
    bits = LETTERS[letter]
    turned = sum(1 << (3 - at) for at in range(4) if bits >> at & 1)
    return next(name for name, value in LETTERS.items() if value == turned)
