"""The UniFrac metrics: a class for each, which says what it reads of samples and how it compares
two blocks of them.

To add a metric, name it in `config.UnifracMetric`, write a class with the methods `read` and
`compare` and return it in `metric_of`; on a GPU `TreeOnDevice.distances` computes it anew. Legend
for shapes: I and J samples of two blocks, C common and R rare branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.config import RootLength, UnifracMetric
from aam.diversity.branches import Block, Layout, groups
from aam.io.matrices import Matrix
from aam.io.phylogeny import Floats, Ints

# Returns ``a.T @ b`` for a [K, I] and b [K, J].
Multiply: TypeAlias = Callable[[Matrix, Matrix], Matrix]

# Branches taken at once in the weighted forms, so that they stay in the processor's cache, and
# those of them that are added up in float32 before float64 takes over.
BRANCHES = 128
ADDED = 32
# Pairs of samples with a rare branch in common that are looked at together.
PAIRS = 1 << 20


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
        Presence (bool) for ``unifrac``, shares of reads times lengths for the weighted forms,
        shares for ``generalized``.
    rare : csr float64 [B, R]
        The same of the rare branches, presence as 1.
    height : float64 [B]
        Sum over branches of the length times presence, share, or share to the power alpha.
    total : int [B]
    """

    common: npt.NDArray[Any]
    rare: sparse.csr_matrix
    height: Floats
    total: npt.NDArray[Any]


class Unweighted:
    """``1 - shared / union`` of the branch lengths, as ``(union - shared) / union`` (Lozupone &
    Knight 2005).
    """

    def read(self, layout: Layout, block: Block, dtype: npt.DTypeLike) -> Input:
        """Return the presence of each branch."""
        rare, common = block.rare.astype(np.float64), block.common > 0
        rare.data[:] = 1.0
        # By einsum, not by a product: BLAS would start threads for it.
        height = np.einsum("e,eb->b", layout.length, common.astype(np.float64))
        height += rare @ layout.rare_length
        return Input(common, rare, height, block.total)

    def compare(self, layout: Layout, left: Input, right: Input, multiply: Multiply) -> Floats:
        """Return the distances [I, J]."""
        shared = np.zeros((len(left.total), len(right.total)))
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


def _shares(block: Block) -> tuple[Floats, sparse.csr_matrix]:
    """Return the shares of reads below common and below rare branches."""
    reads = np.maximum(block.total, 1).astype(np.float64)
    rare = block.rare.astype(np.float64)
    rare.data /= np.repeat(reads, np.diff(rare.indptr))
    return block.common / reads, rare


@dataclass(frozen=True)
class Weighted:
    """``sum l |p - q|`` and, `normalized`, that over ``sum l (p + q)`` (Lozupone et al. 2007)."""

    normalized: bool

    def read(self, layout: Layout, block: Block, dtype: npt.DTypeLike) -> Input:
        """Return shares of reads times lengths."""
        share, rare = _shares(block)
        share *= layout.length[:, None]
        rare.data *= layout.rare_length[rare.indices]
        common = share.astype(dtype, copy=False)
        # The sum of the compared numbers, so that rounding cancels between similar samples.
        height = common.sum(axis=0, dtype=np.float64) + np.asarray(rare.sum(axis=1)).ravel()
        return Input(common, rare, height, block.total)

    def compare(self, layout: Layout, left: Input, right: Input, multiply: Multiply) -> Floats:
        """Return the distances [I, J], from ``|p - q| = p + q - 2 min(p, q)``."""
        overlap = np.zeros((len(left.total), len(right.total)))
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

    def read(self, layout: Layout, block: Block, dtype: npt.DTypeLike) -> Input:
        """Return shares of reads."""
        share, rare = _shares(block)
        height = np.einsum("e,eb->b", layout.length, _power(share, self.alpha))
        height += _with_data(rare, _power(rare.data, self.alpha)) @ layout.rare_length
        return Input(share.astype(dtype, copy=False), rare, height, block.total)

    def compare(self, layout: Layout, left: Input, right: Input, multiply: Multiply) -> Floats:
        """Return the distances [I, J], from ``|p - q| = p + q - 2 min(p, q)``.

        A branch that one sample lacks adds ``l p^alpha`` of the other to ``sum l w``, which so
        begins with those of each sample alone (`Input.height`); only branches that both have
        change it.
        """
        length = layout.length.astype(right.common.dtype)[:, None]
        weights = left.height[:, None] + right.height
        # What the samples alone add for the branches of the left, which the loop below visits.
        own = [length * _power(side.common, self.alpha) for side in (left, right)]
        of_right = np.zeros_like(weights)
        _add_product(of_right, (left.common > 0).astype(length.dtype), own[1], multiply)
        weights -= of_right + own[0].sum(axis=0, dtype=np.float64)[:, None]
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


def _power(
    values: npt.NDArray[Any], alpha: float, out: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
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
        stop = max(start + 1, int(np.searchsorted(ends, before + PAIRS, side="right")))
        entry = np.repeat(np.arange(start, stop), times[start:stop])
        branch = left.rare.indices[entry]
        place = np.arange(len(entry)) - (ends - times)[entry] + before + columns.indptr[branch]
        cell = sample[entry] * len(right.total) + columns.indices[place]
        yield cell, branch, left.rare.data[entry], columns.data[place]
        start = stop


def _added(sums: Floats, cell: Ints, values: Floats) -> None:
    """Add values to cells of `sums` [I, J]; a cell may occur several times."""
    sums += np.bincount(cell, values, sums.size).reshape(sums.shape)


def _rows_of(left: Input, right: Input) -> Iterator[tuple[int, Ints, Matrix, Matrix]]:
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


def _add_rows(sums: Floats, rows: Matrix) -> None:
    """Add the rows [K, J] to `sums` [J], a few of them in their own type before float64 takes
    over.
    """
    for start in range(0, len(rows), ADDED):
        sums += rows[start : start + ADDED].sum(axis=0)


def _add_product(sums: Floats, left: Matrix, right: Matrix, multiply: Multiply) -> None:
    """Add ``left.T @ right`` to `sums`, in float64 over groups of branches within which the product
    is float32.
    """
    for rows in groups(len(left)):
        sums += multiply(left[rows], right[rows])
