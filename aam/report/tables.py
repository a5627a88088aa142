"""Tables of a report, their plain-text form, and names that are cut."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from aam.evaluate import intervals, metrics
from aam.evaluate.comparison import headline, tests_corrected_for
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import Interval, Metrics, number, too_few, with_limits
from aam.evaluate.metrics import TITLES, Array
from aam.evaluate.predictions import Subset, TargetPredictions

# What a cell of a column of numbers begins with, if it is not empty or a dash.
NUMERIC = re.compile(r"^$|^-$|^[-<]?\.?\d")

# Number of samples that are listed as the worst.
WORST_SAMPLES = 15

# How a report calls the metrics of samples, and the samples in a sentence.
SUBSETS: dict[Subset, tuple[str, str]] = {
    "held-out": ("Held-out metrics", "held-out samples"),
    "validation": ("Validation metrics (not held out)", "validation samples (not held out)"),
    "training": ("Metrics of samples seen in training", "samples seen in training"),
    "unknown": ("Metrics (held out or not is unknown)", "samples (held out or not is unknown)"),
}


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; the first column names the row. `name` is that of its kind."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    name: str = ""

    @property
    def words(self) -> frozenset[int]:
        """The columns that hold text; others hold numbers."""
        columns = enumerate(zip(*self.rows, strict=True))
        return frozenset(at for at, cells in columns if not all(map(NUMERIC.match, cells)))


def printable(text: str) -> str:
    """Return the text without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def plain_lines(table: Table) -> list[str]:
    """A table for a terminal: the first column on the left, others on the right."""
    cells = np.array([[printable(cell) for cell in row] for row in (table.header, *table.rows)])
    columns = [np.char.rjust(column, np.char.str_len(column).max()) for column in cells.T]
    columns[0] = np.char.ljust(cells[:, 0], np.char.str_len(cells[:, 0]).max())
    return [printable(table.title), *map("  ".join, zip(*columns, strict=True))]


def shortened(text: str, most: int) -> str:
    """Cut a text to at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def middle_cut(text: str, most: int) -> str:
    """Cut a text to at most `most` characters in its middle, because the last ones often
    distinguish names.
    """
    return text if len(text) <= most else f"{text[: most - 11]}…{text[-10:]}"


# --- tables of a target ------------------------------------------------------------------------


def _metrics_table(result: Evaluation) -> Table:
    """Metrics of all samples, by fold and by batch."""
    names, complete = result.names, result.predictions.complete()
    title, samples = SUBSETS[result.subset]
    shown = {**result.metrics, **result.coverage}
    parts = [(f"all {samples}", len(complete.truth), shown)]
    for kind, levels in (("fold", result.folds), (names.batch, result.batches)):
        parts += [(f"{kind} {level}", count, values) for level, (count, values) in levels.items()]
    unit, of = ("sample", "") if complete.groups is None else ("value", f" of {names.group}")
    over = f"with 95 % intervals over {complete.group_count} {unit}s{of}"
    if complete.group_count < intervals.LEAST_GROUPS:
        over = f"without intervals, {too_few(complete.group_count, unit, of)}"
    rows = []
    for part, count, values in parts:
        cells = [with_limits(values[name]) if name in values else "-" for name in shown]
        rows.append((part, str(count), *cells))
    header = ("", "samples", *(TITLES[name] for name in shown))
    return Table(f"{title}, {over}", header, tuple(rows), "metrics")


def _new_studies_table(result: Evaluation) -> list[Table]:
    """Metric of each study that was held out whole, and their mean."""
    new, name = result.new_studies, result.names.batch
    if new is None:
        return []
    total = sum(samples for samples, _ in new.studies.values())
    parts = {**new.studies, f"mean over values of {name}": (total, Interval(new.mean))}
    rows = tuple((part, str(count), with_limits(value)) for part, (count, value) in parts.items())
    header = (name, "samples", f"{TITLES[new.metric]}, 95 % interval")
    return [Table(f"Each {name} was held out whole", header, rows, "new-studies")]


def _baselines_table(result: Evaluation) -> list[Table]:
    """The headline metric, the difference and its p, and all other metrics."""
    if not result.comparisons:
        return []
    key = headline(result.predictions.labels)
    others = [name for name in result.metrics if name != key]

    def row(name: str, samples: int, values: Metrics, *tested: str) -> tuple[str, ...]:
        cells = (number(values[other].value) if other in values else "-" for other in others)
        return (name, str(samples), with_limits(values[key]), *tested, *cells)

    rows = [row("the model", len(result.predictions.complete().truth), result.metrics, "", "")]
    for rival in result.comparisons:
        tested = with_limits(rival.tested_difference), number(rival.corrected_p)
        rows.append(row(rival.name, rival.samples, rival.metrics, *tested))
    tests = tests_corrected_for(result.comparisons)
    corrected = f" (p corrected for {tests} baselines; of guessing one-sided)" if tests > 1 else ""
    titles = (f"{TITLES[key]}, model minus it", "p", *(TITLES[name] for name in others))
    header = ("", "samples", TITLES[key], *titles)
    return [Table(f"The model and baselines{corrected}", header, tuple(rows), "baselines")]


def _class_tables(result: Evaluation) -> list[Table]:
    """Metrics of each class against all others, and the samples that it lost."""
    complete, tables = result.predictions.complete(), []
    if labels := complete.labels:
        folds = complete.cross_validated
        by_class = metrics.per_class(complete.truth, complete.predicted, labels, folds)
        rows = [
            (str(label), str(int(samples)), *map(number, values))
            for label, samples, *values in by_class.itertuples()
        ]
        header = ("class", "samples", *(TITLES[name] for name in by_class.columns[1:]))
        tables.append(Table("Each class against all others", header, tuple(rows), "levels"))
    if any(n > kept for n, kept in result.dropped.values()):
        lost = [(name, str(n), str(k), str(n - k)) for name, (n, k) in result.dropped.items()]
        header = ("class", "samples", "kept", "dropped")
        tables.append(Table("Samples dropped below the depth", header, tuple(lost), "dropped"))
    return tables


def worst_rows(complete: TargetPredictions) -> Array:
    """Rows of the samples that are predicted worst, the worst first."""
    return np.argsort(-complete.errors, kind="stable")[:WORST_SAMPLES]


def worst_table(result: Evaluation) -> list[Table]:
    """The samples with the largest errors."""
    complete, names, labels = result.predictions.complete(), result.names, result.predictions.labels
    known = {names.group: complete.groups, names.batch: complete.batch, "fold": complete.fold}
    columns = {name: values for name, values in known.items() if values is not None}
    rows = []
    for at in worst_rows(complete).tolist():
        true, predicted = complete.truth[at], complete.predicted[at]
        if labels:
            cells = labels[true], labels[int(predicted.argmax())], number(float(predicted[true]))
        else:
            cells = number(true), number(predicted), number(float(complete.errors[at]))
        where = (str(values[at]) for values in columns.values())
        rows.append((complete.sample_ids[at], *cells, *where))
    third = "probability of the true class" if labels else "absolute error"
    header = ("sample-id", f"true {names.target}", f"predicted {names.target}", third, *columns)
    title = f"The {len(rows)} samples predicted worst"
    return [Table(title, header, tuple(rows), "worst")] if rows else []


def result_tables(result: Evaluation) -> list[Table]:
    """All tables of one target but those of the worst samples."""
    first = [*_new_studies_table(result), _metrics_table(result)]
    return [*first, *_baselines_table(result), *_class_tables(result)]
