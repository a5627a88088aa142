"""Columns that name donors, found from the reads and not from the names of columns.

Samples with the same value of such a column are more alike than others, also next to others that
are equal in any other column, whatever the column is called.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.metrics.pairwise import cosine_similarity

from aam.config import DataConfig
from aam.data.columns import Column, is_constant_within, nested_in, read_column
from aam.data.splits import QUANTILES, Split
from aam.device.rng import generator
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.typing import Floats, Ids, Ints

# Fewer values are kinds of donors, such as cow and pig, or too few to be divided. Values with more
# samples on average are those of a site, a study or a batch.
LEAST_DONORS, MOST_PER_DONOR = 6, 30
# Chance of a false alarm over all candidates, permutations, and pairs of samples that are compared.
DONOR_ALPHA, ORDERS, MOST_SAMPLED = 0.01, 999, 3_000
# A column is dropped early if a few permutations are not above this chance.
FEW_ORDERS, EARLY_ALPHA = 99, 0.1
# Another column explains a candidate if, next to samples that are equal in it, less than this share
# of the likeness is left; below `SURELY_LEFT`, also if it can be chance.
LEAST_LEFT, SURELY_LEFT, ALPHA_WITHIN = 0.5, 0.8, 0.05
# Strata of fewer samples on average explain nothing.
LEAST_OF_STRATUM = 3
# Numbers are ordered, as times are, if samples of successive values are alike by this share, or if
# less than `LEAST_LEFT` of the likeness is left next to a few neighbouring values.
ORDERED, NEAR_VALUES = 0.6, 3
# Likeness is compared within the strata of one other column of at most this number of strata.
MOST_KINDS = 10


# Samples that are compared, and columns that are named.
MOST_COMPARED, MOST_DIVIDED = 1_000, 3


class Likeness(NamedTuple):
    """Mean likeness (0 to 1) of two samples with the same value of a column, and with others."""

    same: float = np.nan
    others: float = np.nan

    @property
    def excess(self) -> float:
        """How much more alike samples with the same value are."""
        return self.same - self.others


class Donors(NamedTuple):
    """A column whose values may name donors, and whether it is ordered, as a time is."""

    column: Column
    likeness: Likeness
    is_ordered: bool


def likeness_of(counts: sparse.csr_array | sparse.csr_matrix) -> Floats:
    """Likeness of samples, float64 [N, N]: the cosine of their log counts, in which ASVs of few
    samples weigh more, by the logarithm of their share (Jones 1972).
    """
    logs = sparse.csr_array(counts, dtype=np.float64).log1p()
    times = np.bincount(logs.indices, minlength=logs.shape[1])
    weights = np.log(logs.shape[0] / np.maximum(times, 1))
    return np.asarray(cosine_similarity(logs.multiply(weights)))


def can_be_donors(column: Column) -> bool:
    """Whether the number of values is that of donors with several samples each."""
    return LEAST_DONORS <= column.levels < column.samples <= MOST_PER_DONOR * column.levels


def likeness_within(codes: Ints, alike: Floats, strata: Ints | None = None) -> Likeness:
    """Likeness of pairs of samples with the same code, next to pairs of other codes.

    With `strata` each pair is compared with pairs of the same two strata; pairs without such others
    are left out. Negative codes are missing.
    """
    rows = np.flatnonzero(codes >= 0)
    if not len(rows):
        return Likeness()
    strata = np.zeros(len(codes), np.int64) if strata is None else strata
    places = np.unique(strata[rows], return_inverse=True)[1]
    is_same = (codes[rows, None] == codes[rows]).astype(np.float64)
    block = alike[np.ix_(rows, rows)]
    own_sums, own_sizes = _sums(places, block * is_same)[0], _sums(places, is_same)[0]
    sums, sizes = _sums(places, block)
    other_sizes = sizes - own_sizes
    used = (own_sizes > 0) & (other_sizes > 0)
    if not used.any():
        return Likeness()
    others = (sums - own_sums)[used] / other_sizes[used]
    weights = own_sizes[used] / own_sizes[used].sum()
    return Likeness(float(own_sums[used].sum() / own_sizes[used].sum()), float(others @ weights))


def _sums(codes: Ints, alike: Floats) -> tuple[Floats, Floats]:
    """Sums of the likeness of two different samples by their codes, and numbers of pairs [L, L]."""
    indicators = sparse.csr_array((np.ones(len(codes)), (codes, np.arange(len(codes)))))
    sums = np.asarray(indicators @ (indicators @ alike).T)
    sizes = np.bincount(codes).astype(np.float64)
    pairs = sizes[:, None] * sizes - np.diag(sizes)
    return sums - np.diag(np.bincount(codes, np.diagonal(alike))), pairs


def _pairs(codes: Ints, random: np.random.Generator) -> Ints:
    """All pairs of samples with the same code, or `MOST_SAMPLED` of them, [2, pairs]."""
    is_same = (codes[:, None] == codes) & (codes >= 0)
    pairs = np.stack(np.nonzero(np.triu(is_same, 1)))
    if pairs.shape[1] > MOST_SAMPLED:
        pairs = pairs[:, random.choice(pairs.shape[1], MOST_SAMPLED, replace=False)]
    return pairs


def _chance(
    pairs: Ints, strata: Ints, alike: Floats, number: int, random: np.random.Generator
) -> float:
    """Chance that pairs of samples permuted within strata are as alike."""
    by_stratum, reached = np.argsort(strata, kind="stable"), 0
    observed, order = float(alike[tuple(pairs)].mean()), np.empty(len(strata), np.int64)
    for _ in range(number):
        order[by_stratum] = np.lexsort((random.random(len(strata)), strata))
        reached += float(alike[tuple(order[pairs])].mean()) >= observed - 1e-6
    return (1 + reached) / (1 + number)


def find_donors(
    columns: Sequence[Column],
    alike: Floats,
    ignored: Collection[str] = (),
    studies: Column | None = None,
) -> list[Donors]:
    """Find the columns whose values may name donors, and that no other column explains.

    Parameters
    ----------
    columns : sequence of Column
        All that is known of the samples.
    alike : float64 [N, N]
        `likeness_of` the samples.
    ignored : collection of str
        Columns that are not returned, such as the target; they may explain others.
    studies : Column, optional
        The column of studies, which may use the same values for other donors.
    """
    nested = [nested_in(studies, column) for column in columns]
    candidates = [column for column in nested if can_be_donors(column)]
    if not candidates:
        return []
    random = generator(0, "donors")
    alpha = max(DONOR_ALPHA / len(candidates), 1 / (ORDERS + 1))
    strongest, found = _strongest(columns, alike), list[tuple[Column, Floats]]()
    for column in candidates:
        crossing = next((other for other in strongest if _cross(other, column)), None)
        compared = alike if crossing is None else _within_strata(crossing.strata, alike)
        if _p(column.codes, compared, random) <= alpha:
            found.append((column, compared))
    # What a finer column explains explains nothing.
    found.sort(key=lambda pair: (-pair[0].levels, -pair[0].samples))
    donors = list[Donors]()
    for column, compared in found:
        finer = [other.column for other in donors if is_constant_within(column, other.column)]
        if any(not _differs_between(column, other, alike, alpha, random) for other in finer):
            continue
        others = [c for c in columns if c.name != column.name]
        if not any(_is_explained(column, other, compared, random) for other in others):
            within = likeness_within(column.codes, alike)
            donors.append(Donors(column, within, _is_ordered(column, within, alike)))
    return [found for found in donors if found.column.name not in ignored]


def _strongest(columns: Sequence[Column], alike: Floats) -> list[Column]:
    """Columns of a few strata, those that tell most of the likeness of pairs of samples first."""
    number = len(alike) * (len(alike) - 1)
    squares = float((alike**2).sum() - (np.diagonal(alike) ** 2).sum())
    left = list[tuple[float, Column]]()
    for column in columns:
        places = np.unique(column.strata, return_inverse=True)[1]
        kinds = (strata := int(places.max()) + 1) * (strata + 1)
        if 1 < strata <= MOST_KINDS and kinds < number:
            sums, pairs = _sums(places, alike)
            rest = squares - float((sums**2 / np.maximum(pairs, 1)).sum())
            left.append((rest / (number - kinds), column))
    return [column for rest, column in sorted(left, key=lambda pair: pair[0])]


def _within_strata(strata: Ints, alike: Floats) -> Floats:
    """Likeness without the mean of the pairs of the same two strata."""
    places = np.unique(strata, return_inverse=True)[1]
    sums, pairs = _sums(places, alike)
    means = np.divide(sums, pairs, out=np.zeros_like(sums), where=pairs > 0)
    return np.asarray(alike - means[places][:, places])


def _cross(other: Column, column: Column) -> bool:
    """Whether the strata of another column and a column are not nested in each other."""
    strata = other._replace(codes=other.strata)
    return not (is_constant_within(column, strata) or is_constant_within(strata, column))


def _holds(other: Column, column: Column) -> bool:
    """Whether the strata of another column are those of a column, or finer."""
    return is_constant_within(column, other._replace(codes=other.strata))


def _p(codes: Ints, alike: Floats, random: np.random.Generator) -> float:
    """Chance that permutations of codes are as alike; few are made where it is not small."""
    pairs, has_code = _pairs(codes, random), (codes >= 0).astype(np.int64)
    if not pairs.size:
        return 1.0
    p = _chance(pairs, has_code, alike, FEW_ORDERS, random)
    return p if p > EARLY_ALPHA else _chance(pairs, has_code, alike, ORDERS, random)


def _differs_between(
    column: Column, finer: Column, alike: Floats, alpha: float, random: np.random.Generator
) -> bool:
    """Whether samples of different values of a finer column are alike too, if a column in which
    these are nested has one value.
    """
    both = (column.codes >= 0) & (finer.codes >= 0)
    levels, places = np.unique(finer.codes[both], return_inverse=True)
    sums, pairs = _sums(places, alike[np.ix_(both, both)])
    codes = np.full(len(levels), -1, np.int64)
    codes[places] = column.codes[both]
    means = np.divide(sums, pairs, out=np.zeros_like(sums), where=pairs > 0)
    return _p(codes, means, random) <= alpha


def _is_explained(
    column: Column, other: Column, alike: Floats, random: np.random.Generator
) -> bool:
    """Whether samples with the same value of a column are hardly more alike than others that are
    equal in another column.
    """
    strata = other.strata
    number = len(np.unique(strata))
    if _holds(other, column) or not 2 <= number <= len(strata) / LEAST_OF_STRATUM:
        return False
    within = likeness_within(column.codes, alike, strata)
    if np.isnan(within.excess):
        return False
    left = within.excess / max(likeness_within(column.codes, alike).excess, 1e-9)
    if left < LEAST_LEFT or left >= SURELY_LEFT:
        return left < LEAST_LEFT
    pairs, within_strata = _pairs(column.codes, random), strata * 2 + (column.codes >= 0)
    return _chance(pairs, within_strata, alike, FEW_ORDERS, random) > ALPHA_WITHIN


def _is_ordered(column: Column, within: Likeness, alike: Floats) -> bool:
    """Whether samples of successive numbers are nearly as alike as those of the same number."""
    rows = np.flatnonzero(np.isfinite(column.numbers) & (column.codes >= 0))
    if not len(rows):
        return False
    places = np.unique(column.numbers[rows], return_inverse=True)[1]
    block = alike[np.ix_(rows, rows)]
    sums, pairs = _sums(places, block)
    successive = float(np.diagonal(sums, 1).sum() / max(np.diagonal(pairs, 1).sum(), 1))
    parts = int(np.clip((places.max() + 1) // NEAR_VALUES, 1, QUANTILES))
    near = likeness_within(places, block, places * parts // (places.max() + 1))
    is_smooth = successive - within.others >= ORDERED * within.excess
    return is_smooth or near.excess < LEAST_LEFT * within.excess


def divided_donors(
    table: AmpliconTable,
    metadata: Metadata,
    splits: Sequence[Split],
    data: DataConfig,
    targets: Ids,
) -> list[str]:
    """One sentence about the columns that may name donors and whose values, within studies, lie on
    both sides of a split: samples that a model learns from, and held-out ones.
    """
    ignored = {*targets, *filter(None, (data.batch_column, data.study_column))}
    rows = np.flatnonzero([name in metadata for name in table.sample_ids])
    if len(rows) > MOST_COMPARED:
        rows = np.sort(generator(0, "samples").choice(rows, MOST_COMPARED, replace=False))
    ids = [table.sample_ids[row] for row in rows.tolist()]
    read = {name: read_column(metadata, name, ids) for name in metadata.columns}
    studies, text = read.get(data.study_column or ""), metadata.text.astype(object)
    candidates = {name for name in read if can_be_donors(nested_in(studies, read[name]))}
    sides = [dict.fromkeys(x.not_held_out, 0) | dict.fromkeys(x.held_out, 1) for x in splits]
    by_split = pd.DataFrame({place: text.index.map(side) for place, side in enumerate(sides)})
    by_split.index, study = text.index, text.get(data.study_column, pd.Series("", text.index))
    divided = {
        name: (by_split.groupby([text[name], study.fillna("")]).nunique() > 1).any(axis=1).sum()
        for name in candidates - ignored
    }
    if not any(divided.values()):
        return []
    alike = likeness_of(table.counts[rows])
    listed = [
        f"{divided[column.name]} values of {column.name!r} ({within.same:.2f} and "
        f"{within.others:.2f} of 1)"
        for column, within, is_ordered in find_donors([*read.values()], alike, ignored, studies)
        if divided[column.name] and not is_ordered
    ]
    if not listed:
        return []
    return [
        f"{'; '.join(listed[:MOST_DIVIDED])} lie on both sides of the split, and two samples with "
        "the same value are more alike than others. If a column names donors, the model is tested "
        "on donors that it knows, and its results are too good for others; as --group-column it "
        "keeps the samples of a donor together"
    ]
