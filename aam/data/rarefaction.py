"""Rarefaction: reads of a sample taken at random without replacement, and the depth where none is
asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.device.rng import next_generator
from aam.errors import InputError
from aam.io.tables import AmpliconTable, Integers

if TYPE_CHECKING:
    from aam.data.study import Study

# Up to here numpy's shuffle of the reads is faster than a marginal for each ASV (23 against 50 us
# at 20,000 reads).
MAX_SHUFFLED = 1 << 17

# The number of the rarefaction of evaluation; those of training count from 0.
EVALUATION = -1

# Columns and reads of one sample.
Row = tuple[Integers, npt.NDArray[np.int64]]


def rarefy(values: Integers, depth: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
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


def rarefied_row(table: AmpliconTable, row: int, depth: int, seed: int, epoch: int) -> Row:
    """Return columns [S], ascending, and rarefied reads [S], all above 0, of one sample in one
    epoch.

    It depends on the sample's id and counts, `seed` and `epoch`, and on nothing else in the table.
    """
    columns, values = table.row(row)
    rarefied = rarefy(values, depth, next_generator(seed, "rarefy", epoch, table.sample_ids[row]))
    kept = np.flatnonzero(rarefied)
    return columns[kept], rarefied[kept]


def matrix_of(rows: Sequence[Row], width: int) -> sparse.csr_matrix:
    """Return columns and reads of n samples as a matrix int64 ``[n, width]``."""
    starts = np.cumsum([0, *(len(columns) for columns, _ in rows)])
    columns, reads = (
        np.concatenate([np.zeros(0, np.int64), *(row[part] for row in rows)]) for part in (0, 1)
    )
    return sparse.csr_matrix((reads, columns, starts), shape=(len(rows), width))


# A shallow rarefaction keeps at least this share of the depth.
SHALLOWEST = 0.25


def rarefied_rows(
    study: Study, rows: npt.NDArray[np.int64], epoch: int, shallow: float = 0.0
) -> list[Row]:
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


def rarefied_table(study: Study, epoch: int = EVALUATION) -> sparse.csr_matrix:
    """Return the reads [N, F] of every sample in one rarefaction; that of evaluation unless
    given.
    """
    rows = rarefied_rows(study, np.arange(len(study.table.sample_ids)), epoch)
    return matrix_of(rows, len(study.table.feature_ids))


def rarefied_richness(study: Study, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of ASVs of the samples at `rows` in the rarefaction of evaluation, [n], one
    by one.
    """
    richness = [len(rarefied_rows(study, row, EVALUATION)[0][0]) for row in rows[:, None]]
    return np.array(richness, dtype=np.int64)


KEPT_TENTHS = 9
# Fewer reads say little about which ASVs a sample has, so they are never chosen, only asked for.
LOWEST_DEPTH = 500
SMALLEST_CLASS = 10

# Of fewer samples the depth keeps two of every class.
FEW_SAMPLES = 30

Labels = Sequence[str | None]


def _largest_kept(depths: Sequence[int]) -> int:
    """Return the largest depth that 90 % of the samples reach."""
    kept = -(-KEPT_TENTHS * len(depths) // 10)
    return sorted(depths, reverse=True)[kept - 1]


def choose_depth(
    depths: npt.NDArray[np.int64],
    classes: Mapping[str, Labels] | None = None,
    training: Collection[int] | None = None,
) -> tuple[int, str, bool]:
    """Choose the largest depth that keeps 90 % of all samples and of every class of 10 training
    samples or more and, in a table of few samples, two of every smaller class.

    `depths` int64 [N] are reads of the samples, `classes` the class of each, None where it is
    missing, by metadata column, and `training` the rows of the training samples; unset, all. Labels
    of other samples decide nothing, and no depth below `LOWEST_DEPTH` is chosen.

    Returns the depth, a sentence for the log (what decides it, what another choice would be), and
    whether that many reads are above `LOWEST_DEPTH`. Raises `InputError`: no sample reaches that.
    """
    reads = depths.tolist()
    candidates = {"all samples": _largest_kept(reads)}
    rows = range(len(reads)) if training is None else sorted(training)
    for column, labels in (classes or {}).items():
        members: dict[str, list[int]] = {}
        for row in rows:
            label = labels[row]
            if label is not None:
                members.setdefault(label, []).append(reads[row])
        for label, depths_of_class in members.items():
            if len(depths_of_class) >= SMALLEST_CLASS:
                name = f"the training samples of class {label!r} of {column!r}"
                candidates[name] = _largest_kept(depths_of_class)
            elif len(reads) < FEW_SAMPLES and len(depths_of_class) > 1:
                name = f"the training samples, and two of class {label!r} of {column!r}"
                candidates[name] = sorted(depths_of_class)[-2]
    decided_by = min(candidates, key=lambda name: candidates[name])
    keeping = candidates[decided_by]
    if max(reads) < LOWEST_DEPTH:
        hint = f"; 90 % of {decided_by} have {keeping} or more" if keeping > 0 else ""
        raise InputError(
            f"no sample has {LOWEST_DEPTH} reads, the smallest automatic depth (the deepest has "
            f"{max(reads)}); pass --rarefy-depth to use fewer{hint}"
        )
    depth = max(keeping, LOWEST_DEPTH)
    message = f"rarefaction depth: {depth} reads, the largest that keeps 90 % of {decided_by}"
    if keeping < depth:
        message = (
            f"rarefaction depth: {depth} reads, the smallest automatic depth, though 90 % of "
            f"{decided_by} reach only {keeping}; pass --rarefy-depth to choose another"
        )
    elif depth < candidates["all samples"]:
        message += f"; of all samples together it would be {candidates['all samples']}"
    return depth, message, keeping >= depth
