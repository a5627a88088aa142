"""Sample metadata: QIIME 2 metadata tables as text columns, their kinds, and which cells are
missing.
"""

from __future__ import annotations

import difflib
import logging
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from aam.config import Missing
from aam.errors import InputError, problem, refuse, short, shown
from aam.io.dates import TIME, read_dates
from aam.io.headers import row_numbers
from aam.io.ids import difference, repeated
from aam.io.missing import (
    PUNCTUATION,
    SENTINELS,
    SHORT_CODES,
    is_missing,
    may_be_missing,
    missing_codes,
)
from aam.io.text import DIRECTIVE, MOST_LINES, Faults, TextTable, read_table_text, read_text
from aam.typing import Array, Floats, Ids

ColumnType = Literal["numeric", "categorical"]
# A column of text as it stands in a file, or of numbers from memory, NaN where one is missing.
Column: TypeAlias = tuple[str, ...] | Array

# Ids that QIIME 2 refuses, in any case, because they repeat the header.
RESERVED_ID = re.compile(r"id|#?sample ?id|(sample|feature)[ -]?id|sample_name|#otu ?id", re.I)

SCHEMES = ("", "INSDC:missing", "blank", "no-missing")
ARTIFACTS = {
    "ImmutableMetadata": "metadata.tsv",
    "SampleData[AlphaDiversity]": "alpha-diversity.tsv",
}
EXPECTED_METADATA = (
    "a header that begins with the name of the id column, such as 'sample-id' or 'id'; put the "
    "sample ids in the first column and call it sample-id"
)
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?", re.ASCII)

# A number with a limit or a unit (>90, 12 months, 5%), and a time of day.
WITH_UNIT = re.compile(r"[<>≤≥~]?=?\s*[+-]?\d+([.,]\d+)?\s*([^\W\d_]+|%)?\.?")
TIME_OF_DAY = re.compile(TIME, re.IGNORECASE | re.ASCII)

FEW_VALUES = 5

# Separators of words; the blank between a letter and a number (P 1); zeros that pad a number (P01).
SEPARATOR = re.compile(r"[\s_-]+")
BEFORE_NUMBER = re.compile(r"(?<=[^\W\d]) (?=\d)")
PADDING = re.compile(r"(?<![\d.,])0+(?=\d)")

log = logging.getLogger(__name__)


def is_number(value: str) -> bool:
    """Return whether a cell is a finite decimal number."""
    return NUMBER.fullmatch(value) is not None and math.isfinite(float(value))


def _with_point(value: str) -> str:
    """Replace the comma of a decimal number by a point; other text is not changed."""
    return value.replace(",", ".") if DECIMAL_COMMA.fullmatch(value) else value


def number_text(number: float) -> str:
    """Return a number as a cell with all its bits; empty for NaN."""
    return "" if math.isnan(number) else repr(number)


def read_cells(cells: Iterable[str], decimal: str) -> tuple[str, ...]:
    """Return the cells of a column, numbers with the `decimal` mark "," with a point."""
    return tuple(map(_with_point, cells)) if decimal == "," else tuple(cells)


def _folded(value: str) -> str:
    """Normalize text for comparisons: composed, in lower case, without padding zeros, with at most
    a blank as separator.
    """
    text = unicodedata.normalize("NFKC", value).casefold().replace("\u200b", "")
    return PADDING.sub("", BEFORE_NUMBER.sub("", SEPARATOR.sub(" ", text))).strip()


def spelling_key(value: str) -> object:
    """A key that is the same for values that are probably one: Yes, yes; 1, 1.0; P1, p01."""
    return float(value) if is_number(value) else _folded(value)


@dataclass(frozen=True, eq=False)
class Metadata:
    """A metadata table: sample ids, and values by column, text from a file or numbers from memory.

    `kinds` are as the file says (columns `declared`), else numeric where at least half of the
    values are numbers. Only an empty cell is missing in `blank` columns. Cells that equal one of
    `missing_values`, in any case, are missing in every column, and the classes `left_out` of a
    column in that one. `source` is where it was read from, for messages. `faults` are problems of
    a column: they end a command only if one of its options names the column.
    """

    ids: tuple[str, ...]
    columns: Mapping[str, Column]
    kinds: dict[str, ColumnType]
    declared: frozenset[str] = frozenset()
    blank: frozenset[str] = frozenset()
    source: str = "metadata"
    missing_values: frozenset[str] = frozenset()
    left_out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def without(self, classes: Mapping[str, Iterable[str]]) -> Metadata:
        """The metadata without some classes, by column: their cells count as missing."""
        left_out = dict(self.left_out)
        for name, labels in classes.items():
            left_out[name] = left_out.get(name, frozenset()) | frozenset(labels)
        return replace(self, left_out=left_out)

    def cells(self, name: str) -> tuple[str, ...]:
        """Text of a column; numbers as Python writes them, with all their bits."""
        column = self.columns[name]
        return column if isinstance(column, tuple) else tuple(map(number_text, column.tolist()))

    def _missing(self, name: str) -> frozenset[str]:
        """Cells of a column that are missing: empty ones, `missing_values` and, unless the column
        is `blank`, those of `is_missing`.

        Next to a plus sign, as in a column of + and -, punctuation is a value.
        """
        cells = set(self.cells(name))
        signs = any("+" in cell and not any(map(str.isalnum, cell)) for cell in cells)
        gaps = {cell for cell in cells if not cell or cell.lower() in self.missing_values}
        gaps |= self.left_out.get(name, frozenset())
        if name not in self.blank:
            gaps |= {c for c in cells if is_missing(c) and not (signs and PUNCTUATION.fullmatch(c))}
        return frozenset(gaps)

    def present(self, name: str) -> list[str]:
        """Cells of a column that are not missing."""
        missing = self._missing(name)
        return [cell for cell in self.cells(name) if cell not in missing]

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._row

    def require(self, names: Iterable[str]) -> None:
        """Refuse columns that do not exist, with the names there are, columns with `faults`, and
        numbers with decimal commas; all at once.
        """
        rules, names = dict[str, bool](), list(dict.fromkeys(names))
        remedy = "pass --decimal , or add a second line '#q2:types' with categorical below it"
        for name in names:
            rules |= dict.fromkeys(self.faults.get(name, ()), True)
            if name not in self.columns:
                rules |= {} if name in self.faults else {self._no_column(name): True}
                continue
            if commas := self.decimal_commas(name):
                rules[f"{commas}; {remedy}; delete commas between thousands"] = True
        refuse(self.source, rules)

    def _no_column(self, name: str) -> str:
        folded = {column.lower(): column for column in self.columns}
        matches = difflib.get_close_matches(name.lower(), folded, n=3)
        suggestions = " or ".join(repr(folded[match]) for match in matches)
        hint = f" Did you mean {suggestions}?" if matches else ""
        return f"no column {name!r}.{hint} Columns: {shown(self.columns, 50)}"

    def decimal_commas(self, name: str) -> str:
        """Name numbers with decimal commas of a column that holds numbers only; empty text without
        any.
        """
        cells = [] if name in self.declared else self.present(name)
        commas = [cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)]
        if not commas or not all(is_number(_with_point(cell)) for cell in cells):
            return ""
        return f"column {name!r} has numbers with decimal commas, such as {shown(commas[:1])}"

    def read_as_text(self, names: Iterable[str]) -> list[str]:
        """Say which of some columns are read as text because of what they hold, and why."""
        reasons = ((*self.faults.get(name, ()), self.decimal_commas(name)) for name in names)
        listed = [reason for column_reasons in reasons for reason in column_reasons if reason]
        return [f"{self.source}: {reason}; read as text" for reason in listed]

    def not_read(self, name: str) -> str:
        """Describe numbers with units, or dates, of a text column: they are not read as numbers.

        Empty text without any.

        A few such values, fewer than `FEW_VALUES`, are classes, and so is what ``#q2:types``
        declares.
        """
        cells = set(self.present(name))
        if name in self.declared or self.kinds[name] == "numeric" or len(cells) < FEW_VALUES:
            return ""
        listed = f"{shown(sorted(cells), 2)}; to predict them as numbers, write"
        dates = read_dates([*cells])
        is_time = all(map(TIME_OF_DAY.fullmatch, cells))
        if is_time or (dates is not None and np.isfinite(dates.days).all()):
            return f"holds dates or times: {listed} days since one date"
        if all(map(WITH_UNIT.fullmatch, cells)):
            return f"holds numbers with units: {listed} numbers only, in one unit"
        return ""

    def date_orders(self, names: Iterable[str]) -> list[str]:
        """Return a sentence for each of the columns `names` whose dates can be read in two orders
        of day and month.
        """
        dates = {name: read_dates(self.present(name)) for name in names}
        return [
            f"{self.source}: {name!r}: {read.note}"
            for name, read in dates.items()
            if read is not None and read.note
        ]

    def spellings(self, name: str) -> list[tuple[str, ...]]:
        """Return values of a column that are probably one: Yes, yes; 1, 1.0; P1, p01; A_2, A 2, A2;
        two forms of é.
        """
        spellings: dict[object, list[str]] = {}
        for value in sorted(set(self.cells(name)) - {""}):
            spellings.setdefault(spelling_key(value), []).append(value)
        return [tuple(values) for values in spellings.values() if len(values) > 1]

    def values(self, name: str, ids: Iterable[str]) -> tuple[str | None, ...]:
        """Return values of a column for the samples `ids`, none where missing.

        Raises `InputError`: no such column, a sample without a row.
        """
        rows = self._rows(name, tuple(ids))
        cells, missing = self.cells(name), self._missing(name)
        return tuple(None if cells[row] in missing else cells[row] for row in rows)

    def _rows(self, name: str, ids: Ids) -> list[int]:
        """Rows of the samples `ids`; `InputError`: no such column, a sample without a row."""
        if name not in self.columns:
            raise InputError(f"{self.source}: {self._no_column(name)}")
        if absent := [sample for sample in ids if sample not in self._row]:
            reason = f"{shown(absent)}{difference(ids, self.ids)}"
            raise InputError(f"{self.source}: {len(absent)} samples have no row: {reason}")
        return [self._row[sample] for sample in ids]

    def groups(self, name: str, ids: Iterable[str]) -> list[str]:
        """Group of each of the samples `ids`; a sample without a value is a group of its own."""
        ids = tuple(ids)
        pairs = zip(ids, self.values(name, ids), strict=True)
        return [f"sample {sample}" if group is None else group for sample, group in pairs]

    def doubtful(self, name: str) -> list[str]:
        """Values of a column that may mean missing: words, and numbers such as -9 and 999 that lie
        apart from the others (`missing_codes`) or stand among words.
        """
        present = self.present(name)
        words = sorted(filter(may_be_missing, set(present)))
        numbers = [(float(cell), cell) for cell in present if is_number(cell)]
        codes = {*missing_codes([number for number, _ in numbers])}
        if 2 * len(numbers) < len(present) - len(words) and self.kinds[name] != "numeric":
            values = {number for number, _ in numbers}
            codes = values if values <= SENTINELS | SHORT_CODES else codes
        cells = sorted({pair for pair in numbers if pair[0] in codes})
        return words + [cell for _, cell in cells]

    def numbers(self, name: str, ids: Iterable[str]) -> Floats:
        """Return `values` as float64 ``[N]``, NaN where missing; `InputError` for text or an
        infinite value too.
        """
        ids = tuple(ids)
        column, rows = self.columns.get(name), self._rows(name, ids)
        if isinstance(column, np.ndarray) and not self.missing_values:
            numbers = column[rows].astype(np.float64)
            if not np.isinf(numbers).any():
                return numbers
        values = self.values(name, ids)
        pairs = zip(values, ids, strict=True)
        texts = [(x, s) for x, s in pairs if x is not None and not is_number(x)]
        text = [f"{short(value)!r} (sample {sample!r})" for value, sample in texts]
        if text:
            number = f"{len(text)} of {len(ids)} values that are not finite numbers"
            remedy = "correct them, or name those that mean missing by --missing-values"
            fault = f"column {name!r} has {number}: {', '.join(text[:5])}"
            raise InputError(problem(self.source, fault, remedy=remedy))
        return np.array([math.nan if value is None else float(value) for value in values])


def _is_comment(first: str) -> bool:
    """Return whether a row with this first cell is a comment, and not a directive or a header."""
    is_directive = first.startswith(DIRECTIVE)
    return first.startswith("#") and not is_directive and not RESERVED_ID.fullmatch(first)


def _samples_and_directives(table: TextTable) -> tuple[list[list[str]], dict[str, list[str]]]:
    """Return the cells of the samples, id first, and the cells of each directive; add the faults
    of all rows to those of the table.
    """
    samples, directives = list[list[str]](), dict[str, list[str]]()
    # Equal cells share one string: real tables repeat few values very often.
    strings, faults = dict[str, str](), table.faults
    for line, row in table.rows(least=1, is_comment=_is_comment):
        cells = [strings.setdefault(cell, cell) for cell in map(str.strip, row)]
        first = cells[0]
        directive = first[4:].split(" ")[0] if first.startswith(DIRECTIVE) else ""
        if RESERVED_ID.fullmatch(first):
            faults.add("repeats the header; remove it", line)
        elif directive not in ("", "types", "missing"):
            faults.add("unknown directive, expected #q2:types or #q2:missing", line)
        elif directive and (samples or directive in directives):
            faults.add("a directive that stands twice or below samples", line)
        elif not first:
            faults.add("no sample id", line)
        if directive:
            directives[directive] = cells[1:]
        else:
            samples.append(cells)
    if samples or faults.messages:
        return samples, directives
    width = len(table.header)
    ids = [cells[0].strip() for cells in table.comments if len(cells) == width > 1]
    if ids:
        remedy = "they are comments, as in QIIME 2; remove the # from the ids"
        faults.add(f"all {len(ids)} rows begin with #, such as {ids[0]!r}; {remedy}")
    else:
        faults.add("a header but no samples below it")
    return samples, directives


def unnamed_columns(header: Sequence[str]) -> dict[str, str]:
    """Describe columns without a name, or with that of another, by name."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(header, 1):
        places.setdefault(name, []).append(place)
    faults = dict[str, str]()
    for name, columns in places.items():
        listed = ", ".join(f"column {place}" for place in columns[:MOST_LINES])
        if not name:
            faults[name] = f"{len(columns)} columns have no name: {listed}"
        elif len(columns) > 1:
            faults[name] = f"{len(columns)} columns are called {name!r}: {listed}; name each once"
    return faults


def read_metadata(path: Path, decimal: str = ".", missing_values: Collection[str] = ()) -> Metadata:
    """Read sample metadata by the rules of QIIME 2, from text or a .qza of `ARTIFACTS`.

    Tabs, commas or semicolons separate the cells. With the `decimal` mark "," cells such as 0,5 are
    numbers. The first column has a name of ids (`is_id_header`); rows that begin with ``#``
    are comments but for ``#q2:types`` and ``#q2:missing``; white space around cells is dropped;
    rows may end early. Beyond QIIME 2, what `is_missing` names and `missing_values` are missing
    values unless ``#q2:missing`` says ``blank``.

    Columns without a name of their own are left out, with a warning.

    Raises `InputError`: with every problem of the file: encoding, quotes, header, rows, ids,
    directives.
    """
    table = read_table_text(read_text(path, ARTIFACTS), path, EXPECTED_METADATA)
    samples, directives = _samples_and_directives(table)
    ids, *columns = zip(*samples, strict=True) if samples else [()] * len(table.header)
    if numbered := row_numbers(table.header, ids):
        table.faults.add(numbered)
    header = [table.header[0] or "id", *table.header[1:]]
    nothing = [""] * len(columns)
    types, schemes = (
        dict(zip(header[1:], directives.get(directive, nothing), strict=True))
        for directive in ("types", "missing")
    )
    cells_of = {
        name: read_cells(cells, decimal) for name, cells in zip(header[1:], columns, strict=True)
    }
    faults_of_columns = unnamed_columns(header)
    for name in faults_of_columns:
        cells_of.pop(name, None)
    metadata = make_metadata(ids, cells_of, types, schemes, str(path), table.faults, missing_values)
    return with_faults(metadata, faults_of_columns)


def with_faults(metadata: Metadata, faults: Mapping[str, str]) -> Metadata:
    """The metadata with the faults of columns that were left out, which are logged: these columns
    are refused only where an option names them.
    """
    for fault in faults.values():
        log.warning("warning: %s: header: %s; left out", metadata.source, fault)
    return replace(metadata, faults={**metadata.faults, **{n: (f,) for n, f in faults.items()}})


def make_metadata(
    ids: Sequence[str],
    columns: Mapping[str, Column],
    types: Mapping[str, str],
    schemes: Mapping[str, str],
    source: str,
    faults_of_rows: Faults | None = None,
    missing_values: Collection[str] = (),
) -> Metadata:
    """Return the metadata of samples `ids`, from cells or numbers by column and what ``#q2:types``
    and ``#q2:missing`` say. Columns of numbers are declared numeric.

    `source` is its name in messages, and `faults_of_rows` are those that were found before. Raises
    `InputError` with all.
    """
    faults_of_rows = Faults(source) if faults_of_rows is None else faults_of_rows
    words = frozenset(map(str.lower, missing_values))
    declared = frozenset(name for name in columns if types.get(name))
    blank = frozenset(name for name in columns if schemes.get(name) in ("blank", "no-missing"))
    faults = dict[str, list[str]]()
    kinds = dict[str, ColumnType]()
    metadata = Metadata(
        tuple(ids), dict(columns), kinds, declared, blank, source, words, faults=faults
    )
    if duplicates := repeated(ids):
        rows = f"{len(duplicates)} sample ids stand on several rows"
        faults_of_rows.add(f"{rows}: {shown(duplicates)}; keep one")
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and not np.isinf(column).any():
            kinds[name] = "numeric"
            continue
        stated, scheme = types.get(name, ""), schemes.get(name, "")
        text = [cell for cell in metadata.present(name) if not is_number(cell)]
        # Text in half of the cells or fewer is rather a mistake than a class.
        is_numeric = 2 * len(text) <= len(metadata.present(name))
        is_numeric &= stated.lower() != "categorical"
        kinds[name] = "numeric" if is_numeric else "categorical"
        faults[name] = _column_faults(metadata, name, stated, scheme, text)
    faults_of_rows.raise_if_any()
    return metadata


def _column_faults(
    metadata: Metadata, name: str, stated: str, scheme: str, text: Sequence[str]
) -> list[str]:
    """Faults of a column next to what ``#q2:types`` and ``#q2:missing`` state; `text` are its cells
    that are no numbers.
    """
    cells, faults = metadata.cells(name), list[str]()
    if stated.lower() not in ("", "numeric", "categorical"):
        faults.append(f"#q2:types of {name!r} is {stated!r}, expected numeric or categorical")
    if scheme not in SCHEMES:
        expected = " or ".join(SCHEMES[1:])
        faults.append(f"#q2:missing of {name!r} is {scheme!r}, expected {expected}")
    if scheme == "no-missing" and "" in cells:
        sample = metadata.ids[cells.index("")]
        remedy = "fill it, or write blank instead"
        faults.append(f"column {name!r} is no-missing, but sample {sample!r} is empty; {remedy}")
    if text and stated.lower() == "numeric":
        sample = metadata.ids[cells.index(text[0])]
        value = f"column {name!r} is declared numeric, but sample {sample!r} has {short(text[0])!r}"
        remedy = "expected a finite number; correct it, or declare it categorical"
        faults.append(f"{value}, {remedy}")
    return faults


def align(
    metadata: Metadata, samples: Sequence[str], columns: Sequence[str], missing: Missing = "error"
) -> tuple[str, ...]:
    """Those of `samples`, in their order, with a row and a value in each of `columns`.

    Others are refused, or with ``missing="drop"`` left out and logged as a warning. Raises
    `InputError`: columns that do not exist; samples that lack something, or all of them.
    """
    metadata.require(columns)
    with_row = [sample for sample in samples if sample in metadata]
    without_row = [sample for sample in samples if sample not in metadata]
    gaps, reasons, remedies = set(without_row), list[str](), list[str]()
    total, drop = (f"of {len(samples)} samples", "or leave these samples out with --missing drop")
    if without_row:
        ids = "" if with_row else f" (its own ids look like {shown(metadata.ids, 3)})"
        listed = f"{shown(without_row)}{difference(samples, metadata.ids)}"
        reasons.append(f"{len(without_row)} {total} of the table have no row{ids}: {listed}")
        remedies.append(f"add their rows, {drop}")
    for name in dict.fromkeys(columns):
        cell_of = dict(zip(metadata.ids, metadata.cells(name), strict=True))
        values = zip(with_row, metadata.values(name, with_row), strict=True)
        if without_value := [sample for sample, value in values if value is None]:
            cells = sorted({cell_of[sample] for sample in without_value})
            gap = f"have no value in {name!r} (written {shown(cells)})"
            reasons.append(f"{len(without_value)} {total} {gap}: {shown(without_value)}")
            remedies.append(f"fill the gaps, {drop}")
            if any(cells):
                line = f"add a second line '#q2:missing' to the file, with blank below {name!r}"
                remedies[-1] += f"; if such a word is a class, {line}"
            gaps.update(without_value)
    reasons = [f"{metadata.source}: {reason}" for reason in reasons]
    complete = tuple(sample for sample in samples if sample not in gaps)
    if not complete:
        raise InputError(*reasons[:-1], "; ".join([*reasons[-1:], "so no sample is left"]))
    if reasons and missing == "error":
        raise InputError(*map("; ".join, zip(reasons, remedies, strict=True)))
    for reason in reasons:
        log.warning("%s; left out", reason)
    return complete
