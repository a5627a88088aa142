"""Products of matrices in full precision inside a network that runs in half precision."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision_product(rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``rows @ columns.T`` of ``[R, D]`` and ``[C, D]``, in float32 or finer whatever autocast asks for."""
    kind = torch.promote_types(rows.dtype, torch.float32)
    with torch.autocast(rows.device.type, enabled=False):
        return rows.to(kind) @ columns.to(kind).T
