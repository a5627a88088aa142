"""The report of a run: its tiles, its tables, its HTML page, its metrics.json and figures, and what
a terminal shows of it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import html
import json
import logging
import math
import re
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

import aam
from aam.engine.run import read_record
from aam.evaluate.comparison import full_baselines, tests_corrected_for
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import LEAST_GROUPS, Metrics, limits_text, number, too_few, with_limits
from aam.evaluate.metrics import TITLES, per_class
from aam.evaluate.predictions import Subset
from aam.files.atomic import write_text
from aam.files.output_folder import DOME, RUN
from aam.predict.audit import Audit
from aam.predict.learning_curve import LearningCurve
from aam.report.audit import advice_of, audit_table, warnings_of
from aam.report.charts import Figure, Table, plain_lines, printable
from aam.report.figures import learning_curve_figure, sample_figures, target_figures, worst_rows
from aam.report.methods import Description, dome, dome_table, methods, references
from aam.report.provenance import provenance_tables, repetition
from aam.report.residuals import error_tables, errors_in_words

log = logging.getLogger("aam")

# Longer tables are folded up.
FOLDED_ROWS = 30

# Maximum number of cautions on a terminal, which has so many columns; the report has all.
MOST_CAUTIONS, WIDTH = 4, 80

# The last word of a column's name, where that is a unit.
TIMES = ("year", "month", "week", "day", "hour", "minute", "second")
UNITS = ("kg", "g", "mg", "cm", "mm", "m", "ml", "mmol", "percent")

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")

VALUE_WITH_LIMITS = re.compile(r"^(\S+) \((\S+ to \S+)\)$")

# What `aam explain` replaces in the report of a run stands between these.
GLOSSARY = "<!-- words -->"
IMPORTANCES = ("<!-- importances -->", "<!-- end of importances -->")

# How a report calls the metrics of samples, and the samples in a sentence.
SUBSETS: dict[Subset, tuple[str, str]] = {
    "held-out": ("Held-out metrics", "held-out samples"),
    "validation": ("Validation metrics (not held out)", "validation samples (not held out)"),
    "training": ("Metrics of samples seen in training", "samples seen in training"),
    "unknown": ("Metrics (held out or not is unknown)", "samples (held out or not is unknown)"),
}

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
    and `encoder_figures` are those of pretraining, `curves` those of training, `around` is how the
    samples lie to each other; `audits` and `learning_curves` are by target, and so is `dropped`:
    the number of samples of each class, and of those that reach the depth. `warnings` are about the
    data; `explain_command` adds importances to the report, which has no place for them without it;
    `unjudged` says why no sample was held out; `record` is the run.json of the run, which took
    `seconds`.
    """

    title: str
    task: Mapping[str, object]
    data: Mapping[str, object]
    split: Mapping[str, object]
    targets: tuple[Evaluation, ...] = ()
    tables: tuple[Table, ...] = ()
    encoder_figures: tuple[Figure, ...] = ()
    curves: tuple[Figure, ...] = ()
    around: pd.DataFrame | None = None
    audits: Mapping[str, Audit] = field(default_factory=dict)
    learning_curves: Mapping[str, LearningCurve] = field(default_factory=dict)
    dropped: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    explain_command: str = ""
    configuration: Mapping[str, object] = field(default_factory=dict)
    unjudged: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def description(self) -> Description:
        """What the run was, for its methods."""
        return Description(self.record, self.targets, self.data)

    @cached_property
    def figures_of_target(self) -> dict[str, list[Figure]]:
        """All figures of each target, drawn once for the page and for the files."""
        drawn = {}
        for result in self.targets:
            name, curve = result.names.target, self.learning_curves.get(result.names.target)
            drawn[name] = target_figures(result)
            if curve is not None:
                drawn[name].append(learning_curve_figure(curve, result.names.group))
            drawn[name] += sample_figures(result, self.around)
        return drawn


# --- tiles -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """A number or a few words that answer a question, with one plain sentence.

    `limits` are those of the interval; `sign` (better, open, worse, none) is that of a verdict.
    """

    question: str
    answer: str
    sentence: str
    limits: str = ""
    sign: str = ""


def unit_of(column: str) -> str:
    """The unit that the name of a column ends with, after a blank: " months"; '' without one."""
    word = (re.findall(r"[a-z]+", column.lower()) or [""])[-1]
    time = word.removesuffix("s")
    return f" {time}s" if time in TIMES else f" {word}" if word in UNITS else ""


def _metric_tile(result: Evaluation) -> Tile:
    key, target, new = result.key, result.names.target, result.in_new_batches
    value, name = result.metrics[key], result.names.batch
    share = 100 * value.value
    if new:
        text = f"Mean over {len(new)} values of {name}, each held out whole, with equal weights ("
        text += f"{number(new[0])} to {number(new[-1])}). Over all samples: {with_limits(value)}."
        return Tile(f"{TITLES[key]} in a new {name}", number(float(np.mean(new))), text)
    if key == "mae":
        title, r2 = "Mean absolute error (MAE)", number(result.metrics["r2"].value)
        off = f"{number(value.value)}{unit_of(target)}"
        text = f"Predictions miss {target} by {off} on average (R2 {r2})."
    elif key == "auroc":
        title, text = TITLES[key], f"Of two samples, one of each class, {share:.0f} % are ranked "
        text += "in the right order; guessing ranks 50 %."
    else:
        title, classes = "Accuracy", len(result.predictions.labels)
        text = f"{share:.0f} of 100 samples get the right class, of {classes} classes."
    return Tile(title, number(value.value), text, limits_text(value))


def _baseline_tile(result: Evaluation) -> Tile:
    full = full_baselines(result.comparisons)
    if not full:
        return Tile("Best baseline", "none", "Without a baseline this number cannot be judged.")
    others = sum(not comparison.constant for comparison in full)
    which = " (guessing), the only one of all samples"
    if others:
        which = f", the best of {others} baseline{'s' if others > 1 else ''} and guessing"
    name, value = f"{full[0].name[0].upper()}{full[0].name[1:]}", full[0].metrics[result.key]
    return Tile("Best baseline", number(value.value), f"{name}{which}.", limits_text(value))


def tiles(result: Evaluation) -> list[Tile]:
    """The metric that decides, the best baseline, and the verdict; none without a metric."""
    if math.isnan(result.metrics[result.key].value):
        return []
    found = result.verdict
    verdict = Tile("Verdict", found.words, found.sentence, sign=found.sign)
    return [_metric_tile(result), _baseline_tile(result), verdict]


def judged_samples(result: Evaluation) -> str:
    """The target and the judged samples in words."""
    complete, names = result.complete, result.names
    size = len(complete.truth)
    if not size:
        return f"No sample has both a value of {names.target} and a prediction."
    of = "" if complete.groups is None else f" of {complete.group_count} {names.group}"
    return f"{size} {SUBSETS[result.subset][1]}{of}."


def all_warnings(results: ReportData) -> list[str]:
    """Warnings about the data, and that p is not corrected for several targets."""
    p_of = [[comparison.p for comparison in result.comparisons] for result in results.targets]
    tested = sum(not all(map(math.isnan, p_values)) for p_values in p_of)
    several = [
        f"{tested} targets are tested, and p is corrected for the baselines of each target only. "
        "Of many targets without signal, some look predictable by chance."
    ]
    return [*results.warnings, *(several if tested > 1 else [])]


# --- tables of a target ------------------------------------------------------------------------


def _metrics_table(result: Evaluation) -> Table:
    """Metrics of all samples, by fold and by batch."""
    names, complete = result.names, result.complete
    title, samples = SUBSETS[result.subset]
    shown = {**result.metrics, **result.coverage}
    parts = [(f"all {samples}", len(complete.truth), shown)]
    for kind, levels in (("fold", result.folds), (names.batch, result.batches)):
        parts += [(f"{kind} {level}", count, values) for level, (count, values) in levels.items()]
    unit, of = ("sample", "") if complete.groups is None else ("value", f" of {names.group}")
    over = f"with 95 % intervals over {complete.group_count} {unit}s{of}"
    if complete.group_count < LEAST_GROUPS:
        over = f"without intervals, {too_few(complete.group_count, unit, of)}"
    if result.in_new_batches:
        over += f"; each {names.batch} has intervals over its own groups or samples"
    rows = []
    for part, count, values in parts:
        cells = [with_limits(values[name]) if name in values else "-" for name in shown]
        rows.append((part, str(count), *cells))
    header = ("", "samples", *(TITLES[name] for name in shown))
    return Table(f"{title}, {over}", header, tuple(rows), "metrics")


def _baselines_table(result: Evaluation) -> list[Table]:
    """The headline metric, the difference and its p, and all other metrics."""
    if not result.comparisons:
        return []
    key = result.key
    others = [name for name in result.metrics if name != key]

    def row(name: str, samples: int, values: Metrics, *tested: str) -> tuple[str, ...]:
        cells = (number(values[other].value) if other in values else "-" for other in others)
        return (name, str(samples), with_limits(values[key]), *tested, *cells)

    rows = [row("the model", len(result.complete.truth), result.metrics, "", "")]
    for rival in result.comparisons:
        tested = with_limits(rival.tested_difference), number(rival.corrected_p)
        rows.append(row(rival.name, rival.samples, rival.metrics, *tested))
    tests = tests_corrected_for(result.comparisons)
    corrected = f" (p corrected for {tests} baselines; of guessing one-sided)" if tests > 1 else ""
    titles = (f"{TITLES[key]}, model minus it", "p", *(TITLES[name] for name in others))
    header = ("", "samples", TITLES[key], *titles)
    return [Table(f"The model and baselines{corrected}", header, tuple(rows), "baselines")]


def _class_table(result: Evaluation) -> list[Table]:
    """Metrics of each class against all others."""
    complete = result.complete
    if not complete.labels:
        return []
    by_class = per_class(complete.truth, complete.predicted, complete.labels)
    rows = [
        (str(label), str(int(samples)), *map(number, values))
        for label, samples, *values in by_class.itertuples()
    ]
    header = ("class", "samples", *(TITLES[name] for name in by_class.columns[1:]))
    title = "Each class against all others"
    title += ", over all folds at once" if complete.cross_validated else ""
    return [Table(title, header, tuple(rows), "levels")]


def _dropped_table(dropped: Mapping[str, tuple[int, int]]) -> list[Table]:
    """The number of samples of each class, of those that are kept, and of those that are lost."""
    if all(count == kept for count, kept in dropped.values()):
        return []
    rows = [(name, str(n), str(kept), str(n - kept)) for name, (n, kept) in dropped.items()]
    header = ("class", "samples", "kept", "dropped")
    return [Table("Samples dropped below the depth", header, tuple(rows), "dropped")]


def worst_table(result: Evaluation) -> list[Table]:
    """The samples with the largest errors."""
    complete, names, labels = result.complete, result.names, result.complete.labels
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


# --- the page ----------------------------------------------------------------------------------


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
    seen = set[str]()

    def explained(match: re.Match[str]) -> str:
        word, known = match[0], match[0] in seen
        seen.add(word)
        return word if known else f'<abbr data-tip="{html.escape(TERMS[word])}">{word}</abbr>'

    marked = WORD.sub(explained, html.escape(str(text)))
    return OPTION.sub(r'<span class="option">\g<0></span>', marked)


def cell_with_limits(text: str) -> str:
    """Return a cell of a table as HTML, with limits below their value so that tables are not
    wide.
    """
    return VALUE_WITH_LIMITS.sub(r"\1 <small>\2</small>", unbroken_options(text))


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates of pages; whatever a metadata column holds is escaped in them.

    Nothing is loaded by a page, and no other script than its own runs.
    """
    loader = jinja2.PackageLoader("aam.report")
    made = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    made.filters |= {"options": unbroken_options, "cell": cell_with_limits, "terms": with_terms}
    script = made.get_template("page.js.j2").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
    style = made.get_template("report.css.j2").render()
    made.globals |= {"version": aam.__version__, "folded_rows": FOLDED_ROWS, "script": script}
    made.globals |= {"style": f"{style}\n", "policy": f"{policy}'sha256-{digest}'"}
    made.globals["importances_start"], made.globals["importances_end"] = IMPORTANCES
    return made


def _target(results: ReportData, result: Evaluation) -> dict[str, object]:
    """Contents of one target for the template: the answer, its first figures, and all others.

    If importances may be added, one of the three first places is theirs.
    """
    name, first = result.names.target, 2 if results.explain_command else 3
    figures, tables = (
        results.figures_of_target[name],
        [_metrics_table(result), *_baselines_table(result)],
    )
    tables += [
        *error_tables(result),
        *_class_table(result),
        *_dropped_table(results.dropped.get(name, {})),
    ]
    tables += [audit_table(results.audits[name])] if name in results.audits else []
    return {
        "name": name,
        "confounded": warnings_of(results.audits[name]) if name in results.audits else [],
        "samples": judged_samples(result),
        "tiles": tiles(result),
        "errors": errors_in_words(result, unit_of(name)),
        "cautions": result.verdict.cautions,
        "hero": figures[:first],
        "place": place_of_features(name),
        "tables": [*tables, *worst_table(result)],
        "figures": figures[first:],
    }


def with_importances(report: str, importances: str, features: Mapping[str, str]) -> str:
    """Return the report of a run with its importances replaced, and by target the `features` next
    to its first figures.
    """
    parts = {place_of_features(target): text for target, text in features.items()}
    for (start, end), text in {IMPORTANCES: importances, **parts}.items():
        before, _, rest = report.partition(start)
        _, found, after = rest.partition(end)
        report = f"{before}{start}\n{text}\n{end}{after}" if found else report
    return report


def introduction(results: ReportData) -> str:
    """The words that open a report without targets."""
    if results.targets:
        return ""
    if results.tables:
        text = (
            "The encoder learned without labels. On samples and ASVs that it has not seen, it is "
        )
        return f"{text}compared with rules that need no model. To predict a column, use aam train."
    usual = "No sample was held out, so nothing is judged: --test-size or --cv holds samples out"
    return f"{results.unjudged or usual}."


def report_html(results: ReportData) -> str:
    """Return the report as one HTML page that needs no other file; the same data give the same
    bytes.
    """
    settings = results.configuration
    text = json.dumps(settings, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    facts = provenance_tables(results.record, results.seconds)
    description = results.description
    sentences = methods(description)
    for title in ("task", "data", "split"):
        items = getattr(results, title).items()
        rows = tuple((name, str(value)) for name, value in items if value is not None)
        facts.append(Table(title.capitalize(), (), rows))
    page = (
        templates()
        .get_template("report.html.j2")
        .render(
            results=results,
            title=results.title,
            opening=introduction(results),
            warnings=all_warnings(results),
            facts=facts,
            repetition=repetition(results.record),
            methods=sentences,
            references=references(" ".join(sentences)),
            dome=dome_table(description),
            targets=[_target(results, result) for result in results.targets],
            configuration=text,
            digest=hashlib.sha256(text.encode()).hexdigest()[:32],
        )
    )
    words = sorted(set(EXPLAINED.findall(page)), key=str.lower)
    glossary = templates().get_template("glossary.html.j2")
    terms = {word: TERMS[html.unescape(word)] for word in words}
    return page.replace(GLOSSARY, glossary.render(terms=terms) if terms else "") + "\n"


# --- files and a terminal ----------------------------------------------------------------------


def plain_json(value: object) -> object:
    """Convert nested dicts of numbers for JSON: NaN and infinity become null."""
    if isinstance(value, dict):
        return {name: plain_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _values(metrics: Metrics) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items()}


def _target_json(result: Evaluation) -> dict[str, object]:
    """Entry of one target in metrics.json."""
    tests, rivals, parts = {}, result.comparisons, {}
    for rival in rivals:
        p = {"p": rival.p, "corrected_p": rival.corrected_p}
        tests[rival.name] = {"difference": vars(rival.difference), **p}
    for level, (count, values) in result.batches.items():
        parts[level] = {"samples": count, **_values(values)}
    return {
        "subset": result.subset,
        "metrics": {name: vars(metric) for name, metric in result.metrics.items()},
        "folds": {fold: _values(values) for fold, (_, values) in result.folds.items()},
        "parts": {result.names.batch: parts} if parts else {},
        "intervals": {name: vars(metric) for name, metric in result.coverage.items()},
        "baselines": {rival.name: _values(rival.metrics) for rival in rivals},
        "tests": tests,
        "verdict": list(result.verdict.sentences),
    }


def write_figures(folder: Path, results: ReportData) -> None:
    """Write each figure of a report as SVG and PNG; those of several targets each in a folder of
    its own.
    """
    placed = {folder: [*results.encoder_figures, *results.curves]}
    for at, result in enumerate(results.targets, 1):
        name = re.sub(r"[^\w.-]+", "-", result.names.target).strip(".-")
        place = folder / f"{at}-{name}" if len(results.targets) > 1 else folder
        placed[place] = [*placed.get(place, []), *results.figures_of_target[result.names.target]]
    for place, figures in placed.items():
        for figure in figures:
            place.mkdir(parents=True, exist_ok=True)
            figure.write(place)


def _target_lines(result: Evaluation) -> list[str]:
    """Lines about one target: metric, best baseline, verdict."""
    key, target = result.key, result.names.target
    unit, value = unit_of(target) if key == "mae" else "", with_limits(result.metrics[key])
    lines = [f"{target}: {TITLES[key]} {value}{unit}; {judged_samples(result)}"]
    if full := full_baselines(result.comparisons):
        best = f"{full[0].name}, {with_limits(full[0].metrics[key])}"
        lines.append(f"  best baseline: {best}{unit}")
    lines.append(f"  verdict: {result.verdict.sentences[0]}")
    cautions = result.verdict.cautions
    lines += [f"  note: {caution}" for caution in cautions[:MOST_CAUTIONS]]
    if len(cautions) > MOST_CAUTIONS:
        lines.append(f"  {len(cautions) - MOST_CAUTIONS} more notes are in the report")
    return lines


def summary_lines(results: ReportData) -> list[str]:
    """Lines of a run for the terminal: results, warnings, and tables of a pretrained encoder."""
    lines = [results.title]
    for result in results.targets:
        if (audit := results.audits.get(result.names.target)) is not None:
            lines += [f"warning: {sentence}" for sentence in warnings_of(audit)]
        lines += _target_lines(result)
    lines += [f"warning: {warning}" for warning in all_warnings(results)]
    wrap = textwrap.TextWrapper(WIDTH, subsequent_indent="    ", break_on_hyphens=False).wrap
    wrapped = [part for line in lines for part in wrap(printable(line))]
    return [*wrapped, *(line for table in results.tables for line in plain_lines(table))]


def with_record(results: ReportData, folder: Path) -> ReportData:
    """Add the run.json of a folder, if there is one, and the time since its start."""
    if not (folder / RUN).is_file():
        return results
    record, seconds = read_record(folder / RUN), 0.0
    with contextlib.suppress(KeyError, TypeError, ValueError):
        started = datetime.strptime(record["started"], "%Y-%m-%dT%H:%M:%S%z")
        seconds = max(time.time() - started.timestamp(), 0.0)
    return replace(results, record=record, seconds=seconds)


def write_results(folder: Path, results: ReportData) -> None:
    """Write report.html, figures/, dome.json and metrics.json, and log what matters."""
    results = with_record(results, folder)
    write_text(folder / "report.html", report_html(results))
    write_figures(folder / "figures", results)
    if answers := dome(results.description):
        write_text(folder / DOME, json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
    targets = {result.names.target: _target_json(result) for result in results.targets}
    for name, curve in results.learning_curves.items():
        targets[name]["learning_curve"] = curve.points.to_dict("records")
    for name, audit in results.audits.items():
        frame = audit.frame.assign(advice=advice_of(audit))
        targets[name]["audit"] = frame.to_dict("records")
    tables = {}
    for table in results.tables:
        tables[table.title] = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    text = json.dumps(plain_json({"targets": targets, "tables": tables}), indent=1)
    write_text(folder / "metrics.json", f"{text}\n")
    for line in summary_lines(results):
        log.info("%s", line)
