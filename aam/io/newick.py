"""Newick text to a phylogeny, checked, and pruned to the features of a table."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aam.errors import InputError, shown
from aam.io.phylogeny import Ints, Phylogeny, make_phylogeny, match_tips, midpoint_root, prune
from aam.io.qza import read_artifact

LABEL = re.compile(r"[^\s'\]]+|'(?:[^']|'')+'")

ANY = re.compile(r".+", re.DOTALL)

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)

log = logging.getLogger("aam")

# Characters that are looked at together.
AT_ONCE = 1 << 22

OPEN, CLOSE, COMMA, COLON, END, QUOTE = (ord(letter) for letter in "(),:;'")


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


class _Fields:
    """The texts before the marks, cut out when asked for: as objects they would take several times the file."""

    def __init__(self, text: str, at: Ints) -> None:
        self.text, self.starts, self.stops = text, np.r_[0, at[:-1] + 1], at

    def __getitem__(self, place: int) -> str:
        return self.text[self.starts[place] : self.stops[place]].strip()

    def matching(self, pattern: re.Pattern[str], places: Ints) -> npt.NDArray[np.bool_]:
        """Return, for all fields, which of those at `places` match a pattern."""
        result = np.zeros(len(self.stops), bool)
        matches = (pattern.fullmatch(self[place]) is not None for place in places.tolist())
        result[places] = np.fromiter(matches, bool, len(places))
        return result

    def numbers(self, places: Ints) -> npt.NDArray[np.float64]:
        """Return the fields at `places` as numbers."""
        return np.fromiter((float(self[place]) for place in places.tolist()), np.float64, len(places))


@dataclass(frozen=True)
class _Marks:
    """The marks ``( ) , : ;`` of a Newick text up to the first ``;`` and the text before each."""

    at: Ints
    kind: npt.NDArray[Any]
    before: npt.NDArray[Any]
    depth: Ints
    fields: _Fields


def _positions(text: str, source: str) -> tuple[Ints, npt.NDArray[Any]]:
    """Return where the marks outside quotes stand, and which they are, from some of the text at a time."""
    wide, quotes = not text.isascii(), 0
    at, kind = [], []
    for start in range(0, len(text), AT_ONCE):
        part = text[start : start + AT_ONCE].encode("utf-32-le" if wide else "ascii")
        codes = np.frombuffer(part, np.uint32 if wide else np.uint8)
        quoted = (quotes + np.cumsum(codes == QUOTE)) % 2
        marks = np.flatnonzero(np.isin(codes, [OPEN, CLOSE, COMMA, COLON, END]) & (quoted == 0))
        at.append(marks + start)
        kind.append(codes[marks])
        quotes = int(quoted[-1])
    if quotes:
        raise InputError(f"{source}: the quote at character {text.rindex(chr(QUOTE)) + 1} is never closed")
    return np.concatenate([np.zeros(0, np.int64), *at]), np.concatenate([np.zeros(0, np.uint8), *kind])


def _marks(text: str, source: str) -> _Marks:
    at, kind = _positions(text, source)
    ends = np.flatnonzero(kind == END)
    if not len(ends):
        raise InputError(f"{source}: no ';' at the end; expected one Newick tree. Is the file cut off?")
    at, kind = at[: ends[0] + 1], kind[: ends[0] + 1]
    remainder = text[at[-1] + 1 :]
    if remainder.strip():
        place = len(text) - len(remainder.lstrip()) + 1
        raise InputError(f"{source}: text after ';' at character {place}, expected a single tree")
    return _Marks(
        at=at,
        kind=kind,
        before=np.r_[COMMA, kind[:-1]],
        depth=np.cumsum((kind == OPEN).astype(np.int64) - (kind == CLOSE)),
        fields=_Fields(text, at),
    )


def _check_grammar(marks: _Marks, source: str) -> None:
    """Raise `InputError` with the first place where each rule of Newick is broken."""
    kind, before, depth = marks.kind, marks.before, marks.depth
    text = marks.fields.matching(ANY, np.arange(len(kind)))
    begins = (before == OPEN) | (before == COMMA)
    number = before == COLON
    label = text & ~number
    is_label = marks.fields.matching(LABEL, np.flatnonzero(label))
    is_number = marks.fields.matching(NUMBER, np.flatnonzero(number))
    last_closed = np.flatnonzero(np.r_[0, depth] <= 0)[-1]
    rules = (
        (depth < 0, "a ')' without its '('"),
        (np.arange(len(depth)) == last_closed, "a '(' without its ')'"),
        ((kind == COMMA) & (depth == 0), "a ',' outside all parentheses"),
        ((kind == OPEN) & ~(begins & ~text), "a '(' where none can be; is a ',' missing?"),
        (begins & ~text & (kind != OPEN), "a tip without a name"),
        ((kind == COLON) & number, "a second ':' for one branch"),
        (label & ~is_label, "a label that is empty or holds a blank, quote or ']'; put it in quotes"),
        (number & ~is_number, "a branch length that is no finite number"),
    )
    broken = sorted((int(marks.at[np.argmax(rule)]), what) for rule, what in rules if rule.any())
    if broken:
        raise InputError(*(f"{source}: {what}, before character {place + 1}" for place, what in broken))


def _unquoted(label: str) -> str:
    return label[1:-1].replace("''", "'") if label.startswith("'") else label


def _check_content(marks: _Marks, names: list[str], name_at: Ints, source: str) -> None:
    """Raise `InputError` for repeated tips and for lengths that are no lengths."""
    problems = []
    if len(set(names)) < len(names):
        repeated = [name for name, times in Counter(names).items() if times > 1]
        second = [place for place, name in enumerate(names) if name == repeated[0]][1]
        place = marks.at[name_at[second]] + 1
        problems.append(f"{len(repeated)} tips are repeated ({shown(repeated)}), first before character {place}")
    lengths = np.flatnonzero(marks.before == COLON)
    values = marks.fields.numbers(lengths)
    bad = lengths[~((values >= 0) & (values < np.inf))].tolist()
    if bad:
        first = f"{marks.fields[bad[0]]} before character {marks.at[bad[0]] + 1}"
        problems.append(f"{len(bad)} branch lengths are negative or infinite, first {first}; expected 0 or more")
    if problems:
        raise InputError(*(f"{source}: {what}" for what in problems))


def parse_newick(text: str, source: str = "tree") -> Phylogeny:
    """Parse one Newick tree, without recursion and of any depth.

    Underscores are kept, labels between quotes may hold anything (``''`` is a quote), ``[comments]`` and
    labels of inner nodes are skipped. Whether lengths are missing or the root is a polytomy is left to
    `read_tree`.

    Raises
    ------
    InputError
        Broken grammar, repeated or empty tip names, lengths that are not finite and >= 0; each with the
        position of its character (from 1).
    """
    text = text.removeprefix("\ufeff")
    marks = _marks(_without_comments(text, source) if "[" in text else text, source)
    _check_grammar(marks, source)

    # In post-order each node ends at its own ',' or ')' or ';'.
    ends = np.flatnonzero((marks.kind == COMMA) | (marks.kind == CLOSE) | (marks.kind == END))
    has_length = marks.before[ends] == COLON
    label = ends - has_length
    is_tip = marks.before[label] != CLOSE
    names = [_unquoted(marks.fields[place]) for place in label[is_tip].tolist()]
    _check_content(marks, names, label[is_tip], source)
    length = np.full(len(ends), np.nan)
    length[has_length] = marks.fields.numbers(ends[has_length])
    length[-1] = np.nan_to_num(length[-1])

    # The parent is the next node in post-order that is one level up.
    nodes = len(ends)
    depth = marks.depth[ends] + (marks.kind[ends] == CLOSE)
    keys = np.sort(depth * nodes + np.arange(nodes))
    parent = keys[np.searchsorted(keys, (depth[:-1] - 1) * nodes + np.arange(nodes - 1))] % nodes
    return make_phylogeny(np.r_[parent, -1].astype(np.int64), length, tuple(names))


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
    try:
        if path.suffix == ".qza":
            accepted = ("Phylogeny[Rooted]", "Phylogeny[Unrooted]")[: 1 + midpoint]
            reason = "--midpoint-root roots a Phylogeny[Unrooted]"
            blob = read_artifact(path, accepted, reason).file("tree.nwk")
        else:
            blob = path.read_bytes()
        text = blob.decode("utf-8-sig")
        del blob
        tree = parse_newick(text, str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8 text; expected a Newick tree") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a Newick tree") from error
    missing = int(np.isnan(tree.length).sum())
    if missing:
        raise InputError(
            f"{path}: {missing} of {len(tree.length) - 1} branches have no length, expected one for each; "
            "write the tree with its branch lengths (--midpoint-root places a root by them, it invents none)"
        )
    if midpoint:
        return midpoint_root(tree)
    children = int((tree.parent == len(tree.parent) - 1).sum())
    if children > 2:
        raise InputError(
            f"{path}: the root has {children} children, expected at most 2: the tree is not rooted. Give a "
            "rooted tree or pass --midpoint-root"
        )
    return tree


def pruned_tree(
    path: Path,
    feature_ids: Sequence[str],
    missing_tips: Literal["error", "drop"],
    midpoint: bool,
    sequences: Sequence[str] = (),
) -> tuple[Phylogeny, Ints]:
    """Read a tree and return it above some features, up to its root, and the tip of each feature (-1 without).

    Features are matched to tips by `feature_ids` or else by `sequences`, as `match_tips` does.
    """
    return matched_tree(read_tree(path, midpoint), feature_ids, missing_tips, sequences)


def matched_tree(
    tree: Phylogeny, feature_ids: Sequence[str], missing_tips: Literal["error", "drop"], sequences: Sequence[str] = ()
) -> tuple[Phylogeny, Ints]:
    """Return a tree above some features, up to its root, and the tip of each feature (-1 without), as `pruned_tree`."""
    tips = match_tips(tree, feature_ids, missing_tips, sequences)
    present = np.unique(tips[tips >= 0])
    if missing := int((tips < 0).sum()):
        log.warning("%d of %d features have no tip and are left out of UniFrac", missing, len(tips))
    return prune(tree, present), np.where(tips >= 0, np.searchsorted(present, tips), -1)
