"""Phylogenies as flat post-order arrays: read from Newick, matched to features, pruned, rooted at
the midpoint.
"""

from __future__ import annotations

import logging
import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.config import Missing
from aam.errors import InputError, refuse, shown
from aam.io.ids import difference, md5
from aam.io.metadata import is_number
from aam.io.text import read_text

log = logging.getLogger("aam")

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

        The cost grows with these nodes and with the height of the tree, not with the size of the
        tree.
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
    phylogeny: Phylogeny,
    feature_ids: Sequence[str],
    missing_tips: Missing = "error",
    sequences: Sequence[str] = (),
) -> Ints:
    """Return the tip of each feature, by its id or else by its sequence or the MD5 of that.

    Parameters
    ----------
    phylogeny : Phylogeny
    feature_ids : sequence of str
        F ids.
    missing_tips : str
        Whether features without a tip are refused ("error") or get -1 ("drop").
    sequences : sequence of str, optional
        F upper-case sequences, for trees whose tips are called by them or by their MD5.

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
        for number in np.flatnonzero(tips < 0).tolist():
            keys = (sequences[number], md5(sequences[number]))
            tips[number] = next((index_of_tip[key] for key in keys if key in index_of_tip), -1)
    missing = np.flatnonzero(tips < 0)
    is_matched = len(missing) < len(tips)
    if len(missing) and (missing_tips == "error" or not is_matched):
        names = "id, sequence or MD5 of the sequence" if sequences else "id"
        without = shown(feature_ids[index] for index in missing[:3])
        remedy = " or pass --missing-tips drop to leave these features out of UniFrac"
        raise InputError(
            f"{len(missing)} of {len(tips)} features of the table have no tip in the tree by "
            f"{names}, e.g. {without}; the tree has {len(index_of_tip)} tips like "
            f"{shown(phylogeny.tips[:1])}{difference(feature_ids, phylogeny.tips)}. Give the tree "
            f"that was built for this table{remedy if is_matched else ''}"
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

    A chain of nodes with a single child becomes one branch with the sum of the lengths, so UniFrac
    and Faith PD of these tips stay as they were; the root remains a node of its own.

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
    return Phylogeny(
        parent, length, lo[starts], hi[starts], tuple(phylogeny.tips[tip] for tip in tips)
    )


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
    """Make the highest node with several children the root, and merge all chains of single
    children.
    """
    tree = prune(phylogeny, np.arange(len(phylogeny.tips)))
    if (tree.parent == len(tree.parent) - 1).sum() != 1:
        return tree
    parent = np.r_[tree.parent[:-2], -1].astype(np.int64)
    length = np.r_[tree.length[:-2], 0.0]
    return Phylogeny(parent, length, tree.lo[:-1], tree.hi[:-1], tree.tips)


def midpoint_root(phylogeny: Phylogeny) -> Phylogeny:
    """Root a tree halfway between the two tips farthest apart (Farris 1972, Am. Nat. 106:645).

    The old root disappears if it joins only two branches, with everything above it; the new root
    has two children. A tree whose tips all coincide is not changed. All lengths must be known.
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

    # What stood above the divided branch now hangs from it: the other subtrees along the path keep
    # their order, and the nodes of the path close after them, the old root first.
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


NO_LENGTH = "branch lengths are not finite numbers of 0 or more"

# An opening parenthesis, or the end of a node: its label, its length, and the mark that ends it.
# Blanks stand in one place only of each way through, so that no text makes it slow.
NODE = re.compile(
    r"""\s*(?:(?P<open>\()
    |(?:(?P<label>[^\s()\[\],:;']+|'(?:[^']|'')*')\s*)?(?P<colon>:\s*(?:(?P<length>[^\s()\[\],:;']+)\s*)?)?(?P<end>[,);]))""",
    re.VERBOSE,
)


def _without_comments(text: str) -> str:
    """Overwrite ``[comments]``, which may be nested, with blanks, so that positions stay."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith("'") else " " * len(match[0])

    while (shorter := re.sub(r"'[^']*'|\[[^\[\]]*\]", blank, text)) != text:
        text = shorter
    return text


class _Nodes:
    """The nodes of a tree in post-order while its text is read, and what is wrong with them."""

    def __init__(self) -> None:
        self.parent, self.length, self.tips = array("q"), array("d"), list[str]()
        self.wrong: dict[str, list[str]] = {}
        self._waiting: list[int] = []
        self._opened: list[int] = []
        self._first_child = 0
        self._has_children = False

    def add(self, match: re.Match[str]) -> str:
        """Take a parenthesis that opens or a node that ends; return how that breaks the grammar, or
        nothing.
        """
        if match["open"]:
            self._opened.append(len(self._waiting))
            return "a '(' where none can be; is a ',' missing?" if self._has_children else ""
        node, place = len(self.parent), f"before character {match.start('end') + 1}"
        self.parent.append(-1)
        written = match["length"] or ""
        valid = is_number(written) and float(written) >= 0
        self.length.append(float(written) if valid else math.nan)
        if match["colon"] is not None and not valid:
            self.wrong.setdefault(NO_LENGTH, []).append(f"{written!r} {place}")
        if self._has_children:
            for child in self._waiting[self._first_child :]:
                self.parent[child] = node
            del self._waiting[self._first_child :]
        else:
            label = match["label"] or ""
            self.tips.append(label[1:-1].replace("''", "'") if label.startswith("'") else label)
            if not self.tips[-1]:
                self.wrong.setdefault("tips have no name", []).append(place)
        self._waiting.append(node)
        self._has_children = match["end"] == ")"
        if match["end"] == ";":
            return "a '(' without its ')'" if self._opened else ""
        if not self._opened:
            return f"a {match['end']!r} outside all parentheses"
        if self._has_children:
            self._first_child = self._opened.pop()
        return ""

    def problems(self) -> list[str]:
        """Problems of names and lengths."""
        problems = [
            f"{len(places)} {what}, the first {places[0]}" for what, places in self.wrong.items()
        ]
        if any(place.startswith("'-") for place in self.wrong.get(NO_LENGTH, ())):
            problems.append("set lengths below 0, as neighbour joining gives them, to 0")
        if repeated := [name for name, times in Counter(self.tips).items() if times > 1 and name]:
            names = shown(repeated)
            problems.append(f"{len(repeated)} tips are repeated ({names}); keep one of each")
        return problems


def parse_newick(text: str, source: str = "tree") -> Phylogeny:
    """Parse one Newick tree, without recursion and of any depth.

    Underscores are kept, labels between quotes may hold anything (``''`` is a quote),
    ``[comments]`` and labels of inner nodes are skipped. Whether lengths are missing or the root is
    a polytomy is left to `read_tree`.

    Raises
    ------
    InputError
        Broken grammar, repeated or empty tip names, lengths that are not finite and >= 0; the first
        place of each (from character 1).
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:6].upper() == "#NEXUS":
        remedy = "write it with write.tree of ape, or the like"
        raise InputError(f"{source}: the format is NEXUS, expected Newick; {remedy}")
    text = _without_comments(text) if "[" in text else text
    nodes, place, broken, end = _Nodes(), 0, "", ""
    while end != ";" and not broken and (match := NODE.match(text, place)):
        broken, end, place = nodes.add(match), match["end"], match.end()
    problems = nodes.problems()
    rest = text[place:].lstrip()
    at = f"at character {len(text) - len(rest) + 1}"
    if broken:
        problems.append(f"{broken}, at character {place}")
    elif end == ";" and rest:
        problems.append(f"text after ';' {at}, expected a single tree")
    elif end != ";" and ";" not in rest:
        problems.append("no ';' at the end; expected one Newick tree. Is the file cut off?")
    elif end != ";":
        problems.append(
            f"{rest[:20]!r} {at} cannot be read; a label that holds a blank, quote or bracket "
            "needs quotes around it, a comment its ']', and a ',' stands between two nodes"
        )
    if problems:
        raise InputError(*(f"{source}: {problem}" for problem in problems))
    length = np.array(nodes.length)
    length[-1] = np.nan_to_num(length[-1])
    return make_phylogeny(np.array(nodes.parent, np.int64), length, tuple(nodes.tips))


def read_tree(path: Path, midpoint: bool = False) -> Phylogeny:
    """Read a rooted tree with branch lengths from Newick text or a QIIME 2 ``Phylogeny`` archive
    (.qza).

    Parameters
    ----------
    path : Path
    midpoint : bool
        Root the tree at its midpoint, whatever root it has.

    Raises
    ------
    InputError
        Not a readable tree, branches without a length, or more than two children of the root while
        `midpoint` is false.
    """
    accepted = ("Phylogeny[Rooted]", "Phylogeny[Unrooted]")[: 1 + midpoint]
    text = read_text(
        path, dict.fromkeys(accepted, "tree.nwk"), "--midpoint-root roots a Phylogeny[Unrooted]"
    )
    return rooted_tree(text, str(path), midpoint)


def rooted_tree(text: str, source: str, midpoint: bool = False) -> Phylogeny:
    """Return the rooted tree with branch lengths that Newick `text` holds; `source` is its name in
    messages.

    Raises `InputError`: as `read_tree`.
    """
    tree = parse_newick(text, source)
    missing, total = int(np.isnan(tree.length).sum()), tree.length.sum()
    children = int((tree.parent == len(tree.parent) - 1).sum())
    single = np.finfo(np.float32)
    rules = {
        f"{missing} of {len(tree.length) - 1} branches have no length, expected one for each; "
        "write the tree with its lengths (--midpoint-root places a root by them)": missing > 0,
        "all branches have length 0, which tell no samples apart; give the tree its lengths": (
            tree.length.max(initial=0.0) < single.tiny
        ),
        f"branch lengths add up to {total:g}, too much for distances; correct them": (
            total > single.max
        ),
        f"the root has {children} children, expected at most 2: the tree is not rooted. Give a "
        "rooted tree; --midpoint-root of aam train, pretrain and unifrac roots one": (
            children > 2 and not midpoint
        ),
    }
    refuse(source, rules)
    return midpoint_root(tree) if midpoint else tree


def matched_tree(
    tree: Phylogeny,
    feature_ids: Sequence[str],
    missing_tips: Literal["error", "drop"],
    sequences: Sequence[str] = (),
) -> tuple[Phylogeny, Ints]:
    """Return a tree above some features, up to its root, and the tip of each feature (-1 without).

    Features are matched to tips by `feature_ids` or else by `sequences`, as `match_tips` does.
    """
    tips = match_tips(tree, feature_ids, missing_tips, sequences)
    present = np.unique(tips[tips >= 0])
    if missing := int((tips < 0).sum()):
        log.warning("%d of %d features have no tip and are left out of UniFrac", missing, len(tips))
    return prune(tree, present), np.where(tips >= 0, np.searchsorted(present, tips), -1)
