"""ISO dates of columns, and what is no date."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import pytest

from aam.io.dates import read_dates


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021-04-03", datetime(2021, 4, 3)),
        ("1969-12-31", datetime(1969, 12, 31)),
        ("2021-04-03T06:30:00Z", datetime(2021, 4, 3, 6, 30)),
        ("2021-04-03 06:30:15.5", datetime(2021, 4, 3, 6, 30, 15, 500000)),
        ("2021-04-03T06:30+02:00", datetime(2021, 4, 3, 4, 30)),
        ("2021-04-03 06:30-0330", datetime(2021, 4, 3, 10, 0)),
    ],
)
def test_dates_with_and_without_a_time_of_day(text, expected):
    days = read_dates([None, text])
    assert days is not None
    seconds = expected.replace(tzinfo=timezone.utc).timestamp()
    np.testing.assert_allclose(days, [np.nan, seconds / 86400], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        ["gut", "2021-04-03"],
        ["10.5", "11.2"],
        ["2021", "2022"],
        ["2021-04"],
        ["20210403"],
        ["2021-4-3"],
        ["03.04.2021"],
        ["3/4/2021"],
        ["3 Apr 2021"],
        ["2021-02-31"],
        ["2021-04-03 25:00"],
        ["2021-04-03 6:05 pm"],
        ["2021-04-03x"],
        ["0000-00-00"],
    ],
)
def test_a_column_with_other_values_is_no_column_of_dates(values):
    assert read_dates(values) is None
