"""A table of a report, its plain-text form, and names that are cut."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What a cell of a column of numbers begins with, if it is not empty or a dash.
NUMERIC = re.compile(r"^$|^-$|^[-<]?\.?\d")


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; the first column names the row. `name` is that of its kind."""

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


def plain_lines(table: Table) -> list[str]:
    """A table for a terminal: the first column on the left, others on the right."""
    cells = [[printable(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        printable(table.title),
        *(
            "  ".join(
                [
                    row[0].ljust(widths[0]),
                    *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
                ]
            )
            for row in cells
        ),
    ]


def shortened(text: str, most: int) -> str:
    """Cut a text to at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def middle_cut(text: str, most: int) -> str:
    """Cut a text to at most `most` characters in its middle, because the last ones often
    distinguish names.
    """
    tail = 10
    return text if len(text) <= most else f"{text[: most - tail - 1]}…{text[-tail:]}"
