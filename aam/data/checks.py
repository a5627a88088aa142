"""Warnings of labels, donors and reads that are probably not what a user means; features that are
metadata.
"""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from aam.errors import refuse, short, shown
from aam.io.ids import md5
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.io.text import folded
from aam.typing import Ids

log = logging.getLogger("aam")

# Groups that are listed.
MOST_LARGEST = 3
# Fewer samples have equal depths by chance.
LEAST_DEPTHS = 6
# Depths that differ by a smaller share are equal.
SAME_DEPTH = 0.005


def list_groups(metadata: Metadata, group: str, ids: Ids) -> None:
    """Log the number of groups and the largest, by which two spellings and placeholders show; warn
    of samples without one.
    """
    values = pd.Series(metadata.values(group, ids), dtype=object)
    sizes = values.value_counts()
    largest = [f"{short(value)!r} {size}" for value, size in sizes[:MOST_LARGEST].items()]
    text = "%s: %r: %d groups with a value, the largest: %s"
    log.info(text, metadata.source, group, len(sizes), ", ".join(largest) or "none")
    if number := int(values.isna().sum()):
        text = "warning: %s: %d of %d samples have no value in --group-column %s; each counts as a "
        log.warning(text + "group of its own", metadata.source, number, len(ids), group)


def list_groups_of_batches(metadata: Metadata, group: str, batch: str, ids: Ids) -> None:
    """Log the number of groups in several batches: no arithmetic tells whether these are one."""
    values = {name: metadata.values(name, ids) for name in (group, batch)}
    batches = pd.DataFrame(values, dtype=object).groupby(group)[batch].nunique()
    if group != batch and (number := int((batches > 1).sum())):
        text = "%s: %d values of %r occur in several values of %r, and each counts as one group; "
        text += "if they were numbered anew, write both into one column"
        log.info(text, metadata.source, number, group, batch)


def list_shallow_samples(table: AmpliconTable) -> None:
    """Log the samples far below the median depth: controls and failed samples are among them."""
    middle = float(np.median(table.depths))
    rows = np.flatnonzero(table.depths < SHALLOW * middle)
    if len(rows):
        listed = [f"{table.sample_ids[row]} ({table.depths[row]})" for row in rows.tolist()]
        text = "%d of %d samples have less than a tenth of the median depth (%d reads): %s; "
        text += "--exclude FILE leaves samples out"
        log.info(text, len(rows), len(table), middle, shown(listed, MOST_SHALLOW))


def warn_of_reads(table: AmpliconTable) -> None:
    """Warn of samples with the same number of reads."""
    depths = table.depths[table.depths > 0]
    if len(depths) >= LEAST_DEPTHS and np.ptp(depths) <= SAME_DEPTH * np.median(depths):
        text = "warning: all samples have %s reads; they were rarefied, or scaled to one sum"
        remedy = " (counts per million, shares). Pass the reads as they were counted"
        log.warning(text + remedy, f"{np.median(depths):,.0f}")


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


def refuse_metadata_inside(table: AmpliconTable, named: Ids) -> None:
    """Raise `InputError` for features with the name of a column that an option names."""
    feature_of = {} if table.sequences else {folded(name): name for name in table.feature_ids}
    rules = {
        f"feature {short(name)!r} has the name of the metadata column {column!r}; remove it": True
        for column in named
        if folded(column) and (name := feature_of.get(folded(column)))
    }
    refuse("table", rules)
