"""A table of a report, and its plain-text form in 80 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

# Columns of a terminal.
WIDTH = 80

# The first column is wrapped to no less than this.
NARROWEST = 11

# What a cell of a column of numbers begins with, if it is not empty or a dash.
NUMERIC = re.compile(r"^$|^-$|^[-<]?\.?\d")

LIMITS = re.compile(r"\((-?[\d.]+) to (-?[\d.]+)\)")


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; the first column names the row. `name` says how to read it
    (`reading.READING`).
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    name: str = ""

    @property
    def words(self) -> frozenset[int]:
        """The columns that hold text; others hold numbers."""
        columns = enumerate(zip(*self.rows, strict=True))
        return frozenset(
            at for at, cells in columns if not all(NUMERIC.match(cell) for cell in cells)
        )


def printable(text: str) -> str:
    """Return the text without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _wrapped(cell: str, width: int) -> list[str]:
    """Return a cell as lines broken between words, and inside those that are longer than the
    width.
    """
    return textwrap.wrap(cell, width, break_on_hyphens=False) or [""]


def _column_widths(cells: Sequence[Sequence[str]], header: int) -> list[int]:
    """Return the widths of columns whose first `header` rows may be wrapped between words, and
    whose others may not.
    """
    widths = []
    for column in zip(*cells, strict=True):
        words = [word for cell in column[:header] for word in cell.split()]
        widths.append(max(map(len, [*words, *column[header:]]), default=0))
    return widths


def _laid_out(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return a row as lines: the first column on the left, others on the right, long cells in
    several lines.
    """
    columns = [_wrapped(cell, max(width, 1)) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for at in range(max(map(len, columns))):
        parts = [column[at] if at < len(column) else "" for column in columns]
        aligned = [
            parts[0].ljust(widths[0]),
            *(p.rjust(w) for p, w in zip(parts[1:], widths[1:], strict=True)),
        ]
        lines.append("  " + "  ".join(aligned).rstrip())
    return lines


def _blocks(widths: Sequence[int], first: int, room: int) -> list[list[int]]:
    """Return the columns behind the first one in groups that fit beside it."""
    blocks: list[list[int]] = [[]]
    left = room - first
    for at, width in enumerate(widths[1:], 1):
        if blocks[-1] and width + 2 > left:
            blocks.append([])
            left = room - first
        blocks[-1].append(at)
        left -= width + 2
    return blocks


def plain_lines(table: Table, width: int = WIDTH) -> list[str]:
    """Return a table for a terminal or a log.

    Where it is wider than `width` columns the words of its header, and then its first column, stand
    in several lines; columns that still do not fit stand below in a further block.
    """
    cells = [
        [LIMITS.sub(r"(\1, \2)", printable(cell)) for cell in row]
        for row in (table.header, *table.rows)
    ]
    title = (
        _wrapped(printable(table.title), width)
        if len(table.title) > width
        else [printable(table.title)]
    )
    room = width - 2
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > room:
        widths = _column_widths(cells, 1)
    longest = max(len(row[0]) for row in cells)
    others = sum(each + 2 for each in widths[1:])
    widths[0] = min(longest, max(room - others, NARROWEST))
    lines = []
    for block in _blocks(widths, widths[0], room):
        places = [0, *block]
        for row in cells:
            lines += _laid_out([row[at] for at in places], [widths[at] for at in places])
    return [*title, *lines]


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def middle_cut(text: str, most: int) -> str:
    """Return a text of at most so many characters, cut in its middle: its last ones often tell
    names apart.
    """
    tail = 10
    return text if len(text) <= most else f"{text[: most - tail - 1]}…{text[-tail:]}"
