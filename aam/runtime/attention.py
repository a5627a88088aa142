"""Scaled dot-product attention: the one place where its back end is entered."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of `query` over `key` and `value`, each ``[batch, heads, length, width]``.

    `mask` is boolean ``[batch, 1, 1, length]``, true where a key may be seen.
    """
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def masked_softmax(scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """Softmax of `scores` over `dim`, zero where the boolean `mask` is false."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=dim)
