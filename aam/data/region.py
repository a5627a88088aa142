"""Warnings of another region, strand or length than those of training, and of primers in reads."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.table import make_table
from aam.data.tokens import A, C, G, T, Tokens, encode, reverse_complement
from aam.errors import InputError, shown
from aam.io.fasta import first_not_dna
from aam.io.tables import AmpliconTable

log = logging.getLogger("aam")

Ints = npt.NDArray[np.int64]

# Bases at the ends of a sequence that are looked at.
POSITIONS = 50

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

# Share of uniform noise in the base frequencies, so that one base never seen costs 5.3 nats and not
# infinity.
NOISE = 0.02

# Nats per base below the training mean at which an ASV no longer fits. Mean of five 16S V4 studies:
# ASVs of another study lie at most 0.23 below, those shifted by one base 2.0 and more, the other
# strand 2.7 and more.
MISFIT = 1.0

# What is said of reads, and the shares of a sample and of a table above which it is. Held-out
# subjects of infants and mackerel had up to 0.04 of their reads in ASVs of their own, held-out
# seasons up to 0.09, held-out studies of the mouth up to 0.05.
UNLIKE = {
    "length": (
        0.05,
        0.05,
        "have a length outside that of the training ASVs",
        "trim both in the same way",
    ),
    "reversed": (0.05, 0.05, "look reverse-complemented", "reverse-complement them and run again"),
    "elsewhere": (
        *(0.25, 0.25, "look like another region than the training ASVs"),
        "use reads of the same primers, and cut these",
    ),
    "unseen": (
        *(0.5, 0.2, "are of ASVs that were not in the training table"),
        "predictions are less reliable",
    ),
}


def _hashes(sequences: Sequence[str]) -> npt.NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(s.encode(), digest_size=8).digest() for s in sequences)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _starts(sequences: Sequence[str], other_strand: bool = False) -> Tokens:
    """Return the first bases of each sequence, or of its other strand, [F, POSITIONS]."""
    if other_strand:
        tokens = reverse_complement(encode([sequence[-POSITIONS:] for sequence in sequences]))
    else:
        tokens = encode([sequence[:POSITIONS] for sequence in sequences])
    return np.pad(tokens, ((0, 0), (0, POSITIONS - tokens.shape[1])))


@dataclass(frozen=True, eq=False)
class RegionProfile:
    """Profile of the training ASVs, each counted once.

    `length_quantiles` float64 [5] in nucleotides; `frequencies` float64 [50, 4] of A, C, G and T at
    the first positions; `log_likelihood` float64 [], mean per base of the ASVs in nats; `hashes`
    uint64 [F], ascending.
    """

    length_quantiles: npt.NDArray[np.float64]
    frequencies: npt.NDArray[np.float64]
    log_likelihood: npt.NDArray[np.float64]
    hashes: npt.NDArray[np.uint64]

    @classmethod
    def fit(cls, sequences: Sequence[str]) -> RegionProfile:
        """Return the profile of at least one training sequence (clean DNA), or of the names of
        features without sequences.
        """
        hashes, frequencies = np.sort(_hashes(sequences)), np.full((POSITIONS, 4), 0.25)
        profile = cls(np.zeros(len(QUANTILES)), frequencies, np.array(0.0), hashes)
        if any(map(first_not_dna, sequences)):
            return profile
        starts = _starts(sequences)
        seen = np.stack([(starts == base).sum(axis=0) for base in (A, C, G, T)], axis=1)
        total = seen.sum(axis=1, keepdims=True)
        np.divide(seen, total, out=frequencies, where=total > 0)
        likelihood = np.array(profile._likelihood(starts).mean())
        return cls(np.quantile([*map(len, sequences)], QUANTILES), frequencies, likelihood, hashes)

    def _likelihood(self, starts: Tokens) -> npt.NDArray[np.float64]:
        """Return the mean log-likelihood per base of each row; 0 for a row without a known base."""
        total, known = np.zeros(len(starts)), np.zeros(len(starts), np.int64)
        for at, shares in enumerate((1 - NOISE) * self.frequencies + NOISE / 4):
            # The first and last two tokens are padding, an unknown base and the mask.
            total += np.array([0, *np.log(shares), 0, 0])[starts[:, at]]
            known += (starts[:, at] >= A) & (starts[:, at] <= T)
        return total / np.maximum(known, 1)

    @property
    def holds_primer(self) -> bool:
        """Whether most training ASVs begin with a primer: their base frequencies fit one."""
        for primer in PRIMERS.values():
            allowed = np.array([[LETTERS[x] >> base & 1 for base in range(4)] for x in primer])
            for start in range(SPACER + 1):
                fits = (self.frequencies[start : start + len(primer)] * allowed).sum()
                if len(primer) - fits <= MISMATCHES:
                    return True
        return False

    def flags(self, sequences: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
        """Flag sequences, bool [F], with another length, strand or region, or not seen before."""
        # The hashes are sorted already; np.isin would sort them again.
        hashes = _hashes(sequences)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        unseen = np.asarray(self.hashes[places] != hashes)
        if self.length_quantiles[-1] == 0 or any(map(first_not_dna, sequences)):
            return {**dict.fromkeys(UNLIKE, np.zeros(len(sequences), bool)), "unseen": unseen}
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        least = float(self.log_likelihood) - MISFIT
        fits, other_fits = (
            self._likelihood(_starts(sequences, other_strand)) > least
            for other_strand in (False, True)
        )
        return {
            "length": (lengths < self.length_quantiles[0]) | (lengths > self.length_quantiles[-1]),
            "reversed": ~fits & other_fits,
            "elsewhere": ~fits & ~other_fits,
            "unseen": unseen,
        }

    def shares_of_samples(self, table: AmpliconTable) -> dict[str, npt.NDArray[np.float64]]:
        """Return the shares of each sample's reads, float64 [N], in ASVs that `flags` names."""
        flags, depths = self.flags(table.names), np.maximum(table.depths, 1)
        share = {name: np.zeros(len(depths)) for name in flags}
        for rows, counts in table.blocks():
            for name, values in flags.items():
                share[name][rows] = np.asarray(counts @ values.astype(np.int64)) / depths[rows]
        return share

    def compare(self, table: AmpliconTable, kinds: Collection[str] = UNLIKE.keys()) -> list[str]:
        """Return one sentence for each way in which the reads of a table differ from training."""
        found = []
        for name, shares in self.shares_of_samples(table).items():
            share, (_, most, text, remedy) = np.average(shares, weights=table.depths), UNLIKE[name]
            if share > most and name in kinds:
                found.append(f"{share:.0%} of the reads {text}; {remedy}")
        return found

    def compare_samples(self, table: AmpliconTable) -> tuple[str, ...]:
        """Return a note for each sample of a table: how its reads differ from training, or ''.

        A table of good samples hides a bad one, so each is judged by itself; one that has training
        ASVs only is not unlike them.
        """
        share = self.shares_of_samples(table)
        return tuple(
            "; ".join(
                f"{share[name][row]:.0%} of its reads {text}"
                for name, (most, _, text, _) in UNLIKE.items()
                if share["unseen"][row] > 0 and share[name][row] > most
            )
            for row in range(len(table))
        )

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the profile as named arrays, without uint64, which some versions of safetensors
        cannot write.
        """
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**arrays, "hashes": arrays["hashes"].view(np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RegionProfile:
        """Rebuild the profile of `to_arrays`; `InputError` when an array is missing or has another
        shape.
        """
        shapes = {"length_quantiles": (5,), "frequencies": (POSITIONS, 4), "log_likelihood": ()}
        empty = np.zeros((0, 0, 0))
        wrong = [name for name in shapes if arrays.get(name, empty).shape != shapes[name]]
        wrong += ["hashes"] if arrays.get("hashes", empty).ndim != 1 else []
        if wrong:
            raise InputError(f"the model's region profile is damaged: {shown(wrong)}")
        hashes = arrays["hashes"].view(np.uint64)
        return cls(**{name: arrays[name] for name in shapes}, hashes=hashes)


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

# Share of the reads that hold a primer above which this is said.
MOST_WITH_PRIMER = 0.05

# The bases that a letter of IUPAC means, as bits: A is 1, C 2, G 4, T 8, and N all of them.
LETTERS = {letter: bits for bits, letter in enumerate("-ACMGRSVTWYHKDBN")}
# The same of tokens: none of padding, any of an unknown base.
BITS = np.array([0, 1, 2, 4, 8, 15, 0], np.uint8)


def mismatches(tokens: Tokens, primer: str) -> npt.NDArray[np.int8]:
    """Count the letters of a primer that differ at each place of sequences [F, L] where it fits,
    [F, L - length + 1].
    """
    bits, places = BITS[tokens], max(tokens.shape[1] - len(primer) + 1, 0)
    misses = np.zeros((len(bits), places), np.int8)
    for at, letter in enumerate(primer):
        misses += (bits[:, at : at + places] & LETTERS[letter]) == 0
    return misses


def find_primers(sequences: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the primers at the two ends of sequences, as places in `PRIMERS` (-1 for none), and
    the bases to cut there, both [2, F].
    """
    found = np.full((2, len(sequences)), -1)
    cut = np.zeros((2, len(sequences)), np.int64)
    for end in (0, 1):
        starts = _starts(sequences, other_strand=bool(end))
        for number, primer in enumerate(PRIMERS.values()):
            misses = mismatches(starts[:, : SPACER + len(primer)], primer)
            fits = (misses.min(axis=1) <= MISMATCHES) & (found[end] < 0)
            found[end, fits] = number
            cut[end, fits] = misses[fits].argmin(axis=1) + len(primer)
    return found, cut


def without_primers(table: AmpliconTable) -> AmpliconTable:
    """Cut primers from ASVs; those that become identical are merged and their reads added."""
    found, cut = find_primers(table.sequences)
    ends = zip(table.sequences, *cut.tolist(), strict=True)
    short = [
        sequence[before : len(sequence) - after] or sequence for sequence, before, after in ends
    ]
    log.info("primers cut from %d of %d ASVs", (found >= 0).any(axis=0).sum(), len(short))
    return make_table(table.counts, table.sample_ids, table.feature_ids, short)


def warn_of_primers(table: AmpliconTable, of_model: bool) -> None:
    """Name the primers which reads still hold, and how many hold them; of a model an option cuts
    them.
    """
    found, _ = find_primers(table.sequences)
    reads = table.reads_of_asvs[(found >= 0).any(axis=0)] if table.sequences else np.zeros(0)
    total = int(table.reads_of_asvs.sum())
    if reads.sum() <= MOST_WITH_PRIMER * total:
        return
    primers = list(PRIMERS.items())
    listed = ", ".join(
        f"{primers[at][0]} ({primers[at][1]}) in {asvs} ASVs"
        for at, asvs in Counter(found[found >= 0].tolist()).most_common()
    )
    log.warning(
        "warning: %s of %s reads (%s) still contain a primer: %s; %s primers before denoising "
        "(cutadapt)",
        f"{reads.sum():,}",
        f"{total:,}",
        f"{reads.sum() / total:.0%}",
        listed,
        "pass --trim-primers, or cut" if of_model else "cut",
    )
