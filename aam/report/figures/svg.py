"""A figure as SVG elements: what it holds, its colours in light and dark, and its form as a file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Colours that can be told apart without red and green (Paul Tol's bright and vibrant schemes), on white and on black.
LIGHT = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#332288", "#888888")
DARK = ("#77aadd", "#ff8899", "#55bb66", "#ddcc55", "#88ddff", "#dd77aa", "#bbbb55", "#9988ee", "#aaaaaa")

# Ink, softer ink, lines of a grid, ground.
LIGHT_INK = {"ink": "#222222", "soft": "#5a5a5a", "grid": "#dddddd", "ground": "#ffffff"}
DARK_INK = {"ink": "#eeeeee", "soft": "#b5b5b5", "grid": "#444444", "ground": "#16181c"}

FONT = "system-ui, 'Helvetica Neue', Arial, sans-serif"

# Markers beside colours, so that levels can be told apart in print too: paths around (0, 0) of about equal area.
MARKERS = (
    "M3.2 0A3.2 3.2 0 1 1-3.2 0A3.2 3.2 0 1 1 3.2 0",
    "M-2.8-2.8h5.6v5.6h-5.6z",
    "M0-3.8L3.6 2.6H-3.6z",
    "M0-4L4 0L0 4L-4 0z",
    "M0 3.8L3.6-2.6H-3.6z",
)

# Height of a row of a legend below a figure, in pixels.
LEGEND_ROW = 18

LegendEntry = tuple[int, str]


@dataclass(frozen=True)
class Figure:
    """A figure of a report.

    Attributes
    ----------
    name : str
        Name of its file, without suffix.
    title : str
        What it shows.
    description : str
        What is seen, in words, for a reader who does not see it.
    width, height : float
        Of the drawing, in pixels of 1/96 inch.
    body : str
        SVG elements; what comes from data is escaped already.
    caption : str
        What a reader should know beside the title.
    legend : sequence of (int, str)
        Number of the colour and name of each level; not drawn in `body`.
    """

    name: str
    title: str
    description: str
    width: float
    height: float
    body: str
    caption: str = ""
    legend: Sequence[LegendEntry] = ()


def colour_rules(colours: Sequence[str], ink: Mapping[str, str]) -> str:
    """Return the style rules that give the classes of SVG elements their colours."""
    rules = [f".fig .f{at}{{fill:{colour}}}.fig .s{at}{{stroke:{colour}}}" for at, colour in enumerate(colours)]
    rules += [
        f".fig text{{fill:{ink['ink']}}}.fig .soft{{fill:{ink['soft']}}}",
        f".fig .axis{{stroke:{ink['soft']}}}.fig .grid{{stroke:{ink['grid']}}}.fig .inkline{{stroke:{ink['ink']}}}",
        f".fig .inkfill{{fill:{ink['ink']}}}.fig .ground{{fill:{ink['ground']}}}",
    ]
    return "".join(rules)


SHAPE_RULES = (
    f".fig{{font:12px {FONT}}}.fig path,.fig line{{fill:none}}.fig .fill{{stroke:none}}"
    ".fig .small{font-size:11px}.fig .strong{font-weight:600}.fig .end{text-anchor:end}.fig .middle{text-anchor:middle}"
)


def marker(level: int) -> str:
    """Return the path of the marker of a level."""
    return MARKERS[level % len(MARKERS)]


def number_text(value: float) -> str:
    """Return a coordinate with at most one digit behind the point."""
    return f"{value:.1f}".removesuffix(".0")


def _legend_rows(figure: Figure) -> str:
    """Return the legend as SVG elements below the drawing."""
    rows = []
    for row, (colour, name) in enumerate(figure.legend):
        middle = figure.height + LEGEND_ROW * (row + 0.5)
        place = f'transform="translate(16 {number_text(middle)})"'
        rows.append(f'<path class="fill f{colour}" d="{marker(colour)}" {place}/>')
        rows.append(f'<text x="28" y="{number_text(middle + 4)}">{escape(name)}</text>')
    return "".join(rows)


def standalone(figure: Figure) -> str:
    """Return the figure as an SVG file for a paper: on white, with title, description and legend."""
    height = figure.height + LEGEND_ROW * len(figure.legend) + (6 if figure.legend else 0)
    size = f"{number_text(figure.width)} {number_text(height)}"
    width_text, height_text = size.split()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fig" viewBox="0 0 {size}" width="{width_text}" '
        f'height="{height_text}" role="img"><title>{escape(figure.title)}</title>'
        f"<desc>{escape(figure.description)}</desc><style>{SHAPE_RULES}{colour_rules(LIGHT, LIGHT_INK)}</style>"
        f'<rect class="ground" width="100%" height="100%"/>{figure.body}{_legend_rows(figure)}</svg>\n'
    )
