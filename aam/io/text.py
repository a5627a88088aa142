"""Reading text: plain, packed or from a QIIME 2 archive, of bounded size, UTF-8; its header, and
rows of cells.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from aam.errors import InputError, Problems, reworded
from aam.io.ids import is_id_header
from aam.io.qza import EXEMPT, MAX_RATIO, ZIP_MAGIC, read_artifact

MAX_TEXT = 2 << 30

MAX_PROBLEMS = 10

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
GZIP_MAGIC = b"\x1f\x8b"
R_MAGIC = (b"X\n\0", b"A\n2\n", b"A\n3\n", b"RDX", b"RDA")

DELIMITERS = {"\t": "tabs", ";": "semicolons", ",": "commas"}

# Rows that are no comments, though they begin with #.
DIRECTIVE = ("#q2:", "#sk:")

# Letters and lines among which the header is looked for, and lines that tell the delimiter.
HEAD, HEADER_WITHIN, SNIFFED = 4 << 20, 1_000, 20

Row = tuple[int, list[str]]
Item = TypeVar("Item")


def read_bytes(path: Path, head: int = -1) -> bytes:
    """Return the content of a file of at most `MAX_TEXT` bytes, or its first `head`; `InputError`
    if unreadable.
    """
    try:
        # To open a pipe waits for who writes to it, and a device may never end.
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            remedy = "write its content to a file and pass that"
            raise InputError(f"{path}: a pipe or device, expected a file; {remedy}")
        with path.open("rb") as file:
            if head < 0 and (size := path.stat().st_size) > MAX_TEXT:
                limit = f"at most {MAX_TEXT} are read; a table may be BIOM HDF5"
                raise InputError(f"{path}: {size} bytes, {limit}")
            return file.read(head)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _unpacked(blob: bytes, path: Path) -> bytes:
    limit = min(MAX_TEXT, EXEMPT + MAX_RATIO * len(blob))
    damaged = (OSError, EOFError, zlib.error)
    with (
        reworded(damaged, f"{path}: damaged gzip file"),
        gzip.GzipFile(fileobj=io.BytesIO(blob)) as file,
    ):
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path}: unpacks to more than {limit} bytes, is it damaged?")
    return content


def read_content(path: Path, inside: Mapping[str, str], reason: str = "") -> bytes:
    """Return the content of a file, unpacked where gzip packed it, or of a file in a QIIME 2
    archive.

    `inside` and `reason` are those of `read_artifact`. Raises `InputError`: it cannot be read, or
    is too large.
    """
    if read_bytes(path, len(ZIP_MAGIC)) == ZIP_MAGIC:
        return read_artifact(path, inside, reason)
    blob = read_bytes(path)
    return _unpacked(blob, path) if blob.startswith(GZIP_MAGIC) else blob


def read_text(path: Path, inside: Mapping[str, str] = {}, reason: str = "") -> str:
    """Return the text that `read_content` reads."""
    return decoded(read_content(path, inside, reason), path)


def decoded(blob: bytes, where: Path | str) -> str:
    """Return UTF-8 text without byte order mark; `InputError` names the first byte that shows
    another encoding.
    """
    reason = ""
    if blob.startswith((b"\xff\xfe", b"\xfe\xff")):
        reason = "is UTF-16 (Excel's 'Unicode text'), expected UTF-8; save as UTF-8"
    elif blob.startswith(HDF5_MAGIC):
        reason = "is HDF5, as BIOM tables are, expected text"
    elif blob.startswith(R_MAGIC):
        reason = (
            "is an object of R (.rds or .RData), expected text; in R, save it with "
            "write.table(x, FILE, sep='\\t', quote=FALSE, col.names=NA)"
        )
    text, position = "", blob.find(b"\0")
    try:
        text = blob.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        position = error.start
    if position >= 0 and not reason:
        line = blob.count(b"\n", 0, position) + 1
        reason = (
            f"line {line}: byte 0x{blob[position]:02x} at byte position {position} is not UTF-8 "
            "text; save as UTF-8, or convert Latin-1 with `iconv -f latin1 -t utf-8`"
        )
    if reason:
        raise InputError(f"{where}: {reason}")
    return text


def until_full(rows: Iterator[Item], problems: Problems) -> Iterator[Item]:
    """Yield the rows until there are `MAX_PROBLEMS` problems with them."""
    for row in rows:
        yield row
        if len(problems.messages) >= MAX_PROBLEMS:
            return


def unix(text: str) -> str:
    """Return the text with Unix line ends, whatever it has."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _delimiter(text: str, where: Path | str) -> str:
    """Find the separator of a table: the mark that gives its first rows the same number of cells,
    two or more.

    These rows begin with the header, or with the first line that is no comment (#). `InputError`
    where blanks separate the cells.
    """
    lines = [line for line in unix(text[:HEAD]).split("\n")[:HEADER_WITHIN] if line.strip()]
    starts = [
        place
        for place, line in enumerate(lines)
        if any(is_id_header(split_line(line, mark)) for mark in DELIMITERS)
    ]
    no_comment = (place for place, line in enumerate(lines) if not line.startswith("#"))
    start = next(iter(starts), next(no_comment, 0))
    rows = [
        line for line in lines[start : start + SNIFFED] if line == lines[start] or line[0] != "#"
    ]

    def fit(mark: str) -> tuple[bool, float, int]:
        widths = [len(split_line(line, mark)) for line in rows] or [1]
        width = max(widths[0], 1)
        return width > 1, sum(found in (width, width + 1) for found in widths), width

    best = max(DELIMITERS, key=fit)
    by_blanks, width = {len(row.split()) for row in rows[1:]}, len(rows[0].split()) if rows else 0
    if not fit(best)[0] and width > 1 and by_blanks in ({width}, {width + 1}):
        raise InputError(
            f"{where}: the cells of {rows[0][:60]!r} are separated by blanks, as write.table of R "
            "does by default; separate them by tabs (sep='\\t')"
        )
    return best


def split_line(line: str, delimiter: str) -> list[str]:
    """Return the cells of one line, whose quotes may not close; the line itself if it is no csv."""
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:
        return [line]
    return [cell.strip() for cell in cells]


def parse_rows(text: str, where: Path | str, delimiter: str = "\t") -> Iterator[Row]:
    """Yield line number and cells of each row, quoted as csv has them; any line ends, no blank
    lines.

    Raises `InputError`: quotes that do not close, while the faulty row is read.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 0
    try:
        for cells in reader:
            line = reader.line_num
            if cells:
                yield line, cells
    except csv.Error as error:
        raise InputError(
            f"{where}: the row that begins on line {line + 1} cannot be read ({error}); a double "
            'quote is open or inside a cell: write it twice ("") in a quoted cell, or remove it'
        ) from error


def read_header(text: str, where: Path | str, expected: str) -> tuple[list[str], Iterator[Row]]:
    """Return the cells of the header of a table, and the rows below it.

    The header is the first row that is no comment, and its first cell a name of ids. R names the
    column of row names by nothing, or leaves it out of the header: such a header begins with an
    empty cell. Empty cells at the end are left out.

    Raises `InputError`: no such header; `expected` is said in the message.
    """
    delimiter = _delimiter(text, where)
    rows = parse_rows(text, where, delimiter)
    for line, cells in rows:
        cells = [cell.strip() for cell in cells]
        while len(cells) > 1 and not cells[-1]:
            cells.pop()
        first = cells[0]
        is_comment = first.startswith("#") and not first.startswith(DIRECTIVE)
        if is_id_header(cells) or (not first and any(cells)):
            return cells, rows
        if is_comment or not first:
            continue
        below = next(rows, (0, []))
        if len(below[1]) == len(cells) + 1:
            return ["", *cells], itertools.chain([below], rows)
        cells_are = f"(cells separated by {DELIMITERS[delimiter]})"
        begins = f"line {line} begins with {first[:60]!r} {cells_are}"
        raise InputError(f"{where}: {begins}, expected {expected}")
    raise InputError(f"{where}: empty or nothing but comments, expected {expected}")
