"""Files of text: their content, the rows of a table, and the faults that a file has."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aam.errors import InputError, problem, reworded
from aam.files.atomic import MAX_BYTES, read_bytes
from aam.io.headers import is_id_header
from aam.io.packed import AS_TEXT, EXEMPT, MAX_RATIO, ZIP_MAGIC, read_artifact

# Lines that a message lists.
MOST_LINES = 8

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
GZIP_MAGIC = b"\x1f\x8b"
# Of files of Excel 97, and of those with a password.
OLE_MAGIC = b"\xd0\xcf\x11\xe0"
R_MAGIC = (b"X\n\0", b"A\n2\n", b"A\n3\n", b"RDX", b"RDA")
# What begins with these bytes is no UTF-8 text.
OTHER_FORMATS = {
    (b"\xff\xfe", b"\xfe\xff"): "UTF-16 (Excel's 'Unicode text'), expected UTF-8; save as UTF-8",
    (HDF5_MAGIC,): "HDF5, as BIOM tables are, expected text",
    (OLE_MAGIC,): f"an Excel workbook (.xls, or with a password); {AS_TEXT}",
    R_MAGIC: "an object of R (.rds or .RData), expected text; in R, save it with "
    "write.table(x, FILE, sep='\\t', quote=FALSE, col.names=NA)",
}

DELIMITERS = {"\t": "tabs", ";": "semicolons", ",": "commas"}

# Rows that are no comments, though they begin with #.
DIRECTIVE = ("#q2:", "#sk:")

# Letters and lines among which the header is looked for.
HEAD, HEADER_WITHIN = 4 << 20, 1_000

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

TextRow = tuple[int, list[str]]


def is_number(value: str) -> bool:
    """Return whether a cell is a finite decimal number."""
    return NUMBER.fullmatch(value) is not None and math.isfinite(float(value))


def read_content(
    path: Path, inside: Mapping[str, str], reason: str = "", remedy: str = ""
) -> bytes:
    """Return the content of a file, unpacked where gzip packed it, or of a file in a QIIME 2
    archive.

    `inside` and `reason` are those of `read_artifact`, `remedy` that of `read_bytes`.
    Raises `InputError`: it cannot be read, or is too large.
    """
    if read_bytes(path, head=len(ZIP_MAGIC)) == ZIP_MAGIC:
        return read_artifact(path, inside, reason)
    blob = read_bytes(path, remedy=remedy)
    if not blob.startswith(GZIP_MAGIC):
        return blob
    limit = min(MAX_BYTES, EXEMPT + MAX_RATIO * len(blob))
    with reworded((OSError, EOFError, zlib.error), f"{path}: damaged gzip file"):
        content = gzip.GzipFile(fileobj=io.BytesIO(blob)).read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path}: unpacks to more than {limit} bytes, is it damaged?")
    return content


def read_text(path: Path, inside: Mapping[str, str] = {}, reason: str = "") -> str:
    """Return the text that `read_content` reads."""
    return decoded(read_content(path, inside, reason), path)


def decoded(blob: bytes, where: Path | str) -> str:
    """Return UTF-8 text without byte order mark; `InputError` names the first byte that shows
    another encoding.
    """
    for beginnings, form in OTHER_FORMATS.items():
        if blob.startswith(beginnings):
            raise InputError(f"{where}: is {form}")
    text, position = "", blob.find(b"\0")
    try:
        text = blob.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        position = error.start
    if position >= 0:
        line = blob.count(b"\n", 0, position) + 1
        place = f"line {line}: byte 0x{blob[position]:02x} at byte position {position}"
        remedy = "save as UTF-8, or convert Latin-1 with `iconv -f latin1 -t utf-8`"
        raise InputError(problem(where, f"{place} is not UTF-8 text", remedy=remedy))
    return text


def unix(text: str) -> str:
    """Return the text with Unix line ends, whatever it has."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def without_accents(text: str) -> str:
    """Return text in lower case without accents."""
    letters = unicodedata.normalize("NFKD", text).lower()
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


# --- faults ------------------------------------------------------------------------------------


class Faults:
    """Faults of a file, one message for each cause, with the first lines on which it stands."""

    def __init__(self, where: Path | str) -> None:
        self.where = where
        self._lines: dict[str, list[str]] = {}

    def add(self, cause: str, line: int | None = None, value: str = "") -> None:
        """Add a fault of the file, or of a line with the value that shows it."""
        lines = self._lines.setdefault(cause, [])
        if line is not None:
            lines.append(f"{line} ({value})" if value else str(line))

    @property
    def messages(self) -> list[str]:
        """One message per cause."""
        messages = []
        for cause, lines in self._lines.items():
            more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
            place = f"line {', '.join(lines[:MOST_LINES])}{more}: " if lines else ""
            messages.append(f"{self.where}: {place}{cause}")
        return messages

    def raise_if_any(self) -> None:
        """Raise `InputError` with the messages, if there are any."""
        if self._lines:
            raise InputError(*self.messages)


def nameless_columns(places: Sequence[int]) -> str:
    """Describe columns at some places, from 1, that have no name; "" for no column."""
    listed = ", ".join(map(str, places[:MOST_LINES]))
    has = f"column {listed} has" if len(places) == 1 else f"columns {listed} have"
    return f"header: {has} values and no name; name each column, or delete it" if places else ""


# --- tables of text ----------------------------------------------------------------------------

# Strategy: a table of text is read in one pass, a row at a time, because the cells of a large
# table take twenty times the memory of its numbers. `read_table_text` finds the delimiter and the
# header. `TextTable.rows` then gives every row as many cells as the header has and collects the
# rows that cannot. Each kind of table checks its own cells while it takes the rows, adds to the
# same `Faults`, and raises them together at the end.


@dataclass
class TextTable:
    """A table of text: the cells of its header, the rows below it, their faults, and the comments
    among the rows that were read.
    """

    header: list[str]
    body: Iterator[TextRow]
    faults: Faults
    comments: list[list[str]] = field(default_factory=list)

    def rows(
        self, least: int | None = None, is_comment: Callable[[str], bool] | None = None
    ) -> Iterator[TextRow]:
        """Yield line and cells of each row, as many as the header has.

        Missing cells are empty where there are at least `least` (unset: all of them). Rows with
        fewer cells are left out. They are faults, and so are rows with more cells, unless these are
        empty, as spreadsheets write them. Rows whose first cell is a comment are left out.
        Where all rows but directives have the same number of cells more, columns have no name.
        """
        width, wide, is_one_width = len(self.header), dict[int, int](), True
        least = width if least is None else least
        for line, cells in self.body:
            if is_comment is not None and is_comment(cells[0].strip()):
                self.comments.append(cells)
                continue
            while len(cells) > width and not cells[-1].strip():
                cells.pop()
            if len(cells) < least:
                cause = f"fewer cells than the {least} that a row needs; is the file cut off?"
                self.faults.add(cause, line, f"{len(cells)} cells")
                continue
            if len(cells) > width:
                wide[line] = len(cells)
            elif not cells[0].strip().startswith(DIRECTIVE):
                is_one_width = False
            yield line, cells[:width] + [""] * (width - len(cells))
        widths = set(wide.values())
        if is_one_width and len(widths) == 1:
            self.faults.add(nameless_columns(range(width + 1, widths.pop() + 1)))
            return
        for line, cells_of_row in wide.items():
            cause = f"more cells than the {width} of the header; is a delimiter inside a cell?"
            self.faults.add(cause, line, f"{cells_of_row} cells")


def read_table_text(text: str, where: Path | str, expected: str) -> TextTable:
    """Find the delimiter and the header of a table of text.

    Parameters
    ----------
    text : str
    where : Path or str
        Name of the table in messages.
    expected : str
        What messages call the header.

    Raises
    ------
    InputError
        No header, or cells that are separated by blanks.
    """
    header, body = _header_and_body(text, where, expected)
    return TextTable(header, body, Faults(where))


def _cells(line: str, mark: str) -> list[str]:
    """Return the cells of one line, whose quotes may not close; the line itself if it is no csv."""
    try:
        return next(csv.reader([line], delimiter=mark), [""])
    except csv.Error:
        return [line]


def _delimiter(text: str, where: Path | str) -> str:
    """Return the separator of a table, by its header: a tab if there is one, or else the mark that
    gives most cells.

    The header is the first line with a name of ids, or that is no comment (#). `InputError` where
    blanks separate the cells.
    """
    lines = [line for line in unix(text[:HEAD]).split("\n")[:HEADER_WITHIN] if line.strip()]
    headers = [x for x in lines if any(is_id_header(_cells(x, mark)) for mark in DELIMITERS)]
    header = [*headers, *(line for line in lines if not line.startswith("#")), *lines, ""][0]
    best = max(DELIMITERS, key=lambda mark: len(_cells(header, mark)))
    below = lines[lines.index(header) + 1 :] if lines else []
    words, words_below = len(header.split()), len(below[0].split()) if below else 0
    if len(_cells(header, best)) == 1 < words and words_below in (words, words + 1):
        fault = f"the cells of {header[:60]!r} are separated by blanks, as write.table of R does"
        remedy = "separate them by tabs (sep='\\t')"
        raise InputError(problem(where, f"{fault} by default", remedy=remedy))
    return "\t" if "\t" in header else best


def _rows(text: str, where: Path | str, delimiter: str) -> Iterator[TextRow]:
    """Yield line number and cells of each row, quoted as csv has them; any line ends, no blank
    lines or rows of empty cells, which spreadsheets write.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 0
    try:
        for cells in reader:
            line = reader.line_num
            if any(map(str.strip, cells)):
                yield line, cells
    except csv.Error as error:
        fault = f"the row that begins on line {line + 1} cannot be read ({error})"
        remedy = 'a double quote is open or inside a cell: write it twice (""), or remove it'
        raise InputError(problem(where, fault, remedy=remedy)) from error


def _header_and_body(
    text: str, where: Path | str, expected: str
) -> tuple[list[str], Iterator[TextRow]]:
    """Return the cells of the header of a table, and the rows below it.

    The header is the first row that is no comment, and its first cell a name of ids. R names the
    column of row names by nothing, or leaves it out of the header: such a header begins with an
    empty cell. Empty cells at the end are left out where the row below holds nothing there either.

    Raises `InputError`: no such header; `expected` is said in the message.
    """
    delimiter = _delimiter(text, where)
    rows = _rows(text, where, delimiter)
    line, cells = next(rows, (0, []))
    while cells:
        below = next(rows, (0, []))
        body = itertools.chain([below] if below[1] else [], rows)
        cells = [cell.strip() for cell in cells]
        while len(cells) > 1 and not cells[-1] and not "".join(below[1][len(cells) - 1 :]).strip():
            cells.pop()
        first = cells[0]
        if is_id_header(cells) or (not first and any(cells)):
            return cells, body
        if not first or (first.startswith("#") and not first.startswith(DIRECTIVE)):
            line, cells = below
            continue
        if len(below[1]) == len(cells) + 1:
            return ["", *cells], body
        separator = f"(cells separated by {DELIMITERS[delimiter]})"
        fault = f"line {line} begins with {first[:60]!r} {separator}"
        raise InputError(problem(where, fault, expected))
    raise InputError(problem(where, "empty or nothing but comments", expected))
