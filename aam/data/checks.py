"""Warnings of labels, donors and reads that are probably not what a user means."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import pandas as pd
from scipy.sparse import csr_array, csr_matrix

from aam.config import DataConfig
from aam.data.splits import fold_column
from aam.device.rng import generator
from aam.io.metadata import Metadata, is_number
from aam.io.tables import AmpliconTable
from aam.typing import Ids, Ints

log = logging.getLogger("aam")

# Fewer values are kinds of donors, such as cow and pig, or too few to be divided.
LEAST_DONORS = 6
# Samples whose neighbours are looked for.
MOST_COMPARED = 2_000
# Values of a column are donors if this share of samples has a nearest neighbour of the same value,
# and this many times as many as by chance. On five public studies subjects have 0.29 to 0.95 and 21
# to 710 times; columns of no donor, such as month, body site and study, at most 4.5 times.
LEAST_SHARE, LEAST_LIFT = 0.2, 10
# Depths that differ by a smaller share are equal; more reads per sample come from no sequencer.
SAME_DEPTH, MOST_READS = 0.005, 10**8
# Counts of a table of logarithms: the largest, and the least median of those above 0.
LARGEST_LOG, LEAST_MEDIAN_LOG = 25, 3


def warn_of_two_numbers(metadata: Metadata, columns: Iterable[str], ids: Ids) -> None:
    """Warn of `columns` of only two numbers, which are rather classes."""
    for name in sorted(columns):
        numbers = metadata.numbers(name, ids)
        if len(values := np.unique(numbers[~np.isnan(numbers)])) == 2:
            text = "warning: %s: %r contains only %g and %g and is predicted as a number; "
            text += "--classifier makes classes"
            log.warning(text, metadata.source, name, *values)


def warn_of_single_samples(metadata: Metadata, group: str, ids: Ids) -> None:
    """Warn of samples without a value in the column of groups."""
    if number := metadata.values(group, ids).count(None):
        text = "warning: %s: %d of %d samples have no value in --group-column %s; each counts as a "
        log.warning(text + "group of its own", metadata.source, number, len(ids), group)


def warn_of_donors(table: AmpliconTable, metadata: Metadata, target: Ids, data: DataConfig) -> None:
    """Warn if a column probably names donors, folds or subsets divide the samples of a donor, and
    no --group-column keeps them together.
    """
    if data.group_column or data.split or (data.test_size == 0 and not data.cv):
        return
    rows = np.arange(len(table))
    if len(rows) > MOST_COMPARED:
        rows = np.sort(generator(0, "donors").choice(rows, MOST_COMPARED, replace=False))
    ids, folds = [table.sample_ids[row] for row in rows.tolist()], fold_column(data)
    places = ids if folds is None else metadata.values(folds, ids)
    ignored = {*target, folds, data.study_column, data.batch_column}
    nearest, lifts = None, {}
    for name in sorted({*metadata.columns} - ignored):
        values = pd.Series(metadata.values(name, ids), dtype=object)
        is_real = any(is_number(value) and float(value) % 1 for value in values.dropna())
        is_real |= bool(metadata.faults.get(name))
        pairs = pd.DataFrame({"value": values, "place": places}).dropna(subset="value")
        if is_real or not LEAST_DONORS <= values.nunique() < len(pairs.drop_duplicates()):
            continue
        nearest = nearest_samples(table.counts[rows] > 0) if nearest is None else nearest
        # Samples whose nearest sample has the same value, compared with chance.
        sizes = values.map(values.value_counts())
        share = (values == values.to_numpy()[nearest])[sizes > 1].mean()
        chance = (sizes[sizes > 1] - 1).mean() / max(len(values) - 1, 1)
        lifts[name] = share / chance if share >= LEAST_SHARE else 0.0
    name = max(lifts, key=lifts.__getitem__, default="")
    if lifts.get(name, 0) < LEAST_LIFT:
        return
    number = len({*metadata.values(name, table.sample_ids)} - {None})
    log.warning(
        "warning: %d samples have %d values in %r and no --group-column is given. Samples with the "
        "same value are similar, so the value may name the donor, and the model is then tested on "
        "donors that it knows; --group-column %s keeps the samples of a donor together",
        *(len(table), number, name, name),
    )


def nearest_samples(presence: csr_array | csr_matrix) -> Ints:
    """Return the most similar other sample of each, by the Jaccard index of their ASVs, [n]."""
    present = presence.astype(np.float32)
    shared = np.asarray((present @ present.T).todense())
    richness = np.asarray(present.sum(axis=1)).ravel()
    index = shared / np.maximum(richness[:, None] + richness - shared, 1)
    np.fill_diagonal(index, -1)
    return np.asarray(index.argmax(axis=1))


def warn_of_reads(table: AmpliconTable) -> None:
    """Warn of whole numbers that are no reads: equal sums, too many reads, logarithms."""
    depths, reads = table.depths[table.depths > 0], table.counts.data
    if len(depths) < LEAST_DONORS:
        return
    middle, largest = float(np.median(depths)), int(reads.max(initial=0))
    is_rich = np.median(np.diff(table.counts.indptr)) >= LEAST_MEDIAN_LOG**2
    reason = ""
    if depths.max() - depths.min() <= SAME_DEPTH * middle:
        scaled = "they were rarefied, or scaled to one sum (counts per million, shares)"
        reason = f"all samples have {middle:,.0f} reads; {scaled}"
    elif middle > MOST_READS:
        reason = f"half of the samples have {middle:,.0f} reads, more than any sequencer gives"
    elif largest <= LARGEST_LOG and is_rich and np.median(reads) >= LEAST_MEDIAN_LOG:
        reason = f"no ASV has more than {largest} reads in a sample; the counts may be logarithms"
    if reason:
        log.warning("warning: %s. Pass the reads as they were counted", reason)
