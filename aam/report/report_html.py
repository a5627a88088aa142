"""The report as one HTML file, from the templates in this folder."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

import jinja2

import aam
from aam.evaluate.evaluation import Evaluation
from aam.report.charts import dark_rules
from aam.report.report import (
    FOLDED_ROWS,
    ReportData,
    judged_samples,
    result_tables,
    several_targets,
    tiles,
)
from aam.report.samples import worst_table
from aam.report.tables import Table
from aam.report.target_figures import figures_of

# Rows of a table in the page.
MOST_ROWS = 500

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")

VALUE_WITH_LIMITS = re.compile(r"^(\S+) \((\S+ to \S+)\)$")

# What `aam explain` replaces in the report of a run stands between these.
IMPORTANCES = ("<!-- importances -->", "<!-- end of importances -->")


_WORDS = json.loads(
    (resources.files("aam.report") / "templates" / "words.json").read_text(encoding="utf-8")
)

# Words that not every reader knows.
TERMS: dict[str, str] = _WORDS["terms"]

_WORD = re.compile(
    r"(?<![\w-])(" + "|".join(sorted(map(re.escape, TERMS), key=len, reverse=True)) + r")(?![\w-])"
)


def place_of_features(target: str) -> tuple[str, str]:
    """Return the marks around the most important features of a target, near its first figures."""
    name = hashlib.sha256(target.encode()).hexdigest()[:16]
    return f"<!-- features {name} -->", f"<!-- end of features {name} -->"


def unbroken_options(text: object) -> str:
    """Return text as HTML, escaped, in which options, such as --rarefy-depth, are not broken
    between lines.
    """
    return OPTION.sub(r'<span class="option">\g<0></span>', html.escape(str(text)))


def with_terms(text: object) -> str:
    """Return a text as HTML, escaped, whose known words show at their first use what they mean
    under a pointer.
    """
    seen: set[str] = set()

    def explained(word: re.Match[str]) -> str:
        known = word[0] in seen
        seen.add(word[0])
        return (
            word[0] if known else f'<abbr data-tip="{html.escape(TERMS[word[0]])}">{word[0]}</abbr>'
        )

    return OPTION.sub(
        r'<span class="option">\g<0></span>', _WORD.sub(explained, html.escape(str(text)))
    )


def cell_with_limits(text: str) -> str:
    """Return a cell of a table as HTML, with limits below their value so that tables are not
    wide.
    """
    return VALUE_WITH_LIMITS.sub(r"\1 <small>\2</small>", unbroken_options(text))


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates of pages; whatever a metadata column holds is escaped in them."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("aam.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "options": unbroken_options,
        "cell": cell_with_limits,
        "terms": with_terms,
    }
    environment.globals["version"] = aam.__version__
    environment.globals["importances_start"], environment.globals["importances_end"] = IMPORTANCES
    return environment


def page_frame() -> dict[str, object]:
    """Return style, script and security policy of a page: nothing is loaded, and no other script
    runs.
    """
    script = templates().get_template("page.js.j2").render()
    dark = f"@media screen and (prefers-color-scheme: dark) {{{dark_rules()}}}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {
        "script": script,
        "style": f"{templates().get_template('report.css.j2').render()}\n{dark}\n",
        "policy": (
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
            f"'sha256-{digest}'"
        ),
        "folded_rows": FOLDED_ROWS,
    }


def _target(results: ReportData, result: Evaluation) -> dict[str, object]:
    """Contents of one target for the template: the answer, its first figures, and all others.

    If importances may be added, one of the three first places is theirs.
    """
    figures, first = figures_of(results, result), 2 if results.explain_command else 3
    audit = results.audits.get(result.names.target)
    audited = [] if audit is None else [audit.table()]
    tables = (*result_tables(result), *audited, *worst_table(result))
    return {
        "name": result.names.target,
        "samples": judged_samples(result),
        "tiles": tiles(result),
        "cautions": result.verdict.cautions,
        "hero": figures[:first],
        "place": place_of_features(result.names.target),
        "tables": [_shortened(table) for table in tables],
        "figures": figures[first:],
    }


def _shortened(table: Table) -> Table:
    """Return a table of at most `MOST_ROWS` rows, which says so, so that a page of a large study
    stays small.
    """
    if len(table.rows) <= MOST_ROWS:
        return table
    title = f"{table.title} (the first {MOST_ROWS} of {len(table.rows)}; metrics.json has all)"
    return replace(table, title=title, rows=table.rows[:MOST_ROWS])


def facts_table(title: str, facts: Mapping[str, object]) -> Table:
    """Return names and values as a table without a header."""
    return Table(title, (), tuple((name, str(value)) for name, value in facts.items()))


def page(configuration: Mapping[str, object], explain_command: str = "", **content: Any) -> str:
    """Return a page with the `content` that the template names, and the configuration with its
    digest at the end.
    """
    text = json.dumps(configuration, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    template = templates().get_template("report.html.j2")
    about = {"configuration": text, "digest": digest, "explain_command": explain_command}
    return template.render(page_frame(), **about, **content) + "\n"


def with_importances(report: str, importances: str, features: Mapping[str, str]) -> str:
    """Return the report of a run with its importances replaced, and by target the `features` next
    to its first figures.

    Raises
    ------
    ValueError
        The report has no place for importances.
    """
    if IMPORTANCES[1] not in report:
        raise ValueError("no place for importances")
    parts = {
        IMPORTANCES: importances,
        **{place_of_features(target): text for target, text in features.items()},
    }
    for (start, end), text in parts.items():
        before, _, rest = report.partition(start)
        _, found, after = rest.partition(end)
        report = f"{before}{start}\n{text}\n{end}{after}" if found else report
    return report


def introduction(results: ReportData) -> list[str]:
    """The words that open a report without targets."""
    if results.targets:
        return []
    if results.tables:
        return [
            "The encoder learned without labels. This report compares it with rules that need no "
            "model, on samples and ASVs that it has not seen. It predicts no metadata column: "
            "fine-tune it with aam train."
        ]
    return ["No sample was held out, so nothing is judged: --test-size or --cv holds samples out."]


def report_html(results: ReportData) -> str:
    """Return the report as one HTML page that needs no other file; the same data give the same
    bytes.
    """
    facts = {"Task": results.task, "Data": results.data, "Split": results.split}
    return page(
        results.configuration,
        title=results.title,
        opening=introduction(results),
        warnings=(*results.warnings, *several_targets(results)),
        facts=[facts_table(title, values) for title, values in facts.items()],
        tables=results.tables,
        encoder_figures=results.encoder_figures,
        curves=results.curves,
        targets=[_target(results, result) for result in results.targets],
        explain_command=results.explain_command,
    )
