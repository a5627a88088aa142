"""The region of a table's ASVs, compared with that of training: lengths, first bases, strand; and
primers of 16S.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.table import make_table
from aam.data.tokens import A, C, G, T, Tokens, encode, in_parts, reverse_complement
from aam.errors import InputError
from aam.io.fasta import first_not_dna
from aam.io.tables import AmpliconTable

log = logging.getLogger("aam")

Ints = npt.NDArray[np.int64]

POSITIONS = 50

# Sequences that are looked at together.
AT_ONCE = 1 << 14

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

# Share of uniform noise in the base frequencies, so that one base never seen costs 5.3 nats and not
# infinity.
NOISE = 0.02

# Nats per base below the training mean at which an ASV no longer fits. Mean of five 16S V4 studies:
# ASVs of another study lie at most 0.23 below, those shifted by one base 2.0 and more, the other
# strand 2.7 and more.
MISFIT = 1.0

# Shares of ASVs, or of the reads of a sample, above which there is a warning.
MOST_REVERSED, MOST_ELSEWHERE, MOST_ODD_LENGTH, MOST_UNSEEN = 0.05, 0.25, 0.05, 0.5

# The same of the reads of a table. Held-out subjects of infants and mackerel had up to .04 of their
# reads in ASVs of their own, held-out seasons up to .09, held-out studies of the mouth up to .05,
# though up to .73 of their ASVs.
MOST_UNSEEN_READS = 0.2

SAMPLE_NOTES = {
    "length": (
        MOST_ODD_LENGTH,
        "{:.0%} of its reads have a length outside that of the training ASVs",
    ),
    "reversed": (MOST_REVERSED, "{:.0%} of its reads look reverse-complemented"),
    "elsewhere": (
        MOST_ELSEWHERE,
        "{:.0%} of its reads look like another region than the training ASVs",
    ),
    "unseen": (MOST_UNSEEN, "{:.0%} of its reads are of ASVs that were not in the training table"),
}


def _hashes(sequences: Sequence[str]) -> npt.NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(s.encode(), digest_size=8).digest() for s in sequences)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _are_dna(names: Sequence[str]) -> bool:
    return not any(map(first_not_dna, names))


def _starts(sequences: Sequence[str]) -> Tokens:
    """Return the first `POSITIONS` bases of each sequence, uint8 [F, POSITIONS]."""
    tokens = encode([sequence[:POSITIONS] for sequence in sequences])
    return np.pad(tokens, ((0, 0), (0, POSITIONS - tokens.shape[1])))


def _log_likelihood(
    starts: Tokens, frequencies: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the mean log-likelihood per base of each row, in nats; 0 for a row without a known
    base.
    """
    is_base = (starts >= A) & (starts <= T)
    log = np.log((1 - NOISE) * frequencies + NOISE / 4)
    by_position = np.where(
        is_base, log[np.arange(POSITIONS), np.where(is_base, starts - 1, 0)], 0.0
    )
    return np.asarray(by_position.sum(axis=1) / np.maximum(is_base.sum(axis=1), 1))


@dataclass(frozen=True, eq=False)
class RegionProfile:
    """What the training ASVs look like, each counted once.

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
        if not _are_dna(sequences):
            names = np.sort(_hashes(sequences))
            return cls(np.zeros(5), np.full((POSITIONS, 4), 0.25), np.array(0.0), names)
        seen = np.zeros((POSITIONS, 4), np.int64)
        lengths, hashes = [], []
        for some in in_parts(sequences, AT_ONCE):
            starts = _starts(some)
            seen += np.stack([(starts == base).sum(axis=0) for base in (A, C, G, T)], axis=1)
            lengths += list(map(len, some))
            hashes.append(_hashes(some))
        total = seen.sum(axis=1, keepdims=True)
        frequencies = np.where(total > 0, seen / np.maximum(total, 1), 0.25)
        parts = in_parts(sequences, AT_ONCE)
        likelihood = np.concatenate([_log_likelihood(_starts(some), frequencies) for some in parts])
        return cls(
            length_quantiles=np.quantile(lengths, QUANTILES),
            frequencies=frequencies,
            log_likelihood=np.array(likelihood.mean()),
            hashes=np.sort(np.concatenate(hashes)),
        )

    def compare(self, sequences: Sequence[str], reads: Ints | None = None) -> list[str]:
        """Return one sentence for each way in which new sequences (clean DNA) differ from the
        training ones.

        `reads` int64 [F] are those of each; all have as many where they are not given.
        """
        if not sequences:
            return []
        of_dna = self.length_quantiles[-1] > 0
        shortest, low, _, high, longest = self.length_quantiles
        flags = self._flags(sequences)
        share = {name: float(values.mean()) for name, values in flags.items()}
        unseen_reads = float(np.average(flags["unseen"], weights=reads))
        median = float(np.median(list(map(len, sequences))))
        applies = {
            f"the ASVs have another length: median {median:.0f} nucleotides, "
            f"{share['length']:.0%} outside the "
            f"{shortest:.0f} to {longest:.0f} of the training ASVs; were both trimmed alike?": (
                share["length"] > MOST_ODD_LENGTH or (of_dna and not low <= median <= high)
            ),
            f"{share['reversed']:.0%} of the ASVs look reverse-complemented: their other strand "
            "fits the training ASVs, they do not; reverse-complement them and run again": share[
                "reversed"
            ]
            > MOST_REVERSED,
            f"{share['elsewhere']:.0%} of the ASVs look like another region than the training "
            "ASVs, or begin at "
            "another base; were the same primers used and removed?": share["elsewhere"]
            > MOST_ELSEWHERE,
            f"{share['unseen']:.0%} of the {len(sequences)} ASVs, with {unseen_reads:.0%} of the "
            "reads, were not in "
            "the training table; of samples of the same kind it is a tenth of the reads at most, "
            "so expect less": (share["unseen"] > MOST_UNSEEN and unseen_reads > MOST_UNSEEN_READS),
        }
        return [sentence for sentence, holds in applies.items() if holds]

    @property
    def holds_primer(self) -> bool:
        """Whether most training ASVs begin with a primer: their base frequencies fit one."""
        for primer in PRIMERS.values():
            allowed = np.array(
                [[LETTERS[letter] >> base & 1 for base in range(4)] for letter in primer]
            )
            for start in range(SPACER + 1):
                fits = (self.frequencies[start : start + len(primer)] * allowed).sum(axis=1)
                if len(primer) - fits.sum() <= MISMATCHES:
                    return True
        return False

    def shares(self, sequences: Sequence[str]) -> dict[str, float]:
        """Return the share of new sequences that have another length, strand or region, or were not
        seen, by name.
        """
        return {name: float(values.mean()) for name, values in self._flags(sequences).items()}

    def fitting(self, sequences: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which sequences are of the training ASVs' region and strand, bool [F]."""
        flags = self._flags(sequences)
        return ~(flags["elsewhere"] | flags["reversed"])

    def shares_of_samples(self, table: AmpliconTable) -> dict[str, npt.NDArray[np.float64]]:
        """Return the shares of each sample's reads, float64 [N], in ASVs that `shares` names."""
        flags = self._flags(table.names)
        depths = np.maximum(table.depths, 1)
        share = {name: np.zeros(len(depths)) for name in flags}
        for rows, counts in table.blocks():
            for name, values in flags.items():
                share[name][rows] = np.asarray(counts @ values.astype(np.int64)) / depths[rows]
        return share

    def compare_samples(self, table: AmpliconTable) -> tuple[str, ...]:
        """Return a note for each sample of a table, by its reads: how its ASVs differ from the
        training ones, or ''.

        A table of good samples hides a bad one, so each is judged by itself, by the thresholds of
        `compare`; one that has training ASVs alone is not unlike them.
        """
        share = self.shares_of_samples(table)
        notes = []
        for row in range(len(table.sample_ids)):
            new = share["unseen"][row] > 0
            shares = ((share[name][row], most, text) for name, (most, text) in SAMPLE_NOTES.items())
            reasons = [text.format(value) for value, most, text in shares if new and value > most]
            notes.append("; ".join(reasons))
        return tuple(notes)

    def _flags(self, sequences: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
        """Return which sequences, bool [F] each, have another length, strand or region, or were not
        seen.
        """
        parts = [self._flags_of(some) for some in in_parts(sequences, AT_ONCE)]
        return {name: np.concatenate([part[name] for part in parts]) for name in SAMPLE_NOTES}

    def _flags_of(self, sequences: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
        unseen = ~self._seen(_hashes(sequences))
        if self.length_quantiles[-1] == 0 or not _are_dna(sequences):
            never = np.zeros(len(sequences), bool)
            return {"length": never, "reversed": never, "elsewhere": never, "unseen": unseen}
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        shortest, longest = self.length_quantiles[[0, -1]]
        least = float(self.log_likelihood) - MISFIT
        ends = reverse_complement(encode([sequence[-POSITIONS:] for sequence in sequences]))
        other_strand = np.pad(ends, ((0, 0), (0, POSITIONS - ends.shape[1])))
        fits = _log_likelihood(_starts(sequences), self.frequencies) > least
        other_fits = _log_likelihood(other_strand, self.frequencies) > least
        return {
            "length": (lengths < shortest) | (lengths > longest),
            "reversed": ~fits & other_fits,
            "elsewhere": ~fits & ~other_fits,
            "unseen": unseen,
        }

    def _seen(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which hashes are those of training ASVs; np.isin would sort these again for each
        part of a table.
        """
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.asarray(self.hashes[places] == hashes)

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the profile as named arrays, for safetensors, not every version of which writes
        uint64.
        """
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**arrays, "hashes": arrays["hashes"].view(np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RegionProfile:
        """Rebuild the profile of `to_arrays`; `InputError` when an array is missing or has another
        shape.
        """
        shapes = {
            "length_quantiles": (5,),
            "frequencies": (POSITIONS, 4),
            "log_likelihood": (),
            "hashes": None,
        }
        for name, expected in shapes.items():
            shape = arrays[name].shape if name in arrays else None
            if shape is None or (expected is not None and shape != expected):
                raise InputError(
                    f"the model's region profile is damaged: {name} is {shape}, not {expected}"
                )
        return cls(
            **{
                **{name: arrays[name] for name in shapes},
                "hashes": arrays["hashes"].view(np.uint64),
            }
        )


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

# Sequences that are searched together: the other strand of 3,000,000 of 150 bases takes 6.5 GB.
SEQUENCES_AT_ONCE = 65_536

# Share of the reads that hold a primer above which this is said.
MOST_WITH_PRIMER = 0.05

LETTERS = {
    "A": 1,
    "C": 2,
    "G": 4,
    "T": 8,
    "R": 5,
    "Y": 10,
    "S": 6,
    "W": 9,
    "K": 12,
    "M": 3,
    "B": 14,
    "D": 13,
    "H": 11,
    "V": 7,
    "N": 15,
}
# The same of tokens: none of padding, any of an unknown base.
BITS = np.array([0, 1, 2, 4, 8, 15, 0], np.uint8)

# The letters of the other strand: A for T, of several letters the one that means their complements.
OTHER_STRAND = str.maketrans("ACGTRYKMBDHV", "TGCAYRMKVHDB")


@dataclass(frozen=True, eq=False)
class FoundPrimers:
    """The primers at the ends of F sequences, as places in `PRIMERS` (-1 for none), and how many
    bases to cut there.
    """

    first: Ints
    last: Ints
    before: Ints
    after: Ints

    @property
    def any(self) -> npt.NDArray[np.bool_]:
        """Which sequences hold a primer, bool [F]."""
        return (self.first >= 0) | (self.last >= 0)


def mismatches(bits: Tokens, primer: str) -> Ints:
    """Return how many letters of a primer differ at each place that it fits into, [F, L - length +
    1].
    """
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
        misses = mismatches(BITS[tokens[:, : SPACER + len(primer)]], primer)
        if not misses.shape[1]:
            continue
        fits = (misses.min(axis=1) <= MISMATCHES) & (found < 0)
        found[fits] = number
        cut[fits] = misses[fits].argmin(axis=1) + len(primer)
    return found, cut


def find_primers(tokens: Tokens) -> FoundPrimers:
    """Return the primers with which sequences ``[F, L]`` begin, and those whose complement ends
    them.
    """
    parts = in_parts(tokens, SEQUENCES_AT_ONCE)
    first, before = map(np.concatenate, zip(*map(_at_start, parts), strict=True))
    last, after = map(
        np.concatenate, zip(*(_at_start(reverse_complement(part)) for part in parts), strict=True)
    )
    return FoundPrimers(first, last, before, after)


def without_primers(table: AmpliconTable) -> AmpliconTable:
    """Cut primers from ASVs; those that become identical are merged and their reads added."""
    found = find_primers(encode(table.sequences))
    ends = zip(table.sequences, found.before.tolist(), found.after.tolist(), strict=True)
    cut = [sequence[before : len(sequence) - after] or sequence for sequence, before, after in ends]
    log.info("primers cut from %d of %d ASVs", found.any.sum(), len(found.any))
    return make_table(table.counts, table.sample_ids, table.feature_ids, cut)


def warn_of_primers(table: AmpliconTable, of_model: bool) -> None:
    """Name the primers which reads still hold, and how many hold them; of a model an option cuts
    them.
    """
    if not table.sequences:
        return
    found = find_primers(encode(table.sequences))
    reads = np.asarray(table.counts.sum(axis=0)).ravel()
    held, total = int(reads[found.any].sum()), int(reads.sum())
    if held <= MOST_WITH_PRIMER * total:
        return
    names, sequences = list(PRIMERS), list(PRIMERS.values())
    number = Counter(int(at) for ends in (found.first, found.last) for at in ends if at >= 0)
    listed = ", ".join(
        f"{names[at]} ({sequences[at]}) in {asvs} ASVs" for at, asvs in number.most_common()
    )
    remedy = "pass --trim-primers, or cut" if of_model else "cut"
    log.warning(
        "warning: %s of %s reads (%s) still hold a primer: %s; %s primers before denoising "
        "(cutadapt)",
        f"{held:,}",
        f"{total:,}",
        f"{held / total:.0%}",
        listed,
        remedy,
    )
