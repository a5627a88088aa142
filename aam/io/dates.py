"""ISO 8601 dates in columns of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

import numpy as np

from aam.typing import Floats

# 2021-12-31, with or without a time of day and its zone (UTC if there is none).
ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d(?:\.\d+)?))?(?:Z|([+-]\d\d):?(\d\d))?)?",
    re.ASCII,
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _days(value: str) -> float | None:
    """Days since `EPOCH` of an ISO date; None for other text."""
    if (match := ISO.fullmatch(value)) is None:
        return None
    date, time, second, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(
            f"{date} {time or '00:00'}{hours or '+00'}:{minutes or '00'}"
        )
    except ValueError:
        return None
    return (moment - EPOCH) / timedelta(days=1) + float(second or 0) / 86_400


def read_dates(values: Iterable[str | None]) -> Floats | None:
    """Read a column of dates, None where missing.

    Returns
    -------
    float64 [N] or None
        Days since 1970-01-01 (UTC), with a fraction for the time of day, NaN where missing; None if
        a value is no ISO date, or all are missing.
    """
    texts = [*values]
    days = {text: _days(text) for text in {*texts} if text is not None}
    if not days or None in days.values():
        return None
    return np.array([np.nan if text is None else days[text] for text in texts], np.float64)
