"""Samples and features that are computed from others (totals, higher ranks, numbers of features),
and pseudocounts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from scipy.sparse import csc_array, csr_array

from aam.errors import refuse, shown
from aam.io.tables import AmpliconTable
from aam.typing import Floats, Ints

# Share of the samples in which a feature must equal what it is computed from.
MOST_SAMPLES = 0.9
# Minimum number of other features or samples that are added up, and of totals of names that others
# continue. No remainder of 50 in a collapsed table, whose names others continue as well, is equal.
LEAST_OTHERS = LEAST_RANKS = 3
# Bits that counts must hold before they are no coincidence: those of a total next to log2 of the
# features that may be one, and those of each ancestor.
BITS_OF_TOTAL, BITS_OF_ANCESTOR = 16, 8
# A table of numbers of features may hold this number of them, or of totals.
MOST_COUNTERS = 3
# Minimum number of samples and features that shows a pseudocount.
LEAST_DENSE = 5

SparseCounts: TypeAlias = csr_array | csc_array
# Between the ranks of a name; ``__`` is a name as well.
RANK_END = re.compile(r"\s*[;|]\s*")


def _bits(counts: SparseCounts) -> Floats:
    """Bits that the counts of each column hold, [F]."""
    weights = np.log2(1.0 + counts.data)
    bits = np.bincount(counts.tocoo().coords[1], weights, minlength=counts.shape[1])
    return bits.astype(np.float64)


def _equal(counts: SparseCounts, numbers: Ints) -> Ints:
    """Return the columns of counts [N, F] that equal one of the `numbers` [N, K] of the rows in
    nearly all rows with reads.
    """
    present = np.bincount(counts.tocoo().coords[1])
    least = MOST_SAMPLES * np.count_nonzero(np.asarray(counts.sum(axis=1)))
    common = np.flatnonzero(present >= max(least, 1))
    if np.count_nonzero(present) <= LEAST_OTHERS or not len(common):
        return common[:0]
    part, is_equal = csr_array(counts[:, common]), np.zeros(len(common), bool)
    rows, columns = part.tocoo().coords
    for values in numbers.T:
        equal = columns[part.data == values[rows]]
        is_equal |= np.bincount(equal, minlength=len(common)) >= least
    is_equal &= _bits(part) >= BITS_OF_TOTAL + np.log2(counts.shape[1])
    return np.asarray(common[is_equal])


def find_totals(counts: SparseCounts) -> Ints:
    """Return the columns of counts [N, F] that are the sum of all others, half of the reads of a
    row.
    """
    depths = np.asarray(counts.sum(axis=1, dtype=np.int64))
    # An odd depth has no half.
    return _equal(counts, np.where(depths % 2, -1, depths // 2)[:, None])


def find_numbers(counts: csr_array) -> Ints:
    """Return the columns of counts [N, F] that are the number of other features of the row."""
    richness = np.diff(counts.indptr)
    return _equal(counts, richness[:, None] - np.arange(1, MOST_COUNTERS + 1))


def _parents(names: Sequence[str]) -> Ints:
    """Return the place of the nearest ancestor of each name, -1 without one, [F]: the longest other
    name that it continues by ranks.
    """
    parents = np.full(len(names), -1)
    if not any(";" in name or "|" in name for name in names):
        return parents
    ranks = [tuple(RANK_END.split(name.strip())) for name in names]
    place_of = {lineage: place for place, lineage in enumerate(ranks)}
    for place, lineage in enumerate(ranks):
        above = (place_of.get(lineage[:level], -1) for level in range(len(lineage) - 1, 0, -1))
        parents[place] = next((ancestor for ancestor in above if ancestor >= 0), -1)
    return parents


def find_ancestors(counts: csr_array, names: Sequence[str]) -> Ints:
    """Return the columns of counts [N, F] that equal the sum of their nearest descendants in nearly
    all samples in which either has reads, if some of them hold more than a coincidence.

    Names only propose which column is an ancestor: in a collapsed table others continue the name of
    what could not be assigned further, which is no sum.
    """
    parents = _parents(names)
    below = np.flatnonzero(parents >= 0)
    ancestors, place = np.unique(parents[below], return_inverse=True)
    shape = (len(names), len(ancestors))
    sums = counts.astype(np.int64) @ csc_array((np.ones_like(below), (below, place)), shape)
    own = csc_array(counts[:, ancestors].astype(np.int64))
    either, unequal = csc_array(own + sums), csc_array(own - sums)
    unequal.eliminate_zeros()
    different, present = (np.diff(matrix.indptr) for matrix in (unequal, either))
    bits = _bits(own)
    is_sum = (present - different >= MOST_SAMPLES * present) & (bits > 0)
    are_ranks = np.count_nonzero(is_sum & (bits >= BITS_OF_ANCESTOR)) >= LEAST_RANKS
    return np.asarray(ancestors[is_sum & are_ranks])


def _pseudocount(counts: csr_array) -> str:
    """Describe a value that fills at least half of a table without zeros; "" without one."""
    if min(counts.shape) < LEAST_DENSE or counts.nnz < np.prod(counts.shape):
        return ""
    values, times = np.unique(counts.data, return_counts=True)
    share, value = times.max() / counts.nnz, values[times.argmax()]
    return f"no count is 0 and {share:.0%} are {value}" if share >= 0.5 else ""


def refuse_computed(table: AmpliconTable, where: str) -> None:
    """Raise `InputError` that names the samples and features of a table that are computed from
    others: the sum of all others, the number of other features, ranks above others; and
    pseudocounts.
    """
    counts, places, found = table.counts, np.arange(len(table.feature_ids)), list[int]()
    # Next to one number the others equal a total no longer, so they are looked for without it.
    while len(computed := np.union1d(find_totals(counts), find_numbers(counts))):
        found += places[computed].tolist()
        kept = np.setdiff1d(np.arange(len(places)), computed)
        counts, places = counts[:, kept], places[kept]
    sums = [table.sample_ids[place] for place in find_totals(table.counts.T)]
    numbers = [table.feature_ids[place] for place in sorted(found)]
    ranks = [table.feature_ids[x] for x in find_ancestors(table.counts, table.feature_ids)]
    pseudocount = _pseudocount(table.counts)
    rules = {
        f"samples equal the sum of all other samples: {shown(sums)}; remove them": sums != [],
        "features equal the reads or the number of all other features of a sample: "
        f"{shown(numbers)}; remove them": numbers != [],
        "features are the sum of others whose names continue theirs, so reads are counted several "
        f"times: {shown(ranks)}; keep one rank": ranks != [],
        f"{pseudocount}, as after a pseudocount was added; pass the counts before that": (
            pseudocount != ""
        ),
    }
    refuse(where, rules)
