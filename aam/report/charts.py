"""Tables and charts: what pages, files and terminals show; charts are SVG in a page, SVG and PNG
for a paper.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from aam.evaluate.intervals import Interval, number, with_limits
from aam.files.atomic import atomic_file, write_text
from aam.typing import Ints

# What a cell of a column of numbers begins with, if it is not empty or a dash.
NUMERIC = re.compile(r"^$|^-$|^[-<]?\.?\d")

# The theme of all figures.
LOOK = json.loads((Path(__file__).parent / "templates" / "look.json").read_text(encoding="utf-8"))

# Colours that can be told apart without red and green (Paul Tol's bright and vibrant schemes).
LIGHT = LOOK["range"]["category"]

# Text and lines that matter, and softer ones.
INK, SOFT = "#222222", "#5a5a5a"

# Levels differ in their markers too, for a print without colours.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down")

# Of a whole figure with its axes, and of the plot in it, in pixels: three stand side by side on a
# page of 1280 pixels, one on a phone, and text is hardly scaled in either.
CHART_WIDTH, HEIGHT = 356, 285

# Of more samples than this a random part is drawn.
MOST_POINTS = 2000

# The look of a band.
INTERVAL = {"color": SOFT, "opacity": 0.18, "orient": "horizontal"}

DASHED = {"color": SOFT, "strokeWidth": 1.2, "strokeDash": [5, 4]}

# Height of an interval below its name and value, which stand closer to it than to the next name;
# the longest name that a line has room for.
ROW_HEIGHT, NAME_SIZE, LONGEST_NAME = 52, 12, 48

# A chart or layers of charts of altair, whose chained methods type checkers cannot follow.
Chart = Any

Records = Iterable[Mapping[str, object]]

# Colours by number, and what each means.
Legend = Sequence[tuple[int, str]]


@dataclass(frozen=True, eq=False)
class Table:
    """A data frame under a title; its first column names the row.

    Cells are text, numbers, or values with limits. A frame without names of columns has no header.
    `name` is that of the kind of table.
    """

    title: str
    frame: pd.DataFrame
    name: str = ""

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns."""
        has_names = not isinstance(self.frame.columns, pd.RangeIndex)
        return tuple(map(str, self.frame.columns)) if has_names else ()

    @cached_property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells as text."""
        return [tuple(map(cell_text, row)) for row in self.frame.itertuples(index=False, name=None)]

    def to_dict(self) -> dict[str, Any]:
        """The table for a page; ``words`` are the columns that hold text, others hold numbers."""
        columns = enumerate(zip(*self.rows, strict=True))
        words = [at for at, cells in columns if not all(map(NUMERIC.match, cells))]
        parts = {"header": self.header, "rows": self.rows, "words": words}
        return {"title": self.title, "name": self.name, **parts}


def cell_text(value: object) -> str:
    """The text of a cell of a table."""
    if isinstance(value, Interval):
        return with_limits(value)
    return number(value) if isinstance(value, float) else str(value)


def printable(text: str) -> str:
    """Return the text without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def plain_lines(table: Table) -> list[str]:
    """A table for a terminal: the first column on the left, others on the right."""
    rows = (table.header, *table.rows)
    cells = np.array([[printable(cell) for cell in row] for row in rows])
    columns = [np.char.rjust(column, np.char.str_len(column).max()) for column in cells.T]
    columns[0] = np.char.ljust(cells[:, 0], np.char.str_len(cells[:, 0]).max())
    return [printable(table.title), *map("  ".join, zip(*columns, strict=True))]


def middle_cut(text: str, most: int) -> str:
    """Cut a text to at most `most` characters in its middle, because the last ones often
    distinguish names.
    """
    return text if len(text) <= most else f"{text[: most - 11]}…{text[-10:]}"


# --- figures ------------------------------------------------------------------------------------


def _drawable(part: Any) -> Any:
    """Return a part of a chart without control characters in its texts: they would end the
    process.

    A number that is not finite becomes a missing one.
    """
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, float):
        return part if math.isfinite(part) else None
    if isinstance(part, dict):
        return {name: _drawable(value) for name, value in part.items()}
    return [_drawable(value) for value in part] if isinstance(part, list) else part


def _compact(svg: str) -> str:
    """Return the SVG with coordinates of one digit behind the point, a third as long; texts for a
    pointer become ``data-tip``.
    """

    def shortened(attribute: re.Match[str]) -> str:
        without_tiny = re.sub(r"-?[\d.]+e-\d+", "0", attribute[0])
        return re.sub(r"(\.\d)\d+", r"\1", without_tiny)

    roles = r'aria-label=("[^"]*") role="graphics-symbol" aria-roledescription="[^"]*"'
    svg = re.sub(roles, r"data-tip=\1", svg)
    unread = r"role|aria-[a-z]+|class|pointer-events|stroke-miterlimit|xmlns:xlink|version"
    svg = re.sub(rf' ({unread})="[^"]*"', "", svg)
    return re.sub(r' (?:transform|d|[xy][12]?|width|height)="[^"]*"', shortened, svg)


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure of a report.

    Attributes
    ----------
    name : str
        Name of its files, without suffix.
    title : str
        What it shows.
    chart : altair.Chart or altair.LayerChart
        A mark with ``aria=True`` and a `Description` shows it to a pointer.
    caption : str
        Explanation below the title.
    """

    name: str
    title: str
    chart: Chart
    caption: str = ""

    @cached_property
    def svg(self) -> str:
        """The figure as an SVG file: on white, with title and caption."""
        chart = _drawable({**self.chart.to_dict(validate=False), "config": LOOK})
        title, caption = escape(self.title), escape(self.caption)
        words = printable(f"<title>{title}</title><desc>{caption}</desc>")
        return _compact(vl_convert.vegalite_to_svg(chart)).replace(">", f">{words}", 1) + "\n"

    def to_dict(self) -> dict[str, str]:
        """The figure for a page."""
        return {"title": self.title, "caption": self.caption, "svg": self.inline}

    @property
    def inline(self) -> str:
        """The figure as an element of a page."""
        start, body = self.svg.rstrip("\n").split("</desc>", 1)
        box = re.findall('viewBox="[^"]*"', start)[0]
        title = escape(printable(self.title))
        return f'<svg class="fig" role="img" aria-label="{title}" {box}>{body}'

    def write(self, folder: Path) -> None:
        """Write NAME.svg and NAME.png to a folder."""
        write_text(folder / f"{self.name}.svg", self.svg)
        with atomic_file(folder / f"{self.name}.png") as temporary:
            temporary.write_bytes(vl_convert.svg_to_png(self.svg, scale=2))


def data(rows: Records) -> alt.InlineData:
    """Return rows as the data of a chart."""
    return alt.InlineData(values=list(rows))


def drawn_rows(count: int) -> Ints:
    """Choose at most `MOST_POINTS` of `count` samples to draw, in order; the same every time."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, MOST_POINTS, replace=False))


def lines(points: Iterable[tuple[str, float, float]], **mark: Any) -> Chart:
    """Return lines through points (series, x, y)."""
    rows = [{"series": line, "x": x, "y": y, "at": at} for at, (line, x, y) in enumerate(points)]
    ends = alt.X("x:Q"), alt.Y("y:Q"), alt.Detail("series:N"), alt.Order("at:Q")
    return alt.Chart(data(rows)).mark_line(**mark).encode(*ends)


def diagonal(low: float, high: float) -> Chart:
    """Return a dashed line on which both axes are equal."""
    return lines([("", low, low), ("", high, high)], **DASHED)


def x_axis(title: str, **scale: Any) -> alt.X:
    """Return the horizontal axis of the field x; it need not begin at 0."""
    return alt.X("x:Q", title=title, scale=alt.Scale(**{"zero": False, **scale}))


def y_axis(title: str, **scale: Any) -> alt.Y:
    """Return the vertical axis of the field y; it need not begin at 0."""
    return alt.Y("y:Q", title=title, scale=alt.Scale(**{"zero": False, **scale}))


def points(
    rows: Records, axes: tuple[alt.X, alt.Y], colours: Mapping[str, Any], **mark: Any
) -> Chart:
    """Return the points of rows with x, y and the text `tip` that a pointer shows."""
    chart = alt.Chart(data(rows)).mark_point(**{"aria": True, "opacity": 0.75, **mark})
    return chart.encode(alt.Description("tip:N"), *axes, **colours)


def bars(rows: Records, **mark: Any) -> Chart:
    """Return the vertical intervals of rows with x, and low and high if they have one."""
    chart = alt.Chart(data(rows)).transform_filter("isValid(datum.low)").mark_rule(**mark)
    return chart.encode(alt.X("x:Q"), alt.Y("low:Q"), alt.Y2("high:Q"))


def band(rows: Records, **mark: Any) -> Chart:
    """Return the area between the left and right limits of rows with y; without limits nothing."""
    chart = alt.Chart(data(rows)).transform_filter("isValid(datum.low)").mark_area(**mark)
    return chart.encode(alt.X("low:Q"), alt.X2("high:Q"), alt.Y("y:Q"))


def sized(*layers: Chart) -> Chart:
    """Return the layers of a chart as wide and high as a figure is."""
    return alt.layer(*layers).properties(width=CHART_WIDTH, height=HEIGHT)


def levels(field: str, colour_of: Mapping[str, int], legend: bool = True) -> dict[str, Any]:
    """Return colour and shape of a nominal field, with the number of the colour of each of its
    values.
    """
    names, numbers = list(colour_of), list(colour_of.values())
    colours = alt.Scale(domain=names, range=[LIGHT[at] for at in numbers])
    shapes = alt.Scale(domain=names, range=[SHAPES[at % len(SHAPES)] for at in numbers])
    hidden: dict[str, Any] = {} if legend else {"legend": None}
    return {
        "color": alt.Color(f"{field}:N", scale=colours, **hidden),
        "shape": alt.Shape(f"{field}:N", scale=shapes, **hidden),
    }


@dataclass(frozen=True)
class IntervalRow:
    """A name, a value with limits, the number of its colour, and the text next to it if not the
    value itself.
    """

    name: str
    value: Interval
    colour: int = 0
    text: str | None = None


def interval_chart(
    rows: Sequence[IntervalRow], title: str, line: float = math.nan, legend: Legend = ()
) -> Chart:
    """Values with intervals, one below the other, each under a line with its name and a line with
    its value: forest plots, errors, importances.

    `line` is a value that all are compared with; `legend` names the colours.
    """
    used, values = {row.colour for row in rows}, []
    names = {colour: name for colour, name in legend if colour in used}
    for at, row in enumerate(rows):
        kind = names.get(row.colour, str(row.colour))
        text = with_limits(row.value) if row.text is None else row.text
        name = middle_cut(row.name, LONGEST_NAME)
        drawn = {"x": row.value.value, "low": row.value.low, "high": row.value.high, "line": line}
        values.append({"row": at, "name": name, "text": text, "kind": kind, **drawn})
    kinds = {name: colour for colour, name in names.items()} or {str(at): at for at in sorted(used)}
    marks = levels("kind", kinds, legend=bool(names))
    chart = alt.Chart(data(values)).encode(alt.Y("row:O", axis=None))

    def known(field: str) -> Chart:
        return chart.transform_filter(f"isValid(datum.{field})")

    axis = x_axis(title).axis(grid=False)  # lines would cross the numbers
    label = chart.mark_text(align="left", x=0, yOffset=-18, fontSize=NAME_SIZE, limit=CHART_WIDTH)
    value = chart.mark_text(align="left", x=0, yOffset=-4, color=SOFT, fontSize=NAME_SIZE)
    tick = known("line").mark_tick(color=INK, thickness=1.2, size=13, yOffset=11)
    rule = known("low").mark_rule(strokeWidth=2, yOffset=11, y2Offset=11)
    point = known("x").mark_point(opacity=1, yOffset=11)
    return alt.layer(
        label.encode(alt.Text("name:N")),
        value.encode(alt.Text("text:N")),
        tick.encode(alt.X("line:Q")),
        rule.encode(alt.X("low:Q"), alt.X2("high:Q"), color=marks["color"]),
        point.encode(x=axis, **marks),
    ).properties(width=CHART_WIDTH, height=alt.Step(ROW_HEIGHT))
