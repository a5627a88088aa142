"""Transformer layers: attention, blocks, attention pooling."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aam.device.attention import masked_softmax, scaled_dot_product_attention
from aam.device.shapes import Bool, Float


class SequenceBins(NamedTuple):
    """Sequences of several lengths in one flat buffer of T positions, bin after bin.

    Attributes
    ----------
    bins : tuple of (sequences, length)
    keep : bool [T]
        Positions that are not padding.
    """

    bins: tuple[tuple[int, int], ...]
    keep: Bool[Tensor, " T"]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the bins of a flat buffer ``[T, ...]`` as views ``[n, length, ...]``."""
        views, at = [], 0
        for number, length in self.bins:
            part = flat[at : at + number * length]
            views.append(part.view(number, length, *flat.shape[1:]))
            at += number * length
        return views


class Attention(nn.Module):
    """Multi-head self-attention over ``[batch, length, D]``, or over bins of sequences."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # A bias of the keys would change nothing but by rounding, which Adam scales up.
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: Float[Tensor, "*positions D"],
        mask: Bool[Tensor, "#batch 1 #length length"] | SequenceBins | None,
    ) -> Float[Tensor, "*positions D"]:
        """Attend; `mask` ``[batch, 1, 1, length]`` is true where a position may be seen.

        With ``length`` in place of the second 1 it says so for each position that looks. With
        `SequenceBins` the positions are those of a flat buffer ``[T, D]``.
        """
        projected = self.project(x)
        if mask is None or isinstance(mask, Tensor):
            return self.out(self._attend(projected, mask))  # type: ignore[no-any-return]
        views = zip(mask.views(projected), mask.views(mask.keep), strict=True)
        attended = [
            self._attend(view, keep[:, None, None, :]).flatten(0, 1) for view, keep in views
        ]
        return self.out(torch.cat(attended))  # type: ignore[no-any-return]

    def _attend(self, projected: Tensor, mask: Tensor | None) -> Tensor:
        """Return attended values ``[batch, length, D]`` from ``[batch, length, 3 D]``."""
        batch, length, width = projected.shape
        split = projected.view(batch, length, 3, self.heads, width // 3 // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        attended = scaled_dot_product_attention(query, key, value, mask)
        return attended.transpose(1, 2).reshape(batch, length, width // 3)


class Block(nn.Module):
    """Pre-norm transformer block: attention, then a feed-forward layer four times as wide."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_feed = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(
        self,
        x: Float[Tensor, "*positions D"],
        mask: Bool[Tensor, "#batch 1 #length length"] | SequenceBins | None,
    ) -> Float[Tensor, "*positions D"]:
        """Transform ``[batch, length, D]``, or a flat buffer ``[T, D]``."""
        x = x + self._drop(self.attention(self.norm_attention(x), mask))
        return x + self._drop(
            self.narrow(F.gelu(self.widen(self.norm_feed(x)), approximate="tanh"))
        )

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Stack(nn.Module):
    """A stack of blocks with a final norm.

    `recompute` (gradient checkpointing) is set from outside: it trades time for memory and changes
    no result.
    """

    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.recompute = False
        # The random state is saved for dropout alone: torch up to 2.9 cannot read it in a graph.
        self.draws = dropout > 0

    def forward(self, x: Tensor, mask: Tensor | SequenceBins | None = None) -> Tensor:
        """Transform ``[batch, length, D]``, or a flat buffer, by all blocks, then normalize."""
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, mask, use_reentrant=False, preserve_rng_state=self.draws)
            else:
                x = block(x, mask)
        return self.norm(x)  # type: ignore[no-any-return]


class AttentionPool(nn.Module):
    """Weighted mean of a sequence, one learned weighting for each head's share of the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.score = nn.Linear(width, heads, bias=False)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "*positions D"], mask: Tensor | SequenceBins | None = None
    ) -> Float[Tensor, "batch D"]:
        """Pool ``[batch, length, D]`` to ``[batch, D]``; `mask` ``[batch, length]`` is true where
        kept. With `SequenceBins` pool the sequences of a flat buffer ``[T, D]``.
        """
        scores = self.score(x)
        if mask is None or isinstance(mask, Tensor):
            return self.out(self._pooled(x, scores, mask))  # type: ignore[no-any-return]
        parts = zip(mask.views(x), mask.views(scores), mask.views(mask.keep), strict=True)
        return self.out(torch.cat([self._pooled(*part) for part in parts]))  # type: ignore[no-any-return]

    def _pooled(self, x: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
        weights = masked_softmax(scores, None if mask is None else mask.unsqueeze(-1), dim=1)
        split = x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads)
        return (weights.unsqueeze(-1) * split).sum(dim=1).flatten(1)

    def weights(
        self, x: Float[Tensor, "batch length D"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length heads"]:
        """Return the weights of each head ``[batch, length, heads]``, whose sum over the length is
        1.
        """
        return masked_softmax(self.score(x), None if mask is None else mask.unsqueeze(-1), dim=1)


@torch.no_grad()
def standardize(layer: nn.Linear, outputs: Tensor, scale: float = 1.0) -> None:
    """Change `layer` so that these of its outputs ``[n, D]`` have mean 0 and standard deviation
    `scale`.
    """
    spread = outputs.var(dim=0).mean().sqrt().clamp_min(1e-6) / scale
    layer.bias.sub_(outputs.mean(dim=0)).div_(spread)
    layer.weight.div_(spread)
