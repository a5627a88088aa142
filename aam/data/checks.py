"""Warnings about labels and reads that may be meant otherwise."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from aam.config import DataConfig
from aam.data.splits import fold_column
from aam.device.rng import generator
from aam.errors import shown
from aam.io.metadata import Metadata, is_number
from aam.io.tables import AmpliconTable

log = logging.getLogger("aam")

Ints = npt.NDArray[np.int64]

# Of more pairs of values that are probably one, a warning gives the number.
MOST_PAIRS = 3

# Fewer values are kinds of donors, such as cow and pig, or too few to be divided.
LEAST_DONORS = 6

# Samples whose neighbours are looked for.
MOST_COMPARED = 2_000

# Values of a column are donors if this share of samples has a nearest neighbour of the same value,
# and this many times as many as by chance. On five public studies subjects have 0.29 to 0.95 and 21
# to 710 times; columns of no donor, such as month, body site and study, at most 4.5 times.
LEAST_SHARE, LEAST_LIFT = 0.2, 10
# Depths of samples that differ by less, and reads of a sample that no sequencer gives.
SAME_DEPTH, MOST_READS = 0.005, 10**8
# Counts of a table of logarithms: the largest, and the least median of those above 0.
LARGEST_LOG, LEAST_MEDIAN_LOG = 25, 3


def warn_of_values(
    metadata: Metadata,
    columns: Sequence[str],
    classes: Collection[str],
    group: str | None,
    fold: str | None,
) -> None:
    """Warn of values that are probably one, of classes that look like numbers, and of `columns` of
    two numbers.

    Values may be classes, groups or folds, each of the column of that name.
    """
    source, divided = metadata.source, [*filter(None, (group, fold))]
    for name in dict.fromkeys([*classes, *divided]):
        if pairs := [shown(values) for values in metadata.spellings(name)]:
            what = "groups" if name == group else "folds" if name == fold else "classes"
            if name in divided:
                what += "; if they are one, it is in several subsets and leaks"
            more = f" and {len(pairs) - MOST_PAIRS} more" if len(pairs) > MOST_PAIRS else ""
            listed = " and ".join(pairs[:MOST_PAIRS]) + more
            log.warning("warning: %s: %s in %r are different %s", source, listed, name, what)
    for name in classes:
        if reason := metadata.not_read(name):
            log.warning("warning: %s: column %r %s; each value is a class", source, name, reason)
    for name in dict.fromkeys([*columns, *divided]):
        if doubtful := metadata.doubtful(name):
            log.warning(
                "warning: %s: %s in %r may mean a missing value; if so, pass --missing-values",
                *(source, shown(doubtful), name),
            )
    for name in columns:
        numbers = sorted({float(cell) for cell in metadata.columns[name] if is_number(cell)})
        if name not in classes and len(numbers) == 2:
            two = " and ".join(f"{value:g}" for value in numbers)
            how = "is predicted as a number; --classifier makes classes"
            log.warning("warning: %r contains only %s and %s", name, two, how)


def warn_of_donors(
    table: AmpliconTable, metadata: Metadata, targets: Collection[str], config: DataConfig
) -> None:
    """Warn where no column keeps samples together, and the data says that one holds their donors,
    whose samples folds or subsets divide.
    """
    if config.group_column or config.split or (config.test_size == 0 and not config.cv):
        return
    rows = np.arange(len(table.sample_ids))
    if len(rows) > MOST_COMPARED:
        rows = np.sort(generator(0, "donors").choice(rows, MOST_COMPARED, replace=False))
    ids = [table.sample_ids[row] for row in rows.tolist()]
    folds = fold_column(config)
    places = ids if folds is None else list(map(str, metadata.values(folds, ids)))
    others = metadata.columns.keys() - {*targets, folds, config.study_column, config.batch_column}
    codes = {
        name: code
        for name in sorted(others)
        if (code := _donor_codes(metadata, name, ids, places)) is not None
    }
    if not codes:
        return
    nearest = _nearest(table, rows)
    lifts = {name: _lift(code, nearest) for name, code in codes.items()}
    name = max(lifts, key=lambda name: lifts[name])
    if lifts[name] < LEAST_LIFT:
        return
    log.warning(
        "warning: %d samples have %d values in %r and no --group-column is given. Samples with "
        "the same value are similar, so the value may name the donor, and the model is then tested "
        "on donors that it knows; --group-column %s keeps the samples of a donor together",
        *(len(table), len({*metadata.values(name, table.sample_ids)} - {None}), name, name),
    )


def _donor_codes(
    metadata: Metadata, name: str, ids: Sequence[str], places: Sequence[str]
) -> Ints | None:
    """Return the value of each sample as a number, -1 where it is missing; None where these cannot
    be donors, or where none of them is in two `places`.
    """
    values = metadata.values(name, ids)
    if any(value is not None and is_number(value) and float(value) % 1 for value in values):
        return None
    levels = {value: code for code, value in enumerate(sorted({*values} - {None}, key=str))}
    pairs = {pair for pair in zip(values, places, strict=True) if pair[0] is not None}
    if not LEAST_DONORS <= len(levels) < len(pairs):
        return None
    return np.array([-1 if value is None else levels[value] for value in values])


def _nearest(table: AmpliconTable, rows: Ints) -> Ints:
    """Return the position of the most similar other sample of each, by the Jaccard index of their
    ASVs, [n].
    """
    present = table.counts[rows].astype(bool).astype(np.float32)
    shared = np.asarray((present @ present.T).todense())
    richness = np.asarray(present.sum(axis=1)).ravel()
    index = shared / np.maximum(richness[:, None] + richness - shared, 1)
    np.fill_diagonal(index, -1)
    return np.asarray(index.argmax(axis=1))


def _lift(code: Ints, nearest: Ints) -> float:
    """Ratio of samples whose nearest sample has the same value, to the number by chance; 0 if that
    is rare.
    """
    sizes = np.bincount(code[code >= 0])
    repeated = (code >= 0) & (sizes[code] > 1)
    if not repeated.any():
        return 0.0
    same = float((code == code[nearest])[repeated].mean())
    chance = float((sizes[code[repeated]] - 1).mean()) / max(len(code) - 1, 1)
    return same / chance if same >= LEAST_SHARE else 0.0


def warn_of_reads(table: AmpliconTable) -> None:
    """Warn of whole numbers that are no reads: equal sums, too many reads, logarithms."""
    depths = table.depths[table.depths > 0]
    if len(depths) < LEAST_DONORS:
        return
    middle, reason = float(np.median(depths)), ""
    richness = float(np.median(np.diff(table.counts.indptr)))
    largest = int(table.counts.data.max(initial=0))
    if depths.max() - depths.min() <= SAME_DEPTH * middle:
        reason = (
            f"all samples have {middle:,.0f} reads; they were rarefied, or scaled to one sum "
            "(counts per million, shares)"
        )
    elif middle > MOST_READS:
        reason = (
            f"half of the samples have {middle:,.0f} reads or more, more than any sequencer gives"
        )
    elif (
        largest <= LARGEST_LOG
        and richness >= LEAST_MEDIAN_LOG**2
        and np.median(table.counts.data) >= LEAST_MEDIAN_LOG
    ):
        reason = f"no ASV has more than {largest} reads in a sample; the counts may be logarithms"
    if reason:
        log.warning("warning: %s. Pass the reads as they were counted", reason)
