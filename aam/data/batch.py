"""Nucleotides as tokens, and the batch: the one type that travels from the loader to the losses.

Legend for shapes everywhere: B samples, S ASVs per sample, U unique ASVs, L nucleotides, D width,
T numeric targets, K class targets, C categorical columns, N numeric covariates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.errors import InputError

PAD, A, C, G, T, N, MASK = range(7)

Tokens = npt.NDArray[np.uint8]


def _code() -> Tokens:
    code = np.zeros(256, dtype=np.uint8)
    for letters, token in (("Aa", A), ("Cc", C), ("Gg", G), ("TtUu", T), ("NRYSWKMBDHVnryswkmbdhv", N)):
        code[np.frombuffer(letters.encode("ascii"), dtype=np.uint8)] = token
    return code


CODE = _code()
COMPLEMENT = np.array([PAD, T, G, C, A, N, MASK], dtype=np.uint8)


def encode(sequences: Sequence[str]) -> Tokens:
    """Tokens of DNA sequences, uint8 [F, L], padded to the longest with `PAD`.

    U is read as T, IUPAC letters other than ACGTU as `N`.

    Raises `InputError`: a character that is no nucleotide letter, gaps included.
    """
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    flat = CODE[np.frombuffer("".join(sequences).encode("ascii", "replace"), dtype=np.uint8)]
    if not flat.all():
        place = int(np.argmin(flat))
        row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        letter = sequences[row][place - int(lengths[:row].sum())]
        where = f"sequence {row + 1} ({sequences[row][:20]}...)"
        raise InputError(f"{where} holds {letter!r}, expected nucleotides")
    tokens = np.zeros((len(sequences), int(lengths.max(initial=0))), dtype=np.uint8)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = flat
    return tokens


def reverse_complement(tokens: Tokens) -> Tokens:
    """The other strand of each row [F, L]; padding stays at the end."""
    lengths = (tokens != PAD).sum(axis=1)
    source = lengths[:, None] - 1 - np.arange(tokens.shape[1])
    turned = COMPLEMENT[np.take_along_axis(tokens, np.maximum(source, 0), axis=1)]
    turned[source < 0] = PAD
    return turned


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


GOLDEN = -7046029254386353131


def mixed(x: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014) on int64, whose products wrap."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def asv_keys(tokens: Tensor) -> Tensor:
    """A hash ``int64 [U]`` of each row of `tokens` that padding does not change."""
    position = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return mixed((tokens.long() * (mixed(position * GOLDEN) | 1)).sum(dim=1))


@dataclass(frozen=True)
class Batch:
    """Samples that are trained or predicted together, each distinct ASV held once.

    Attributes
    ----------
    tokens : uint8 [U, L]
        The distinct ASVs, padded to the longest of them; with several ranks those that this one encodes.
    asv : int64 [B, S]
        Which of the distinct ASVs each ASV of each sample is; 0 where `counts` is 0.
    counts : float32 [B, S]
        Rarefied reads; 0 is padding.
    distance : float32 or float64 [B, B], optional
        UniFrac between the samples, from the rarefied counts of this very batch; with several ranks between its own
        samples and those of all ranks.
    faith_pd : float32 [B], optional
        Faith PD of the same draw.
    target : float32 [B, T], optional
        Transformed numeric columns, NaN where missing.
    label : int64 [B, K], optional
        Class columns, -1 where missing.
    category, covariate, weight : int64 [B, C], float32 [B, N], float32 [B], optional
            Conditioning and loss weights; category 0 is unknown, a covariate NaN where missing.
        column, key : int64 [U], optional
        Column of each distinct ASV in the table, for vectors that were computed beforehand, and its `asv_keys`;
        with several ranks of the ASVs of all.
        sizes : tuple of int
        ASVs of each sample, known on the host; samples stand in descending order of it.
    padded : bool
        Whether a row of `tokens` is shorter than L.
    rank : int
    samples_by_rank, asvs_by_rank : tuple of int
        Samples and distinct ASVs of each rank, one rank after the other; empty for a batch that is whole.
    sample_ids : tuple of str
    """

    tokens: Tensor
    asv: Tensor
    counts: Tensor
    distance: Tensor | None = None
    faith_pd: Tensor | None = None
    target: Tensor | None = None
    label: Tensor | None = None
    category: Tensor | None = None
    covariate: Tensor | None = None
    weight: Tensor | None = None
    column: Tensor | None = None
    key: Tensor | None = None
    sizes: tuple[int, ...] = ()
    padded: bool = False
    sample_ids: tuple[str, ...] = ()
    rank: int = 0
    samples_by_rank: tuple[int, ...] = ()
    asvs_by_rank: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """Where its first sample stands among those of all ranks."""
        return sum(self.samples_by_rank[: self.rank])

    @property
    def own(self) -> slice:
        """Which of the distinct ASVs `tokens` holds."""
        start = sum(self.asvs_by_rank[: self.rank])
        return slice(start, start + len(self.tokens))

    def work(self, patch: int) -> int:
        """Tokens that each block reads: patches of the distinct ASVs that are held, and slots of the samples."""
        return len(self.tokens) * -(-self.tokens.shape[1] // patch) + sum(self.sizes)

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device) -> Batch:
        """A copy on `device`."""
        moved = {name: value.to(device, non_blocking=True) for name, value in self._tensors().items()}
        return replace(self, **moved)  # type: ignore[arg-type]


class Budget(NamedTuple):
    """Bytes of a step by the size of its batch, as measured on a machine, and the most that one may take.

    `base` bytes, `token` for each base of the distinct ASVs [U, L], and `slot` for each slot of the samples [B, S].
    """

    base: float
    token: float
    slot: float
    most: float

    def allows(self, batch: Batch) -> bool:
        """Whether a step on `batch` stays below the most."""
        return bool(self.base + self.token * batch.tokens.numel() + self.slot * batch.asv.numel() <= self.most)
