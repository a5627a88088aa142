"""The classic tab-separated feature table."""

from __future__ import annotations

from array import array

import numpy as np
from scipy.sparse import coo_array

from aam.errors import InputError, Problems
from aam.io.counts import RawTable, whole_counts
from aam.io.text import MAX_PROBLEMS, decoded, unix

TABLE_HEADERS = ("#otu id", "#otuid", "otu id", "#asv id", "#feature id", "feature id", "feature-id")

TAXONOMY_HEADERS = ("taxonomy", "taxon", "consensus lineage", "consensuslineage")

ZEROS = frozenset(("0", "0.0"))


def _header(lines: list[str], where: str) -> tuple[int, list[str]]:
    """Return the number of header lines and the cells of the last of them."""
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
    """Read a classic table: header ``#OTU ID``, a row per feature, a column per sample, at most a taxonomy column.

    Raises `InputError`: not UTF-8, no header, a row of another length, a cell that is no count.
    """
    lines = unix(decoded(blob, where)).rstrip("\n").split("\n")
    skipped, header = _header(lines, where)
    samples = header[1:-1] if header[-1].strip().lower() in TAXONOMY_HEADERS else header[1:]
    problems, features = Problems(), list[str]()
    rows, columns, values = array("i"), array("i"), array("d")
    for number, line in enumerate(lines[skipped:], start=skipped + 1):
        if len(problems.messages) >= MAX_PROBLEMS:
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
