"""Further targets of pretraining: which a study has, and their values in a batch."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.config import DataConfig, FurtherTarget
from aam.data.study import Rows, Study
from aam.data.taxa import Taxa, read_lineages
from aam.diversity.batch import faith_pd
from aam.diversity.dissimilarity import bray_curtis, jaccard
from aam.io.phylogeny import Phylogeny

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
