"""A study ready to learn from: table, tree, metadata and targets aligned sample by sample, and its draws."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.config import DataConfig
from aam.data.batch import Batch, encode
from aam.data.distances import DistanceMatrix, read_distances
from aam.data.metadata import Metadata, align, read_metadata
from aam.data.phylogeny import Phylogeny
from aam.data.table import (
    SampleTable,
    check_length,
    choose_depth,
    deep_enough,
    rarefied_row,
    read_table,
    select_samples,
    trim,
)
from aam.data.unifrac import Metric, UnifracOptions, batch_unifrac, faith_pd, pruned_tree
from aam.errors import InputError, Problems, shown
from aam.runtime.device import generator

log = logging.getLogger("aam")

Row = tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]

EVALUATION = -1
# A draw below the depth keeps at least this share of it.
SHALLOWEST = 0.25


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


def _limited(study: Study, row: Row, name: str, draw: int) -> Row:
    """At most `token_limit` ASVs of a rarefied sample, chosen as configured, columns ascending."""
    columns, reads = row
    limit = study.config.token_limit
    if len(columns) <= limit:
        return row
    if study.config.asv_sampling == "abundance":
        kept = np.sort(np.argsort(-reads, kind="stable")[:limit])
    elif study.config.asv_sampling == "random":
        kept = np.sort(generator(study.seed, "limit", draw, name).permutation(len(columns))[:limit])
    else:
        kept = np.arange(limit)
    return columns[kept], reads[kept]


def _sparse(study: Study, drawn: Sequence[Row]) -> sparse.csr_matrix:
    starts = np.cumsum([0, *(len(columns) for columns, _ in drawn)])
    columns = np.concatenate([columns for columns, _ in drawn])
    reads = np.concatenate([reads for _, reads in drawn])
    return sparse.csr_matrix((reads, columns, starts), shape=(len(drawn), len(study.table.feature_ids)))


def _distances(study: Study, drawn: Sequence[Row], rows: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
    """UniFrac or Faith PD of the rarefied rows, before any token limit."""
    config = study.config
    if study.matrix is not None:
        return {"distance": torch.from_numpy(study.matrix.values[np.ix_(rows, rows)].astype(np.float32))}
    if study.tree is None or study.tips is None:
        return {}
    counts = _sparse(study, drawn)
    if config.unifrac_metric == "faith_pd":
        diversity = faith_pd(study.tree, study.tips, counts, config.root_length)
        return {"faith_pd": torch.from_numpy(diversity.astype(np.float32))}
    metric: Metric = config.unifrac_metric
    options = UnifracOptions(metric, config.alpha, config.root_length)
    return {"distance": torch.from_numpy(batch_unifrac(study.tree, study.tips, counts, options))}


def _drawn_depth(study: Study, name: str, draw: int, shallow: float) -> int:
    """Reads of one draw: the depth or, in a share `shallow` of the draws, less, down to `SHALLOWEST` of it."""
    rng = generator(study.seed, "shallow", draw, name)
    return study.depth if rng.random() >= shallow else max(1, round(study.depth * SHALLOWEST ** rng.random()))


def _thinned(study: Study, row: Row, name: str, draw: int, share: float) -> Row:
    """A `share` of the ASVs of a sample left out, at least one kept."""
    columns, reads = row
    kept = generator(study.seed, "asv dropout", draw, name).random(len(columns)) >= share
    kept[reads.argmax()] = True
    return columns[kept], reads[kept]


def _conditions(study: Study, rows: npt.NDArray[np.int64], draw: int, hidden: float) -> dict[str, torch.Tensor]:
    """Covariates, a share `hidden` of them unknown, and weights of the samples."""
    found = {} if study.weight is None else {"weight": torch.from_numpy(study.weight[rows])}
    if study.category is None or study.covariate is None:
        return found
    category, covariate = study.category[rows], study.covariate[rows]
    for at, row in enumerate(rows.tolist() if hidden else ()):
        rng = generator(study.seed, "covariates", draw, study.table.sample_ids[row])
        gone = rng.random(category.shape[1] + covariate.shape[1]) < hidden
        category[at, gone[: category.shape[1]]] = 0
        covariate[at, gone[category.shape[1] :]] = np.nan
    return {**found, "category": torch.from_numpy(category), "covariate": torch.from_numpy(covariate)}


def draw_batch(
    study: Study,
    rows: npt.NDArray[np.int64],
    draw: int,
    tokens: bool = True,
    distances: bool = True,
    shallow: float = 0.0,
    asv_dropout: float = 0.0,
    hidden: float = 0.0,
) -> Batch:
    """Rarefy the samples at `rows` and put them into one batch, largest first.

    Parameters
    ----------
    study : Study
    rows : int64 [B]
    draw : int
        Epoch of the draw; `EVALUATION` and below are draws outside training.
    tokens : bool
        Fill `tokens`; without it the caller has the ASV vectors already.
    distances : bool
        Compute the UniFrac target.
    shallow : float
        Share of the samples that get fewer reads than the depth; which ones, and how many, depends on `draw`.
    asv_dropout, hidden : float
        Share of a sample's ASVs that are left out of the input, and of its covariates that are unknown.
    """
    names = study.table.sample_ids
    drawn = [
        rarefied_row(study.table, row, _drawn_depth(study, names[row], draw, shallow), study.seed, draw)
        for row in rows.tolist()
    ]
    limited = [_limited(study, row, names[at], draw) for row, at in zip(drawn, rows, strict=True)]
    if asv_dropout:
        limited = [_thinned(study, row, names[at], draw, asv_dropout) for row, at in zip(limited, rows, strict=True)]
    order = np.argsort([-len(columns) for columns, _ in limited], kind="stable")
    rows, drawn, limited = rows[order], [drawn[i] for i in order], [limited[i] for i in order]
    sizes = tuple(len(columns) for columns, _ in limited)
    unique, inverse = np.unique(np.concatenate([columns for columns, _ in limited]), return_inverse=True)
    slot = np.arange(sizes[0]) < np.array(sizes)[:, None]
    asv = np.zeros(slot.shape, np.int64)
    counts = np.zeros(slot.shape, np.float32)
    asv[slot] = inverse
    counts[slot] = np.concatenate([reads for _, reads in limited])
    longest = int(study.lengths[unique].max()) if tokens else 0
    column = torch.from_numpy(unique.astype(np.int64))
    return Batch(
        tokens=study.tokens[column, :longest],
        asv=torch.from_numpy(asv),
        counts=torch.from_numpy(counts),
        column=column,
        sizes=sizes,
        padded=bool(tokens and study.lengths[unique].min() < longest),
        target=None if study.target is None else torch.from_numpy(study.target[rows]),
        label=None if study.label is None else torch.from_numpy(study.label[rows]),
        sample_ids=tuple(names[row] for row in rows),
        **_conditions(study, rows, draw, hidden),
        **(_distances(study, drawn, rows) if distances else {}),
    )
