"""The UniFrac metrics between two blocks of samples. Legend: I and J samples, C common and R rare branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.config import RootLength, UnifracMetric
from aam.io.matrices import Matrix
from aam.io.phylogeny import Floats
from aam.unifrac import visits as unifrac_visits
from aam.unifrac.adjusted import Form, variance_adjusted
from aam.unifrac.blocks import Block, Layout, groups
from aam.unifrac.visits import MetricInput, Multiply, add_rows, added, power, rare_pairs, ratio, rows_of


@dataclass(frozen=True)
class UnifracOptions:
    """Which distance, and its precision.

    Attributes
    ----------
    metric : str
        ``unifrac`` (unweighted; Lozupone & Knight 2005), ``weighted`` and ``weighted-normalized``
        (Lozupone et al. 2007), ``generalized`` (Chen et al. 2012).
    alpha : float
        Weight of abundant branches in ``generalized``: 0 to 1, 1 is ``weighted-normalized``.
    root_length : str
        Whether the root's own length counts: scikit-bio includes it, ssu excludes it; most trees give none.
    double : bool
        Return float64 instead of float32. Batches are computed in float64 either way, tables in this type.
    empty : str
        Distances of samples without reads on the tree: ``scikit-bio`` gives what scikit-bio does (see
        `batch_unifrac`), ``nan`` gives NaN to every pair with such a sample, itself excepted.
    variance_adjusted : bool
        Divide the length of each branch by the standard deviation of its share, as Chang et al. 2011.
    """

    metric: UnifracMetric = "unifrac"
    alpha: float = 0.5
    root_length: RootLength = "include"
    double: bool = False
    empty: Literal["scikit-bio", "nan"] = "scikit-bio"
    variance_adjusted: bool = False


def make_input(layout: Layout, block: Block, options: UnifracOptions, dtype: npt.DTypeLike) -> MetricInput:
    """Return what the metric of `options` reads of a block; shares and reads are of type `dtype`."""
    rare = block.rare.astype(np.float64)
    if options.variance_adjusted:
        return MetricInput(block.common.astype(dtype), rare, np.zeros(len(block.total)), block.total)
    if options.metric == "unifrac":
        common = block.common > 0
        rare.data[:] = 1.0
        # By einsum, not by a product: BLAS would start threads for it.
        height = np.einsum("e,eb->b", layout.length, common.astype(np.float64)) + rare @ layout.rare_length
        return MetricInput(common, rare, height, block.total)
    reads = np.maximum(block.total, 1).astype(np.float64)
    rare.data /= np.repeat(reads, np.diff(rare.indptr))
    share = block.common / reads
    if options.metric == "generalized" and options.alpha != 1:
        height = np.einsum("e,eb->b", layout.length, power(share, options.alpha))
        height += _with_data(rare, power(rare.data, options.alpha)) @ layout.rare_length
        return MetricInput(share.astype(dtype, copy=False), rare, height, block.total)
    share *= layout.length[:, None]
    rare.data *= layout.rare_length[rare.indices]
    common = share.astype(dtype, copy=False)
    # The sum of what is compared, so that rounding cancels between samples that are alike.
    height = common.sum(axis=0, dtype=np.float64) + np.asarray(rare.sum(axis=1)).ravel()
    return MetricInput(common, rare, height, block.total)


def between(
    layout: Layout, left: MetricInput, right: MetricInput, options: UnifracOptions, multiply: Multiply
) -> npt.NDArray[np.float64]:
    """Return the distances [I, J] between the samples of two blocks, before rounding to the asked type."""
    if options.variance_adjusted:
        result = variance_adjusted(layout, left, right, Form(options.metric, options.alpha), multiply)
    elif options.metric == "unifrac":
        result = _unweighted(layout, left, right, multiply)
    elif options.metric == "generalized" and options.alpha != 1:
        result = _generalized(layout, left, right, options.alpha, multiply)
    else:
        result = _weighted(left, right, options.metric != "weighted")
    if options.empty == "nan":
        result[left.total == 0, :] = np.nan
        result[:, right.total == 0] = np.nan
    return np.maximum(result, 0.0, out=result)


def _with_data(matrix: sparse.csr_matrix, data: Floats) -> sparse.csr_matrix:
    """Return a matrix with other values at the same places."""
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _add_product(sums: Floats, left: Matrix, right: Matrix, multiply: Multiply) -> None:
    """Add ``left.T @ right`` to `sums`, in float64 over groups of branches within which the product is float32."""
    for rows in groups(len(left)):
        sums += multiply(left[rows], right[rows])


def _unweighted(layout: Layout, left: MetricInput, right: MetricInput, multiply: Multiply) -> Floats:
    """``1 - shared / union`` of the branch lengths, as ``(union - shared) / union``."""
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
    return ratio(union - shared, union)


def _weighted(left: MetricInput, right: MetricInput, normalized: bool) -> Floats:
    """``sum l |p - q|`` as ``sum l (p + q) - 2 sum l min(p, q)``, and divided by ``sum l (p + q)``."""
    overlap = np.zeros((len(left.total), len(right.total)))
    for sample, _, mine, theirs in rows_of(left, right):
        np.minimum(theirs, mine, out=theirs)
        add_rows(overlap[sample], theirs)
    for cell, _, mine, theirs in rare_pairs(left, right):
        added(overlap, cell, np.minimum(mine, theirs))
    both = left.height[:, None] + right.height
    apart = both - 2 * overlap
    return ratio(apart, both) if normalized else apart


def _generalized(layout: Layout, left: MetricInput, right: MetricInput, alpha: float, multiply: Multiply) -> Floats:
    """``sum l w |p - q| / (p + q)`` over ``sum l w``, w = ``(p + q)^alpha``, from ``|p - q| = p + q - 2 min(p, q)``.

    A branch that one sample lacks adds ``l p^alpha`` of the other to ``sum l w``, which so begins with those of each
    sample alone (`MetricInput.height`); only branches that both have change it.
    """
    length = layout.length.astype(right.common.dtype)[:, None]
    weights = left.height[:, None] + right.height
    # What the samples alone add for the branches of the left, which the loop below visits.
    alone = [length * power(each.common, alpha) for each in (left, right)]
    of_right = np.zeros_like(weights)
    _add_product(of_right, (left.common > 0).astype(length.dtype), alone[1], multiply)
    weights -= of_right + alone[0].sum(axis=0, dtype=np.float64)[:, None]
    overlap = np.zeros_like(weights)
    buffer = np.empty((unifrac_visits.BRANCHES, right.common.shape[1]), right.common.dtype)
    for sample, part, mine, theirs in rows_of(left, right):
        both = np.add(theirs, mine, out=buffer[: len(part)])
        np.minimum(theirs, mine, out=theirs)
        theirs /= both
        weight = power(both, alpha, out=both)
        weight *= length[part]
        add_rows(weights[sample], weight)
        theirs *= weight
        add_rows(overlap[sample], theirs)
    for cell, branch, mine, theirs in rare_pairs(left, right):
        both, lengths = mine + theirs, layout.rare_length[branch]
        weight = lengths * power(both, alpha)
        added(weights, cell, weight - lengths * (power(mine, alpha) + power(theirs, alpha)))
        added(overlap, cell, weight * np.minimum(mine, theirs) / both)
    return ratio(weights - 2 * overlap, weights)
