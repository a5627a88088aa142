"""The classic TSV table and FASTA, and what every reader of tables checks."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.data.artifact import EXEMPT, MAX_RATIO, PIECE, ZIP_MAGIC, read_artifact
from aam.errors import InputError, Problems, shown

MAX_COUNT = 2**32 - 1
MAX_TEXT = 2 << 30
MOST_PROBLEMS = 10

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

TABLE_HEADERS = ("#otu id", "#otuid", "otu id", "#asv id", "#feature id", "feature id", "feature-id")
TAXONOMY_HEADERS = ("taxonomy", "taxon", "consensus lineage", "consensuslineage")
ZEROS = frozenset(("0", "0.0"))

NOT_DNA = re.compile("[^ACGTUNRYSWKMBDHVacgtunryswkmbdhv]")
CLEAN = bytes.maketrans(b"URYSWKMBDHV", b"TNNNNNNNNNN")


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table of counts as a file holds it: uint32 `counts` [N, F] and the names of rows and columns."""

    counts: csr_array
    sample_ids: list[str]
    feature_ids: list[str]


# --- bytes and text ----------------------------------------------------------------------------------------


def read_bytes(path: Path, limit: int = MAX_TEXT) -> bytes:
    """Content of a file of at most `limit` bytes; `InputError` when it cannot be read."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise InputError(
                f"{path}: {size} bytes, expected at most {limit}; pass a BIOM HDF5 table instead"
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def decoded(blob: bytes, where: str) -> str:
    """UTF-8 text with Unix line ends, or an `InputError` that says where it is something else."""
    for mark, name in BYTE_ORDER_MARKS.items():
        if blob.startswith(mark):
            raise InputError(f"{where}: begins with a byte order mark ({name}); save as UTF-8 without BOM")
    try:
        text = blob.decode("utf-8")
    except UnicodeDecodeError as error:
        line = blob.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{where}: line {line}: byte 0x{blob[error.start]:02x} is not UTF-8 text; if it is Latin-1, "
            "convert the file with `iconv -f latin1 -t utf-8`"
        ) from error
    if (place := text.find("\r")) >= 0:
        line = text.count("\n", 0, place) + 1
        raise InputError(
            f"{where}: line {line} has a carriage return (Windows line end), expected Unix ones; convert "
            "the file with `sed -i 's/\\r$//'`"
        )
    return text


# --- what every table must be ------------------------------------------------------------------------------


def whole_counts(values: npt.NDArray[Any], where: str, place: Callable[[int], str]) -> npt.NDArray[np.uint32]:
    """`values` as uint32; `place` names the position of a value for the message.

    Raises
    ------
    InputError
        A value is not a whole number of reads from 0 to 2^32 - 1; one problem per kind of mistake.
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


def _check_ids(ids: Sequence[str], kind: str, where: str, problems: Problems) -> None:
    if not ids:
        problems.add(f"{where}: the table is empty, it has no {kind}s")
    empty = [place for place, name in enumerate(ids, start=1) if not name.strip()]
    if empty:
        problems.add(f"{where}: {len(empty)} {kind} ids are empty, the first is {kind} {empty[0]}")
    unprintable = [name for name in ids if not name.isprintable()]
    if unprintable:
        problems.add(
            f"{where}: {kind} ids hold characters that cannot be printed: {shown(map(ascii, unprintable))}"
        )
    repeated = [name for name, times in Counter(ids).items() if times > 1]
    if repeated:
        problems.add(f"{where}: {len(repeated)} {kind} ids occur more than once: {shown(repeated)}")


def finished(raw: RawTable, where: str) -> RawTable:
    """The table with checked ids, rows sorted by column, and zeros dropped.

    Raises
    ------
    InputError
        No samples or features, no reads at all, empty or duplicate ids, a count that is given twice.
    """
    problems = Problems()
    _check_ids(raw.sample_ids, "sample", where, problems)
    _check_ids(raw.feature_ids, "feature", where, problems)
    problems.raise_if_any()
    counts = raw.counts
    counts.sort_indices()
    if not counts.has_canonical_format:
        rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        twice = (np.diff(counts.indices) == 0) & (np.diff(rows) == 0)
        first = int(np.argmax(twice))
        sample, feature = raw.sample_ids[rows[first]], raw.feature_ids[counts.indices[first]]
        raise InputError(f"{where}: sample {sample!r}, feature {feature!r} has two counts, expected one")
    counts.eliminate_zeros()
    if counts.nnz == 0:
        raise InputError(f"{where}: the table is empty, all counts are 0")
    return raw


# --- the classic table -------------------------------------------------------------------------------------


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


def _row(cells: list[str], samples: list[str], place: str) -> tuple[list[int], npt.NDArray[np.uint32]]:
    """Columns and counts of the cells that are not 0."""
    problems = Problems()
    columns, values = [], []
    for column, cell in enumerate(cells):
        if cell in ZEROS:
            continue
        try:
            # Python also reads 1_000 as a number.
            values.append(float(cell.replace("_", "?")))
            columns.append(column)
        except ValueError:
            problems.add(f"{place}: sample {samples[column]!r} has {cell[:40]!r}, expected a count")
    try:
        counts = whole_counts(np.array(values), place, lambda k: f"sample {samples[columns[k]]!r}")
    except InputError as error:
        problems.extend(error)
    problems.raise_if_any()
    return columns, counts


def read_tsv(blob: bytes, where: str) -> RawTable:
    """A classic table: header ``#OTU ID``, a row per feature, a column per sample, at most a taxonomy column.

    Raises
    ------
    InputError
        Not UTF-8 with Unix line ends, no header, a row of another length, a cell that is no count.
    """
    lines = decoded(blob, where).split("\n")
    while len(lines) > 1 and not lines[-1]:
        del lines[-1]
    skipped, header = _header(lines, where)
    samples = header[1:]
    if samples and samples[-1].strip().lower() in TAXONOMY_HEADERS:
        del samples[-1]
    problems = Problems()
    features: list[str] = []
    indices, data = [np.zeros(0, np.int32)], [np.zeros(0, np.uint32)]
    for number, line in enumerate(lines[skipped:], start=skipped + 1):
        cells = line.split("\t")
        place = f"{where}: line {number}"
        if len(cells) != len(header):
            problems.add(f"{place} has {len(cells)} columns, expected {len(header)} as in the header")
        else:
            try:
                columns, counts = _row(cells[1 : len(samples) + 1], samples, place)
            except InputError as error:
                problems.extend(error)
            else:
                features.append(cells[0])
                indices.append(np.array(columns, dtype=np.int32))
                data.append(counts)
        if len(problems.found) >= MOST_PROBLEMS:
            break
    problems.raise_if_any()
    indptr = np.cumsum([0, *map(len, indices[1:])])
    by_feature = csr_array(
        (np.concatenate(data), np.concatenate(indices), indptr), shape=(len(features), len(samples))
    )
    return RawTable(by_feature.T.tocsr(), samples, features)


# --- sequences ---------------------------------------------------------------------------------------------


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
            text = b"".join(iter(lambda: file.read(PIECE) if file.tell() <= limit else b"", b""))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error})") from error
    if len(text) > limit:
        raise InputError(f"{path}: unpacks to more than {limit} bytes, is it damaged?")
    return text


def _records(text: str, where: str) -> Iterator[tuple[int, str, str]]:
    """Line number, id and sequence of each FASTA record."""
    name, start, parts = "", 0, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith(">"):
            if start:
                yield start, name, "".join(parts)
            name, start, parts = (line[1:].split() or [""])[0], number, []
        elif start:
            parts.append(line.strip())
        elif line.strip():
            raise InputError(
                f"{where}: line {number} is {line[:40]!r}, expected a FASTA record that begins with '>'"
            )
    if start:
        yield start, name, "".join(parts)


def read_fasta(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """Clean sequences of the `wanted` ids from FASTA (plain or gzip) or ``FeatureData[Sequence]`` (.qza).

    Raises
    ------
    InputError
        No FASTA, a duplicate id, or a wanted sequence that is empty or holds a gap or another letter.
    """
    blob = read_bytes(path)
    where = str(path)
    if blob.startswith(ZIP_MAGIC):
        blob = read_artifact(path, ["FeatureData[Sequence]"]).file("dna-sequences.fasta")
    elif blob.startswith(GZIP_MAGIC):
        blob = _unpacked(blob, path)
    keep = frozenset(wanted)
    found: dict[str, str] = {}
    problems = Problems()
    for number, name, sequence in _records(decoded(blob, where), where):
        if name not in keep:
            continue
        if name in found:
            problems.add(f"{where}: line {number}: the id {name!r} occurs a second time")
        elif not sequence:
            problems.add(f"{where}: line {number}: {name!r} has no sequence")
        elif letter := first_not_dna(sequence):
            hint = "; pass sequences that are not aligned" if letter in "-." else ""
            problems.add(f"{where}: line {number}: {name!r} holds {letter!r}, expected nucleotides{hint}")
        found[name] = sequence
        if len(problems.found) >= MOST_PROBLEMS:
            break
    problems.raise_if_any()
    return dict(zip(found, clean(list(found.values())), strict=True))
