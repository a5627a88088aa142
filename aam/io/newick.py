"""Newick text to a phylogeny, checked, and pruned to the features of a table."""

from __future__ import annotations

import logging
import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from aam.errors import InputError, shown
from aam.io.phylogeny import Ints, Phylogeny, make_phylogeny, match_tips, midpoint_root, prune
from aam.io.text import read_text

# An opening parenthesis, or the end of a node: its label, its length, and the mark that ends it.
# Blanks stand in one place only of each way through, so that no text makes it slow.
NO_LENGTH = "branch lengths are no finite numbers of 0 or more"

NODE = re.compile(
    r"""\s*(?:(?P<open>\()
    |(?:(?P<label>[^\s()\[\],:;']+|'(?:[^']|'')*')\s*)?(?P<colon>:\s*(?:(?P<length>[^\s()\[\],:;']+)\s*)?)?(?P<end>[,);]))""",
    re.VERBOSE,
)

log = logging.getLogger("aam")


def _without_comments(text: str, source: str) -> str:
    """Overwrite ``[comments]``, which may be nested, with blanks, so that positions stay."""
    pieces, kept, opened, depth, quoted = [], 0, 0, 0, False
    for match in re.finditer(r"['\[\]]", text):
        mark, place = match[0], match.start()
        if mark == "'":
            quoted ^= depth == 0
        elif quoted:
            continue
        elif mark == "[":
            opened = place if depth == 0 else opened
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                pieces += [text[kept:opened], " " * (place + 1 - opened)]
                kept = place + 1
    if depth:
        raise InputError(f"{source}: the comment that begins at character {opened + 1} is never closed")
    return "".join([*pieces, text[kept:]])


def _length(text: str) -> float:
    """Return a branch length, or -1 for text that is no finite number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    # Python also reads 1_000 and digits of other scripts as numbers.
    return value if 0 <= value < math.inf and text.isascii() and "_" not in text else -1.0


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
        """Take a parenthesis that opens or a node that ends; return how that breaks the grammar, or nothing."""
        if match["open"]:
            self._opened.append(len(self._waiting))
            return "a '(' where none can be; is a ',' missing?" if self._has_children else ""
        node, place = len(self.parent), f"before character {match.start('end') + 1}"
        self.parent.append(-1)
        self.length.append(math.nan if match["colon"] is None else _length(match["length"] or ""))
        if self.length[-1] < 0:
            wrong = self.wrong.setdefault(NO_LENGTH, [])
            wrong.append(f"{match['length'] or ''!r} {place}")
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
        """Return what is wrong with names and lengths."""
        problems = [f"{len(places)} {what}, the first {places[0]}" for what, places in self.wrong.items()]
        if any(place.startswith("'-") for place in self.wrong.get(NO_LENGTH, ())):
            problems.append("set lengths below 0, as neighbour joining gives them, to 0")
        if repeated := [name for name, times in Counter(self.tips).items() if times > 1 and name]:
            problems.append(f"{len(repeated)} tips are repeated ({shown(repeated)}); keep one of each")
        return problems


def parse_newick(text: str, source: str = "tree") -> Phylogeny:
    """Parse one Newick tree, without recursion and of any depth.

    Underscores are kept, labels between quotes may hold anything (``''`` is a quote), ``[comments]`` and
    labels of inner nodes are skipped. Whether lengths are missing or the root is a polytomy is left to
    `read_tree`.

    Raises
    ------
    InputError
        Broken grammar, repeated or empty tip names, lengths that are not finite and >= 0; the first place of each (from
        character 1).
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:6].upper() == "#NEXUS":
        raise InputError(
            f"{source}: the format is NEXUS, expected Newick; write it with write.tree of ape, or the like"
        )
    text = _without_comments(text, source) if "[" in text else text
    nodes, place, broken, end = _Nodes(), 0, "", ""
    while end != ";" and not broken and (match := NODE.match(text, place)):
        broken, end, place = nodes.add(match), match["end"], match.end()
    problems = nodes.problems()
    rest = text[place:].lstrip()
    if broken:
        problems.append(f"{broken}, at character {place}")
    elif end == ";" and rest:
        problems.append(f"text after ';' at character {len(text) - len(rest) + 1}, expected a single tree")
    elif end != ";" and ";" not in rest:
        problems.append("no ';' at the end; expected one Newick tree. Is the file cut off?")
    elif end != ";":
        problems.append(
            f"{rest[:20]!r} at character {len(text) - len(rest) + 1} cannot be read; a label that holds a blank, "
            "quote or bracket needs quotes around it, and a ',' stands between two nodes"
        )
    if problems:
        raise InputError(*(f"{source}: {problem}" for problem in problems))
    length = np.array(nodes.length)
    length[-1] = np.nan_to_num(length[-1])
    return make_phylogeny(np.array(nodes.parent, np.int64), length, tuple(nodes.tips))


def read_tree(path: Path, midpoint: bool = False) -> Phylogeny:
    """Read a rooted tree with branch lengths from Newick text or a QIIME 2 ``Phylogeny`` archive (.qza).

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
    text = read_text(path, dict.fromkeys(accepted, "tree.nwk"), "--midpoint-root roots a Phylogeny[Unrooted]")
    return rooted_tree(text, str(path), midpoint)


def rooted_tree(text: str, source: str, midpoint: bool = False) -> Phylogeny:
    """Return the rooted tree with branch lengths that Newick `text` holds; `source` is its name in messages.

    Raises `InputError`: as `read_tree`.
    """
    tree = parse_newick(text, source)
    missing = int(np.isnan(tree.length).sum())
    if missing:
        raise InputError(
            f"{source}: {missing} of {len(tree.length) - 1} branches have no length, expected one for each; "
            "write the tree with its branch lengths (--midpoint-root places a root by them, it invents none)"
        )
    if tree.length.max(initial=0.0) < np.finfo(np.float32).tiny:
        raise InputError(
            f"{source}: all branches have length 0, which tell no samples apart; give the tree its lengths"
        )
    if tree.length.sum() > np.finfo(np.float32).max:
        raise InputError(
            f"{source}: branch lengths add up to {tree.length.sum():g}, too much for distances; correct them"
        )
    if midpoint:
        return midpoint_root(tree)
    children = int((tree.parent == len(tree.parent) - 1).sum())
    if children > 2:
        raise InputError(
            f"{source}: the root has {children} children, expected at most 2: the tree is not rooted. Give a "
            "rooted tree; --midpoint-root of aam train, pretrain and unifrac roots one"
        )
    return tree


def matched_tree(
    tree: Phylogeny, feature_ids: Sequence[str], missing_tips: Literal["error", "drop"], sequences: Sequence[str] = ()
) -> tuple[Phylogeny, Ints]:
    """Return a tree above some features, up to its root, and the tip of each feature (-1 without).

    Features are matched to tips by `feature_ids` or else by `sequences`, as `match_tips` does.
    """
    tips = match_tips(tree, feature_ids, missing_tips, sequences)
    present = np.unique(tips[tips >= 0])
    if missing := int((tips < 0).sum()):
        log.warning("%d of %d features have no tip and are left out of UniFrac", missing, len(tips))
    return prune(tree, present), np.where(tips >= 0, np.searchsorted(present, tips), -1)
