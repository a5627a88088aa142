"""A study ready to learn from: table, tree, metadata and targets, aligned."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.config import DataConfig
from aam.data.placement import Placement, ReferenceTree
from aam.data.table import SampleTable
from aam.data.taxa import Taxa
from aam.io.matrices import DistanceMatrix
from aam.io.metadata import Metadata
from aam.io.phylogeny import Phylogeny
from aam.io.taxonomy import Lineage

Row = tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]

Rows = npt.NDArray[np.int64]

EVALUATION = -1


@dataclass(frozen=True, eq=False)
class StudyPart:
    """One of several studies: its name and, where it has one, its tree with the tip of each ASV (int64 [F], or -1)."""

    name: str
    tree: Phylogeny | None = None
    tips: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """The data from which batches are drawn.

    Attributes
    ----------
    table : SampleTable
        The samples that reach the depth.
    tokens : uint8 [F, L]
        Every ASV of the table, PAD at the end of shorter ones.
    lengths : int64 [F]
        Nucleotides of each ASV.
    depth, seed : int
        Rarefaction depth in reads, and the seed of every draw.
    config : DataConfig
        How UniFrac is computed and how many ASVs are read.
    tree, tips : Phylogeny and int64 [F], optional
        Pruned to the table, and the tip of each ASV (-1 without).
    matrix : DistanceMatrix, optional
        Precomputed distances, in the order of the table.
    parts : tuple of StudyPart
        The studies that were joined, where there are several; then distances are within each.
    origin : int64 [N], optional
        Which of them each sample is of.
    placement : Placement, optional
        Where the ASVs stand on a reference tree.
    metadata : Metadata, optional
    all_sample_ids : tuple of str
        Samples of the file, in its order.
    aligned_sample_ids : tuple of str
        Those of them that have all the metadata asked for, whatever their reads; splits divide these.
    dropped : dict of str to int
        Samples below the depth, and their reads.
    target, label : float32 [N, T] and int64 [N, K], optional
    further : tuple of str
        Further targets of pretraining that batches carry (`aam.data.further_targets`).
    lineages : tuple of tuple of str
        Lineage of each ASV, empty where not known; nothing where no taxonomy was read.
    taxa : Taxa, optional
        The taxa of the ASVs as classes.
    category, covariate, weight : int64 [N, C], float32 [N, M] and float32 [N], optional
        Covariates (0 is unknown, NaN missing), and weights of the samples in the target loss.
    """

    table: SampleTable
    tokens: torch.Tensor
    lengths: npt.NDArray[np.int64]
    depth: int
    seed: int
    config: DataConfig
    tree: Phylogeny | None = None
    tips: npt.NDArray[np.int64] | None = None
    matrix: DistanceMatrix | None = None
    parts: tuple[StudyPart, ...] = ()
    origin: npt.NDArray[np.int64] | None = None
    placement: Placement | None = None
    metadata: Metadata | None = None
    all_sample_ids: tuple[str, ...] = ()
    aligned_sample_ids: tuple[str, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    target: npt.NDArray[np.float32] | None = None
    label: npt.NDArray[np.int64] | None = None
    further: tuple[str, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    taxa: Taxa | None = None
    category: npt.NDArray[np.int64] | None = None
    covariate: npt.NDArray[np.float32] | None = None
    weight: npt.NDArray[np.float32] | None = None

    @property
    def metric(self) -> str | None:
        """The distance that batches carry, if any."""
        has_tree = self.tree is not None or any(part.tree is not None for part in self.parts)
        return self.config.unifrac_metric if has_tree or self.matrix is not None else None

    @property
    def reference(self) -> ReferenceTree | None:
        """The tree on which its ASVs are placed, if any."""
        return None if self.placement is None else self.placement.reference

    def placed_on(self, reference: ReferenceTree | None) -> Study:
        """Return the study with its ASVs placed on a tree; as it is where they stand there, or there is none."""
        if reference is None or reference is self.reference:
            return self
        return replace(self, placement=Placement.make(reference, self.tokens))

    def features(self, columns: torch.Tensor) -> torch.Tensor | None:
        """Return branches and words of some ASVs, int64 [U, P], where they are placed on a tree."""
        return None if self.placement is None else self.placement.features[columns].long()

    @property
    def longest(self) -> int:
        """Nucleotides of the longest ASV: what ``--max-bp`` is where it is not set."""
        return int(self.lengths.max())

    @functools.cached_property
    def richness(self) -> npt.NDArray[np.float64]:
        """ASVs that each sample is expected to keep at the depth, float64 [N] (Hurlbert 1971, with replacement)."""
        richness = np.zeros(len(self.table.sample_ids))
        for rows, counts in self.table.blocks():
            depths = np.maximum(self.table.depths[rows], 1)
            share = np.repeat(self.depth / depths, np.diff(counts.indptr)) * counts.data
            kept = sparse.csr_matrix((-np.expm1(-share), counts.indices, counts.indptr), counts.shape)
            richness[rows] = np.asarray(kept.sum(axis=1)).ravel()
        return richness

    def rows(self, sample_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the rows of the table of the samples named."""
        place = self.table.row_of
        return np.array([place[name] for name in sample_ids], np.int64)
