"""Columns that name donors are found from the reads, whatever they and the groups are called."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from aam.config import DataConfig
from aam.data import donors
from aam.data.columns import Column, column_of_numbers, is_constant_within, read_column
from aam.data.donors import divided_donors, find_donors, likeness_of, likeness_within
from aam.data.inputs import metadata_from
from aam.data.splits import Split
from aam.data.table import make_table

DONORS, VISITS = 10, 4
IDS = [f"s{row}" for row in range(DONORS * VISITS)]
DONOR = [row // VISITS for row in range(len(IDS))]
VISIT = [*range(VISITS)] * DONORS
SITE = [donor % 3 for donor in DONOR]


def counts():
    """Reads of donors each of whom has ASVs of their own."""
    rng = np.random.default_rng(0)
    reads = rng.poisson(5, (len(IDS), 300)) * (rng.random((len(IDS), 300)) < 0.1)
    for donor in range(DONORS):
        rows = slice(donor * VISITS, (donor + 1) * VISITS)
        reads[rows, donor * 20 : donor * 20 + 20] += rng.poisson(9, (VISITS, 20))
    return csr_array(reads.astype(np.uint32))


ALIKE = likeness_of(counts())


def said(held_out, options=(), reads=None, **columns) -> list[str]:
    """What is said of a split by held-out rows."""
    subsets = ["test" if row in held_out else "train" for row in range(len(IDS))]
    split = Split(tuple(IDS), tuple(subsets), ("",) * len(IDS))
    table = make_table(
        counts() if reads is None else reads, IDS, [f"f{column}" for column in range(300)]
    )
    metadata = metadata_from(pd.DataFrame({"y": VISIT, **columns}, IDS))
    return divided_donors(table, metadata, [split], DataConfig(**dict(options)), ["y"])


@pytest.mark.parametrize("name", ["studyid", "PID", "day", "visit number", "pig", "cage_id", "Nr"])
@pytest.mark.parametrize("options", [{}, {"group_column": "wave"}, {"cv": "wave"}])
def test_donors_are_found_whatever_they_are_called_and_the_groups_are(name, options):
    values = {"numbers": DONOR, "text": [f"P{donor}" for donor in DONOR]}
    for donor in values.values():
        (text,) = said(range(0, 40, 4), options, **{name: donor, "wave": VISIT, "lat": "51,5"})
        assert text.startswith(f"10 values of {name!r} (")
        assert "lie on both sides of the split" in text


@pytest.mark.parametrize("number", [1, 3])
def test_only_values_on_both_sides_are_counted(number):
    held_out = [*range(20, 40), *range(0, 4 * number, 4)]
    (text,) = said(held_out, pig=DONOR)
    assert text.startswith(f"{number} values of 'pig'")


def test_whole_donors_and_columns_of_no_donor_say_nothing(monkeypatch):
    plate = np.random.default_rng(2).integers(0, 8, len(IDS))
    assert not said(range(0, 40, 4), plate=plate, id=IDS, site=SITE)
    assert not said((), pig=DONOR), "nothing is held out"
    monkeypatch.delattr(donors, "likeness_of")
    assert not said(range(20), pig=DONOR, site=SITE), "no divided column asks for the reads"


def test_subjects_that_studies_number_anew_are_divided_within_studies():
    study = ["a" if donor < 5 else "b" for donor in DONOR]
    pig = [donor % 5 for donor in DONOR]
    assert not said(range(20), {"study_column": "study"}, pig=pig, study=study, other=DONOR)


def column(name, values):
    return Column(
        name, pd.factorize(pd.Series(values))[0].astype(np.int64), np.full(len(values), np.nan)
    )


def names_of(*columns, ignored=()):
    return [found.column.name for found in find_donors(columns, ALIKE, ignored)]


def test_what_nests_in_donors_is_no_donor():
    house = [donor % 6 for donor in DONOR]
    columns = [column("house", house), column("donor", DONOR), column("visit", VISIT)]
    assert names_of(*columns) == ["donor"]
    assert names_of(*columns, ignored=["donor"]) == []


def test_a_season_does_not_explain_fish_whose_samples_are_of_different_sites():
    rng = np.random.default_rng(0)
    fish, site = np.repeat(np.arange(12), 2), np.tile([0, 1, 1, 2, 2, 0], 4)
    season = fish // 3
    reads = rng.poisson(3, (24, 500)) * (rng.random((24, 500)) < 0.1)
    for codes, first, width in ((fish, 0, 8), (site, 120, 60), (season, 320, 12)):
        for code in np.unique(codes):
            rows = np.flatnonzero(codes == code)
            start = first + width * code
            reads[rows, start : start + width] += rng.poisson(9, (len(rows), width))
    columns = [column(*pair) for pair in {"fish": fish, "site": site, "season": season}.items()]
    found = find_donors(columns, likeness_of(csr_array(reads)))
    assert [x.column.name for x in found] == ["fish"]


def test_columns_that_cross_each_other_both_remain():
    rng = np.random.default_rng(1)
    plate = np.arange(len(IDS)) % 8
    reads = counts().toarray().astype(np.int64)
    for number in range(8):
        rows = np.flatnonzero(plate == number)
        reads[rows, 220 + number * 10 : 230 + number * 10] += rng.poisson(9, (len(rows), 10))
    reads = csr_array(reads.astype(np.uint32))
    found = find_donors([column("donor", DONOR), column("plate", plate)], likeness_of(reads))
    assert {x.column.name for x in found} == {"donor", "plate"}
    (text,) = said(range(0, 40, 3), reads=reads, donor=DONOR, plate=plate)
    listed, _, advice = text.partition(" lie on both sides")
    assert [part.split(" (")[0] for part in sorted(listed.split("; "))] == [
        "10 values of 'donor'",
        "8 values of 'plate'",
    ]
    assert "--group-column it keeps" in advice


@pytest.mark.parametrize("step", [1, 30.5])
def test_a_time_is_ordered_and_numbered_donors_are_not(step):
    rng = np.random.default_rng(3)
    time, rows = np.repeat(np.arange(20), 3), np.arange(60)
    reads = rng.poisson(3, (60, 200)) * (rng.random((60, 200)) < 0.1)
    for row in rows:
        first = 8 * time[row]
        reads[row, first : first + 40] += rng.poisson(6, 40)
    time = column_of_numbers("day", time * step)
    (found,) = find_donors([time], likeness_of(csr_array(reads)))
    assert found.is_ordered
    (found,) = find_donors([column_of_numbers("pig", np.array(DONOR) * step)], ALIKE)
    assert not found.is_ordered


def test_likeness_is_that_of_all_pairs_next_to_pairs_of_the_same_strata():
    rng = np.random.default_rng(4)
    alike = rng.random((6, 6))
    alike = alike + alike.T
    codes, strata = np.array([0, 0, 1, 1, 0, -1]), np.array([0, 0, 0, 0, 1, 1])
    same = [alike[0, 1], alike[2, 3], alike[0, 4], alike[1, 4]]
    others = [alike[i, j] for i in (0, 1, 4) for j in (2, 3)]
    found = likeness_within(codes, alike)
    np.testing.assert_allclose(found, (np.mean(same), np.mean(others)))
    within = [np.mean([alike[i, j] for i in (0, 1) for j in (2, 3)])] * 2
    between = [np.mean([alike[2, 4], alike[3, 4]])] * 2
    found = likeness_within(codes, alike, strata)
    np.testing.assert_allclose(found, (np.mean(same), np.mean([*within, *between])))


def test_columns_are_read_as_numbers_dates_or_text():
    values = {"n": ["1", "", "1.0"], "d": ["2021-03-01", "2021-03-03", ""], "t": ["a", "1", ""]}
    metadata = metadata_from(pd.DataFrame(values, ["x", "y", "z"]))
    number, date, text = (read_column(metadata, name, ["z", "y", "x"]) for name in "ndt")
    assert number.codes.tolist() == [0, -1, 0]
    assert np.diff(date.numbers[1:]).tolist() == [-2.0]
    assert (text.levels, text.samples, text.is_number) == (2, 2, False)


def test_strata_are_levels_or_parts_of_numbers():
    assert column("c", list("abc")).strata.tolist() == [1, 2, 3]
    numbers = column_of_numbers("n", [*range(20), np.nan])
    assert np.bincount(numbers.strata).tolist() == [4, 4, 4, 4, 4, 1]


def test_a_column_is_constant_within_a_finer_one():
    donor, site, visit = column("d", DONOR), column("s", SITE), column("v", VISIT)
    assert is_constant_within(site, donor)
    assert not is_constant_within(donor, site)
    assert not is_constant_within(visit, donor)
