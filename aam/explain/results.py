"""The explanation of one target: computed from effects."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aam.evaluate.intervals import FEW_GROUPS, LEAST_GROUPS, too_few
from aam.explain.asvs import Asvs, raised
from aam.explain.effects import TargetEffects
from aam.explain.importance import FALSE_DISCOVERIES, Importance, importance_of
from aam.explain.sets import AsvSet, clades, membership, taxa
from aam.io.phylogeny import Ints, Phylogeny

# What the samples of an explanation were to its models.
HELD_OUT, TRAINING = "held-out", "training"


@dataclass(frozen=True, eq=False)
class SetsExplained:
    """Sets of ASVs of one kind or several, their effects and importance."""

    sets: tuple[AsvSet, ...]
    effects: TargetEffects
    importance: Importance


@dataclass(frozen=True, eq=False)
class Explanation:
    """What drives the predictions of one target.

    `tree` and `tips` are of all ASVs; `groups` counts those with a truth; `group_column` is what was resampled, empty
    where single samples were; `subset` is what the samples were to the models, `HELD_OUT` or `TRAINING`.
    """

    effects: TargetEffects
    importance: Importance
    asvs: Asvs
    groups: int
    group_column: str
    subset: str
    tree: tuple[Phylogeny, Ints] | None = None
    taxa: SetsExplained | None = None
    clades: SetsExplained | None = None

    @functools.cached_property
    def has_truth(self) -> bool:
        """Whether the truth of any sample is known, without which there is no importance."""
        return bool(np.isfinite(self.effects.truth).any())

    def raised(self, column: int) -> str:
        """Return what the presence of an ASV raises."""
        return raised(self.effects, self.importance, column)

    def verdict(self) -> str:
        """Return in one sentence how many ASVs matter to predictions of these samples, beyond chance."""
        samples, asvs = len(self.effects.sample_ids), int((self.importance.carriers > 0).sum())
        of_what = f"{samples} {self.subset} samples with {asvs} ASVs"
        with_truth = int(np.isfinite(self.effects.truth).sum())
        if 0 < with_truth < samples:
            of_what += f", {with_truth} of them with a truth"
        unit, of = ("value", f" of {self.group_column}") if self.group_column else ("sample", "")
        if not self.has_truth:
            return f"effects on the predictions of {of_what}; no truth, so no importance"
        if self.subset == TRAINING:
            return f"{of_what}; the models have learned from them, so nothing is tested or said to stand out"
        if self.groups < LEAST_GROUPS:
            return (
                f"{of_what}; {too_few(self.groups, unit, of)} for intervals or tests, so nothing is said to stand out"
            )
        tested, number = int(np.isfinite(self.importance.p).sum()), int(self.importance.stands_out.sum())
        rough = ", which are few, so this is rough" if self.groups < FEW_GROUPS else ""
        return (
            f"{number} of {tested} tested ASVs stand out in {of_what} (share of false discoveries at most "
            f"{FALSE_DISCOVERIES:g}, over {self.groups} {unit}s{of}{rough})"
        )


def explanation_of(
    effects: TargetEffects,
    asvs: Asvs,
    tree: tuple[Phylogeny, Ints] | None,
    groups: npt.NDArray[np.object_] | None,
    group_column: str,
    subset: str,
    seed: int = 0,
) -> Explanation:
    """Return the explanation of one target: of each ASV, and of taxa and clades where those are known.

    Parameters
    ----------
    effects : TargetEffects
    asvs : Asvs
    tree : Phylogeny and int64 [F], optional
        A tree, and the tip of each ASV (-1 without).
    groups : array [N], optional
        The group of each sample; single samples are resampled without.
    group_column, subset : str
        See `Explanation`.
    seed : int
        Of the resampling.
    """
    tested = subset != TRAINING
    importance = importance_of(effects, groups, seed, tested=tested)
    carried = np.flatnonzero(importance.carriers > 0)

    def of_sets(sets: Sequence[AsvSet]) -> SetsExplained | None:
        if not sets:
            return None
        sums = effects.summed(membership(sets, effects.carriers.shape[1]))
        kinds = [one.kind for one in sets]
        return SetsExplained(tuple(sets), sums, importance_of(sums, groups, seed, kinds, tested))

    has_truth = np.isfinite(effects.truth)
    counted = has_truth if has_truth.any() else ~has_truth
    number = int(counted.sum()) if groups is None else len(set(groups[counted].tolist()))
    return Explanation(
        effects=effects,
        importance=importance,
        asvs=asvs,
        groups=number,
        group_column=group_column,
        subset=subset,
        tree=tree,
        taxa=of_sets(taxa(asvs.lineages, carried)),
        clades=None if tree is None else of_sets(clades(*tree, carried, asvs.lineages)),
    )
