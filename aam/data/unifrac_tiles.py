"""UniFrac of a whole table, tile by tile within a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy import sparse

from aam.data.phylogeny import Ints, Phylogeny
from aam.data.unifrac import TILE, Branches, Counts, Matrix, Tile, UnifracOptions, distances_between, on_tree
from aam.errors import InputError

# Bytes per branch and sample of a pair of tiles, all temporaries of the greediest metric included.
CELL = 40

DEFAULTS = UnifracOptions()


def _tile_size(branches: Branches, counts: sparse.csr_matrix, memory_limit: int) -> int:
    """Return the samples of a tile so that a pair of tiles and its temporaries stay within `memory_limit` bytes."""
    size = TILE
    while True:
        starts = range(0, counts.shape[0], size)
        widest = max((len(np.unique(counts[start : start + size].indices)) for start in starts), default=0)
        needed = CELL * min(len(branches.length), 4 * widest) * 2 * size
        if needed <= memory_limit:
            return size
        if size == 1:
            raise InputError(f"the memory limit is {memory_limit} bytes, expected at least {needed}")
        size //= 2


def unifrac_tiles(
    phylogeny: Phylogeny,
    tips: Ints,
    counts: Counts,
    options: UnifracOptions = DEFAULTS,
    device: torch.device | None = None,
    memory_limit: int = 1 << 29,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Tile]:
    """Yield the distances between all samples of a table, tile by tile on and above the diagonal.

    Parameters
    ----------
    phylogeny, tips, counts, options
        As for `batch_unifrac`.
    device : torch.device, optional
        Where the products of ``unifrac`` run; without one NumPy does them, as it does for MPS (no float64)
        and for the weighted forms.
    memory_limit : int
        Bytes for one pair of tiles with all temporaries, table and result not counted.
    progress : callable, optional
        Called with the pairs of samples done and their number.

    Yields
    ------
    rows, columns, tile
        Two slices of samples and the distances between them; `columns` never begin before `rows`, and the
        mirror image below the diagonal is left to whoever stores the tile.

    Raises
    ------
    InputError
        As `batch_unifrac`, and a memory limit too low for the table.
    """
    branches, counts_by_tip = on_tree(phylogeny, tips, counts, options.root_length)
    samples = counts_by_tip.shape[0]
    size = _tile_size(branches, counts_by_tip, memory_limit)
    where = None if device is None or device.type == "mps" else device
    done = 0
    for i in range(0, samples, size):
        rows = slice(i, min(i + size, samples))
        for j in range(i, samples, size):
            columns = slice(j, min(j + size, samples))
            pair, left, right = counts_by_tip[rows], slice(None), slice(None)
            if i != j:
                pair = sparse.vstack([pair, counts_by_tip[columns]], format="csr")
                left, right = slice(rows.stop - i), slice(rows.stop - i, None)
            distances = distances_between(branches, pair, left, right, options, where)
            yield rows, columns, distances
            done += distances.size if i == j else 2 * distances.size
            if progress:
                progress(done, samples * samples)


def unifrac_matrix(phylogeny: Phylogeny, tips: Ints, counts: Counts, options: UnifracOptions = DEFAULTS) -> Matrix:
    """Return all tiles of `unifrac_tiles` put together in memory: float32 or float64 [N, N]."""
    samples = counts.shape[0]
    result = np.zeros((samples, samples), np.float64 if options.double else np.float32)
    for rows, columns, tile in unifrac_tiles(phylogeny, tips, counts, options):
        result[rows, columns] = tile
        result[columns, rows] = tile.T
    return result
