"""Heads: UniFrac, Faith PD, counts, numeric and class targets, auxiliary targets, and covariates
before them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.config import CovariateConfig, RegressorConfig
from aam.data.batch import Batch
from aam.device.attention import scaled_dot_product_attention
from aam.device.shapes import Bool, Float, Int64

# A target nearer than this to the border of its range, in shares of it or transformed units, is
# moved inside.
BORDER = 0.02


def _softplus_inverse(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


# Functions whose values are 0 or more, and their inverses.
LINKS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (F.relu, torch.Tensor.clone),
    "softplus": (F.softplus, _softplus_inverse),
    "exp": (torch.exp, torch.log),
}


@dataclass(frozen=True)
class AuxiliaryConfig:
    """Which auxiliary targets of pretraining a model has.

    `scales` are mean and standard deviation of each of `names` in the training samples (0 and 1 of
    taxa), `ranks` those of the taxonomy from the top, `taxa` the classes of each, and `entropies`
    the entropy of these in nats.
    """

    names: tuple[str, ...] = ()
    scales: tuple[tuple[float, float], ...] = ()
    ranks: tuple[str, ...] = ()
    taxa: tuple[tuple[str, ...], ...] = ()
    entropies: tuple[float, ...] = ()


@dataclass(frozen=True)
class HeadConfig:
    """Which heads a model carries: the UniFrac metric (or none), counts, auxiliary and the target
    columns.

    `scale` holds mean and standard deviation of that distance, or of Faith PD, in the training
    samples. `losses`, `low`, `high` and `zero` are of the numeric columns: their losses (unset:
    none is ``quantile``), training range and zero in transformed units. `levels` are the categories
    of each covariate, unknown included; `numbers` counts others.
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
    further: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)


# Least Euclidean distance: the map of the distance head has no gradient at 0.
LEAST = 1e-3


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

    def vectors(
        self, samples: Float[Tensor, "B D"], present: Tensor | None = None
    ) -> Float[Tensor, "B D"]:
        """Return the vectors ``[B, D]`` whose distances are predicted: of samples alone, on no
        reference tree.
        """
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
    """From ``[..., D]`` to ``[..., out]``: a linear model plus a correction by hidden layers that
    starts at zero.

    By `shape` the linear model reads the hidden layers instead.
    """

    def __init__(
        self, width: int, out: int, start: float = 0.0, shape: RegressorConfig | None = None
    ) -> None:
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

    def features(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows E"]:
        """Return the inputs of the linear model, from ``[..., D]``."""
        if self.out is None:
            return self._deep(x)
        return self.norm(x) if self.normed else x

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows out"]:
        """Return the outputs ``[..., out]`` of ``[..., D]``."""
        read = self.linear(self.features(x))
        return read if self.out is None else read + self.out(self._deep(x))  # type: ignore[no-any-return]


class DiversityHead(Readout):
    """Predicted Faith PD of samples, in its own units, from their vectors."""

    def __init__(self, width: int, scale: tuple[float, float]) -> None:
        super().__init__(width, 1)
        self.mean, self.spread = scale

    def forward(self, samples: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """Return Faith PD ``[B]`` of sample vectors ``[B, D]``."""
        return super().forward(samples).squeeze(-1) * self.spread + self.mean


class TargetHead(Readout):
    """Numeric targets ``[B, T]`` in transformed units and, where a column has that loss, quantiles
    ``[B, Q, T]``.

    A readout, times a learned factor plus an offset where asked for (of all samples, and of each
    category), then mapped onto the training range or onto what is 0 or more in own units. Quantiles
    are that number, the median, and positive steps from it, so that they cannot cross: all that
    follows the steps is monotone.
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
        self.factors = nn.ModuleList(
            nn.Embedding(heads.levels[column], n) for column in heads.scaled_by
        )
        self.offsets = nn.ModuleList(
            nn.Embedding(heads.levels[column], n) for column in heads.scaled_by
        )
        for tables, start in ((self.factors, 1.0), (self.offsets, 0.0)):
            for table in tables:
                nn.init.constant_(table.weight, start)  # type: ignore[arg-type]
        self.levels = heads.quantiles
        self.steps: nn.Linear | None = None
        if "quantile" in heads.losses:
            self.steps = nn.Linear(self.linear.in_features, n * (len(heads.quantiles) - 1))
            nn.init.zeros_(self.steps.weight)

    def predict(
        self, x: Float[Tensor, "B D"], category: Int64[Tensor, "B C"] | None
    ) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B Q T"] | None]:
        """Return numbers and quantiles of ``[B, D]``; `category` ``[B, C]`` is needed where its
        columns scale.
        """
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

    def _linked(self, x: Float[Tensor, "*rows T"]) -> Float[Tensor, "*rows T"]:
        """Return numbers ``[..., T]`` inside their range."""
        low, high, zero = self.edges
        if self.kind == "sigmoid":
            return low + (high - low) * torch.sigmoid(x)  # type: ignore[no-any-return]
        return x if self.kind == "none" else zero + LINKS[self.kind][0](x)

    def unlinked(self, target: Float[Tensor, " n"], column: int) -> Float[Tensor, " n"]:
        """Return the outputs of the linear model that give numbers ``[n]`` of `column`, moved
        inside at a border.
        """
        low, high, zero = self.edges[:, column]
        if self.kind == "sigmoid":
            return torch.logit((target - low) / (high - low), eps=BORDER)
        return (
            target
            if self.kind == "none"
            else LINKS[self.kind][1]((target - zero).clamp_min(BORDER))
        )


Gather = Callable[[Tensor, tuple[int, ...]], Callable[[], Tensor]]

DIVERSITY, TAXONOMY = "faith-pd", "taxonomy"


class TaxaHead(Readout):
    """Taxa of ASVs from their vectors: logits of the classes of each rank."""

    def __init__(self, width: int, config: AuxiliaryConfig) -> None:
        sizes = tuple(map(len, config.taxa))
        super().__init__(width, sum(sizes))
        self.sizes, self.entropies = sizes, config.entropies

    def by_rank(self, logits: Float[Tensor, "U classes"]) -> tuple[Float[Tensor, "U _"], ...]:
        """Return the logits ``[U, classes]`` of all ranks as those of each."""
        return torch.split(logits, list(self.sizes), dim=1)

    def probabilities(self, asvs: Float[Tensor, "U D"]) -> list[Float[Tensor, "U _"]]:
        """Return the probability of each class of each rank, from the vectors ``[U, D]`` of
        ASVs.
        """
        return [torch.softmax(logits.float(), dim=1) for logits in self.by_rank(self(asvs))]


class AuxiliaryHeads(nn.ModuleDict):
    """The heads of auxiliary targets by name.

    Distances are maps like that of UniFrac: all read the same sample vectors, each through a linear
    map of its own.
    """

    def __init__(self, width: int, config: AuxiliaryConfig) -> None:
        super().__init__()
        self.scales = dict(zip(config.names, config.scales, strict=True))
        for name, scale in self.scales.items():
            if name == DIVERSITY:
                self[name] = DiversityHead(width, scale)
            elif name == TAXONOMY:
                self[name] = TaxaHead(width, config)
            else:
                self[name] = DistanceHead(width, bounded=True)
            if isinstance(head := self[name], Readout):
                # From the mean, or from classes that are alike: sample vectors are long, and so
                # were its first errors.
                nn.init.zeros_(head.linear.weight)

    @property
    def reads_samples(self) -> bool:
        """Whether any of them reads sample vectors."""
        return any(name != TAXONOMY for name in self)

    @torch.no_grad()
    def standardize(self, samples: Float[Tensor, "B D"], names: Collection[str]) -> None:
        """Scale the maps of the distances among `names` so that predictions of these samples center
        on the mean.
        """
        for name, head in self.items():
            if isinstance(head, DistanceHead) and name in names:
                head.standardize(head.vectors(samples), self.scales[name][0])

    def forward(
        self,
        samples: Float[Tensor, "B D"],
        asvs: Float[Tensor, "all_U D"],
        batch: Batch,
        gather: Gather,
    ) -> dict[str, Tensor]:
        """Return what is predicted of the targets that the batch has.

        Parameters
        ----------
        samples : float [B, D]
        asvs : float [all_U, D]
            Vectors of the distinct ASVs of all ranks.
        batch : Batch
        gather : callable
            Puts the rows of other ranks beside those of this one.

        Returns
        -------
        dict of str to tensor
            Distances [B, all_B], Faith PD [B], logits of taxa [U, classes] for the ASVs that this
            rank encodes.
        """
        predicted: dict[str, Tensor] = {}
        for name, head in self.items():
            if name not in batch.auxiliary:
                continue
            if isinstance(head, DistanceHead):
                vectors = head.vectors(samples)
                predicted[name] = head(vectors, gather(vectors, batch.ranks.samples)())
            else:
                predicted[name] = head(
                    asvs[batch.ranks.own_asvs] if isinstance(head, TaxaHead) else samples
                )
        return predicted


# --- covariates, joined to sample vectors before the target heads ------------------------------


class CrossAttention(nn.Module):
    """Queries ``[B, Q, D]`` attend to keys ``[B, K, E]`` and to one learned null key, which tells
    them nothing.
    """

    def __init__(self, width: int, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.pair = nn.Linear(size, 2 * width)
        self.null = nn.Parameter(0.02 * torch.randn(1, 1, size))

    def forward(
        self,
        x: Float[Tensor, "B Q D"],
        keys: Float[Tensor, "B K E"],
        mask: Bool[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B Q D"]:
        """Return the attended values ``[B, Q, D]``; `mask` ``[B, K]`` is true where a key may be
        seen.
        """
        keys = torch.cat(
            [self.null.flatten().expand(keys.shape[0], 1, -1).to(keys.dtype), keys], dim=1
        )
        with_null = None if mask is None else F.pad(mask, (1, 0), value=True)[:, None, None]
        key, value = self.pair(keys).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query = self.query(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        values = scaled_dot_product_attention(query, key, value, with_null)
        return self.out(values.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class CovariateFusion(nn.Module):
    """Joins covariates to sample vectors ``[B, D]``, just before the target heads.

    Each covariate is a vector c of E: of its category (0 is unknown), or linear in its value and in
    whether that is missing. With [c] all of them side by side: ``concat`` [h; c], ``add`` h + W c,
    ``gmu`` h + sigmoid(G [h; c]) * tanh(W c) (Arevalo et al. 2017); ``cross-attention`` h + what it
    reads of the covariates; ``perceiver`` h + the mean of latents that attended to the covariates
    and the sample's ASVs, layer by layer (Jaegle et al. 2021).
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
            self.layers = nn.ModuleList(
                CrossAttention(width, width, options.cross_attn_heads) for _ in layers
            )
            self.feeds = nn.ModuleList(Readout(width, width) for _ in layers)

    def forward(
        self, samples: Float[Tensor, "B D"], batch: Batch, context: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B W"]:
        """Return the vectors ``[B, W]`` that target heads read; `context` ``[B, S, D]`` are the
        ASVs of the samples.
        """
        if batch.category is None or batch.covariate is None:
            raise ValueError("the model reads covariates, and the batch has none")
        missing = batch.covariate.isnan()
        pairs = torch.stack(
            [batch.covariate.masked_fill(missing, 0), missing.to(samples.dtype)], dim=2
        )
        vectors = [table(batch.category[:, column]) for column, table in enumerate(self.categories)]
        vectors += [layer(pairs[:, column]) for column, layer in enumerate(self.numbers)]
        keys = torch.stack(vectors, dim=1)
        if self.fusion == "cross-attention":
            return samples + self.attention(samples[:, None], keys)[:, 0]  # type: ignore[no-any-return]
        if self.fusion == "perceiver":
            return samples + self._perceived(
                torch.cat([self.widen(keys), context], dim=1), batch.counts > 0
            )
        beside, flat = torch.cat([samples, keys.flatten(1)], dim=1), keys.flatten(1)
        if self.fusion == "concat":
            return beside
        added = self.project(flat)
        return samples + (
            added if self.fusion == "add" else torch.sigmoid(self.gate(beside)) * torch.tanh(added)
        )

    def _perceived(
        self, keys: Float[Tensor, "B K D"], present: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B D"]:
        """Return the mean of the latents ``[B, D]``; `present` says which ASVs, the last of `keys`,
        are no padding.
        """
        mask = F.pad(present, (keys.shape[1] - present.shape[1], 0), value=True)
        latents = self.latents.expand(keys.shape[0], -1, -1)
        for layer, feed in zip(self.layers, self.feeds, strict=True):
            latents = latents + layer(latents, keys, mask)
            latents = latents + feed(latents)
        return self.out(latents.mean(dim=1))  # type: ignore[no-any-return]
