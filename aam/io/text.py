"""Files of text: their content, the rows of a table, and the faults that a file has."""

from __future__ import annotations

import csv
import gzip
import io
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aam.errors import InputError, problem, reworded
from aam.files.atomic import MAX_BYTES, read_bytes
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

# Rows that are no comments, though they begin with #.
DIRECTIVE = ("#q2:", "#sk:")

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

# Larger numbers are no measurements but ids or mistakes; on any scale float32 holds these.
LARGEST_NUMBER = 1e20

TextRow = tuple[int, list[str]]


def is_number(value: str) -> bool:
    """Return whether a cell is a decimal number, of at most `LARGEST_NUMBER`."""
    return NUMBER.fullmatch(value) is not None and abs(float(value)) <= LARGEST_NUMBER


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


def folded(name: str) -> str:
    """Return a name without case, blanks and punctuation: ``#OTU ID`` and ``otu_id`` are
    ``otuid``.
    """
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", name).casefold())


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


# --- tables of text ----------------------------------------------------------------------------

# Strategy: a table of text is read in one pass, a row at a time, because the cells of a large
# table take twenty times the memory of its numbers. `read_table_text` finds the header, whose first
# cell is empty or a name of ids; the mark behind it separates all cells. `TextTable.rows` then
# gives every row as many cells as the header has and collects the rows that cannot. Each kind of
# table checks its own cells while it takes the rows, adds to the same `Faults`, and raises them
# together at the end.

# Names of the column of ids in QIIME 2, in any case.
ID_NAME = r"id|#?sample ?id|(?:sample|feature)[ -]?id|sample[ _]name|#otu ?id"
IS_ID_NAME = re.compile(ID_NAME, re.IGNORECASE).fullmatch
# The mark behind the first cell of a header: a name, or nothing next to a name.
FIRST_CELL = rf'"?(?:{ID_NAME})"?[ ]*|(?:"")?(?=[\t,;]+[^\t,;\s])'
MARK = re.compile(rf"[ ]*(?:{FIRST_CELL})([\t,;])", re.IGNORECASE)


@dataclass
class TextTable:
    """A table of text: the cells of its header, the rows below it, and their faults."""

    header: list[str]
    body: Iterator[TextRow]
    faults: Faults

    def rows(
        self, least: int | None = None, is_comment: Callable[[str], bool] | None = None
    ) -> Iterator[TextRow]:
        """Yield line and cells of each row, as many as the header has.

        Missing cells are empty where there are at least `least` (unset: all of them). Other rows
        are faults and left out, but for empty cells at the end, as spreadsheets write them. Rows
        whose first cell is a comment are left out.
        """
        width = len(self.header)
        least = width if least is None else least
        for line, cells in self.body:
            if is_comment is not None and is_comment(cells[0].strip()):
                continue
            while len(cells) > width and not cells[-1].strip():
                cells.pop()
            if least <= len(cells) <= width:
                yield line, cells + [""] * (width - len(cells))
                continue
            cause = f"expected {width} cells, as in the header; is a delimiter inside a cell, or "
            self.faults.add(f"{cause}the file cut off?", line, f"{len(cells)} cells")


def read_table_text(text: str, where: Path | str, expected: str) -> TextTable:
    """Find the header of a table of text, the first row that is no comment, and what separates the
    cells: the tab, comma or semicolon behind its first cell.

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
        No header.
    """
    marks = filter(None, map(MARK.match, io.StringIO(text, newline="")))
    mark = next((match[1] for match in marks), "\t")
    rows = _rows(text, where, mark)
    for line, row in rows:
        cells = [cell.strip() for cell in row]
        first = cells[0]
        if not first or IS_ID_NAME(first):
            return TextTable(cells, rows, Faults(where))
        if first.startswith(DIRECTIVE) or not first.startswith("#"):
            found = f"line {line} is {mark.join(cells)[:60]!r}"
            raise InputError(problem(where, found, expected))
    raise InputError(problem(where, "empty or nothing but comments", expected))


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
