"""The interface of plugins: a reference on which an encoder places the ASVs of a table.

The core knows these protocols only. A saved model keeps the arrays of its reference, and the entry
point ``encoder`` (group ``aam.encoders``) rebuilds the reference from them.

Legend for shapes: N or B samples, F ASVs of a table, L nucleotides, E numbers of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.data.tokens import Tokens
from aam.encoders import find_encoder
from aam.io.matrices import Tile
from aam.io.tables import AmpliconTable

PlacedMetric = Literal["unifrac", "weighted-normalized"]


# Numbers [B, E] of B samples of one table, from the columns of their ASVs, which the sample encoder
# reads in addition to the ASV vectors.
SampleInput: TypeAlias = Callable[[Sequence[npt.NDArray[np.integer[Any]]]], torch.Tensor]


class PlacedSamples(Protocol):
    """Samples of a table on a reference: distances and vectors that need no tree of their ASVs."""

    def distances(self, metric: PlacedMetric) -> Iterator[Tile]:
        """Distances between the samples, in tiles on and above the diagonal."""
        ...

    def vectors(self) -> Iterator[npt.NDArray[np.float32]]:
        """Vectors of the samples, a block of samples at a time."""
        ...

    def taxa(self) -> Iterator[list[str]]:
        """Rows of a table of taxa: the header, then one row per ASV."""
        ...


class Reference(Protocol):
    """A reference of a plugin, such as a tree of known sequences."""

    @property
    def encoder(self) -> str:
        """Name of the entry point that rebuilds it."""
        ...

    @property
    def width(self) -> int:
        """Numbers of a sample that a network reads, E."""
        ...

    @property
    def vector_width(self) -> int:
        """Length of the vectors of `PlacedSamples.vectors`."""
        ...

    def sample_input(self, tokens: Tokens) -> SampleInput:
        """Place the ASVs of a table [F, L] once, for any number of batches."""
        ...

    def place(
        self, table: AmpliconTable, tokens: Tokens, counts: sparse.csr_matrix, source: str
    ) -> PlacedSamples:
        """Place the samples of a table with rarefied `counts` [N, F]; `source` names the table."""
        ...

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays of a saved model."""
        ...


def read_reference(encoder: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Reference:
    """Rebuild the reference of a saved model.

    Raises
    ------
    InputError
        The plugin that provides `encoder` is not installed.
    """
    reference: Reference = find_encoder(encoder).read_reference(arrays)
    return reference
