"""The report as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from collections.abc import Mapping, Sequence

import numpy as np

from aam.evaluation.metrics import levels_of
from aam.evaluation.report import MOST_ROWS, ReportData, Table, TargetResult, result_tables, warning_lines

# More batches than colours that can be told apart are drawn in one colour.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#332288", "#888888")

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
    tables = "".join(map(_table_html, result_tables(result)))
    return f"<h2>{_text(result.names.target)}</h2>{_list_html(result.sentences, 'verdict')}{tables}{picture}"


def report_html(results: ReportData) -> str:
    """The report as one HTML page that needs no other file; the same data give the same bytes."""
    shown = json.dumps(results.configuration, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{_text(results.title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{_text(results.title)}</h1>",
        _list_html(warning_lines(results), "warning"),
        _facts_html("Task", results.task),
        _facts_html("Data", results.data),
        _facts_html("Split", results.split),
        *map(_table_html, results.tables),
        *map(_target_html, results.targets),
        f"<h2>Configuration</h2><details><summary>SHA-256 {hashlib.sha256(shown.encode()).hexdigest()[:32]}",
        f"</summary><pre>{_text(shown)}</pre></details></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"
