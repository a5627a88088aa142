"""Dates in columns of text: one order of day, month and year for all values of a column."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from aam.io.text import without_accents
from aam.typing import Floats

# A time of day, which may follow a date; with or without seconds, half of the day and time zone.
TIME = (
    r"(?P<hour>\d{1,2})[:h](?P<minute>\d{2})(:(?P<second>\d{2}([.,]\d+)?))?"
    r" ?((?P<half>[ap])\.?m\.?)? ?(z|utc|gmt|(?P<zone>[+-]\d{2}(:?\d{2})?))?"
)
DATE_AND_TIME = re.compile(rf"(?P<date>.*?)((t|,? ){TIME})?")
WEEKDAY = re.compile(r"(mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? ")
# Dates that can be read in one way: with a year of four digits in front, or the name of a month.
YEAR, DAY = r"(?P<year>\d{4}|\d{2})", r"(?P<day>\d{1,2})(st|nd|rd|th)?"
NAME = r"(?P<month>[a-z]{3,})"
DATES = (
    re.compile(r"(?P<year>\d{4})([-/._ ])(?P<month>\d{1,2}|[a-z]{3,})\2(?P<day>\d{1,2})"),
    re.compile(rf"{DAY}[-/._ ]*{NAME}[-/._, ]*{YEAR}"),
    re.compile(rf"{NAME}[-/._ ]*{DAY}[-/._, ]+{YEAR}"),
)
# Three numbers, and the orders in which they can be read.
THREE_NUMBERS = re.compile(r"(\d{1,2})([-/._ ])(\d{1,2})\2(\d{4}|\d{2})")
ORDERS = ("day, month, year", "month, day, year", "year, month, day")
# Orders by preference: between slashes the month stands first, as spreadsheets of the USA write it.
SLASHES, OTHER_MARKS = (1, 0, 2), (0, 1, 2)
# Beginnings of the names of months in English, Dutch, German, French, Italian, Spanish and
# Portuguese, without accents.
MONTHS = (
    ("jan", "ene", "gen"),
    ("feb", "fev"),
    ("mar", "mrt", "maart"),
    ("apr", "avr", "abr"),
    ("may", "mai", "mag", "mei"),
    ("jun", "juin", "giu"),
    ("jul", "juil", "lug"),
    ("aug", "aou", "ago"),
    ("sep", "set"),
    ("oct", "okt", "ott", "out"),
    ("nov",),
    ("dec", "dez", "dic"),
)
# As in POSIX, a year of two digits is 1969 to 2068.
FIRST_YEAR = 69
# Share of the values of a column that are dates, from which it is a column of dates.
LEAST_DATES = 0.9

EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, eq=False)
class Dates:
    """Dates of a column, as `read_dates` reads them.

    Attributes
    ----------
    days : float64 [N]
        Days since 1970-01-01, with a fraction for the time of day (UTC); NaN for a value that is
        missing or not a date.
    order : str
        The one of `ORDERS` in which dates such as 03.04.2021 are read; "" without such dates.
    note : str
        A sentence that names the order where every value allows another order as well, else "".
    """

    days: Floats
    order: str = ""
    note: str = ""


def _plain(text: str) -> str:
    """Return text in lower case without accents; "5. 3. 2021" without its blanks."""
    plain = without_accents(text.strip())
    return re.sub(r"(?<=\d)\. (?=\d)", ".", WEEKDAY.sub("", plain))


def _month(text: str) -> int:
    """Return the number of a month, 0 for no month."""
    if text.isdigit():
        return int(text)
    names = enumerate(MONTHS, start=1)
    return next((month for month, beginnings in names if text.startswith(beginnings)), 0)


def _day(year: str, month: str, day: str) -> float:
    """Return the days since `EPOCH`, NaN where there is no such day."""
    number = int(year)
    if len(year) <= 2:
        number += 1900 if number >= FIRST_YEAR else 2000
    try:
        return float((date(number, _month(month), int(day)) - EPOCH).days)
    except ValueError:
        return math.nan


def _part_of_day(match: re.Match[str]) -> float:
    """Return the time of day (UTC) of a match of `DATE_AND_TIME` in days; NaN for no such time."""
    if match["hour"] is None:
        return 0.0
    hour, minute = int(match["hour"]), int(match["minute"])
    second = float((match["second"] or "0").replace(",", "."))
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"] == "p") if 1 <= hour <= 12 else 24
    if hour >= 24 or minute >= 60 or second >= 60:
        return math.nan
    zone = (match["zone"] or "+00").replace(":", "").ljust(5, "0")
    east = (60 * int(zone[1:3]) + int(zone[3:5])) * (-1 if zone[0] == "-" else 1)
    return (60 * hour + minute + second / 60 - east) / 1440


def _days(value: str) -> tuple[list[float], str]:
    """Return the day of a value by each of `ORDERS`, and the mark between its three numbers."""
    match = DATE_AND_TIME.fullmatch(_plain(value))
    text, time = (match["date"], _part_of_day(match)) if match else ("", 0.0)
    if numbers := THREE_NUMBERS.fullmatch(text):
        first, mark, middle, last = numbers.groups()
        by_year = _day(first, middle, last) if len(first) == len(last) == 2 else math.nan
        days = [_day(last, middle, first), _day(last, first, middle), by_year]
        return [day + time for day in days], mark
    parts = next(filter(None, (pattern.fullmatch(text) for pattern in DATES)), None)
    day = _day(parts["year"], parts["month"], parts["day"]) + time if parts else math.nan
    return [day] * len(ORDERS), ""


def _note(values: list[str], days: Floats, order: int) -> str:
    """Return the note of `Dates` on values of three numbers, whose `days` are [n, orders]."""
    fits = [place for place in range(len(ORDERS)) if np.isfinite(days[:, place]).all()]
    alternatives = [place for place in fits if (days[:, place] != days[:, order]).any()]
    if order not in fits or not alternatives:
        return ""
    first = int(np.argmax((days[:, alternatives] != days[:, [order]]).any(axis=1)))
    day = date.fromordinal(EPOCH.toordinal() + math.floor(days[first, order]))
    listed = " or ".join(ORDERS[place] for place in alternatives)
    reading = f"dates are read as {ORDERS[order]} ({values[first]!r} is {day})"
    return f"{reading}, and all of them can also be read as {listed}; write them as 2021-12-31"


def read_dates(values: Sequence[str | None]) -> Dates | None:
    """Read the values of a column as dates with or without a time of day, None where missing.

    The year stands in front or at the end, the month is a number or a name. Dates of three numbers
    such as 03.04.2021 are read in one order, that in which most of them are dates. If the day and
    the month may both stand first, the day does, but for dates with slashes.

    Returns
    -------
    Dates or None
        None where fewer than `LEAST_DATES` of the values that are not missing are dates.
    """
    texts = [value for value in dict.fromkeys(values) if value is not None]
    days_and_marks = [_days(text) for text in texts]
    days = np.array([by_order for by_order, _ in days_and_marks]).reshape(-1, len(ORDERS))
    marks = [mark for _, mark in days_and_marks]
    rows = [row for row, mark in enumerate(marks) if mark]
    preference = SLASHES if 2 * marks.count("/") > len(rows) else OTHER_MARKS
    order = max(preference, key=np.isfinite(days[rows]).sum(axis=0).__getitem__)
    day_of = dict(zip(texts, days[:, order].tolist(), strict=True))
    column = np.array([math.nan if value is None else day_of[value] for value in values])
    number = sum(value is not None for value in values)
    if number == 0 or np.isfinite(column).sum() < LEAST_DATES * number:
        return None
    if not rows:
        return Dates(column)
    return Dates(column, ORDERS[order], _note([texts[row] for row in rows], days[rows], order))
