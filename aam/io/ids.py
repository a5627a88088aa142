"""Ids of samples and features: what their column is called, and which change by a program or a
person explains a mismatch.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of the first column, without case, blanks and punctuation.
SAMPLE_HEADERS = _words(
    "id ids sampleid sampleids sample samples samplename samplenames sampleidentifier "
    "participantid runaccession biosample"
)
FEATURE_HEADERS = _words(
    "otuid otu otus otuids xotuid asv asvid asvs asvids feature features featureid "
    "featureids sequence sequences sequenceid seq seqid seqs zotu zotuid hash rowname "
    "rownames unnamed0"
)
ID_HEADERS = SAMPLE_HEADERS | FEATURE_HEADERS
LINEAGE_HEADERS = _words("taxon taxonomy lineage consensuslineage classification")


def md5(sequence: str) -> str:
    """Return the feature id that QIIME 2 gives to a sequence."""
    return hashlib.md5(sequence.encode(), usedforsecurity=False).hexdigest()


def folded_header(cell: str) -> str:
    """Return the name of a column as `ID_HEADERS` has it: ``#OTU ID`` and ``otu_id`` are one."""
    return re.sub(r"[\W_]+", "", cell.lower())


def is_id_header(cells: list[str]) -> bool:
    """Return whether a row is a header whose first cell names the column of ids."""
    is_remark = cells[0].startswith("# ") and len(cells) == 1
    return folded_header(cells[0]) in ID_HEADERS and not is_remark


INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))

# Changes that leave ids recognizable, by the words that describe them in a message.
CHANGES: dict[str, Callable[[str], str]] = {
    "blanks around them": str.strip,
    "quotes around them": lambda name: name.strip("'\"` "),
    "case": str.casefold,
    "their Unicode form": lambda name: unicodedata.normalize("NFKC", name).translate(INVISIBLE),
    "- . _ and blanks": lambda name: re.sub(r"[\s._-]+", "", name),
    "a leading X, which R adds": lambda name: re.sub(r"^[Xx](?=[\d._])", "", name),
    "a .0 at the end": lambda name: re.sub(r"(?<=\d)\.0+$", "", name),
    "zeros before numbers": lambda name: re.sub(r"(?<![\d.])0+(?=\d)", "", name),
}
# "1.0" would lose its point to the separators first.
ORDER = sorted(CHANGES, key=lambda words: words.startswith("- ."))

# Where a suffix begins or a prefix ends.
BOUNDARY = re.compile(r"[._\-;:|/ ]")

# Ids that are looked at: enough to tell the reason.
MOST_WANTED, MOST_PRESENT = 1_000, 100_000

Pairs = dict[str, str]


def _equal_without(words: Collection[str], wanted: list[str], present: list[str]) -> Pairs:
    """Return the id of `present` that equals each of `wanted` without these changes, where only one
    does.
    """

    def by_folded(names: list[str]) -> dict[str, set[str]]:
        folded: dict[str, set[str]] = {}
        for name in names:
            key = name
            for change in ORDER:
                key = CHANGES[change](key) if change in words else key
            folded.setdefault(key, set()).add(name)
        return folded

    others = by_folded(present)
    return {
        min(names): min(others[key])
        for key, names in by_folded(wanted).items()
        if len(names) == len(others.get(key, ())) == 1 and key
    }


def _with_more(long: list[str], short: list[str], suffix: bool) -> Pairs:
    """Return the id of `short` that each of `long` begins with, or ends with without `suffix`."""
    names, found = set(short), dict[str, list[str]]()
    for name in long:
        for match in BOUNDARY.finditer(name):
            part = name[: match.start()] if suffix else name[match.end() :]
            if part in names:
                found.setdefault(part, []).append(name)
    return {longer[0]: part for part, longer in found.items() if len(longer) == 1}


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
    here, there = set(wanted), set(present)
    missing = sorted(here - there)[:MOST_WANTED]
    others = sorted(there - here)[:MOST_PRESENT]
    if not missing or not others:
        return ""
    single = {words: _equal_without({words}, missing, others) for words in CHANGES}
    chosen = max(single, key=lambda words: len(single[words]))
    pairs, explanation = single[chosen], [chosen]
    together = _equal_without(CHANGES, missing, others)
    if len(together) > len(pairs):
        pairs, explanation = together, list(CHANGES)
        for words in CHANGES:
            fewer = [other for other in explanation if other != words]
            if len(_equal_without(fewer, missing, others)) == len(together):
                explanation = fewer
    for words, suffix in (("a suffix", True), ("a prefix", False)):
        longer = _with_more(missing, others, suffix)
        shorter = {part: name for name, part in _with_more(others, missing, suffix).items()}
        for more in (longer, shorter):
            if len(more) > len(pairs):
                pairs, explanation = more, [words]
    if not pairs:
        return ""
    name, other = min(pairs.items())
    counts = f"{len(pairs)} of {len(missing)}"
    ignored = " and ".join(itertools.islice(explanation, 4))
    return f"; {counts} match when you ignore {ignored} ({name!r} and {other!r})"
