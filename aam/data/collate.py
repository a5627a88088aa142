"""Drawing samples: rarefied reads, and the batch made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.config import UnifracMetric
from aam.data.auxiliary_targets import further_targets
from aam.data.batch import Batch
from aam.data.rarefaction import rarefied_row
from aam.data.study import EVALUATION, Row, Rows, Study
from aam.data.tokens import asv_keys
from aam.device.rng import generator
from aam.device.timing import stage
from aam.diversity.batch import batch_unifrac, faith_pd
from aam.diversity.unifrac import UnifracOptions
from aam.io.matrices import Matrix

# A shallow rarefaction keeps at least this share of the depth.
SHALLOWEST = 0.25


def _limited(study: Study, row: Row, name: str, draw: int) -> Row:
    """Return at most `token_limit` ASVs of a rarefied sample, chosen as configured, columns ascending."""
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


def rarefied_table(study: Study, draw: int = EVALUATION) -> sparse.csr_matrix:
    """Return the reads [N, F] of every sample in one rarefaction; that of evaluation unless given."""
    rows = range(len(study.table.sample_ids))
    return _sparse(study, [rarefied_row(study.table, row, study.depth, study.seed, draw) for row in rows])


def _inner(a: Matrix, b: Matrix) -> Matrix:
    """Return ``a.T @ b`` by torch: NumPy's own threads know nothing of --threads and wait on others' cores."""
    return (torch.from_numpy(a).T @ torch.from_numpy(b)).numpy()


def distances_of(
    study: Study, counts: sparse.csr_matrix, rows: Rows, selected: slice = slice(None)
) -> dict[str, torch.Tensor]:
    """Return UniFrac of the samples at `selected` to all at `rows`, or their Faith PD, from rarefied reads [B, F]."""
    config, real = study.config, np.float64 if torch.get_default_dtype() == torch.float64 else np.float32
    if study.origin is not None:
        return {"distance": torch.from_numpy(_within_studies(study, counts, study.origin[rows])[selected].astype(real))}
    if study.matrix is not None:
        return {"distance": torch.from_numpy(study.matrix.values[np.ix_(rows[selected], rows)].astype(real))}
    if study.tree is None or study.tips is None:
        return {}
    if config.unifrac_metric == "faith_pd":
        diversity = faith_pd(study.tree, study.tips, counts[selected], config.root_length)
        return {"faith_pd": torch.from_numpy(diversity.astype(real))}
    metric: UnifracMetric = config.unifrac_metric
    options = UnifracOptions(metric, config.alpha, config.root_length, double=real == np.float64)
    asked = slice(None) if len(rows[selected]) == len(rows) else selected
    with stage("UniFrac"):
        distance = batch_unifrac(study.tree, study.tips, counts, options, asked, _inner)
    return {"distance": torch.from_numpy(distance)}


def _compared(
    study: Study,
    drawn: Sequence[Row],
    rows: Rows,
    selected: slice,
    columns: npt.NDArray[np.integer[Any]],
    distances: bool,
) -> dict[str, Any]:
    """Return UniFrac or Faith PD, with `distances`, and the further targets of a batch, as its fields."""
    if not (distances or study.further):
        return {}
    counts = _sparse(study, drawn)
    fields = distances_of(study, counts, rows, selected) if distances else {}
    return {**fields, "further": further_targets(study, counts, rows, selected, columns)}


def _within_studies(study: Study, counts: sparse.csr_matrix, origin: Rows) -> npt.NDArray[np.floating[Any]]:
    """Return UniFrac between samples [B, F] of several studies [B]: NaN across studies, and in those without a tree."""
    config, distance = study.config, np.full((len(origin), len(origin)), np.nan)
    metric: UnifracMetric = "unifrac" if config.unifrac_metric == "faith_pd" else config.unifrac_metric
    options = UnifracOptions(metric, config.alpha, config.root_length, double=True)
    for number, part in enumerate(study.parts):
        rows = np.flatnonzero(origin == number)
        if part.tree is not None and part.tips is not None and len(rows):
            with stage("UniFrac"):
                distance[np.ix_(rows, rows)] = batch_unifrac(part.tree, part.tips, counts[rows], options)
    return distance


def _drawn_depth(study: Study, name: str, draw: int, shallow: float) -> int:
    """Return the reads to draw: the depth or, in a share `shallow` of the rarefactions, `SHALLOWEST` of it or more."""
    if not shallow:
        return study.depth
    rng = generator(study.seed, "shallow", draw, name)
    return study.depth if rng.random() >= shallow else max(1, round(study.depth * SHALLOWEST ** rng.random()))


def draw_rows(study: Study, rows: Rows, draw: int, shallow: float = 0.0) -> list[Row]:
    """Return columns and reads of the samples at `rows`, rarefied; the parameters are those of `draw_batch`."""
    names = study.table.sample_ids
    return [
        rarefied_row(study.table, row, _drawn_depth(study, names[row], draw, shallow), study.seed, draw)
        for row in rows.tolist()
    ]


def rows_read(study: Study, rows: Rows, draw: int) -> list[Row]:
    """Return columns and reads of the samples at `rows` as a network reads them: rarefied, at most `token_limit`."""
    names = study.table.sample_ids
    drawn = zip(rows.tolist(), draw_rows(study, rows, draw), strict=True)
    return [_limited(study, each, names[row], draw) for row, each in drawn]


def _read(study: Study, row: Row, name: str, draw: int, share: float) -> Row:
    """Return the ASVs that the model reads of a rarefied sample: at most `token_limit`, a `share` of them left out."""
    columns, reads = _limited(study, row, name, draw)
    if not share:
        return columns, reads
    kept = generator(study.seed, "asv dropout", draw, name).random(len(columns)) >= share
    kept[reads.argmax()] = True
    return columns[kept], reads[kept]


def _conditions(study: Study, rows: Rows, draw: int, hidden: float) -> dict[str, Any]:
    """Return covariates, a share `hidden` of them unknown, and weights of the samples."""
    weight, real = study.weight, torch.get_default_dtype()
    conditions = {} if weight is None else {"weight": torch.from_numpy(weight[rows]).to(real)}
    if study.category is None or study.covariate is None:
        return conditions
    category, covariate = study.category[rows], study.covariate[rows]
    for at, row in enumerate(rows.tolist() if hidden else ()):
        rng = generator(study.seed, "covariates", draw, study.table.sample_ids[row])
        is_hidden = rng.random(category.shape[1] + covariate.shape[1]) < hidden
        category[at, is_hidden[: category.shape[1]]] = 0
        covariate[at, is_hidden[category.shape[1] :]] = np.nan
    return {**conditions, "category": torch.from_numpy(category), "covariate": torch.from_numpy(covariate)}


class Withheld(NamedTuple):
    """Shares that a rarefaction leaves out: of a sample's ASVs, from the input alone, and of its covariates."""

    asvs: float = 0.0
    covariates: float = 0.0


NOTHING = Withheld()


def draw_batch(
    study: Study,
    rows: Rows,
    draw: int,
    tokens: bool = True,
    distances: bool = True,
    shallow: float = 0.0,
    withheld: Withheld = NOTHING,
) -> Batch:
    """Rarefy the samples at `rows` and put them into one batch, largest first.

    Parameters
    ----------
    study : Study
    rows : int64 [B]
    draw : int
        Epoch of the rarefaction; `EVALUATION` and below are rarefactions outside training.
    tokens : bool
        Fill `tokens`; without it the caller has the ASV vectors already.
    distances : bool
        Compute the UniFrac target.
    shallow : float
        Share of the samples that get fewer reads than the depth; which ones, and how many, depends on `draw`.
    withheld : Withheld
    """
    return make_batch(study, [rows], [draw_rows(study, rows, draw, shallow)], draw, 0, tokens, distances, withheld)


def _balanced(lengths: Rows, ranks: int) -> tuple[int, ...]:
    """Return how many of the ASVs each rank encodes, so that all ranks have nearly as many bases."""
    done = np.cumsum(lengths)
    ends = np.searchsorted(done, done[-1] * np.arange(1, ranks + 1) / ranks, side="right")
    return tuple(np.diff(ends, prepend=0).tolist())


def _laid_out(columns: npt.NDArray[np.integer[Any]], rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `Batch.asv` and `Batch.counts` of samples, largest first; `columns` are the distinct ASVs."""
    order = np.argsort(columns)
    sizes = [len(columns) for columns, _ in rows]
    slot = np.arange(sizes[0]) < np.array(sizes)[:, None]
    asv, counts = np.zeros(slot.shape, np.int64), np.zeros(slot.shape, np.float32)
    asv[slot] = order[np.searchsorted(columns[order], np.concatenate([columns for columns, _ in rows]))]
    counts[slot] = np.concatenate([reads for _, reads in rows])
    return torch.from_numpy(asv), torch.from_numpy(counts)


def batch_of_reads(study: Study, rows: Rows, reads: Sequence[Row]) -> Batch:
    """Return samples whose rarefied reads are given, largest first, without tokens, distances or targets.

    Parameters
    ----------
    study : Study
    rows : int64 [B]
        Row of the table of each sample, for its covariates; a row may occur several times.
    reads : sequence of (columns, reads)
        ASVs of each sample and their reads, all above 0, with no fewer ASVs than the next.
    """
    columns = np.unique(np.concatenate([columns for columns, _ in reads]))
    asv, counts = _laid_out(columns, reads)
    conditions = _conditions(study, rows, EVALUATION, 0.0)
    column = torch.from_numpy(columns.astype(np.int64))
    return Batch(
        tokens=study.tokens[column, :0],
        asv=asv,
        counts=counts,
        column=column,
        features=study.features(column),
        sizes=tuple(len(columns) for columns, _ in reads),
        sample_ids=tuple(study.table.sample_ids[row] for row in rows.tolist()),
        **conditions,
    )


def make_batch(
    study: Study,
    parts: Sequence[Rows],
    drawn: Sequence[Sequence[Row]],
    draw: int,
    rank: int,
    tokens: bool = True,
    distances: bool = True,
    withheld: Withheld = NOTHING,
) -> Batch:
    """Return one rank's share of a batch.

    Parameters
    ----------
    study : Study
    parts : sequence of int64 [B]
        The rows of the table that each rank holds.
    drawn : sequence of sequences of (columns, reads)
        Their rarefied reads, from `draw_rows`.
    draw, tokens, distances, withheld
        As for `draw_batch`.
    rank : int
        Its samples are those of ``parts[rank]``, largest first; distances go to those of all ranks. The distinct
        ASVs of all ranks stand in order of length, and each rank has the tokens of its stretch of them.
    """
    names, places, limited = study.table.sample_ids, [], []
    for rows, some in zip(parts, drawn, strict=True):
        read = [_read(study, row, names[at], draw, withheld.asvs) for row, at in zip(some, rows, strict=True)]
        order = np.argsort([-len(columns) for columns, _ in read], kind="stable")
        places.append(order)
        limited += [read[i] for i in order]
    at = [rows[order] for rows, order in zip(parts, places, strict=True)]
    full = [some[i] for some, order in zip(drawn, places, strict=True) for i in order]
    own_rows = slice(start := sum(map(len, parts[:rank])), start + len(parts[rank]))
    columns = np.unique(np.concatenate([columns for columns, _ in limited]))
    columns = columns[np.argsort(study.lengths[columns], kind="stable")]
    shares = _balanced(study.lengths[columns], len(parts))
    mine = columns[sum(shares[:rank]) :][: shares[rank]]
    longest = int(study.lengths[mine if len(mine) else columns].max()) if tokens else 0
    asv, counts = _laid_out(columns, limited[own_rows])
    column, rows = torch.from_numpy(columns.astype(np.int64)), at[rank]
    return Batch(
        tokens=study.tokens[torch.from_numpy(mine.astype(np.int64)), :longest],
        asv=asv,
        counts=counts,
        column=column,
        key=asv_keys(study.tokens[column]) if tokens else None,
        features=study.features(column),
        sizes=tuple(len(columns) for columns, _ in limited[own_rows]),
        padded=bool(tokens and (study.lengths[mine] < longest).any()),
        target=None if study.target is None else torch.from_numpy(study.target[rows]),
        label=None if study.label is None else torch.from_numpy(study.label[rows]),
        sample_ids=tuple(names[row] for row in rows),
        rank=rank,
        samples_by_rank=tuple(map(len, parts)),
        asvs_by_rank=shares,
        **_conditions(study, rows, draw, withheld.covariates),
        **_compared(study, full, np.concatenate(at), own_rows, mine, distances),
    )
