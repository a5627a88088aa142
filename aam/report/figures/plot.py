"""A plot: axes, ticks and marks at the places of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from aam.report.figures.svg import marker, number_text

# Two plots stand side by side on a page, one on a phone; text keeps its size in both.
WIDTH, HEIGHT = 400.0, 320.0

# Room for the ticks and titles of the axes, and at the other ends.
LEFT, BOTTOM, RIGHT, TOP = 56.0, 46.0, 14.0, 12.0

MOST_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` at pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; what lies outside is put at the end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def span(values: Iterable[float], margin: float = 0.04) -> tuple[float, float]:
    """Return lowest and highest finite value with a margin; 0 to 1 where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = margin * (high - low) or 0.05 * abs(high) or 0.5
    return low - room, high + room


def ticks(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """Return round values between low and high: steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step for factor in (1, 2, 5, 10, 20) if (high - low) / (step := factor * power) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(at * step, 12) + 0.0 for at in range(first, last + 1)]


class Plot:
    """A drawing that grows by elements; `x` and `y` put values at pixels."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        size: tuple[float, float] = (WIDTH, HEIGHT),
        left: float = LEFT,
        bottom: float = BOTTOM,
    ) -> None:
        self.width, self.height = size
        self.x = Axis(*x, left, self.width - RIGHT)
        self.y = Axis(*y, self.height - bottom, TOP)
        self.parts: list[str] = []

    @property
    def body(self) -> str:
        """The elements."""
        return "".join(self.parts)

    def axes(self, x_title: str, y_title: str) -> None:
        """Draw both axes with ticks, a faint grid, and titles."""
        self.x_axis(x_title)
        for value in ticks(self.y.low, self.y.high):
            at = self.y(value)
            self.line((self.x.start, at), (self.x.end, at), "grid")
            self.text(self.x.start - 7, at + 4, f"{value:g}", "small soft end")
        self.line((self.x.start, self.y.start), (self.x.start, self.y.end), "axis")
        middle = number_text((self.y.start + self.y.end) / 2)
        turned = f'class="middle" transform="translate(13 {middle}) rotate(-90)"'
        self.parts.append(f"<text {turned}>{escape(shortened(y_title, 40))}</text>")

    def x_axis(self, title: str) -> None:
        """Draw the horizontal axis."""
        for value in ticks(self.x.low, self.x.high):
            at = self.x(value)
            self.line((at, self.y.start), (at, self.y.end), "grid")
            self.text(at, self.y.start + 16, f"{value:g}", "small soft middle")
        self.line((self.x.start, self.y.start), (self.x.end, self.y.start), "axis")
        self.text((self.x.start + self.x.end) / 2, self.y.start + 36, shortened(title, 56), "middle")

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        """Write a text at a pixel."""
        place = f'x="{number_text(x)}" y="{number_text(y)}"'
        self.parts.append(f'<text class="{style}" {place}>{escape(text)}</text>')

    def line(self, start: tuple[float, float], end: tuple[float, float], style: str, width: float = 1) -> None:
        """Draw a line between two pixels."""
        (x1, y1), (x2, y2) = (map(number_text, point) for point in (start, end))
        place = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        self.parts.append(f'<line class="{style}" {place} stroke-width="{width:g}"/>')

    def curve(self, points: Sequence[tuple[float, float]], style: str, more: str = 'stroke-width="2"') -> None:
        """Draw a line through values; it is interrupted where one is not finite."""
        pieces, down = [], False
        for x, y in points:
            if not (math.isfinite(x) and math.isfinite(y)):
                down = False
                continue
            pieces.append(f"{'L' if down else 'M'}{number_text(self.x(x))} {number_text(self.y(y))}")
            down = True
        if pieces:
            self.parts.append(f'<path class="{style}" d="{"".join(pieces)}" {more}/>')

    def mark(self, x: float, y: float, level: int, label: str = "", opacity: float = 1.0) -> None:
        """Draw the marker of a level at a pixel; the label appears where a pointer rests on it."""
        place = f'transform="translate({number_text(x)} {number_text(y)})"'
        seen = "" if opacity == 1 else f' opacity="{opacity:g}"'
        title = f"<title>{escape(label)}</title>" if label else ""
        self.parts.append(f'<path class="fill f{level}" d="{marker(level)}" {place}{seen}>{title}</path>')

    def dots(self, points: Sequence[tuple[float, float]], style: str, more: str) -> None:
        """Draw many values as round dots of one path, which is small."""
        path = "".join(f"M{number_text(self.x(x))} {number_text(self.y(y))}h0" for x, y in points)
        if path:
            self.parts.append(f'<path class="{style}" d="{path}" stroke-linecap="round" {more}/>')

    def bars(self, spans: Sequence[tuple[float, float, float]], style: str, more: str) -> None:
        """Draw many vertical lines as one path, each from y `low` to y `high` at x."""
        path = "".join(
            f"M{number_text(self.x(x))} {number_text(self.y(low))}V{number_text(self.y(high))}"
            for x, low, high in spans
        )
        if path:
            self.parts.append(f'<path class="{style}" d="{path}" {more}/>')


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
