"""Samples of a table on a reference tree: their distances, vectors and taxa.

Legend for shapes: N samples, F ASVs, E branches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.data.study import PlacedMetric
from aam.io.matrices import Tile
from aam_16s.distances import WIDTH, placed_tiles, sample_branches, sample_vectors
from aam_16s.placement import SoftPlacement

if TYPE_CHECKING:
    from aam_16s.reference import ReferenceTree

__all__ = ["WIDTH", "PlacedSamples"]

COMPLEMENT = str.maketrans("ACGT", "TGCA")


@dataclass(frozen=True, eq=False)
class PlacedSamples:
    """Samples whose ASVs are placed on a reference tree.

    Attributes
    ----------
    sample_ids : tuple of str
    sequences : tuple of str
    reads, counts : CSR [N, F]
        All reads, and rarefied ones.
    placement : SoftPlacement
    reference : ReferenceTree
    """

    sample_ids: tuple[str, ...]
    sequences: tuple[str, ...]
    reads: sparse.csr_matrix
    counts: sparse.csr_matrix
    placement: SoftPlacement
    reference: ReferenceTree

    def distances(self, metric: PlacedMetric) -> Iterator[Tile]:
        """UniFrac between the samples, in tiles on and above the diagonal."""
        return placed_tiles(
            self.counts, *self.placement.with_words, self.placement.own_length, metric
        )

    def branches(self, metric: PlacedMetric) -> npt.NDArray[np.float32]:
        """What samples have of each branch of the reference, [N, E] (`sample_branches`)."""
        return sample_branches(self.counts, self.placement.probability, metric)

    def vectors(self) -> Iterator[npt.NDArray[np.float32]]:
        """Vectors of the samples, a block of samples at a time (`sample_vectors`)."""
        placement = self.placement
        strands = zip(self.sequences, placement.turned.tolist(), strict=True)
        read = [
            sequence.translate(COMPLEMENT)[::-1] if turned else sequence
            for sequence, turned in strands
        ]
        yield from sample_vectors(self.counts, *placement.with_words, placement.own_length, read)

    def taxa(self) -> Iterator[list[str]]:
        """The header, then for each ASV its likeliest taxon at each rank and the probability."""
        ranks = list(self.reference.taxa(self.placement))
        yield ["asv", *(name for rank, _, _ in ranks for name in (rank, f"{rank}.probability"))]
        for row, sequence in enumerate(self.sequences):
            cells = ((names[row], f"{probability[row]:.4f}") for _, names, probability in ranks)
            yield [sequence, *itertools.chain.from_iterable(cells)]
