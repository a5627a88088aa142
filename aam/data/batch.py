"""The batch: the one type that travels from the loader to the losses.

Legend for shapes everywhere: B samples, S ASVs per sample, U unique ASVs, L nucleotides, D width,
T numeric targets, K class targets, C categorical columns, N numeric covariates.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Samples that are trained or predicted together, each distinct ASV held once.

    Attributes
    ----------
    tokens : uint8 [U, L]
        The distinct ASVs, padded to the longest of them.
    asv : int64 [B, S]
        Row of `tokens` for each ASV of each sample; 0 where `counts` is 0.
    counts : float32 [B, S]
        Rarefied reads; 0 is padding.
    distance : float32 or float64 [B, B], optional
        UniFrac between the samples, from the rarefied counts of this very batch.
    faith_pd : float32 [B], optional
        Faith PD of the same draw.
    target : float32 [B, T], optional
        Transformed numeric columns, NaN where missing.
    label : int64 [B, K], optional
        Class columns, -1 where missing.
    category, covariate, weight : int64 [B, C], float32 [B, N], float32 [B], optional
        Conditioning and loss weights; category 0 is unknown.
    column : int64 [U], optional
        Column of each distinct ASV in the table, for vectors that were computed beforehand.
    sizes : tuple of int
        ASVs of each sample, known on the host; samples stand in descending order of it.
    padded : bool
        Whether a row of `tokens` is shorter than L.
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
    sizes: tuple[int, ...] = ()
    padded: bool = False
    sample_ids: tuple[str, ...] = ()

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device) -> Batch:
        """A copy on `device`."""
        moved = {name: value.to(device, non_blocking=True) for name, value in self._tensors().items()}
        return replace(self, **moved)  # type: ignore[arg-type]
