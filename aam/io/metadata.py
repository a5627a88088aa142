"""Sample metadata: QIIME 2 metadata tables, typed once when they are read."""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from aam.config import Missing
from aam.errors import InputError, problem, refuse, short, shown
from aam.io.ids import KEEP_ONE, difference, repeated
from aam.io.missing import is_missing, is_no_class
from aam.io.text import (
    DIRECTIVE,
    IS_ID_NAME,
    LARGEST_NUMBER,
    MOST_LINES,
    Faults,
    TextTable,
    is_number,
    read_table_text,
    read_text,
)
from aam.typing import Floats

ColumnType = Literal["numeric", "categorical"]

SCHEMES = ("", "INSDC:missing", "blank", "no-missing")
ARTIFACTS = {
    "ImmutableMetadata": "metadata.tsv",
    "SampleData[AlphaDiversity]": "alpha-diversity.tsv",
}
EXPECTED_METADATA = (
    "a header whose first cell is sample-id, with the sample ids below it and tabs or commas "
    "between cells"
)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?", re.ASCII)

log = logging.getLogger(__name__)


def with_point(value: str) -> str:
    """Replace the comma of a decimal number by a point; other text is not changed."""
    return value.replace(",", ".") if DECIMAL_COMMA.fullmatch(value) else value


@dataclass(frozen=True, eq=False)
class Metadata:
    """A metadata table, typed when it was read.

    Attributes
    ----------
    text : DataFrame [N, C]
        The values as they are written, by sample id: categories in ascending order, NaN where one
        is missing. Groups, folds and classes are text, also in a column of numbers.
    kinds : dict
        The type of each column: numeric if at least half of its values are numbers.
    source : str
        Where it was read from, for messages.
    faults : mapping
        Problems of columns: they end a command only if one of its options names the column.
    odd : mapping
        Problems of cells that are neither values nor missing, by column: they end a command in the
        same way, and are text elsewhere.
    words : mapping
        The words that were read as missing, by column.
    """

    text: pd.DataFrame
    kinds: Mapping[str, ColumnType]
    source: str = "metadata"
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)
    odd: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Sample ids, in the order of the rows."""
        return tuple(self.text.index)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.text.columns)

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self.text.index

    def without(self, classes: Mapping[str, Iterable[str]]) -> Metadata:
        """The metadata without some classes, by column: their cells are missing."""
        text = self.text.copy(deep=False)
        for name, labels in classes.items():
            text[name] = text[name].cat.remove_categories([*labels])
        return replace(self, text=text)

    def nested(self, group: str | None, study: str | None) -> Metadata:
        """The metadata in which a value of the column `group` that occurs in several values of the
        column `study`, such as subject 1 of each, is a group in each; the same without one of them.
        """
        if group is None or group == study or not {group, study} <= {*self.text}:
            return self
        groups, studies = (self.text[name].astype(object) for name in (group, study))
        counts = studies.groupby(groups).nunique()
        is_reused = groups.isin(counts.index[counts > 1]) & studies.notna()
        if not is_reused.any():
            return self
        names = f"{self.source}: {groups[is_reused].nunique()} values of {group!r}"
        log.info("%s occur in several values of %r; each is a group in each", names, study)
        text = self.text.copy(deep=False)
        text[group] = pd.Categorical(groups.where(~is_reused, studies + ": " + groups))
        return replace(self, text=text, kinds={**self.kinds, group: "categorical"})

    def require(self, names: Iterable[str]) -> None:
        """Refuse columns that do not exist, with the names there are, and columns with `faults` or
        with cells that are neither values nor missing; all at once.
        """
        rules = dict[str, bool]()
        for name in dict.fromkeys(names):
            rules |= dict.fromkeys(self.faults.get(name, ()), True)
            rules |= dict.fromkeys(self.odd.get(name, ()), True)
            if name not in self.text and name not in self.faults:
                rules[self._no_column(name)] = True
        refuse(self.source, rules)

    def _no_column(self, name: str) -> str:
        return f"no column {name!r}. Columns: {shown(self.columns, 50)}"

    def read_as_text(self, names: Iterable[str]) -> list[str]:
        """Say which of some columns are read as text because of their `faults`, and why."""
        reasons = [reason for name in names for reason in self.faults.get(name, ())]
        return [f"{self.source}: {reason}; read as text" for reason in reasons]

    def at(self, ids: Iterable[str]) -> Metadata:
        """The metadata of some samples, in that order; one without a row has no value."""
        return replace(self, text=self.text.reindex(pd.Index([*ids], dtype=object)))

    def _column(self, name: str, ids: Iterable[str] | None) -> pd.Series:
        """Categories of the samples `ids`, or of all; `InputError`: no such column."""
        if name not in self.text:
            raise InputError(f"{self.source}: {self._no_column(name)}")
        column = self.text[name]
        return column if ids is None else column.reindex(pd.Index([*ids], dtype=object))

    def values(self, name: str, ids: Iterable[str] | None = None) -> tuple[str | None, ...]:
        """Return values of a column, of all samples or those called `ids`, none where missing.

        Raises `InputError`: no such column.
        """
        column = self._column(name, ids).cat
        labels = np.array([*column.categories, None], dtype=object)
        return tuple(labels[column.codes.to_numpy()].tolist())

    def groups(self, name: str, ids: Iterable[str] | None = None) -> list[str]:
        """Group of each sample, as `values`; one without a value is a group of its own."""
        ids = self.ids if ids is None else tuple(ids)
        pairs = zip(ids, self.values(name, ids), strict=True)
        return [f"sample {sample}" if group is None else group for sample, group in pairs]

    def numbers(self, name: str, ids: Iterable[str] | None = None) -> Floats:
        """Return `values` as float64 ``[N]``, NaN where missing; `InputError` for text and for
        numbers above `LARGEST_NUMBER` too.
        """
        column = self._column(name, ids)
        labels = column.cat.categories
        text = column[column.isin([label for label in labels if not is_number(label)])]
        if len(text):
            cells = [(short(label), sample) for sample, label in text[:5].items()]
            listed = ", ".join(f"{cell!r} (sample {sample!r})" for cell, sample in cells)
            number = f"{len(text)} of {len(column)} values that are no numbers of at most "
            number += f"{LARGEST_NUMBER:g}"
            remedy = "correct them, or name those that mean missing by --missing-values"
            fault = f"column {name!r} has {number}: {listed}"
            raise InputError(problem(self.source, fault, remedy=remedy))
        numbers = [float(label) if is_number(label) else math.nan for label in labels]
        return np.asarray(np.array([*numbers, math.nan])[column.cat.codes.to_numpy()])


def _is_comment(first: str) -> bool:
    """Return whether a row with this first cell is a comment, and not a directive or a header."""
    is_directive = first.startswith(DIRECTIVE)
    return first.startswith("#") and not is_directive and not IS_ID_NAME(first)


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
        if IS_ID_NAME(first):
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
    if not samples and not faults.messages:
        faults.add("a header but no samples below it; rows that begin with # are comments")
    return samples, directives


def read_metadata(path: Path, decimal: str = ".", missing_values: Collection[str] = ()) -> Metadata:
    """Read sample metadata by the rules of QIIME 2, from text or a .qza of `ARTIFACTS`.

    Tabs, commas or semicolons separate the cells. With the `decimal` mark "," cells such as 0,5 are
    numbers. The first column has a name of ids (`ID_NAME`) or none; rows that begin with ``#``
    are comments but for ``#q2:types`` and ``#q2:missing``; white space around cells is dropped;
    rows may end early. What `is_missing` names is missing unless ``#q2:missing`` says ``blank``; so
    are `missing_values`, always.

    Raises `InputError`: with every problem of the file: encoding, quotes, header, rows, ids,
    directives.
    """
    table = read_table_text(read_text(path, ARTIFACTS), path, EXPECTED_METADATA)
    samples, directives = _samples_and_directives(table)
    ids, *columns = zip(*samples, strict=True) if samples else [()] * len(table.header)
    if decimal == ",":
        columns = [tuple(map(with_point, cells)) for cells in columns]
    types, schemes = (directives.get(x, [""] * len(columns)) for x in ("types", "missing"))
    said = types, schemes, str(path), table.faults
    return make_metadata(ids, table.header[1:], columns, *said, missing_values)


def make_metadata(
    ids: Sequence[str],
    names: Sequence[str],
    columns: Sequence[Sequence[str]],
    types: Sequence[str],
    schemes: Sequence[str],
    source: str,
    faults_of_rows: Faults | None = None,
    missing_values: Collection[str] = (),
) -> Metadata:
    """Return the metadata of samples `ids`, from the cells of each column and what ``#q2:types``
    and ``#q2:missing`` say of it.

    Missing are the words of `is_missing`, but for the columns in which only empty cells are
    (``blank``), and `missing_values`, in any case. Columns without a name of their own are left
    out, with a warning. `source` is its name in messages, and `faults_of_rows` are those that were
    found before. Raises `InputError` with all.
    """
    faults_of_rows = Faults(source) if faults_of_rows is None else faults_of_rows
    if duplicates := repeated(ids):
        rows = f"{len(duplicates)} sample ids stand on several rows"
        faults_of_rows.add(f"{rows}: {shown(duplicates)}; {KEEP_ONE}")
    faults_of_rows.raise_if_any()
    faults, named = _faults_of_names(names, columns), frozenset(map(str.lower, missing_values))
    for fault in itertools.chain(*faults.values()):
        log.warning("warning: %s: header: %s; left out", source, fault)
    text, kinds = dict[str, pd.Categorical](), dict[str, ColumnType]()
    odd, words = dict[str, list[str]](), dict[str, list[str]]()
    for name, cells, stated, scheme in zip(names, columns, types, schemes, strict=True):
        if not name or name in faults:
            continue
        is_blank = scheme in ("blank", "no-missing")
        codes, labels = pd.factorize(np.array([*cells], dtype=object), sort=True)
        gaps = [
            x for x in labels if not x or x.lower() in named or (is_missing(x) and not is_blank)
        ]
        column = pd.Categorical.from_codes(codes, labels).remove_categories(gaps)
        numbers = column.isin([x for x in labels if is_number(x)]).sum()
        # Text in half of the cells or fewer is rather a mistake than a class.
        is_numeric = 2 * numbers >= column.notna().sum() and stated.lower() != "categorical"
        kinds[name] = "numeric" if is_numeric else "categorical"
        text[name], words[name] = column, list(filter(None, gaps))
        faults[name] = _column_faults(name, pd.Series(column, ids), stated, scheme)
        odd[name] = [] if is_blank else _odd_cells(name, pd.Series(column, ids))
    frame = pd.DataFrame(text, pd.Index(ids, dtype=object))
    return Metadata(frame, kinds, source, faults, odd, words)


def _faults_of_names(
    names: Sequence[str], columns: Sequence[Sequence[str]]
) -> dict[str, list[str]]:
    """Describe columns without a name, unless they are empty, and of the name of another. The
    column of ids is the first.
    """
    places, faults = dict[str, list[str]](), dict[str, list[str]]()
    for place, (name, cells) in enumerate(zip(names, columns, strict=True), 2):
        if name or any(cells):
            places.setdefault(name, []).append(f"column {place}")
    for name, found in places.items():
        listed = f"{len(found)} columns {{}}: {', '.join(found[:MOST_LINES])}"
        if not name:
            faults[name] = [listed.format("have no name")]
        elif len(found) > 1:
            faults[name] = [listed.format(f"are called {name!r}") + "; name each once"]
    return faults


def _column_faults(name: str, column: pd.Series, stated: str, scheme: str) -> list[str]:
    """Faults of a column of values by sample id, next to what ``#q2:types`` and ``#q2:missing``
    state: types that are not those, and numbers with decimal commas.
    """
    faults = list[str]()
    text = [label for label in column.cat.categories if not is_number(label)]
    if stated.lower() not in ("", "numeric", "categorical"):
        faults.append(f"#q2:types of {name!r} is {stated!r}, expected numeric or categorical")
    if scheme not in SCHEMES:
        expected = " or ".join(SCHEMES[1:])
        faults.append(f"#q2:missing of {name!r} is {scheme!r}, expected {expected}")
    if scheme == "no-missing" and column.hasnans:
        sample = column.index[column.isna()][0]
        remedy = "fill it, or write blank instead"
        faults.append(f"column {name!r} is no-missing, but sample {sample!r} is empty; {remedy}")
    if text and stated.lower() == "numeric":
        sample = column.index[column.isin(text)][0]
        value = f"column {name!r} is declared numeric, but sample {sample!r} has "
        remedy = "expected a finite number; correct it, or declare it categorical"
        faults.append(f"{value}{short(column[sample])!r}, {remedy}")
    if text and not stated and all(map(DECIMAL_COMMA.fullmatch, text)):
        value = f"column {name!r} has numbers with decimal commas, such as {text[0]!r}"
        remedy = "pass --decimal , or add a second line '#q2:types' with categorical below it"
        faults.append(f"{value}; {remedy}; delete commas between thousands")
    return faults


def _odd_cells(name: str, column: pd.Series) -> list[str]:
    """The problem of the cells of a column that `is_no_class` refuses, if there are some.

    Next to a plus sign, as in a column of + and -, punctuation is a class.
    """
    labels = column.cat.categories
    odd = [label for label in labels if is_no_class(label)]
    has_plus = any("+" in label and not any(map(str.isalnum, label)) for label in labels)
    if not odd or has_plus:
        return []
    samples = column.index[column.isin(odd)]
    cells = f"cells of column {name!r} are {shown(odd)} (samples {shown(samples)})"
    remedy = "empty them or name them by --missing-values if they mean missing; if they are a class"
    return [f"{cells}; {remedy}, add a second line '#q2:missing' with blank below {name!r}"]


def align(
    metadata: Metadata, samples: Sequence[str], columns: Sequence[str], missing: Missing = "error"
) -> tuple[str, ...]:
    """Those of `samples`, in their order, with a row and a value in each of `columns`.

    Others are refused, or with ``missing="drop"`` left out and logged as a warning. Raises
    `InputError`: columns that do not exist; samples that lack something, or all of them.
    """
    metadata.require(columns)
    total, reasons = f"of {len(samples)} samples", list[str]()
    frame = metadata.at(samples).text[[*dict.fromkeys(columns)]]
    has_row = frame.index.isin(metadata.text.index)
    if len(without_row := frame.index[~has_row]):
        listed = f"{shown(without_row)}{difference(samples, metadata.ids)}"
        listed += f" (its own ids look like {shown(metadata.ids, 3)})"
        reasons.append(f"{len(without_row)} {total} of the table have no row: {listed}")
    blank = "; if such a word is a class, add a second line '#q2:missing' with blank below it"
    for name, column in frame[has_row].items():
        if len(without_value := column.index[column.isna()]):
            words = metadata.words.get(str(name), ())
            read = f" (read as missing: {shown(words)})" if words else ""
            gap = f"{len(without_value)} {total} have no value in {name!r}{read}"
            reasons.append(f"{gap}: {shown(without_value)}{blank if words else ''}")
    reasons = [f"{metadata.source}: {reason}" for reason in reasons]
    complete = tuple(frame.index[has_row & frame.notna().all(axis=1)])
    if not complete:
        raise InputError(*reasons[:-1], "; ".join([*reasons[-1:], "so no sample is left"]))
    if reasons and missing == "error":
        remedy = "fill the gaps, or leave these samples out with --missing drop"
        raise InputError(*(f"{reason}; {remedy}" for reason in reasons))
    for reason in reasons:
        log.warning("%s; left out", reason)
    return complete
