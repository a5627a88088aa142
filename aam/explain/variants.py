"""Variants of rarefied samples, in each of which the reads of one ASV are others, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.data.study import Row
from aam.device.rng import generator

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Samples that are chosen to get an ASV for each sample that has it; one where the network is run, which takes longest.
RECEIVERS = 2


def counts_of(reads: Sequence[Row], asvs: int) -> sparse.csr_matrix:
    """Return reads (columns, reads) of n samples as int64 ``[n, asvs]``."""
    columns = np.concatenate([np.zeros(0, np.int64), *(columns for columns, _ in reads)])
    values = np.concatenate([np.zeros(0, np.int64), *(values for _, values in reads)])
    starts = np.cumsum([0, *(len(columns) for columns, _ in reads)])
    return sparse.csr_matrix((values, columns, starts), shape=(len(reads), asvs))


@dataclass(frozen=True, eq=False)
class Variants:
    """M variants of n rarefied samples.

    Attributes
    ----------
    sample : int64 [M]
        Place of the sample among the n.
    column : int64 [M]
        The ASV of the table whose reads are changed.
    before, after : int64 [M]
        Its reads in the rarefied sample and in the variant; 0 where it is absent.
    weight : float64 [M]
        Of the variant in the expected loss after a permutation of the ASV over the samples.
    """

    sample: Ints
    column: Ints
    before: Ints
    after: Ints
    weight: Floats

    def __getitem__(self, places: Bools | Ints | slice) -> Variants:
        """Return some of the variants."""
        return Variants(*(values[places] for values in vars(self).values()))

    def reads(self, counts: sparse.csr_matrix) -> list[Row]:
        """Return columns and reads of each variant of samples with the reads `counts` ``[n, F]``.

        An ASV that a sample has, but not in `counts`, which may be limited to fewer, stays out of them.
        """
        before = np.asarray(counts[self.sample, self.column]).ravel()
        after = np.where((self.before > 0) & (before == 0), 0, self.after)
        places, shape = np.arange(len(before)), (len(before), counts.shape[1])
        changed = counts[self.sample] + sparse.csr_matrix((after - before, (places, self.column)), shape)
        changed.eliminate_zeros()
        ends = changed.indptr[1:-1]
        return list(zip(np.split(changed.indices, ends), np.split(changed.data, ends), strict=True))


def make_variants(counts: sparse.csr_matrix, reads_counts: bool, seed: tuple[int, ...]) -> Variants:
    """Return the variants from which the effect and the importance of every ASV of some samples follow.

    For each ASV of each sample the sample without it and, where the model reads counts, with a single read of it. And
    for each ASV some samples with the reads of a random sample that has it.

    A permutation of an ASV over n samples gives each sample the ASV with probability p, its prevalence, with the reads
    of a random sample that has it. So the expected loss after a permutation is known from what is here: a sample with
    the ASV loses it with probability 1 - p, which is the weight of its removal, and each sample gets it with
    probability p: each is chosen with a probability q, and has the weight p / q.

    Parameters
    ----------
    counts : int64 [n, F]
        Reads of the rarefied samples.
    reads_counts : bool
        Whether the model reads more than which ASVs are present.
    seed : tuple
        Of the random choices.
    """
    (samples, asvs), rng = counts.shape, generator("explain", *seed)
    by_column = counts.tocsc()
    sample, reads, carriers = by_column.indices.astype(np.int64), by_column.data, np.diff(by_column.indptr)
    column = np.repeat(np.arange(asvs), carriers)
    prevalence = carriers / max(samples, 1)
    # Of a sample's only ASV nothing can be said: no model reads an empty sample.
    several_asvs = np.bincount(sample, minlength=samples)[sample] > 1
    without = Variants(sample, column, reads, np.zeros_like(reads), 1 - prevalence[column])[several_asvs]
    receivers = 1 if reads_counts else RECEIVERS
    chosen = rng.integers(max(samples, 1), size=(receivers, len(column)))
    receiver, of = np.divmod(np.unique(chosen * asvs + column), max(asvs, 1))
    is_chosen = 1 - (1 - 1 / max(samples, 1)) ** (receivers * carriers[of])
    before = np.asarray(counts[receiver, of]).ravel() if len(of) else reads
    after = reads[by_column.indptr[of] + rng.integers(carriers[of])]
    added = Variants(receiver, of, before, after, prevalence[of] / is_chosen)
    added = added[before != after if reads_counts else before == 0]
    single = Variants(sample, column, reads, np.ones_like(reads), np.zeros(len(reads)))[(reads > 1) & reads_counts]
    parts = zip(*(vars(part).values() for part in (without, added, single)), strict=True)
    joined = Variants(*(np.concatenate(values) for values in parts))
    # Trees read variants of one sample side by side faster.
    return joined[np.argsort(joined.sample, kind="stable")]
