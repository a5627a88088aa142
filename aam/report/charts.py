"""Figures: Altair charts with their words, as SVG inside a page and as SVG and PNG files for a
paper.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape, unescape
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
import vl_convert

from aam.evaluate.intervals import Interval, number, with_limits
from aam.files.atomic import atomic_file, write_text
from aam.report.tables import middle_cut, printable

# Colours that can be told apart without red and green (Paul Tol's bright and vibrant schemes), on
# white and on black.
LIGHT = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#999933",
    "#332288",
    "#888888",
)
DARK = (
    "#77aadd",
    "#ff8899",
    "#55bb66",
    "#ddcc55",
    "#88ddff",
    "#dd77aa",
    "#bbbb55",
    "#9988ee",
    "#aaaaaa",
)

# From low to high, told apart by lightness; numbers of their colours follow those of LIGHT.
RAMP = ("#e0a63c", "#d9774f", "#bd4a70", "#7d3f90", "#343a80")
DARK_RAMP = ("#5662c4", "#9a5ab8", "#dc6690", "#f29b6b", "#fadf8c")

# Text and lines that matter, softer ones, and lines of a grid.
INK, SOFT, GRID = "#222222", "#5a5a5a", "#dddddd"
DARK_OF = {
    **dict(zip(LIGHT + RAMP, DARK + DARK_RAMP, strict=True)),
    INK: "#eeeeee",
    SOFT: "#b5b5b5",
    GRID: "#444444",
}

# Levels differ in their markers too, for a print without colours.
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down")

# Of a whole figure with its axes, and of the plot in it, in pixels: three stand side by side on a
# page of 1280 pixels, one on a phone, and text is hardly scaled in either.
WIDTH, HEIGHT = 356, 285

# Of more samples than this a random part is drawn.
MOST_POINTS = 2000

DASHES = [5, 4]

# Height of an interval below its name and value; the longest name that a line has room for.
ROW_HEIGHT, NAME_SIZE, LONGEST_NAME = 48, 12, 47

FONT = "Helvetica, Arial, sans-serif"

LOOK: dict[str, Any] = {
    "aria": False,
    "background": "white",
    "padding": 6,
    "autosize": {"type": "fit-x", "contains": "padding"},
    "view": {"stroke": None},
    "axis": {
        "labelFont": FONT,
        "titleFont": FONT,
        "labelColor": SOFT,
        "titleColor": INK,
        "labelFontSize": 13,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titleLimit": WIDTH,
        "gridColor": GRID,
        "domainColor": SOFT,
        "tickColor": SOFT,
        "tickCount": 5,
        "labelLimit": 170,
    },
    "legend": {
        "orient": "bottom",
        "direction": "vertical",
        "title": None,
        "labelFont": FONT,
        "labelColor": INK,
        "labelFontSize": 13,
        "labelLimit": WIDTH,
        "symbolOpacity": 1,
        "rowPadding": 3,
        "titleFont": FONT,
        "titleColor": INK,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titleLimit": WIDTH,
        "layout": {"bottom": {"anchor": "start", "direction": "vertical"}},
    },
    "point": {"filled": True, "size": 34, "opacity": 0.75, "color": LIGHT[0]},
    "text": {"font": FONT, "fontSize": 13, "color": INK},
    "line": {"strokeWidth": 2, "color": LIGHT[0]},
    "rule": {"color": SOFT},
    "range": {"category": list(LIGHT)},
}

# A chart or layers of charts of altair, whose chained methods type checkers cannot follow.
Chart = Any


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
    """Return the SVG with coordinates of one digit behind the point, a third as long, without what
    nobody reads.
    """
    svg = re.sub(
        r'aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"',
        r'data-tip="\1"',
        svg,
    )
    svg = re.sub(
        r' (role|aria-[a-z]+|class|pointer-events|stroke-miterlimit|xmlns:xlink|version)="[^"]*"',
        "",
        svg,
    )

    def coordinate(number: re.Match[str]) -> str:
        return f"{float(number[0]):.1f}".removesuffix(".0")

    def rounded(attribute: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d+(?:e-\d+)?", coordinate, attribute[0])

    return re.sub(r' (?:transform|d|[xy][12]?|width|height)="[^"]*"', rounded, svg)


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure of a report.

    Attributes
    ----------
    name : str
        Name of its files, without suffix.
    title : str
        What it shows.
    description : str
        What is seen, in words, for a reader who does not see it.
    chart : altair.Chart or altair.LayerChart
        A mark with ``aria=True`` and a `Description` shows it to a pointer.
    caption : str
        Explanation below the title.
    names : tuple of str
        Labels of axes that may be cut: a pointer shows the whole.
    """

    name: str
    title: str
    description: str
    chart: Chart
    caption: str = ""
    names: tuple[str, ...] = ()

    @cached_property
    def svg(self) -> str:
        """The figure as an SVG file: on white, with title and description."""
        svg = vl_convert.vegalite_to_svg(
            _drawable({**self.chart.to_dict(validate=False), "config": LOOK})
        )
        words = printable(
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
        )
        svg = _compact(svg).replace(">", f">{words}", 1)
        met = Counter[str]()

        def with_tip(text: re.Match[str]) -> str:
            # Names with the same cut text keep their order on each axis.
            of = [name for name in self.names if printable(name).startswith(unescape(text[1]))]
            met[text[1]] += 1
            return (
                f' data-tip="{escape(printable(of[(met[text[1]] - 1) % len(of)]))}"{text[0]}'
                if of
                else text[0]
            )

        return re.sub(r">([^<>]+)…</text>", with_tip, svg) + "\n"

    @property
    def wide(self) -> bool:
        """Whether it needs the room of two figures for text that is not small."""
        return float(self.svg.split('width="', 1)[1].split('"', 1)[0]) > 1.2 * WIDTH

    @property
    def inline(self) -> str:
        """The figure as an element of a page, which gives its colours in the dark."""
        body = self.svg.split("</desc>", 1)[1].rstrip("\n")
        _, box = re.split(r'(viewBox="[^"]*")', self.svg, maxsplit=1)[:2]
        return (
            f'<svg class="fig" role="img" aria-label="{escape(printable(self.description))}" '
            f"{box}>{body}"
        )

    def write(self, folder: Path) -> None:
        """Write NAME.svg and NAME.png to a folder."""
        write_text(folder / f"{self.name}.svg", self.svg)
        with atomic_file(folder / f"{self.name}.png") as temporary:
            temporary.write_bytes(vl_convert.svg_to_png(self.svg, scale=2))


def dark_rules() -> str:
    """Return the style rules that give figures inside a page their colours on a dark ground."""
    return "".join(
        f".fig [fill='{light}']{{fill:{dark}}}.fig [stroke='{light}']{{stroke:{dark}}}"
        for light, dark in DARK_OF.items()
    )


def data(rows: Iterable[Mapping[str, object]]) -> alt.InlineData:
    """Return rows as the data of a chart."""
    return alt.InlineData(values=list(rows))


def drawn_rows(count: int, most: int = MOST_POINTS) -> npt.NDArray[np.int64]:
    """Choose at most `most` of `count` samples to draw, in order; the same ones every time."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def lines(points: Iterable[tuple[str, float, float]], **mark: Any) -> Chart:
    """Return lines through points (series, x, y)."""
    chart = alt.Chart(
        data(
            {"series": series, "x": x, "y": y, "at": at} for at, (series, x, y) in enumerate(points)
        )
    )
    return chart.mark_line(**mark).encode(
        alt.X("x:Q"), alt.Y("y:Q"), alt.Detail("series:N"), alt.Order("at:Q")
    )


def diagonal(low: float, high: float) -> Chart:
    """Return a dashed line on which both axes are equal."""
    return lines([("", low, low), ("", high, high)], color=SOFT, strokeWidth=1.2, strokeDash=DASHES)


def x_axis(title: str, **scale: Any) -> alt.X:
    """Return the horizontal axis of the field x; it need not begin at 0."""
    return alt.X("x:Q", title=title, scale=alt.Scale(**{"zero": False, **scale}))


def y_axis(title: str, **scale: Any) -> alt.Y:
    """Return the vertical axis of the field y; it need not begin at 0."""
    return alt.Y("y:Q", title=title, scale=alt.Scale(**{"zero": False, **scale}))


def points(
    rows: Iterable[Mapping[str, object]],
    x: alt.X,
    y: alt.Y,
    colours: Mapping[str, Any],
    **mark: Any,
) -> Chart:
    """Return the points of rows with x, y and the text `tip` that a pointer shows."""
    chart = alt.Chart(data(rows)).mark_point(**{"aria": True, "opacity": 0.75, **mark})
    return chart.encode(alt.Description("tip:N"), x=x, y=y, **colours)


def sized(*layers: Chart) -> Chart:
    """Return the layers of a chart as wide and high as a figure is."""
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def levels(field: str, colour_of: Mapping[str, int], legend: bool = True) -> dict[str, Any]:
    """Return colour and shape of a nominal field, given the number of the colour of each of its
    values.
    """
    colours = alt.Scale(
        domain=list(colour_of), range=[(LIGHT + RAMP)[at] for at in colour_of.values()]
    )
    shapes = alt.Scale(
        domain=list(colour_of), range=[SHAPES[at % len(SHAPES)] for at in colour_of.values()]
    )
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
    rows: Sequence[IntervalRow],
    title: str,
    line: float = math.nan,
    legend: Sequence[tuple[int, str]] = (),
    zero: bool = False,
) -> Chart:
    """Values with intervals, one below the other, each under a line with its name and a line with
    its value: forest plots, errors, importances.

    `line` is a value that all are compared with; `legend` names the colours; with `zero` the axis
    begins at 0.
    """
    names = {colour: name for colour, name in legend if colour in {row.colour for row in rows}}
    used = list(names) or sorted({row.colour for row in rows})
    texts = [with_limits(row.value) if row.text is None else row.text for row in rows]
    values = [
        {
            "row": at,
            "name": middle_cut(row.name, LONGEST_NAME),
            "text": text,
            "kind": names.get(row.colour, str(row.colour)),
            "x": row.value.value,
            "low": row.value.low,
            "high": row.value.high,
            "line": line,
        }
        for at, (row, text) in enumerate(zip(rows, texts, strict=True))
    ]
    kinds = levels(
        "kind", {names.get(colour, str(colour)): colour for colour in used}, legend=bool(names)
    )
    chart = alt.Chart(data(values)).encode(alt.Y("row:O", axis=None))
    name = chart.mark_text(align="left", x=0, yOffset=-16, fontSize=NAME_SIZE).encode(
        alt.Text("name:N")
    )
    value = chart.mark_text(align="right", x="width", yOffset=-1, color=SOFT).encode(
        alt.Text("text:N")
    )
    intervals = chart.transform_filter("isValid(datum.low)").mark_rule(
        strokeWidth=2, yOffset=13, y2Offset=13
    )
    axis = x_axis(title, zero=zero).axis(grid=False)  # lines would cross the numbers
    layers = [
        chart.transform_filter("isValid(datum.line)")
        .mark_tick(color=INK, thickness=1.2, size=13, yOffset=13)
        .encode(alt.X("line:Q")),
        intervals.encode(alt.X("low:Q"), alt.X2("high:Q"), color=kinds["color"]),
        chart.transform_filter("isValid(datum.x)")
        .mark_point(opacity=1, yOffset=13)
        .encode(x=axis, **kinds),
    ]
    return alt.layer(name, value, *layers).properties(width=WIDTH, height=alt.Step(ROW_HEIGHT))


def listed(rows: Sequence[IntervalRow]) -> str:
    """Return names and values in words."""
    return "; ".join(f"{row.name} {number(row.value.value)}" for row in rows)
