"""Near duplicates and relatives: how much samples resemble each other.

N samples, F features, C others. Counts are csr [N, F] without empty samples.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from aam.device.rng import generator
from aam.io.tables import AmpliconTable
from aam.typing import Bools, Floats, Ints

# Relatives resemble each other more than strangers do, by this number of robust standard
# deviations. A source of more than a small share must be less alike: most of those are relatives.
RELATED, CLOSELY_RELATED, SMALL_SHARE, LEAST_DEVIATION = 2.0, 1.0, 0.05, 0.02

# Two draws of one sample: this share of the features that both must show is in both, the logarithm
# of the ratio of their shares has at most this deviation, and there are features enough to judge.
SIMILAR, SAME_FEATURES, SAME_RATIO, FEATURES_TO_JUDGE, READS_TO_SHOW = 0.9, 0.9, 0.7, 10, 10

# Near duplicates that are looked for per sample, and samples and pairs that are compared at a time.
MOST_SIMILAR, SAMPLE_BLOCK, LIKENESS_PAIRS = 50, 256, 2000

# Samples that a sample resembles most, which are kept.
NEAREST = 5

# Samples of a table that are compared: all pairs of this number take about three seconds.
MOST_PAIRED = 5000


class Likeness:
    """How much samples resemble each other: the sum of the root products of their shares.

    It is 1 for samples of the same shares, and a small part of another sample hardly changes it
    (Hellinger affinity).

    Attributes
    ----------
    shares : csr [N, F]
        Shares of the reads of each sample.
    middle, deviation : float64 [N]
        Median, and robust standard deviation, of the likeness of a sample to all samples.
    nearest : int64 [N, K]
        Other samples that a sample resembles most, the most similar one first, -1 where no other
        resembles it.
    similar : int64 [n, 2]
        Pairs of samples of a likeness above `SIMILAR`, for each sample the most similar ones.
    """

    def __init__(self, counts: sparse.csr_array) -> None:
        self.depth = np.asarray(counts.sum(axis=1), np.float64).ravel()
        self.shares = sparse.csr_array(counts.multiply(1 / self.depth[:, None]))
        roots = sparse.csr_array(self.shares.sqrt())
        middle, deviation, similar = [np.zeros(0)], [np.zeros(0)], [np.zeros((0, 2), np.int64)]
        self.nearest = np.full((counts.shape[0], NEAREST), -1)
        for start in range(0, counts.shape[0], SAMPLE_BLOCK):
            likeness = np.asarray((roots[start : start + SAMPLE_BLOCK] @ roots.T).todense())
            median = np.median(likeness, axis=1)
            middle.append(median)
            spread = np.median(np.abs(likeness - median[:, None]), axis=1)
            deviation.append(1.4826 * spread + LEAST_DEVIATION)
            rows = np.arange(len(likeness))
            likeness[rows, start + rows] = 0
            nearest = np.argsort(-likeness, axis=1, kind="stable")[:, :MOST_SIMILAR]
            value = np.take_along_axis(likeness, nearest, axis=1)
            first = np.where(value > 0, nearest, -1)[:, :NEAREST]
            self.nearest[start : start + len(first), : first.shape[1]] = first
            row, place = np.nonzero(value > SIMILAR)
            similar.append(np.sort(np.stack([start + row, nearest[row, place]], axis=1), axis=1))
        self.middle, self.deviation = np.concatenate(middle), np.concatenate(deviation)
        self.similar = np.unique(np.concatenate(similar), axis=0)

    def are_related(self, row: int, others: Ints, share: Floats | float = 0.0) -> Bools:
        """Whether others resemble a sample more than strangers do, [C], apart from the share [C] of
        each that the sample contains.
        """
        share, shares = np.broadcast_to(share, len(others)), self.shares[others]
        other = np.repeat(np.arange(len(others)), np.diff(shares.indptr))
        before = self.shares[[row]].toarray()[0, shares.indices]
        left = np.maximum(before - share[other] * shares.data, 0)
        whole = 1 - np.bincount(other, before - left, minlength=len(others))
        root = np.bincount(other, np.sqrt(left * shares.data), minlength=len(others))
        likeness = root / np.sqrt(np.maximum(whole, 1e-9))
        limit = np.where(share > SMALL_SHARE, CLOSELY_RELATED, RELATED)
        return np.asarray(likeness > self.middle[row] + limit * self.deviation[row])


def near_duplicates(likeness: Likeness) -> Ints:
    """Return the pairs of samples that resemble each other like two draws of one sample, [n, 2]."""
    alike = [np.zeros(0, bool)]
    for start in range(0, len(likeness.similar), LIKENESS_PAIRS):
        pairs = likeness.similar[start : start + LIKENESS_PAIRS]
        first, second = (likeness.shares[pairs[:, place]] for place in (0, 1))
        depth = likeness.depth[pairs].min(axis=1)
        shows = first.maximum(second).multiply(depth[:, None]) >= READS_TO_SHOW
        both = sparse.csr_array(shows.multiply(first.sign()).multiply(second.sign()))
        parts = [sparse.csr_array(both.multiply(part)) for part in (first, second)]
        for part in parts:
            part.sort_indices()
        ratio = np.log(parts[0].data) - np.log(parts[1].data)
        size = np.diff(parts[0].indptr)
        pair = np.repeat(np.arange(len(pairs)), size)
        number = np.asarray(shows.sum(axis=1))
        mean, square = (
            np.bincount(pair, ratio**power, minlength=len(pairs)) / np.maximum(size, 1)
            for power in (1, 2)
        )
        enough = (number >= FEATURES_TO_JUDGE) & (size >= SAME_FEATURES * number)
        alike.append(enough & (square - mean**2 <= SAME_RATIO**2))
    return np.asarray(likeness.similar[np.concatenate(alike)])


def duplicates_of(table: AmpliconTable) -> list[tuple[str, str]]:
    """Return the ids of near duplicates in a table, or in `MOST_PAIRED` samples of a larger one,
    drawn at random.
    """
    rows, ids = np.flatnonzero(table.depths > 0), table.sample_ids
    if len(rows) > MOST_PAIRED:
        rows = np.sort(generator(0, "duplicates").choice(rows, MOST_PAIRED, replace=False))
    likeness = Likeness(sparse.csr_array(table.counts[rows]).astype(np.int64))
    return [(ids[first], ids[second]) for first, second in rows[near_duplicates(likeness)].tolist()]
