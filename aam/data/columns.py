"""Metadata columns as levels and numbers of samples, and how they nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics.cluster import contingency_matrix

from aam.data.splits import QUANTILES, strata_codes
from aam.io.dates import read_dates
from aam.io.metadata import Metadata
from aam.io.text import is_number
from aam.typing import Floats, Ids, Ints

# Share of the samples of each level that lie in one level of a coarser column.
NESTED = 0.98


class Column(NamedTuple):
    """A metadata column of N samples: the level of each sample, int64 [N], -1 where missing, and
    its number (days for dates), float64 [N], NaN where it has none.
    """

    name: str
    codes: Ints
    numbers: Floats

    @property
    def levels(self) -> int:
        """Number of values."""
        return int(self.codes.max(initial=-1)) + 1

    @property
    def samples(self) -> int:
        """Number of samples that have a value."""
        return int((self.codes >= 0).sum())

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers or dates."""
        return bool(np.isfinite(self.numbers).any())

    @property
    def strata(self) -> Ints:
        """Levels, or `QUANTILES` parts of more numbers; missing values are a stratum, int64 [N]."""
        if not self.is_number or self.levels <= QUANTILES:
            return self.codes + 1
        return strata_codes(self.numbers, len(self.numbers))


def read_column(metadata: Metadata, name: str, ids: Ids) -> Column:
    """Read a column of the samples `ids` as numbers, dates or text, whatever holds for all cells of
    the file.
    """
    values = pd.Series(metadata.values(name, ids), dtype=object)
    numbers = np.full(len(values), np.nan)
    if metadata.kinds[name] == "numeric" and all(map(is_number, values.dropna())):
        return column_of_numbers(name, metadata.numbers(name, ids))
    if (days := read_dates(metadata.values(name, metadata.ids))) is not None:
        numbers = pd.Series(days, metadata.ids).loc[list(ids)].to_numpy()
    return Column(name, pd.factorize(values, sort=True)[0].astype(np.int64), numbers)


def column_of_numbers(name: str, numbers: Sequence[float] | Floats | Ints) -> Column:
    """Return a column of numbers, NaN where missing."""
    values = np.asarray(numbers, np.float64)
    return Column(name, pd.factorize(values, sort=True)[0].astype(np.int64), values)


def is_constant_within(column: Column, finer: Column) -> bool:
    """Whether the samples of each level of a finer column are in one level of a column."""
    both = (finer.codes >= 0) & (column.codes >= 0)
    if not both.any():
        return False
    counts = contingency_matrix(finer.codes[both], column.codes[both])
    return bool(counts.max(axis=1).sum() >= NESTED * both.sum())


def nested_in(studies: Column | None, column: Column) -> Column:
    """Nest the values of a column in studies, which may use the same numbers for other donors; if
    they do, these are names.
    """
    if studies is None or studies.name == column.name:
        return column
    has_value = (column.codes >= 0) & (studies.codes >= 0)
    pairs = studies.codes * (column.levels + 1) + column.codes
    codes = np.full(len(pairs), -1, np.int64)
    codes[has_value] = np.unique(pairs[has_value], return_inverse=True)[1]
    if codes.max(initial=-1) + 1 == column.levels:
        return column
    return column._replace(codes=codes, numbers=np.full(len(codes), np.nan))
