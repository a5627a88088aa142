"""Reads of samples below each branch, for UniFrac: dense for common branches, sparse for rare ones.

Tips stand in post-order, so the reads below a branch are a difference of two cumulative sums, exact
in integers. Legend for shapes: B or N samples, F features, U tips present, E branches, C common and
R rare ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.config import RootLength
from aam.errors import InputError
from aam.io.phylogeny import Bools, Floats, Ints, Phylogeny, present_ranges, range_starts

Reads: TypeAlias = npt.NDArray[np.integer[Any]]
Counts: TypeAlias = npt.NDArray[Any] | sparse.csr_matrix | sparse.csr_array

# A branch that fewer samples have is rare: visiting the pairs of samples that share it takes less
# time than all pairs.
RARE = 0.05
# Rare branches above more tips than these count as common, so that the matrix of tips and branches
# stays small.
RARE_TIPS = 256
# Samples on which the share of samples with a branch is estimated.
ESTIMATED_ON = 256
# Common branches that are multiplied together, and fewer of the longest; see `exact_in_single`.
GROUP, FIRST_GROUP = 128, 16
SINGLE_BITS = 24


@dataclass(frozen=True)
class Branches:
    """The distinct branches above some tips, up to the original root.

    Attributes
    ----------
    lo, hi : int64 [E]
        Each branch stands above the tips ``lo:hi``, counted among those present.
    length : float64 [E]
        Summed over branches above the same tips, so E < 2 U whatever the size of the tree.
    tips : int
        U, the tips present.
    """

    lo: Ints
    hi: Ints
    length: Floats
    tips: int

    def above(self, tips: Ints) -> Branches:
        """Return the branches above some of the tips (sorted, distinct)."""
        kept, lo, hi = present_ranges(self.lo, self.hi, tips, self.tips)
        # Branches above the same tips are neighbours now: those between them lost all theirs.
        starts = range_starts(lo, hi)
        length = np.add.reduceat(self.length[kept], starts) if len(starts) else np.zeros(0)
        return Branches(lo[starts], hi[starts], length, len(tips))


def branches_above(phylogeny: Phylogeny, tips: Ints, root_length: RootLength) -> Branches:
    """Return the branches above some tips (sorted, distinct)."""
    end = len(phylogeny.parent) - (root_length == "exclude")
    lo, hi, length = phylogeny.lo[:end], phylogeny.hi[:end], phylogeny.length[:end]
    return Branches(lo, hi, length, len(phylogeny.tips)).above(tips)


def on_tree(
    phylogeny: Phylogeny, tips: Ints, counts: Counts, root_length: RootLength
) -> tuple[Branches, sparse.csr_matrix]:
    """Return the branches above the features present, and their counts, one column per tip; refuse
    what is no count.
    """
    table = sparse.coo_matrix(counts)
    kept = (tips[table.col] >= 0) & (table.data != 0)
    data = table.data[kept]
    if not (np.isfinite(data).all() and (data > 0).all() and (data == np.rint(data)).all()):
        expected = "expected reads; pass a table of counts, without any transformation"
        raise InputError(f"the counts are negative, not finite or not whole, {expected}")
    present, columns = np.unique(tips[table.col[kept]], return_inverse=True)
    places, shape = (table.row[kept], columns), (table.shape[0], len(present))
    by_tip = sparse.csr_matrix((data.astype(np.int64), places), shape=shape)
    if shape[0] and by_tip.sum(axis=1).max() < 2**31:
        by_tip = by_tip.astype(np.int32)
    return branches_above(phylogeny, present.astype(np.int64), root_length), by_tip


@dataclass(frozen=True)
class Layout:
    """Dense and sparse branches, and the way from the reads of the tips to theirs.

    Attributes
    ----------
    length : float64 [C]
        Lengths of the common branches.
    lo, hi : int64 [C]
        The intervals of tips below each of them are ``lo:hi``.
    interval : int64 [U]
        Interval of each tip: no common branch begins or ends inside one.
    rare_length : float64 [R]
        Lengths of the rare branches.
    rare : csc [U, R]
        1 where a rare branch stands above a tip.
    single : bool
        Whether the lengths of common branches are rounded by `exact_in_single`.
    """

    length: Floats
    lo: Ints
    hi: Ints
    interval: Ints
    rare_length: Floats
    rare: sparse.csc_matrix
    single: bool


def groups(branches: int) -> Iterator[slice]:
    """Yield slices of branches, the first ones short and each twice as long as the one before, up
    to `GROUP`.
    """
    start, size = 0, FIRST_GROUP
    while start < branches:
        yield slice(start, start + size)
        start, size = start + size, min(2 * size, GROUP)


def exact_in_single(length: Floats) -> Floats:
    """Round lengths [C], in descending order, so that sums within one of `groups` are exact in
    float32, in any order.

    All sums of a group are multiples of one power of two, and below 2^24 of it. A length moves by
    at most 2^-24 of the sum of its group, which is why the longest branches stand in small groups.
    """
    rounded = np.empty_like(length)
    for rows in groups(len(length)):
        # One bit less, because rounding up may add half a unit for each branch.
        unit = 2.0 ** (np.frexp(length[rows].sum())[1] - SINGLE_BITS + 1)
        rounded[rows] = np.rint(length[rows] / unit) * unit
    return rounded


def common_branches(branches: Branches, counts: sparse.csr_matrix) -> Bools:
    """Branches, bool [E], of many samples, estimated on `ESTIMATED_ON` of them."""
    samples = counts.shape[0]
    chosen = np.linspace(0, samples - 1, min(samples, ESTIMATED_ON)).astype(np.int64)
    sampled = counts[np.unique(chosen)]
    present = np.unique(sampled.indices).astype(np.int64)
    kept, lo, hi = present_ranges(branches.lo, branches.hi, present, branches.tips)
    share = np.zeros(len(branches.lo))
    share[kept] = (_below(sampled[:, present], lo, hi) > 0).mean(axis=1)
    return np.asarray((share >= RARE) | (branches.hi - branches.lo > RARE_TIPS))


def make_layout(branches: Branches, common: Bools | None = None, single: bool = False) -> Layout:
    """Return the layout with all branches common, or those of `common`; `single` rounds lengths for
    float32 products.

    Common branches are sorted by length, so that lengths that are rounded together are similar.
    """
    if common is None:
        common = np.ones(len(branches.lo), bool)
    order = np.flatnonzero(common)
    order = order[np.argsort(-branches.length[order], kind="stable")]
    lo, hi = branches.lo[order], branches.hi[order]
    bounds = np.unique(np.r_[0, lo, hi, branches.tips])
    rare_lo, sizes = branches.lo[~common], (branches.hi - branches.lo)[~common]
    starts = np.r_[0, np.cumsum(sizes)]
    tips = np.arange(starts[-1]) + np.repeat(rare_lo - starts[:-1], sizes)
    ones, length = np.ones(len(tips), np.int32), branches.length[order]
    rare = sparse.csc_matrix((ones, tips, starts), shape=(branches.tips, len(rare_lo)))
    length = exact_in_single(length) if single else length
    interval = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    lo, hi = np.searchsorted(bounds, lo), np.searchsorted(bounds, hi)
    return Layout(length, lo, hi, interval, branches.length[~common], rare, single)


def _below(counts: sparse.csr_matrix, lo: Ints, hi: Ints) -> Reads:
    """Return the reads [C, B] in the columns ``lo:hi`` of `counts` [B, columns], of each pair of
    them.
    """
    sums = np.zeros((counts.shape[1] + 1, counts.shape[0]), counts.dtype)
    sums[1:] = counts.T.toarray()
    # A tenth of the time of np.cumsum(axis=0), which walks down one column after the other.
    for above, row in pairwise(sums):
        row += above
    reads = sums[hi]
    reads -= sums[lo]
    return reads


@dataclass(frozen=True)
class Block:
    """The reads of some samples below each branch.

    Attributes
    ----------
    common : int [C, B]
    rare : csr [B, R]
    total : int [B]
        Reads of each sample on the tree.
    """

    common: Reads
    rare: sparse.csr_matrix
    total: Reads


def make_block(layout: Layout, counts: sparse.csr_matrix) -> Block:
    """Return the reads of some samples, from their counts by tip, CSR [B, U]."""
    columns = layout.interval[counts.indices]
    intervals = int(layout.interval.max(initial=-1)) + 1
    parts, shape = (counts.data, columns, counts.indptr), (counts.shape[0], intervals)
    by_interval = sparse.csr_matrix(parts, shape=shape)
    total = np.asarray(counts.sum(axis=1, dtype=counts.dtype)).ravel()
    return Block(_below(by_interval, layout.lo, layout.hi), (counts @ layout.rare).tocsr(), total)


def local_block(branches: Branches, counts: sparse.csr_matrix) -> tuple[Layout, Block]:
    """Return the branches above a few samples, all of them dense, and the reads of these
    samples.
    """
    present = np.unique(counts.indices).astype(np.int64)
    layout = make_layout(branches.above(present))
    return layout, make_block(layout, counts[:, present])
