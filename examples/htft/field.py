"""The field: hypertensor units, the gates that choose among them, and the value that they give
together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.device.distributed import SINGLE, World
from aam.device.sharding import full_tensor
from examples.htft.config import FieldConfig
from examples.htft.interpolate import weights
from examples.htft.ranks import local_rows, sum_parts

# The published limits: distances beyond the first are no candidates, exponents are at most the
# second; and the scale of the metric hybrid_exp.
FARTHEST, MAX_EXPONENT, SCALE = 50.0, 60.0, 5.0


class Gated(NamedTuple):
    """Units of a batch, indices ``[B, k]`` (None: all, in order), with distances and logits of
    gates ``[B, k]``.
    """

    units: Tensor | None
    distance: Tensor
    logits: Tensor


class HypertensorField(nn.Module):
    """Units with a normal n, an offset, a band of two widths, and three control vectors each.

    A unit sees the signed distance s of its input from its plane, and gives the interpolation of
    its control vectors at s. A softmax over -metric / temperature mixes the units.

    Parameters
    ----------
    inputs, outputs : int
        d and D.
    config : FieldConfig
    seed : int
    output_bias : Tensor, optional
        ``[D]``, for example the logarithms of unigram probabilities.
    world : World
        Ranks that hold the units together (`examples.htft.ranks.shard_rows`).
    """

    anchor: Tensor
    usage: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        config: FieldConfig,
        seed: int,
        output_bias: Tensor | None = None,
        world: World = SINGLE,
    ) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        units = config.units
        self.config, self.world = config, world
        self.normal = nn.Parameter(F.normalize(torch.randn(units, inputs, generator=random), dim=1))
        self.offset = nn.Parameter(0.5 * torch.randn(units, generator=random))
        low, high = config.band
        width = low + (high - low) * torch.rand(units, 1, generator=random)
        self.log_band = nn.Parameter(width.log().repeat(1, 2), requires_grad=not config.online)
        self.control = nn.Parameter(0.05 * torch.randn(units, 3, outputs, generator=random))
        bias = torch.zeros(outputs) if output_bias is None else output_bias.clone()
        self.bias = nn.Parameter(bias, requires_grad=not config.online)
        self.gain = nn.Parameter(torch.full((1,), config.gain), requires_grad=not config.online)
        self.register_buffer(
            "anchor", torch.zeros(units if config.locality == "anchor" else 0, inputs)
        )
        self.register_buffer("usage", torch.zeros(units))
        self.recent_usage: Tensor | None = None

    def place_anchors(self, samples: Tensor) -> None:
        """Put the anchors on inputs ``[units, d]``."""
        self.anchor.copy_(samples)

    def normals(self) -> Tensor:
        """Return the unit normals ``[M, d]``; the published rule keeps the parameters themselves at
        length 1.
        """
        normal = local_rows(self.normal)
        return normal if self.config.online else F.normalize(normal, dim=1)

    def _metric(self, x: Tensor, s: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
        """Return what the gates compare, ``[B, M]``, from distances to planes and to their foot
        points.
        """
        config = self.config
        if config.metric == "planar":
            return s.abs()
        # The foot point is -offset n, so that |x - foot|^2 = |x|^2 + 2 offset n.x + offset^2.
        squares = x.square().sum(1, keepdim=True) + 2 * offset * (s - offset) + offset**2
        euclid = squares.clamp_min(1e-12).sqrt()
        if config.metric == "euclid":
            return euclid
        hybrid = (s.abs() * euclid).clamp_min(1e-12).sqrt()
        if config.metric == "hybrid":
            return hybrid
        return hybrid * (hybrid / SCALE).sqrt().clamp_max(MAX_EXPONENT).exp()

    def gates(self, x: Tensor, normal: Tensor) -> Gated:
        """Return the active units of inputs ``[B, d]``."""
        config, offset = self.config, local_rows(self.offset)
        s = x @ normal.T + offset
        logits = -self._metric(x, s, normal, offset) / config.temperature
        if not config.active or config.active >= s.shape[1]:
            return Gated(None, s, logits)
        if config.locality == "anchor":
            distances = torch.cdist(x, local_rows(self.anchor))
            units = distances.topk(config.active, largest=False).indices
        else:
            units = self._nearest_planes(x, s.detach(), normal, offset)
        return Gated(units, s.gather(1, units), logits.gather(1, units))

    def _nearest_planes(self, x: Tensor, s: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
        """Return the units ``[B, k]`` of the smallest |s|; the published rule takes them of 4 k
        nearest foot points.
        """
        key = s.abs()
        if self.config.online:
            foot = torch.cdist(x, -offset[:, None] * normal).detach()
            nearest = foot.topk(min(4 * self.config.active, foot.shape[1]), largest=False).indices
            candidate = torch.zeros_like(key, dtype=torch.bool).scatter_(1, nearest, True) & (
                key <= FARTHEST
            )
            enough = candidate.sum(1, keepdim=True) >= self.config.active
            key = key.masked_fill(enough & ~candidate, math.inf)
        return key.topk(self.config.active, largest=False).indices

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, D]`` of inputs ``[B, d]``."""
        units, s, logits = self.gates(x, self.normals())
        largest = self.world.largest_values(logits.amax(1, keepdim=True))
        scores = (logits - largest).exp()
        scores = scores.detach() if self.config.online else scores
        band = local_rows(self.log_band).exp()
        low, high = (band if units is None else band[units]).unbind(-1)
        mixed = (scores[..., None] * weights(self.config.interpolation, s, low, high)).flatten(1)
        table = local_rows(self.control).flatten(0, 1)
        if units is None:
            total = mixed @ table
        else:
            rows = (3 * units[..., None] + torch.arange(3, device=x.device)).flatten(1)
            total = F.embedding_bag(rows, table, per_sample_weights=mixed, mode="sum")
        total = sum_parts(total, self.world)
        normalizer = sum_parts(scores.sum(1, keepdim=True), self.world)
        if self.training:
            shares = (scores / normalizer).detach()
            rows = shares.new_zeros(len(x), len(local_rows(self.usage)))
            self.recent_usage = (shares if units is None else rows.scatter(1, units, shares)).sum(0)
        return full_tensor(self.gain) * total / normalizer + full_tensor(self.bias)
