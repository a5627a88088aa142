"""Numbers and intervals as text for reading."""

from __future__ import annotations

import math

from aam.evaluate.bootstrap import Interval


def number(value: float) -> str:
    """Return three significant digits, and up to nine that stand before the point; a dash for NaN."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def too_few(count: int, unit: str = "group", of: str = "") -> str:
    """Return `1 group is too few`, `3 values of subject are too few`."""
    return f"{count} {unit}{of} is too few" if count == 1 else f"{count} {unit}s{of} are too few"


def with_limits(value: Interval) -> str:
    """Return a metric with its limits if it has any."""
    limits = "" if math.isnan(value.low) else f" ({number(value.low)} to {number(value.high)})"
    return number(value.value) + limits
