"""Reading text: bytes of bounded size, UTF-8, tab-separated rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from aam.errors import InputError

MAX_TEXT = 2 << 30

MAX_PROBLEMS = 10

GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path, head: int = -1) -> bytes:
    """Return the content of a file of at most `MAX_TEXT` bytes, or its first `head`; `InputError` if unreadable."""
    try:
        with path.open("rb") as file:
            if head < 0 and (size := path.stat().st_size) > MAX_TEXT:
                raise InputError(f"{path}: {size} bytes, at most {MAX_TEXT} are read; use BIOM HDF5")
            return file.read(head)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def decoded(blob: bytes, where: Path | str) -> str:
    """Return UTF-8 text without byte order mark; `InputError` names the first byte that shows another encoding."""
    if blob.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{where}: is UTF-16 (Excel's 'Unicode text'), expected UTF-8; save as UTF-8")
    text, position = "", blob.find(b"\0")
    try:
        text = blob.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        position = error.start
    if position >= 0:
        line = blob.count(b"\n", 0, position) + 1
        raise InputError(
            f"{where}: line {line}: byte 0x{blob[position]:02x} at byte position {position} is not UTF-8 "
            "text; save as UTF-8, or convert Latin-1 with `iconv -f latin1 -t utf-8`"
        )
    return text


def unix(text: str) -> str:
    """Return the text with Unix line ends, whatever it has."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_rows(text: str, where: Path | str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each tab-separated row, quoted as csv has them; any line ends, no blank lines.

    Raises `InputError`: quotes that do not close, while the faulty row is read.
    """
    reader = csv.reader(io.StringIO(text, newline=""), dialect="excel-tab", strict=True)
    line = 0
    try:
        for cells in reader:
            line = reader.line_num
            if cells:
                yield line, cells
    except csv.Error as error:
        raise InputError(
            f"{where}: the row that begins on line {line + 1} cannot be read ({error}); a double quote is "
            'open or inside a cell: write it twice ("") in a quoted cell, or remove it'
        ) from error
