"""Reading text: bytes, UTF-8, tab-separated rows, the classic table and FASTA; what every table must be."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from aam.data.artifact import EXEMPT, MAX_RATIO, ZIP_MAGIC, read_artifact
from aam.errors import InputError, Problems, shown

MAX_COUNT = 2**32 - 1
MAX_TEXT = 2 << 30
MOST_PROBLEMS = 10
GZIP_MAGIC = b"\x1f\x8b"

TABLE_HEADERS = ("#otu id", "#otuid", "otu id", "#asv id", "#feature id", "feature id", "feature-id")
TAXONOMY_HEADERS = ("taxonomy", "taxon", "consensus lineage", "consensuslineage")
ZEROS = frozenset(("0", "0.0"))

NOT_DNA = re.compile("[^ACGTUNRYSWKMBDHVacgtunryswkmbdhv]")
CLEAN = bytes.maketrans(b"URYSWKMBDHV", b"TNNNNNNNNNN")


def read_bytes(path: Path, head: int = -1) -> bytes:
    """Content of a file of at most `MAX_TEXT` bytes, or its first `head`; `InputError` if unreadable."""
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
    """UTF-8 text without byte order mark; `InputError` names the first byte that shows another encoding."""
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
    """The text with Unix line ends, whatever it has."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_rows(text: str, where: Path | str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each tab-separated row, quoted as csv has them; any line ends, no blank lines.

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


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table of counts as a file holds it: uint32 `counts` [N, F] and the names of rows and columns."""

    counts: csr_array
    sample_ids: list[str]
    feature_ids: list[str]


def whole_counts(values: npt.NDArray[Any], where: str, place: Callable[[int], str]) -> npt.NDArray[np.uint32]:
    """`values` as uint32; `place` names the position of a value for the message.

    Raises `InputError`: a value is not a whole number of reads from 0 to 2^32 - 1; one problem per kind of
    mistake.
    """
    values = values.astype(np.float64, copy=False)
    finite = np.isfinite(values)
    bad = {
        "not a finite number": ~finite,
        "negative": finite & (values < 0),
        "fractional": finite & (values >= 0) & (np.floor(values) != values),
        f"above {MAX_COUNT}": finite & (values > MAX_COUNT),
    }
    problems = Problems()
    for kind, mask in bad.items():
        if mask.any():
            first = int(np.argmax(mask))
            problems.add(
                f"{where}: {values[first]:g} at {place(first)} is {kind} ({int(mask.sum())} such values), "
                "expected whole reads; pass the table as it was before it was normalised"
            )
    problems.raise_if_any()
    return values.astype(np.uint32)


def finished(raw: RawTable, where: str) -> RawTable:
    """The table with checked ids, rows sorted by column, and zeros dropped.

    Raises `InputError`: no samples or features, no reads at all, empty or duplicate ids, a count that is
    given twice.
    """
    problems = Problems()
    for kind, ids in (("sample", raw.sample_ids), ("feature", raw.feature_ids)):
        if not ids:
            problems.add(f"{where}: the table is empty, it has no {kind}s")
        if empty := [place for place, name in enumerate(ids, start=1) if not name.strip()]:
            problems.add(f"{where}: {len(empty)} {kind} ids are empty, the first is {kind} {empty[0]}")
        if odd := [ascii(name) for name in ids if not name.isprintable()]:
            problems.add(f"{where}: {kind} ids hold characters that cannot be printed: {shown(odd)}")
        if repeated := [name for name, times in Counter(ids).items() if times > 1]:
            problems.add(f"{where}: {len(repeated)} {kind} ids occur more than once: {shown(repeated)}")
    problems.raise_if_any()
    counts = raw.counts
    counts.sort_indices()
    if not counts.has_canonical_format:
        entries = counts.tocoo()
        first = int(np.argmax((np.diff(entries.col) == 0) & (np.diff(entries.row) == 0)))
        sample, feature = raw.sample_ids[entries.row[first]], raw.feature_ids[entries.col[first]]
        raise InputError(f"{where}: sample {sample!r}, feature {feature!r} has two counts, expected one")
    counts.eliminate_zeros()
    if counts.nnz == 0:
        raise InputError(f"{where}: the table is empty, all counts are 0")
    return raw


def _header(lines: list[str], where: str) -> tuple[int, list[str]]:
    """Number of header lines and the cells of the last of them."""
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if cells[0].strip().lower() in TABLE_HEADERS:
            return number, cells
        if not line.startswith("#"):
            break
    raise InputError(
        f"{where}: line {number} begins with {cells[0][:40]!r}, expected a table: BIOM, .qza, or "
        "tab-separated text with a header line '#OTU ID', features in rows and samples in columns"
    )


def read_tsv(blob: bytes, where: str) -> RawTable:
    """A classic table: header ``#OTU ID``, a row per feature, a column per sample, at most a taxonomy column.

    Raises `InputError`: not UTF-8, no header, a row of another length, a cell that is no count.
    """
    lines = unix(decoded(blob, where)).rstrip("\n").split("\n")
    skipped, header = _header(lines, where)
    samples = header[1:-1] if header[-1].strip().lower() in TAXONOMY_HEADERS else header[1:]
    problems, features = Problems(), list[str]()
    rows, columns, values = array("i"), array("i"), array("d")
    for number, line in enumerate(lines[skipped:], start=skipped + 1):
        if len(problems.found) >= MOST_PROBLEMS:
            break
        place, cells = f"{where}: line {number}", line.split("\t")
        if len(cells) != len(header):
            problems.add(f"{place} has {len(cells)} columns, expected {len(header)} as in the header")
            continue
        for column, cell in enumerate(cells[1 : len(samples) + 1]):
            if cell in ZEROS:
                continue
            try:
                # Python also reads 1_000 as a number.
                values.append(float(cell.replace("_", "?")))
            except ValueError:
                problems.add(f"{place}: sample {samples[column]!r} has {cell[:40]!r}, expected a count")
                continue
            rows.append(len(features))
            columns.append(column)
        features.append(cells[0])
    problems.raise_if_any()
    counts = whole_counts(
        np.array(values), where, lambda k: f"line {rows[k] + skipped + 1}, sample {samples[columns[k]]!r}"
    )
    table = coo_array((counts, (columns, rows)), shape=(len(samples), len(features)))
    return RawTable(table.tocsr(), samples, features)


def first_not_dna(sequence: str) -> str:
    """The first character that is no nucleotide letter, for a message; empty when there is none."""
    found = NOT_DNA.search(sequence)
    return found.group() if found else ""


def clean(sequences: Sequence[str]) -> list[str]:
    """Upper-case DNA of valid sequences: U becomes T, IUPAC letters other than ACGTU become N."""
    joined = "\n".join(sequences).upper().encode("ascii").translate(CLEAN).decode("ascii")
    return joined.split("\n") if sequences else []


def _unpacked(blob: bytes, path: Path) -> bytes:
    limit = min(MAX_TEXT, EXEMPT + MAX_RATIO * len(blob))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(blob)) as file:
            text = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error})") from error
    if len(text) > limit:
        raise InputError(f"{path}: unpacks to more than {limit} bytes, is it damaged?")
    return text


def _records(text: str, path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, id and sequence of each FASTA record."""
    before, *records = f"\n{text}".split("\n>")
    if before.strip():
        number, line = next((n, line) for n, line in enumerate(before.split("\n")) if line.strip())
        raise InputError(f"{path}: line {number} is {line[:40]!r}, expected FASTA that begins with '>'")
    number = before.count("\n") + 1
    for record in records:
        title, *parts = record.split("\n")
        yield number, (title.split() or [""])[0], "".join(part.strip() for part in parts)
        number += 1 + len(parts)


def read_fasta(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """Clean sequences of the `wanted` ids from FASTA (plain or gzip) or ``FeatureData[Sequence]`` (.qza).

    Raises `InputError`: no FASTA, a duplicate id, or a wanted sequence that is empty or holds a gap or
    another letter.
    """
    blob = read_bytes(path)
    if blob.startswith(ZIP_MAGIC):
        blob = read_artifact(path, ["FeatureData[Sequence]"]).file("dna-sequences.fasta")
    elif blob.startswith(GZIP_MAGIC):
        blob = _unpacked(blob, path)
    keep, problems = frozenset(wanted), Problems()
    found: dict[str, str] = {}
    for number, name, sequence in _records(unix(decoded(blob, path)), path):
        if name not in keep:
            continue
        if name in found:
            problems.add(f"{path}: line {number}: the id {name!r} occurs a second time")
        elif not sequence:
            problems.add(f"{path}: line {number}: {name!r} has no sequence")
        elif letter := first_not_dna(sequence):
            hint = "; pass sequences that are not aligned" if letter in "-." else ""
            problems.add(f"{path}: line {number}: {name!r} holds {letter!r}, expected nucleotides{hint}")
        found[name] = sequence
        if len(problems.found) >= MOST_PROBLEMS:
            break
    problems.raise_if_any()
    return dict(zip(found, clean(list(found.values())), strict=True))
