"""What is read off the vectors: UniFrac, Faith PD, counts, numeric and class targets."""

from __future__ import annotations

import math
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
        self.project = nn.Linear(width, width, bias=False)
        self.log_scale = nn.Parameter(torch.tensor([float(2 * width)]).log() / 2)
        self.log_power = nn.Parameter(torch.zeros(1))

    def vectors(self, samples: Tensor) -> Tensor:
        """The vectors ``[B, D]`` whose distances are meant."""
        return self.project(samples)  # type: ignore[no-any-return]

    @torch.no_grad()
    def standardize(self, samples: Tensor, mean: float) -> None:
        """Scale the map so that the predictions between these samples center on `mean`."""
        vectors = self.vectors(samples)
        typical = self._apart(vectors, vectors).median()
        mean = min(max(mean, 0.01), 0.99) if self.bounded else max(mean, 0.01)
        wanted = -math.log1p(-mean) if self.bounded else mean
        self.log_scale.copy_((typical / wanted).log())

    @staticmethod
    def _apart(rows: Tensor, columns: Tensor) -> Tensor:
        # Differences first: as squares and a product, near samples would differ by rounding alone.
        kind = torch.promote_types(rows.dtype, torch.float32)
        return torch.cdist(rows.to(kind), columns.to(kind), compute_mode="donot_use_mm_for_euclid_dist")

    def forward(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Distances ``[R, C]`` between projected vectors ``[R, D]`` and ``[C, D]``."""
        apart = self._apart(rows, columns).clamp_min(1e-3)
        x = torch.exp(self.log_power.exp() * (apart.log() - self.log_scale))
        return -torch.expm1(-x) if self.bounded else x


class Readout(nn.Module):
    """From ``[..., D]`` to ``[..., out]``: a linear model plus a two-layer correction that starts at zero."""

    def __init__(self, width: int, out: int, start: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, out, bias=False)
        nn.init.constant_(self.linear.bias, start)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Read ``[..., out]`` off ``[..., D]``."""
        return self.linear(x) + self.out(F.gelu(self.hidden(self.norm(x)), approximate="tanh"))  # type: ignore[no-any-return]
