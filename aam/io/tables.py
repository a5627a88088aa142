"""Tables of counts of any format, recognized by their content, and those of text with features in rows."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array

from aam.errors import InputError, Problems
from aam.io.biom import read_hdf5, read_json
from aam.io.counts import RawTable, whole_counts
from aam.io.text import HDF5_MAGIC, MAX_PROBLEMS, decoded, read_bytes, read_content, read_header

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
    for line, cells in body:
        if len(problems.messages) >= MAX_PROBLEMS:
            break
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


def read_raw(path: Path, transpose: bool = False) -> RawTable:
    """Return a table as its file holds it, unchecked; with `transpose` its features are the samples.

    Raises `InputError`: the file cannot be read as a table.
    """
    if read_bytes(path, len(HDF5_MAGIC)) == HDF5_MAGIC:
        table = read_hdf5(path, str(path))
    else:
        reason = "rarefaction needs counts of reads, pass the table as it was before it was normalised"
        blob = read_content(path, {"FeatureTable[Frequency]": "feature-table.biom"}, reason)
        if blob.startswith(HDF5_MAGIC):
            table = read_hdf5(blob, str(path))
        elif blob[:4096].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            table = read_json(blob, str(path))
        else:
            return read_tsv(decoded(blob, path), str(path), transpose)
    return table.transposed() if transpose else table
