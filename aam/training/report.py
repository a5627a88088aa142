"""The report of a run: figures beside those of baselines, as one HTML file and, in short, as plain lines."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aam.training import metrics
from aam.training.baselines import Baseline, Comparison, compare, headline, number, verdict
from aam.training.metrics import TITLES, Array, Interval, Predictions, levels_of

Figures = dict[str, Interval]

# Longer tables are folded up.
MOST_ROWS = 30
# More batches than colours that can be told apart are drawn in one colour.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#332288", "#888888")


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
        return {} if levels is None else metrics.figures_by(predictions, levels, seed, repeats)

    comparisons, coverage = compare(predictions, baselines, seed, repeats), _coverage(predictions, seed, repeats)
    return TargetResult(
        names,
        predictions,
        metrics.figures(predictions, seed, repeats),
        by(predictions.fold),
        by(predictions.batch),
        comparisons,
        (*verdict(predictions, comparisons, names.batch), *_said_of_intervals(predictions, coverage)),
        losses or {},
        {name: by(levels) for name, levels in (parts or {}).items()},
        coverage,
    )


# --- conformal intervals -----------------------------------------------------------------------------------
def _bounded(predictions: Predictions) -> Predictions:
    """The samples that have a truth and an interval."""
    known = predictions.known()
    return known if known.limits is None else known.at(np.asarray(np.isfinite(known.limits).all(axis=1)))


def _coverage(predictions: Predictions, seed: int, repeats: int) -> Figures:
    """Coverage and width over all samples, with intervals, and the width if all samples shared one."""
    known = _bounded(predictions)
    if known.limits is None or not len(known.truth):
        return {}
    drawn = metrics.resampled(metrics.interval_figures, known.truth, known.limits, known.resampled, seed, repeats)
    same = metrics.Conformal.fit(known, scales=1)
    width = Interval(math.nan if same is None else 2 * same.quantile * same.scales[0])
    return {**{name: metrics.interval(values) for name, values in drawn.items()}, "one_width": width}


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
        f"The {100 * metrics.LEVEL:.0f} % intervals hold {with_limits(coverage['coverage'])} of the held-out values, "
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
    title, header = f"{100 * metrics.LEVEL:.0f} % conformal intervals", ("", "samples", "coverage", "width")
    parts = (_plain_table(f"Intervals by {kind}", kind, _covered(known, at)) for kind, at in kinds.items())
    return [Table(title, header, (pooled,)), *parts]


# --- tables ------------------------------------------------------------------------------------------------
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


def _tables(result: TargetResult) -> list[Table]:
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


def _warnings(results: ReportData) -> tuple[str, ...]:
    label = "Transductive: pretraining saw the held-out samples, though not their labels."
    return ((label,) if results.transductive else ()) + results.warnings


def plain_json(value: object) -> object:
    """What JSON can hold of nested dicts of numbers: NaN becomes null."""
    if isinstance(value, dict):
        return {name: plain_json(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


# --- plain lines -------------------------------------------------------------------------------------------
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
    lines = [results.title, *(f"warning: {warning}" for warning in _warnings(results))]
    for table in results.tables:
        lines += ["", *plain_lines(table)]
    for result in results.targets:
        lines += ["", f"{result.names.target}:", *(f"* {sentence}" for sentence in result.sentences)]
        lines += plain_lines(_figures_table(result, brief=True))
        lines += plain_lines(_baselines_table(result, brief=True)) if result.comparisons else []
    return [_printable(line) for line in lines]


# --- HTML --------------------------------------------------------------------------------------------------
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 80rem; margin: auto; padding: 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.25rem; border-top: 1px solid #ccc; padding-top: 1rem }
h3 { font-size: 1rem; margin-bottom: .3rem }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #e5e5e5 }
th:first-child, td:first-child { text-align: left } th { font-weight: 600; vertical-align: bottom }
.wide { overflow-x: auto } .wide td { white-space: nowrap }
.facts td { text-align: left; vertical-align: top }
.verdict { background: #f2f6fa; border-left: 4px solid #4477aa; padding: .5rem 1rem .5rem 2rem }
.warning { background: #fff4e5; border-left: 4px solid #dd8452; padding: .5rem 1rem .5rem 2rem }
.swatch { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em } img { max-width: 28rem }
"""
# Nothing outside the file is ever fetched, whatever a metadata column holds.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def _text(value: object) -> str:
    return html.escape(str(value))


def _list_html(items: Sequence[str], kind: str) -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{_text(item)}</li>" for item in items)}</ul>' if items else ""


def _table_html(table: Table, kind: str = "wide") -> str:
    """Nothing where there are no rows."""
    head = "".join(f"<th>{_text(cell)}</th>" for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    body = f'<div class="{kind}"><table><tr>{head}</tr>{rows}</table></div>'
    if len(table.rows) > MOST_ROWS:
        body = f"<details><summary>{len(table.rows)} rows</summary>{body}</details>"
    return f"<h3>{_text(table.title)}</h3>{body}" if rows else ""


def _facts_html(title: str, facts: Mapping[str, object]) -> str:
    return _table_html(Table(title, (), tuple((name, str(value)) for name, value in facts.items())), "facts")


def _scatter_html(result: TargetResult) -> str:
    """Predicted against true values as an inline PNG; names stand outside, where they can be escaped."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known, picture = result.predictions.known(), io.BytesIO()
    if not len(known.truth):
        return ""
    levels = [] if known.batch is None else levels_of(known.batch)
    colour_of = dict(zip(levels, COLOURS, strict=False)) if 1 < len(levels) <= len(COLOURS) else {}
    colours = COLOURS[0] if known.batch is None else [colour_of.get(one, COLOURS[0]) for one in known.batch]
    figure = Figure(figsize=(4.2, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    ends = [min(known.truth.min(), known.predicted.min()), max(known.truth.max(), known.predicted.max())]
    axes.plot(ends, ends, color="#999999", linewidth=1)
    axes.scatter(known.truth, known.predicted, s=9, c=colours, alpha=0.6, linewidths=0)
    axes.set(xlabel="true", ylabel="predicted", aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(figure).print_png(picture, metadata={"Software": None})
    swatch = '<span class="swatch" style="background: {}"></span>{}'
    legend = "".join(swatch.format(colour, _text(level)) for level, colour in colour_of.items())
    legend = f"<p>{_text(result.names.batch)}:{legend}</p>" if legend else ""
    source = base64.b64encode(picture.getvalue()).decode("ascii")
    title = f"<h3>Predicted against true {_text(result.names.target)}</h3>"
    return f'{title}{legend}<img alt="predicted against true values" src="data:image/png;base64,{source}">'


def _confusion_html(result: TargetResult) -> str:
    """Samples by true (rows) and predicted class, shaded by the share of the row."""
    known = result.predictions.known()
    one = np.eye(len(known.labels), dtype=np.int64)
    rows = ""
    for label, counts in zip(known.labels, one[known.truth].T @ one[known.predicted.argmax(1)], strict=True):
        shades = 0.7 * counts / max(int(counts.sum()), 1)
        cell = '<td style="background: rgba(68, 119, 170, {:.2f})">{}</td>'
        rows += f"<tr><td>{_text(label)}</td>{''.join(map(cell.format, shades, counts))}</tr>"
    head = "".join(f"<th>{_text(label)}</th>" for label in known.labels)
    title = "<h3>True class (rows) and predicted class (columns)</h3>"
    return f'{title}<div class="wide"><table><tr><th></th>{head}</tr>{rows}</table></div>'


def _target_html(result: TargetResult) -> str:
    picture = _confusion_html(result) if result.predictions.labels else _scatter_html(result)
    tables = "".join(map(_table_html, _tables(result)))
    return f"<h2>{_text(result.names.target)}</h2>{_list_html(result.sentences, 'verdict')}{tables}{picture}"


def report_html(results: ReportData) -> str:
    """The report as one HTML page that needs no other file; the same data give the same bytes."""
    shown = json.dumps(results.configuration, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{_text(results.title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{_text(results.title)}</h1>",
        _list_html(_warnings(results), "warning"),
        _facts_html("Task", results.task),
        _facts_html("Data", results.data),
        _facts_html("Split", results.split),
        *map(_table_html, results.tables),
        *map(_target_html, results.targets),
        f"<h2>Configuration</h2><details><summary>SHA-256 {hashlib.sha256(shown.encode()).hexdigest()[:32]}",
        f"</summary><pre>{_text(shown)}</pre></details></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"
