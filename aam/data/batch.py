"""The batch: the one type that travels from the loader to the losses.

Legend for shapes everywhere: B samples, S ASVs per sample, U unique ASVs, L nucleotides, D width,
T numeric targets, K class targets, C categorical columns, N numeric covariates. With several ranks,
all_B and all_U are the samples and unique ASVs of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from aam.device.measure import stage
from aam.device.shapes import Float, Int64, UInt8


@dataclass(frozen=True)
class Ranks:
    """Division of a batch among ranks.

    Attributes
    ----------
    rank : int
        This one.
    samples, asvs : tuple of int
        Samples and distinct ASVs of each rank, one rank after the other; empty with a single rank.
    """

    rank: int = 0
    samples: tuple[int, ...] = ()
    asvs: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """Index of the first sample of this rank among those of all."""
        return sum(self.samples[: self.rank])

    @property
    def own_samples(self) -> slice:
        """The samples of this rank among those of all."""
        return _stretch(self.samples, self.rank)

    @property
    def own_asvs(self) -> slice:
        """The distinct ASVs that this rank encodes among those of all."""
        return _stretch(self.asvs, self.rank)


def _stretch(sizes: tuple[int, ...], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1])) if sizes else slice(None)


@dataclass(frozen=True)
class Batch:
    """Samples that are trained or predicted together, each distinct ASV held once.

    Attributes
    ----------
    tokens : uint8 [U, L]
        The distinct ASVs, padded to the longest of them; with several ranks those that this one
        encodes.
    asv : int64 [B, S]
        Which of the distinct ASVs each ASV of each sample is; 0 where `counts` is 0.
    counts : float32 [B, S]
        Rarefied reads; 0 is padding.
    distance : float32 or float64 [B, all_B], optional
        UniFrac between the samples, from the rarefied counts of this very batch; with several ranks
        between the samples of this rank and those of all.
    target : float32 [B, T], optional
        Transformed numeric columns, NaN where missing.
    label : int64 [B, K], optional
        Class columns, -1 where missing.
    category, covariate, weight : int64 [B, C], float32 [B, N], float32 [B], optional
        Conditioning and loss weights; category 0 is unknown, a covariate NaN where missing.
    column, key : int64 [all_U], optional
        Column of each distinct ASV in the table, for vectors that were computed beforehand, and its
        `asv_keys`.
    reference : float32 [B, E], optional
        Numbers of each sample on the reference of a plugin (`aam.data.study`).
    sizes : tuple of int
        ASVs of each sample, on the host; samples stand in descending order of it.
    padded : bool
        Whether a row of `tokens` is shorter than L.
    sample_ids : tuple of str
    ranks : Ranks
        How samples and ASVs are divided among several ranks.
    """

    tokens: UInt8[Tensor, "U L"]
    asv: Int64[Tensor, "B S"]
    counts: Float[Tensor, "B S"]
    distance: Float[Tensor, "B all_B"] | None = None
    target: Float[Tensor, "B T"] | None = None
    label: Int64[Tensor, "B K"] | None = None
    category: Int64[Tensor, "B C"] | None = None
    covariate: Float[Tensor, "B N"] | None = None
    weight: Float[Tensor, " B"] | None = None
    column: Int64[Tensor, " all_U"] | None = None
    key: Int64[Tensor, " all_U"] | None = None
    reference: Float[Tensor, "B E"] | None = None
    sizes: tuple[int, ...] = ()
    padded: bool = False
    sample_ids: tuple[str, ...] = ()
    ranks: Ranks = field(default_factory=Ranks)

    def _tensors(self) -> dict[str, Tensor]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @stage("transfer")
    def to(self, device: torch.device) -> Batch:
        """Return a copy on `device`."""
        moved = {
            name: value.to(device, non_blocking=True) for name, value in self._tensors().items()
        }
        return replace(self, **moved)  # type: ignore[arg-type]
