"""Dates of columns: one order for all values, and the note where two orders fit."""

from __future__ import annotations

from datetime import date, datetime, timezone

import numpy as np
import pytest

from aam.io.dates import read_dates


def days(*dates: str) -> list[float]:
    return [(date.fromisoformat(text) - date(1970, 1, 1)).days for text in dates]


@pytest.mark.parametrize(
    ("values", "expected", "order"),
    [
        (["03.04.2021", "25.12.2020"], ["2021-04-03", "2020-12-25"], "day, month, year"),
        (["3/4/2021", "25/12/2020"], ["2021-04-03", "2020-12-25"], "day, month, year"),
        (["3/4/2021", "12/25/2020"], ["2021-03-04", "2020-12-25"], "month, day, year"),
        (["03_04_2021", "17_01_2021"], ["2021-04-03", "2021-01-17"], "day, month, year"),
        (["3-4-21", "17-1-69"], ["2021-04-03", "1969-01-17"], "day, month, year"),
        (["21-04-03", "95-12-31"], ["2021-04-03", "1995-12-31"], "year, month, day"),
        (["3. 4. 2021", "31. 12. 2020"], ["2021-04-03", "2020-12-31"], "day, month, year"),
        # A year in front and the name of a month leave no choice; the others still have one order.
        (["2021-04-03", "13.04.2021"], ["2021-04-03", "2021-04-13"], "day, month, year"),
        (["2021/4/3", "2020.12.25"], ["2021-04-03", "2020-12-25"], ""),
        (["3 Apr 2021", "April 4, 2021"], ["2021-04-03", "2021-04-04"], ""),
        (["5. März 2021", "6-ago-2021"], ["2021-03-05", "2021-08-06"], ""),
        (["07 févr. 2021", "2021-Mai-08"], ["2021-02-07", "2021-05-08"], ""),
        (["Mon, 1 Mar 2021", "09DEC2021"], ["2021-03-01", "2021-12-09"], ""),
    ],
)
def test_one_order_holds_for_a_column(values, expected, order):
    dates = read_dates(values)
    assert dates is not None
    np.testing.assert_array_equal(dates.days, days(*expected))
    assert (dates.order, dates.note) == (order, "")


@pytest.mark.parametrize(
    ("values", "read", "other"),
    [
        (["03.04.2021", "05.06.2021"], "day, month, year ('03.04.2021' is 2021-04-03)", "month"),
        (["5_5_2021", "1_2_2021"], "day, month, year ('1_2_2021' is 2021-02-01)", "month, day"),
        (
            ["03/04/2021", None, "05/06/2021"],
            "month, day, year ('03/04/2021' is 2021-03-04)",
            "day",
        ),
    ],
)
def test_where_every_value_allows_two_orders_the_note_says_which_was_taken(values, read, other):
    dates = read_dates(values)
    assert dates is not None
    assert dates.note.startswith(f"dates are read as {read}")
    assert f"can also be read as {other}" in dates.note


def test_equal_readings_need_no_note():
    dates = read_dates(["05.05.2021", "07/07/2021"])
    assert dates is not None
    assert dates.note == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021-04-03T06:30:00Z", datetime(2021, 4, 3, 6, 30)),
        ("2021-04-03 06:30:15.5", datetime(2021, 4, 3, 6, 30, 15, 500000)),
        ("2021-04-03T06:30+02:00", datetime(2021, 4, 3, 4, 30)),
        ("2021-04-03 06:30 -0330", datetime(2021, 4, 3, 10, 0)),
        ("3.4.2021 18h05", datetime(2021, 4, 3, 18, 5)),
        ("3.4.2021, 6:05 p.m.", datetime(2021, 4, 3, 18, 5)),
        ("3.4.2021 12:00 AM", datetime(2021, 4, 3)),
    ],
)
def test_times_of_day_are_parts_of_days(text, expected):
    dates = read_dates([text])
    assert dates is not None
    seconds = expected.replace(tzinfo=timezone.utc).timestamp()
    np.testing.assert_allclose(dates.days, [seconds / 86400], rtol=0, atol=1e-9)


def test_a_few_values_may_be_no_dates():
    dates = read_dates([*(f"{day}.04.2021" for day in range(11, 21)), "31.02.2021", None])
    assert dates is not None
    assert np.isnan(dates.days).tolist() == [False] * 10 + [True, True]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        ["gut", "2021-04-03"],
        ["10.5", "11.2"],
        ["2021", "2022"],
        ["1.2.3.4"],
        ["31.02.2021"],
        ["2021-04-03 25:00"],
        ["2021-04-03 13:00 pm"],
        ["03.Foo.2021"],
        ["0000-00-00"],
        ["P1-2-03"],
    ],
)
def test_other_values_are_no_dates(values):
    assert read_dates(values) is None
