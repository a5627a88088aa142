"""What is read off the vectors: UniFrac, Faith PD, counts, numeric and class targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class HeadConfig:
    """Which heads a model carries: the UniFrac metric (or none), counts, and the target columns.

    `scale` holds mean and standard deviation of that distance, or of Faith PD, in the training samples.
    """

    metric: str | None = None
    scale: tuple[float, float] = (0.0, 1.0)
    counts: bool = False
    n_targets: int = 0
    n_classes: tuple[int, ...] = ()


class DistanceHead(nn.Module):
    """Predicted UniFrac from sample vectors: a learned monotone map of their Euclidean distance.

    With x the distance over a learned scale and p > 0 a learned power, the prediction is
    ``1 - exp(-x^p)`` for metrics that end at 1 and ``x^p`` for unnormalized weighted UniFrac.
    """

    def __init__(self, width: int, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, width)
        self.log_scale = nn.Parameter(torch.tensor(float(2 * width)).log() / 2)
        self.log_power = nn.Parameter(torch.zeros(()))

    def vectors(self, samples: Tensor) -> Tensor:
        """The vectors ``[B, D]`` whose distances are meant."""
        return self.project(self.norm(samples))  # type: ignore[no-any-return]

    def forward(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Distances ``[R, C]`` between projected vectors ``[R, D]`` and ``[C, D]``."""
        # Differences first: as squares and a product, near samples would differ by rounding alone.
        apart = torch.cdist(rows.float(), columns.float(), compute_mode="donot_use_mm_for_euclid_dist")
        x = torch.exp(self.log_power.exp() * (apart.clamp_min(1e-3).log() - self.log_scale))
        return -torch.expm1(-x) if self.bounded else x


class Readout(nn.Module):
    """A two-layer head from ``[..., D]`` to ``[..., out]``; its last layer starts near zero."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, out)
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Read ``[..., out]`` off ``[..., D]``."""
        return self.out(F.gelu(self.hidden(self.norm(x)), approximate="tanh"))  # type: ignore[no-any-return]
