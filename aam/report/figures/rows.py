"""Values with intervals, one below the other, each under its name: forest plots, and errors by level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aam.evaluate.bootstrap import Interval
from aam.evaluate.numbers import with_limits
from aam.report.figures.plot import BOTTOM, TOP, WIDTH, Plot, span

# Height of a row: its name, and its interval below it.
ROW = 34.0

# Characters of a name and of its value, which stand in one line; and the last ones of a name, which tell names apart.
LONGEST_NAME, LONGEST_LINE, TAIL = 34, 56, 10


@dataclass(frozen=True)
class Row:
    """A name, a value with limits, and the number of its colour."""

    name: str
    value: Interval
    level: int = 0
    text: str | None = None


def fitted(name: str, value: str) -> str:
    """Return a name, cut in its middle where it would run into its value on the same line."""
    most = min(LONGEST_NAME, LONGEST_LINE - len(value))
    return name if len(name) <= most else f"{name[: most - TAIL - 1]}…{name[-TAIL:]}"


def draw_rows(rows: Sequence[Row], title: str, line: float | None = None, zero: bool = False) -> Plot:
    """Return a plot of the rows; `line` is a value that all are held against; with `zero` the axis begins at 0."""
    ends = [end for row in rows for end in (row.value.value, row.value.low, row.value.high)]
    low, high = span([*ends, *([] if line is None else [line])])
    if zero:
        low, high = 0.0, max(high, 1e-9)
    plot = Plot((low, high), (0.0, 1.0), (WIDTH, TOP + ROW * len(rows) + BOTTOM), left=16.0)
    plot.x_axis(title)
    for number, row in enumerate(rows):
        top = TOP + ROW * number
        value = with_limits(row.value) if row.text is None else row.text
        plot.text(plot.x.start, top + 12, fitted(row.name, value), "small strong" if not number else "small")
        plot.text(plot.x.end, top + 12, value, "small soft end")
        middle = top + 22
        if line is not None and math.isfinite(line):
            # Below the name, which it would cross.
            plot.line((plot.x(line), middle - 6), (plot.x(line), middle + 6), "inkline", 1.2)
        if math.isfinite(row.value.low):
            ends_at = plot.x(row.value.low), plot.x(row.value.high)
            plot.line((ends_at[0], middle), (ends_at[1], middle), f"s{row.level}", 2)
        if math.isfinite(row.value.value):
            plot.mark(plot.x(row.value.value), middle, row.level)
    return plot
