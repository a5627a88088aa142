"""The region of a table's ASVs: their lengths, first bases and strand, compared with those of training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.tokens import A, C, G, T, Tokens, encode, reverse_complement
from aam.errors import InputError

POSITIONS = 50

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

# Share of uniform noise in the base frequencies, so that one base never seen costs 5.3 nats and not infinity.
NOISE = 0.02

# Nats per base below the training mean at which an ASV no longer fits. Mean of five 16S V4 studies: ASVs of
# another study lie at most 0.23 below, those shifted by one base 2.0 and more, the other strand 2.7 and more.
MISFIT = 1.0

# Shares of ASVs above which there is a warning.
MOST_REVERSED, MOST_ELSEWHERE, MOST_ODD_LENGTH, MOST_UNSEEN = 0.05, 0.25, 0.05, 0.5


def _hashes(sequences: Sequence[str]) -> npt.NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(s.encode("ascii"), digest_size=8).digest() for s in sequences)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _starts(sequences: Sequence[str]) -> Tokens:
    """The first `POSITIONS` bases of each sequence, [F, POSITIONS]."""
    tokens = encode([sequence[:POSITIONS] for sequence in sequences])
    return np.pad(tokens, ((0, 0), (0, POSITIONS - tokens.shape[1])))


def _log_likelihood(starts: Tokens, frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean log-likelihood per base of each row, in nats; 0 for a row without a known base."""
    known = (starts >= A) & (starts <= T)
    log = np.log((1 - NOISE) * frequencies + NOISE / 4)
    each = np.where(known, log[np.arange(POSITIONS), np.where(known, starts - 1, 0)], 0.0)
    return np.asarray(each.sum(axis=1) / np.maximum(known.sum(axis=1), 1))


@dataclass(frozen=True, eq=False)
class RegionProfile:
    """What the training ASVs look like, each counted once.

    `length_quantiles` float64 [5] in nucleotides; `frequencies` float64 [50, 4] of A, C, G and T at the first
    positions; `log_likelihood` float64 [], mean per base of the ASVs in nats; `hashes` uint64 [F], ascending.
    """

    length_quantiles: npt.NDArray[np.float64]
    frequencies: npt.NDArray[np.float64]
    log_likelihood: npt.NDArray[np.float64]
    hashes: npt.NDArray[np.uint64]

    @classmethod
    def fit(cls, sequences: Sequence[str]) -> RegionProfile:
        """The profile of at least one training sequence (clean DNA)."""
        starts = _starts(sequences)
        seen = np.stack([(starts == base).sum(axis=0) for base in (A, C, G, T)], axis=1)
        total = seen.sum(axis=1, keepdims=True)
        frequencies = np.where(total > 0, seen / np.maximum(total, 1), 0.25)
        return cls(
            length_quantiles=np.quantile(list(map(len, sequences)), QUANTILES),
            frequencies=frequencies,
            log_likelihood=np.array(_log_likelihood(starts, frequencies).mean()),
            hashes=np.sort(_hashes(sequences)),
        )

    def compare(self, sequences: Sequence[str]) -> list[str]:
        """One sentence for each way in which new sequences (clean DNA) differ from the training ones."""
        if not sequences:
            return []
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        shortest, low, _, high, longest = self.length_quantiles
        least = float(self.log_likelihood) - MISFIT
        ends = reverse_complement(encode([sequence[-POSITIONS:] for sequence in sequences]))
        other = np.pad(ends, ((0, 0), (0, POSITIONS - ends.shape[1])))
        starts = (_starts(sequences), other)
        fits, turned = (_log_likelihood(each, self.frequencies) > least for each in starts)
        odd = float(((lengths < shortest) | (lengths > longest)).mean())
        reversed_, elsewhere = float((~fits & turned).mean()), float((~fits & ~turned).mean())
        unseen = float((~np.isin(_hashes(sequences), self.hashes)).mean())
        median = float(np.median(lengths))
        found = {
            f"the ASVs have another length: median {median:.0f} nucleotides, {odd:.0%} outside the "
            f"{shortest:.0f} to {longest:.0f} of the training ASVs; were both trimmed alike?": (
                odd > MOST_ODD_LENGTH or not low <= median <= high
            ),
            f"{reversed_:.0%} of the ASVs look reverse-complemented: their other strand fits the training "
            "ASVs, they do not; turn them round and predict again": reversed_ > MOST_REVERSED,
            f"{elsewhere:.0%} of the ASVs look like another region than the training ASVs, or begin at "
            "another base; were the same primers used and removed?": elsewhere > MOST_ELSEWHERE,
            f"{unseen:.0%} of the {len(sequences)} ASVs were not in the training table; predictions for "
            "samples made of them are extrapolated": unseen > MOST_UNSEEN,
        }
        return [sentence for sentence, said in found.items() if said]

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The profile as named arrays, for safetensors, not every version of which writes uint64."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**found, "hashes": found["hashes"].view(np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> RegionProfile:
        """Rebuild what `to_arrays` gave; `InputError` when an array is missing or has another shape."""
        known = {"length_quantiles": (5,), "frequencies": (POSITIONS, 4), "log_likelihood": ()}
        shapes = {**known, "hashes": None}
        for name, shape in shapes.items():
            found = arrays[name].shape if name in arrays else None
            if found is None or (shape is not None and found != shape):
                raise InputError(f"the model's region profile is damaged: {name} is {found}, not {shape}")
        return cls(**{**{name: arrays[name] for name in shapes}, "hashes": arrays["hashes"].view(np.uint64)})
