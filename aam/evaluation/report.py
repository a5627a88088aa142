"""The contents of a report: tables and sentences, and their plain-text form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aam.evaluation import bootstrap, conformal, metrics
from aam.evaluation.baselines import Baseline
from aam.evaluation.bootstrap import Interval, Predictions
from aam.evaluation.metrics import TITLES, Array
from aam.evaluation.verdict import Comparison, compare_with_baselines, headline, number, verdict

Figures = dict[str, Interval]

# Longer tables are folded up.
MOST_ROWS = 30


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Names:
    """What the report calls a target, and the batches and groups of its samples."""

    target: str
    batch: str = "batch"
    group: str = "group"


@dataclass(frozen=True, eq=False)
class TargetResult:
    """One target of a run; made by `target_result`.

    `folds` and `batches` hold by level the number of samples and their figures, `parts` the same for other columns,
    `coverage` what share of the truths lies in the conformal intervals and how wide these are, `losses` by class the
    number of samples in the metadata and of those whose depth sufficed.
    """

    names: Names
    predictions: Predictions
    pooled: Figures
    folds: Mapping[str, tuple[int, Figures]]
    batches: Mapping[str, tuple[int, Figures]]
    comparisons: tuple[Comparison, ...]
    sentences: tuple[str, ...]
    losses: Mapping[str, tuple[int, int]]
    parts: Mapping[str, Mapping[str, tuple[int, Figures]]] = field(default_factory=dict)
    coverage: Figures = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ReportData:
    """What a report shows.

    `task`, `data` and `split` say what was done, with what, and how samples were divided; `tables` are those
    of pretraining; `transductive`: pretraining saw held-out samples, without labels.
    """

    title: str
    task: Mapping[str, object]
    data: Mapping[str, object]
    split: Mapping[str, object]
    targets: tuple[TargetResult, ...] = ()
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()
    transductive: bool = False
    configuration: Mapping[str, object] = field(default_factory=dict)


def target_result(
    names: Names,
    predictions: Predictions,
    baselines: Sequence[Baseline] = (),
    losses: Mapping[str, tuple[int, int]] | None = None,
    parts: Mapping[str, Array] | None = None,
    seed: int = 0,
    repeats: int = 1000,
) -> TargetResult:
    """Figures, comparisons and verdict of one target; rows of baselines and `parts` [N] are those of `predictions`."""

    def by(levels: Array | None) -> Mapping[str, tuple[int, Figures]]:
        return {} if levels is None else bootstrap.figures_by(predictions, levels, seed, repeats)

    comparisons, coverage = (
        compare_with_baselines(predictions, baselines, seed, repeats),
        _coverage(predictions, seed, repeats),
    )
    return TargetResult(
        names,
        predictions,
        bootstrap.figures(predictions, seed, repeats),
        by(predictions.fold),
        by(predictions.batch),
        comparisons,
        (*verdict(predictions, comparisons, names.batch), *_said_of_intervals(predictions, coverage)),
        losses or {},
        {name: by(levels) for name, levels in (parts or {}).items()},
        coverage,
    )


def _bounded(predictions: Predictions) -> Predictions:
    """The samples that have a truth and an interval."""
    known = predictions.known()
    return known if known.limits is None else known.at(np.asarray(np.isfinite(known.limits).all(axis=1)))


def _coverage(predictions: Predictions, seed: int, repeats: int) -> Figures:
    """Coverage and width over all samples, with intervals, and the width if all samples shared one."""
    known = _bounded(predictions)
    if known.limits is None or not len(known.truth):
        return {}
    drawn = bootstrap.resampled(metrics.interval_figures, known.truth, known.limits, known.resampled, seed, repeats)
    same = conformal.Conformal.fit(known, scales=1)
    width = Interval(math.nan if same is None else 2 * same.quantile * same.scales[0])
    return {**{name: bootstrap.interval(values) for name, values in drawn.items()}, "one_width": width}


def _tenths(truth: Array) -> Array:
    """In which tenth of the values each lies, equal values in one, [N] of text."""
    edges = np.unique(np.quantile(truth, np.arange(1, 10) / 10))
    tenth = np.searchsorted(edges, truth, side="right")
    ends = {one: f"{number(truth[tenth == one].min())} to {number(truth[tenth == one].max())}" for one in tenth}
    return np.array([ends[one] for one in tenth], dtype=object)


def _covered(known: Predictions, levels: Array) -> dict[str, tuple[int, dict[str, float]]]:
    """Samples, coverage and mean width at every level, in the order of their truths."""
    names = levels.astype(str)
    found = {}
    for level in sorted(np.unique(names), key=lambda level: float(np.median(known.truth[names == level]))):
        truth, limits = known.truth[names == level], np.asarray(known.limits)[names == level]
        found[str(level)] = (len(truth), metrics.measured(metrics.interval_figures, truth, limits))
    return found


def _said_of_intervals(predictions: Predictions, coverage: Figures) -> list[str]:
    """How many of the truths the intervals hold, over all and in the tenths of the target."""
    if not coverage:
        return []
    known = _bounded(predictions)
    shares = [found["coverage"] for _, found in _covered(known, _tenths(known.truth)).values()]
    width, same = coverage["width"].value, coverage["one_width"].value
    beside = f", {number(width / same)} times one width for all" if same > 0 else ""
    return [
        f"The {100 * conformal.LEVEL:.0f} % intervals hold {with_limits(coverage['coverage'])} of the held-out values, "
        f"{number(min(shares))} to {number(max(shares))} in tenths of them; they are {number(width)} wide on average"
        f"{beside}."
    ]


def _coverage_tables(result: TargetResult) -> list[Table]:
    """Coverage and width over all, by tenth of the target, fold, batch and group."""
    known, names = _bounded(result.predictions), result.names
    if not result.coverage:
        return []
    by = {"fold": known.fold, names.batch: known.batch, names.group: known.groups}
    kinds = {"tenth of the target": _tenths(known.truth), **{name: at for name, at in by.items() if at is not None}}
    pooled = ("all", str(len(known.truth)), *(with_limits(result.coverage[name]) for name in ("coverage", "width")))
    title, header = f"{100 * conformal.LEVEL:.0f} % conformal intervals", ("", "samples", "coverage", "width")
    parts = (_plain_table(f"Intervals by {kind}", kind, _covered(known, at)) for kind, at in kinds.items())
    return [Table(title, header, (pooled,)), *parts]


def with_limits(figure: Interval) -> str:
    """A figure for reading, with its limits if it has any."""
    limits = "" if math.isnan(figure.low) else f" ({number(figure.low)} to {number(figure.high)})"
    return number(figure.value) + limits


def _figures_table(result: TargetResult, brief: bool = False) -> Table:
    """Pooled, and unless `brief` by fold and batch."""
    names, known = result.names, result.predictions.known()
    rows = [("all held-out samples", len(known.truth), result.pooled)]
    for kind, parts in () if brief else (("fold", result.folds), (names.batch, result.batches)):
        rows += [(f"{kind} {level}", count, values) for level, (count, values) in parts.items()]
    drawn = "samples" if known.groups is None else f"values of {names.group}"
    return Table(
        f"Held-out figures, with 95 % intervals over {len(np.unique(known.resampled))} {drawn}",
        ("", "samples", *(TITLES[name] for name in result.pooled)),
        tuple((name, str(n), *map(with_limits, values.values())) for name, n, values in rows),
    )


def _baselines_table(result: TargetResult, brief: bool = False) -> Table:
    """The headline figure, its difference and, unless `brief`, the others."""
    key = headline(result.predictions.labels)
    others = [] if brief else [name for name in result.pooled if name != key]

    def row(name: str, samples: int, values: Figures, *tested: str) -> tuple[str, ...]:
        rest = (number(values[other].value) for other in others)
        return (name, str(samples), with_limits(values[key]), *tested, *rest)

    rows = [row("the model", len(result.predictions.known().truth), result.pooled, "", "")]
    for one in result.comparisons:
        tested = (with_limits(one.difference[key]), number(one.difference[key].p))
        rows.append(row(one.name, one.samples, one.figures, *tested))
    tested = (f"{TITLES[key]} of the model minus baseline", "p")
    header = ("", "samples", TITLES[key], *tested, *(TITLES[name] for name in others))
    return Table("The model beside baselines", header, tuple(rows))


def _values(figures: Figures) -> dict[str, float]:
    return {name: figure.value for name, figure in figures.items()}


def _plain_table(title: str, kind: str, parts: Mapping[str, tuple[int, Mapping[str, float]]]) -> Table:
    """Number of samples and figures, without intervals, at every level."""
    names = [TITLES[name] for _, found in list(parts.values())[:1] for name in found]
    rows = ((level, str(n), *map(number, found.values())) for level, (n, found) in parts.items())
    return Table(title, (kind, "samples", *names), tuple(rows))


def result_tables(result: TargetResult) -> list[Table]:
    """Return every table of one target."""
    tables, known = [_figures_table(result)], result.predictions.known()
    if result.comparisons:
        tables.append(_baselines_table(result))
    if known.labels:
        found = metrics.per_class(known.truth, known.predicted, known.labels)
        tables.append(_plain_table("Each class against all others", "class", found))
        tables.append(_plain_table("Calibration", "probability", metrics.reliability(known.truth, known.predicted)))
    for name, parts in result.parts.items():
        tables.append(_plain_table(f"By {name}", name, {k: (n, _values(found)) for k, (n, found) in parts.items()}))
    tables += _coverage_tables(result)
    if result.losses:
        header = ("class", "samples", "kept", "lost")
        lost = ((name, str(n), str(kept), str(n - kept)) for name, (n, kept) in result.losses.items())
        tables.append(Table("Samples lost below the depth", header, tuple(lost)))
    return tables


def warning_lines(results: ReportData) -> tuple[str, ...]:
    """Return what a reader must be warned of."""
    label = "Transductive: pretraining saw the held-out samples, though not their labels."
    return ((label,) if results.transductive else ()) + results.warnings


def plain_json(value: object) -> object:
    """What JSON can hold of nested dicts of numbers: NaN becomes null."""
    if isinstance(value, dict):
        return {name: plain_json(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _printable(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)


def plain_lines(table: Table) -> list[str]:
    """A table for a terminal or a log."""
    cells = [tuple(map(_printable, row)) for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [[cell.rjust(n) for cell, n in zip(row, widths, strict=True)] for row in cells]
    for row, line in zip(cells, aligned, strict=True):
        line[0] = row[0].ljust(widths[0])
    return [_printable(table.title), *("  " + "  ".join(line).rstrip() for line in aligned)]


def summary_lines(results: ReportData) -> list[str]:
    """Warnings, verdicts, pooled figures and headline of each baseline, for a terminal or a log."""
    lines = [results.title, *(f"warning: {warning}" for warning in warning_lines(results))]
    for table in results.tables:
        lines += ["", *plain_lines(table)]
    for result in results.targets:
        lines += ["", f"{result.names.target}:", *(f"* {sentence}" for sentence in result.sentences)]
        lines += plain_lines(_figures_table(result, brief=True))
        lines += plain_lines(_baselines_table(result, brief=True)) if result.comparisons else []
    return [_printable(line) for line in lines]
