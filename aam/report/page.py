"""The page of a report: what it shows, as data, and its HTML."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

import aam
from aam.errors import InputError, reworded
from aam.evaluate.evaluation import Evaluation
from aam.predict.audit import Audit
from aam.predict.learning_curve import LearningCurve
from aam.report.audit import warnings_of
from aam.report.charts import Figure, Table
from aam.report.figures import learning_curve_figure, target_figures
from aam.report.methods import described, dome_table, references
from aam.report.provenance import provenance
from aam.report.record import Record, judged_samples, record_of, tiles
from aam.report.tables import target_tables

# Longer tables are folded up.
FOLDED_ROWS = 30

# Of what a page shows, as data: pages of other formats cannot be shown again.
PAGE_FORMAT = 2

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")

VALUE_WITH_LIMITS = re.compile(r"^(\S+) \((\S+ to \S+)\)$")

TEMPLATES = resources.files("aam.report") / "templates"

# Words that not every reader knows, and their definitions.
TERMS: dict[str, str] = json.loads((TEMPLATES / "words.json").read_text(encoding="utf-8"))["terms"]

_WORDS = "|".join(sorted(map(re.escape, TERMS), key=len, reverse=True))
WORD = re.compile(rf"(?<![\w-])({_WORDS})(?![\w-])")
# A word of a page that is explained.
EXPLAINED = re.compile('<abbr data-tip="[^"]*">([^<]*)</abbr>')


@dataclass(frozen=True, eq=False)
class ReportData:
    """Contents of a report.

    `task`, `data` and `split` say what was done, with what, and how samples were split; `tables`
    and `encoder_figures` are those of pretraining, `curves` those of training; `audits` and
    `learning_curves` are by target, and so is `dropped`: the number of samples of each class, and
    of those that reach the depth. `warnings` are about the data; `explain_command` adds importances
    to the report, which takes none without it; `unjudged` says why no sample was held out; `record`
    is the run.json of the run, which took `seconds`.
    """

    title: str
    task: Mapping[str, object]
    data: Mapping[str, object]
    split: Mapping[str, object]
    targets: tuple[Evaluation, ...] = ()
    tables: tuple[Table, ...] = ()
    encoder_figures: tuple[Figure, ...] = ()
    curves: tuple[Figure, ...] = ()
    audits: Mapping[str, Audit] = field(default_factory=dict)
    learning_curves: Mapping[str, LearningCurve] = field(default_factory=dict)
    dropped: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    explain_command: str = ""
    unjudged: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The records of the targets."""
        return tuple(map(record_of, self.targets))

    @cached_property
    def described(self) -> tuple[list[str], dict[str, dict[str, str]]]:
        """The methods of the run in sentences, and its answers to DOME."""
        return described(self.record, self.records, self.data)

    @cached_property
    def figures_of_target(self) -> dict[str, list[Figure]]:
        """All figures of each target, drawn once for the page and for the files."""
        drawn = {}
        for result in self.targets:
            name, curve = result.names.target, self.learning_curves.get(result.names.target)
            drawn[name] = target_figures(result)
            if curve is not None:
                drawn[name].append(learning_curve_figure(curve, result.names.group))
        return drawn


def all_warnings(results: ReportData) -> list[str]:
    """Warnings about the data, and that p is not corrected for several targets."""
    tested = sum(any(one["tested"] for one in record["compared"]) for record in results.records)
    several = [
        f"{tested} targets are tested, and p is corrected for the baselines of each target only. "
        "Of many targets without signal, some look predictable by chance."
    ]
    return [*results.warnings, *(several if tested > 1 else [])]


# --- HTML -----------------------------------------------------------------------------------------


def unbroken_options(text: object) -> str:
    """Return text as HTML, escaped, in which options, such as --rarefy-depth, are not broken
    between lines.
    """
    return OPTION.sub(r'<span class="option">\g<0></span>', html.escape(str(text)))


def with_terms(text: object) -> str:
    """Return a text as HTML, escaped, whose known words show at their first use what they mean
    under a pointer.
    """
    earlier = set[str]()

    def definition(match: re.Match[str]) -> str:
        word, is_repeated = match[0], match[0] in earlier
        earlier.add(word)
        return word if is_repeated else f'<abbr data-tip="{html.escape(TERMS[word])}">{word}</abbr>'

    marked = WORD.sub(definition, html.escape(str(text)))
    return OPTION.sub(r'<span class="option">\g<0></span>', marked)


def cell_with_limits(text: str) -> str:
    """Return a cell of a table as HTML, with limits below their value so that tables are not
    wide.
    """
    return VALUE_WITH_LIMITS.sub(r"\1 <small>\2</small>", unbroken_options(text))


def explained_words(text: str) -> dict[str, str]:
    """The words of a page that are explained, in alphabetical order, with their definitions."""
    words = sorted(set(EXPLAINED.findall(text)), key=str.lower)
    return {word: TERMS[html.unescape(word)] for word in words}


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates of pages; whatever a metadata column holds is escaped in them.

    Nothing is loaded by a page, and no other script than its own runs.
    """
    loader = jinja2.PackageLoader("aam.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "options": unbroken_options,
        "cell": cell_with_limits,
        "terms": with_terms,
    }
    script = environment.get_template("page.js.j2").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
    style = environment.get_template("report.css.j2").render()
    environment.globals |= {
        "version": aam.__version__,
        "folded_rows": FOLDED_ROWS,
        "script": script,
        "style": f"{style}\n",
        "policy": f"{policy}'sha256-{digest}'",
        "explained_words": explained_words,
    }
    return environment


def as_data(parts: Iterable[Table | Figure]) -> list[dict[str, Any]]:
    """Tables and figures for a template."""
    return [part.to_dict() for part in parts]


def _target(results: ReportData, result: Evaluation, record: Record) -> dict[str, object]:
    """What a page shows of one target: the answer, its figures and its tables."""
    name = record["target"]
    audit = results.audits.get(name)
    return {
        "name": name,
        "confounded": [] if audit is None else warnings_of(audit),
        "samples": judged_samples(record),
        "tiles": tiles(record),
        "cautions": record["verdict"][1:],
        "figures": as_data(results.figures_of_target[name]),
        "tables": as_data(target_tables(result, results.dropped.get(name, {}), audit)),
    }


def _about(results: ReportData) -> dict[str, object]:
    """What a page shows of the run itself: methods and provenance."""
    facts, repetition = provenance(results.record, results.seconds)
    for title, part in (("Task", results.task), ("Data", results.data), ("Split", results.split)):
        rows = [(name, str(value)) for name, value in part.items() if value is not None]
        facts.append(Table(title, pd.DataFrame(rows)))
    sentences, answers = results.described
    return {
        "methods": sentences,
        "references": references(" ".join(sentences)),
        "dome": as_data(dome_table(answers)),
        "facts": as_data(facts),
        "repetition": repetition,
    }


def page_data(results: ReportData) -> dict[str, Any]:
    """What the page of a report shows, as data for its template and for JSON."""
    return {
        "format": PAGE_FORMAT,
        "title": results.title,
        "unjudged": results.unjudged,
        "warnings": all_warnings(results),
        "targets": [
            _target(results, *pair) for pair in zip(results.targets, results.records, strict=True)
        ],
        "encoder": as_data([*results.encoder_figures]),
        "encoder_tables": as_data([*results.tables]),
        "curves": as_data([*results.curves]),
        "explain_command": results.explain_command,
        "about": _about(results),
    }


def page_html(page: Mapping[str, Any], explanation: Mapping[str, Any] | None = None) -> str:
    """Return a page as HTML that needs no other file; the same data give the same bytes.

    `explanation` is what drives the predictions: ``notes``, and ``targets`` with their name, an
    opening, the ``first`` figure, which stands near the answer, further figures, and tables.
    """
    template = templates().get_template("report.html.j2")
    return template.render(**page, explanation=explanation) + "\n"


def read_page(path: Path) -> dict[str, Any]:
    """Read what the page of a run shows.

    Raises
    ------
    InputError
        The file is damaged, or of another version of aam.
    """
    remedy = "train again, or use --output-dir"
    with reworded((ValueError,), f"{path}: is damaged", f"; {remedy}"):
        page = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(page, dict) or page.get("format") != PAGE_FORMAT:
        what = "is of another version of aam, so its report takes no importances"
        raise InputError(f"{path}: {what}; {remedy}")
    with reworded((jinja2.UndefinedError, TypeError), f"{path}: is damaged", f"; {remedy}"):
        page_html(page)
    return page
