"""Tab-separated text files as rows of cells: bounded, UTF-8, quoted as spreadsheets quote."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from aam.errors import InputError

Row = tuple[int, list[str]]

MAX_BYTES = 512 << 20


def read_bytes(path: Path) -> bytes:
    """Content of a file of at most `MAX_BYTES`; `InputError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes; keep only the columns that are needed")
    return raw


def decoded(raw: bytes, path: Path) -> str:
    """UTF-8 text without its byte order mark; `InputError` names the first byte that is none."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path}: is UTF-16 (Excel's 'Unicode text'), expected UTF-8; save as UTF-8")
    skip = len(codecs.BOM_UTF8) if raw.startswith(codecs.BOM_UTF8) else 0
    text, position = "", raw.find(b"\0")
    try:
        text = raw[skip:].decode("utf-8")
    except UnicodeDecodeError as error:
        position = skip + error.start
    if position >= 0:
        line = raw.count(b"\n", 0, position) + 1
        raise InputError(
            f"{path}: byte 0x{raw[position]:02x} at byte position {position} (line {line}) is not UTF-8 "
            "text; save as UTF-8"
        )
    return text


def parse_rows(text: str, path: Path) -> Iterator[Row]:
    """Line number and cells of each row, blank lines left out; any line ends, quoted cells as csv has them.

    Raises
    ------
    InputError
        Quotes that do not close, while the faulty row is read.
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
            f"{path}: the row that begins on line {line + 1} cannot be read ({error}); a double quote is "
            'open or inside a cell: write it twice ("") in a quoted cell, or remove it'
        ) from error
