"""Rarefaction: reads of a sample taken at random without replacement, and the depth where none is
asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import sparse

from aam.device.rng import next_generator
from aam.errors import InputError
from aam.io.tables import AmpliconTable
from aam.typing import Integers, Ints

if TYPE_CHECKING:
    import pandas as pd

    from aam.data.study import Study

log = logging.getLogger("aam")

# Up to this number of reads numpy's method "count" is faster than "marginals" (23 and 50 us at
# 20,000 reads).
MAX_SHUFFLED = 1 << 17

# The number of the rarefaction of evaluation; those of training count from 0.
EVALUATION = -1

# Columns and reads of one sample.
RarefiedRow = tuple[Integers, Ints]


def rarefy(values: Integers, depth: int, rng: np.random.Generator) -> Ints:
    """Draw `depth` of the reads [S] of a sample without replacement: multivariate hypergeometric,
    [S].
    """
    wide = values.astype(np.int64)
    total = int(wide.sum())
    if not 0 <= depth <= total:
        raise ValueError(f"depth {depth} is not between 0 and the {total} reads of the sample")
    if depth == total:
        return wide
    method: Literal["count", "marginals"] = "count" if total <= MAX_SHUFFLED else "marginals"
    return rng.multivariate_hypergeometric(wide, depth, method=method)


def rarefied_row(table: AmpliconTable, row: int, depth: int, seed: int, epoch: int) -> RarefiedRow:
    """Return columns [S], ascending, and rarefied reads [S], all above 0, of one sample in one
    epoch.

    It depends on the sample's id and counts, `seed` and `epoch`, and on nothing else in the table.
    """
    columns, values = table.row(row)
    rarefied = rarefy(values, depth, next_generator(seed, "rarefy", epoch, table.sample_ids[row]))
    nonzero = np.flatnonzero(rarefied)
    return columns[nonzero], rarefied[nonzero]


def matrix_of(rows: Sequence[RarefiedRow], width: int) -> sparse.csr_matrix:
    """Return columns and reads of n samples as a matrix int64 ``[n, width]``."""
    starts = np.cumsum([0, *(len(columns) for columns, _ in rows)])
    none = np.zeros(0, np.int64)
    columns, reads = (np.concatenate([none, *(row[part] for row in rows)]) for part in (0, 1))
    return sparse.csr_matrix((reads, columns, starts), shape=(len(rows), width))


def rarefied_counts(table: AmpliconTable, depth: int, seed: int, epoch: int) -> sparse.csr_matrix:
    """Return the reads int64 [N, F] of every sample of a table, rarefied by `rarefied_row`."""
    rows = [rarefied_row(table, row, depth, seed, epoch) for row in range(len(table))]
    return matrix_of(rows, table.shape[1])


# A shallow rarefaction keeps at least this share of the depth.
SHALLOWEST = 0.25


def rarefied_rows(study: Study, rows: Ints, epoch: int, shallow: float = 0.0) -> list[RarefiedRow]:
    """Return columns and reads of the samples at `rows` in the rarefaction of `epoch`; `shallow` as
    in `Collation`.
    """
    drawn = []
    for row in rows.tolist():
        depth, name = study.depth, study.table.sample_ids[row]
        rng = next_generator(study.seed, "shallow", epoch, name) if shallow else None
        if rng is not None and rng.random() < shallow:
            depth = max(1, round(depth * SHALLOWEST ** rng.random()))
        drawn.append(rarefied_row(study.table, row, depth, study.seed, epoch))
    return drawn


def rarefied_table(
    study: Study, epoch: int = EVALUATION, rows: Ints | None = None
) -> sparse.csr_matrix:
    """Return the reads [n, F] of every sample, or of those at `rows`, in one rarefaction; that of
    evaluation unless given.
    """
    rows = np.arange(len(study.table)) if rows is None else rows
    return matrix_of(rarefied_rows(study, rows, epoch), study.table.shape[1])


# Fewer reads say little about which ASVs a sample has, so they are never chosen, only asked for.
LOWEST_DEPTH = 500
SMALLEST_CLASS = 10
# In a table of fewer samples, the depth keeps two samples of every class.
FEW_SAMPLES = 30


def choose_depth(
    table: AmpliconTable, classes: pd.DataFrame, training: Collection[str] | None = None
) -> int:
    """Choose the largest depth that keeps 90 % of all samples and of every class of 10 training
    samples or more and, in a table of few samples, two of every smaller class; log the reason.

    `classes` are those of `Study`, and
    `training` the training samples; unset, all. Labels of other samples decide nothing, and no
    depth below `LOWEST_DEPTH` is chosen. Raises `InputError`: fewer than half of the samples
    reach that.
    """
    # Imported here: `aam unifrac` does not need it.
    import pandas as pd

    reads = pd.Series(table.depths, [*table.sample_ids])
    ranked = sorted(table.depths.tolist())
    # The depth that 90 % of a group of samples reach, by the name of the group.
    candidates = {"all samples": ranked[len(ranked) // 10]}
    trained = reads if training is None else reads[reads.index.isin([*training])]
    for column, labels in classes.items():
        for label, of_class in trained.groupby(labels, sort=False):
            depths, name = sorted(of_class.tolist()), f"of class {label!r} of {column!r}"
            if len(depths) >= SMALLEST_CLASS:
                candidates[f"the training samples {name}"] = depths[len(depths) // 10]
            elif len(ranked) < FEW_SAMPLES and len(depths) > 1:
                candidates[f"the training samples, and two {name}"] = depths[-2]
    group = min(candidates, key=candidates.__getitem__)
    limit, limit_of_all = int(candidates[group]), candidates["all samples"]
    kept = sum(number >= LOWEST_DEPTH for number in ranked)
    if 2 * kept < len(ranked):
        middle = ranked[len(ranked) // 2]
        fault = f"{kept} of {len(ranked)} samples have {LOWEST_DEPTH} reads, the smallest automatic"
        remedy = "pass the counted reads of all features, or --rarefy-depth to use fewer"
        raise InputError(f"{fault} depth; half have {middle} or fewer; {remedy}")
    depth, level = max(limit, LOWEST_DEPTH), logging.INFO
    if limit < LOWEST_DEPTH:
        level = logging.WARNING
    text = "rarefaction depth: %d reads; 90 %% of %s reach %d, of all samples %d; --rarefy-depth "
    log.log(level, text + "sets another", depth, group, limit, limit_of_all)
    return depth
