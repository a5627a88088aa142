"""The region of a table: the profile of its ASVs, with which other tables are compared, and samples
of another region.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import block_array
from scipy.sparse.csgraph import connected_components

from aam.data.primers import LETTER_BITS, MISMATCHES, POSITIONS, PRIMERS, SPACER, first_bases
from aam.data.tokens import A, C, G, T
from aam.errors import InputError, reworded
from aam.files.tensors import ArraySpec, check_arrays
from aam.io.sequences import first_not_dna
from aam.io.tables import AmpliconTable
from aam.typing import Array, Bools, Floats, Hashes, Tokens

log = logging.getLogger("aam")

PROFILE_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
# Share of uniform noise in the base frequencies, so that one base never seen costs 5.3 nats and not
# infinity.
ERROR_RATE = 0.02
# No sequence of an amplicon is longer.
MOST_BASES = 1e6
# Nats per base below the training mean at which an ASV no longer fits. Mean of five 16S V4 studies:
# ASVs of another study lie at most 0.23 below, those shifted by one base 2.0 and more, the other
# strand 2.7 and more.
MISFIT = 1.0
# Differences of reads from training and their remedies; the shares of a sample and of a table above
# which they are named. Held-out subjects of infants and mackerel had up to 0.04 of their reads in
# ASVs of their own, held-out seasons up to 0.09, held-out studies of the mouth up to 0.05.
UNLIKE = {
    "length": ("have a length outside that of the training ASVs", "trim both in the same way"),
    "reversed": ("look reverse-complemented", "reverse-complement them and run again"),
    "elsewhere": ("look like another region than training", "use reads of the same primers"),
    "unseen": ("are of ASVs that were not in the training table", "predictions are less reliable"),
}
MOST_OF_SAMPLE = {"length": 0.05, "reversed": 0.05, "elsewhere": 0.25, "unseen": 0.5}
MOST_OF_TABLE = {**MOST_OF_SAMPLE, "unseen": 0.2}
# Samples that share no feature with the others from which they are named, and the share of a
# sample's reads from which a feature belongs to it.
LEAST_OF_REGION, LEAST_SHARED = 3, 0.001


# Arrays of a saved profile; those of hashes are sorted as they are read.
ARRAYS = {
    "length_quantiles": ArraySpec("f8", (len(PROFILE_QUANTILES),), 0, MOST_BASES, sorted=True),
    "frequencies": ArraySpec("f8", (POSITIONS, 4), 0, 1),
    "log_likelihood": ArraySpec("f8", (), math.log(ERROR_RATE / 4), 0),
    "hashes": ArraySpec("i8", ("ASVs",)),
}
HASHES = ArraySpec("u8", ("ASVs",), sorted=True)


def _hashes(sequences: Sequence[str]) -> Hashes:
    digests = b"".join(hashlib.blake2b(s.encode(), digest_size=8).digest() for s in sequences)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


@dataclass(frozen=True, eq=False)
class RegionProfile:
    """Profile of the training ASVs, each counted once.

    `length_quantiles` float64 [5] in nucleotides; `frequencies` float64 [50, 4] of A, C, G and T at
    the first positions; `log_likelihood` float64 [], mean per base of the ASVs in nats; `hashes`
    uint64 [F], ascending.
    """

    length_quantiles: Floats
    frequencies: Floats
    log_likelihood: Floats
    hashes: Hashes

    @classmethod
    def fit(cls, sequences: Sequence[str]) -> RegionProfile:
        """Make the profile of at least one training sequence (clean DNA), or of the names of
        features without sequences.
        """
        hashes, frequencies = np.sort(_hashes(sequences)), np.full((POSITIONS, 4), 0.25)
        profile = cls(np.zeros(len(PROFILE_QUANTILES)), frequencies, np.array(0.0), hashes)
        if any(map(first_not_dna, sequences)):
            return profile
        starts = first_bases(sequences)
        counts = np.stack([(starts == base).sum(axis=0) for base in (A, C, G, T)], axis=1)
        total = counts.sum(axis=1, keepdims=True)
        np.divide(counts, total, out=frequencies, where=total > 0)
        likelihood = np.array(profile._likelihood(starts).mean())
        return cls(
            np.quantile([*map(len, sequences)], PROFILE_QUANTILES), frequencies, likelihood, hashes
        )

    @property
    def has_sequences(self) -> bool:
        """Whether training knew the sequences of features, and not only their names."""
        return bool(self.length_quantiles[-1] > 0)

    def check_names(self, table: AmpliconTable) -> None:
        """Raise `InputError` where a model knows features by name and the table by sequence, or the
        other way round.
        """
        if self.has_sequences == bool(table.sequences) or not table.feature_ids:
            return
        known = "sequence" if self.has_sequences else "name"
        fault = f"the model knows features by {known}, and this table has features such as"
        remedy = "pass --sequences where training knew sequences, and leave it out where not"
        raise InputError(f"{fault} {table.names[0][:60]!r}; {remedy}")

    def _likelihood(self, starts: Tokens) -> Floats:
        """Mean log-likelihood per base of each row; 0 for a row without a known base."""
        total, bases = np.zeros(len(starts)), ((starts >= A) & (starts <= T)).sum(axis=1)
        for at, shares in enumerate((1 - ERROR_RATE) * self.frequencies + ERROR_RATE / 4):
            # Padding, unknown bases and masks count 0.
            total += np.array([0, *np.log(shares), 0, 0])[starts[:, at]]
        return np.asarray(total / np.maximum(bases, 1))

    @property
    def holds_primer(self) -> bool:
        """Whether most training ASVs begin with a primer: their base frequencies fit one."""
        for primer in PRIMERS.values():
            allowed = np.array([[LETTER_BITS[x] >> base & 1 for base in range(4)] for x in primer])
            parts = [self.frequencies[at : at + len(primer)] for at in range(SPACER + 1)]
            if max((part * allowed).sum() for part in parts) >= len(primer) - MISMATCHES:
                return True
        return False

    def unseen(self, names: Sequence[str]) -> Bools:
        """Whether training lacks each sequence or name of a feature, bool [F]."""
        # The hashes are sorted already; np.isin would sort them again.
        hashes = _hashes(names)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.asarray(self.hashes[places] != hashes)

    def flags(self, sequences: Sequence[str]) -> dict[str, Bools]:
        """Flag sequences, bool [F], with another length, strand or region, or not seen before."""
        flags = dict.fromkeys(UNLIKE, np.zeros(len(sequences), bool))
        flags["unseen"] = self.unseen(sequences)
        if self.has_sequences and not any(map(first_not_dna, sequences)):
            lengths, least = np.array([*map(len, sequences)]), self.log_likelihood - MISFIT
            shortest, *_, longest = self.length_quantiles
            strands = (first_bases(sequences, other_strand) for other_strand in (False, True))
            flags["length"] = (lengths < shortest) | (lengths > longest)
            fits, other_fits = (self._likelihood(starts) > least for starts in strands)
            flags["reversed"], flags["elsewhere"] = ~fits & other_fits, ~fits & ~other_fits
        return flags

    def shares_of_samples(self, table: AmpliconTable) -> dict[str, Floats]:
        """Shares of each sample's reads, float64 [N], in ASVs that `flags` names."""
        flags, depths = self.flags(table.names), np.maximum(table.depths, 1)
        share = {name: np.zeros(len(depths)) for name in flags}
        for rows, counts in table.blocks():
            for name, values in flags.items():
                share[name][rows] = np.asarray(counts @ values.astype(np.int64)) / depths[rows]
        return share

    def compare(self, table: AmpliconTable, kinds: Collection[str] = UNLIKE.keys()) -> list[str]:
        """Write a sentence for each way in which the reads of a table differ from training."""
        shares = self.shares_of_samples(table)
        mean = {name: np.average(shares[name], weights=table.depths) for name in kinds}
        kinds = [name for name, share in mean.items() if share > MOST_OF_TABLE[name]]
        return [f"{mean[x]:.0%} of the reads {'; '.join(UNLIKE[x])}" for x in kinds]

    def compare_samples(self, table: AmpliconTable) -> tuple[str, ...]:
        """Note for each sample of a table how its reads differ from training, or ''.

        A table of good samples hides a bad one, so each is judged by itself; a sample with training
        ASVs only is not unlike them.
        """
        notes, share = [""] * len(table), self.shares_of_samples(table)
        for name, (text, _) in UNLIKE.items():
            large = (share[name] > MOST_OF_SAMPLE[name]) & (share["unseen"] > 0)
            for row in np.flatnonzero(large):
                note = f"{share[name][row]:.0%} of its reads {text}"
                notes[row] += f"; {note}" if notes[row] else note
        return tuple(notes)

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The profile as named arrays, without uint64, which some versions of safetensors cannot
        write.
        """
        return {**asdict(self), "hashes": self.hashes.view(np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> RegionProfile:
        """Rebuild the profile of `to_arrays`; `InputError` if they are not as `ARRAYS` says."""
        with reworded((ValueError,), "the model's region profile is damaged"):
            check_arrays(arrays, ARRAYS)
            hashes = arrays["hashes"].view(np.uint64)
            check_arrays({"hashes": hashes}, {"hashes": HASHES})
            if not np.allclose(arrays["frequencies"].sum(axis=1), 1):
                raise ValueError("frequencies do not sum to 1")
        return cls(**{**arrays, "hashes": hashes})


def warn_of_regions(table: AmpliconTable) -> None:
    """Warn of at least `LEAST_OF_REGION` samples that share no feature with most others, also by
    way of further samples, as those of another region, strand or length do.

    A feature of less than `LEAST_SHARED` of the reads of a sample may have strayed there.
    """
    depths = np.repeat(table.depths, np.diff(table.counts.indptr))
    present = table.counts.copy()
    present.data = (table.counts.data >= LEAST_SHARED * depths).astype(np.uint8)
    present.eliminate_zeros()
    graph = block_array([[None, present], [present.T, None]], format="csr")
    part = connected_components(graph, directed=False)[1][: len(table)]
    sizes = np.bincount(part)
    if (is_other := (sizes[part] >= LEAST_OF_REGION) & (part != sizes.argmax())).any():
        log.warning(
            "warning: %d of %d samples, such as %r, share no feature with the others: are they of "
            "another region, strand or length? Then a model tells them apart by their primers "
            "alone: train on one region, or name the column of the studies with --study-column",
            *(is_other.sum(), len(table), table.sample_ids[int(is_other.argmax())]),
        )
