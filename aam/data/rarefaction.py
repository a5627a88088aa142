"""Rarefaction: reads of a sample drawn without replacement, and the depth to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.data.table import Integers, SampleTable
from aam.errors import InputError
from aam.runtime.rng import generator

KEPT_TENTHS = 9

# Up to here numpy's shuffle of the reads is faster than its draw per ASV (23 against 50 us at 20,000 reads).
MOST_SHUFFLED = 1 << 17

# numpy refuses hypergeometric draws from 10^9 reads and more.
MOST_MARGINAL = 10**9


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
    if total >= MOST_MARGINAL:
        return _enumerated(wide, depth, rng)
    method: Literal["count", "marginals"] = "count" if total <= MOST_SHUFFLED else "marginals"
    return rng.multivariate_hypergeometric(wide, depth, method=method)


def rarefied_row(
    table: SampleTable, row: int, depth: int, seed: int, epoch: int
) -> tuple[Integers, npt.NDArray[np.int64]]:
    """Columns [S], ascending, and rarefied reads [S], all above 0, of one sample in one epoch.

    The draw depends on the sample's id and counts, `seed` and `epoch`, and on nothing else in the table.
    """
    columns, values = table.row(row)
    drawn = rarefy(values, depth, generator(seed, "rarefy", epoch, table.sample_ids[row]))
    kept = np.flatnonzero(drawn)
    return columns[kept], drawn[kept]


def choose_depth(depths: npt.NDArray[np.int64], classes: Sequence[object] | None = None) -> int:
    """The largest depth that keeps at least 90 % of the samples, overall and in every class.

    `depths` int64 [N] are the reads, `classes` the class of each sample, None or -1 where it is missing.

    Raises `InputError`: more than a tenth of the samples, or of those of a class, have no reads.
    """
    groups = {"all samples": depths.tolist()}
    for label, depth in zip(() if classes is None else classes, depths.tolist(), strict=classes is not None):
        if label is not None and label != -1:
            groups.setdefault(f"the samples of class {str(label)!r}", []).append(depth)
    kept = {name: -(-KEPT_TENTHS * len(members) // 10) for name, members in groups.items()}
    chosen = {name: sorted(members, reverse=True)[kept[name] - 1] for name, members in groups.items()}
    lowest = min(chosen, key=lambda name: chosen[name])
    if chosen[lowest] < 1:
        raise InputError(f"more than a tenth of {lowest} have no reads; pass --rarefy-depth to drop them")
    return int(chosen[lowest])
