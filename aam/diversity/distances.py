"""Distances between samples, and their Faith PD: of one batch, and of whole tables in tiles;
Jaccard without a tree.

Legend for shapes: B or N samples, F features, T slots of features in all samples, E branches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from aam.config import RootLength
from aam.diversity import unifrac
from aam.diversity.unifrac import CountMatrix, Input, Multiply, UnifracOptions
from aam.io.matrices import DenseMatrix, Tile, fill_tiles
from aam.io.phylogeny import Phylogeny
from aam.typing import Bools, Floats, Integers, Ints

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# Samples whose presence is held at a time for Faith PD.
SAMPLES = 512

DEFAULT_OPTIONS = UnifracOptions()


def samples_without_tips(tips: Ints, counts: CountMatrix) -> Bools:
    """Samples, bool [N], without a read of a feature that has a tip; their distances are not
    defined.

    Parameters are those of `batch_unifrac`.
    """
    table = sparse.csr_matrix(counts)
    reads: Integers = np.asarray((table[:, np.flatnonzero(tips >= 0)] > 0).sum(axis=1)).ravel()
    return np.equal(reads, 0)


def inner(a: DenseMatrix, b: DenseMatrix) -> DenseMatrix:
    """Return ``a.T @ b`` by NumPy."""
    return a.T @ b


def multiply_on(device: torch.device) -> Multiply:
    """Return a function for ``a.T @ b`` on `device`, in the type of `a` and `b` and never in
    TF32.
    """
    import torch

    def multiply(a: DenseMatrix, b: DenseMatrix) -> DenseMatrix:
        left, right = (torch.from_numpy(matrix).to(device) for matrix in (a, b))
        return (left.T @ right).cpu().numpy()

    return multiply


def batch_unifrac(
    phylogeny: Phylogeny,
    tips: Ints,
    counts: CountMatrix,
    options: UnifracOptions = DEFAULT_OPTIONS,
    rows: slice = slice(None),
) -> DenseMatrix:
    """Return the distances between all samples of one batch, or of those at `rows` to all.

    Products are torch's: NumPy's own threads know nothing of ``--threads`` and wait on others'
    cores.

    Parameters
    ----------
    phylogeny : Phylogeny
    tips : int64 [F]
        Tip of each feature from `match_tips`; features at -1 are left out, so proportions refer to
        the rest.
    counts : [B, F]
        Integers, dense or CSR: whole numbers of 0 or more; of others the fraction is cut off.
    options : UnifracOptions
    rows : slice

    Returns
    -------
    float32 or float64 [B, B], or as many rows of it
        Symmetric, zero diagonal. As in scikit-bio a sample without reads on the tree is at distance
        1 from any other (for ``weighted``: at the other's mean height) and at 0 from another such
        sample.
    """
    import torch

    branches, counts_by_tip = unifrac.on_tree(phylogeny, tips, counts, options.root_length)
    layout, counts_by_tip = unifrac.local_layout(branches, counts_by_tip)
    right = unifrac.metric_of(options).read(layout, counts_by_tip, np.float64)
    everything = len(right.height[rows]) == len(right.height)
    left = right if everything else right.of(rows)
    result = unifrac.between(layout, left, right, options, multiply_on(torch.device("cpu")))
    if everything:
        mirror(result)
    return result if options.double else result.astype(np.float32)


def mirror(distances: DenseMatrix) -> None:
    """Mirror the part of a square matrix above its diagonal, and set the diagonal to 0."""
    upper = np.triu(distances, 1)
    np.add(upper, upper.T, out=distances)


def faith_pd(
    phylogeny: Phylogeny, tips: Ints, counts: CountMatrix, root_length: RootLength = "include"
) -> Floats:
    """Return Faith's phylogenetic diversity (Faith 1992): length of all branches above each
    sample's features.

    Parameters are those of `batch_unifrac`; returns float64 [N].
    """
    branches, counts_by_tip = unifrac.on_tree(phylogeny, tips, counts, root_length)
    result = np.zeros(counts_by_tip.shape[0])
    for part in blocks_of(len(result), SAMPLES):
        layout, counts_by_present = unifrac.local_layout(branches, counts_by_tip[part])
        present = (unifrac.reads_below(layout, counts_by_present)[0] > 0).astype(np.float64)
        result[part] = np.einsum("e,eb->b", layout.length, present)
    return result


def jaccard(values: sparse.csr_matrix) -> Floats:
    """Return the share of the columns of two samples that only one of them has (Jaccard 1912),
    float64 [B, B]; `values` is CSR [B, F], and what is above 0 is present.
    """
    # Imported here: it takes 0.2 s, and few commands need it.
    from scipy.spatial.distance import pdist, squareform

    present = values[:, np.unique(values.indices)].toarray() > 0
    return np.asarray(squareform(pdist(present, "jaccard")))


TILE = 512
# Samples of a tile on the diagonal that are compared with those from themselves on.
STRIP = 128
# Tiles of each thread that are made before the first of them is taken.
AHEAD = 16

# Bytes per branch and sample of a block while it is made, all temporaries of the greediest metric
# included.
CELL = 40


def blocks_of(samples: int, size: int) -> list[slice]:
    """Return the samples of each block of at most `size`."""
    return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]


def tile_pairs(blocks: int) -> list[tuple[int, int]]:
    """Pairs of blocks on and above the diagonal."""
    return list(combinations_with_replacement(range(blocks), 2))


def _sizes(
    branches: int, options: UnifracOptions, memory_limit: int, threads: int
) -> tuple[int, int]:
    """Samples of a block, and blocks kept, with which all threads stay within the limit, if they
    can.
    """
    size = TILE
    while (needed := CELL * branches * size * threads) > memory_limit and size > 1:
        size //= 2
    stored = (1 if options.metric == "unifrac" else 8) * branches * size
    return size, max(2 * threads, (memory_limit - needed) // stored)


def unifrac_tiles(
    phylogeny: Phylogeny,
    tips: Ints,
    counts: CountMatrix,
    options: UnifracOptions = DEFAULT_OPTIONS,
    multiply: Multiply = inner,
    memory_limit: int = 1 << 29,
    threads: int = 1,
) -> Iterator[Tile]:
    """Yield the distances between all samples of a table, tile by tile on and above the diagonal.

    Parameters
    ----------
    phylogeny, tips, counts, options, multiply
        As for `batch_unifrac`. NumPy's products run on one thread meanwhile, each tile on its own.
    memory_limit : int
        Bytes for the tiles in work with all temporaries, table and result not counted.
    threads : int

    Yields
    ------
    rows, columns, tile
        Two slices of samples and the distances between them; `columns` never begin before `rows`,
        and the mirror image below the diagonal is left to whoever stores the tile.
    """
    branches, by_tip = unifrac.on_tree(phylogeny, tips, counts, options.root_length)
    single = options.metric == "unifrac" and not options.double
    common, shares = unifrac.branch_shares(branches, by_tip)
    metric = unifrac.metric_of(options)
    is_weighted = isinstance(metric, unifrac.Weighted)
    layout = unifrac.make_layout(branches, common, shares if is_weighted else None, single)
    size, cached_blocks = _sizes(max(len(layout.length), 1), options, memory_limit, threads)
    real = np.float64 if options.double else np.float32
    blocks = blocks_of(by_tip.shape[0], size)

    @functools.lru_cache(cached_blocks)
    def read(block: int) -> Input:
        return metric.read(layout, by_tip[blocks[block]], real)

    def tile(pair: tuple[int, int]) -> Tile:
        i, j = pair
        distances = np.zeros((len(read(i).height), len(read(j).height)))
        # Of a tile on the diagonal most of the part below it is left out.
        for rows in blocks_of(len(distances), STRIP) if i == j else [slice(None)]:
            columns = slice(rows.start, None)
            sides = read(i).of(rows), read(j).of(columns)
            distances[rows, columns] = unifrac.between(layout, *sides, options, multiply)
        if i == j:
            mirror(distances)
        return blocks[i], blocks[j], distances if options.double else distances.astype(np.float32)

    pairs = tile_pairs(len(blocks))
    with threadpool_limits(1, user_api="blas"):
        if threads == 1:
            yield from map(tile, pairs)
            return
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, len(pairs), AHEAD * threads):
                yield from pool.map(tile, pairs[start : start + AHEAD * threads])


def unifrac_matrix(
    tree: Phylogeny,
    tips: Ints,
    counts: CountMatrix,
    options: UnifracOptions = DEFAULT_OPTIONS,
    threads: int = 1,
) -> DenseMatrix:
    """Return all tiles of `unifrac_tiles` put together in memory: float32 or float64 [N, N]."""
    samples = counts.shape[0]
    result = np.zeros((samples, samples), np.float64 if options.double else np.float32)
    fill_tiles(result, unifrac_tiles(tree, tips, counts, options, threads=threads))
    return result


# --- a batch on a GPU, by operations of constant shape that wait for no host ----------------------

# Most numbers that the branches above all features, and the reads of a batch below all branches,
# may take: 0.5 GB. The loader computes the distances of larger trees.
MOST_NUMBERS = 1 << 26
# Numbers of the temporaries of a chunk of the generalized metric: 32 MB.
CHUNK_NUMBERS = 1 << 22


class TreeOnDevice:
    """The branches above each feature of a study, for distances between samples of its batches.

    Distances are computed in float64: reads add up without rounding, in any order.

    Parameters
    ----------
    phylogeny : Phylogeny
    tips : int64 [F]
        Tip of each feature; features at -1 are left out.
    options : UnifracOptions
    device : torch.device
    """

    def __init__(
        self, phylogeny: Phylogeny, tips: Ints, options: UnifracOptions, device: torch.device
    ) -> None:
        import torch

        self.options = options
        on_tree = tips >= 0
        present = np.unique(tips[on_tree])
        branches = unifrac.branches_above(phylogeny, present, options.root_length)
        number = len(branches.length)
        tip_branches = unifrac.make_layout(branches, np.zeros(number, bool)).rare.tocsr()
        depth = np.diff(tip_branches.indptr)
        slot = np.arange(tip_branches.nnz) - np.repeat(tip_branches.indptr[:-1], depth)
        # The branch `number` has no length and stands above nothing.
        above_tip = np.full((len(present) + 1, int(depth.max(initial=1))), number)
        above_tip[np.repeat(np.arange(len(present)), depth), slot] = tip_branches.indices
        above = above_tip[np.where(on_tree, np.searchsorted(present, tips), len(present))]
        self.above = torch.from_numpy(above).to(device)
        self.on_tree = torch.from_numpy(on_tree.astype(np.float64)).to(device)
        self.length = torch.from_numpy(np.append(branches.length, 0.0)).to(device)

    def fits(self, samples: int) -> bool:
        """Whether batches of this number of samples of a rank need little memory."""
        return max(self.above.numel(), samples * len(self.length)) <= MOST_NUMBERS

    def distances(
        self,
        feature: Tensor,
        row: Tensor,
        counts: Tensor,
        samples: Sequence[int],
        slots: Sequence[int],
        rank: int = 0,
    ) -> Tensor:
        """Return the distances between the samples of a rank and those of all, as `batch_unifrac`
        does.

        The samples of all ranks are read together where that needs little memory, else one rank
        after the other: the size of a tree does not depend on the number of ranks.

        Parameters
        ----------
        feature, row : int64 [T]
            The feature of each slot, and the sample that it belongs to, of all ranks.
        counts : float [T]
            Rarefied reads; 0 is padding.
        samples, slots : sequence of int
            Samples and slots of each rank.
        rank : int
            Whose samples, B of them.

        Returns
        -------
        float64 [B, all_B]
        """
        import torch

        start = sum(samples[:rank])
        if self.fits(sum(samples)):
            both = self._read(feature, row, counts, sum(samples))
            rows = slice(start, start + samples[rank])
            return self._between(tuple(part[rows] for part in both), both)
        split = (values.split([*slots]) for values in (feature, row, counts))
        parts = zip(*split, np.cumsum((0, *samples)).tolist(), samples, strict=False)
        blocks = [(of, at - first, reads, number) for of, at, reads, first, number in parts]
        left = self._read(*blocks[rank])
        return torch.cat([self._between(left, self._read(*block)) for block in blocks], dim=1)

    def _read(
        self, feature: Tensor, row: Tensor, counts: Tensor, samples: int
    ) -> tuple[Tensor, Tensor]:
        """Return what the metric compares of each sample, ``[B, E]``, and its height ``[B]``: the
        presence of branches, their length times the share of reads below, or that share.
        """
        branches, reads = len(self.length), counts.to(self.length)
        place = (row[:, None] * branches + self.above[feature]).flatten()
        values = reads[:, None].expand(-1, self.above.shape[1]).flatten()
        below = self.length.new_zeros(samples * branches).index_add(0, place, values)
        below = below.view(samples, branches)
        if self.options.metric == "unifrac":
            present = (below > 0).to(below)
            return present, present @ self.length
        total = self.length.new_zeros(samples)
        total = total.index_add(0, row, reads * self.on_tree[feature])
        shares = below / total.clamp_min(1)[:, None]
        if self._is_plain:
            mass = shares * self.length
            return mass, mass.sum(dim=1)
        return shares, total

    @property
    def _is_plain(self) -> bool:
        """Whether differences of shares are the distance, up to a factor."""
        return self.options.metric != "generalized" or self.options.alpha == 1

    def _between(self, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
        """Return the distances between samples as `_read` gives them."""
        import torch

        (rows, row_height), (columns, height) = left, right
        heights = row_height[:, None] + height
        if self.options.metric == "unifrac":
            shared = (rows * self.length) @ columns.T
            normalizer = heights - shared
            apart = normalizer - shared
        elif self._is_plain:
            # The sum over branches of length times difference is the distance of the city block.
            apart, normalizer = torch.cdist(rows, columns, p=1.0), heights
        else:
            apart, normalizer = self._generalized(rows, columns)
        is_plain = self.options.metric == "weighted"
        result = apart if is_plain else (apart / normalizer).where(normalizer > 0, 0.0)
        return result.clamp_min(0)

    def _generalized(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of the generalized metric (Chen et al. 2012), some rows at a time."""
        import torch

        apart, totals = [], []
        for mine in rows.split(max(1, CHUNK_NUMBERS // columns.numel())):
            both = mine[:, None] + columns
            # A branch above neither sample counts nothing.
            weight = both.pow(self.options.alpha).where(both > 0, 0.0)
            ratio = (mine[:, None] - columns).abs() / both.clamp_min(1e-30)
            apart.append((weight * ratio) @ self.length)
            totals.append(weight @ self.length)
        return torch.cat(apart), torch.cat(totals)
