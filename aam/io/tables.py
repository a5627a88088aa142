"""Tables of counts as files hold them, and the checks that every table passes; DNA of features from FASTA and ids.

BIOM 2.1 (HDF5) is read in slabs with sizes checked first; 1.0 (JSON) is read and 2.1 written by biom-format.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import coo_array, csr_array

import aam
from aam.errors import InputError, Problems, shown
from aam.io.hdf5 import create_hdf5, dataset, open_hdf5
from aam.io.text import decoded, read_header, read_text, unix, until_full

MAX_COUNT = 2**32 - 1

FEATURE_HEADERS = frozenset(("#otu id", "#otuid", "otu id", "#asv id", "#feature id", "feature id", "feature-id"))
SAMPLE_HEADERS = frozenset(("sample-id", "sample_id", "sampleid", "#sampleid", "sample id", "#sample id", "sample"))
TAXONOMY_HEADERS = frozenset(("taxonomy", "taxon", "consensus lineage", "consensuslineage"))
EXPECTED = (
    "a table: BIOM, .qza, or text with tabs, commas or semicolons and a header line '#OTU ID', features in rows and "
    "samples in columns"
)

ZEROS = frozenset(("0", "0.0"))

# A name that is a sequence; names of samples are not.
SEQUENCE = re.compile("[ACGTUN]{20,}", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table of counts as a file holds it: uint32 `counts` [N, F] and the names of rows and columns."""

    counts: csr_array
    sample_ids: list[str]
    feature_ids: list[str]

    def transposed(self) -> RawTable:
        """Return the table with samples and features exchanged."""
        return RawTable(csr_array(self.counts.T), self.feature_ids, self.sample_ids)


def whole_counts(values: npt.NDArray[Any], where: str, place: Callable[[int], str]) -> npt.NDArray[np.uint32]:
    """Return `values` as uint32; `place` names the position of a value for the message.

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
            missing = np.isnan(values[first])
            remedy = "0 where there are none" if missing else "the table as it was before it was normalised"
            problems.add(
                f"{where}: {values[first]:g} at {place(first)} is {kind} ({int(mask.sum())} such values), "
                f"expected whole reads; pass {remedy}"
            )
    problems.raise_if_any()
    return values.astype(np.uint32)


def checked_table(raw: RawTable, where: str) -> RawTable:
    """Return the table with checked ids, rows sorted by column, and zeros dropped.

    Raises `InputError`: no samples, features or reads; ids that are empty, cannot be printed or occur twice; two counts
    of one feature in a sample.
    """
    problems = Problems()
    for kind, ids in (("sample", raw.sample_ids), ("feature", raw.feature_ids)):
        if not ids:
            problems.add(f"{where}: the table is empty, it has no {kind}s")
        if empty := [place for place, name in enumerate(ids, start=1) if not name.strip()]:
            problems.add(f"{where}: {len(empty)} {kind} ids are empty, the first is {kind} {empty[0]}")
        if odd := [ascii(name) for name in ids if not name.isprintable()]:
            problems.add(f"{where}: {kind} ids hold characters that cannot be printed: {shown(odd)}")
        if len(set(ids)) < len(ids):
            repeated = [name for name, times in Counter(ids).items() if times > 1]
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


def read_tsv(text: str, where: str, transpose: bool = False) -> RawTable:
    """Read a table of text: header ``#OTU ID``, a row per feature, a column per sample, at most a taxonomy column.

    Tabs, commas or semicolons separate the cells. With `transpose` samples are in rows.

    Raises `InputError`: not UTF-8, no header, samples in rows, a row of another length, a cell that is no count.
    """
    header, body = read_header(text, where, FEATURE_HEADERS | SAMPLE_HEADERS, EXPECTED)
    names = header[1:-1] if header[-1].lower() in TAXONOMY_HEADERS else header[1:]
    by_sample = header[0].lower() in SAMPLE_HEADERS or (names and all(map(SEQUENCE.fullmatch, names)))
    if by_sample and not transpose:
        raise InputError(
            f"{where}: samples are in rows and features in columns (the header begins {header[:2]!r:.60}), as DADA2 "
            "has them; pass --transpose to read it so"
        )
    kind = "feature" if transpose else "sample"
    problems, row_names, lines = Problems(), list[str](), list[int]()
    rows, columns, values = array("i"), array("i"), array("d")
    for line, cells in until_full(body, problems):
        if len(cells) != len(header):
            problems.add(f"{where}: line {line} has {len(cells)} columns, expected {len(header)} as in the header")
            continue
        for column, cell in enumerate(cells[1 : len(names) + 1]):
            if cell in ZEROS:
                continue
            try:
                # Python also reads 1_000 as a number.
                values.append(float(cell.replace("_", "?")))
            except ValueError:
                problems.add(f"{where}: line {line}: {kind} {names[column]!r} has {cell[:40]!r}, expected a count")
                continue
            rows.append(len(row_names))
            columns.append(column)
        row_names.append(cells[0])
        lines.append(line)
    problems.raise_if_any()
    counts = whole_counts(np.array(values), where, lambda k: f"line {lines[rows[k]]}, {kind} {names[columns[k]]!r}")
    matrix = coo_array((counts, (columns, rows)), shape=(len(names), len(row_names)))
    table = RawTable(matrix.tocsr(), names, row_names)
    return table.transposed() if transpose else table


Counts: TypeAlias = sparse.csr_matrix | sparse.csr_array

# Parsed, JSON takes up to twenty times its size.
MAX_JSON = 64 << 20
MAX_ID_BYTES = 4 << 30
SLAB = 1 << 20
ID_SLAB = 1 << 12
DATASETS = ("sample/ids", "observation/ids", *(f"sample/matrix/{name}" for name in ("data", "indices", "indptr")))

# Constant, so that the same table gives the same bytes on every day.
CREATED = datetime(1970, 1, 1)


def _ids(file: h5py.File, axis: str, where: str) -> list[str]:
    # biom-format stores the ids of an empty axis as numbers.
    if getattr(file.get(f"{axis}/ids"), "shape", None) == (0,):
        return []
    stored = dataset(file, f"{axis}/ids", "OS", where)
    if h5py.check_string_dtype(stored.dtype) is None:
        raise InputError(f"{where}: {axis}/ids is {stored.dtype}, expected text")
    ids: list[str] = []
    left = MAX_ID_BYTES
    for start in range(0, stored.size, ID_SLAB):
        for name in map(bytes, stored[start : start + ID_SLAB]):
            left -= len(name)
            try:
                ids.append(name.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: {axis}/ids[{len(ids)}] is not UTF-8: {name[:40]!r}") from error
        if left < 0:
            raise InputError(f"{where}: {axis}/ids are longer than {MAX_ID_BYTES} bytes together")
    return ids


def _indptr(file: h5py.File, samples: list[str], entries: int, where: str) -> npt.NDArray[np.int64]:
    ends = dataset(file, "sample/matrix/indptr", "iu", where)
    if ends.size != len(samples) + 1:
        raise InputError(f"{where}: sample/matrix/indptr has {ends.size} entries, expected {len(samples) + 1}")
    indptr = np.asarray(ends[:].astype(np.int64))
    if indptr[0] != 0 or indptr[-1] != entries or (np.diff(indptr) < 0).any():
        raise InputError(f"{where}: sample/matrix/indptr does not rise from 0 to {entries}; it is damaged")
    return indptr


def _matrix(file: h5py.File, samples: list[str], features: list[str], where: str) -> sparse.csr_array:
    """Return the counts [N, F] of the sample-major matrix, a slab of its entries at a time."""
    data = dataset(file, "sample/matrix/data", "iuf", where)
    positions = dataset(file, "sample/matrix/indices", "iu", where)
    if data.size != positions.size:
        raise InputError(f"{where}: sample/matrix has {data.size} counts and {positions.size} indices")
    indptr = _indptr(file, samples, data.size, where)
    counts, columns = np.empty(data.size, np.uint32), np.empty(data.size, np.int32)

    def place(entry: int) -> str:
        row = int(np.searchsorted(indptr, entry, side="right")) - 1
        return f"sample {samples[row]!r}, feature {features[columns[entry]]!r}"

    for start in range(0, data.size, SLAB):
        some = slice(start, start + SLAB)
        index = positions[some]
        wrong = index[(index < 0) | (index >= len(features))]
        if wrong.size:
            raise InputError(f"{where}: sample/matrix/indices holds {wrong[0]}, expected 0 to {len(features) - 1}")
        columns[some] = index
        counts[some] = whole_counts(data[some], where, lambda entry, start=start: place(start + entry))  # type: ignore[misc]
    # As narrow as the columns, which SciPy would widen otherwise.
    return sparse.csr_array((counts, columns, indptr.astype(np.int32)), shape=(len(samples), len(features)))


def read_hdf5(source: Path | bytes, where: str) -> RawTable:
    """Read a BIOM 2.1 table, from a file or from bytes, of which the sample-major matrix only is read.

    Raises `InputError`: a dataset missing, of another type or length, or larger than what is stored; an index out of
    bounds; a count that is not whole.
    """
    with open_hdf5(source, f"{where}: not a readable HDF5 file") as file:
        version = np.asarray(file.attrs.get("format-version", (2, 1))).ravel().tolist()
        if version[:1] != [2]:
            raise InputError(f"{where}: BIOM format-version is {version}, expected [2, 1]")
        if missing := [name for name in DATASETS if name not in file]:
            raise InputError(
                f"{where}: no dataset {shown(missing, len(DATASETS))}, expected a BIOM 2.1 table; make one of another "
                "file with `biom convert --to-hdf5`"
            )
        samples, features = _ids(file, "sample", where), _ids(file, "observation", where)
        shape = np.asarray(file.attrs.get("shape", ())).ravel().tolist()
        expected = [len(features), len(samples)]
        if shape != expected:
            raise InputError(f"{where}: attribute 'shape' is {shape}, expected {expected} as the ids")
        return RawTable(_matrix(file, samples, features, where), samples, features)


def read_json(blob: bytes, where: str) -> RawTable:
    """Read a BIOM 1.0 table, sparse or dense, by biom-format; `InputError` when it is not one."""
    if len(blob) > MAX_JSON:
        raise InputError(f"{where}: above {MAX_JSON} bytes of JSON; use biom convert --to-hdf5")
    text = decoded(blob, where)
    from biom import Table
    from biom.exception import BiomException

    try:
        document = json.loads(text)
        shape = [len(document[axis]) for axis in ("rows", "columns")]
        if document["shape"] != shape:
            raise InputError(f"{where}: 'shape' is {document['shape']!r:.60}, expected {shape}")
        table = Table.from_json(document)
        names = [[str(name) for name in table.ids(axis)] for axis in ("sample", "observation")]
        matrix = sparse.csr_array(table.matrix_data.T)
        # biom-format adds counts that stand there twice, and takes rows that do not for zeros.
        entries, is_dense = document["data"], document["matrix_type"] == "dense"
        if (len(entries) != shape[0]) if is_dense else (sum(entry[2] != 0 for entry in entries) != matrix.nnz):
            raise InputError(f"{where}: 'data' lacks a row, or has two counts for one feature in a sample")
    except InputError:
        raise
    except (BiomException, OverflowError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise InputError(f"{where}: not a readable BIOM 1.0 table ({reason}); see biom validate-table") from error
    samples, features = names
    rows, columns = matrix.tocoo().coords

    def place(entry: int) -> str:
        return f"sample {samples[rows[entry]]!r}, feature {features[columns[entry]]!r}"

    counts = whole_counts(matrix.data, where, place)
    return RawTable(sparse.csr_array((counts, matrix.indices, matrix.indptr), shape=matrix.shape), samples, features)


def write_hdf5(path: Path, parts: Iterable[Counts], sample_ids: Sequence[str], feature_ids: Sequence[str]) -> None:
    """Write reads as a BIOM 2.1 file by biom-format, whole or not at all; equal tables give equal bytes.

    Parameters
    ----------
    path : Path
    parts : iterable of sparse matrices [samples, features]
        Some samples each, in order; how they are cut changes no byte.
    sample_ids, feature_ids : sequence of str

    Raises
    ------
    InputError
        Ids that do not fit the shape or occur twice.
    """
    from biom import Table

    for kind, ids in (("sample", sample_ids), ("feature", feature_ids)):
        if len(set(ids)) < len(ids):
            raise InputError(f"{path}: Duplicate {kind} ids")
    counts = sparse.csr_matrix(sparse.vstack(list(parts), format="csr"))
    if counts.shape[0] != len(sample_ids):
        raise InputError(f"{path}: {counts.shape[0]} samples have the ids {shown(sample_ids)}")
    counts.sum_duplicates()
    # As objects; of text NumPy makes four bytes for each letter of the longest id.
    names = (np.array(ids, dtype=object) for ids in (feature_ids, sample_ids))
    table = Table(counts.T, *names, type="OTU table")
    with create_hdf5(path) as file:
        table.to_hdf5(file, f"aam {aam.__version__}", creation_date=CREATED)


NOT_DNA = re.compile("[^ACGTUNRYSWKMBDHVacgtunryswkmbdhv]")

# Sequences that are cleaned at a time.
CLEANED_AT_ONCE = 1 << 14

CLEAN = bytes.maketrans(b"URYSWKMBDHV", b"TNNNNNNNNNN")


def first_not_dna(sequence: str) -> str:
    """Return the first character that is no nucleotide letter, for a message; empty when there is none."""
    match = NOT_DNA.search(sequence)
    return match.group() if match else ""


def clean(sequences: Sequence[str]) -> list[str]:
    """Return upper-case DNA of valid sequences: U becomes T, IUPAC letters other than ACGTU become N.

    What is clean already is returned as the object that it is, so that a large table holds it once.
    """
    result: list[str] = []
    for start in range(0, len(sequences), CLEANED_AT_ONCE):
        some = sequences[start : start + CLEANED_AT_ONCE]
        joined = "\n".join(some).upper().encode("ascii").translate(CLEAN).decode("ascii")
        result += [old if old == new else new for old, new in zip(some, joined.split("\n"), strict=True)]
    return result


def _records(text: str, path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, id and sequence of each FASTA record."""
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
    """Return clean sequences of the `wanted` ids from FASTA (plain or gzip) or ``FeatureData[Sequence]`` (.qza).

    Raises `InputError`: no FASTA, a duplicate id, or a wanted sequence that is empty or holds a gap or
    another letter.
    """
    text = read_text(path, {"FeatureData[Sequence]": "dna-sequences.fasta"})
    keep, problems = frozenset(wanted), Problems()
    sequences: dict[str, str] = {}
    for number, name, sequence in until_full(_records(unix(text), path), problems):
        if name not in keep:
            continue
        if name in sequences:
            problems.add(f"{path}: line {number}: the id {name!r} occurs a second time")
        elif not sequence:
            problems.add(f"{path}: line {number}: {name!r} has no sequence")
        elif letter := first_not_dna(sequence):
            hint = "; pass sequences that are not aligned" if letter in "-." else ""
            problems.add(f"{path}: line {number}: {name!r} holds {letter!r}, expected nucleotides{hint}")
        sequences[name] = sequence
    problems.raise_if_any()
    return dict(zip(sequences, clean(list(sequences.values())), strict=True))
