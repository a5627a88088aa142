"""Phylogenies as flat post-order arrays: matched to features, pruned, rooted at the midpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from aam.config import Missing
from aam.errors import InputError, shown

# What another program may have put around the name of a tip.
AROUND = "'\" "

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Phylogeny:
    """A rooted tree in post-order; E branches, each named by the node below it, the root last.

    Attributes
    ----------
    parent : int64 [E]
        Post-order index of each node's parent; -1 for the root.
    length : float64 [E]
        Length of the branch above each node; NaN where the file gives none (the root's is then 0).
    lo, hi : int64 [E]
        The tips below each node are ``tips[lo:hi]``.
    tips : sequence of str
        Names of the tips in post-order.
    """

    parent: Ints
    length: Floats
    lo: Ints
    hi: Ints
    tips: Sequence[str]

    @cached_property
    def tip_nodes(self) -> Ints:
        """Return the node of each tip, [tips]."""
        return np.flatnonzero(np.bincount(self.parent[:-1], minlength=len(self.parent)) == 0)

    def above(self, tips: Ints) -> Ints:
        """Return the nodes, ascending, from some distinct tips up to the root.

        The cost grows with these nodes and with the height of the tree, not with the size of the tree.
        """
        seen = np.zeros(len(self.parent), bool)
        nodes = self.tip_nodes[tips]
        levels = []
        while len(nodes):
            seen[nodes] = True
            levels.append(nodes)
            parents = self.parent[nodes]
            nodes = np.unique(parents[(parents >= 0) & ~seen[parents]])
        return np.sort(np.concatenate(levels))


def make_phylogeny(parent: Ints, length: Floats, tips: Sequence[str]) -> Phylogeny:
    """Add the tip ranges to post-order arrays."""
    is_tip = np.bincount(parent[:-1], minlength=len(parent)) == 0
    hi = np.cumsum(is_tip)
    lo = np.where(is_tip, hi - 1, len(tips)).tolist()
    for node, above in enumerate(parent[:-1].tolist()):
        if lo[node] < lo[above]:
            lo[above] = lo[node]
    return Phylogeny(parent, length, np.array(lo, np.int64), hi.astype(np.int64), tips)


def match_tips(
    phylogeny: Phylogeny, feature_ids: Sequence[str], missing_tips: Missing = "error", sequences: Sequence[str] = ()
) -> Ints:
    """Return the tip of each feature, by its id or else by its sequence.

    Parameters
    ----------
    phylogeny : Phylogeny
    feature_ids : sequence of str
        F ids.
    missing_tips : str
        Whether features without a tip are refused ("error") or get -1 ("drop").
    sequences : sequence of str, optional
        F upper-case sequences, for trees whose tips are called by them while the ids are hashes.

    Returns
    -------
    int64 [F]
        Index into ``phylogeny.tips``; -1 for a feature without tip, which only "drop" allows.

    Raises
    ------
    InputError
        Features without a tip, or no feature with one.
    """
    index_of_tip = {name: index for index, name in enumerate(phylogeny.tips)}
    tips = np.array([index_of_tip.get(feature, -1) for feature in feature_ids], np.int64)
    if sequences:
        by_sequence = np.array([index_of_tip.get(sequence, -1) for sequence in sequences], np.int64)
        tips = np.where(tips >= 0, tips, by_sequence)
    missing = np.flatnonzero(tips < 0)
    if len(missing) and (missing_tips == "error" or len(missing) == len(tips)):
        none = len(missing) == len(tips)
        names = "id or sequence" if sequences else "id"
        plain = {name.strip(AROUND).lower() for name in phylogeny.tips}
        alike = sum(feature_ids[index].strip(AROUND).lower() in plain for index in missing.tolist())
        close = f" ({alike} differ in case, quotes or blanks only)" if alike else ""
        raise InputError(
            f"{len(missing)} of {len(tips)} features of the table have no tip in the tree by {names}, e.g. "
            f"{shown(feature_ids[index] for index in missing[:3])}; the tree has {len(index_of_tip)} tips like "
            f"{shown(phylogeny.tips[:1])}{close}. Give the tree that was built for this table"
            + ("" if none else " or pass --missing-tips drop to leave these features out of UniFrac")
        )
    return tips


def present_ranges(lo: Ints, hi: Ints, tips: Ints, total: int) -> tuple[Ints, Ints, Ints]:
    """Return the branches above at least one of `tips`, and their ranges among these.

    Parameters
    ----------
    lo, hi : int64 [E]
        Ranges of tips below each branch.
    tips : int64 [U]
        Distinct tips.
    total : int
        Tips that `lo` and `hi` refer to.

    Returns
    -------
    kept, lo, hi : int64 [E']
    """
    before = np.zeros(total + 1, np.int64)
    before[tips + 1] = 1
    np.cumsum(before, out=before)
    new_lo, new_hi = before[lo], before[hi]
    kept = np.flatnonzero(new_hi > new_lo)
    return kept, new_lo[kept], new_hi[kept]


def prune(phylogeny: Phylogeny, tips: Ints) -> Phylogeny:
    """Keep some tips and every branch from them up to the original root.

    A chain of nodes with a single child becomes one branch with the sum of the lengths, so UniFrac and
    Faith PD of these tips stay as they were; the root remains a node of its own.

    Parameters
    ----------
    phylogeny : Phylogeny
    tips : int64 [U]
        Tips to keep, U >= 1, in any order; the result holds them in post-order.
    """
    tips = np.unique(tips)
    kept, lo, hi = present_ranges(phylogeny.lo, phylogeny.hi, tips, len(phylogeny.tips))
    # Without the branches that lost all tips, those with equal ranges stand next to each other.
    first = np.r_[True, (lo[1:] != lo[:-1]) | (hi[1:] != hi[:-1])]
    first[-1] = True
    starts = np.flatnonzero(first)
    group = np.full(len(phylogeny.parent), -1, np.int64)
    group[kept] = np.cumsum(first) - 1
    top = kept[np.r_[starts[1:], len(kept)] - 1]
    parent = np.r_[group[phylogeny.parent[top[:-1]]], -1].astype(np.int64)
    length = np.add.reduceat(phylogeny.length[kept], starts)
    return Phylogeny(parent, length, lo[starts], hi[starts], tuple(phylogeny.tips[tip] for tip in tips))


def _farthest_pair(tree: Phylogeny, tip_nodes: Ints) -> tuple[int, float]:
    """Return the deeper node of two tips that are farthest apart, and their distance."""
    from_root = np.zeros(len(tree.parent)).tolist()
    above, length = tree.parent.tolist(), tree.length.tolist()
    for node in range(len(above) - 2, -1, -1):
        from_root[node] = from_root[above[node]] + length[node]
    depth = np.array(from_root)
    # From any node, here the root, the farthest tip is one end of a longest path.
    start = int(np.argmax(depth[tip_nodes]))
    path = [int(tip_nodes[start])]
    while above[path[-1]] >= 0:
        path.append(above[path[-1]])
    # Along the path the ranges grow, so the common ancestor is the first whose range holds the tip.
    tips = np.arange(len(tip_nodes))
    left = np.searchsorted(-tree.lo[path], -tips)
    right = np.searchsorted(tree.hi[path], tips, side="right")
    common = np.array(path)[np.maximum(left, right)]
    apart = depth[path[0]] + depth[tip_nodes] - 2 * depth[common]
    return path[0], float(apart.max())


def _trunk_removed(phylogeny: Phylogeny) -> Phylogeny:
    """Make the highest node with several children the root, and merge all chains of single children."""
    tree = prune(phylogeny, np.arange(len(phylogeny.tips)))
    if (tree.parent == len(tree.parent) - 1).sum() != 1:
        return tree
    parent = np.r_[tree.parent[:-2], -1].astype(np.int64)
    length = np.r_[tree.length[:-2], 0.0]
    return Phylogeny(parent, length, tree.lo[:-1], tree.hi[:-1], tree.tips)


def midpoint_root(phylogeny: Phylogeny) -> Phylogeny:
    """Root a tree halfway between the two tips farthest apart (Farris 1972, Am. Nat. 106:645).

    The old root disappears where it joins only two branches, and what stands above it; the new root has two
    children. A tree whose tips all coincide is returned as it is. All lengths must be known.
    """
    tree = _trunk_removed(phylogeny)
    total, parent, length = len(tree.parent), tree.parent.copy(), tree.length.copy()
    tip_nodes = np.flatnonzero(np.bincount(parent[:-1], minlength=total) == 0)
    node, longest = _farthest_pair(tree, tip_nodes)
    if longest <= 0.0:
        return phylogeny
    climbed = 0.0
    while climbed + length[node] < longest / 2 and parent[parent[node]] >= 0:
        climbed += length[node]
        node = parent[node]
    below = min(longest / 2 - climbed, length[node])

    # What stood above the divided branch now hangs from it: the other subtrees along the path keep their
    # order, and the nodes of the path close after them, the old root first.
    path = [int(node)]
    while parent[path[-1]] >= 0:
        path.append(int(parent[path[-1]]))
    start = tip_nodes[tree.lo[path]]
    pieces = [np.arange(start[0], path[0] + 1)]
    for step, (lower, upper) in enumerate(pairwise(path)):
        pieces += [np.arange(start[step + 1], start[step]), np.arange(lower + 1, upper)]
    turned, old_root = path[1:], path[-1]
    parent[turned] = [total, *turned[:-1]]
    length[turned] = np.r_[length[node] - below, tree.length[turned[:-1]]]
    parent[node], length[node] = total, below
    others = np.flatnonzero(parent == old_root)
    if len(others) == 1:
        length[others] += length[old_root]
        parent[others] = parent[old_root]
        turned = turned[:-1]
    order = np.concatenate([*pieces, turned[::-1], [total]]).astype(np.int64)
    rank = np.empty(total + 1, np.int64)
    rank[order] = np.arange(len(order))
    new_parent = np.r_[rank[parent[order[:-1]]], -1].astype(np.int64)
    names = np.array(tree.tips, object)[tree.lo[order[np.isin(order, tip_nodes)]]]
    return make_phylogeny(new_parent, np.r_[length[order[:-1]], 0.0], tuple(names.tolist()))
