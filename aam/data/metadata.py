"""Sample metadata: QIIME 2 metadata tables as text columns, their kinds, and what counts as missing."""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.data.artifact import ZIP_MAGIC, read_artifact
from aam.data.tsv import Row, decoded, parse_rows, read_bytes
from aam.errors import InputError, Problems, shown

Kind = Literal["numeric", "categorical"]

# What QIIME 2 accepts in any case, its older spellings, and the `sample_id` of earlier scripts.
SAMPLE_ID_NAMES = (
    "id",
    "sampleid",
    "sample id",
    "sample-id",
    "sample_id",
    "sample_name",
    "#sampleid",
    "#sample id",
)
FEATURE_ID_NAMES = ("featureid", "feature id", "feature-id", "#otuid", "#otu id")
ID_NAMES = frozenset(SAMPLE_ID_NAMES + FEATURE_ID_NAMES)

# Missing-value terms of INSDC, alone or with a colon and the reason, and what spreadsheets and R write.
INSDC = ("missing", "not applicable", "not collected", "not provided", "restricted access")
MISSING = frozenset({*INSDC, "", "na", "n/a", "nan", "none", "null"})
INSDC_REASON = tuple(f"{term}:" for term in INSDC)

SCHEMES = ("", "INSDC:missing", "blank", "no-missing")
DIRECTIVE = ("#q2:", "#sk:")
DIRECTIVES = {prefix + name: name for prefix in DIRECTIVE for name in ("types", "missing")}
ARTIFACTS = {"ImmutableMetadata": "metadata.tsv", "SampleData[AlphaDiversity]": "alpha-diversity.tsv"}

MOST_LINES = 8

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

log = logging.getLogger(__name__)


def is_missing(value: str, only_empty: bool = False) -> bool:
    """Whether a cell says that there is no value: empty or, in any case, one of `MISSING`."""
    if only_empty:
        return not value
    value = value.lower()
    return value in MISSING or value.startswith(INSDC_REASON)


def is_number(value: str) -> bool:
    """Whether a cell is a finite decimal number."""
    return NUMBER.fullmatch(value) is not None and math.isfinite(float(value))


@dataclass(frozen=True)
class Metadata:
    """A metadata table; every value is the text that stood in the file.

    Attributes
    ----------
    ids : tuple of str
        Sample ids, one per row.
    columns : dict of str to tuple of str
        Values by column name, in the order of `ids`.
    kinds : dict of str to str
        ``numeric`` or ``categorical``: as the file's types directive says, else numeric where every
        value that is not missing is a finite number.
    declared : frozenset of str
        Columns whose kind the file states.
    blank : frozenset of str
        Columns in which only an empty cell is missing (``#q2:missing`` is ``blank`` or ``no-missing``).
    source : str
        Where it was read from, for messages.
    """

    ids: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]
    kinds: dict[str, Kind]
    declared: frozenset[str] = frozenset()
    blank: frozenset[str] = frozenset()
    source: str = "metadata"

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._row

    def require(self, names: Iterable[str]) -> None:
        """Refuse column names that do not exist, all at once, with the names there are."""
        problems = []
        for name in dict.fromkeys(names):
            if name not in self.columns:
                folded = {column.lower(): column for column in self.columns}
                near = difflib.get_close_matches(name.lower(), folded, n=3)
                hint = f" Did you mean {' or '.join(repr(folded[match]) for match in near)}?" if near else ""
                problems.append(
                    f"{self.source}: no column {name!r}.{hint} Columns: {shown(self.columns, 50)}"
                )
        if problems:
            raise InputError(*problems)

    def column(self, name: str) -> tuple[str, ...]:
        """All values of a column as text; `InputError` lists the columns there are."""
        self.require([name])
        return self.columns[name]

    def cell(self, name: str, sample_id: str) -> str:
        """The text that stands in a column for a sample, missing or not."""
        return self.column(name)[self._row[sample_id]]

    def values(self, name: str, ids: Iterable[str]) -> tuple[str | None, ...]:
        """Values of a column for the samples `ids`, none where missing.

        Raises
        ------
        InputError
            No such column, or samples without a row.
        """
        cells, blank, ids = self.column(name), name in self.blank, tuple(ids)
        absent = [sample for sample in ids if sample not in self._row]
        if absent:
            raise InputError(f"{self.source}: {len(absent)} samples have no row: {shown(absent)}")
        chosen = (cells[self._row[sample]] for sample in ids)
        return tuple(None if is_missing(cell, blank) else cell for cell in chosen)

    def numbers(self, name: str, ids: Iterable[str]) -> npt.NDArray[np.float64]:
        """Values of a column as float64 ``[N]`` for the samples `ids`, NaN where missing.

        Raises
        ------
        InputError
            As `values`, and for text or an infinite value.
        """
        ids = tuple(ids)
        values = self.values(name, ids)
        text = [row for row, value in enumerate(values) if value is not None and not is_number(value)]
        if text:
            found = ", ".join(f"{values[row]!r} (sample {ids[row]!r})" for row in text[:5])
            raise InputError(
                f"{self.source}: column {name!r} has {len(text)} of {len(ids)} values that are no finite "
                f"numbers: {found}; correct them, or leave these cells empty and pass --missing drop"
            )
        return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)


def _text(path: Path) -> str:
    raw = read_bytes(path)
    if not raw.startswith(ZIP_MAGIC):
        return decoded(raw, path)
    if path.suffix not in (".qza", ".qzv"):
        raise InputError(f"{path}: is a zip archive (Excel?), expected tab-separated text in UTF-8 (.tsv)")
    artifact = read_artifact(path, ARTIFACTS, "or pass the metadata as tab-separated text (.tsv)")
    text = decoded(artifact.file(ARTIFACTS[artifact.type.split(" % ")[0]]), path)
    return f"id{text}" if text.startswith("\t") else text


def _header(rows: Iterator[Row], path: Path) -> list[str]:
    for line, cells in rows:
        if cells[0].lower() in ID_NAMES:
            break
        if not any(cells) or (cells[0].startswith("#") and not cells[0].startswith(DIRECTIVE)):
            continue
        commas = " (commas instead of tabs?)" if len(cells) == 1 and "," in cells[0] else ""
        raise InputError(
            f"{path}: line {line} begins with {cells[0][:60]!r}{commas}, expected a tab-separated header "
            f"that begins with the name of the id column, one of: {', '.join(sorted(ID_NAMES))}"
        )
    else:
        raise InputError(f"{path}: empty or nothing but comments, expected a header and one row per sample")
    while not cells[-1]:
        cells.pop()
    problems = Problems()
    empty = [place for place, name in enumerate(cells, start=1) if not name]
    if empty:
        problems.add(f"{path}: line {line}: column {shown(empty)} has no name; name it or delete it")
    if repeated := _repeated(cells):
        problems.add(f"{path}: line {line}: columns of the same name: {shown(repeated)}; rename them")
    problems.raise_if_any()
    return cells


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1 and name)


@dataclass
class _Body:
    """What stands below the header: cells by column, directives, and the lines of faulty rows."""

    ids: list[str]
    columns: list[list[str]]
    directives: dict[str, list[str]]
    faults: dict[str, list[str]]

    def fault(self, problem: str, line: int) -> None:
        self.faults.setdefault(problem, []).append(str(line))


def _body(rows: Iterator[Row], header: list[str]) -> _Body:
    body = _Body([], [[] for _ in header[1:]], {}, {})
    same: dict[str, str] = {}
    for line, cells in rows:
        first = cells[0]
        if not any(cells):
            continue
        if first.lower() in ID_NAMES:
            body.fault("repeats the header; remove it", line)
            continue
        kind = DIRECTIVES.get(first.split(" ")[0])
        if kind is None and first.startswith("#"):
            if first.startswith(DIRECTIVE):
                body.fault("unknown directive, expected #q2:types or #q2:missing", line)
            continue
        if any(cells[len(header) :]):
            body.fault(f"more cells than the {len(header)} of the header; is a tab inside a cell?", line)
            continue
        cells = cells[: len(header)] + [""] * (len(header) - len(cells))
        if kind is not None:
            if kind in body.directives or body.ids:
                body.fault("a directive that stands twice or below samples", line)
            body.directives[kind] = cells[1:]
            continue
        if not first:
            body.fault("no sample id", line)
        body.ids.append(first)
        for column, cell in zip(body.columns, cells[1:], strict=True):
            # Equal cells share one string: real tables repeat few values very often.
            column.append(same.setdefault(cell, cell))
    return body


def _check_rows(body: _Body, path: Path, problems: Problems) -> None:
    for problem, lines in body.faults.items():
        more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
        problems.add(f"{path}: line {', '.join(lines[:MOST_LINES])}{more}: {problem}")
    if repeated := _repeated(body.ids):
        problems.add(f"{path}: {len(repeated)} sample ids stand on several rows: {shown(repeated)}; keep one")
    if not body.ids and not problems.found:
        problems.add(f"{path}: a header but no samples below it")


def _directives(
    body: _Body, names: list[str], path: Path, problems: Problems
) -> tuple[dict[str, Kind], dict[str, str]]:
    """Stated kinds and missing-value schemes by column."""
    nothing = [""] * len(names)
    kinds: dict[str, Kind] = {}
    for name, kind in zip(names, body.directives.get("types", nothing), strict=True):
        if kind.lower() == "numeric":
            kinds[name] = "numeric"
        elif kind.lower() == "categorical":
            kinds[name] = "categorical"
        elif kind:
            problems.add(f"{path}: #q2:types of {name!r} is {kind!r}, expected numeric or categorical")
    schemes = dict(zip(names, body.directives.get("missing", nothing), strict=True))
    for name, scheme in schemes.items():
        if scheme not in SCHEMES:
            problems.add(
                f"{path}: #q2:missing of {name!r} is {scheme!r}, expected {' or '.join(SCHEMES[1:])}"
            )
    return kinds, schemes


def _assembled(body: _Body, names: list[str], path: Path) -> Metadata:
    problems = Problems()
    _check_rows(body, path, problems)
    stated, schemes = _directives(body, names, path, problems)
    columns = dict(zip(names, map(tuple, body.columns), strict=True))
    blank = frozenset(name for name, scheme in schemes.items() if scheme in ("blank", "no-missing"))
    kinds: dict[str, Kind] = {}
    for name, cells in columns.items():
        present = (cell for cell in cells if not is_missing(cell, name in blank))
        text = next((cell for cell in present if not is_number(cell)), None)
        kinds[name] = stated.get(name, "numeric" if text is None else "categorical")
        if text is not None and kinds[name] == "numeric":
            sample = body.ids[cells.index(text)]
            problems.add(
                f"{path}: column {name!r} is numeric by #q2:types, but sample {sample!r} has {text!r}, "
                "expected a finite number; correct it or state categorical"
            )
        if schemes[name] == "no-missing" and "" in cells:
            sample = body.ids[cells.index("")]
            problems.add(
                f"{path}: column {name!r} is no-missing by #q2:missing, but sample {sample!r} is empty"
            )
    problems.raise_if_any()
    return Metadata(tuple(body.ids), columns, kinds, frozenset(stated), blank, str(path))


def read_metadata(path: Path) -> Metadata:
    """Read sample metadata by the rules of QIIME 2.

    Tab-separated UTF-8; the first column is named by one of `ID_NAMES`; rows that begin with ``#`` are
    comments but for ``#q2:types`` and ``#q2:missing``; white space around cells is dropped; rows may end
    early. Beyond QIIME 2, the terms in `MISSING` are missing values unless ``#q2:missing`` says ``blank``.
    A .qza of `ARTIFACTS` is read too.

    Raises
    ------
    InputError
        With every problem of the file: encoding, quotes, header, rows, ids, directives.
    """
    rows = ((line, [cell.strip() for cell in cells]) for line, cells in parse_rows(_text(path), path))
    header = _header(rows, path)
    return _assembled(_body(rows, header), header[1:], path)


def _gaps(
    metadata: Metadata, sample_ids: Sequence[str], columns: Sequence[str]
) -> tuple[set[str], list[str]]:
    """Samples that lack a row or a value, and one sentence for each reason."""
    absent = [sample for sample in sample_ids if sample not in metadata]
    present = [sample for sample in sample_ids if sample in metadata]
    gaps, reasons, total = set(absent), [], len(sample_ids)
    if absent:
        others = "" if present else f" (its own ids look like {shown(metadata.ids, 3)})"
        reasons.append(
            f"{metadata.source}: {len(absent)} of {total} samples of the table have no row{others}: "
            f"{shown(absent)}"
        )
    for name in dict.fromkeys(columns):
        lacking = [row for row, value in enumerate(metadata.values(name, present)) if value is None]
        samples = [present[row] for row in lacking]
        gaps.update(samples)
        if samples:
            written = shown(sorted({metadata.cell(name, sample) for sample in samples}))
            reasons.append(
                f"{metadata.source}: {len(samples)} of {total} samples have no value in {name!r} "
                f"(written {written}): {shown(samples)}"
            )
    return gaps, reasons


def align(
    metadata: Metadata,
    sample_ids: Sequence[str],
    columns: Sequence[str],
    missing: Literal["error", "drop"] = "error",
) -> tuple[str, ...]:
    """Those of `sample_ids`, in their order, that have a row and a value in every one of `columns`.

    Others are refused, or with ``missing="drop"`` left out and logged as a warning.

    Raises
    ------
    InputError
        Columns that do not exist; samples that lack something while `missing` is ``error``; none left.
    """
    metadata.require(columns)
    gaps, reasons = _gaps(metadata, sample_ids, columns)
    kept = tuple(sample for sample in sample_ids if sample not in gaps)
    if not kept:
        raise InputError(*reasons, f"{metadata.source}: no sample of the table has all that is needed")
    if reasons and missing == "error":
        raise InputError(*reasons, "Fill the gaps, or leave these samples out with --missing drop")
    for reason in reasons:
        log.warning("%s; left out", reason)
    return kept
