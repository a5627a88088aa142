"""Samples that contain another sample, and samples that are nearly the same, from counts alone.

N samples, F features, G groups (subjects), C candidates, T sources kept per sample. Counts are csr
[N, F] without empty samples; groups int64 [N] from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.special import gammaln

from aam.typing import Bools, Floats, Ints

# The share of a source is tried on a grid of expected reads, each `STEP` times the last.
LEAST_SHARE, LARGEST_SHARE, STEP = 0.001, 0.4, 3.0

# Variance of the reads of a feature of the source beyond Poisson, in units of the squared mean.
DISPERSION = 0.05

# Pseudo-samples by which the presence of a feature in a subject shrinks to that in the table.
PSEUDO_SAMPLES = 2.0

# Likeliest sources that are looked at, and sources of different groups that are kept.
CANDIDATES, SOURCES = 40, 4

# What is left of a sample without its source resembles the source no more than strangers do: by
# this number of robust standard deviations. Otherwise the two are relatives, not a mixture.
RELATED, LEAST_DEVIATION = 1.5, 0.02

# Contrast above which several samples are of one subject: 0.5 to 0.9 in studies of one sample a
# subject, 1.1 with two, 1.4 to 2.1 with more.
REPEATED = 1.2

# Two draws of one sample: this share of the features that both must show is in both, the logarithm
# of the ratio of their shares has at most this deviation, and there are features enough to judge.
SIMILAR, SAME_FEATURES, SAME_RATIO, FEATURES_TO_JUDGE, READS_TO_SHOW = 0.9, 0.9, 0.7, 10, 10

# Share of the suspicions that is expected by chance, and samples that are too few to say so.
FALSE_DISCOVERIES, LEAST_SAMPLES = 0.05, 20

# Quantile of the differences between sources that gives the scale of chance in a study.
MIXTURE_BULK = 0.7

# Samples, and pairs of samples, that are compared at a time.
BLOCK, PAIRS = 256, 2000


class Likeness:
    """How much samples resemble each other: the sum of the root products of their shares.

    It is 1 for samples of the same shares, and a small part of another sample hardly changes it
    (Hellinger affinity).

    Attributes
    ----------
    middle, deviation : float64 [N]
        Median, and robust standard deviation, of the likeness of a sample to all samples.
    contrast : float64 [N]
        By how much the most similar sample exceeds the tenth that are most similar, in units of
        their distance from the median.
    similar : int64 [n, 2]
        Pairs of samples of a likeness above `SIMILAR`.
    """

    def __init__(self, counts: sparse.csr_array):
        depth = np.asarray(counts.sum(axis=1)).ravel()
        self.shares = sparse.csr_array(counts.multiply(1 / depth[:, None]))
        self.roots = sparse.csr_array(self.shares.sqrt())
        n = counts.shape[0]
        self.middle, self.deviation, self.contrast = np.zeros(n), np.ones(n), np.zeros(n)
        pairs = [np.zeros((0, 2), np.int64)]
        for start in range(0, n, BLOCK):
            likeness = np.asarray((self.roots[start : start + BLOCK] @ self.roots.T).todense())
            rows = start + np.arange(len(likeness))
            self.middle[rows] = np.median(likeness, axis=1)
            spread = np.abs(likeness - self.middle[rows, None])
            self.deviation[rows] = 1.4826 * np.median(spread, axis=1) + LEAST_DEVIATION
            likeness[np.arange(len(rows)), rows] = 0
            high = np.quantile(likeness, 0.9, axis=1)
            above = likeness.max(axis=1) - high
            self.contrast[rows] = above / (high - self.middle[rows] + LEAST_DEVIATION)
            similar = np.argwhere(likeness > SIMILAR) + np.array([start, 0])
            pairs.append(similar[similar[:, 0] < similar[:, 1]])
        self.similar = np.concatenate(pairs)

    @property
    def has_relatives(self) -> bool:
        """Whether samples stand out as those of one subject do: here without groups."""
        return bool(np.median(self.contrast) >= REPEATED)

    def row(self, row: int) -> Floats:
        """Shares of one sample, [F]."""
        dense = np.zeros(self.shares.shape[1])
        part = slice(*self.shares.indptr[row : row + 2])
        dense[self.shares.indices[part]] = self.shares.data[part]
        return dense

    def are_related(self, row: int, others: Ints, mixed: Floats | None = None) -> Bools:
        """Whether others resemble a sample more than strangers do, [n], without twice the part
        `mixed` [n] of each that the sample contains.
        """
        own = self.row(row)
        mixed = np.zeros(len(others)) if mixed is None else mixed
        limit, likeness = self.middle[row] + RELATED * self.deviation[row], np.zeros(len(others))
        for at, (other, part) in enumerate(zip(others.tolist(), mixed.tolist(), strict=True)):
            inside = slice(*self.shares.indptr[other : other + 2])
            shares, features = self.shares.data[inside], self.shares.indices[inside]
            left = np.maximum(own[features] - 2 * part * shares, 0)
            whole = 1 - (own[features] - left).sum()
            likeness[at] = np.sqrt(left * shares).sum() / max(whole, 1e-9) ** 0.5
        return np.asarray(likeness > limit)


def near_duplicates(counts: sparse.csr_array, likeness: Likeness) -> Ints:
    """Return the pairs of samples that resemble each other like two draws of one sample, [n, 2]."""
    depth, same = np.asarray(counts.sum(axis=1)).ravel(), [np.zeros(0, bool)]
    for start in range(0, len(likeness.similar), PAIRS):
        pairs = likeness.similar[start : start + PAIRS]
        first, second = (likeness.shares[pairs[:, at]] for at in (0, 1))
        reads = first.maximum(second).multiply(depth[pairs].min(axis=1)[:, None])
        shows = sparse.csr_array(reads >= READS_TO_SHOW)
        both = sparse.csr_array(shows.multiply(first.sign()).multiply(second.sign()))
        both.sort_indices()
        ratio = sparse.csr_array(both.multiply(first)), sparse.csr_array(both.multiply(second))
        for part in ratio:
            part.sort_indices()
        logs = np.log(ratio[0].data) - np.log(ratio[1].data)
        of_pair = np.repeat(np.arange(len(pairs)), np.diff(both.indptr))
        number, size = np.asarray(shows.sum(axis=1)), np.maximum(np.diff(both.indptr), 1)
        mean = np.bincount(of_pair, logs, minlength=len(pairs)) / size
        spread = np.bincount(of_pair, (logs - mean[of_pair]) ** 2, minlength=len(pairs)) / size
        enough = (number >= FEATURES_TO_JUDGE) & (size >= SAME_FEATURES * number)
        same.append(enough & (spread <= SAME_RATIO**2))
    return np.asarray(likeness.similar[np.concatenate(same)])


class Mixture:
    """Likelihood of each sample as itself plus a share of any other sample.

    A feature is there without a source with the chance that the other samples of its group give,
    and then has a log-uniform number of reads. Reads from a source are negative binomial.
    """

    def __init__(self, counts: sparse.csr_array, groups: Ints):
        self.counts, self.groups = counts, groups
        self.depth = np.asarray(counts.sum(axis=1), np.float64).ravel()
        present = sparse.csr_array(counts.sign())
        self.prevalence = np.asarray(present.sum(axis=0)).ravel()
        self.size = np.bincount(groups)
        member = (np.ones(len(groups)), (groups, np.arange(len(groups))))
        self.of_group = sparse.csr_array(sparse.csr_array(member) @ present)
        shares = sparse.csr_array(counts.multiply(1 / self.depth[:, None]))
        self.columns = sparse.csc_array(shares)
        self.log_share = np.log(self.columns.data)
        low, high = max(1.0, LEAST_SHARE * self.depth.min()), LARGEST_SHARE * self.depth.max()
        steps = max(0, int(np.log(high / low) / np.log(STEP)))
        self.reads = low * STEP ** np.arange(2 + steps)
        # Minus the log chance that no read of any feature of a source arrives, [K, N].
        absence = (np.log1p(t * DISPERSION * shares.data) / DISPERSION for t in self.reads)
        self.absence = np.stack([np.add.reduceat(of, shares.indptr[:-1]) for of in absence])

    def chance(self, row: int) -> tuple[Ints, Floats, Floats]:
        """Features of a sample, their reads, and the chance that each is there without a source:
        how often the other samples of the group have it, shrunken to all other groups.
        """
        part = slice(*self.counts.indptr[row : row + 2])
        features, reads = self.counts.indices[part], self.counts.data[part].astype(np.float64)
        group, of_group = self.groups[row], np.zeros(self.counts.shape[1])
        inside = slice(*self.of_group.indptr[group : group + 2])
        of_group[self.of_group.indices[inside]] = self.of_group.data[inside]
        siblings, relatives = of_group[features] - 1, self.size[group] - 1
        strangers = len(self.groups) - 1 - relatives
        usual = (self.prevalence[features] - 1 - siblings + 0.5) / (strangers + 1)
        chance = (siblings + PSEUDO_SAMPLES * usual) / (relatives + PSEUDO_SAMPLES)
        return features, reads, np.clip(chance, 1e-4, 0.999)

    def evidence(self, row: int) -> tuple[Floats, Floats]:
        """Largest log likelihood ratio of each source [N] over the shares, and that share [N]."""
        features, reads, chance = self.chance(row)
        odds = self._odds(row, reads, chance)
        begins = self.columns.indptr[features].astype(np.int64)
        lengths = self.columns.indptr[features + 1] - begins
        ends = np.cumsum(lengths)
        at = np.repeat(begins - ends + lengths, lengths) + np.arange(ends[-1])
        source, share = self.columns.indices[at], self.columns.data[at]
        odds, reads = np.repeat(odds, lengths), np.repeat(reads, lengths)
        best, share_of = np.full(len(self.groups), -np.inf), np.zeros(len(self.groups))
        tried = self.reads / self.depth[row]
        for k in np.flatnonzero((tried >= LEAST_SHARE) & (tried <= LARGEST_SHARE)):
            terms = _terms(odds, reads, self.reads[k] * DISPERSION, share, self.log_share[at])
            ratio = np.bincount(source, terms, minlength=len(best)) - self.absence[k]
            better = ratio > best
            best[better], share_of[better] = ratio[better], tried[k]
        return best, share_of

    def carriers(self, row: int, source: int, share: float) -> tuple[Ints, Floats]:
        """Features by which a sample shows its source, the strongest first, and the log likelihood
        ratio of each above 1.
        """
        features, reads, chance = self.chance(row)
        odds = self._odds(row, reads, chance)
        part = slice(*self.counts.indptr[source : source + 2])
        _, here, there = np.intersect1d(features, self.counts.indices[part], return_indices=True)
        shares = self.counts.data[part][there] / self.depth[source]
        arriving = share * self.depth[row] * DISPERSION
        terms = _terms(odds[here], reads[here], arriving, shares, np.log(shares))
        order = np.argsort(-terms, kind="stable")
        order = order[terms[order] > 1]
        return features[here][order].astype(np.int64), terms[order]

    def _odds(self, row: int, reads: Floats, chance: Floats) -> Floats:
        """Part of the terms that does not depend on the source."""
        shape = 1 / DISPERSION
        odds = np.log1p(-chance) - np.log(chance) + np.log(reads * np.log(self.depth[row] + 1))
        return np.asarray(odds + gammaln(reads + shape) - gammaln(shape) - gammaln(reads + 1))


def _terms(
    odds: Floats, reads: Floats, arriving: float, share: Floats, log_share: Floats
) -> Floats:
    """Log likelihood ratio of features that are in a sample and in its source, less that of their
    absence; `arriving` reads of the source times the dispersion.
    """
    absence, shape = np.log1p(arriving * share), 1 / DISPERSION
    ratio = odds + reads * (np.log(arriving) + log_share) - (reads + shape) * absence
    return np.asarray(np.logaddexp(0, ratio) + shape * absence)


@dataclass(frozen=True, eq=False)
class Sources:
    """The likeliest sources of each sample, each of another group, the best first.

    Attributes
    ----------
    evidence : float64 [N, T]
        Log likelihood ratio of "contains this source" to "contains none"; 0 without a source.
    source : int64 [N]
        Row of the best source, -1 without one.
    share : float64 [N]
        Share of the reads that come from it.
    chance : float64 [N]
        P value of the best source: see `chance_of`.
    """

    evidence: Floats
    source: Ints
    share: Floats
    chance: Floats

    @property
    def is_suspicious(self) -> Bools:
        """Samples of which `FALSE_DISCOVERIES` are expected by chance (Benjamini and Hochberg)."""
        return discoveries(self.chance)


def chance_of(evidence: Floats) -> Floats:
    """P values [N] of the best of the sources [N, T] of each sample, whatever N.

    Without a mixture, the i-th largest of many ratios exceeds the next one by an exponential amount
    of mean scale / i (Renyi 1953), so the lower differences of all samples give the scale of this
    study, and the first difference is the test. A real source stands far above the second one;
    features that occur together raise all sources of a sample. The scale is at least 1, that of a
    likelihood ratio, and the ratio itself must be improbable among N sources (Markov).
    """
    n, width = evidence.shape
    if n < LEAST_SAMPLES or width < SOURCES:
        return np.ones(n)
    spacing = -np.diff(evidence, axis=1) * np.arange(1, width)
    scale = max(1.0, float(np.quantile(spacing, MIXTURE_BULK)) / -np.log(1 - MIXTURE_BULK))
    rare = np.minimum(1, n * np.exp(-evidence[:, 0]))
    return np.asarray(np.maximum(np.exp(-spacing[:, 0] / scale), rare))


def discoveries(chance: Floats) -> Bools:
    """Which p values are below the line of Benjamini and Hochberg (1995), [N]."""
    ordered, n = np.sort(chance), len(chance)
    below = ordered <= FALSE_DISCOVERIES * np.arange(1, n + 1) / max(n, 1)
    limit = ordered[below].max(initial=-1.0)
    return np.asarray(chance <= limit)


def likeliest_sources(
    counts: sparse.csr_array,
    groups: Ints,
    likeness: Likeness,
    duplicates: Ints,
    done: Callable[[int], None] | None = None,
) -> Sources:
    """Find the sources of each sample among the samples of other groups.

    Samples that resemble a sample apart from what it contains are no sources of it, nor are those
    that pairs of `duplicates` [n, 2] join to it. Samples that resemble its best source do not
    compete with that.
    """
    n, mixture = len(groups), Mixture(counts, groups)
    links = sparse.coo_array((np.ones(len(duplicates)), duplicates.T), (n, n))
    family = connected_components(links, directed=False)[1]
    evidence, source, share = np.zeros((n, SOURCES)), np.full(n, -1), np.zeros(n)
    for row in range(n):
        ratio, shares = mixture.evidence(row)
        ratio[(groups == groups[row]) | (family == family[row])] = -np.inf
        top = np.argsort(-ratio, kind="stable")[:CANDIDATES]
        top = top[ratio[top] > 0]
        top = top[~likeness.are_related(row, top, shares[top])]
        if len(top):
            source[row], share[row] = top[0], shares[top[0]]
        for at in range(SOURCES):
            if not len(top):
                break
            evidence[row, at] = ratio[top[0]]
            same = (groups[top] == groups[top[0]]) | likeness.are_related(int(top[0]), top)
            same[0] = True
            top = top[~same]
        if done is not None:
            done(row + 1)
    return Sources(evidence, source, share, chance_of(evidence))
