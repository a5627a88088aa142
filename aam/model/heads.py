"""What is read off the vectors: UniFrac, Faith PD, counts, numeric and class targets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.config import CovariateConfig, RegressorConfig
from aam.data.batch import Batch
from aam.runtime.attention import attend

# A target this near to the border of its range, in shares of it or transformed units, is moved inside.
LEAST = 0.02


def _softplus_inverse(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


# What keeps numbers at 0 or more, and its inverse.
LINKS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (F.relu, torch.Tensor.clone),
    "softplus": (F.softplus, _softplus_inverse),
    "exp": (torch.exp, torch.log),
}


@dataclass(frozen=True)
class HeadConfig:
    """Which heads a model carries: the UniFrac metric (or none), counts, and the target columns.

    `scale` holds mean and standard deviation of that distance, or of Faith PD, in the training samples. `losses`,
    `low`, `high` and `zero` are of the numeric columns: their losses (unset: none is ``quantile``), training range and
    zero in transformed units. `levels` are the categories of each covariate, unknown included; `numbers` counts others.
    """

    metric: str | None = None
    scale: tuple[float, float] = (0.0, 1.0)
    counts: bool = False
    n_targets: int = 0
    n_classes: tuple[int, ...] = ()
    losses: tuple[str, ...] = ()
    quantiles: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    zero: tuple[float, ...] = ()
    levels: tuple[int, ...] = ()
    numbers: int = 0
    scaled_by: tuple[int, ...] = ()
    regressor: RegressorConfig = field(default_factory=RegressorConfig)
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
    """From ``[..., D]`` to ``[..., out]``: a linear model plus a correction by hidden layers that starts at zero.

    By `shape` the linear model reads the hidden layers instead.
    """

    def __init__(self, width: int, out: int, start: float = 0.0, shape: RegressorConfig | None = None) -> None:
        super().__init__()
        shape = RegressorConfig() if shape is None else shape
        sizes = shape.regressor_hidden_dims or (width,)
        self.dropout, self.normed = shape.regressor_dropout, shape.target_layer_norm
        self.linear = nn.Linear(width if shape.residual_regression_head else sizes[-1], out)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, sizes[0])
        self.deeper = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.out = nn.Linear(sizes[-1], out, bias=False) if shape.residual_regression_head else None
        nn.init.constant_(self.linear.bias, start)
        if self.out is not None:
            nn.init.zeros_(self.out.weight)

    def _deep(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        for layer in (self.hidden, *self.deeper):
            x = F.gelu(layer(x), approximate="tanh")
            x = F.dropout(x, self.dropout, self.training) if self.dropout else x
        return x

    def features(self, x: Tensor) -> Tensor:
        """What the linear model reads of ``[..., D]``."""
        if self.out is None:
            return self._deep(x)
        return self.norm(x) if self.normed else x

    def forward(self, x: Tensor) -> Tensor:
        """Read ``[..., out]`` off ``[..., D]``."""
        read = self.linear(self.features(x))
        return read if self.out is None else read + self.out(self._deep(x))  # type: ignore[no-any-return]


class TargetHead(Readout):
    """Numeric targets ``[B, T]`` in transformed units and, where a column has that loss, quantiles ``[B, Q, T]``.

    A readout, times a learned factor plus an offset where asked for (of all samples, and of each category), then
    mapped onto the training range or onto what is 0 or more in own units. Quantiles are that number, the median, and
    positive steps from it, so that they cannot cross: all that follows the steps is monotone.
    """

    edges: Tensor

    def __init__(self, width: int, heads: HeadConfig) -> None:
        n, shape = heads.n_targets, heads.regressor
        super().__init__(width, n, shape=shape)
        self.kind = "sigmoid" if shape.bounded_targets else shape.output_activation
        edges = [values or (0.0,) * n for values in (heads.low, heads.high, heads.zero)]
        self.register_buffer("edges", torch.tensor(edges), persistent=False)
        self.scale = nn.Parameter(torch.ones(n)) if shape.learnable_output_scale else None
        self.shift = nn.Parameter(torch.zeros(n)) if shape.learnable_output_scale else None
        self.scaled_by = heads.scaled_by
        self.factors = nn.ModuleList(nn.Embedding(heads.levels[column], n) for column in heads.scaled_by)
        self.offsets = nn.ModuleList(nn.Embedding(heads.levels[column], n) for column in heads.scaled_by)
        for tables, start in ((self.factors, 1.0), (self.offsets, 0.0)):
            for table in tables:
                nn.init.constant_(table.weight, start)  # type: ignore[arg-type]
        self.levels = heads.quantiles
        self.steps: nn.Linear | None = None
        if "quantile" in heads.losses:
            self.steps = nn.Linear(self.linear.in_features, n * (len(heads.quantiles) - 1))
            nn.init.zeros_(self.steps.weight)

    def predict(self, x: Tensor, category: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Numbers and quantiles of ``[B, D]``; `category` ``[B, C]`` is needed where its columns scale."""
        numbers = self(x)
        if self.scale is not None:
            numbers = numbers * self.scale + self.shift
        for column, factor, offset in zip(self.scaled_by, self.factors, self.offsets, strict=True):
            if category is None:
                raise ValueError("the outputs are scaled by categories, and the batch has none")
            numbers = numbers * factor(category[:, column]) + offset(category[:, column])
        if self.steps is None:
            return self._linked(numbers), None
        steps = F.softplus(self.steps(self.features(x))).unflatten(1, (-1, numbers.shape[1]))
        middle, below = numbers[:, None], self.levels.index(0.5)
        low = middle - steps[:, :below].flip(1).cumsum(1).flip(1)
        spread = torch.cat([low, middle, middle + steps[:, below:].cumsum(1)], dim=1)
        return self._linked(numbers), self._linked(spread)

    def _linked(self, x: Tensor) -> Tensor:
        """Numbers ``[..., T]`` inside their range."""
        low, high, zero = self.edges
        if self.kind == "sigmoid":
            return low + (high - low) * torch.sigmoid(x)  # type: ignore[no-any-return]
        return x if self.kind == "none" else zero + LINKS[self.kind][0](x)

    def unlinked(self, target: Tensor, column: int) -> Tensor:
        """What the linear model should give for numbers ``[n]`` of `column`; those at the border are moved inside."""
        low, high, zero = self.edges[:, column]
        if self.kind == "sigmoid":
            return torch.logit((target - low) / (high - low), eps=LEAST)
        return target if self.kind == "none" else LINKS[self.kind][1]((target - zero).clamp_min(LEAST))


class CrossAttention(nn.Module):
    """Queries ``[B, Q, D]`` attend to keys ``[B, K, E]`` and to one learned null key, which tells them nothing."""

    def __init__(self, width: int, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.pair = nn.Linear(size, 2 * width)
        self.null = nn.Parameter(0.02 * torch.randn(1, 1, size))

    def forward(self, x: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """What each query reads, ``[B, Q, D]``; `mask` ``[B, K]`` is true where a key may be seen."""
        keys = torch.cat([self.null.flatten().expand(len(keys), 1, -1).to(keys.dtype), keys], dim=1)
        seen = None if mask is None else F.pad(mask, (1, 0), value=True)[:, None, None]
        key, value = self.pair(keys).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query = self.query(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        return self.out(attend(query, key, value, seen).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class CovariateFusion(nn.Module):
    """Joins covariates to sample vectors ``[B, D]``, just before the target heads.

    Each covariate is a vector c of E: of its category (0 is unknown), or linear in its value and in whether that is
    missing. With [c] all of them side by side: ``concat`` [h; c], ``add`` h + W c, ``gmu`` h + sigmoid(G [h; c]) *
    tanh(W c) (Arevalo et al. 2017); ``cross-attention`` h + what it reads of the covariates; ``perceiver`` h + the mean
    of latents that attended to the covariates and the sample's ASVs, layer by layer (Jaegle et al. 2021).
    """

    def __init__(self, width: int, heads: HeadConfig) -> None:
        super().__init__()
        options, size = heads.covariates, heads.covariates.categorical_embed_dim
        self.fusion = options.categorical_fusion
        self.categories = nn.ModuleList(nn.Embedding(levels, size) for levels in heads.levels)
        self.numbers = nn.ModuleList(nn.Linear(2, size) for _ in range(heads.numbers))
        flat = size * (len(heads.levels) + heads.numbers)
        self.width = width + flat if self.fusion == "concat" else width
        if self.fusion in ("add", "gmu"):
            self.project = nn.Linear(flat, width)
        if self.fusion == "gmu":
            self.gate = nn.Linear(width + flat, width)
        if self.fusion == "cross-attention":
            self.attention = CrossAttention(width, size, options.cross_attn_heads)
        if self.fusion == "perceiver":
            self.latents = nn.Parameter(0.02 * torch.randn(options.perceiver_num_latents, width))
            self.widen, self.out = nn.Linear(size, width), nn.Linear(width, width)
            layers = range(options.perceiver_num_layers)
            self.layers = nn.ModuleList(CrossAttention(width, width, options.cross_attn_heads) for _ in layers)
            self.feeds = nn.ModuleList(Readout(width, width) for _ in layers)

    def forward(self, samples: Tensor, batch: Batch, context: Tensor) -> Tensor:
        """The vectors ``[B, W]`` that target heads read; `context` ``[B, S, D]`` are the ASVs of the samples."""
        if batch.category is None or batch.covariate is None:
            raise ValueError("the model reads covariates, and the batch has none")
        missing = batch.covariate.isnan()
        pairs = torch.stack([batch.covariate.masked_fill(missing, 0), missing.to(samples.dtype)], dim=2)
        found = [table(batch.category[:, column]) for column, table in enumerate(self.categories)]
        found += [layer(pairs[:, column]) for column, layer in enumerate(self.numbers)]
        keys = torch.stack(found, dim=1)
        if self.fusion == "cross-attention":
            return samples + self.attention(samples[:, None], keys)[:, 0]  # type: ignore[no-any-return]
        if self.fusion == "perceiver":
            return samples + self._perceived(torch.cat([self.widen(keys), context], dim=1), batch.counts > 0)
        beside, flat = torch.cat([samples, keys.flatten(1)], dim=1), keys.flatten(1)
        if self.fusion == "concat":
            return beside
        added = self.project(flat)
        return samples + (added if self.fusion == "add" else torch.sigmoid(self.gate(beside)) * torch.tanh(added))

    def _perceived(self, keys: Tensor, present: Tensor) -> Tensor:
        """Mean of the latents ``[B, D]``; `present` says which ASVs, the last of `keys`, are no padding."""
        mask = F.pad(present, (keys.shape[1] - present.shape[1], 0), value=True)
        latents = self.latents.expand(len(keys), -1, -1)
        for layer, feed in zip(self.layers, self.feeds, strict=True):
            latents = latents + layer(latents, keys, mask)
            latents = latents + feed(latents)
        return self.out(latents.mean(dim=1))  # type: ignore[no-any-return]
