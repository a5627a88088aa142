"""What a network reads of a sample on a reference tree: which branches and 8-mers its ASVs have.

Legend for shapes: B samples, F ASVs, P features per ASV, E branches, H numbers per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aam.data.tokens import K
from aam.device.rng import GOLDEN, splitmix64

WORDS: int = 4**K

# Length of branch that each 8-mer counts as, in substitutions per site.
WORD_LENGTH = 0.002

# Numbers of a sample, H.
SKETCH = 4096


def count_sketch(number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a place below `size` and a sign for each of `number` features, int64 and float32.

    Sums of signed features by place keep scalar products within noise (Charikar et al. 2002).
    """
    hashed = splitmix64(torch.arange(1, number + 1) * GOLDEN)
    return (hashed & (2**62 - 1)) % size, 1.0 - 2.0 * (hashed < 0)


class Presence:
    """Presence of branches and 8-mers in samples of one table, as 4,096 numbers per sample.

    A sample has a branch or an 8-mer or not, no matter how many of its ASVs have it, as in
    unweighted UniFrac. Each counts by the square root of its length. `count_sketch`
    says to which of the numbers it is added, and with which sign.

    Parameters
    ----------
    features : int32 [F, P]
        Branches and 8-mers of each ASV (`ReferenceTree.features_of`).
    length : float32 [E]
        Length of each branch.
    """

    def __init__(self, features: npt.NDArray[np.int32], length: npt.NDArray[np.float32]) -> None:
        self.features = features
        lengths = torch.cat([torch.from_numpy(length), torch.full((WORDS,), WORD_LENGTH)])
        self.place, sign = count_sketch(len(lengths), SKETCH)
        self.weight = lengths.sqrt() * sign

    def __call__(self, asvs: Sequence[npt.NDArray[np.integer[Any]]]) -> torch.Tensor:
        """Numbers [B, H] of B samples, from the rows of `features` of their ASVs."""
        sketch = torch.zeros(len(asvs), SKETCH)
        for row, columns in zip(sketch, asvs, strict=True):
            # The last place collects the fill values of shorter rows.
            present = np.zeros(len(self.weight) + 1, bool)
            present[self.features[columns]] = True
            held = torch.from_numpy(np.flatnonzero(present[:-1]))
            row.index_add_(0, self.place[held], self.weight[held])
        return sketch.to(torch.get_default_dtype())
