"""Taxonomy of ASVs: read from QIIME 2 or text, matched to a table, cut at each rank; and short ids
of sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aam.errors import InputError, Problems, shown
from aam.io.text import difference, is_lineage_header, known_of, md5, read_rows, until_full

EXPECTED = "'Feature ID' and 'Taxon' as the first two columns"

STANDARD_RANKS = ("domain", "phylum", "class", "order", "family", "genus", "species")

# Prefixes of Greengenes, SILVA (to release 132: D_0 to D_6) and GTDB, and the ranks that they mean.
RANKS = {rank[0]: rank for rank in STANDARD_RANKS} | {"k": "kingdom"}
RANKS |= {f"D_{level}": rank for level, rank in enumerate(STANDARD_RANKS)}
# Those of SILVA's files of all levels go on below, where ranks differ.
PREFIXES = frozenset({"", *RANKS, *(f"D_{level}" for level in range(7, 15))})

UNASSIGNED = frozenset({"", "unassigned", "unclassified", "na", "nan", "none"})

# Names that databases give to what has none, as "uncultured_bacterium" or "gut metagenome".
PLACEHOLDER = re.compile(
    r"(uncultured|unidentified|unclassified|unknown|ambiguous|undetermined|unculturable)\b.*"
    r"|(.*\b)?metagenome|incertae sedis|(bacterium|organism|environmental sample)s?( .*)?"
)

DOMAINS = frozenset({"bacteria", "archaea", "eukaryota", "eukarya"})

# What databases append to a genus that is split: "Agathobacter_164117", "Clostridium_A".
SPLIT_GENUS = re.compile(r"_(\d+|[A-Z]{1,2})$")

SHORT_ID_LENGTH = 10

Lineage = tuple[str, ...]


def short_ids(sequences: Sequence[str]) -> tuple[str, ...]:
    """Return a short id of each distinct sequence: the beginning of its MD5, which QIIME 2 uses as
    feature id.

    Ten hexadecimal digits, or as many more as it takes to tell all of `sequences` apart.
    """
    digests = list(map(md5, sequences))
    distinct, length = len(set(digests)), SHORT_ID_LENGTH
    while len({digest[:length] for digest in digests}) < distinct:
        length += 1
    return tuple(digest[:length] for digest in digests)


def parse_lineage(text: str) -> Lineage:
    """Return the names of a lineage such as ``k__Bacteria; p__Firmicutes``, from the top, without
    empty ones and placeholders below.
    """
    names = [name.strip() for name in text.split(";")]
    while names and is_placeholder(names[-1]):
        names.pop()
    return tuple(names)


def is_placeholder(name: str) -> bool:
    """Whether a name stands for an unknown taxon, such as ``g__uncultured``."""
    plain = plain_name(name).lower()
    return plain in UNASSIGNED or bool(PLACEHOLDER.fullmatch(plain.replace("_", " ")))


def plain_name(name: str) -> str:
    """Return a name without the prefix of its rank: ``g__Blautia`` is Blautia, and ``g__`` or
    ``__`` nothing.
    """
    prefix, separator, rest = name.strip().partition("__")
    return rest.strip() if separator and prefix in PREFIXES else name.strip()


def rank_of(lineage: Lineage) -> str:
    """Rank of the lowest name of a lineage, by its prefix or its place below the domain; or ''."""
    rank = RANKS.get(lineage[-1].partition("__")[0], "")
    standard = plain_name(lineage[0]).lower() in DOMAINS and len(lineage) <= len(STANDARD_RANKS)
    return rank or (STANDARD_RANKS[len(lineage) - 1] if standard else "")


def taxon_name(lineage: Lineage) -> str:
    """Name of a taxon for people: a species with its genus, a higher taxon with its rank."""
    if not lineage:
        return "unassigned"
    name, rank = plain_name(lineage[-1]), rank_of(lineage)
    if rank == "species" and len(lineage) > 1:
        genus = SPLIT_GENUS.sub("", plain_name(lineage[-2])).strip("[]")
        first = SPLIT_GENUS.sub("", name.replace("_", " ").partition(" ")[0]).strip("[]")
        return name if first == genus else f"{genus} {name}".strip()
    return name if rank in ("", "genus", "species") else f"{name} ({rank})"


def display_name(lineage: Lineage) -> str:
    """Name of an ASV of a lineage: its lowest taxon, and which rank is unknown below it."""
    rank = rank_of(lineage) if lineage else ""
    if rank in ("", "genus", "species"):
        return taxon_name(lineage)
    below = STANDARD_RANKS[STANDARD_RANKS.index("domain" if rank == "kingdom" else rank) + 1]
    return f"{plain_name(lineage[-1])}, {below} unknown"


def rank_name(level: int, lineages: Sequence[Lineage]) -> str:
    """Return the rank of a level of the lineages, from 0: by the prefix of its names, or ``level
    1`` and so on.
    """
    prefixes = {lineage[level].partition("__")[0] for lineage in lineages if len(lineage) > level}
    prefixes &= RANKS.keys()
    return RANKS[prefixes.pop()] if len(prefixes) == 1 else f"level {level + 1}"


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """Lineages by feature id, as a file holds them."""

    lineages: dict[str, Lineage]
    source: Path

    def of(self, feature_ids: Sequence[str], sequences: Sequence[str]) -> tuple[Lineage, ...]:
        """Return the lineage of each ASV of a table, looked up by id, sequence and MD5; empty where
        none is given.

        Raises
        ------
        InputError
            No ASV of the table has a taxon in the file.
        """
        found = [*known_of(self.lineages, feature_ids, sequences)]
        lineages = tuple(lineage or () for lineage in found)
        if any(lineages) or not feature_ids:
            return lineages
        asvs = f"the {len(feature_ids)} ASVs"
        if not self.lineages:
            reason = "names no feature; pass one with a line for each ASV"
        elif any(lineage is not None for lineage in found):
            reason = f"gives no taxon to any of {asvs} (all are empty or unassigned)"
        else:
            look = (
                f"the table has ids like {feature_ids[0]!r}, the file {next(iter(self.lineages))!r}"
            )
            look += f"{difference(feature_ids, self.lineages)}; pass the taxonomy of this table"
            reason = f"names none of {asvs}, by id, sequence or MD5 of the sequence; {look}"
        raise InputError(f"--taxonomy: {self.source} {reason}")


def read_taxonomy(path: Path) -> Taxonomy:
    """Read a taxonomy: QIIME 2 ``FeatureData[Taxonomy]`` (.qza), or text with the columns Feature
    ID and Taxon.

    Raises
    ------
    InputError
        The file cannot be read, has other columns, or names a feature twice; every problem in one
        message.
    """
    problems, lineages = Problems(), dict[str, Lineage]()
    inside = {"FeatureData[Taxonomy]": "taxonomy.tsv"}
    header, rows = read_rows(path, inside, f"a header that begins with {EXPECTED}")
    if len(header) < 2 or not is_lineage_header(header[1]):
        raise InputError(f"{path}: the header is {shown(header, 5)}, expected {EXPECTED}")
    for number, row in until_full(rows, problems):
        feature, *cells = map(str.strip, row)
        if feature.startswith("#"):
            continue
        where = f"{path}: line {number}: "
        if not cells or not feature:
            problems.add(f"{where}{shown(row, 5)}, expected a feature id and its taxon")
        elif feature in lineages:
            problems.add(f"{where}feature {feature!r} stands there twice; keep one of its lines")
        else:
            lineages[feature] = parse_lineage(cells[0])
    problems.raise_if_any()
    return Taxonomy(lineages, path)
