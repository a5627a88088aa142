"""Samples that do not fit: the check of tables in memory and of `aam audit`."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam.data.checks import warn_of_reads
from aam.data.memory import TableLike, Values, aligned, is_missing_value, table_from
from aam.errors import InputError, shown
from aam.files.atomic import write_text
from aam.io.dates import read_dates
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.predict.sample_check import SampleCheck, check_table
from aam.report.samples import fit_figure
from aam.typing import Floats

log = logging.getLogger("aam")

# What a check writes to a folder.
SAMPLES_FILE, MIXTURES_FILE, PICTURE = "samples.tsv", "mixtures.tsv", "fit.svg"


def check_samples(
    table: TableLike, groups: Values | None = None, time: Values | None = None
) -> SampleCheck:
    """Look for samples that contain another one, near duplicates, and samples of another subject.

    What is found are suspicions: ask the laboratory. Relatives, cage mates, replicates and newborns
    give the same signs.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
        Counts of reads; features need no sequences.
    groups : Series by sample id, array or list, optional
        Subject of each sample. The order of a Series is that of the sample sheet.
    time : Series by sample id, array or list, optional
        Numbers or dates, where samples of one subject change with time.

    Returns
    -------
    aam.predict.sample_check.SampleCheck
        The data frames ``samples``, ``mixtures``, ``duplicates`` and ``swaps``.

    Raises
    ------
    InputError
        A table that cannot be read, other numbers of values, or times that are neither numbers nor
        dates.

    Examples
    --------
    >>> import numpy as np, pandas as pd, aam
    >>> reads = np.random.default_rng(0).poisson(5, (30, 40))
    >>> table = pd.DataFrame(reads, [f"s{n}" for n in range(30)], [f"f{n}" for n in range(40)])
    >>> int(aam.check_samples(table).samples["mixed"].sum())
    0
    """
    counts = table_from(table, need_sequences=False)
    ids, order = counts.sample_ids, None
    labels = None if groups is None else _labels(aligned(groups, ids, "groups"))
    times = None if time is None else times_of(aligned(time, ids, "time"), "time")
    if isinstance(groups, pd.Series):
        place = {str(name): row for row, name in enumerate(groups.index)}
        if set(ids) <= set(place):
            order = np.argsort([place[name] for name in ids], kind="stable")
    warn_of_reads(counts)
    return check_table(counts, labels, times, order)


def _labels(values: Sequence[Any]) -> list[str | None]:
    """Subjects as text, None where they are missing."""
    return [None if is_missing_value(value) or value == "" else str(value) for value in values]


def times_of(values: Sequence[Any], name: str) -> Floats:
    """Times as numbers, dates in days, [N]; nan where they are missing.

    Raises
    ------
    InputError
        Values that are neither; `name` is what the message calls them.
    """
    cells = pd.Series([None if is_missing_value(x) or x == "" else x for x in values], dtype=object)
    numbers = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    present = cells.notna()
    if np.isfinite(numbers[present]).all():
        return np.asarray(numbers, np.float64)
    texts = [None if x is None else str(x) for x in cells]
    if (days := read_dates(texts)) is not None:
        return days
    wrong = [x for x in texts if x is not None and read_dates([x]) is None]
    few = f"{len(wrong)} of {len(texts)} values are neither numbers nor dates (2026-11-27)"
    values = shown(dict.fromkeys(wrong), 3)
    raise InputError(f"{name}: {few}: {values}; write one or the other, or leave it out")


def study_times(table: AmpliconTable, metadata: Metadata, column: str | None) -> Floats | None:
    """Times of the samples of a table by a metadata column, [N]; None without a column.

    Raises
    ------
    InputError
        Values that are neither numbers nor dates.
    """
    if column is None:
        return None
    ids = [name for name in table.sample_ids if name in metadata]
    time_of = dict(zip(ids, metadata.values(column, ids), strict=True))
    times = [time_of.get(name) for name in table.sample_ids]
    return times_of(times, f"{metadata.source}: --time-column {column}")


def check_study(
    table: AmpliconTable, metadata: Metadata, group_column: str | None, times: Floats | None
) -> SampleCheck:
    """Check the samples of a table, with the subjects of their metadata and their times [N]."""
    ids = [name for name in table.sample_ids if name in metadata]
    if lacking := len(table) - len(ids):
        text = "%d of %d samples have no metadata, and are not compared with subjects"
        log.info(text, lacking, len(table))
    row_of = {name: row for row, name in enumerate(metadata.ids)}
    order = np.argsort([row_of.get(name, math.inf) for name in table.sample_ids], kind="stable")
    groups = None
    if group_column is not None:
        group_of = dict(zip(ids, metadata.values(group_column, ids), strict=True))
        groups = _labels([group_of.get(name) for name in table.sample_ids])
    return check_table(table, groups, times, order)


def write_check(folder: Path, check: SampleCheck) -> None:
    """Write samples.tsv, mixtures.tsv and, if there are subjects, a picture of their fit."""
    options: dict[str, Any] = {"sep": "\t", "float_format": "%.4g"}
    samples = check.samples.copy()
    for name in ("mixed", "misfit"):
        samples[name] = samples[name].map({True: "true", False: "false"})
    write_text(folder / SAMPLES_FILE, samples.to_csv(**options))
    write_text(folder / MIXTURES_FILE, check.mixtures.to_csv(index=False, **options))
    if (figure := fit_figure(check)) is not None:
        write_text(folder / PICTURE, figure.svg)
