"""Taxonomy of ASVs: read from QIIME 2 or text, matched to a table, cut at each rank; and short ids of sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aam.data.artifact import ZIP_MAGIC, read_artifact
from aam.data.text import MAX_PROBLEMS, decoded, parse_rows, read_bytes
from aam.errors import InputError, Problems, shown

# Names of the first column that QIIME 2 and older programs write.
ID_NAMES = frozenset({"feature id", "feature-id", "featureid", "id", "#otuid", "#otu id", "asv", "otu"})
LINEAGE_NAMES = frozenset({"taxon", "taxonomy", "lineage"})

# Prefixes of Greengenes, SILVA and GTDB, and the ranks that they mean.
RANKS = {
    "d": "domain", "k": "kingdom", "p": "phylum", "c": "class", "o": "order", "f": "family", "g": "genus",
    "s": "species",
}  # fmt: skip

UNASSIGNED = frozenset({"", "unassigned", "unclassified", "na", "none"})

SHORT_ID_LENGTH = 10

Lineage = tuple[str, ...]


def short_ids(sequences: Sequence[str]) -> tuple[str, ...]:
    """Return a short id of each distinct sequence: the beginning of its MD5, which QIIME 2 uses as feature id.

    Ten hexadecimal digits, or as many more as it takes to tell all of `sequences` apart.
    """
    digests = [hashlib.md5(sequence.encode(), usedforsecurity=False).hexdigest() for sequence in sequences]
    length = SHORT_ID_LENGTH
    while length < 32 and len({digest[:length] for digest in digests}) < len(set(digests)):
        length += 1
    return tuple(digest[:length] for digest in digests)


def parse_lineage(text: str) -> Lineage:
    """Return the names of a lineage such as ``k__Bacteria; p__Firmicutes``, from the top, without empty ones below."""
    names = [name.strip() for name in text.split(";")]
    while names and plain_name(names[-1]).lower() in UNASSIGNED:
        names.pop()
    return tuple(names)


def plain_name(name: str) -> str:
    """Return a name without the prefix of its rank: ``g__Blautia`` is Blautia."""
    prefix, separator, rest = name.partition("__")
    return rest.strip() if separator and prefix in RANKS else name.strip()


def display_name(lineage: Lineage) -> str:
    """Return the lowest name of a lineage in a form for people: a species with its genus, others with their rank."""
    if not lineage:
        return "unassigned"
    name = plain_name(lineage[-1])
    prefix = lineage[-1].partition("__")[0]
    if prefix == "s" and len(lineage) > 1:
        genus = plain_name(lineage[-2]).strip("[]")
        return name if name.startswith(genus) else f"{plain_name(lineage[-2])} {name}".strip()
    return f"{name} ({RANKS[prefix]})" if prefix in RANKS and prefix != "g" else name


def rank_name(level: int, lineages: Sequence[Lineage]) -> str:
    """Return the rank of a level of the lineages, from 0: by the prefix of its names, or ``level 1`` and so on."""
    prefixes = {lineage[level].partition("__")[0] for lineage in lineages if len(lineage) > level}
    prefixes &= RANKS.keys()
    return RANKS[prefixes.pop()] if len(prefixes) == 1 else f"level {level + 1}"


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """Lineages by feature id, as a file holds them."""

    lineages: dict[str, Lineage]
    source: Path

    def of(self, feature_ids: Sequence[str], sequences: Sequence[str]) -> tuple[Lineage, ...]:
        """Return the lineage of each ASV of a table, looked up by id, sequence and MD5; empty where none is given.

        Raises
        ------
        InputError
            No ASV of the table is in the file.
        """
        lineages = []
        for identifier, sequence in zip(feature_ids, sequences, strict=True):
            digest = hashlib.md5(sequence.encode(), usedforsecurity=False).hexdigest()
            keys = (identifier, sequence, digest)
            lineages.append(next((self.lineages[key] for key in keys if key in self.lineages), ()))
        if feature_ids and not any(lineages):
            raise InputError(
                f"--taxonomy: {self.source} names none of the {len(feature_ids)} ASVs, by id, sequence or MD5 of the "
                f"sequence; the table has ids like {feature_ids[0]!r}, the file like {shown(list(self.lineages)[:1])}; "
                "give the taxonomy that was made for this table"
            )
        return tuple(lineages)


def read_taxonomy(path: Path) -> Taxonomy:
    """Read a taxonomy: QIIME 2 ``FeatureData[Taxonomy]`` (.qza), or text with the columns Feature ID and Taxon.

    Raises
    ------
    InputError
        The file cannot be read, has other columns, or names a feature twice; every problem in one message.
    """
    if read_bytes(path, 4).startswith(ZIP_MAGIC):
        blob = read_artifact(path, ["FeatureData[Taxonomy]"]).file("taxonomy.tsv")
    else:
        blob = read_bytes(path)
    problems, lineages = Problems(), dict[str, Lineage]()
    rows = parse_rows(decoded(blob, path), path)
    line, header = next(rows, (1, []))
    if len(header) < 2 or header[0].lower() not in ID_NAMES or header[1].lower() not in LINEAGE_NAMES:
        raise InputError(
            f"{path}: line {line}: header is {shown(header, 5)}, expected 'Feature ID' and 'Taxon', separated by tabs"
        )
    for number, cells in rows:
        if len(problems.messages) == MAX_PROBLEMS:
            break
        if cells[0].startswith("#"):
            continue
        if len(cells) < 2 or not cells[0]:
            problems.add(f"{path}: line {number}: {shown(cells, 5)}, expected a feature id and its taxon")
        elif cells[0] in lineages:
            problems.add(f"{path}: line {number}: feature {cells[0]!r} stands there twice")
        else:
            lineages[cells[0]] = parse_lineage(cells[1])
    problems.raise_if_any()
    return Taxonomy(lineages, path)
