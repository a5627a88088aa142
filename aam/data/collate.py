"""Collating: samples are rarefied, and made into one batch with the targets of this very
rarefaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.data.batch import Batch, Ranks
from aam.data.rarefaction import EVALUATION, Row, matrix_of, rarefied_rows
from aam.data.study import Rows, Study
from aam.data.tokens import asv_keys
from aam.device.measure import stage
from aam.device.rng import next_generator
from aam.diversity.device import TreeOnDevice
from aam.diversity.distances import batch_unifrac
from aam.diversity.unifrac import UnifracOptions
from aam.io.matrices import Matrix


@dataclass(frozen=True)
class Collation:
    """Contents of batches, and the rarefaction of their samples.

    Attributes
    ----------
    tokens : bool
        Fill `Batch.tokens`; without it the caller has the ASV vectors already.
    distances : bool
        Compute the UniFrac target.
    shallow : float
        Share of the samples that get fewer reads than the depth; which ones, and how many, depends
        on the rarefaction.
    covariate_dropout : float
        Share of the covariates of a sample that training leaves out.
    """

    tokens: bool = True
    distances: bool = True
    shallow: float = 0.0
    covariate_dropout: float = 0.0


EVERYTHING = Collation()


def rows_read(study: Study, rows: Rows, epoch: int) -> list[Row]:
    """Return columns and reads of the samples at `rows` as a network reads them: rarefied, at most
    `token_limit`.
    """
    limit = study.config.token_limit
    return [limited(row, limit) for row in rarefied_rows(study, rows, epoch)]


def limited(row: Row, limit: int) -> Row:
    """Return the `limit` most abundant ASVs of a rarefied sample."""
    columns, reads = row
    if len(columns) > limit:
        kept = np.sort(np.argsort(-reads, kind="stable")[:limit])
        columns, reads = columns[kept], reads[kept]
    return columns, reads


def rarefied_batch(study: Study, rows: Rows, epoch: int, how: Collation = EVERYTHING) -> Batch:
    """Rarefy the samples at `rows` and put them into one batch, largest first.

    Parameters
    ----------
    study : Study
    rows : int64 [B]
    epoch : int
        Number of the rarefaction; `EVALUATION` and below are rarefactions outside training.
    how : Collation
    """
    return collate(study, [rows], [rarefied_rows(study, rows, epoch, how.shallow)], epoch, how)


def batch_of_reads(study: Study, rows: Rows, reads: Sequence[Row]) -> Batch:
    """Return samples whose rarefied reads are known, largest first, without tokens or distances.

    Parameters
    ----------
    study : Study
    rows : int64 [B]
        Row of the table of each sample, for its covariates; a row may occur several times.
    reads : sequence of (columns, reads)
        ASVs of each sample and their reads, all above 0, with no fewer ASVs than the next.
    """
    how = Collation(tokens=False, distances=False)
    return collate(study, [rows], [reads], EVALUATION, how)


def collate(
    study: Study,
    parts: Sequence[Rows],
    rarefied: Sequence[Sequence[Row]],
    epoch: int,
    how: Collation = EVERYTHING,
    rank: int = 0,
) -> Batch:
    """Return one rank's share of a batch.

    Parameters
    ----------
    study : Study
    parts : sequence of int64 [B]
        The rows of the table that each rank holds.
    rarefied : sequence of sequences of (columns, reads)
        Their rarefied reads, from `rarefied_rows`.
    epoch, how
        As for `rarefied_batch`.
    rank : int
        Its samples are those of ``parts[rank]``, largest first; distances go to those of all ranks.
        The distinct ASVs of all ranks stand in order of length, and each rank has the tokens of its
        stretch of them.
    """
    names = study.table.sample_ids
    rows, read, full = _largest_first(study, parts, rarefied)
    columns = np.unique(np.concatenate([columns for columns, _ in read]))
    columns = columns[np.argsort(study.lengths[columns], kind="stable")]
    # Each rank encodes nearly the same number of bases.
    done = np.cumsum(study.lengths[columns])
    ends = done[-1] * np.arange(1, len(parts) + 1) / len(parts)
    stretches = np.diff(np.searchsorted(done, ends, side="right"), prepend=0)
    ranks = Ranks(rank, tuple(map(len, parts)), tuple(stretches.tolist()))
    own, encoded = ranks.own_samples, columns[ranks.own_asvs]
    longest = int(study.lengths[encoded if len(encoded) else columns].max()) if how.tokens else 0
    asv, counts = _laid_out(columns, read[own])
    column = torch.from_numpy(columns.astype(np.int64))
    distance = None
    if how.distances:
        distance = distances_of(study, matrix_of(full, len(study.table.feature_ids)), rows, own)
    return Batch(
        tokens=study.tokens[torch.from_numpy(encoded.astype(np.int64)), :longest],
        asv=asv,
        counts=counts,
        column=column,
        key=asv_keys(study.tokens[column]) if how.tokens else None,
        reference=study.reference_numbers([columns for columns, _ in read[own]]),
        sizes=tuple(len(columns) for columns, _ in read[own]),
        padded=bool(how.tokens and (study.lengths[encoded] < longest).any()),
        target=_columns(study.labels.target, rows[own]),
        label=_columns(study.labels.label, rows[own]),
        sample_ids=tuple(names[row] for row in rows[own]),
        ranks=ranks,
        **_conditions(study, rows[own], epoch, how.covariate_dropout),
        distance=distance,
    )


def _largest_first(
    study: Study, parts: Sequence[Rows], rarefied: Sequence[Sequence[Row]]
) -> tuple[Rows, list[Row], list[Row]]:
    """Return the rows of all ranks, each rank's samples largest first; what the model reads of
    them; their reads.
    """
    rows, read, full = [], [], []
    for part, reads in zip(parts, rarefied, strict=True):
        kept = [limited(row, study.config.token_limit) for row in reads]
        order = np.argsort([-len(columns) for columns, _ in kept], kind="stable")
        rows.append(part[order])
        read += [kept[i] for i in order]
        full += [reads[i] for i in order]
    return np.concatenate(rows), read, full


def _laid_out(
    columns: npt.NDArray[np.integer[Any]], rows: Sequence[Row]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `Batch.asv` and `Batch.counts` of samples, largest first; `columns` are the distinct
    ASVs.
    """
    order, sizes = np.argsort(columns), [len(columns) for columns, _ in rows]
    slot = np.arange(sizes[0]) < np.array(sizes)[:, None]
    asv, counts = np.zeros(slot.shape, np.int64), np.zeros(slot.shape, np.float32)
    held = np.concatenate([columns for columns, _ in rows])
    asv[slot] = order[np.searchsorted(columns[order], held)]
    counts[slot] = np.concatenate([reads for _, reads in rows])
    return torch.from_numpy(asv), torch.from_numpy(counts)


def _columns(values: npt.NDArray[Any], rows: Rows) -> torch.Tensor | None:
    """Return the values of some samples, none where there are no columns."""
    return torch.from_numpy(values[rows]) if values.shape[1] else None


def _conditions(study: Study, rows: Rows, epoch: int, dropout: float) -> dict[str, Any]:
    """Return weights and covariates of the samples, a share `dropout` of these unknown."""
    weight = {"weight": torch.ones(len(rows))}
    category, covariate = study.labels.category[rows], study.labels.covariate[rows]
    if not (number := category.shape[1] + covariate.shape[1]):
        return weight
    for at, row in enumerate(rows.tolist() if dropout else ()):
        rng = next_generator(study.seed, "covariates", epoch, study.table.sample_ids[row])
        is_hidden = rng.random(number) < dropout
        category[at, is_hidden[: category.shape[1]]] = 0
        covariate[at, is_hidden[category.shape[1] :]] = np.nan
    values = {"category": category, "covariate": covariate}
    return weight | {name: torch.from_numpy(value) for name, value in values.items()}


def distances_of(
    study: Study, counts: sparse.csr_matrix, rows: Rows, selected: slice = slice(None)
) -> torch.Tensor | None:
    """Return UniFrac of the samples at `selected` to all at `rows`, from rarefied reads [B, F]."""
    real = np.float64 if torch.get_default_dtype() == torch.float64 else np.float32
    if study.matrix is not None:
        return torch.from_numpy(study.matrix.values[np.ix_(rows[selected], rows)].astype(real))
    if not study.has_tree:
        return None
    with stage("UniFrac"):
        distance = _unifrac(study, counts, study.origin[rows], selected)
    return torch.from_numpy(distance.astype(real, copy=False))


def tree_on_device(study: Study, device: torch.device, samples: int) -> TreeOnDevice | None:
    """Tree that computes UniFrac of batches on `device`, from the ASVs that the network reads.

    None where that is not all that the target needs: a matrix is given, several studies are
    joined, a sample has more ASVs than the token limit, or the tree is too large.
    """
    tree = study.parts[0].tree
    richest = min(int(np.diff(study.table.counts.indptr).max(initial=0)), study.depth)
    is_whole = len(study.parts) == 1 and richest <= study.config.token_limit
    if study.matrix is not None or tree is None or not is_whole:
        return None
    on_device = TreeOnDevice(tree.phylogeny, tree.tips, _options(study), device)
    return on_device if on_device.fits(samples) else None


def _options(study: Study) -> UnifracOptions:
    config, double = study.config, torch.get_default_dtype() == torch.float64
    return UnifracOptions(config.unifrac_metric, config.alpha, config.root_length, double=double)


def _unifrac(study: Study, counts: sparse.csr_matrix, origin: Rows, selected: slice) -> Matrix:
    """Return UniFrac of the samples at `selected` to all; NaN across studies, `origin` [B], and
    without a tree.
    """
    options = _options(study)
    distance = np.full((len(origin), len(origin)), np.nan)
    for number in np.unique(origin):
        tree, rows = study.parts[number].tree, np.flatnonzero(origin == number)
        if tree is None:
            continue
        if len(rows) == len(origin):
            asked = slice(None) if len(origin[selected]) == len(origin) else selected
            return batch_unifrac(tree.phylogeny, tree.tips, counts, options, asked)
        distance[np.ix_(rows, rows)] = batch_unifrac(
            tree.phylogeny, tree.tips, counts[rows], options
        )
    return distance[selected]
