"""The report of a run: figures beside those of baselines, as one HTML file and as plain lines."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aam.runtime.files import write_text
from aam.training.baselines import Baseline
from aam.training.metrics import (
    Array,
    Interval,
    Predictions,
    confusion_matrix,
    figures,
    figures_by,
    levels_of,
    per_class,
)
from aam.training.verdict import TITLES, Comparison, compare, headline, number, verdict

Figures = dict[str, Interval]

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
    """What the report calls a target, the batches and groups of its samples, and their folds."""

    target: str
    batch: str = "batch"
    group: str = "group"
    fold: str = "fold"


@dataclass(frozen=True, eq=False)
class TargetResult:
    """One target of a run; made by `target_result`.

    Attributes
    ----------
    pooled : figures of all held-out samples
    folds, batches : by fold and by batch, the number of samples and their figures
    comparisons : baselines beside the model
    sentences : the verdict
    losses : by class, the number of samples in the metadata and of those whose depth sufficed
    """

    names: Names
    predictions: Predictions
    pooled: Figures
    folds: Mapping[str, tuple[int, Figures]]
    batches: Mapping[str, tuple[int, Figures]]
    comparisons: tuple[Comparison, ...]
    sentences: tuple[str, ...]
    losses: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, eq=False)
class ReportData:
    """What a report shows.

    Attributes
    ----------
    title : str
    task, data, split : mapping of str to anything that prints
        What was done, with what, and how samples were divided.
    targets : tuple of TargetResult
    tables : tuple of Table
        Further figures, such as those of pretraining.
    warnings : tuple of str
    transductive : bool
        Whether pretraining saw the held-out samples, without their labels.
    configuration : mapping
        The resolved options; JSON or values that print.
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
    seed: int = 0,
    repeats: int = 1000,
) -> TargetResult:
    """Figures, comparisons and verdict of one target; rows of the baselines are those of `predictions`."""

    def by(levels: Array | None) -> Mapping[str, tuple[int, Figures]]:
        return {} if levels is None else figures_by(predictions, levels, seed, repeats)

    comparisons = compare(predictions, baselines, seed, repeats)
    return TargetResult(
        names=names,
        predictions=predictions,
        pooled=figures(predictions, seed, repeats),
        folds=by(predictions.fold),
        batches=by(predictions.batch),
        comparisons=comparisons,
        sentences=verdict(predictions, comparisons, names.batch),
        losses=losses or {},
    )


# --- tables ------------------------------------------------------------------------------------------------


def _with_limits(figure: Interval) -> str:
    limits = "" if math.isnan(figure.low) else f" ({number(figure.low)} to {number(figure.high)})"
    return number(figure.value) + limits


def _figures_table(result: TargetResult) -> Table:
    names, known = result.names, result.predictions.known()
    rows = [("all held-out samples", len(known.truth), result.pooled)]
    for kind, parts in ((names.fold, result.folds), (names.batch, result.batches)):
        rows += [(f"{kind} {level}", count, values) for level, (count, values) in parts.items()]
    drawn = "samples" if known.groups is None else f"values of {names.group}"
    return Table(
        f"Held-out figures, with 95 % intervals over {len(np.unique(known.resampled))} {drawn}",
        ("", "samples", *(TITLES[name] for name in result.pooled)),
        tuple((name, str(n), *map(_with_limits, values.values())) for name, n, values in rows),
    )


def _baselines_table(result: TargetResult) -> Table:
    key = headline(result.predictions.labels)
    others = [name for name in result.pooled if name != key]

    def row(name: str, samples: int, values: Figures) -> tuple[str, ...]:
        return (
            name,
            str(samples),
            _with_limits(values[key]),
            *(number(values[other].value) for other in others),
        )

    rows = [(*row("the model", len(result.predictions.known().truth), result.pooled), "", "")]
    for one in result.comparisons:
        difference = one.difference[key]
        tested = (_with_limits(difference), number(difference.p))
        rows.append((*row(one.name, one.samples, one.figures), *tested))
    titles = [TITLES[name] for name in (key, *others)]
    difference_title = f"{TITLES[key]} of the model minus baseline"
    return Table("The model beside baselines", ("", "samples", *titles, difference_title, "p"), tuple(rows))


def _class_table(result: TargetResult) -> Table:
    known = result.predictions.known()
    rows = []
    for one in per_class(known.truth, known.predicted, known.labels):
        rates = (one.precision, one.recall, one.f1, one.auroc, one.auprc)
        rows.append((one.label, str(one.samples), *map(number, rates)))
    header = ("class", "samples", "precision", "recall", "F1", "AUROC", "AUPRC")
    return Table("Each class against all others", header, tuple(rows))


def _losses_table(result: TargetResult) -> Table:
    rows = [(name, str(total), str(kept), str(total - kept)) for name, (total, kept) in result.losses.items()]
    return Table("Samples lost below the depth", ("class", "samples", "kept", "lost"), tuple(rows))


def _tables(result: TargetResult) -> list[Table]:
    tables = [_figures_table(result)]
    if result.comparisons:
        tables.append(_baselines_table(result))
    if result.predictions.labels:
        tables.append(_class_table(result))
    return [*tables, _losses_table(result)] if result.losses else tables


def _digest(configuration: Mapping[str, object]) -> tuple[str, str]:
    """The configuration as JSON, and the first half of its SHA-256."""
    text = json.dumps(configuration, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    return text, hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


def _warnings(results: ReportData) -> tuple[str, ...]:
    if not results.transductive:
        return results.warnings
    label = "Transductive: pretraining saw the held-out samples, though not their labels."
    return (label, *results.warnings)


# --- plain lines -------------------------------------------------------------------------------------------


def _printable(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _lines(table: Table) -> list[str]:
    cells = [tuple(map(_printable, row)) for row in (table.header, *table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.header))]
    aligned = [
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, len(row)))]).rstrip()
        for row in cells
    ]
    return [_printable(table.title), *("  " + line for line in aligned)]


def summary_lines(results: ReportData) -> list[str]:
    """The report without its pictures and options, for a terminal or a log."""
    lines = [_printable(results.title)]
    for facts in (results.task, results.data, results.split):
        lines += [_printable(f"  {name}: {value}") for name, value in facts.items()]
    lines += [_printable(f"warning: {warning}") for warning in _warnings(results)]
    for table in results.tables:
        lines += ["", *_lines(table)]
    for result in results.targets:
        lines += ["", _printable(f"{result.names.target}:")]
        lines += [_printable(f"* {sentence}") for sentence in result.sentences]
        for table in _tables(result):
            lines += ["", *_lines(table)]
    return lines


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


def _facts_html(title: str, facts: Mapping[str, object]) -> str:
    rows = "".join(f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in facts.items())
    return f'<h3>{_text(title)}</h3><table class="facts">{rows}</table>' if facts else ""


def _table_html(table: Table) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f'<h3>{_text(table.title)}</h3><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _scatter_html(result: TargetResult) -> str:
    """Predicted against true values as an inline PNG; names stand outside, where they can be escaped."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = result.predictions.known()
    if not len(known.truth):
        return ""
    levels = [] if known.batch is None else levels_of(known.batch)
    coloured = 1 < len(levels) <= len(COLOURS)
    colours = np.full(len(known.truth), COLOURS[0], dtype=object)
    if coloured:
        for level, colour in zip(levels, COLOURS, strict=False):
            colours[known.batch == level] = colour
    figure = Figure(figsize=(4.2, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    ends = [min(known.truth.min(), known.predicted.min()), max(known.truth.max(), known.predicted.max())]
    axes.plot(ends, ends, color="#999999", linewidth=1)
    axes.scatter(known.truth, known.predicted, s=9, c=list(colours), alpha=0.6, linewidths=0)
    axes.set(xlabel="true", ylabel="predicted", aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture, metadata={"Software": None})
    legend = "".join(
        f'<span class="swatch" style="background: {colour}"></span>{_text(level)}'
        for level, colour in zip(levels if coloured else [], COLOURS, strict=False)
    )
    source = base64.b64encode(picture.getvalue()).decode("ascii")
    title = f"<h3>Predicted against true {_text(result.names.target)}</h3>"
    legend = f"<p>{_text(result.names.batch)}:{legend}</p>" if legend else ""
    return f'{title}{legend}<img alt="predicted against true values" src="data:image/png;base64,{source}">'


def _confusion_html(result: TargetResult) -> str:
    """Samples by true (rows) and predicted class, shaded by the share of the row."""
    known = result.predictions.known()
    table = confusion_matrix(known.truth, known.predicted.argmax(axis=1), len(known.labels))
    rows = ""
    for label, counts in zip(known.labels, table, strict=True):
        shares = counts / max(int(counts.sum()), 1)
        cells = "".join(
            f'<td style="background: rgba(68, 119, 170, {0.7 * share:.2f})">{count}</td>'
            for count, share in zip(counts, shares, strict=True)
        )
        rows += f"<tr><td>{_text(label)}</td>{cells}</tr>"
    head = "".join(f"<th>{_text(label)}</th>" for label in known.labels)
    title = "<h3>True class (rows) and predicted class (columns)</h3>"
    return f'{title}<div class="wide"><table><tr><th></th>{head}</tr>{rows}</table></div>'


def _target_html(result: TargetResult) -> str:
    picture = _confusion_html(result) if result.predictions.labels else _scatter_html(result)
    tables = "".join(map(_table_html, _tables(result)))
    return f"<h2>{_text(result.names.target)}</h2>{_list_html(result.sentences, 'verdict')}{tables}{picture}"


def report_html(results: ReportData) -> str:
    """The report as one HTML page that needs no other file; the same data give the same bytes."""
    configuration, digest = _digest(results.configuration)
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
        f"<h2>Configuration</h2><details><summary>SHA-256 {digest}</summary>",
        f"<pre>{_text(configuration)}</pre></details></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def write_report(path: Path, results: ReportData) -> None:
    """Write `report_html` to `path`, whole or not at all."""
    write_text(path, report_html(results))
