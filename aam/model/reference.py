"""A fixed network on a fixed batch: the same numbers on every machine, to compare devices by."""

from __future__ import annotations

import numpy as np
import torch

from aam.config import ModelConfig
from aam.data.batch import Batch
from aam.model.aam import Aam
from aam.model.heads import HeadConfig

DEPTH = 1000


def fixed_network(config: ModelConfig) -> Aam:
    """Return a network whose weights come from numpy, so that they are the same with every
    torch.
    """
    network = Aam(config, DEPTH, HeadConfig(metric="unifrac", counts=True, n_targets=1))
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in network.parameters():
            scale = 1 / np.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 0.1
            parameter.copy_(torch.from_numpy(rng.normal(0, scale, parameter.shape)))
    return network


def fixed_batch(longest: int = 100) -> Batch:
    """Return six samples of up to 40 out of 64 ASVs of 90 to 100 nucleotides, cut to the `longest`
    that is read.
    """
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 5, (64, 100)).astype(np.uint8)
    tokens[::3, 90:] = 0
    tokens = np.ascontiguousarray(tokens[:, :longest])
    sizes = (40, 33, 21, 20, 8, 3)
    asv, counts = np.zeros((6, 40), np.int64), np.zeros((6, 40), np.float32)
    for row, size in enumerate(sizes):
        asv[row, :size] = rng.permutation(64)[:size]
        counts[row, :size] = rng.integers(1, 100, size)
    named = tuple(f"sample {row}" for row in range(6))
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(asv),
        torch.from_numpy(counts),
        sizes=sizes,
        padded=True,
        sample_ids=named,
    )
