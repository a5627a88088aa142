"""The report as one HTML file, from the template beside it."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import jinja2
import numpy as np

from aam.evaluation.metrics import sorted_levels
from aam.evaluation.report import FOLDED_ROWS, ReportData, Table, TargetResult, result_tables, warning_lines

# More batches than colours that can be told apart are drawn in one colour.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#332288", "#888888")


@functools.cache
def _template() -> jinja2.Template:
    """Return the page; whatever a metadata column holds is escaped in it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("aam.evaluation"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("report.html.j2")


def _legend(result: TargetResult) -> dict[Any, str]:
    """Return the colour of each batch; none where there are too many or one only."""
    batch = result.predictions.complete().batch
    levels = [] if batch is None else sorted_levels(batch)
    return dict(zip(levels, COLOURS, strict=False)) if 1 < len(levels) <= len(COLOURS) else {}


def _scatter(result: TargetResult, legend: Mapping[Any, str]) -> str:
    """Return predicted against true values as PNG in base64; names stand in the page, where they can be escaped."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    complete, picture = result.predictions.complete(), io.BytesIO()
    if not len(complete.truth):
        return ""
    levels = complete.batch
    colours = COLOURS[0] if levels is None else [legend.get(level, COLOURS[0]) for level in levels]
    canvas = Figure(figsize=(4.2, 4.2), dpi=150, layout="constrained")
    axes = canvas.add_subplot()
    ends = [min(complete.truth.min(), complete.predicted.min()), max(complete.truth.max(), complete.predicted.max())]
    axes.plot(ends, ends, color="#999999", linewidth=1)
    axes.scatter(complete.truth, complete.predicted, s=9, c=colours, alpha=0.6, linewidths=0)
    axes.set(xlabel="true", ylabel="predicted", aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(canvas).print_png(picture, metadata={"Software": None})
    return base64.b64encode(picture.getvalue()).decode("ascii")


def _confusion(result: TargetResult) -> list[tuple[str, list[tuple[int, str]]]]:
    """Return samples by true (rows) and predicted class, each with its shade: the share of the row."""
    complete = result.predictions.complete()
    indicator = np.eye(len(complete.labels), dtype=np.int64)
    counts = indicator[complete.truth].T @ indicator[complete.predicted.argmax(1)]
    shades = 0.7 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return [
        (label, [(int(count), f"{shade:.2f}") for count, shade in zip(row, shade_row, strict=True)])
        for label, row, shade_row in zip(complete.labels, counts, shades, strict=True)
    ]


def _target(result: TargetResult) -> dict[str, object]:
    """Return what the template shows of one target."""
    labels = result.predictions.labels
    legend = {} if labels else _legend(result)
    return {
        "name": result.names.target,
        "batch": result.names.batch,
        "sentences": result.sentences,
        "tables": result_tables(result),
        "labels": labels,
        "confusion": _confusion(result) if labels else [],
        "scatter": "" if labels else _scatter(result, legend),
        "legend": [(colour, level) for level, colour in legend.items()],
    }


def _facts(title: str, facts: Mapping[str, object]) -> Table:
    return Table(title, (), tuple((name, str(value)) for name, value in facts.items()))


def report_html(results: ReportData) -> str:
    """Return the report as one HTML page that needs no other file; the same data give the same bytes."""
    configuration = json.dumps(results.configuration, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    facts = {"Task": results.task, "Data": results.data, "Split": results.split}
    page = _template().render(
        title=results.title,
        warnings=warning_lines(results),
        facts=[_facts(title, values) for title, values in facts.items()],
        tables=results.tables,
        targets=[_target(result) for result in results.targets],
        configuration=configuration,
        digest=hashlib.sha256(configuration.encode()).hexdigest()[:32],
        folded_rows=FOLDED_ROWS,
    )
    return page + "\n"
