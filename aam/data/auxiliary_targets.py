"""Auxiliary targets of pretraining: distances without a tree, Faith PD, taxa of ASVs."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.config import DataConfig, FurtherTarget
from aam.diversity.batch import faith_pd
from aam.diversity.dissimilarity import bray_curtis, jaccard
from aam.errors import InputError, Problems
from aam.io.phylogeny import Phylogeny
from aam.io.taxonomy import UNASSIGNED, Lineage, plain_name, rank_name, read_taxonomy

if TYPE_CHECKING:
    from aam.data.study import Rows, Study

log = logging.getLogger("aam")

# Words in the names that SILVA and others give to what has none, such as uncultured_bacterium or gut_metagenome.
UNKNOWN = frozenset({"uncultured", "unidentified", "unknown", "unclassified", "metagenome"})

SEPARATOR = "; "


def read_lineages(paths: Sequence[Path], feature_ids: Sequence[str], sequences: Sequence[str]) -> tuple[Lineage, ...]:
    """Return the lineage of each ASV of a table: that of the first file which knows its taxon, empty where none does.

    Raises
    ------
    InputError
        A file cannot be read, or none has a taxon for an ASV of the table; with the problems of every file.
    """
    unreadable, unused = Problems(), Problems()
    by_file: list[tuple[Lineage, ...]] = [((),) * len(feature_ids)]
    for path in paths:
        try:
            taxonomy = read_taxonomy(path)
        except InputError as error:
            unreadable.extend(error)
            continue
        try:
            by_file.append(taxonomy.of(feature_ids, sequences))
        except InputError as error:
            unused.extend(error)
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
    """Return the taxon of a lineage at a level, from 0, with all above it; None where it is not known."""
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
        Class of each ASV of the table at each rank; -1 where its taxon is not known or is none of the classes.
    """

    ranks: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    entropies: tuple[float, ...]
    codes: npt.NDArray[np.int64]

    @classmethod
    def fit(cls, lineages: Sequence[Lineage], columns: npt.NDArray[np.integer]) -> Taxa:
        """Return the taxa of the ASVs at `columns`, int [n], as classes, and the class of each of all ASVs [F].

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
                f"--targets taxonomy: the {len(seen)} ASVs of the training samples have fewer than two taxa at every "
                "rank of --taxonomy; give a taxonomy that tells them apart, or leave the target out"
            )
        return cls(tuple(ranks), tuple(names), tuple(entropies), np.array(codes, np.int64).T)


log = logging.getLogger("aam")

# Those that are a distance between samples, with what computes it.
DISTANCES: dict[str, Callable[[sparse.csr_matrix, slice], npt.NDArray[np.float64]]] = {
    "bray-curtis": bray_curtis,
    "jaccard": jaccard,
}


def with_lineages(study: Study, config: DataConfig) -> Study:
    """Return the study with the lineages of its ASVs, where its taxonomy is a target.

    Raises
    ------
    InputError
        A file of ``--taxonomy`` cannot be read, or has a taxon for no ASV of the study.
    """
    if "taxonomy" not in config.targets:
        return study
    table = study.table
    lineages = read_lineages(config.taxonomy, table.feature_ids, table.sequences)
    unknown = sum(not lineage for lineage in lineages)
    if unknown:
        log.info("--taxonomy: %d of %d ASVs have no taxon and are left out of this target", unknown, len(lineages))
    return dataclasses.replace(study, lineages=lineages)


def with_further_targets(study: Study, names: Sequence[FurtherTarget], train_ids: Sequence[str]) -> Study:
    """Return a study whose batches carry the targets `names`, with the taxa of the training samples as classes."""
    taxa = None
    if "taxonomy" in names:
        taxa = Taxa.fit(study.lineages, study.table.columns_of(study.rows(train_ids)))
    return dataclasses.replace(study, further=tuple(names), taxa=taxa)


def _distance(study: Study, name: str, counts: sparse.csr_matrix, rows: Rows, selected: slice) -> torch.Tensor:
    """Return the distances of some samples to all; NaN across studies."""
    distance = DISTANCES[name](counts, selected)
    if study.origin is not None:
        origin = study.origin[rows]
        distance = np.where(origin[selected][:, None] == origin, distance, np.nan)
    return torch.from_numpy(distance)


def _diversity(study: Study, counts: sparse.csr_matrix, rows: Rows) -> torch.Tensor:
    """Return Faith PD on the tree of each sample's study; NaN without one."""
    values = np.full(len(rows), np.nan)

    def fill(tree: Phylogeny | None, tips: npt.NDArray[np.int64] | None, at: Rows) -> None:
        if tree is not None and tips is not None and len(at):
            values[at] = faith_pd(tree, tips, counts[at], study.config.root_length)

    if study.origin is None:
        fill(study.tree, study.tips, np.arange(len(rows)))
        return torch.from_numpy(values)
    for number, part in enumerate(study.parts):
        fill(part.tree, part.tips, np.flatnonzero(study.origin[rows] == number))
    return torch.from_numpy(values)


def further_targets(
    study: Study, counts: sparse.csr_matrix, rows: Rows, selected: slice, columns: npt.NDArray[np.integer]
) -> dict[str, torch.Tensor]:
    """Return the further targets of a batch, by name.

    Parameters
    ----------
    study : Study
    counts : CSR [all_B, F]
        Rarefied reads of the samples of all ranks.
    rows : int64 [all_B]
        Their rows of the table.
    selected : slice
        Those of this rank.
    columns : int [U]
        Columns of the ASVs that this rank encodes.

    Returns
    -------
    dict
        Distances [B, all_B], Faith PD [B], both NaN where not known; taxonomy int64 [U, R], -1 where not known.
    """
    targets: dict[str, torch.Tensor] = {}
    for name in study.further:
        if name in DISTANCES:
            targets[name] = _distance(study, name, counts, rows, selected)
        elif name == "faith-pd":
            targets[name] = _diversity(study, counts[selected], rows[selected])
        elif study.taxa is not None:
            targets[name] = torch.from_numpy(study.taxa.codes[columns])
    real = torch.get_default_dtype()
    return {name: value.to(real) if value.is_floating_point() else value for name, value in targets.items()}
