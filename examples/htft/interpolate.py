"""Interpolators: how a signed distance becomes weights of the three control vectors of a unit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# From t in [0, 1] and the width of this side over that of the other: weights of the control vectors
# of this side, of the middle, and of the other side.
Side = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def _linear(t: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return t, 1 - t, torch.zeros_like(t)


def _quadratic(t: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return t * (t + 1) / 2, 1 - t**2, t * (t - 1) / 2


def _hermite(t: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cubic Hermite weights whose slope in the middle is the mean of both sides' slopes.

    They reproduce linear functions, and their derivative is continuous where the sides differ in
    width.
    """
    h10 = t**3 - 2 * t**2 + t
    this = 3 * t**2 - 2 * t**3 + t**3 - t**2 + h10 / 2
    other = -(h10 / 2) * ratio
    return this, 1 - this - other, other


INTERPOLATORS: dict[str, Side] = {"linear": _linear, "quadratic": _quadratic, "hermite": _hermite}


def weights(name: str, s: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the weights ``[..., 3]`` of the control vectors at ``-low``, 0 and ``high``.

    Parameters
    ----------
    name : str
        Of `INTERPOLATORS`.
    s : Tensor
        Signed distances ``[...]``; outside the band they count as its edge.
    low, high : Tensor
        Widths of the two sides, above 0; they broadcast with `s`.
    """
    s = torch.minimum(torch.maximum(s, -low), high)
    side = INTERPOLATORS[name]
    # Each side is computed for all, of distances that are 0 on the other side.
    plus = side((s / high).clamp_min(0), high / low)
    minus = side((-s / low).clamp_min(0), low / high)
    positive = s >= 0
    chosen = [
        torch.where(positive, p, m) for p, m in zip((plus[2], plus[1], plus[0]), minus, strict=True)
    ]
    return torch.stack(chosen, -1)
