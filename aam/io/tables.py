"""Tables of counts as a file holds them: the checks that every table passes, and those of text."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from aam.errors import InputError, Problems, shown
from aam.io.ids import SAMPLE_HEADERS, folded_header
from aam.io.text import read_header, until_full

MAX_COUNT = 2**32 - 1

TAXONOMY_HEADERS = frozenset(("taxonomy", "taxon", "consensuslineage", "lineage"))
EXPECTED = (
    "a table: BIOM, .qza, or text with tabs, commas or semicolons and a header line '#OTU ID', "
    "features in rows and "
    "samples in columns"
)

ZEROS = frozenset(("0", "0.0"))

PRINTABLE = bytes(range(0x20, 0x7F))

# Entries of the matrix that are looked at together.
ENTRIES = 1 << 20

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class AmpliconTable:
    """Reads of each feature in each sample, which scikit-learn can divide: rows are samples.

    Made by `aam.read_table`, never by hand.

    Attributes
    ----------
    counts : csr [N, F]
        Reads in the narrowest unsigned type, without stored zeros, columns of each row ascending.
    sample_ids, feature_ids : tuple of str
        Names of rows and columns, as the file has them.
    sequences : tuple of str
        Upper-case DNA of the features in ascending order. It is empty for a table of OTUs, taxa or
        hashes, whose `feature_ids` ascend.
    """

    counts: csr_array
    sample_ids: tuple[str, ...]
    feature_ids: tuple[str, ...]
    sequences: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return len(self.sample_ids), len(self.feature_ids)

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, rows: Any) -> AmpliconTable:
        """Return the samples at `rows`: a slice, a mask or positions; all features stay."""
        rows = rows[0] if isinstance(rows, tuple) else rows
        chosen = np.atleast_1d(np.arange(len(self))[rows])
        names = tuple(self.sample_ids[row] for row in chosen)
        return replace(self, counts=self.counts[chosen], sample_ids=names)

    def __repr__(self) -> str:
        return (
            f"AmpliconTable({len(self)} samples, {len(self.feature_ids)} features, "
            f"{self.counts.sum()} reads)"
        )

    def transposed(self) -> AmpliconTable:
        """Return the table with samples and features exchanged."""
        return AmpliconTable(csr_array(self.counts.T), self.feature_ids, self.sample_ids)

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which features of two tables are the same: sequences, or ids without them."""
        return self.sequences or self.feature_ids

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Return the row of each sample by its id."""
        return {name: row for row, name in enumerate(self.sample_ids)}

    @cached_property
    def depths(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def row(self, row: int) -> tuple[Integers, Integers]:
        """Return the columns [S], ascending, and their reads [S] in one sample."""
        start, stop = self.counts.indptr[row], self.counts.indptr[row + 1]
        return self.counts.indices[start:stop], self.counts.data[start:stop]

    def blocks(
        self, rows: npt.NDArray[np.int64] | None = None
    ) -> Iterator[tuple[slice, csr_array]]:
        """Yield the counts of all samples, or of those at `rows`, some at a time, and which these
        are.
        """
        rows = np.arange(len(self.sample_ids)) if rows is None else rows
        size = max(1, ENTRIES * self.counts.shape[0] // max(self.counts.nnz, 1))
        for start in range(0, len(rows), size):
            yield (
                slice(start, min(start + size, len(rows))),
                self.counts[rows[start : start + size]],
            )

    def columns_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the columns, ascending, of which some of the samples at `rows` have reads."""
        present = np.zeros(self.counts.shape[1], bool)
        for _, block in self.blocks(rows):
            present[block.indices] = True
        return np.flatnonzero(present)

    @cached_property
    def reads_of_asvs(self) -> npt.NDArray[np.int64]:
        """Reads of each ASV in all samples, [F]."""
        reads = np.zeros(self.counts.shape[1], np.int64)
        for _, block in self.blocks():
            reads += np.bincount(block.indices, block.data, len(reads)).astype(np.int64)
        return reads

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Nucleotides of each ASV, [F]."""
        return np.fromiter(map(len, self.sequences), np.int64, len(self.sequences))


def whole_counts(
    values: npt.NDArray[Any], where: str, place: Callable[[int], str]
) -> npt.NDArray[np.uint32]:
    """Return `values` as uint32; `place` names the position of a value for the message.

    Raises `InputError`: a value is not a whole number of reads from 0 to 2^32 - 1; one problem per
    kind of mistake.
    """
    if values.dtype.kind not in "iu" and values.dtype != np.float32:
        values = values.astype(np.float64, copy=False)
    if not values.size:
        return values.astype(np.uint32)
    # NaN is neither. A comparison with what was cast is several times as fast as looking for what
    # is wrong.
    if (
        float(values.min()) >= 0
        and float(values.max()) <= MAX_COUNT
        and ((counts := values.astype(np.uint32)) == values).all()
    ):
        return counts
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
            remedy = (
                "0 where there are none"
                if missing
                else "the table as it was before it was normalised"
            )
            problems.add(
                f"{where}: {values[first]:g} at {place(first)} is {kind} ({int(mask.sum())} such "
                "values), "
                f"expected whole reads; pass {remedy}"
            )
    raise InputError(*problems.messages)


def checked_table(raw: AmpliconTable, where: str) -> AmpliconTable:
    """Return the table with checked ids without blanks around them, rows sorted by column, and
    zeros dropped.

    Raises `InputError`: no samples, features or reads; ids that are empty, cannot be printed or
    occur twice; two counts of one feature in a sample.
    """
    problems = Problems()
    raw = AmpliconTable(
        raw.counts, tuple(map(str.strip, raw.sample_ids)), tuple(map(str.strip, raw.feature_ids))
    )
    for kind, ids in (("sample", raw.sample_ids), ("feature", raw.feature_ids)):
        if not ids:
            problems.add(f"{where}: the table is empty, it has no {kind}s")
        if empty := [place for place, name in enumerate(ids, start=1) if not name]:
            problems.add(
                f"{where}: {len(empty)} {kind} ids are empty, the first is {kind} {empty[0]}"
            )
        # Printable ASCII first, for which Python looks up each character otherwise.
        if "".join(ids).encode(errors="surrogatepass").translate(None, PRINTABLE) and (
            odd := [ascii(name) for name in ids if not name.isprintable()]
        ):
            problems.add(
                f"{where}: {kind} ids hold characters that cannot be printed: {shown(odd)}"
            )
        if len(set(ids)) < len(ids):
            repeated = [name for name, times in Counter(ids).items() if times > 1]
            problems.add(
                f"{where}: {len(repeated)} {kind} ids occur more than once: {shown(repeated)}"
            )
    problems.raise_if_any()
    counts = raw.counts
    counts.sort_indices()
    if not counts.has_canonical_format:
        entries = counts.tocoo()
        first = int(np.argmax((np.diff(entries.col) == 0) & (np.diff(entries.row) == 0)))
        sample, feature = raw.sample_ids[entries.row[first]], raw.feature_ids[entries.col[first]]
        raise InputError(
            f"{where}: sample {sample!r}, feature {feature!r} has two counts, expected one"
        )
    counts.eliminate_zeros()
    if counts.nnz == 0:
        raise InputError(f"{where}: the table is empty, all counts are 0")
    return raw


def read_tsv(text: str, where: str) -> AmpliconTable:
    """Read a table of text: header ``#OTU ID``, a row per feature, a column per sample, at most a
    taxonomy column.

    Tabs, commas or semicolons separate the cells. Where the first column is called after samples,
    it is turned.

    Raises `InputError`: not UTF-8, no header, a row of another length, a cell that is no count.
    """
    header, body = read_header(text, where, EXPECTED)
    names = header[1:-1] if folded_header(header[-1]) in TAXONOMY_HEADERS else header[1:]
    by_sample = folded_header(header[0]) in SAMPLE_HEADERS - {"id", "ids"}
    kind = "feature" if by_sample else "sample"
    problems, row_names, lines = Problems(), list[str](), list[int]()
    rows, columns, values = array("i"), array("i"), array("d")
    for line, cells in until_full(body, problems):
        # Spreadsheets fill rows up with empty cells, and write empty rows.
        while len(cells) > len(header) and not cells[-1].strip():
            cells.pop()
        if not any(map(str.strip, cells)):
            continue
        if len(cells) != len(header):
            problems.add(
                f"{where}: line {line} has {len(cells)} columns, expected {len(header)} as in "
                "the header"
            )
            continue
        wrong = []
        for column, cell in enumerate(cells[1 : len(names) + 1]):
            if cell in ZEROS:
                continue
            try:
                # Python also reads 1_000 as a number.
                values.append(float(cell.replace("_", "?")))
            except ValueError:
                wrong.append(f"{kind} {names[column]!r} has {cell[:40]!r}")
                continue
            rows.append(len(row_names))
            columns.append(column)
        if wrong:
            more = f" (and {len(wrong) - 1} more cells)" if len(wrong) > 1 else ""
            problems.add(f"{where}: line {line}: {wrong[0]}{more}, expected a count")
        row_names.append(cells[0])
        lines.append(line)
    problems.raise_if_any()
    counts = whole_counts(
        np.array(values), where, lambda k: f"line {lines[rows[k]]}, {kind} {names[columns[k]]!r}"
    )
    matrix = coo_array((counts, (columns, rows)), shape=(len(names), len(row_names)))
    table = AmpliconTable(matrix.tocsr(), tuple(names), tuple(row_names))
    return table.transposed() if by_sample else table
