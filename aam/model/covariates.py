"""Covariates joined to sample vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.data.batch import Batch
from aam.device.attention import scaled_dot_product_attention
from aam.device.shapes import Bool, Float
from aam.model.heads import HeadConfig, Readout


class CrossAttention(nn.Module):
    """Queries ``[B, Q, D]`` attend to keys ``[B, K, E]`` and to one learned null key, which tells them nothing."""

    def __init__(self, width: int, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.pair = nn.Linear(size, 2 * width)
        self.null = nn.Parameter(0.02 * torch.randn(1, 1, size))

    def forward(
        self, x: Float[Tensor, "B Q D"], keys: Float[Tensor, "B K E"], mask: Bool[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B Q D"]:
        """Return the attended values ``[B, Q, D]``; `mask` ``[B, K]`` is true where a key may be seen."""
        keys = torch.cat([self.null.flatten().expand(keys.shape[0], 1, -1).to(keys.dtype), keys], dim=1)
        with_null = None if mask is None else F.pad(mask, (1, 0), value=True)[:, None, None]
        key, value = self.pair(keys).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query = self.query(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        values = scaled_dot_product_attention(query, key, value, with_null)
        return self.out(values.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


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

    def forward(
        self, samples: Float[Tensor, "B D"], batch: Batch, context: Float[Tensor, "B S D"]
    ) -> Float[Tensor, "B W"]:
        """Return the vectors ``[B, W]`` that target heads read; `context` ``[B, S, D]`` are the ASVs of the samples."""
        if batch.category is None or batch.covariate is None:
            raise ValueError("the model reads covariates, and the batch has none")
        missing = batch.covariate.isnan()
        pairs = torch.stack([batch.covariate.masked_fill(missing, 0), missing.to(samples.dtype)], dim=2)
        vectors = [table(batch.category[:, column]) for column, table in enumerate(self.categories)]
        vectors += [layer(pairs[:, column]) for column, layer in enumerate(self.numbers)]
        keys = torch.stack(vectors, dim=1)
        if self.fusion == "cross-attention":
            return samples + self.attention(samples[:, None], keys)[:, 0]  # type: ignore[no-any-return]
        if self.fusion == "perceiver":
            return samples + self._perceived(torch.cat([self.widen(keys), context], dim=1), batch.counts > 0)
        beside, flat = torch.cat([samples, keys.flatten(1)], dim=1), keys.flatten(1)
        if self.fusion == "concat":
            return beside
        added = self.project(flat)
        return samples + (added if self.fusion == "add" else torch.sigmoid(self.gate(beside)) * torch.tanh(added))

    def _perceived(self, keys: Float[Tensor, "B K D"], present: Bool[Tensor, "B S"]) -> Float[Tensor, "B D"]:
        """Return the mean of the latents ``[B, D]``; `present` says which ASVs, the last of `keys`, are no padding."""
        mask = F.pad(present, (keys.shape[1] - present.shape[1], 0), value=True)
        latents = self.latents.expand(keys.shape[0], -1, -1)
        for layer, feed in zip(self.layers, self.feeds, strict=True):
            latents = latents + layer(latents, keys, mask)
            latents = latents + feed(latents)
        return self.out(latents.mean(dim=1))  # type: ignore[no-any-return]
