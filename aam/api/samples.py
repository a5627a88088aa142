"""Samples that do not fit: the check of tables in memory and of `aam audit`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from aam.data.checks import warn_of_reads
from aam.data.inputs import TableLike, Values, aligned, is_missing_value, table_from
from aam.files.atomic import write_text
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.predict.sample_check import SampleCheck, check_table
from aam.typing import Ids

# What a check writes to a folder.
CHECK_FILES = ("samples.tsv", "mixtures.tsv", "duplicates.tsv", "shifts.tsv")


def check_samples(
    table: TableLike, groups: Values | None = None, time: Values | None = None
) -> SampleCheck:
    """Look for samples that contain another one, near duplicates, and shifted rows of a sheet.

    What is found are suspicions: ask the laboratory. Relatives, cage mates, replicates and newborns
    give the same signs.

    Parameters
    ----------
    table : biom.Table, DataFrame, AmpliconTable or path
        Counts of reads; features need no sequences.
    groups : Series by sample id, array or list, optional
        Subject of each sample. The order of a Series is that of the sample sheet.
    time : Series by sample id, array or list, optional
        Time of each sample, which is shown next to it.

    Returns
    -------
    aam.predict.sample_check.SampleCheck
        The data frames ``samples``, ``mixtures``, ``duplicates`` and ``shifts``.

    Raises
    ------
    InputError
        A table that cannot be read, or another number of values than of samples.

    Examples
    --------
    >>> import numpy as np, pandas as pd, aam
    >>> reads = np.random.default_rng(0).poisson(5, (30, 40))
    >>> table = pd.DataFrame(reads, [f"s{n}" for n in range(30)], [f"f{n}" for n in range(40)])
    >>> int(aam.check_samples(table).samples["mixed"].sum())
    0
    """
    counts = table_from(table, need_sequences=False)
    sheet = None if groups is None else _texts(groups, counts.sample_ids, "groups")
    if sheet is not None and isinstance(groups, pd.Series):
        order = [name for name in map(str, groups.index) if name in sheet.index]
        sheet = sheet.reindex(order) if len(order) == len(sheet) else sheet
    times = None if time is None else _texts(time, counts.sample_ids, "time")
    warn_of_reads(counts)
    return check_table(counts, sheet, times)


def _texts(values: Values, ids: Ids, name: str) -> pd.Series:
    """Values of samples as text by sample id, None where they are missing."""
    cells = aligned(values, ids, name)
    texts = [None if is_missing_value(x) or x == "" else str(x) for x in cells]
    return pd.Series(texts, [*ids], dtype=object)


def check_study(
    table: AmpliconTable, metadata: Metadata, group_column: str | None, time_column: str | None
) -> SampleCheck:
    """Check the samples of a table, with the subjects and times of their metadata."""
    ids = metadata.ids
    sheet, times = (
        None if column is None else pd.Series(metadata.values(column, ids), [*ids], dtype=object)
        for column in (group_column, time_column)
    )
    return check_table(table, sheet, times)


def write_check(folder: Path, check: SampleCheck) -> None:
    """Write all samples, the features of mixtures, all near duplicates and all shifted rows."""
    samples = check.samples.reset_index()
    samples["mixed"] = samples["mixed"].map({True: "true", False: "false"})
    frames = (samples, check.mixtures, check.duplicates, check.shifts)
    for name, frame in zip(CHECK_FILES, frames, strict=True):
        write_text(folder / name, frame.to_csv(sep="\t", index=False, float_format="%.4g"))
