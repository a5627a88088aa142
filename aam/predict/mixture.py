"""Samples that contain another sample, from counts alone.

N samples, F features, G groups (subjects), C candidates, T sources kept per sample, E features
that a sample and its sources have in common. Counts are csr [N, F] without empty samples; groups
int64 [N] from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.special import gammaln
from scipy.stats import false_discovery_control

from aam.data.duplicates import Likeness
from aam.typing import Bools, Floats, Ints

# Shares of a source that are tried: first few, by expected reads, for all samples; then many for
# the candidates. Above the largest the two are relatives.
LEAST_MIXTURE, LARGEST_MIXTURE, GRID_STEP = 0.001, 0.35, 3.0
MIXTURE_SHARES = np.geomspace(LEAST_MIXTURE, 0.5, 28)

# Variance of the reads of a feature of the source beyond Poisson, in units of the squared mean.
DISPERSION = 0.05

# Pseudo-samples by which the presence of a feature in a subject shrinks to that in the table.
PSEUDO_SAMPLES = 2.0

# Limits of the chance of a feature, and features and samples whose dependence is looked at.
CHANCES, DEPENDENT, REFERENCE_SAMPLES = (1e-4, 0.999), 300, 1000

# Likeliest sources that are looked at, and sources of different groups that are kept.
CANDIDATES, SOURCES = 40, 4

# Where more than this part of the samples seems to contain this share of another one, with evidence
# so far above the logarithm of N, the table has several samples of a subject: 0 to 0.09 of the
# samples in studies of one sample a subject, 0.18 to 0.9 with more.
MOST_RELATIVES, LARGE_SHARE, STRONG = 0.125, 0.1, 3.0

# Share of the suspicions that is expected by chance, and samples that are too few to say so.
FALSE_DISCOVERIES, LEAST_TABLE_SAMPLES = 0.05, 20

# Chance that a best source stands out from the others, and quantile of the differences between the
# others that gives the scale of chance in a study.
STANDS_OUT, BULK = 0.05, 0.7


@dataclass(frozen=True, eq=False)
class _Common:
    """Features that a sample has in common with possible sources, an entry for each and source.

    Attributes
    ----------
    source, feature : int64 [E]
    reads, chance, odds : float64 [E]
        Reads in the sample, the chance that it is there without a source, and the part of the
        likelihood that does not depend on the source.
    share, log_share : float64 [E]
        Share of the feature in the source.
    """

    source: Ints
    feature: Ints
    reads: Floats
    chance: Floats
    odds: Floats
    share: Floats
    log_share: Floats

    def terms(self, reads: float) -> Floats:
        """Log likelihood ratio of each entry, less that of its absence, if so many reads come from
        the source.
        """
        shape, arriving = 1 / DISPERSION, reads * DISPERSION
        absence = np.log1p(arriving * self.share)
        ratio = self.odds + self.reads * (np.log(arriving) + self.log_share)
        return np.asarray(np.logaddexp(0, ratio - (self.reads + shape) * absence) + shape * absence)

    def totals(self, reads: float, sources: int) -> Floats:
        """Sum of the terms of each source."""
        return np.bincount(self.source, self.terms(reads), minlength=sources).astype(np.float64)


class Mixture:
    """Likelihood of each sample as itself plus a share of any other sample.

    A feature is there without a source with the chance that the other samples of its group give,
    and then has a log-uniform number of reads. Reads from a source are negative binomial.
    """

    def __init__(self, counts: sparse.csr_array, groups: Ints) -> None:
        self.counts, self.groups = counts, groups
        self.depth = np.asarray(counts.sum(axis=1), np.float64).ravel()
        present = sparse.csr_array(counts.sign())
        self.prevalence = np.asarray(present.sum(axis=0)).ravel()
        self.size = np.bincount(groups)
        member = (np.ones(len(groups)), (groups, np.arange(len(groups))))
        self.of_group = sparse.csr_array(sparse.csr_array(member) @ present)
        self.shares = sparse.csr_array(counts.multiply(1 / self.depth[:, None]))
        self.columns = sparse.csc_array(self.shares)
        low, high = max(1.0, LEAST_MIXTURE * self.depth.min()), LARGEST_MIXTURE * self.depth.max()
        steps = max(0, int(np.log(high / low) / np.log(GRID_STEP)))
        self.reads = low * GRID_STEP ** np.arange(2 + steps)
        starts = self.shares.indptr[:-1]
        absences = (_absence(reads, self.shares.data) for reads in self.reads)
        self.absence = np.stack([np.add.reduceat(absence, starts) for absence in absences])

    def likeliest(self, row: int, is_source: Bools) -> tuple[Ints, Floats, Floats]:
        """Likeliest sources of those that may be one [N], the best first: their rows [C], the
        largest log likelihood ratio over the shares, and that share.
        """
        coarse = np.where(is_source, self._coarse(row), -np.inf)
        sources = np.argsort(-coarse, kind="stable")[:CANDIDATES]
        sources = sources[coarse[sources] > 0]
        common, shares = self._common(row, sources), self.shares[sources]
        source = np.repeat(np.arange(len(sources)), np.diff(shares.indptr))
        ratios = np.zeros((len(MIXTURE_SHARES), len(sources)))
        for step, reads in enumerate(MIXTURE_SHARES * self.depth[row]):
            absence = _absence(reads, shares.data)
            ratios[step] = common.totals(reads, len(sources))
            ratios[step] -= np.bincount(source, absence, minlength=len(sources))
        ratio, share = ratios.max(axis=0), MIXTURE_SHARES[ratios.argmax(axis=0)]
        order = np.argsort(-ratio, kind="stable")
        return sources[order], ratio[order], share[order]

    def carriers(self, row: int, source: int, share: float) -> tuple[Ints, Floats]:
        """Features by which a sample shows its source, the strongest first, and the log likelihood
        ratio of each above 1.
        """
        common = self._common(row, np.array([source]))
        terms = common.terms(share * self.depth[row])
        order = np.argsort(-terms, kind="stable")
        order = order[terms[order] > 1]
        return common.feature[order], terms[order]

    def conditional_evidence(self, row: int, source: int, share: float, others: Ints) -> float:
        """Log likelihood ratio of a source where features that occur together count once.

        Each feature is there with the largest chance that a stronger one gives, as often as the two
        are together in other samples (a tree of dependences; Chow and Liu 1968).
        """
        common, reads = self._common(row, np.array([source])), share * self.depth[row]
        terms = common.terms(reads)
        order = np.argsort(-terms, kind="stable")[:DEPENDENT]
        present = self.counts[others][:, common.feature[order]].toarray() > 0
        present = present.astype(np.float64)
        together = present.T @ present
        number = np.diag(together)
        usual = (number + 0.5) / (len(present) + 1)
        given = (together + PSEUDO_SAMPLES * usual) / (number[:, None] + PSEUDO_SAMPLES)
        given = np.triu(given, k=1).max(axis=0, initial=0)
        chance = common.chance[order]
        conditional = np.clip(np.maximum(chance, given), *CHANCES)
        odds = common.odds.copy()
        odds[order] += _logit(chance) - _logit(conditional)
        terms[order] = replace(common, odds=odds).terms(reads)[order]
        return float(terms.sum() - _absence(reads, self.shares[[source]].data).sum())

    def _coarse(self, row: int) -> Floats:
        """Log likelihood ratio of each sample as a source, [N], at the best of a few shares."""
        common = self._common(row, np.arange(len(self.groups)))
        ratio = np.full(len(self.groups), -np.inf)
        share = self.reads / self.depth[row]
        for step in np.flatnonzero((share >= LEAST_MIXTURE) & (share <= LARGEST_MIXTURE)):
            total = common.totals(self.reads[step], len(ratio)) - self.absence[step]
            ratio = np.maximum(ratio, total)
        return ratio

    def _common(self, row: int, sources: Ints) -> _Common:
        """Features that a sample has in common with some sources, by their place [C]."""
        features, reads, chance = self._sample(row)
        odds, shares = _odds(reads, chance, self.depth[row]), self.columns[:, features]
        place = np.full(len(self.groups), -1)
        place[sources] = np.arange(len(sources))
        source = place[shares.indices]
        both = source >= 0
        feature = np.repeat(np.arange(len(features)), np.diff(shares.indptr))[both]
        shared = features[feature], reads[feature], chance[feature], odds[feature]
        share = shares.data[both]
        return _Common(source[both], *shared, share, np.log(share))

    def _sample(self, row: int) -> tuple[Ints, Floats, Floats]:
        """Features of a sample, their reads, and the chance that each is there without a source:
        how often the other samples of the group have it, shrunken to all other groups.
        """
        part = slice(*self.counts.indptr[row : row + 2])
        features = self.counts.indices[part].astype(np.int64)
        reads = self.counts.data[part].astype(np.float64)
        group = self.groups[row]
        siblings = self.of_group[[group]].toarray()[0, features] - 1
        relatives = self.size[group] - 1
        strangers = len(self.groups) - 1 - relatives
        usual = (self.prevalence[features] - 1 - siblings + 0.5) / (strangers + 1)
        chance = (siblings + PSEUDO_SAMPLES * usual) / (relatives + PSEUDO_SAMPLES)
        return features, reads, np.clip(chance, *CHANCES)


def _logit(chance: Floats) -> Floats:
    return np.asarray(np.log(chance) - np.log1p(-chance))


def _odds(reads: Floats, chance: Floats, depth: float) -> Floats:
    """Part of the log likelihood ratio of features that does not depend on the source."""
    shape = 1 / DISPERSION
    density = gammaln(reads + shape) - gammaln(shape) - gammaln(reads + 1)
    return np.asarray(density + np.log(reads * np.log(depth + 1)) - _logit(chance))


def _absence(reads: float, shares: Floats) -> Floats:
    """Minus the log chance that no read of a feature arrives, if so many come from the source."""
    return np.asarray(np.log1p(reads * DISPERSION * shares) / DISPERSION)


@dataclass(frozen=True, eq=False)
class Sources:
    """The likeliest source of each sample, of another group.

    Attributes
    ----------
    source : int64 [N]
        Row of the source, -1 without one.
    share : float64 [N]
        Share of the reads that come from it.
    evidence : float64 [N]
        Log likelihood ratio of "contains this source" to "contains none", 0 without a source. If
        the source stands out, features that occur together count once.
    chance : float64 [N]
        P value: the ratio must be improbable among N sources (Markov); 1 if none stands out.
    relatives : float
        Part of the samples that seem to contain a large share of another one, of relatives too.
    mixture : Mixture
    """

    source: Ints
    share: Floats
    evidence: Floats
    chance: Floats
    relatives: float
    mixture: Mixture

    @property
    def is_suspicious(self) -> Bools:
        """Samples of which `FALSE_DISCOVERIES` are expected by chance (Benjamini and Hochberg)."""
        return discoveries(self.chance)

    @property
    def has_relatives(self) -> bool:
        """Whether several samples must be of one subject although their groups differ."""
        return self.relatives > MOST_RELATIVES


def stand_out(evidence: Floats) -> Bools:
    """Whether the best of the sources [N, T] of each sample stands out, [N], whatever N.

    Without a mixture, the i-th largest of many ratios exceeds the next one by an exponential amount
    of mean scale / i (Renyi 1953), so the lower differences of all samples give the scale of this
    study, and the first difference is the test. The scale is at least 1, that of a likelihood
    ratio.
    """
    n, width = evidence.shape
    if n < LEAST_TABLE_SAMPLES or width < SOURCES:
        return np.zeros(n, bool)
    spacing = -np.diff(evidence, axis=1) * np.arange(1, width)
    scale = max(1.0, float(np.quantile(spacing, BULK)) / -np.log(1 - BULK))
    return np.asarray(spacing[:, 0] >= -scale * np.log(STANDS_OUT))


def discoveries(chance: Floats) -> Bools:
    """Which p values are below the line of Benjamini and Hochberg (1995), [N]."""
    return np.asarray(false_discovery_control(chance) <= FALSE_DISCOVERIES)


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
    ratios, source, share = np.zeros((n, SOURCES)), np.full(n, -1), np.zeros(n)
    relatives = np.zeros(n, bool)
    for row in range(n):
        is_source = (groups != groups[row]) & (family != family[row])
        rows, ratio, part = mixture.likeliest(row, is_source)
        if len(rows):
            relatives[row] = part[0] >= LARGE_SHARE and ratio[0] > np.log(n) + STRONG
        strange = (part <= LARGEST_MIXTURE) & ~likeness.are_related(row, rows, part)
        rows, ratio, part = rows[strange], ratio[strange], part[strange]
        if len(rows):
            source[row], share[row] = rows[0], part[0]
        ratios[row] = _ratios_of_rivals(rows, ratio, groups, likeness)
        if done is not None:
            done(row + 1)
    evidence, chance = ratios[:, 0].copy(), np.ones(n)
    for row in np.flatnonzero(stand_out(ratios)).tolist():
        others = _references(row, int(source[row]), groups, likeness)
        evidence[row] = mixture.conditional_evidence(row, int(source[row]), share[row], others)
        chance[row] = min(1.0, n * np.exp(-evidence[row]))
    return Sources(source, share, evidence, chance, float(relatives.mean()), mixture)


def _ratios_of_rivals(rows: Ints, ratio: Floats, groups: Ints, likeness: Likeness) -> Floats:
    """Log likelihood ratios of the best sources [C] that do not resemble each other, [T]."""
    rivals = np.zeros(SOURCES)
    for place in range(SOURCES):
        if not len(rows):
            break
        best, rivals[place] = int(rows[0]), ratio[0]
        different = (groups[rows] != groups[best]) & ~likeness.are_related(best, rows)
        different[0] = False
        rows, ratio = rows[different], ratio[different]
    return rivals


def _references(row: int, source: int, groups: Ints, likeness: Likeness) -> Ints:
    """Rows that show which features occur together: neither of the group of a sample nor related
    to its source.
    """
    rows = np.random.default_rng(0).permutation(len(groups))[:REFERENCE_SAMPLES]
    rows = rows[(groups[rows] != groups[row]) & (groups[rows] != groups[source])]
    return np.asarray(rows[~likeness.are_related(source, rows)])
