"""The batch: the one type that travels from the loader to the losses.

Legend for shapes everywhere: B samples, S ASVs per sample, U unique ASVs, L nucleotides, D width,
T numeric targets, K class targets, C categorical columns, N numeric covariates. With several ranks, all_B and
all_U are the samples and unique ASVs of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from aam.device.shapes import Float, Int64, UInt8
from aam.device.timing import stage


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
    distance : float32 or float64 [B, all_B], optional
        UniFrac between the samples, from the rarefied counts of this very batch; with several ranks between the
        samples of this rank and those of all.
    faith_pd : float32 [B], optional
        Faith PD of the same rarefied counts.
    further : dict of str to tensor
        Further targets of pretraining by name, those of `aam.data.auxiliary_targets`.
    target : float32 [B, T], optional
        Transformed numeric columns, NaN where missing.
    label : int64 [B, K], optional
        Class columns, -1 where missing.
    category, covariate, weight : int64 [B, C], float32 [B, N], float32 [B], optional
        Conditioning and loss weights; category 0 is unknown, a covariate NaN where missing.
    column, key : int64 [all_U], optional
        Column of each distinct ASV in the table, for vectors that were computed beforehand, and its `asv_keys`.
    features : int64 [all_U, P], optional
        Branches and words of each distinct ASV (`ReferenceTree.place`), where the ASVs are placed on a tree.
    sizes : tuple of int
        ASVs of each sample, on the host; samples stand in descending order of it.
    padded : bool
        Whether a row of `tokens` is shorter than L.
    rank : int
    samples_by_rank, asvs_by_rank : tuple of int
        Samples and distinct ASVs of each rank, one rank after the other; empty with a single rank.
    sample_ids : tuple of str
    """

    tokens: UInt8[Tensor, "U L"]
    asv: Int64[Tensor, "B S"]
    counts: Float[Tensor, "B S"]
    distance: Float[Tensor, "B all_B"] | None = None
    faith_pd: Float[Tensor, " B"] | None = None
    further: dict[str, Tensor] = field(default_factory=dict)
    target: Float[Tensor, "B T"] | None = None
    label: Int64[Tensor, "B K"] | None = None
    category: Int64[Tensor, "B C"] | None = None
    covariate: Float[Tensor, "B N"] | None = None
    weight: Float[Tensor, " B"] | None = None
    column: Int64[Tensor, " all_U"] | None = None
    key: Int64[Tensor, " all_U"] | None = None
    features: Int64[Tensor, "all_U P"] | None = None
    sizes: tuple[int, ...] = ()
    padded: bool = False
    sample_ids: tuple[str, ...] = ()
    rank: int = 0
    samples_by_rank: tuple[int, ...] = ()
    asvs_by_rank: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """Index of the first sample among those of all ranks."""
        return sum(self.samples_by_rank[: self.rank])

    @property
    def asvs_of_rank(self) -> slice:
        """The distinct ASVs that `tokens` holds, among those of all ranks."""
        start = sum(self.asvs_by_rank[: self.rank])
        return slice(start, start + len(self.tokens))

    def work(self, patch: int) -> int:
        """Return the tokens that each block reads: patches of this rank's distinct ASVs, and ASVs of the samples."""
        return len(self.tokens) * -(-self.tokens.shape[1] // patch) + sum(self.sizes)

    def _tensors(self) -> dict[str, Tensor]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @stage("transfer")
    def to(self, device: torch.device) -> Batch:
        """Return a copy on `device`."""
        moved = {name: value.to(device, non_blocking=True) for name, value in self._tensors().items()}
        further = {name: value.to(device, non_blocking=True) for name, value in self.further.items()}
        return replace(self, further=further, **moved)  # type: ignore[arg-type]


class Budget(NamedTuple):
    """Bytes of a step by the size of its batch, as measured on a machine, and the limit of what one may take.

    `base` bytes, `token` for each base of the distinct ASVs [U, L], and `slot` for each slot of the samples [B, S].
    """

    base: float
    token: float
    slot: float
    limit: float

    def allows(self, batch: Batch) -> bool:
        """Return whether a step on `batch` stays within the limit."""
        return bool(self.base + self.token * batch.tokens.numel() + self.slot * batch.asv.numel() <= self.limit)
