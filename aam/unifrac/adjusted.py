"""Variance-adjusted UniFrac (Chang et al. 2011). Legend: I and J samples, C common and R rare branches, D depths.

With a and b reads of two samples below a branch, A and B reads of them in all, n = a + b, m = A + B, p = a / A and
q = b / B, a branch of length l adds ``l (p + q) / sqrt(n (m - n))`` to the denominator, and ``|p - q|`` in place of
``p + q`` to the numerator. ``unifrac`` has 1 in place of ``p + q``, and ``generalized`` raises all but l to the power
alpha, as unifrac-binaries does. Branches without reads, or with all reads of both samples, add nothing.

What a branch adds that one sample lacks depends on that sample by its depth only. So it is summed once for each depth,
over all branches of the other sample, and taken away again where both have the branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.config import UnifracMetric
from aam.io.matrices import Matrix
from aam.io.phylogeny import Floats
from aam.unifrac import visits as unifrac_visits
from aam.unifrac.blocks import Layout
from aam.unifrac.visits import MetricInput, Multiply, added, power, rare_pairs, ratio, rows_of


@dataclass(frozen=True)
class Form:
    """What a branch of length 1 adds.

    Attributes
    ----------
    metric : str
    alpha : float
        Exponent of ``generalized``.
    """

    metric: UnifracMetric
    alpha: float

    def alone(self, reads: Matrix, others: Matrix) -> Matrix:
        """Return what is to be added, times `unit`, where one sample has n `reads` and the other none.

        `others` are m - n and above 0; the result is written over them.
        """
        if self.metric == "unifrac":
            others *= reads
            np.sqrt(others, out=others)
            return np.divide(1, others, out=others, where=others > 0)
        # q / sqrt(b (m - b)) is sqrt(b / (m - b)) / B.
        np.divide(reads, others, out=others)
        np.sqrt(others, out=others)
        return power(others, self.alpha, out=others) if self.metric == "generalized" else others

    def unit(self, totals: npt.NDArray[Any]) -> Floats:
        """Return what `alone` is to be divided by, for samples of `totals` reads."""
        exponent = {"unifrac": 0.0, "generalized": self.alpha}.get(self.metric, 1.0)
        units: Floats = np.maximum(totals, 1.0) ** exponent
        return units

    def both(
        self, mine: Matrix, theirs: Matrix, totals: tuple[Matrix | float, Matrix], work: tuple[Matrix | None, ...]
    ) -> tuple[Matrix, Matrix]:
        """Return what is to be added to the denominator, and how much less to the numerator.

        `mine` are above 0 and of samples with ``totals[0]`` reads, `theirs` of samples with ``totals[1]`` reads. The
        arrays of `work` have the shape of the result, and are written over as `theirs` are.
        """
        reads = np.add(theirs, mine, out=work[0])
        scale = np.subtract(totals[0] + totals[1], reads, out=work[1])
        scale *= reads
        np.sqrt(scale, out=scale)
        empty = scale == 0
        if empty.any():
            scale[empty] = np.inf
        np.divide(1, scale, out=scale)
        if self.metric == "unifrac":
            return scale, np.multiply(scale, theirs > 0, out=theirs)
        share = mine / totals[0]
        theirs /= np.maximum(totals[1], 1)
        sums = np.add(theirs, share, out=work[0])
        np.minimum(theirs, share, out=theirs)
        if self.metric == "generalized":
            theirs /= sums
            sums *= scale
            scale = power(sums, self.alpha, out=sums)
        else:
            sums *= scale
        theirs *= scale
        theirs *= 2
        return sums, theirs


def _alone(length: Floats, reads: sparse.csr_matrix, totals: Floats, depths: Floats, form: Form) -> Floats:
    """Return the sums [D, B] over all branches of samples, CSR [B, branches], beside a sample of each of `depths`."""
    columns = reads.data.astype(np.int64)
    shape = (reads.shape[0], int(columns.max(initial=0)) + 1)
    # Few numbers of reads occur in a sample, most of them below several branches.
    by_reads = sparse.csr_matrix((length[reads.indices], columns, reads.indptr.copy()), shape=shape)
    by_reads.sum_duplicates()
    sample = np.repeat(np.arange(len(totals)), np.diff(by_reads.indptr))
    number, total = by_reads.indices.astype(np.float64), totals[sample]
    result = np.zeros((len(depths), len(totals)))
    for row, depth in zip(result, depths.tolist(), strict=True):
        # Beside a sample without reads, branches with all reads add nothing.
        others = depth + total - number
        values = form.alone(number, np.where(others > 0, others, np.inf))
        row[:] = np.bincount(sample, values * by_reads.data, len(totals))
    return result / form.unit(totals)


def _of_right_alone(layout: Layout, left: MetricInput, right: MetricInput, form: Form, multiply: Multiply) -> Floats:
    """Return the sums [I, J] over all branches of the right, without those common ones that the left has too."""
    totals = right.total.astype(np.float64)
    depths, group = np.unique(left.total, return_inverse=True)
    length = np.r_[layout.length, layout.rare_length]
    branches = sparse.hstack([sparse.csr_matrix(right.common.T), right.rare], format="csr")
    sums = _alone(length, branches, totals, depths.astype(np.float64), form)[group]
    real, unit = right.common.dtype, form.unit(totals)
    for number, depth in enumerate(depths.tolist()):
        members = np.flatnonzero(group == number)
        present = left.common[:, members] > 0
        rows = np.flatnonzero(present.any(axis=1))
        both = (depth + totals).astype(real)
        for start in range(0, len(rows), unifrac_visits.BRANCHES):
            part = rows[start : start + unifrac_visits.BRANCHES]
            reads = right.common[part]
            weight = form.alone(reads, both - reads)
            sums[members] -= multiply(present[part] * layout.length[part, None].astype(real), weight) / unit
    return sums


def _add_rare(below: Floats, shared: Floats, layout: Layout, left: MetricInput, right: MetricInput, form: Form) -> None:
    """Add the rare branches of the left; those of the right are in `below`, as if the left had none of them."""
    totals = [each.total.astype(np.float64) for each in (left, right)]
    depths, group = np.unique(right.total, return_inverse=True)
    below += _alone(layout.rare_length, left.rare, totals[0], depths.astype(np.float64), form)[group].T
    units = [form.unit(each) for each in totals]
    for cell, branch, mine, theirs in rare_pairs(left, right):
        i, j = np.divmod(cell, len(totals[1]))
        length, total = layout.rare_length[branch], (totals[0][i], totals[1][j])
        both = total[0] + total[1]
        apart = form.alone(mine, both - mine) / units[0][i] + form.alone(theirs, both - theirs) / units[1][j]
        sums, less = form.both(mine, theirs, total, (None, None))
        added(below, cell, length * (sums - apart))
        added(shared, cell, length * less)


def variance_adjusted(
    layout: Layout, left: MetricInput, right: MetricInput, form: Form, multiply: Multiply
) -> npt.NDArray[np.float64]:
    """Return the variance-adjusted distances [I, J] of two blocks, whose `common` and `rare` are reads."""
    below = _of_right_alone(layout, left, right, form, multiply)
    shared = np.zeros_like(below)
    real = right.common.dtype
    totals = right.total.astype(real)
    length = layout.length.astype(real)[:, None]
    work = tuple(np.empty((unifrac_visits.BRANCHES, len(totals)), real) for _ in range(2))
    for sample, part, mine, theirs in rows_of(left, right):
        depth = left.total[sample].astype(real)
        sums, less = form.both(mine, theirs, (depth, totals), tuple(each[: len(part)] for each in work))
        below[sample] += multiply(length[part], sums)[0]
        shared[sample] += multiply(length[part], less)[0]
    _add_rare(below, shared, layout, left, right, form)
    above = below - shared
    return above if form.metric == "weighted" else ratio(above, below)
