"""Rarefaction: reads of a sample drawn without replacement."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.data.table import Integers, SampleTable
from aam.device.rng import generator

# Up to here numpy's shuffle of the reads is faster than its draw per ASV (23 against 50 us at 20,000 reads).
MAX_SHUFFLED = 1 << 17

# numpy refuses hypergeometric draws from 10^9 reads and more.
MAX_MARGINAL = 10**9


def _enumerated(values: npt.NDArray[np.int64], depth: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw read numbers and redraw repeats; memory grows with `depth` (at most half of the reads) only."""
    ends = np.cumsum(values)
    total = int(ends[-1])
    if 2 * depth > total:
        return values - _enumerated(values, total - depth, rng)
    reads = np.zeros(0, dtype=np.int64)
    while len(reads) < depth:
        reads = np.unique(np.concatenate([reads, rng.integers(0, total, depth - len(reads))]))
    return np.diff(np.searchsorted(reads, ends), prepend=0)


def rarefy(values: Integers, depth: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw `depth` of the reads [S] of a sample without replacement: multivariate hypergeometric, [S]."""
    wide = values.astype(np.int64)
    total = int(wide.sum())
    if not 0 <= depth <= total:
        raise ValueError(f"depth {depth} is not between 0 and the {total} reads of the sample")
    if depth == total:
        return wide
    if total >= MAX_MARGINAL:
        return _enumerated(wide, depth, rng)
    method: Literal["count", "marginals"] = "count" if total <= MAX_SHUFFLED else "marginals"
    return rng.multivariate_hypergeometric(wide, depth, method=method)


def rarefied_row(
    table: SampleTable, row: int, depth: int, seed: int, epoch: int
) -> tuple[Integers, npt.NDArray[np.int64]]:
    """Return columns [S], ascending, and rarefied reads [S], all above 0, of one sample in one epoch.

    The draw depends on the sample's id and counts, `seed` and `epoch`, and on nothing else in the table.
    """
    columns, values = table.row(row)
    drawn = rarefy(values, depth, generator(seed, "rarefy", epoch, table.sample_ids[row]))
    kept = np.flatnonzero(drawn)
    return columns[kept], drawn[kept]
