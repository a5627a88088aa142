"""Samples that fit another subject better than their own.

N samples, F features, G groups (subjects). Presences are csr [N, F] after one rarefaction; groups
int64 [N] from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from aam.predict.mixture import LEAST_TABLE_SAMPLES
from aam.typing import Bools, Floats, Ints

# Nearest samples of a subject that count, and pseudo-samples at the prevalence in the table.
NEAREST, SUBJECT_PSEUDO_SAMPLES = 3, 1.0

# Weight of a sample by its distance in time: exp(-distance / scale), with this part of the
# interquartile range of times for scale.
TIME_SCALE = 0.25

# Chance of any false suspicion in a study, and the share of samples that must fit their own subject
# best for any to be judged.
FAMILY_WISE, LEAST_OWN = 0.05, 0.5

# Quantile of the differences between other subjects that gives the scale of chance in a study.
SUBJECT_BULK = 0.85

# Other subjects that are compared, and neighbours in the sheet that make a shift.
COMPARED, LEAST_SUBJECT_SHIFT = 4, 3


class Subjects:
    """How well samples fit subjects: mean Jaccard similarity to the nearest samples, and the log
    probability of the presences given those of the subject (Bernoulli, shrunken to the prevalence).
    A sample never counts for itself.
    """

    def __init__(self, presence: sparse.csr_array, groups: Ints, time: Floats | None):
        self.presence, self.groups, self.time = presence, groups, time
        n, self.number = len(groups), int(groups.max()) + 1
        self.richness = np.asarray(presence.sum(axis=1), np.float64).ravel()
        usual = np.asarray(presence.sum(axis=0), np.float64).ravel()
        self.features = np.flatnonzero(usual >= 2)
        self.usual = (usual[self.features] + 0.5) / (n + 1)
        common = sparse.csr_array(presence[:, self.features])
        self.common = common
        self.sample = np.repeat(np.arange(n), np.diff(common.indptr))
        # Pairs of a group and a feature that it has.
        key = groups[self.sample] * len(self.features) + common.indices
        pairs, self.pair = np.unique(key, return_inverse=True)
        self.pair_group, self.pair_feature = np.divmod(pairs, max(len(self.features), 1))
        self.by_group = np.argsort(groups, kind="stable")
        self.starts = np.flatnonzero(np.diff(groups[self.by_group], prepend=-1))
        # Log probability that no feature is there, by the weight of a group.
        self.weight_grid = np.concatenate([[0], np.geomspace(1e-3, n, 60)])
        shrunken = SUBJECT_PSEUDO_SAMPLES / (self.weight_grid[:, None] + SUBJECT_PSEUDO_SAMPLES)
        self.nothing = np.log1p(-shrunken * self.usual).sum(axis=1)
        self.scale = 1.0
        if time is not None:
            spread = float(np.subtract(*np.nanquantile(time, [0.75, 0.25])))
            self.scale = max(TIME_SCALE * spread, 1e-9)

    def _nearest(self, row: int) -> Floats:
        """Mean Jaccard similarity to the nearest samples of each group, [G]; nan without one."""
        both = np.asarray((self.presence @ self.presence[[row]].T).todense()).ravel()
        union = self.richness + self.richness[row] - both
        likeness = both / np.maximum(union, 1)
        likeness[row] = -1
        ordered = likeness[self.by_group]
        lengths = np.diff(self.starts, append=len(ordered))
        total, number = np.zeros(self.number), np.zeros(self.number)
        available = lengths - (np.arange(self.number) == self.groups[row])
        for place in range(NEAREST):
            best = np.maximum.reduceat(ordered, self.starts)
            is_one = (best >= 0) & (2 * place < available)
            total[is_one] += best[is_one]
            number += is_one
            ordered = np.where(ordered == np.repeat(best, lengths), -1, ordered)
        return np.where(number > 0, total / np.maximum(number, 1), np.nan)

    def _presences(self, row: int) -> Floats:
        """Log probability of the presences of a sample given each group, [G]."""
        weights = np.ones(len(self.groups))
        if self.time is not None:
            distance = np.nan_to_num(np.abs(self.time - self.time[row]), nan=self.scale)
            weights = np.exp(-distance / self.scale)
        weights[row] = 0
        of_group = np.bincount(self.groups, weights, minlength=self.number)
        seen = np.bincount(self.pair, weights[self.sample], minlength=len(self.pair_group))
        total = of_group[self.pair_group] + SUBJECT_PSEUDO_SAMPLES
        usual = SUBJECT_PSEUDO_SAMPLES * self.usual[self.pair_feature]
        chance = np.minimum((seen + usual) / total, 1 - 1e-5)
        change = np.log1p(-chance) - np.log1p(-usual / total)
        has = np.zeros(len(self.features), bool)
        own = self.common.indices[slice(*self.common.indptr[row : row + 2])]
        has[own] = True
        there = has[self.pair_feature]
        logit = np.log(chance[there]) - np.log1p(-chance[there])
        expected = np.log(usual[there]) - np.log(total[there] - usual[there])
        change[there] += logit - expected
        small = SUBJECT_PSEUDO_SAMPLES * self.usual[own]
        alone = np.log(small).sum()
        alone = alone - np.log(of_group[:, None] + SUBJECT_PSEUDO_SAMPLES - small).sum(axis=1)
        nothing = np.interp(of_group, self.weight_grid, self.nothing)
        other = np.bincount(self.pair_group, change, minlength=self.number)
        return np.asarray(alone + nothing + other)

    def fit(self, row: int) -> Floats:
        """Fit of a sample to each group, [G], in standard deviations over the groups; nan for its
        own group if it has no other sample.
        """
        nearest = self._nearest(row)
        fits, lacking = np.zeros(self.number), np.isnan(nearest)
        for score in (nearest, self._presences(row)):
            values = score[~lacking]
            fits[~lacking] += (values - values.mean()) / (values.std() + 1e-9)
        fits[lacking] = np.nan
        return fits


@dataclass(frozen=True, eq=False)
class SubjectFit:
    """Which subject each sample fits best.

    Attributes
    ----------
    own, other : float64 [N]
        Fit to the own and to the best other subject; own is nan without another sample of it.
    subject : int64 [N]
        The best other subject.
    chance : float64 [N]
        P value that another subject fits that much better by chance; 1 where the own fits best.
    partner : int64 [N]
        Sample of the best other subject that fits the subject of this one, -1 without: labels that
        may be swapped.
    """

    own: Floats
    other: Floats
    subject: Ints
    chance: Floats
    partner: Ints

    @property
    def share_own(self) -> float:
        """Share of the samples that fit their own subject best, of those that could."""
        judged = np.isfinite(self.own)
        return float((self.own > self.other)[judged].mean()) if judged.any() else 0.0

    @property
    def margin(self) -> Floats:
        """Fit to the best other subject less that to the own, [N]."""
        return self.other - self.own

    @property
    def is_told_apart(self) -> bool:
        """Whether enough samples fit their own subject best for any to be judged."""
        judged = np.isfinite(self.own).sum()
        return bool(judged >= LEAST_TABLE_SAMPLES and self.share_own >= LEAST_OWN)

    @property
    def is_suspicious(self) -> Bools:
        """Samples of which, with `FAMILY_WISE` chance, none is expected (Bonferroni)."""
        judged = np.isfinite(self.own)
        line = FAMILY_WISE / max(int(judged.sum()), 1)
        return np.asarray(judged & (self.chance <= line) & self.is_told_apart)


def fit_subjects(
    presence: sparse.csr_array,
    groups: Ints,
    time: Floats | None = None,
    done: Callable[[int], None] | None = None,
) -> SubjectFit:
    """Compare the fit of each sample to its own subject with that to all others.

    The test is the same as that of sources: by how much the best other subject exceeds the own and
    the second other one, in units of the differences between further ones.
    """
    subjects, n = Subjects(presence, groups, time), len(groups)
    own, best = np.full(n, np.nan), np.full((n, COMPARED), np.nan)
    other, compared = np.full(n, -1), min(COMPARED, subjects.number - 1)
    for row in range(n):
        fits = subjects.fit(row)
        own[row] = fits[groups[row]]
        fits[groups[row]] = -np.inf
        top = np.argsort(-fits, kind="stable")[:compared]
        best[row, :compared], other[row] = fits[top], top[0] if compared else -1
        if done is not None:
            done(row + 1)
    gap = best[:, 0] - np.fmax(own, best[:, 1])
    chance, scale = np.ones(n), 1.0
    if compared == COMPARED:
        spacing = -np.diff(best, axis=1)[:, 1:] * np.arange(2, COMPARED)
        scale = max(float(np.nanquantile(spacing, SUBJECT_BULK)) / -np.log(1 - SUBJECT_BULK), 1e-9)
        chance = np.exp(-np.maximum(np.nan_to_num(gap), 0) / scale)
    margin = np.nan_to_num((best[:, 0] - own) / scale)
    partner = _partners(groups, other, margin, subjects.number)
    return SubjectFit(own, best[:, 0], other, chance, partner)


def _partners(groups: Ints, other: Ints, gap: Floats, number: int) -> Ints:
    """Return the sample that each one may be swapped with, -1 without, [N].

    Two samples each fit the subject of the other. By chance the sum of their gaps is that of two
    exponential numbers (Erlang), and one in G samples points to a given subject.
    """
    partner, points = np.full(len(groups), -1), np.flatnonzero(gap > 0)
    tests = max(1.0, len(points) ** 2 / 2 / max(number - 1, 1))
    for row in points.tolist():
        back = points[(groups[points] == other[row]) & (other[points] == groups[row])]
        if len(back):
            best = int(back[gap[back].argmax()])
            total = gap[row] + gap[best]
            if tests * np.exp(-total) * (1 + total) <= FAMILY_WISE:
                partner[row] = best
    mutual = partner[np.maximum(partner, 0)] == np.arange(len(groups))
    return np.where((partner >= 0) & mutual, partner, -1)


def shifts(groups: Ints, fit: SubjectFit, order: Ints) -> list[Ints]:
    """Return runs of neighbours in the order of a sheet that each fit the subject of the next row,
    or each that of the row before.
    """
    runs, labels, others = list[Ints](), groups[order], fit.subject[order]
    better = np.nan_to_num(fit.margin[order]) > 0
    for step in (1, -1):
        next_label = np.roll(labels, -step)
        hit = better & (others == next_label) & (labels != next_label)
        hit[-1 if step == 1 else 0] = False
        edges = np.flatnonzero(np.diff(np.concatenate([[0], hit.astype(np.int8), [0]])))
        for start, stop in edges.reshape(-1, 2):
            if stop - start >= LEAST_SUBJECT_SHIFT:
                runs.append(order[start:stop])
    return runs
