"""A study ready to learn from: table, tree, metadata and targets aligned."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.config import DataConfig
from aam.data.distances import DistanceMatrix, read_distances
from aam.data.metadata import Metadata, align, read_metadata
from aam.data.phylogeny import Phylogeny
from aam.data.rarefaction import choose_depth
from aam.data.table import SampleTable, check_length, deep_enough, read_table, select_samples, trim
from aam.data.tokens import encode
from aam.data.unifrac import pruned_tree
from aam.errors import InputError, Problems, shown

log = logging.getLogger("aam")


Row = tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]

Rows = npt.NDArray[np.int64]

EVALUATION = -1


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that a batch is drawn from.

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
    metadata : Metadata, optional
    all_sample_ids : tuple of str
        Samples of the file, in its order.
    dropped : dict of str to int
        Samples below the depth, and their reads.
    target, label : float32 [N, T] and int64 [N, K], optional
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
    metadata: Metadata | None = None
    all_sample_ids: tuple[str, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    target: npt.NDArray[np.float32] | None = None
    label: npt.NDArray[np.int64] | None = None
    category: npt.NDArray[np.int64] | None = None
    covariate: npt.NDArray[np.float32] | None = None
    weight: npt.NDArray[np.float32] | None = None

    @property
    def metric(self) -> str | None:
        """The distance that batches carry, if any."""
        return self.config.unifrac_metric if self.tree is not None or self.matrix is not None else None

    @functools.cached_property
    def richness(self) -> npt.NDArray[np.float64]:
        """ASVs that each sample is expected to keep at the depth, float64 [N] (Hurlbert 1971, with replacement)."""
        counts = self.table.counts.tocsr()
        share = np.repeat(self.depth / np.maximum(self.table.depths, 1), np.diff(counts.indptr)) * counts.data
        kept = sparse.csr_matrix((-np.expm1(-share), counts.indices, counts.indptr), counts.shape)
        return np.asarray(kept.sum(axis=1)).ravel()

    def rows(self, sample_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """Rows of the table of the samples named."""
        place = {name: row for row, name in enumerate(self.table.sample_ids)}
        return np.array([place[name] for name in sample_ids], np.int64)


def _read_inputs(config: DataConfig, max_bp: int, columns: Sequence[str]) -> tuple[SampleTable, Metadata | None]:
    """Table and metadata, with the problems of both in one message."""
    problems = Problems()
    table, metadata = None, None
    if config.table is None:
        problems.add("--table: not given; name the feature table (.biom, .qza or .tsv)")
    else:
        try:
            table = read_table(config.table, config.sequences)
            if config.trim:
                table = trim(table, max_bp)
            check_length(table, max_bp)
        except InputError as error:
            problems.extend(error)
    if config.metadata is None and columns:
        problems.add(f"--metadata: not given, but columns {shown(columns)} are asked for")
    if config.metadata is not None:
        try:
            metadata = read_metadata(config.metadata)
            metadata.require(columns)
        except InputError as error:
            problems.extend(error)
    if config.tree is not None and config.unifrac_matrix is not None:
        problems.add("--tree and --unifrac-matrix: both given; distances come from one of them")
    for path, name in ((config.tree, "--tree"), (config.unifrac_matrix, "--unifrac-matrix")):
        if path is not None and not path.is_file():
            problems.add(f"{name}: {path} is no file")
    problems.raise_if_any()
    if table is None:
        raise InputError("--table: nothing read")
    return table, metadata


def _chosen_depth(table: SampleTable, metadata: Metadata | None, class_columns: Sequence[str], classifier: bool) -> int:
    classes = [
        metadata.values(name, table.sample_ids)
        for name in class_columns
        if metadata is not None and (classifier or metadata.kinds[name] != "numeric")
    ]
    depth = min(choose_depth(table.depths, labels) for labels in (None, *classes))
    log.info("rarefaction depth: %d reads, the largest that keeps 90 %% of the samples", depth)
    return depth


def load_study(
    config: DataConfig,
    max_bp: int,
    seed: int,
    columns: Sequence[str] = (),
    class_columns: Sequence[str] = (),
    classifier: bool = False,
    optional: Sequence[str] = (),
) -> Study:
    """Read and align all inputs.

    Every sample needs a value in the metadata `columns`, and a row for those of `optional`; the classes of
    `class_columns`, with `classifier` of numeric ones too, keep 90 % of their samples when the depth is chosen.
    `max_bp` is the longest ASV in nucleotides.

    Raises
    ------
    InputError
        With every problem of table and metadata, or of the tree.
    """
    table, metadata = _read_inputs(config, max_bp, [*columns, *optional])
    all_sample_ids = table.sample_ids
    if metadata is not None:
        table = select_samples(table, align(metadata, table.sample_ids, columns, config.missing))
    depth = config.rarefy_depth
    if depth is None:
        depth = _chosen_depth(table, metadata, class_columns, classifier)
    table, dropped = deep_enough(table, depth)
    tree = tips = matrix = None
    if config.tree is not None:
        tree, tips = pruned_tree(config.tree, table.feature_ids, config.missing_tips, config.midpoint_root)
    if config.unifrac_matrix is not None:
        matrix = read_distances(config.unifrac_matrix).select(table.sample_ids)
    lengths = np.array([len(sequence) for sequence in table.sequences], np.int64)
    return Study(
        table=table,
        tokens=torch.from_numpy(encode(table.sequences)),
        lengths=lengths,
        depth=depth,
        seed=seed,
        config=config,
        tree=tree,
        tips=tips,
        matrix=matrix,
        metadata=metadata,
        all_sample_ids=all_sample_ids,
        dropped=dropped,
    )
