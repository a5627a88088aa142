"""Phylogenies as flat post-order arrays: read from Newick, matched to features, pruned, rooted at
the midpoint.
"""

from __future__ import annotations

import logging
import math
import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy import sparse

from aam.config import Missing
from aam.errors import InputError, refuse, shown
from aam.io.ids import difference, items_of_features, repeated
from aam.io.text import is_number, read_text
from aam.typing import Floats, Ints

log = logging.getLogger("aam")


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
    tip_of = {name: tip for tip, name in enumerate(phylogeny.tips)}
    features = items_of_features(tip_of, feature_ids, sequences)
    tips = np.array([-1 if tip is None else tip for tip in features], np.int64)
    unmatched = np.flatnonzero(tips < 0)
    is_matched = len(unmatched) < len(tips)
    if len(unmatched) and (missing_tips == "error" or not is_matched):
        names = "id, sequence or MD5 of the sequence" if sequences else "id"
        examples = shown(feature_ids[index] for index in unmatched[:3])
        tip_names = f"{shown(phylogeny.tips[:1])}{difference(feature_ids, phylogeny.tips)}"
        drop = " or pass --missing-tips drop to leave these features out of UniFrac"
        raise InputError(
            f"{len(unmatched)} of {len(tips)} features of the table have no tip in the tree by "
            f"{names}, e.g. {examples}; its tips are like {tip_names}. Give the tree that was "
            f"built for this table{drop if is_matched else ''}"
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


def range_starts(lo: Ints, hi: Ints) -> Ints:
    """Return where a range of tips differs from the range before it."""
    is_first = np.r_[True, (lo[1:] != lo[:-1]) | (hi[1:] != hi[:-1])]
    return np.flatnonzero(is_first[: len(lo)])


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
    # Branches that lost all tips are gone, so branches above the same tips are neighbours.
    starts = np.r_[range_starts(lo[:-1], hi[:-1]), len(kept) - 1]
    sizes = np.diff(starts, append=len(kept))
    group = np.full(len(phylogeny.parent), -1, np.int64)
    group[kept] = np.repeat(np.arange(len(starts)), sizes)
    top = kept[starts + sizes - 1]
    parent = np.r_[group[phylogeny.parent[top[:-1]]], -1].astype(np.int64)
    length = np.add.reduceat(phylogeny.length[kept], starts)
    names = tuple(phylogeny.tips[tip] for tip in tips)
    return Phylogeny(parent, length, lo[starts], hi[starts], names)


def midpoint_root(phylogeny: Phylogeny) -> Phylogeny:
    """Root a tree halfway between the two tips farthest apart (Farris 1972, Am. Nat. 106:645).

    The old root disappears if it joins only two branches, with everything above it; the new root
    has two children. A tree whose tips all coincide is not changed. All lengths must be known.
    """
    # Imported here: it takes 0.1 s, and few commands need it.
    from scipy.sparse.csgraph import depth_first_order, dijkstra

    parent, length, size = phylogeny.parent, phylogeny.length, len(phylogeny.parent)
    nodes, is_tip = np.arange(size - 1), np.zeros(size, bool)
    is_tip[phylogeny.tip_nodes] = True
    graph = sparse.csr_matrix((length[:-1], (nodes, parent[:-1])), shape=(size, size))
    # The tip farthest from any node, here from the root, is one end of a longest path.
    start = int(np.argmax(np.where(is_tip, dijkstra(graph, False, size - 1), -1)))
    distance, before = dijkstra(graph, False, start, return_predecessors=True)
    far_end = int(np.argmax(np.where(is_tip, distance, -1)))
    middle = distance[far_end] / 2
    if middle <= 0:
        return phylogeny
    while distance[before[far_end]] > middle:
        far_end = int(before[far_end])
    near_end = int(before[far_end])

    # The new root, numbered last, divides the branch between two nodes. The depth-first order from
    # it gives each node its parent in the new tree.
    is_below = parent[far_end] == near_end
    lower, upper = (far_end, near_end) if is_below else (near_end, far_end)
    root, ends = size, np.append(parent[:-1], size)
    ends[lower] = root
    edges = (np.ones(size), (np.append(nodes, upper), ends))
    graph = sparse.csr_matrix(edges, shape=(size + 1, size + 1))
    order, above = depth_first_order(graph, root, directed=False)
    order, above[root] = order[::-1], root
    is_turned = np.append(parent, -1) != above
    lengths = np.append(length, 0.0)[np.where(is_turned, above, np.arange(size + 1))]
    lengths[[far_end, near_end]] = distance[far_end] - middle, middle - distance[near_end]
    rank = np.argsort(order)
    name_of = dict(zip(phylogeny.tip_nodes.tolist(), phylogeny.tips, strict=True))
    is_leaf = np.bincount(above[order[:-1]], minlength=size + 1)[order] == 0
    leaves = order[is_leaf].tolist()
    names = [name_of.get(leaf, "") for leaf in leaves]
    tree = make_phylogeny(np.r_[rank[above[order[:-1]]], -1], lengths[order], names)
    # Leaves without a name are old roots, which are no tips.
    return prune(tree, np.array([place for place, leaf in enumerate(leaves) if leaf in name_of]))


# --- Newick ------------------------------------------------------------------------------------

# Strategy: comments are blanked first, with their length kept, so that places in messages are
# those of the file. Then one regular expression matches the text from left to right: each match is
# an opening parenthesis, or a node with its label, its length and the mark that ends it. A node is
# numbered when it ends, after its children, so numbers are in post-order and no tree is too deep.
# `waiting` holds the nodes whose parent has not ended, `opened` how many of them stand before each
# open parenthesis; a ")" makes the nodes since then the children of the next node. The lists are
# the arrays of a `Phylogeny` already, which takes a third of the time and memory of node objects
# (docs/adr/001-dependencies.md).

NO_LENGTH = "branch lengths are not finite numbers of 0 or more (set negative lengths to 0)"
# float32 holds no shorter ones.
SMALLEST_LENGTH = float(np.finfo(np.float32).tiny)

# An opening parenthesis, or the end of a node: its label, its length, and the mark that ends it.
# Each alternative allows blanks in one place only, so that no text makes the expression backtrack.
NODE = re.compile(
    r"""\s*(?:(?P<open>\()
    |(?:(?P<label>[^\s()\[\],:;']+|'(?:[^']|'')*')\s*)?(?P<colon>:\s*(?:(?P<length>[^\s()\[\],:;']+)\s*)?)?(?P<end>[,);]))""",
    re.VERBOSE,
)
COMMENT = re.compile(r"'[^']*'|\[[^\[\]]*\]")


def _blank(match: re.Match[str]) -> str:
    """Blanks in place of a comment, so that positions stay; a quoted label is not changed."""
    return match[0] if match[0].startswith("'") else " " * len(match[0])


def _grammar_error(text: str, place: int, end: str, broken: str) -> str:
    """How a text breaks the grammar where its reading stopped, or nothing."""
    rest = text[place:].lstrip()
    at = f"at character {len(text) - len(rest) + 1}"
    if broken:
        return f"{broken}, at character {place}"
    if end == ";":
        return f"text after ';' {at}, expected a single tree" if rest else ""
    if ";" not in rest:
        return "no ';' at the end; expected one Newick tree. Is the file cut off?"
    remedy = (
        "a label that holds a blank, quote or bracket needs quotes around it, a comment its ']'"
    )
    return f"{rest[:20]!r} {at} cannot be read; {remedy}, and a ',' stands between two nodes"


def parse_newick(text: str, source: str = "tree") -> Phylogeny:
    """Parse one Newick tree, without recursion and of any depth.

    Underscores are kept, labels between quotes may hold anything (``''`` is a quote),
    ``[comments]``, which may be nested, and labels of inner nodes are skipped. Whether lengths are
    missing or the root is a polytomy is left to `read_tree`.

    Raises `InputError` with the first place of each fault, from character 1: broken grammar,
    repeated or empty tip names, lengths that are not finite and >= 0.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:6].upper() == "#NEXUS":
        remedy = "write it with write.tree of ape, or the like"
        raise InputError(f"{source}: the format is NEXUS, expected Newick; {remedy}")
    while "[" in text and (shorter := COMMENT.sub(_blank, text)) != text:
        text = shorter
    parent, length, tips = array("q"), array("d"), list[str]()
    # Nodes without a parent yet, how many of them stand before each open parenthesis, and where
    # the children of the next node begin, or -1 where it is a tip.
    waiting, opened, children = list[int](), list[int](), -1
    faults, place, broken, end = defaultdict[str, list[str]](list), 0, "", ""
    while end != ";" and not broken and (match := NODE.match(text, place)):
        place, end = match.end(), match["end"]
        if match["open"]:
            opened.append(len(waiting))
            broken = "" if children < 0 else "a '(' where none can be; is a ',' missing?"
            continue
        written, label = match["length"] or "", match["label"] or ""
        valid = is_number(written) and float(written) >= 0
        if match["colon"] and not valid:
            faults[NO_LENGTH].append(f"{written!r} before character {place}")
        if children < 0:
            tips.append(label[1:-1].replace("''", "'") if label.startswith("'") else label)
            if not tips[-1]:
                faults["tips have no name"].append(f"before character {place}")
        else:
            for child in waiting[children:]:
                parent[child] = len(parent)
            del waiting[children:]
        waiting.append(len(parent))
        parent.append(-1)
        length.append(float(written) if valid else math.nan)
        children = -1
        if end == ";":
            broken = "a '(' without its ')'" if opened else ""
        elif not opened:
            broken = f"a {end!r} outside all parentheses"
        elif end == ")":
            children = opened.pop()
    rules = {f"{len(x)} {fault}, the first {x[0]}": True for fault, x in faults.items()}
    duplicates, error = repeated(tips), _grammar_error(text, place, end, broken)
    rules[f"{len(duplicates)} tips are repeated ({shown(duplicates)}); keep one of each"] = (
        duplicates != []
    )
    refuse(source, rules | {error: error != ""})
    length[-1] = np.nan_to_num(length[-1])
    return make_phylogeny(np.array(parent, np.int64), np.array(length), tuple(tips))


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
    kinds = ("Phylogeny[Rooted]", "Phylogeny[Unrooted]")[: 1 + midpoint]
    reason = "--midpoint-root roots a Phylogeny[Unrooted]"
    text = read_text(path, dict.fromkeys(kinds, "tree.nwk"), reason)
    return rooted_tree(text, str(path), midpoint)


def rooted_tree(text: str, source: str, midpoint: bool = False) -> Phylogeny:
    """Return the rooted tree with branch lengths that Newick `text` holds; `source` is its name in
    messages.

    Raises `InputError`: as `read_tree`.
    """
    tree = parse_newick(text, source)
    without_length, longest = int(np.isnan(tree.length).sum()), tree.length.max()
    children = int((tree.parent == len(tree.parent) - 1).sum())
    rules = {
        f"{without_length} of {len(tree.length) - 1} branches have no length; write the tree with "
        "its lengths (--midpoint-root places a root by them)": without_length > 0,
        "all branches have length 0; give the tree its lengths": longest < SMALLEST_LENGTH,
        f"the root has {children} children, expected at most 2: the tree is not rooted. Give a "
        "rooted tree; --midpoint-root of aam train, pretrain and unifrac roots one": (
            children > 2 and not midpoint
        ),
    }
    refuse(source, rules)
    return midpoint_root(tree) if midpoint else tree


def matched_tree(
    tree: Phylogeny, feature_ids: Sequence[str], missing: Missing, sequences: Sequence[str] = ()
) -> tuple[Phylogeny, Ints]:
    """Return a tree above some features, up to its root, and the tip of each feature (-1 without).

    Features are matched to tips by `feature_ids` or else by `sequences`, as `match_tips` does.
    """
    tips = match_tips(tree, feature_ids, missing, sequences)
    kept_tips = np.unique(tips[tips >= 0])
    if number := int((tips < 0).sum()):
        log.warning("%d of %d features have no tip and are left out of UniFrac", number, len(tips))
    return prune(tree, kept_tips), np.where(tips >= 0, np.searchsorted(kept_tips, tips), -1)
