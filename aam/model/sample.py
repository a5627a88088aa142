"""A set of ASV vectors with their counts to one vector per sample; the order of ASVs is nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aam.config import ModelConfig
from aam.model.layers import AttentionPool, Stack, standardize

ATTENDED = 0.2


class CountEmbedding(nn.Module):
    """Embeds reads and relative abundance and joins them to the ASV vector.

    A masked count (true in `hidden`) is replaced by a learned vector, so that the count head cannot
    read its own answer.
    """

    def __init__(self, width: int, depth: int, method: str) -> None:
        super().__init__()
        self.method, self.depth = method, depth
        out = 2 * width if method == "film" else width
        self.widen = nn.Linear(3, width)
        self.narrow = nn.Linear(width, out)
        self.hidden = nn.Parameter(0.02 * torch.randn(width))
        self.join = nn.Linear(2 * width, width) if method == "concat" else None

    def forward(self, vectors: Tensor, counts: Tensor, hidden: Tensor | None) -> Tensor:
        """Join `counts` ``[B, S]`` to `vectors` ``[B, S, D]``."""
        share = counts / self.depth
        log_count = torch.log1p(counts) / torch.log1p(counts.new_tensor(float(self.depth)))
        features = torch.stack([share, share.sqrt(), log_count], dim=-1).to(vectors.dtype)
        inner = nn.functional.gelu(self.widen(features))
        if hidden is not None:
            inner = torch.where(hidden.unsqueeze(-1), self.hidden.to(inner.dtype), inner)
        embedded: Tensor = self.narrow(inner)
        if self.method == "film":
            scale, shift = embedded.chunk(2, dim=-1)
            return vectors * (1 + scale) + shift
        if self.join is not None:
            return self.join(torch.cat([vectors, embedded], dim=-1))  # type: ignore[no-any-return]
        return vectors + embedded


class SampleEncoder(nn.Module):
    """Attends over a sample's ASVs and pools them to ``[B, D]``, beside a direct path from ASVs to sample.

    The direct path is linear in the ASV vectors: even at random initialization a linear model on it is a
    good baseline (docs/decisions.md), so training starts from there.
    """

    def __init__(self, config: ModelConfig, depth: int) -> None:
        super().__init__()
        width = config.embedding_dim
        self.count = (
            CountEmbedding(width, depth, config.count_embedding_method) if config.count_embedding else None
        )
        self.stack = Stack(width, config.attention_heads, config.attention_layers, config.dropout)
        self.pool = AttentionPool(width, config.attention_heads)
        self.direct = nn.Linear(width, width)

    @torch.no_grad()
    def standardize(self, vectors: Tensor, counts: Tensor) -> None:
        """Center both parts of the sample vectors of a first batch; the direct one leads."""
        keep = counts > 0
        standardize(self.direct, self.direct(self._composition(vectors, counts)))
        x = vectors if self.count is None else self.count(vectors, counts, None)
        standardize(self.pool.out, self.pool(self.stack(x, keep[:, None, None, :]), keep), ATTENDED)

    def _composition(self, vectors: Tensor, counts: Tensor) -> Tensor:
        """Sum of ASV vectors ``[B, D]``, weighted by the root of relative abundance or all alike."""
        weights = (counts if self.count is not None else (counts > 0).to(counts)).sqrt().to(vectors.dtype)
        length = weights.square().sum(dim=1, keepdim=True).sqrt()
        return torch.matmul((weights / length).unsqueeze(1), vectors).squeeze(1)

    def forward(self, vectors: Tensor, counts: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """ASVs in context ``[B, S, D]`` and sample vectors ``[B, D]``.

        Parameters
        ----------
        vectors : float [B, S, D]
            ASV vectors, gathered per sample.
        counts : float32 [B, S]
            Rarefied reads; 0 is padding.
        hidden : bool [B, S], optional
            Slots whose count is withheld.
        """
        keep = counts > 0
        x = vectors if self.count is None else self.count(vectors, counts, hidden)
        x = self.stack(x, keep[:, None, None, :])
        return x, self.pool(x, keep) + self.direct(self._composition(vectors, counts))
