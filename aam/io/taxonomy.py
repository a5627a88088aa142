"""Taxonomy of ASVs: read as QIIME 2 writes it, matched to a table, cut at each rank; and short ids
of sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aam.errors import InputError, problem, short, shown
from aam.io.ids import difference, items_of_features, md5
from aam.io.text import Faults, folded, read_text, unix

# The one form, that of QIIME 2, folded.
FIRST_COLUMNS = ["featureid", "taxon"]
EXPECTED_TAXONOMY = "text with tabs that begins with 'Feature ID' and 'Taxon', or .qza of QIIME 2"
# Commands that convert a FILE of mothur, USEARCH or VSEARCH, and a matrix of R.
CONVERT_TAXONOMY = (
    "convert those of mothur and SINTAX with (printf 'Feature ID\\tTaxon\\n'; grep -v ^OTU.Size "
    "FILE | sed -E 's/\\t[0-9]+\\t/\\t/; s/\\([0-9.]+\\)//g; s/([dkpcofgs]):/\\1__/g; s/,/; /g' "
    "| cut -f 1,2) > taxonomy.tsv and in R write data.frame('Feature ID'=rownames(x), Taxon="
    "apply(x, 1, paste, collapse='; '), check.names=FALSE) with sep='\\t', quote=FALSE, "
    "row.names=FALSE"
)

STANDARD_RANKS = ("domain", "phylum", "class", "order", "family", "genus", "species")

# Prefixes of Greengenes, SILVA (to release 132: D_0 to D_6) and GTDB, and the ranks that they mean.
RANKS = {rank[0]: rank for rank in STANDARD_RANKS} | {"k": "kingdom"}
RANKS |= {f"D_{level}": rank for level, rank in enumerate(STANDARD_RANKS)}
# Those of SILVA's files of all levels go on below, where ranks differ.
PREFIXES = frozenset({"", *RANKS, *(f"D_{level}" for level in range(7, 15))})

# Names of what has none, as "uncultured_bacterium", "human_gut_metagenome" or "Incertae_Sedis".
PLACEHOLDER = re.compile(
    r"(un(assigned|classified|cultured|identified|known)|ambiguous)\b.*|na|nan|none|"
    r"|(.*\b)?metagenome|(.* )?incertae sedis"
)

DOMAINS = frozenset({"bacteria", "archaea", "eukaryota", "eukarya"})

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
    """Return the names of a lineage such as ``k__Bacteria; p__Firmicutes`` from the top, with
    single blanks; from the end placeholders are left out, and with an unknown genus what stands
    below it without a genus of its own.
    """
    lineage = [" ".join(name.split()) for name in text.split(";")]
    while lineage and (is_placeholder(lineage[-1]) or _hangs(lineage)):
        lineage.pop()
    return tuple(lineage)


def _hangs(lineage: Sequence[str]) -> bool:
    """Return whether the last name is an epithet below a placeholder."""
    name = plain_name(lineage[-1])
    return len(lineage) > 1 and is_placeholder(lineage[-2]) and name[:1].islower()


def is_placeholder(name: str) -> bool:
    """Whether a name stands for an unknown taxon, such as ``g__uncultured``."""
    return PLACEHOLDER.fullmatch(plain_name(name).lower().replace("_", " ")) is not None


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
        # A binomial names its genus itself, which may differ from that above it.
        species, genus = name.replace("_", " "), plain_name(lineage[-2])
        is_binomial = " " in species and species.strip("[")[:1].isupper()
        return species if is_binomial or species == genus else f"{genus} {species}".strip()
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
        features = items_of_features(self.lineages, feature_ids, sequences)
        lineages = tuple(lineage or () for lineage in features)
        if any(lineages) or not feature_ids:
            return lineages
        fault = f"{self.source} gives no taxon to any of the {len(feature_ids)} ASVs, by id, "
        fault += f"sequence or MD5 of the sequence; the table has ids like {feature_ids[0]!r}, "
        fault += f"the file {shown([*self.lineages][:1]) or 'none'}"
        remedy = f"pass the taxonomy of this table{difference(feature_ids, self.lineages)}"
        raise InputError(problem("--taxonomy", fault, remedy=remedy))


def read_taxonomy(path: Path) -> Taxonomy:
    """Read a taxonomy of QIIME 2: ``FeatureData[Taxonomy]`` (.qza) or its text, a header of
    ``Feature ID`` and ``Taxon`` and a row for each feature, with tabs between the cells.

    Raises
    ------
    InputError
        The file cannot be read, has another form, or names a feature twice; every problem in one
        message.
    """
    text = read_text(path, {"FeatureData[Taxonomy]": "taxonomy.tsv"})
    header, *lines = unix(text).split("\n")
    if [folded(cell) for cell in header.split("\t")[:2]] != FIRST_COLUMNS:
        raise InputError(
            problem(path, f"begins with {short(header)!r}", EXPECTED_TAXONOMY, CONVERT_TAXONOMY)
        )
    faults, lineages = Faults(path), dict[str, Lineage]()
    for number, line in enumerate(lines, 2):
        feature, *cells = (cell.strip() for cell in line.split("\t"))
        if not line.strip():
            continue
        if not feature or not cells:
            faults.add("expected a feature id and a taxon", number)
        elif feature in lineages:
            faults.add("features that stand there twice; keep one line each", number, repr(feature))
        else:
            lineages[feature] = parse_lineage(cells[0])
    faults.raise_if_any()
    return Taxonomy(lineages, path)
