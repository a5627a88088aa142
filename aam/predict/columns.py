"""Metadata columns of an audit: their values, how they nest, and parts of names and dates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from sklearn.metrics.cluster import contingency_matrix

from aam.config import ColumnKind
from aam.io.dates import read_dates
from aam.io.metadata import Metadata, is_number
from aam.typing import Floats, Ints

Form = Literal["category", "number", "date", "reads"]
AuditKind: TypeAlias = ColumnKind | Literal["reads"]


# Parts of a value stand between these marks; this number of them is read.
MARKS, MOST_PARTS = re.compile(r"[._\-\s/:|]+"), 4
# Dates more days away from 1970 have no parts.
MOST_DAYS = 100_000

# Batches have at most this number of values.
MOST_LEVELS = 50
# What a column is that is not judged.
STATES = ("", "id", "constant", "empty")
# Share of the samples of each level that lie in one level of a coarser column.
NESTED = 0.98


@dataclass(frozen=True, eq=False)
class Column:
    """A metadata column, or a part of the values of one.

    Attributes
    ----------
    name : str
    form : str
        How its values are read: category, number, date, or reads of the table.
    codes : int64 [N]
        The level of each sample, -1 where missing.
    numbers : float64 [N]
        Numbers, days for dates, NaN where missing.
    labels : sequence
        The values, in order.
    kind : str
        What it is: identity, technical, time, biology or reads.
    """

    name: str
    form: Form
    codes: Ints
    numbers: Floats
    labels: Sequence[object]
    kind: AuditKind = "biology"

    @property
    def levels(self) -> int:
        """Number of values."""
        return len(self.labels)

    @property
    def count(self) -> int:
        """Number of samples that have a value."""
        return int((self.codes >= 0).sum())

    @property
    def varies(self) -> bool:
        """Whether two samples differ; a missing value differs from any other."""
        return len(np.unique(self.codes)) > 1

    @property
    def is_repeated(self) -> bool:
        """Whether a value stands more than once and not in all samples."""
        return 1 < self.levels < self.count

    @property
    def is_id(self) -> bool:
        """Whether every sample has a name of its own."""
        return self.form == "category" and self.levels == len(self.codes)

    @property
    def has_levels(self) -> bool:
        """Whether it may be read as levels; whole numbers may be names."""
        numbers = self.numbers[np.isfinite(self.numbers)]
        return self.form == "category" or (self.form == "number" and not (numbers % 1).any())

    @property
    def state(self) -> str:
        """Why it is not judged, one of `STATES`; empty if it is."""
        if not self.varies:
            return "constant" if self.levels else "empty"
        return "id" if self.is_id else ""

    @cached_property
    def parts(self) -> list[Column]:
        """Parts of names that differ for most samples, and times of dates, as columns."""
        if self.form == "date":
            return _parts_of_dates(self)
        if self.form == "category" and 2 * self.levels > self.count:
            return _parts_of_names(self)
        return []

    def indicators(self, classes: bool = False) -> Floats:
        """Numbers [N, 1], or indicators of levels [N, K]; missing values are the median, or 0."""
        if classes or self.form == "category":
            return np.asarray(self.codes[:, None] == np.arange(self.levels), np.float64)
        # The mean of two large numbers is that of their halves, whose sum cannot overflow.
        halves = self.numbers / 2
        median = 2 * float(np.nanmedian(halves)) if np.isfinite(halves).any() else 0.0
        return np.nan_to_num(self.numbers, nan=median)[:, None]


def make_column(
    name: str, values: Sequence[object] | pd.Series, form: Form, numbers: Floats | None = None
) -> Column:
    """Return a column of values, None where missing, that are read as `form`."""
    codes, labels = pd.factorize(pd.Series(values), sort=True)
    empty = np.full(len(codes), np.nan) if numbers is None else numbers
    kind: AuditKind = "reads" if form == "reads" else "biology"
    return Column(name, form, codes.astype(np.int64), empty, tuple(labels), kind)


def read_column(metadata: Metadata, name: str, ids: Sequence[str]) -> Column:
    """Read one column of the samples `ids`: numbers, ISO dates, or text."""
    values = pd.Series(metadata.values(name, ids), dtype=object)
    if metadata.kinds[name] == "numeric" and all(map(is_number, values.dropna())):
        return make_column(name, values, "number", values.astype(np.float64).to_numpy())
    if (days := read_dates(metadata.values(name, ids))) is not None:
        return make_column(name, values, "date", days)
    return make_column(name, values, "category")


def is_nested(finer: Column, coarser: Column) -> bool:
    """Whether the samples of each level of one column are in one level of another, coarser one."""
    both = (finer.codes >= 0) & (coarser.codes >= 0)
    if finer.levels <= coarser.levels or coarser.levels < 2 or not both.any():
        return False
    counts = contingency_matrix(finer.codes[both], coarser.codes[both])
    return bool(counts.max(axis=1).sum() >= NESTED * both.sum())


def is_equal(column: Column, other: Column) -> bool:
    """Whether two columns have the same levels under other names, gaps at the same places."""
    if ((column.codes < 0) != (other.codes < 0)).any():
        return False
    # In the order of their first samples, equal levels have equal numbers.
    return np.array_equal(pd.factorize(column.codes)[0], pd.factorize(other.codes)[0])


# --- parts of names and dates --------------------------------------------------------------------


def _part(name: str, pieces: Sequence[str | None], column: Column) -> Column | None:
    """Return a part of each value as a column, None if it cannot tell anything."""
    values = [pieces[code] if code >= 0 else None for code in column.codes]
    numbers = np.array(
        [float(value) if value and re.fullmatch("[0-9]+", value) else np.nan for value in values]
    )
    has_numbers = np.isfinite(numbers).sum() >= 0.9 * max(len(values) - values.count(None), 1)
    part = make_column(name, values, "number" if has_numbers else "category", numbers)
    has_few_levels = part.is_repeated and part.levels <= MOST_LEVELS
    return part if part.varies and (has_few_levels or has_numbers) else None


def _parts_of_names(column: Column) -> list[Column]:
    """Return what stands between `MARKS`, the letters in front and the last number as columns."""
    labels = [str(label) for label in column.labels]
    pieces = [MARKS.split(label.strip()) for label in labels]
    parts = dict[str, list[str | None]]()
    for place in range(min(MOST_PARTS, max(map(len, pieces)))):
        parts[f"part {place + 1}"] = [row[place] if place < len(row) else None for row in pieces]
    parts["the last part"] = [row[-1] for row in pieces]
    fronts = (re.match(r"[^\W\d_]+", label) for label in labels)
    parts["the letters in front"] = [match[0] if match else None for match in fronts]
    parts["the first letter"] = [label[:1] for label in labels]
    numbers = (re.findall(r"\d+", label) for label in labels)
    parts["the running number"] = [row[-1] if row else None for row in numbers]
    different = list[Column]()
    for name, values in parts.items():
        part = _part(name, values, column)
        if part is not None and not any(is_equal(part, other) for other in different):
            different.append(part)
    return different


def _parts_of_dates(column: Column) -> list[Column]:
    """Return the year, month, day of the week and hour of dates as columns, where they vary."""
    near = np.isfinite(column.numbers) & (np.abs(column.numbers) < MOST_DAYS)
    seconds = np.where(near, np.round(column.numbers * 86400), np.nan)
    moments = pd.Series(pd.to_datetime(seconds, unit="s"))
    times = {"the year": moments.dt.year, "the month": moments.dt.month}
    times |= {"the day of the week": moments.dt.day_of_week, "the hour": moments.dt.hour}
    columns = [
        make_column(name, values, "number", values.to_numpy(np.float64))
        for name, values in times.items()
    ]
    return [part for part in columns if part.varies]
