"""Products of UniFrac on a GPU."""

from __future__ import annotations

import torch

from aam.io.matrices import Matrix
from aam.unifrac.visits import Multiply


def multiply_on(device: torch.device) -> Multiply:
    """Return a function for ``a.T @ b`` on `device`, in the type of `a` and `b` and never in TF32."""

    def multiply(a: Matrix, b: Matrix) -> Matrix:
        left, right = (torch.from_numpy(each).to(device) for each in (a, b))
        return (left.T @ right).cpu().numpy()

    return multiply
