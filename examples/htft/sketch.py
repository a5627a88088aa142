"""Random projections: CountSketch, and the subsampled randomized Hadamard transform; only their
seeds are stored.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def hadamard(x: Tensor) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of the last axis, whose length is a power of
    two.

    It is its own inverse, and takes p log2(p) additions.
    """
    shape = x.shape
    half = 1
    while half < shape[-1]:
        first, second = x.reshape(*shape[:-1], -1, 2, half).unbind(-2)
        x = torch.stack((first + second, first - second), -2)
        half *= 2
    return x.reshape(shape) / math.sqrt(shape[-1])


class CountSketch(nn.Module):
    """Adds each coordinate, with a random sign, to a random one of `size` buckets (Charikar and
    others, 2002).

    Inner products are kept in the mean over seeds.
    """

    bucket: Tensor
    sign: Tensor

    def __init__(self, inputs: int, size: int, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.size = size
        self.register_buffer(
            "bucket", torch.randint(size, (inputs,), generator=random), persistent=False
        )
        self.register_buffer(
            "sign", torch.randint(2, (inputs,), generator=random) * 2.0 - 1, persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, size]`` of ``[B, inputs]``."""
        return x.new_zeros(len(x), self.size).index_add(1, self.bucket, x * self.sign.to(x))


class Srht(nn.Module):
    """Random signs, the Walsh-Hadamard transform, and a random choice of `size` coordinates (Ailon
    and Chazelle, 2009).

    Inputs are padded with zeros to a power of two. With `block` each block of so many outputs is
    divided by its root mean square, which makes the scale of the input irrelevant.
    """

    sign: Tensor
    kept: Tensor

    def __init__(self, inputs: int, size: int, seed: int, block: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.padded, self.block = 1 << (max(inputs, size) - 1).bit_length(), block
        self.register_buffer(
            "sign", torch.randint(2, (self.padded,), generator=random) * 2.0 - 1, persistent=False
        )
        self.register_buffer(
            "kept", torch.randperm(self.padded, generator=random)[:size], persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, size]`` of ``[B, inputs]``."""
        padded = nn.functional.pad(x, (0, self.padded - x.shape[1])) * self.sign.to(x)
        y: Tensor = hadamard(padded)[:, self.kept] * math.sqrt(self.padded / len(self.kept))
        if not self.block:
            return y
        blocks = y.unflatten(1, (-1, self.block))
        scaled: Tensor = blocks / blocks.square().mean(-1, keepdim=True).add(1e-8).sqrt()
        return scaled.flatten(1)
