"""Importance of ASVs, or of taxa and clades of them, over held-out samples: intervals and tests over groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import stdtr

from aam.device.rng import generator
from aam.evaluate.intervals import LEAST_GROUPS, Interval, interval
from aam.explain.effects import Matrix, TargetEffects
from aam.explain.predictor import BLEND
from aam.explain.variants import Floats

# The share of false discoveries among what is said to stand out.
FALSE_DISCOVERIES = 0.05

REPEATS = 1000

COLUMNS_AT_ONCE = 512

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Importance:
    """Of F ASVs (or of so many sets of them) in one target.

    Attributes
    ----------
    carriers, groups : float64 [F] and int64 [F]
        Samples, as means over rarefactions, and groups that have the ASV.
    importance : list of Interval [F]
        By how much the mean loss of the samples rises when the ASV is permuted over them.
    p, q : float64 [F]
        One-sided p of an importance of 0, and the same corrected for all ASVs (Benjamini and Hochberg 1995); NaN for
        an ASV of fewer than `LEAST_GROUPS` groups.
    effect : list of list of Interval [O][F]
        The mean effect on each output in the samples that have the ASV.
    presence, abundance : float64 [O, F]
        Its two parts.
    absolute : float64 [O, F]
        The mean absolute effect over all samples.
    by_learner : dict of learner to float64 [F]
        The importance to each learner alone.
    learner_effects : dict of learner to float64 [O, F]
    """

    carriers: Floats
    groups: Ints
    importance: list[Interval]
    p: Floats
    q: Floats
    effect: list[list[Interval]]
    presence: Floats
    abundance: Floats
    absolute: Floats
    by_learner: dict[str, Floats] = field(default_factory=dict)
    learner_effects: dict[str, Floats] = field(default_factory=dict)

    @property
    def value(self) -> Floats:
        """The importance [F]; without a truth, NaN."""
        return np.array([one.value for one in self.importance])

    @property
    def stands_out(self) -> npt.NDArray[np.bool_]:
        """Which ASVs matter beyond chance, at `FALSE_DISCOVERIES`."""
        return np.nan_to_num(self.q, nan=1.0) <= FALSE_DISCOVERIES

    def order(self) -> Ints:
        """Return the ASVs from the most important down; without a truth, by their mean absolute effect."""
        value = self.value
        ranked = self.absolute.max(axis=0) if np.isnan(value).all() else np.nan_to_num(value, nan=-np.inf)
        return np.asarray(np.lexsort((-self.absolute.max(axis=0), -ranked)))

    def direction(self) -> Ints:
        """Return the output that the presence of each ASV raises most on average."""
        return np.asarray(np.argmax([[one.value for one in of_output] for of_output in self.effect], axis=0))


def bh(p_values: Floats) -> Floats:
    """Return p corrected by Benjamini and Hochberg (1995); NaN stays and does not count."""
    # The import takes a second.
    from scipy.stats import false_discovery_control

    q, tested = np.full(len(p_values), np.nan), ~np.isnan(p_values)
    q[tested] = false_discovery_control(p_values[tested])
    return q


def bh_by_kind(p_values: Floats, kinds: Sequence[str]) -> Floats:
    """Return p corrected by `bh` within each of the `kinds`; within all where there are none."""
    if not kinds:
        return bh(p_values)
    q, kind_of = np.full(len(p_values), np.nan), np.array(kinds, object)
    for kind in set(kinds):
        q[kind_of == kind] = bh(p_values[kind_of == kind])
    return q


def one_sided_p(sums: Floats, sizes: Floats) -> Floats:
    """Return the p [F] of a mean of at most 0 over samples in groups, by a t-test on the sums of groups.

    `sums` ``[G, F]`` are those of each group, `sizes` ``[G]`` its samples.
    """
    groups, total = len(sizes), sizes.sum()
    mean = sums.sum(axis=0) / total
    around = sums - sizes[:, None] * mean
    error = np.sqrt(groups / max(groups - 1, 1) * (around**2).sum(axis=0)) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, mean / error, 0.0)
    return np.asarray(stdtr(groups - 1, -t))


def _weights(groups: int, seed: int) -> Floats:
    """Return how often each group counts ``[1 + R, G]``: once, then as drawn with replacement, if they are enough."""
    repeats = REPEATS if groups >= LEAST_GROUPS else 0
    drawn = generator(seed, "bootstrap").integers(groups, size=(repeats, groups))
    times = np.stack([np.bincount(row, minlength=groups) for row in drawn]) if repeats else np.zeros((0, groups))
    return np.concatenate([np.ones((1, groups)), times])


def _groups_with(carriers: Matrix) -> Ints:
    """Return how many of the groups ``[G, F]`` have each ASV."""
    return np.asarray((carriers > 0).sum(axis=0)).ravel()


def _p_by_asv(raised: Matrix, sizes: Floats, carriers: Matrix) -> Floats:
    """Return the `one_sided_p` of each ASV that `LEAST_GROUPS` of the groups ``[G, F]`` have, NaN of the others."""
    p = np.full(raised.shape[1], np.nan)
    columns = np.flatnonzero(_groups_with(carriers) >= LEAST_GROUPS)
    if len(columns):
        p[columns] = one_sided_p(raised[:, columns].toarray(), sizes)
    return p


def _mean(matrix: Matrix, size: float) -> Floats:
    return np.asarray(matrix.sum(axis=0)).ravel() / max(size, 1)


def _intervals(top: Matrix, bottom: Matrix | Floats, weights: Floats, groups: int) -> list[Interval]:
    """Return top / bottom of each column with limits over groups; `bottom` is ``[G, F]`` or, for all, ``[G]``."""
    intervals: list[Interval] = []
    for start in range(0, top.shape[1], COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        above = weights @ top[:, columns].toarray()
        below = weights @ (bottom[:, None] if isinstance(bottom, np.ndarray) else bottom[:, columns].toarray())
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(below > 0, above / below, np.nan)
        intervals += [interval(values, groups) for values in ratio.T]
    return intervals


def importance_of(
    effects: TargetEffects,
    groups: npt.NDArray[np.object_] | None,
    seed: int = 0,
    kinds: Sequence[str] = (),
    tested: bool = True,
) -> Importance:
    """Return the importance of every ASV, or set of ASVs, over some samples.

    Only groups with a sample whose truth is known count in tests and intervals of importances.

    Parameters
    ----------
    effects : TargetEffects
    groups : array [N], optional
        Groups that are resampled whole; single samples without.
    seed : int
        Of the resampling.
    kinds : sequence of str [F], optional
        Kinds of sets, each of which is corrected for on its own.
    tested : bool
        Whether importances have a p. A model that has learned from the samples uses their noise too.
    """
    _, group = np.unique(
        np.arange(len(effects.sample_ids)) if groups is None else groups.astype(str), return_inverse=True
    )
    number, samples = int(group.max()) + 1, len(group)
    by_group = sparse.csr_matrix((np.ones(samples), (group, np.arange(samples))), shape=(number, samples))
    has_truth = np.isfinite(effects.truth)
    sizes = np.bincount(group[has_truth], minlength=number).astype(np.float64)
    judged = np.flatnonzero(sizes)
    weights, carriers = _weights(number, seed), by_group @ effects.carriers
    raised = (by_group @ effects.losses[BLEND])[judged]
    importances = [Interval(np.nan)] * raised.shape[1]
    if len(judged):
        importances = _intervals(raised, sizes[judged], _weights(len(judged), seed), len(judged))
    p = _p_by_asv(raised, sizes[judged], carriers[judged]) if tested else np.full(raised.shape[1], np.nan)

    def per_carrier(matrices: tuple[Matrix, ...]) -> Floats:
        sums = np.array([np.asarray(matrix.sum(axis=0)).ravel() for matrix in matrices])
        return np.asarray(sums / np.maximum(np.asarray(effects.carriers.sum(axis=0)).ravel(), 1e-12))

    return Importance(
        carriers=np.asarray(effects.carriers.sum(axis=0)).ravel(),
        groups=_groups_with(carriers),
        importance=importances,
        p=p,
        q=bh_by_kind(p, kinds),
        effect=[_intervals(by_group @ matrix, carriers, weights, number) for matrix in effects.effects],
        presence=per_carrier(effects.presence),
        abundance=per_carrier(effects.abundance),
        absolute=np.array([_mean(abs(matrix), samples) for matrix in effects.effects]),
        by_learner={
            name: _mean(matrix, has_truth.sum()) if has_truth.any() else np.full(matrix.shape[1], np.nan)
            for name, matrix in effects.losses.items()
            if name != BLEND
        },
        learner_effects={name: per_carrier(matrices) for name, matrices in effects.learner_effects.items()},
    )
