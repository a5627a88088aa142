"""Ids of samples and features: what is known of them by id or sequence, and how ids of two files
differ.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")

INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))

# Changes that leave ids recognizable, by the words that describe them in a message.
CHANGES: dict[str, Callable[[str], str]] = {
    "blanks around them": str.strip,
    "quotes around them": lambda name: name.strip("'\"` "),
    "case": str.casefold,
    "their Unicode form": lambda name: unicodedata.normalize("NFKC", name).translate(INVISIBLE),
    "a leading X, which R adds": lambda name: re.sub(r"^[Xx](?=[\d._])", "", name),
    "a .0 at the end": lambda name: re.sub(r"(?<=\d)\.0+$", "", name),
    "zeros before numbers": lambda name: re.sub(r"(?<![\d.])0+(?=\d)", "", name),
    # The last, because "1.0" would lose its point.
    "- . _ and blanks": lambda name: re.sub(r"[\s._-]+", "", name),
}

# Where a suffix begins or a prefix ends.
BOUNDARY = re.compile(r"[._\-;:|/ ]")

# How repeated ids become unique.
KEEP_ONE = "keep one; ids that were numbers (2.10 became 2.1) need to be saved as text"

# Ids that are looked at: enough to tell the reason.
MOST_WANTED, MOST_PRESENT = 1_000, 100_000

Pairs = dict[str, str]


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once; empty ones are no names."""
    return [name for name, times in Counter(names).items() if times > 1 and name]


def md5(sequence: str) -> str:
    """Return the feature id that QIIME 2 gives to a sequence."""
    return hashlib.md5(sequence.encode(), usedforsecurity=False).hexdigest()


def items_of_features(
    items: Mapping[str, Item], feature_ids: Sequence[str], sequences: Sequence[str] = ()
) -> Iterator[Item | None]:
    """Yield the item of each feature by its id, or else by its sequence or the MD5 of that."""
    for feature, sequence in zip(feature_ids, sequences or feature_ids, strict=True):
        keys = (feature, sequence, md5(sequence))
        yield next((items[key] for key in keys if key in items), None)


def _equal_without(words: Collection[str], wanted: list[str], present: list[str]) -> Pairs:
    """Return the id of `present` that equals each of `wanted` without these changes, where only
    one does.
    """
    folded: tuple[dict[str, list[str]], ...] = ({}, {})
    for names, by_key in zip((wanted, present), folded, strict=True):
        for name in names:
            key = name
            for change in CHANGES:
                key = CHANGES[change](key) if change in words else key
            by_key.setdefault(key, []).append(name)
    ours, theirs = folded
    keys = [key for key in ours.keys() & theirs.keys() if key]
    return {ours[k][0]: theirs[k][0] for k in keys if len(ours[k]) == len(theirs[k]) == 1}


def _with_more(long: list[str], short: list[str], suffix: bool) -> Pairs:
    """Return the id of `short` that each of `long` begins with, or ends with without `suffix`."""
    names, longer_names = set(short), dict[str, list[str]]()
    for name in long:
        for match in BOUNDARY.finditer(name):
            part = name[: match.start()] if suffix else name[match.end() :]
            if part in names:
                longer_names.setdefault(part, []).append(name)
    return {longer[0]: part for part, longer in longer_names.items() if len(longer) == 1}


def difference(wanted: Iterable[str], present: Iterable[str]) -> str:
    """Describe how the wanted ids differ from the present ids.

    Parameters
    ----------
    wanted : iterable of str
        Ids that are looked for.
    present : iterable of str
        Ids among which they are looked for; ids of both sides are left out.

    Returns
    -------
    str
        For example ``"; 10 of 12 match when you ignore case ('s1' and 'S1')"``, to be appended to a
        message; empty where no change explains the mismatch.
    """
    wanted, present = set(wanted), set(present)
    unmatched = sorted(wanted - present)[:MOST_WANTED]
    candidates = sorted(present - wanted)[:MOST_PRESENT]
    reasons = {words: _equal_without({words}, unmatched, candidates) for words in CHANGES}
    # All changes together explain most; those that explain nothing more are left out.
    pairs_of_all, changes = _equal_without(CHANGES, unmatched, candidates), list(CHANGES)
    for words in CHANGES:
        fewer = [change for change in changes if change != words]
        if len(_equal_without(fewer, unmatched, candidates)) == len(pairs_of_all):
            changes = fewer
    reasons.setdefault(" and ".join(changes[:4]), pairs_of_all)
    for words, suffix in (("a suffix", True), ("a prefix", False)):
        longer = _with_more(unmatched, candidates, suffix)
        shorter = {part: name for name, part in _with_more(candidates, unmatched, suffix).items()}
        reasons[words] = max(longer, shorter, key=len)
    reason, pairs = max(reasons.items(), key=lambda item: len(item[1]))
    if not pairs:
        return ""
    ours, theirs = min(pairs.items())
    counts = f"{len(pairs)} of {len(unmatched)}"
    return f"; {counts} match when you ignore {reason} ({ours!r} and {theirs!r})"
