"""Auxiliary targets of pretraining: distances without a tree, Faith PD, taxa of ASVs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.diversity.batch import bray_curtis, jaccard
from aam.errors import InputError, Problems
from aam.io.taxonomy import UNASSIGNED, Lineage, plain_name, rank_name, read_taxonomy

log = logging.getLogger("aam")

# Words in the names that SILVA and others give to what has none, such as uncultured_bacterium or
# gut_metagenome.
UNKNOWN = frozenset({"uncultured", "unidentified", "unknown", "unclassified", "metagenome"})

SEPARATOR = "; "


def read_lineages(
    paths: Sequence[Path], feature_ids: Sequence[str], sequences: Sequence[str]
) -> tuple[Lineage, ...]:
    """Return the lineage of each ASV of a table: that of the first file which knows its taxon,
    empty where none does.

    Raises
    ------
    InputError
        A file cannot be read, or none has a taxon for an ASV of the table; with the problems of
        every file.
    """
    unreadable, unused = Problems(), Problems()
    by_file: list[tuple[Lineage, ...]] = [((),) * len(feature_ids)]
    for path in paths:
        with unreadable.collected():
            taxonomy = read_taxonomy(path)
            with unused.collected():
                by_file.append(taxonomy.of(feature_ids, sequences))
    unreadable.raise_if_any()
    if len(by_file) == 1:
        unused.raise_if_any()
    for problem in unused.messages:
        log.warning("%s", problem)
    return tuple(next(filter(None, of_asv), ()) for of_asv in zip(*by_file, strict=True))


def _is_known(name: str) -> bool:
    plain = plain_name(name).lower()
    return plain not in UNASSIGNED and UNKNOWN.isdisjoint(plain.replace("_", " ").split())


def taxon_at(lineage: Lineage, level: int) -> str | None:
    """Return the taxon of a lineage at a level, from 0, with all above it; None where it is not
    known.
    """
    if len(lineage) <= level or not _is_known(lineage[level]):
        return None
    return SEPARATOR.join(lineage[: level + 1])


def _entropy(numbers: Sequence[int]) -> float:
    shares = np.array(numbers, np.float64) / sum(numbers)
    return float(-(shares * np.log(shares)).sum())


@dataclass(frozen=True, eq=False)
class Taxa:
    """Taxa as classes at the ranks that tell ASVs apart.

    Attributes
    ----------
    ranks : tuple of str
        Name of each rank, from the top.
    names : tuple of tuple of str
        The classes of each rank in order: lineages down to it.
    entropies : tuple of float
        Entropy of the classes of each rank over the ASVs they were taken from, in nats.
    codes : int64 [F, R]
        Class of each ASV of the table at each rank; -1 where its taxon is not known or is none of
        the classes.
    """

    ranks: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    entropies: tuple[float, ...]
    codes: npt.NDArray[np.int64]

    @classmethod
    def fit(cls, lineages: Sequence[Lineage], columns: npt.NDArray[np.integer]) -> Taxa:
        """Return the taxa of the ASVs at `columns`, int [n], as classes, and the class of each of
        all ASVs [F].

        Ranks at which these ASVs have fewer than two taxa are left out.

        Raises
        ------
        InputError
            No rank is left.
        """
        seen = [lineages[column] for column in columns.tolist()]
        ranks, names, entropies, codes = [], [], [], []
        for level in range(max(map(len, seen), default=0)):
            taxa = Counter(filter(None, (taxon_at(lineage, level) for lineage in seen)))
            if len(taxa) < 2:
                continue
            class_of = {taxon: number for number, taxon in enumerate(sorted(taxa))}
            ranks.append(rank_name(level, seen))
            names.append(tuple(class_of))
            entropies.append(_entropy(list(taxa.values())))
            codes.append([class_of.get(taxon_at(lineage, level) or "", -1) for lineage in lineages])
        if not ranks:
            raise InputError(
                f"--targets taxonomy: the {len(seen)} ASVs of the training samples have fewer "
                "than two taxa at every "
                "rank of --taxonomy; give a taxonomy that tells them apart, or leave the target out"
            )
        return cls(tuple(ranks), tuple(names), tuple(entropies), np.array(codes, np.int64).T)


NO_TAXA = Taxa((), (), (), np.zeros((0, 0), np.int64))


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """The auxiliary targets of a study.

    Attributes
    ----------
    names : tuple of str
        Those that batches carry.
    lineages : tuple of tuple of str
        Lineage of each ASV, empty where not known; nothing where no taxonomy was read.
    taxa : Taxa
        The taxa of the ASVs as classes.
    """

    names: tuple[str, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    taxa: Taxa = NO_TAXA


# Those that are a distance between samples, with what computes it.
DISTANCES: dict[str, Callable[[sparse.csr_matrix, slice], npt.NDArray[np.float64]]] = {
    "bray-curtis": bray_curtis,
    "jaccard": jaccard,
}
