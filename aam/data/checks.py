"""Warnings of labels, donors and reads that are probably not what a user means; features that are
metadata.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from scipy.sparse import csc_array, csr_array, csr_matrix
from scipy.special import gammaln

from aam.data.totals import BITS_OF_TOTAL, LEAST_OTHERS
from aam.errors import refuse, short, shown
from aam.io.headers import folded
from aam.io.ids import md5
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.typing import Ids, Ints

log = logging.getLogger("aam")

# Fewer samples have equal depths by chance.
LEAST_DEPTHS = 6
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


def nearest_samples(presence: csr_array | csr_matrix) -> Ints:
    """Return the most similar other sample of each, by the Jaccard index of their ASVs, [n]."""
    present = presence.astype(np.float32)
    shared = np.asarray((present @ present.T).todense())
    richness = np.asarray(present.sum(axis=1)).ravel()
    index = shared / np.maximum(richness[:, None] + richness - shared, 1)
    np.fill_diagonal(index, -1)
    return np.asarray(index.argmax(axis=1))


def list_shallow_samples(table: AmpliconTable) -> None:
    """Log the samples far below the median depth: controls and failed samples are among them."""
    middle = float(np.median(table.depths))
    rows = np.flatnonzero(table.depths < SHALLOW * middle)
    if len(rows):
        listed = [f"{table.sample_ids[row]} ({table.depths[row]})" for row in rows.tolist()]
        text = "%d of %d samples have less than a tenth of the median depth (%d reads): %s"
        log.info(
            text + "; --exclude FILE leaves samples out",
            len(rows),
            len(table),
            middle,
            shown(listed, MOST_SHALLOW),
        )


def warn_of_reads(table: AmpliconTable) -> None:
    """Warn of whole numbers that are no reads: equal sums, too many reads, logarithms."""
    depths, reads = table.depths[table.depths > 0], table.counts.data
    if len(depths) < LEAST_DEPTHS:
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


# Share of the median depth below which samples are listed, and the number of them.
SHALLOW, MOST_SHALLOW = 0.1, 20
# Features that are listed with their share of all reads.
MOST_LISTED = 5


def shares_in_words(table: AmpliconTable) -> str:
    """Name the features with most reads and their shares of all reads, the largest first; those
    with sequences by the id of QIIME 2.
    """
    reads = table.reads_of_asvs
    places = np.argsort(-reads, kind="stable")[:MOST_LISTED].tolist()
    names = [md5(table.sequences[x]) if table.sequences else table.feature_ids[x] for x in places]
    shares = (reads[places] / max(reads.sum(), 1)).tolist()
    return ", ".join(
        f"{short(name)} {share:.1%}" for name, share in zip(names, shares, strict=True)
    )


def log_largest_features(table: AmpliconTable) -> None:
    """Log the largest features: no arithmetic tells a row "Unclassified" from a taxon."""
    log.info("the largest of %d features, by reads: %s", table.shape[1], shares_in_words(table))


def _arrangements(sizes: Ints) -> float:
    """Bits of the number of ways in which samples fall into levels of these sizes."""
    return float(gammaln(sizes.sum() + 1) - gammaln(sizes + 1).sum()) / math.log(2)


def find_copies(counts: csr_array, values: Sequence[str]) -> Ints:
    """Return the columns of counts [N, F] that have one number for each of the `values` [N] and
    another for each other, or that rise or fall with values that are numbers.

    Of a few samples, columns that do so by chance are none.
    """
    numbers = pd.to_numeric(pd.Series(values), errors="coerce").to_numpy()
    has_order = bool(np.isfinite(numbers).all())
    levels, level = np.unique(numbers if has_order else np.array(values), return_inverse=True)
    sizes, part = np.bincount(level, minlength=1), csc_array(counts)
    least_bits = BITS_OF_TOTAL + np.log2(max(counts.shape[1], 1))
    found, least = [], len(values) / 2 if has_order else len(values) - sizes.max()
    has_others = counts.shape[1] > LEAST_OTHERS
    for column in np.flatnonzero(np.diff(part.indptr) >= least).tolist() if has_others else ():
        reads = part[:, [column]].toarray()[:, 0].astype(np.int64)
        own_levels, own_sizes = np.unique(reads, return_counts=True)
        pairs = len(np.unique(level * (own_levels[-1] + 1) + reads))
        bits = 0.0
        if pairs == len(levels) == len(own_levels):
            # Which number stands for which value tells nothing.
            bits = _arrangements(own_sizes) - float(gammaln(len(levels) + 1)) / math.log(2)
        if has_order and 2 * len(own_levels) >= len(levels):
            rising = np.diff(reads[np.lexsort((reads, level))])
            falling = np.diff(reads[np.lexsort((-reads, level))])
            is_ordered = (rising >= 0).all() or (falling <= 0).all()
            bits = _arrangements(own_sizes) if is_ordered else bits
        if bits >= least_bits:
            found.append(column)
    return np.array(found, np.int64)


def refuse_metadata_inside(
    table: AmpliconTable, metadata: Metadata, named: Ids, targets: Ids
) -> None:
    """Raise `InputError` for features with the name of a column that an option names, and for
    copies of a target; warn of features with the name of another column.
    """
    feature_of = {} if table.sequences else {folded(name): name for name in table.feature_ids}
    names = {column: feature_of.get(folded(column)) for column in metadata.columns}
    inside = {column: name for column, name in names.items() if name and folded(name)}
    rules = {
        f"feature {short(name)!r} has the name of the metadata column {column!r}; remove it": True
        for column, name in inside.items()
        if column in named
    }
    for target in targets:
        values = metadata.values(target, table.sample_ids)
        rows = [row for row, value in enumerate(values) if value is not None]
        copies = find_copies(table.counts[rows], [values[row] or "" for row in rows])
        listed = shown(table.feature_ids[column] for column in copies)
        rules[f"features are copies of {target!r}: {listed}; remove them"] = len(copies) > 0
    refuse("table", rules)
    if others := [name for column, name in inside.items() if column not in named]:
        text = "warning: features have the names of metadata columns: %s; remove what is no taxon"
        log.warning(text, shown(others))
