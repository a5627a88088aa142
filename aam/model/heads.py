"""Heads: UniFrac, counts, numeric and class targets, and covariates before them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.config import CovariateConfig
from aam.data.batch import AnyBatch
from aam.device.shapes import Float

# Puts the rows of the other ranks next to those of this rank.
Gather = Callable[[Tensor, tuple[int, ...]], Tensor]

# Smallest Euclidean distance: the map of the distance head has no gradient at 0.
LEAST = 1e-3


@dataclass(frozen=True)
class HeadConfig:
    """Heads of a model: the UniFrac metric (or none), counts, and the target columns.

    `scale` holds mean and standard deviation of the distance in the training samples. `levels` are
    the categories of each covariate, unknown included; `numbers` counts the numeric covariates.
    """

    metric: str | None = None
    scale: tuple[float, float] = (0.0, 1.0)
    counts: bool = False
    n_targets: int = 0
    n_classes: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()
    numbers: int = 0
    covariates: CovariateConfig = field(default_factory=CovariateConfig)


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

    def vectors(self, samples: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return the vectors ``[B, D]`` whose distances are predicted."""
        return self.project(samples)  # type: ignore[no-any-return]

    @torch.no_grad()
    def standardize(self, vectors: Float[Tensor, "B D"], mean: float) -> None:
        """Scale the map so that the predictions between these `vectors` center on `mean`."""
        if len(vectors) < 2:
            return
        others = ~torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
        typical = self._euclidean(vectors, vectors)[others].median().clamp_min(LEAST)
        mean = min(max(mean, 0.01), 0.99) if self.bounded else max(mean, 0.01)
        wanted = -math.log1p(-mean) if self.bounded else mean
        self.log_scale.copy_((typical / wanted).log())

    @staticmethod
    def _euclidean(
        rows: Float[Tensor, "R D"], columns: Float[Tensor, "C D"]
    ) -> Float[Tensor, "R C"]:
        # Differences first: as squares and a product, near samples would differ by rounding alone.
        kind = torch.promote_types(rows.dtype, torch.float32)
        return torch.cdist(
            rows.to(kind), columns.to(kind), compute_mode="donot_use_mm_for_euclid_dist"
        )

    def forward(
        self, rows: Float[Tensor, "R D"], columns: Float[Tensor, "C D"]
    ) -> Float[Tensor, "R C"]:
        """Return distances ``[R, C]`` between projected vectors ``[R, D]`` and ``[C, D]``."""
        euclidean = self._euclidean(rows, columns).clamp_min(LEAST)
        x = torch.exp(self.log_power.exp() * (euclidean.log() - self.log_scale))
        return -torch.expm1(-x) if self.bounded else x


class Readout(nn.Module):
    """A linear model from ``[..., D]`` to ``[..., out]``, plus a hidden layer that starts at 0."""

    def __init__(self, width: int, out: int, start: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, out, bias=False)
        nn.init.constant_(self.linear.bias, start)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows out"]:
        """Return the outputs ``[..., out]`` of ``[..., D]``."""
        hidden = F.gelu(self.hidden(self.norm(x)), approximate="tanh")
        return self.linear(x) + self.out(hidden)  # type: ignore[no-any-return]


class CovariateFusion(nn.Module):
    """Joins covariates to sample vectors ``[B, D]``, just before the target heads.

    The vector of a covariate is that of its category (0 is unknown), or linear in its value and in
    whether that is missing. With c all of them concatenated and h the sample vector: ``concat``
    gives [h; c], ``add`` gives h + W c.
    """

    def __init__(self, width: int, heads: HeadConfig) -> None:
        super().__init__()
        size = heads.covariates.categorical_embed_dim
        flat = size * (len(heads.levels) + heads.numbers)
        self.categories = nn.ModuleList(nn.Embedding(levels, size) for levels in heads.levels)
        self.numbers = nn.ModuleList(nn.Linear(2, size) for _ in range(heads.numbers))
        added = heads.covariates.categorical_fusion == "add"
        self.width = width if added else width + flat
        self.project = nn.Linear(flat, width) if added else None

    def forward(self, samples: Float[Tensor, "B D"], batch: AnyBatch) -> Float[Tensor, "B W"]:
        """Return the vectors ``[B, W]`` that target heads read."""
        if batch.category is None or batch.covariate is None:
            raise ValueError("the model reads covariates, and the batch has none")
        missing = batch.covariate.isnan()
        values = batch.covariate.masked_fill(missing, 0).to(samples.dtype)
        pairs = torch.stack([values, missing.to(samples.dtype)], dim=2)
        vectors = [table(batch.category[:, column]) for column, table in enumerate(self.categories)]
        vectors += [layer(pairs[:, column]) for column, layer in enumerate(self.numbers)]
        flat = torch.cat(vectors, dim=1)
        if self.project is None:
            return torch.cat([samples, flat], dim=1)
        return samples + self.project(flat)  # type: ignore[no-any-return]
