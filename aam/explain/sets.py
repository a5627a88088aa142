"""Sets of ASVs: taxa at each rank, and clades of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.explain.effects import Matrix
from aam.io.phylogeny import Phylogeny
from aam.io.taxonomy import Lineage, rank_name

Ints = npt.NDArray[np.int64]

# The kind of a set that is a clade of a tree; that of a taxon is its rank.
CLADE = "clade"


@dataclass(frozen=True)
class AsvSet:
    """A taxon or a clade: its kind (rank, or clade), its name, its lineage, the columns of its ASVs."""

    kind: str
    name: str
    lineage: Lineage
    columns: tuple[int, ...]


def taxa(lineages: Sequence[Lineage], columns: Ints) -> list[AsvSet]:
    """Return the taxa of the ASVs at `columns` at each rank; those without a name there are one set.

    `lineages` are those of all F ASVs.
    """
    asv_sets: list[AsvSet] = []
    deepest = max((len(lineages[column]) for column in columns), default=0)
    for level in range(deepest):
        kind = rank_name(level, lineages)
        members: dict[tuple[Lineage, bool], list[int]] = {}
        for column in columns.tolist():
            lineage = lineages[column]
            members.setdefault((lineage[: level + 1], len(lineage) > level), []).append(column)
        for (lineage, named), of_taxon in sorted(members.items()):
            name = "; ".join(lineage) if named else "; ".join((*lineage, f"no {kind} given"))
            asv_sets.append(AsvSet(kind, name, lineage, tuple(of_taxon)))
    return asv_sets


def common_lineage(lineages: Sequence[Lineage]) -> Lineage:
    """Return what all lineages that are given have in common, from the top."""
    given = [lineage for lineage in lineages if lineage]
    if not given:
        return ()
    shared = []
    for names in zip(*given, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return tuple(shared)


def clades(tree: Phylogeny, tips: Ints, columns: Ints, lineages: Sequence[Lineage]) -> list[AsvSet]:
    """Return the clades of a tree that hold two or more of the ASVs at `columns`, each set of ASVs once.

    Parameters
    ----------
    tree : Phylogeny
    tips : int64 [F]
        Tip of each ASV; -1 without.
    columns : int64
        ASVs that count.
    lineages : sequence of Lineage
        Of all F ASVs; empty where nothing is known.
    """
    column_of = np.full(len(tree.tips), -1, np.int64)
    with_tip = columns[tips[columns] >= 0]
    column_of[tips[with_tip]] = with_tip
    before = np.r_[0, np.cumsum(column_of >= 0)]
    held = column_of[column_of >= 0]
    asv_sets: list[AsvSet] = []
    seen: set[tuple[int, int]] = set()
    for lo, hi in zip(before[tree.lo].tolist(), before[tree.hi].tolist(), strict=True):
        if hi - lo < 2 or (lo, hi) in seen:
            continue
        seen.add((lo, hi))
        inside = tuple(held[lo:hi].tolist())
        asv_sets.append(
            AsvSet(CLADE, f"clade {len(asv_sets) + 1}", common_lineage([lineages[c] for c in inside]), inside)
        )
    return asv_sets


def membership(sets: Sequence[AsvSet], asvs: int) -> Matrix:
    """Return which ASV is in which set, ``[F, sets]``."""
    sizes = [len(one.columns) for one in sets]
    column = np.concatenate([np.zeros(0, np.int64), *(np.array(one.columns, np.int64) for one in sets)])
    place = np.repeat(np.arange(len(sets)), sizes)
    return sparse.csr_matrix((np.ones(len(column)), (column, place)), shape=(asvs, len(sets)))
