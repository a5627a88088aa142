"""UniFrac: reads of samples below each branch, and a class for each metric, which says what it
reads of samples and how it compares two blocks of them.

To add a metric, name it in `config.UnifracMetric`, write a class with the methods `read` and
`compare` and return it in `metric_of`; on a GPU `TreeOnDevice.distances` computes it anew.

Tips stand in post-order, so the reads below a branch are a difference of two cumulative sums, exact
in integers. Common branches are dense, rare ones sparse. Legend for shapes: B samples, I and J
samples of two blocks, U tips present, E branches, C common and R rare ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.config import RootLength, UnifracMetric
from aam.io.matrices import DenseMatrix
from aam.io.phylogeny import Phylogeny, present_ranges, range_starts
from aam.typing import Array, Bools, Floats, Integers, Ints

CountMatrix: TypeAlias = Array | sparse.csr_matrix | sparse.csr_array

# A branch that fewer samples have is rare: visiting the pairs of samples that share it takes less
# time than all pairs.
RARE_SHARE = 0.05
# Rare branches above more tips than these count as common, so that the matrix of tips and branches
# stays small.
RARE_TIPS = 256
# Samples on which the share of samples with a branch is estimated.
ESTIMATED_ON = 256
# Common branches that are multiplied together, and fewer of the longest; see `exact_in_single`.
BRANCH_GROUP, FIRST_GROUP = 128, 16
SINGLE_BITS = 24
# Returns ``a.T @ b`` for a [K, I] and b [K, J].
Multiply: TypeAlias = Callable[[DenseMatrix, DenseMatrix], DenseMatrix]

# A branch that more samples have is dense in the weighted forms: comparing it in all pairs takes
# less time than finding the samples that have it.
DENSE_SHARE = 0.5
# Branches taken at once in the weighted forms, and samples with which one is compared on dense
# branches, so that they stay in the processor's cache; branches that are added up in float32 before
# float64 takes over.
BRANCHES, SAMPLES_IN_CACHE = 128, 128
ADDED = 64
# Pairs of samples with a rare branch in common that are looked at together.
VISITED_PAIRS = 1 << 20


# --- branches ---------------------------------------------------------------------------------


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
        is_above, lo, hi = present_ranges(self.lo, self.hi, tips, self.tips)
        # Branches above the same tips are neighbours now: those between them lost all theirs.
        starts = range_starts(lo, hi)
        length = np.add.reduceat(self.length[is_above], starts) if len(starts) else np.zeros(0)
        return Branches(lo[starts], hi[starts], length, len(tips))


def branches_above(phylogeny: Phylogeny, tips: Ints, root_length: RootLength) -> Branches:
    """Return the branches above some tips (sorted, distinct)."""
    end = len(phylogeny.parent) - (root_length == "exclude")
    lo, hi, length = phylogeny.lo[:end], phylogeny.hi[:end], phylogeny.length[:end]
    return Branches(lo, hi, length, len(phylogeny.tips)).above(tips)


def on_tree(
    phylogeny: Phylogeny, tips: Ints, counts: CountMatrix, root_length: RootLength
) -> tuple[Branches, sparse.csr_matrix]:
    """Return the branches above the features present, and their counts, one column per tip."""
    table = sparse.coo_matrix(counts)
    has_reads = (tips[table.col] >= 0) & (table.data != 0)
    present, columns = np.unique(tips[table.col[has_reads]], return_inverse=True)
    places, shape = (table.row[has_reads], columns), (table.shape[0], len(present))
    by_tip = sparse.csr_matrix((table.data[has_reads].astype(np.int64), places), shape=shape)
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
    dense : int
        Number of the first common branches that most samples have, if they stand in this order.
    """

    length: Floats
    lo: Ints
    hi: Ints
    interval: Ints
    rare_length: Floats
    rare: sparse.csc_matrix
    single: bool
    dense: int = 0


def groups(branches: int) -> Iterator[slice]:
    """Yield slices of branches, the first ones short and each twice as long as the one before, up
    to `BRANCH_GROUP`.
    """
    start, size = 0, FIRST_GROUP
    while start < branches:
        yield slice(start, start + size)
        start, size = start + size, min(2 * size, BRANCH_GROUP)


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


def branch_shares(branches: Branches, counts: sparse.csr_matrix) -> tuple[Bools, Floats]:
    """Return which branches of many samples are common, bool [E], and the share of samples that
    have each, both estimated on `ESTIMATED_ON` of them.
    """
    samples = counts.shape[0]
    chosen = np.linspace(0, samples - 1, min(samples, ESTIMATED_ON)).astype(np.int64)
    sampled = counts[np.unique(chosen)]
    present = np.unique(sampled.indices).astype(np.int64)
    is_present, lo, hi = present_ranges(branches.lo, branches.hi, present, branches.tips)
    shares = np.zeros(len(branches.lo))
    shares[is_present] = (_below(sampled[:, present], lo, hi) > 0).mean(axis=1)
    return (shares >= RARE_SHARE) | (branches.hi - branches.lo > RARE_TIPS), shares


def make_layout(
    branches: Branches,
    common: Bools | None = None,
    shares: Floats | None = None,
    single: bool = False,
) -> Layout:
    """Return the layout with all branches common, or those of `common`; `single` rounds lengths for
    float32 products.

    With the shares of samples that have each branch, the dense ones come first. Otherwise common
    branches are sorted by length, so that lengths that are rounded together are similar.
    """
    if common is None:
        common = np.ones(len(branches.lo), bool)
    order = np.flatnonzero(common)
    descending = branches.length if shares is None else shares
    order = order[np.argsort(-descending[order], kind="stable")]
    dense = 0 if shares is None else int((shares[order] > DENSE_SHARE).sum())
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
    return Layout(length, lo, hi, interval, branches.length[~common], rare, single, dense)


def _below(counts: sparse.csr_matrix, lo: Ints, hi: Ints) -> Integers:
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


def reads_below(layout: Layout, counts: sparse.csr_matrix) -> tuple[Integers, sparse.csr_matrix]:
    """Return the reads of some samples, from their counts by tip, CSR [B, U].

    Returns
    -------
    common : int [C, B]
    rare : csr [B, R]
    """
    columns = layout.interval[counts.indices]
    intervals = int(layout.interval.max(initial=-1)) + 1
    parts, shape = (counts.data, columns, counts.indptr), (counts.shape[0], intervals)
    by_interval = sparse.csr_matrix(parts, shape=shape)
    return _below(by_interval, layout.lo, layout.hi), (counts @ layout.rare).tocsr()


def local_layout(branches: Branches, counts: sparse.csr_matrix) -> tuple[Layout, sparse.csr_matrix]:
    """Return the branches above a few samples, all of them dense, and the counts of their tips."""
    present = np.unique(counts.indices).astype(np.int64)
    return make_layout(branches.above(present)), counts[:, present]


# --- metrics ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnifracOptions:
    """The distance and its precision.

    Attributes
    ----------
    metric : str
        ``unifrac`` (unweighted; Lozupone & Knight 2005), ``weighted`` and ``weighted-normalized``
        (Lozupone et al. 2007), ``generalized`` (Chen et al. 2012).
    alpha : float
        Weight of abundant branches in ``generalized``: 0 to 1, 1 is ``weighted-normalized``.
    root_length : str
        Whether the root's own length counts: scikit-bio includes it, ssu excludes it; most trees
        give none.
    double : bool
        Return float64 instead of float32. Batches are computed in float64 either way, tables in
        this type.
    """

    metric: UnifracMetric = "unifrac"
    alpha: float = 0.5
    root_length: RootLength = "include"
    double: bool = False


@dataclass(frozen=True)
class Input:
    """Input of a metric from a block of samples.

    Attributes
    ----------
    common : [C, B]
        Presence (bool) for ``unifrac``, shares of reads times lengths for the weighted forms (C
        without the dense branches), shares for ``generalized``.
    rare : csr float64 [B, R]
        The same of the rare branches, presence as 1.
    height : float64 [B]
        Sum over branches of the length times presence, share, or share to the power alpha.
    dense : [B, D]
        Shares of reads times lengths on the dense branches for the weighted forms.
    """

    common: Array
    rare: sparse.csr_matrix
    height: Floats
    dense: Array | None = None

    def of(self, rows: slice) -> Input:
        """Return the input from some of the samples."""
        common = np.ascontiguousarray(self.common[:, rows])
        dense = None if self.dense is None else self.dense[rows]
        return Input(common, self.rare[rows], self.height[rows], dense)


class Unweighted:
    """``1 - shared / union`` of the branch lengths, as ``(union - shared) / union`` (Lozupone &
    Knight 2005).
    """

    def read(self, layout: Layout, counts: sparse.csr_matrix, dtype: npt.DTypeLike) -> Input:
        """Return the presence of each branch."""
        below, rare = reads_below(layout, counts)
        rare, common = rare.astype(np.float64), below > 0
        rare.data[:] = 1.0
        # By einsum, not by a product: BLAS would start threads for it.
        height = np.einsum("e,eb->b", layout.length, common.astype(np.float64))
        height += rare @ layout.rare_length
        return Input(common, rare, height)

    def compare(self, layout: Layout, left: Input, right: Input, multiply: Multiply) -> Floats:
        """Return the distances [I, J]."""
        shared = np.zeros((len(left.height), len(right.height)))
        # A group of the layout's lengths sums exactly in float32 where they were rounded for it.
        real = np.float32 if layout.single else np.float64
        for rows in groups(len(layout.length)):
            length = layout.length[rows].astype(real)[:, None]
            shared += multiply(left.common[rows] * length, right.common[rows].astype(real))
        if left.rare.nnz and right.rare.nnz:
            weighted = _with_data(left.rare, layout.rare_length[left.rare.indices])
            shared += (weighted @ right.rare.T).toarray()
        union = left.height[:, None] + right.height - shared
        return _ratio(union - shared, union)


def _shares(layout: Layout, counts: sparse.csr_matrix) -> tuple[Floats, sparse.csr_matrix]:
    """Return the shares of reads below common and below rare branches."""
    common, rare = reads_below(layout, counts)
    total = np.asarray(counts.sum(axis=1, dtype=counts.dtype)).ravel()
    reads, rare = np.maximum(total, 1).astype(np.float64), rare.astype(np.float64)
    rare.data /= np.repeat(reads, np.diff(rare.indptr))
    return common / reads, rare


@dataclass(frozen=True)
class Weighted:
    """``sum l |p - q|`` and, `normalized`, that over ``sum l (p + q)`` (Lozupone et al. 2007)."""

    normalized: bool

    def read(self, layout: Layout, counts: sparse.csr_matrix, dtype: npt.DTypeLike) -> Input:
        """Return shares of reads times lengths."""
        share, rare = _shares(layout, counts)
        share *= layout.length[:, None]
        rare.data *= layout.rare_length[rare.indices]
        common = share.astype(dtype, copy=False)
        # The sum of the compared numbers, so that rounding cancels between similar samples.
        height = common.sum(axis=0, dtype=np.float64) + np.asarray(rare.sum(axis=1)).ravel()
        # Zeros fill the last group of branches.
        dense = np.zeros((len(height), -(-layout.dense // ADDED) * ADDED), common.dtype)
        dense[:, : layout.dense] = common[: layout.dense].T
        return Input(common[layout.dense :], rare, height, dense)

    def compare(self, layout: Layout, left: Input, right: Input, multiply: Multiply) -> Floats:
        """Return the distances [I, J], from ``|p - q| = p + q - 2 min(p, q)``."""
        overlap = _dense_overlap(left, right)
        for sample, _, mine, theirs in _rows_of(left, right):
            np.minimum(theirs, mine, out=theirs)
            _add_rows(overlap[sample], theirs)
        for cell, _, mine, theirs in _rare_pairs(left, right):
            _added(overlap, cell, np.minimum(mine, theirs))
        both = left.height[:, None] + right.height
        apart = both - 2 * overlap
        return _ratio(apart, both) if self.normalized else apart


@dataclass(frozen=True)
class Generalized:
    """``sum l w |p - q| / (p + q)`` over ``sum l w``, w = ``(p + q)^alpha`` (Chen et al. 2012)."""

    alpha: float

    def read(self, layout: Layout, counts: sparse.csr_matrix, dtype: npt.DTypeLike) -> Input:
        """Return shares of reads."""
        share, rare = _shares(layout, counts)
        height = np.einsum("e,eb->b", layout.length, _power(share, self.alpha))
        height += _with_data(rare, _power(rare.data, self.alpha)) @ layout.rare_length
        return Input(share.astype(dtype, copy=False), rare, height)

    def compare(self, layout: Layout, left: Input, right: Input, multiply: Multiply) -> Floats:
        """Return the distances [I, J], from ``|p - q| = p + q - 2 min(p, q)``.

        A branch that one sample lacks adds ``l p^alpha`` of the other to ``sum l w``, which so
        begins with those of each sample alone (`Input.height`); only branches that both have
        change it.
        """
        length = layout.length.astype(right.common.dtype)[:, None]
        weights = left.height[:, None] + right.height
        # What the samples alone add for the branches of the left, which the loop below visits.
        powers = [length * _power(side.common, self.alpha) for side in (left, right)]
        right_sums = np.zeros_like(weights)
        present = (left.common > 0).astype(length.dtype)
        # In float64 over groups of branches within which the product is float32.
        for rows in groups(len(present)):
            right_sums += multiply(present[rows], powers[1][rows])
        weights -= right_sums + powers[0].sum(axis=0, dtype=np.float64)[:, None]
        overlap = np.zeros_like(weights)
        buffer = np.empty((BRANCHES, right.common.shape[1]), right.common.dtype)
        for sample, part, mine, theirs in _rows_of(left, right):
            both = np.add(theirs, mine, out=buffer[: len(part)])
            np.minimum(theirs, mine, out=theirs)
            theirs /= both
            weight = _power(both, self.alpha, out=both)
            weight *= length[part]
            _add_rows(weights[sample], weight)
            theirs *= weight
            _add_rows(overlap[sample], theirs)
        for cell, branch, mine, theirs in _rare_pairs(left, right):
            both, lengths = mine + theirs, layout.rare_length[branch]
            weight = lengths * _power(both, self.alpha)
            apart = lengths * (_power(mine, self.alpha) + _power(theirs, self.alpha))
            _added(weights, cell, weight - apart)
            _added(overlap, cell, weight * np.minimum(mine, theirs) / both)
        return _ratio(weights - 2 * overlap, weights)


def metric_of(options: UnifracOptions) -> Unweighted | Weighted | Generalized:
    """Return the metric that `options` name."""
    if options.metric == "unifrac":
        return Unweighted()
    if options.metric == "generalized" and options.alpha != 1:
        return Generalized(options.alpha)
    return Weighted(normalized=options.metric != "weighted")


def between(
    layout: Layout, left: Input, right: Input, options: UnifracOptions, multiply: Multiply
) -> Floats:
    """Return the distances [I, J] between the samples of two blocks, before rounding to the asked
    type.
    """
    result = metric_of(options).compare(layout, left, right, multiply)
    return np.maximum(result, 0.0, out=result)


def _ratio(part: Floats, total: Floats) -> Floats:
    """Return ``part / total`` with 0 / 0 = 0."""
    return np.divide(part, total, out=np.zeros_like(part), where=total > 0)


def _power(values: Array, alpha: float, out: Array | None = None) -> Array:
    """Return ``values ** alpha`` with 0 ** 0 = 0; a square root where that is meant, for it is much
    faster.
    """
    out = np.zeros_like(values) if out is None else out
    if alpha == 0.5:
        np.sqrt(values, out=out)
    else:
        np.power(values, values.dtype.type(alpha), out=out, where=values > 0)
    return out


def _with_data(matrix: sparse.csr_matrix, data: Floats) -> sparse.csr_matrix:
    """Return a matrix with other values at the same places."""
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _rare_pairs(left: Input, right: Input) -> Iterator[tuple[Ints, Ints, Floats, Floats]]:
    """Yield the pairs of samples that share a rare branch: cell of [I, J] flattened, branch, value
    of each sample.
    """
    columns = right.rare.tocsc()
    times = np.diff(columns.indptr)[left.rare.indices].astype(np.int64)
    ends = np.cumsum(times)
    sample = np.repeat(np.arange(left.rare.shape[0]), np.diff(left.rare.indptr))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + VISITED_PAIRS, side="right")))
        entry = np.repeat(np.arange(start, stop), times[start:stop])
        branch = left.rare.indices[entry]
        place = np.arange(len(entry)) - (ends - times)[entry] + before + columns.indptr[branch]
        cell = sample[entry] * len(right.height) + columns.indices[place]
        yield cell, branch, left.rare.data[entry], columns.data[place]
        start = stop


def _added(sums: Floats, cell: Ints, values: Floats) -> None:
    """Add values to cells of `sums` [I, J]; a cell may occur several times."""
    sums += np.bincount(cell, values, sums.size).reshape(sums.shape)


def _rows_of(left: Input, right: Input) -> Iterator[tuple[int, Ints, DenseMatrix, DenseMatrix]]:
    """Yield a sample of the left, some of its common branches, its values there and those of the
    right [rows, J].

    Only the branches of the sample are visited. The values of the right stand in a buffer that may
    be changed.
    """
    mine = np.ascontiguousarray(left.common.T)
    buffer = np.empty((BRANCHES, right.common.shape[1]), right.common.dtype)
    for sample, values in enumerate(mine):
        rows = np.flatnonzero(values)
        for start in range(0, len(rows), BRANCHES):
            part = rows[start : start + BRANCHES]
            # The mode skips a copy that take would make to stay whole on an error.
            theirs = right.common.take(part, axis=0, out=buffer[: len(part)], mode="clip")
            yield sample, part, values[part, None], theirs


def _dense_overlap(left: Input, right: Input) -> Floats:
    """Return the sums of the lesser number of each dense branch, [I, J].

    The branches of a sample stand side by side: the minimum of two rows takes NumPy a third of the
    time of that of a row and a number.
    """
    overlap = np.zeros((len(left.height), len(right.height)))
    if left.dense is None or right.dense is None or not right.dense.size:
        return overlap
    ones, of_groups = np.ones(ADDED, right.dense.dtype), np.ones(right.dense.shape[1] // ADDED)
    buffer = np.empty_like(right.dense[:SAMPLES_IN_CACHE])
    for start in range(0, len(right.dense), SAMPLES_IN_CACHE):
        theirs = right.dense[start : start + SAMPLES_IN_CACHE]
        lesser = buffer[: len(theirs)]
        for sample, mine in enumerate(left.dense):
            np.minimum(theirs, mine, out=lesser)
            sums = (lesser.reshape(-1, ADDED) @ ones).reshape(len(theirs), -1)
            overlap[sample, start : start + SAMPLES_IN_CACHE] = sums.astype(np.float64) @ of_groups
    return overlap


def _add_rows(sums: Floats, rows: DenseMatrix) -> None:
    """Add the rows [K, J] to `sums` [J]; a product takes half of the time of a sum."""
    ones = np.ones(ADDED, rows.dtype)
    for start in range(0, len(rows), ADDED):
        part = rows[start : start + ADDED]
        sums += ones[: len(part)] @ part
