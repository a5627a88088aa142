"""The report as one HTML file, from the templates beside it."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Mapping

import jinja2
import numpy as np

from aam.report.charts import dark_rules
from aam.report.opening import opening
from aam.report.report import (
    FOLDED_ROWS,
    ReportData,
    TargetResult,
    error_tables,
    result_tables,
    several_targets,
    warning_lines,
)
from aam.report.tables import Table
from aam.report.target_figures import confusion_counts, target_figures

# Rows of a table in the page.
MOST_ROWS = 500

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")

# What `aam explain` replaces in the report of a run stands between these.
IMPORTANCES = ("<!-- importances -->", "<!-- end of importances -->")


def unbroken_options(text: object) -> str:
    """Return text as HTML, escaped, in which options, such as --rarefy-depth, are not broken between lines."""
    return OPTION.sub(r'<span class="option">\g<0></span>', html.escape(str(text)))


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates of pages; whatever a metadata column holds is escaped in them."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("aam.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["options"] = unbroken_options
    environment.globals["importances_start"], environment.globals["importances_end"] = IMPORTANCES
    return environment


def page_frame() -> dict[str, object]:
    """Return style, script and security policy of a page: nothing is loaded, and no other script runs."""
    script = templates().get_template("page.js.j2").render()
    dark = f"@media screen and (prefers-color-scheme: dark) {{{dark_rules()}}}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {
        "script": script,
        "style": f"{templates().get_template('report.css.j2').render()}\n{dark}\n",
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "folded_rows": FOLDED_ROWS,
    }


def _confusion(result: TargetResult) -> list[tuple[str, list[tuple[int, str]]]]:
    """Return samples by true (rows) and predicted class, each with its shade: the share of the row."""
    complete = result.predictions.complete()
    counts = confusion_counts(complete)
    shades = 0.7 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return [
        (label, [(int(count), f"{shade:.2f}") for count, shade in zip(row, shade_row, strict=True)])
        for label, row, shade_row in zip(complete.labels, counts, shades, strict=True)
    ]


def _target(result: TargetResult) -> dict[str, object]:
    """Return what the template shows of one target."""
    labels = result.predictions.labels
    return {
        "name": result.names.target,
        "sentences": result.sentences,
        "tables": [_shortened(table) for table in (*result_tables(result), *error_tables(result))],
        "figures": target_figures(result),
        "labels": labels,
        "confusion": _confusion(result) if labels else [],
    }


def _shortened(table: Table) -> Table:
    """Return a table of at most `MOST_ROWS` rows, which says so, so that a page of a large study stays small."""
    if len(table.rows) <= MOST_ROWS:
        return table
    title = f"{table.title} (the first {MOST_ROWS} of {len(table.rows)}; metrics.json has all)"
    return Table(title, table.header, table.rows[:MOST_ROWS])


def facts_table(title: str, facts: Mapping[str, object]) -> Table:
    """Return names and values as a table without a header."""
    return Table(title, (), tuple((name, str(value)) for name, value in facts.items()))


def page(configuration: Mapping[str, object], explain_command: str = "", **content: object) -> str:
    """Return a page with the `content` that the template names, and the configuration with its digest at the end."""
    text = json.dumps(configuration, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    template = templates().get_template("report.html.j2")
    words = {"configuration": text, "digest": digest, "explain_command": explain_command, **content}
    return template.render(page_frame(), **words) + "\n"


def with_importances(report: str, importances: str) -> str:
    """Return the report of a run with its importances replaced.

    Raises
    ------
    ValueError
        The report has no place for them.
    """
    before, start, rest = report.partition(IMPORTANCES[0])
    _, end, after = rest.partition(IMPORTANCES[1])
    if not end:
        raise ValueError("no place for importances")
    return f"{before}{start}\n{importances}\n{end}{after}"


def report_html(results: ReportData) -> str:
    """Return the report as one HTML page that needs no other file; the same data give the same bytes."""
    facts = {"Task": results.task, "Data": results.data, "Split": results.split}
    return page(
        results.configuration,
        title=results.title,
        opening=opening(results),
        warnings=(*warning_lines(results), *several_targets(results)),
        facts=[facts_table(title, values) for title, values in facts.items()],
        tables=results.tables,
        encoder_figures=results.encoder_figures,
        curves=results.curves,
        targets=[_target(result) for result in results.targets],
        explain_command=results.explain_command,
    )
