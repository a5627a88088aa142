"""How two blocks of samples are visited branch by branch. Legend: I and J samples, C common and R rare branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.io.matrices import Matrix
from aam.io.phylogeny import Floats, Ints

# Returns ``a.T @ b`` for a [K, I] and b [K, J].
Multiply: TypeAlias = Callable[[Matrix, Matrix], Matrix]

# Branches taken at once in the weighted forms, so that they stay in the processor's cache, and those of them that are
# added up in float32 before float64 takes over.
BRANCHES = 128
ADDED = 32
# Pairs of samples with a rare branch in common that are looked at together.
PAIRS = 1 << 20


@dataclass(frozen=True)
class MetricInput:
    """What a metric reads of a block of samples.

    Attributes
    ----------
    common : [C, B]
        Presence (bool) for ``unifrac``, shares of reads times lengths for the weighted forms, shares for
        ``generalized``, reads for variance-adjusted forms.
    rare : csr float64 [B, R]
        The same of the rare branches, presence as 1; for variance-adjusted forms of all branches.
    height : float64 [B]
        Sum over branches of the length times presence, share, or share to the power alpha.
    total : int [B]
    """

    common: npt.NDArray[Any]
    rare: sparse.csr_matrix
    height: Floats
    total: npt.NDArray[Any]


def ratio(part: Floats, total: Floats) -> Floats:
    """Return ``part / total`` with 0 / 0 = 0."""
    return np.divide(part, total, out=np.zeros_like(part), where=total > 0)


def power(values: npt.NDArray[Any], alpha: float, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Return ``values ** alpha`` with 0 ** 0 = 0; a square root where that is meant, for it is much faster."""
    out = np.zeros_like(values) if out is None else out
    if alpha == 0.5:
        np.sqrt(values, out=out)
    else:
        np.power(values, values.dtype.type(alpha), out=out, where=values > 0)
    return out


def rare_pairs(left: MetricInput, right: MetricInput) -> Iterator[tuple[Ints, Ints, Floats, Floats]]:
    """Yield the pairs of samples that share a rare branch: cell of [I, J] flattened, branch, value of each sample."""
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


def added(sums: Floats, cell: Ints, values: Floats) -> None:
    """Add values to cells of `sums` [I, J], of which some occur several times."""
    sums += np.bincount(cell, values, sums.size).reshape(sums.shape)


def rows_of(left: MetricInput, right: MetricInput) -> Iterator[tuple[int, Ints, Matrix, Matrix]]:
    """Yield a sample of the left, some of its common branches, its values there and those of the right [rows, J].

    Only the branches of the sample are visited. The values of the right stand in a buffer that may be changed.
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


def add_rows(sums: Floats, rows: Matrix) -> None:
    """Add the rows [K, J] to `sums` [J], a few of them in their own type before float64 takes over."""
    for start in range(0, len(rows), ADDED):
        sums += rows[start : start + ADDED].sum(axis=0)
