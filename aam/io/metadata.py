"""Sample metadata: QIIME 2 metadata tables as text columns, their kinds, and which cells are
missing.
"""

from __future__ import annotations

import difflib
import logging
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.config import Missing
from aam.errors import InputError, Problems, shown
from aam.io.ids import difference
from aam.io.text import DIRECTIVE, Row, read_header, read_text

Kind = Literal["numeric", "categorical"]

# Ids that QIIME 2 refuses, in any case, because they repeat the header.
RESERVED_NAMES = (
    "id|sampleid|sample id|sample-id|featureid|feature id|feature-id|sample_name|#sampleid|"
    "#sample id|#otuid|#otu id"
)
RESERVED_IDS = frozenset(RESERVED_NAMES.split("|"))

# Missing-value terms of INSDC, alone or with a colon and the reason, and what spreadsheets and R
# write.
INSDC = ("missing", "not applicable", "not collected", "not provided", "restricted access")
MISSING = frozenset({*INSDC, "", "na", "n/a", "nan", "null", "<na>", "nat"})
INSDC_REASON = tuple(f"{term}:" for term in INSDC)
# Errors of Excel, in English and German, and of LibreOffice.
SPREADSHEET_ERROR = re.compile(r"#(n/a|nv|[a-z]+[!?]|div/0!|getting_data)|err:\d+", re.IGNORECASE)
PUNCTUATION = re.compile(r"[-\u2010-\u2015\u2212.,:;?!*_/\\~'\"()\[\]<>|=#&%^`\u2026\s]+")
# Words that may mean missing, without blanks and punctuation.
DOUBTFUL_WORDS = (
    "none nil unknown unk unspecified undetermined undefined unavailable unrecorded "
    "unassigned nd tbd tba nodata novalue noresponse noanswer missingvalue notavailable "
    "notrecorded notknown notdetermined notreported notspecified notdone notmeasured "
    "notassessed notanswered nonapplicable inapplicable blank empty nr"
)
DOUBTFUL = frozenset(DOUBTFUL_WORDS.split())
# Numbers that stand for a missing value in many surveys.
SENTINEL_TEXT = "-9 -99 -999 -9999 -99999 99 999 9999 99999 -88 -77 -888 -777 888 777 8888 7777"
SENTINELS = frozenset(map(float, SENTINEL_TEXT.split()))

SCHEMES = ("", "INSDC:missing", "blank", "no-missing")
ARTIFACTS = {
    "ImmutableMetadata": "metadata.tsv",
    "SampleData[AlphaDiversity]": "alpha-diversity.tsv",
}
EXPECTED = "a header that begins with the name of the id column, such as 'sample-id' or 'id'"
MOST_LINES = 8
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?", re.ASCII)

# A number with a limit or a unit (>90, 12 months, 5%), and dates and times of day.
WITH_UNIT = re.compile(r"[<>≤≥~]?=?\s*[+-]?\d+([.,]\d+)?\s*([^\W\d_]+|%)?\.?")
DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}([T ].*)?|\d{1,2}([-/.])\d{1,2}\3\d{2,4}|\d{1,2}:\d{2}(:\d{2})?",
    re.ASCII,
)

FEW_VALUES = 5

# A blank, or what is written for one; that between a letter and a number; zeros before a whole
# number inside a name.
SEPARATOR = re.compile(r"[\s_-]+")
BEFORE_NUMBER = re.compile(r"(?<=[^\W\d]) (?=\d)")
PADDING = re.compile(r"(?<![\d.,])0+(?=\d)")

log = logging.getLogger(__name__)


def is_missing(value: str) -> bool:
    """Return whether a cell says that there is no value: empty, a term of `MISSING` in any case, an
    error of a spreadsheet, or punctuation alone.
    """
    value = value.lower()
    return (
        value in MISSING
        or value.startswith(INSDC_REASON)
        or SPREADSHEET_ERROR.fullmatch(value) is not None
        or PUNCTUATION.fullmatch(value) is not None
    )


def may_be_missing(value: str) -> bool:
    """Return whether a cell holds a word that means missing in some studies."""
    return re.sub(r"[\W_]+", "", value.lower()) in DOUBTFUL or (
        value.lower().rstrip(".") in ("n.a", "n.d")
    )


def is_number(value: str) -> bool:
    """Return whether a cell is a finite decimal number."""
    return NUMBER.fullmatch(value) is not None and math.isfinite(float(value))


def _with_point(value: str) -> str:
    """Return a number with a decimal comma as one with a point; other text as it is."""
    return value.replace(",", ".") if DECIMAL_COMMA.fullmatch(value) else value


def _folded(value: str) -> str:
    """Return text as it is compared: composed, in lower case, without padding zeros, at most a
    blank as separator.
    """
    text = unicodedata.normalize("NFKC", value).casefold().replace("\u200b", "")
    return PADDING.sub("", BEFORE_NUMBER.sub("", SEPARATOR.sub(" ", text))).strip()


@dataclass(frozen=True)
class Metadata:
    """A metadata table: sample ids, and values by column as the text that stood in the file.

    `kinds` are as the file says (columns `declared`), else numeric where at least half of the
    values are numbers. Only an empty cell is missing in `blank` columns. Cells that equal one of
    `missing_values`, in any case, are missing in every column. `source` is where it was read from,
    for messages.
    """

    ids: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]
    kinds: dict[str, Kind]
    declared: frozenset[str] = frozenset()
    blank: frozenset[str] = frozenset()
    source: str = "metadata"
    missing_values: frozenset[str] = frozenset()

    @cached_property
    def _missing(self) -> dict[str, frozenset[str]]:
        return {
            name: missing_cells(cells, name in self.blank, self.missing_values)
            for name, cells in self.columns.items()
        }

    def present(self, name: str) -> list[str]:
        """Cells of a column that are not missing."""
        missing = self._missing[name]
        return [cell for cell in self.columns[name] if cell not in missing]

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._row

    def require(self, names: Iterable[str]) -> None:
        """Refuse columns that do not exist, with the names there are, and numbers with decimal
        commas; all at once.
        """
        problems, folded = Problems(), {column.lower(): column for column in self.columns}
        for name in dict.fromkeys(names):
            if name not in self.columns:
                near = difflib.get_close_matches(name.lower(), folded, n=3)
                hint = (
                    f" Did you mean {' or '.join(repr(folded[match]) for match in near)}?"
                    if near
                    else ""
                )
                problems.add(
                    f"{self.source}: no column {name!r}.{hint} Columns: {shown(self.columns, 50)}"
                )
            elif comma := self._decimal_comma(name):
                problems.add(
                    f"{self.source}: column {name!r} has numbers with decimal commas, such as "
                    f"{comma!r}; pass "
                    "--decimal , or state categorical in a row #q2:types; commas between "
                    "thousands are to be deleted"
                )
        problems.raise_if_any()

    def _decimal_comma(self, name: str) -> str:
        """Return a number with a decimal comma, where a column holds numbers and such numbers only;
        else nothing.
        """
        cells = [] if name in self.declared else self.present(name)
        commas = [cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)]
        return commas[0] if commas and all(is_number(_with_point(cell)) for cell in cells) else ""

    def not_read(self, name: str) -> str:
        """Return how a text column holds numbers with units, or dates, of which no number is read;
        else nothing.

        A few such values, fewer than `FEW_VALUES`, are classes, and so is what ``#q2:types``
        declares.
        """
        cells = set(self.present(name))
        if name in self.declared or self.kinds[name] == "numeric" or len(cells) < FEW_VALUES:
            return ""
        for what, pattern in (("dates or times", DATE), ("numbers with units", WITH_UNIT)):
            if all(map(pattern.fullmatch, cells)):
                to_do = "days since one date" if pattern is DATE else "numbers alone, in one unit"
                return (
                    f"holds {what}: {shown(sorted(cells), 2)}; to predict them as numbers, "
                    f"write {to_do}"
                )
        return ""

    def spellings(self, name: str) -> list[tuple[str, ...]]:
        """Return values of a column that are probably one: Yes, yes; 1, 1.0; P1, p01; A_2, A 2, A2;
        two forms of é.
        """
        alike: dict[object, list[str]] = {}
        for value in sorted(set(self.columns[name]) - {""}):
            alike.setdefault(float(value) if is_number(value) else _folded(value), []).append(value)
        return [tuple(values) for values in alike.values() if len(values) > 1]

    def column(self, name: str) -> tuple[str, ...]:
        """Return all values of a column as text; `InputError` lists the columns there are."""
        self.require([name])
        return self.columns[name]

    def values(self, name: str, ids: Iterable[str]) -> tuple[str | None, ...]:
        """Return values of a column for the samples `ids`, none where missing; `InputError` without
        a row.
        """
        cells, ids = self.column(name), tuple(ids)
        absent = [sample for sample in ids if sample not in self._row]
        if absent:
            raise InputError(
                f"{self.source}: {len(absent)} samples have no row: {shown(absent)}"
                f"{difference(ids, self.ids)}"
            )
        missing = self._missing[name]
        chosen = (cells[self._row[sample]] for sample in ids)
        return tuple(None if cell in missing else cell for cell in chosen)

    def cell(self, name: str, sample: str) -> str:
        """Text of one cell of the file."""
        return self.columns[name][self._row[sample]]

    def groups(self, name: str, ids: Iterable[str]) -> list[str]:
        """Group of each of the samples `ids`; a sample without a value is a group of its own."""
        ids = tuple(ids)
        pairs = zip(ids, self.values(name, ids), strict=True)
        return [f"sample {sample}" if group is None else group for sample, group in pairs]

    def doubtful(self, name: str) -> list[str]:
        """Values of a column that may mean missing: words, and numbers such as -9 and 999 that lie
        farther from the others than these from each other.
        """
        cells = set(self.present(name))
        words = sorted(filter(may_be_missing, cells))
        numbers = {float(cell): cell for cell in cells if is_number(cell)}
        others = [number for number in numbers if number not in SENTINELS]
        if self.kinds[name] != "numeric" or len(others) < 2:
            return words
        low, high = min(others), max(others)
        odd = [
            cell
            for number, cell in sorted(numbers.items())
            if number in SENTINELS
            and (max(low - number, number - high) > high - low or number < 0 <= low)
        ]
        return words + odd

    def numbers(self, name: str, ids: Iterable[str]) -> npt.NDArray[np.float64]:
        """Return `values` as float64 ``[N]``, NaN where missing; `InputError` for text or an
        infinite value too.
        """
        ids = tuple(ids)
        values = self.values(name, ids)
        text = [
            row for row, value in enumerate(values) if value is not None and not is_number(value)
        ]
        if text:
            examples = ", ".join(f"{values[row]!r} (sample {ids[row]!r})" for row in text[:5])
            raise InputError(
                f"{self.source}: column {name!r} has {len(text)} of {len(ids)} values that are "
                f"no finite numbers: {examples}; correct them, or name those that mean missing by "
                "--missing-values (and train with --missing drop)"
            )
        return np.array(
            [math.nan if value is None else float(value) for value in values], dtype=np.float64
        )


def missing_cells(
    cells: Iterable[str], only_empty: bool, words: Collection[str] = ()
) -> frozenset[str]:
    """Return the cells of a column that are missing: empty ones, those of `words` and, without
    `only_empty`, those of `is_missing`.

    Next to a plus sign, as in a column of + and -, punctuation is a value.
    """
    distinct = set(cells)
    symbols = any("+" in cell and not any(map(str.isalnum, cell)) for cell in distinct)

    def missing(cell: str) -> bool:
        if not cell or cell.lower() in words:
            return True
        is_value = only_empty or (symbols and PUNCTUATION.fullmatch(cell))
        return not is_value and is_missing(cell)

    return frozenset(filter(missing, distinct))


def _checked_header(cells: list[str], path: Path) -> list[str]:
    problems = Problems()
    if empty := [place for place, name in enumerate(cells, start=1) if not name]:
        problems.add(f"{path}: header: column {shown(empty)} has no name; name it or delete it")
    if repeated := _repeated(cells):
        problems.add(f"{path}: header: columns of the same name: {shown(repeated)}; rename them")
    problems.raise_if_any()
    return cells


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1 and name)


def _taken(
    cells: list[str], width: int, samples: list[list[str]], directives: dict[str, list[str]]
) -> str:
    """Put one row to those of samples or to the directives; return the fault of it, or ''."""
    first = cells[0]
    if first.lower() in RESERVED_IDS:
        return "repeats the header; remove it"
    directive = first.split(" ")[0].removeprefix("#q2:").removeprefix("#sk:")
    if first.startswith(DIRECTIVE) and directive not in ("types", "missing"):
        return "unknown directive, expected #q2:types or #q2:missing"
    if first.startswith("#") and not first.startswith(DIRECTIVE):
        return ""
    if any(cells[width:]):
        return f"more cells than the {width} of the header; is a delimiter inside a cell?"
    cells = cells[:width] + [""] * (width - len(cells))
    if first.startswith("#"):
        late = directive in directives or samples
        directives[directive] = cells[1:]
        return "a directive that stands twice or below samples" if late else ""
    samples.append(cells)
    return "" if first else "no sample id"


def _body(
    rows: Iterator[Row], width: int, path: Path, problems: Problems
) -> tuple[list[list[str]], dict[str, list[str]]]:
    """Return the cells of the samples below the header, id first, and the directives; add the
    faults of all rows.
    """
    samples, directives = list[list[str]](), dict[str, list[str]]()
    same, faults = dict[str, str](), dict[str, list[str]]()
    for line, cells in rows:
        # Equal cells share one string: real tables repeat few values very often.
        cells = [same.setdefault(cell, cell) for cell in map(str.strip, cells)]
        if any(cells) and (fault := _taken(cells, width, samples, directives)):
            faults.setdefault(fault, []).append(str(line))
    for fault, lines in faults.items():
        more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
        problems.add(f"{path}: line {', '.join(lines[:MOST_LINES])}{more}: {fault}")
    if not samples and not problems.messages:
        problems.add(f"{path}: a header but no samples below it")
    return samples, directives


def read_metadata(path: Path, decimal: str = ".", missing_values: Collection[str] = ()) -> Metadata:
    """Read sample metadata by the rules of QIIME 2, from text or a .qza of `ARTIFACTS`.

    Tabs, commas or semicolons separate the cells. With the `decimal` mark "," cells such as 0,5 are
    numbers. The first column is called as `aam.io.ids.ID_HEADERS` lists; rows that begin with ``#``
    are comments but for ``#q2:types`` and ``#q2:missing``; white space around cells is dropped;
    rows may end early. Beyond QIIME 2, what `is_missing` names and `missing_values` are missing
    values unless ``#q2:missing`` says ``blank``.

    Raises `InputError`: with every problem of the file: encoding, quotes, header, rows, ids,
    directives.
    """
    header, rows = read_header(read_text(path, ARTIFACTS), path, EXPECTED)
    header = _checked_header([header[0] or "id", *header[1:]], path)
    problems = Problems()
    samples, directives = _body(rows, len(header), path, problems)
    ids, *columns = zip(*samples, strict=True) if samples else [()] * len(header)
    if decimal == ",":
        columns = [tuple(map(_with_point, cells)) for cells in columns]
    types, schemes = (directives.get(name, [""] * len(columns)) for name in ("types", "missing"))
    named = dict(zip(header[1:], columns, strict=True))
    return make_metadata(ids, named, types, schemes, str(path), problems, missing_values)


def make_metadata(
    ids: Sequence[str],
    columns: Mapping[str, tuple[str, ...]],
    types: Sequence[str],
    schemes: Sequence[str],
    source: str,
    problems: Problems | None = None,
    missing_values: Collection[str] = (),
) -> Metadata:
    """Return the metadata of samples `ids`, from cells by column and what ``#q2:types`` and
    ``#q2:missing`` say.

    `source` is its name in messages, and `problems` are those that were found before. Raises
    `InputError` with all.
    """
    problems = Problems() if problems is None else problems
    if repeated := _repeated(ids):
        problems.add(
            f"{source}: {len(repeated)} sample ids stand on several rows: {shown(repeated)}; "
            "keep one"
        )
    words = frozenset(map(str.lower, missing_values))
    kinds: dict[str, Kind] = {}
    declared, only_empty = set[str](), set[str]()
    for (name, cells), stated, scheme in zip(columns.items(), types, schemes, strict=True):
        if stated.lower() not in ("", "numeric", "categorical"):
            problems.add(
                f"{source}: #q2:types of {name!r} is {stated!r}, expected numeric or categorical"
            )
        if scheme not in SCHEMES:
            expected = " or ".join(SCHEMES[1:])
            problems.add(f"{source}: #q2:missing of {name!r} is {scheme!r}, expected {expected}")
        blank = scheme in ("blank", "no-missing")
        declared.update([name] if stated else [])
        only_empty.update([name] if blank else [])
        missing = missing_cells(cells, blank, words)
        text = [cell for cell in cells if cell not in missing and not is_number(cell)]
        present = sum(cell not in missing for cell in cells)
        # Text in half of the cells or fewer is rather a mistake than a class.
        numeric = 2 * len(text) <= present and stated.lower() != "categorical"
        kinds[name] = "numeric" if numeric else "categorical"
        if text and stated.lower() == "numeric":
            problems.add(
                f"{source}: column {name!r} is declared numeric, but sample "
                f"{ids[cells.index(text[0])]!r} has "
                f"{text[0]!r}, expected a finite number; correct it, or declare the column "
                "categorical"
            )
        if scheme == "no-missing" and "" in cells:
            sample = ids[cells.index("")]
            problems.add(f"{source}: column {name!r} is no-missing, but sample {sample!r} is empty")
    problems.raise_if_any()
    return Metadata(
        tuple(ids), dict(columns), kinds, frozenset(declared), frozenset(only_empty), source, words
    )


def align(
    metadata: Metadata,
    sample_ids: Sequence[str],
    columns: Sequence[str],
    missing: Missing = "error",
) -> tuple[str, ...]:
    """Return those of `sample_ids`, in their order, that have a row and a value in every one of
    `columns`.

    Others are refused, or with ``missing="drop"`` left out and logged as a warning. Raises
    `InputError`: columns that do not exist; samples that lack something, or all of them.
    """
    metadata.require(columns)
    absent = [sample for sample in sample_ids if sample not in metadata]
    present = [sample for sample in sample_ids if sample in metadata]
    gaps, reasons, words, of = set(absent), [], set[str](), f"of {len(sample_ids)} samples"
    if absent:
        others = "" if present else f" (its own ids look like {shown(metadata.ids, 3)})"
        reasons.append(
            f"{len(absent)} {of} of the table have no row{others}: {shown(absent)}"
            f"{difference(sample_ids, metadata.ids)}"
        )
    for name in dict.fromkeys(columns):
        values = dict(zip(present, metadata.values(name, present), strict=True))
        if lacking := [sample for sample, value in values.items() if value is None]:
            written = {metadata.cell(name, sample) for sample in lacking}
            words |= written - {""}
            gap = f"have no value in {name!r} (written {shown(sorted(written))})"
            reasons.append(f"{len(lacking)} {of} {gap}: {shown(lacking)}")
            gaps.update(lacking)
    reasons = [f"{metadata.source}: {reason}" for reason in reasons]
    kept = tuple(sample for sample in sample_ids if sample not in gaps)
    if not kept:
        nothing = f"{metadata.source}: no sample of the table has all that is needed"
        raise InputError(*reasons, nothing)
    if reasons and missing == "error":
        remedy = "Fill the gaps, or leave these samples out with --missing drop"
        if words:
            remedy += (
                f"; if {shown(sorted(words))} is a class of its own, add a row #q2:missing below "
                "the header, with blank in that column"
            )
        raise InputError(*reasons, remedy)
    for reason in reasons:
        log.warning("%s; left out", reason)
    return kept
