"""Scaled dot-product attention, and the back end of torch that computes it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# torch's own choice among them.
SDPA = "sdpa"

# Longest sequences of a CPU for which two products and a softmax are faster, forward and backward, than torch's own
# kernel (docs/decisions.md).
SHORT = {torch.float32: 50, torch.bfloat16: 150}

# The back end of each kind of call, (precision, masked); for a kind that is absent torch chooses.
_backends: dict[tuple[torch.dtype, bool], SDPBackend] = {}


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute attention of `query` over `key` and `value`, each ``[batch, heads, length, width]``.

    `mask` is boolean ``[batch, 1, 1, length]``, true where a key may be seen. The back end is entered here, so that
    a call that is recomputed in backward takes the same one. Where torch chooses, short sequences of a CPU are computed
    by the formula.
    """
    backend = _backends.get((query.dtype, mask is not None))
    if backend is None:
        if query.device.type == "cpu" and key.shape[-2] <= SHORT.get(query.dtype, 0):
            return attention_formula(query, key, value, mask)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attention_formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute attention as two products and a softmax; arguments are those of `scaled_dot_product_attention`."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return masked_softmax(scores, mask, dim=-1).to(value.dtype) @ value


def masked_softmax(scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """Compute the softmax of `scores` over `dim`, zero where the boolean `mask` is false."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=dim)


def call_kind(dtype: torch.dtype, masked: bool) -> str:
    """Return the name of a kind of call, such as ``float32, masked``."""
    return f"{str(dtype).removeprefix('torch.')}, {'masked' if masked else 'unmasked'}"


def use_backends(names: dict[str, str]) -> None:
    """Let `scaled_dot_product_attention` use these back ends from now on, one for each kind of call."""
    _backends.clear()
    for kind, name in names.items():
        dtype, _, masked = kind.partition(", ")
        if name != SDPA:
            _backends[getattr(torch, dtype), masked == "masked"] = BACKENDS[name]


def backends_in_use() -> dict[tuple[torch.dtype, bool], SDPBackend]:
    """Return a copy of the back end of each kind of call, to give to `restore_backends`."""
    return dict(_backends)


def restore_backends(backends: dict[tuple[torch.dtype, bool], SDPBackend]) -> None:
    """Use the back ends again that `backends_in_use` returned."""
    _backends.clear()
    _backends.update(backends)


def is_valid_choice(names: Any, dtype: torch.dtype) -> bool:
    """Return whether `names`, read from a file, holds a back end for each kind of call in this precision."""
    kinds = {call_kind(dtype, True), call_kind(dtype, False)}
    return isinstance(names, dict) and names.keys() == kinds and set(map(str, names.values())) <= {SDPA, *BACKENDS}
