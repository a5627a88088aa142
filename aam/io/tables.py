"""Tables of counts as a file holds them: the checks that every table passes, and those of text."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from aam.errors import InputError, Problems, shown
from aam.io.ids import LINEAGE_HEADERS, SAMPLE_HEADERS, folded_header
from aam.io.text import read_header, until_full

MAX_COUNT = 2**32 - 1

EXPECTED = (
    "a table: BIOM, .qza, or text with tabs, commas or semicolons and a header line '#OTU ID', "
    "features in rows and samples in columns"
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
        """Return the columns, ascending, in which samples at `rows` have reads."""
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


def _whole_reads(
    values: csr_array, samples: Sequence[str], features: Sequence[str], where: str
) -> Any:
    """Return the stored values as uint32; `InputError` with each kind of those that are no whole
    number of reads from 0 to 2^32 - 1.
    """
    stored = values.data
    stored = stored if stored.dtype.kind in "iuf" else stored.astype(np.float64)
    # NaN is neither. A comparison with what was cast is several times as fast as looking for what
    # is wrong.
    with np.errstate(invalid="ignore"):
        counts = stored.astype(np.uint32)
    if not stored.size or (stored.min() >= 0 and (counts == stored).all()):
        return counts
    stored = stored.astype(np.float64, copy=False)
    finite = np.isfinite(stored)
    bad = {
        "not a finite number": ~finite,
        "negative": finite & (stored < 0),
        "fractional": finite & (stored >= 0) & (np.floor(stored) != stored),
        f"above {MAX_COUNT}": finite & (stored > MAX_COUNT),
    }
    problems = Problems()
    for kind, mask in bad.items():
        if mask.any():
            first = int(np.argmax(mask))
            row = int(np.searchsorted(values.indptr, first, side="right")) - 1
            place = f"sample {samples[row]!r}, feature {features[values.indices[first]]!r}"
            remedy = (
                "0 for missing reads"
                if np.isnan(stored[first])
                else "the table before it was normalised"
            )
            problems.add(
                f"{where}: {stored[first]:g} at {place} is {kind} ({int(mask.sum())} such values), "
                f"expected whole reads; pass {remedy}"
            )
    raise InputError(*problems.messages)


def _check_ids(kind: str, ids: Sequence[str], where: str, problems: Problems) -> None:
    if not ids:
        problems.add(f"{where}: the table is empty, it has no {kind}s")
    if empty := [place for place, name in enumerate(ids, start=1) if not name]:
        problems.add(f"{where}: {len(empty)} {kind} ids are empty, the first is {kind} {empty[0]}")
    # Printable ASCII first, for which Python looks up each character otherwise.
    if "".join(ids).encode(errors="surrogatepass").translate(None, PRINTABLE) and (
        odd := [ascii(name) for name in ids if not name.isprintable()]
    ):
        problems.add(f"{where}: {kind} ids hold characters that cannot be printed: {shown(odd)}")
    if len(set(ids)) < len(ids):
        repeated = [name for name, times in Counter(ids).items() if times > 1]
        number = len(repeated)
        problems.add(f"{where}: {number} {kind} ids occur more than once: {shown(repeated)}")


def checked_table(
    values: csr_array, sample_ids: Sequence[str], feature_ids: Sequence[str], where: str
) -> AmpliconTable:
    """Return a table of the numbers `values` [N, F], with ids without blanks around them, rows
    sorted by column, and zeros dropped.

    Raises `InputError`: numbers that are no reads; no samples, features or reads; ids that are
    empty, cannot be printed or occur twice; two counts of one feature in a sample.
    """
    problems, counts = Problems(), values
    samples, features = (tuple(map(str.strip, ids)) for ids in (sample_ids, feature_ids))
    _check_ids("sample", samples, where, problems)
    _check_ids("feature", features, where, problems)
    with problems.collected():
        whole = _whole_reads(values, samples, features, where)
        counts = csr_array((whole, values.indices, values.indptr), shape=values.shape)
    problems.raise_if_any()
    counts.sort_indices()
    if not counts.has_canonical_format:
        entries = counts.tocoo()
        first = int(np.argmax((np.diff(entries.col) == 0) & (np.diff(entries.row) == 0)))
        sample, feature = samples[entries.row[first]], features[entries.col[first]]
        raise InputError(
            f"{where}: sample {sample!r}, feature {feature!r} has two counts, expected one"
        )
    counts.eliminate_zeros()
    if counts.nnz == 0:
        raise InputError(f"{where}: the table is empty, all counts are 0")
    return AmpliconTable(counts, samples, features)


def read_tsv(text: str, where: str) -> AmpliconTable:
    """Read a table of text: header ``#OTU ID``, a row per feature, a column per sample, at most a
    taxonomy column.

    Tabs, commas or semicolons separate the cells. Where the first column is called after samples,
    it is turned.

    Raises `InputError`: not UTF-8, no header, a row of another length, a cell that is no count.
    """
    header, body = read_header(text, where, EXPECTED)
    names = header[1:-1] if folded_header(header[-1]) in LINEAGE_HEADERS else header[1:]
    by_sample = folded_header(header[0]) in SAMPLE_HEADERS - {"id", "ids"}
    kind = "feature" if by_sample else "sample"
    problems, row_names = Problems(), list[str]()
    rows, columns, values = array("i"), array("i"), array("d")
    for line, cells in until_full(body, problems):
        # Spreadsheets fill rows up with empty cells, and write empty rows.
        while len(cells) > len(header) and not cells[-1].strip():
            cells.pop()
        if not any(map(str.strip, cells)):
            continue
        if len(cells) != len(header):
            expected = f"expected {len(header)} as in the header"
            problems.add(f"{where}: line {line} has {len(cells)} columns, {expected}")
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
    problems.raise_if_any()
    matrix = coo_array((np.array(values), (rows, columns)), shape=(len(row_names), len(names)))
    if by_sample:
        return checked_table(matrix.tocsr(), row_names, names, where)
    return checked_table(matrix.T.tocsr(), names, row_names, where)
