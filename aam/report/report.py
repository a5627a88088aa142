"""The contents of a report: its tiles and tables, and what a terminal shows of them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aam.evaluate import intervals, metrics
from aam.evaluate.comparison import full_baselines, headline, tests_corrected_for
from aam.evaluate.evaluation import Evaluation, InNewStudies
from aam.evaluate.intervals import Metrics, limits_text, number, too_few, with_limits
from aam.evaluate.metrics import TITLES
from aam.evaluate.predictions import Subset
from aam.report.tables import Table, plain_lines, printable

if TYPE_CHECKING:
    from aam.predict.learning_curve import LearningCurve
    from aam.report.audit import Audit
    from aam.report.charts import Figure
    from aam.report.samples import Surroundings

# Longer tables are folded up.
FOLDED_ROWS = 30

# Maximum number of cautions on a terminal; the report has all.
MOST_CAUTIONS = 4

# Columns of a terminal.
WIDTH = 80

# How a report calls the metrics of samples, and the samples in a sentence.
SUBSETS: dict[Subset, tuple[str, str]] = {
    "held-out": ("Held-out metrics", "held-out samples"),
    "validation": ("Validation metrics (not held out)", "validation samples (not held out)"),
    "training": ("Metrics of samples seen in training", "samples seen in training"),
    "unknown": ("Metrics (held out or not is unknown)", "samples (held out or not is unknown)"),
}

# The last word of a column's name, where that is a unit, and the unit in the plural.
UNITS = {
    **{
        word: f"{unit}s"
        for unit in ("year", "month", "week", "day", "hour", "minute", "second")
        for word in (unit, f"{unit}s")
    },
    **{word: word for word in ("kg", "g", "mg", "cm", "mm", "m", "ml", "mmol", "percent")},
}


@dataclass(frozen=True, eq=False)
class ReportData:
    """Contents of a report.

    `task`, `data` and `split` say what was done, with what, and how samples were split; `tables`
    and `encoder_figures` are those of pretraining, `curves` those of training, `around` is how the
    samples lie to each other; `audits` and `learning_curves` are by target; `warnings` are about
    the data; `explain_command` adds importances to the report, which has no place for them without
    it.
    """

    title: str
    task: Mapping[str, object]
    data: Mapping[str, object]
    split: Mapping[str, object]
    targets: tuple[Evaluation, ...] = ()
    tables: tuple[Table, ...] = ()
    encoder_figures: tuple[Figure, ...] = ()
    curves: tuple[Figure, ...] = ()
    around: Surroundings | None = None
    audits: Mapping[str, Audit] = field(default_factory=dict)
    learning_curves: Mapping[str, LearningCurve] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    explain_command: str = ""
    configuration: Mapping[str, object] = field(default_factory=dict)


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
    """Unit that the name of a column ends with, such as "months"; '' where it names none."""
    words = re.findall(r"[a-z]+", column.lower())
    return UNITS.get(words[-1], "") if words else ""


def _metric_tile(result: Evaluation, key: str) -> Tile:
    value, target = result.metrics[key], result.names.target
    if result.new_studies is not None:
        name, new = result.names.batch, result.new_studies
        values = [interval.value for _, interval in new.studies.values()]
        ends = f"{number(min(values))} to {number(max(values))}"
        return Tile(
            f"{TITLES[key]} in a new {name}",
            number(new.mean),
            f"Mean over {len(values)} values of {name}, each held out whole, with equal weights "
            f"({ends}). Over all samples: {with_limits(value)}.",
        )
    if key == "mae":
        unit = f" {unit_of(target)}" if unit_of(target) else ""
        sentence = (
            f"Predictions miss {target} by {number(value.value)}{unit} on average "
            f"(R2 {number(result.metrics['r2'].value)})."
        )
        title = "Mean absolute error (MAE)"
    elif key == "auroc":
        title = TITLES[key]
        sentence = (
            f"Of two samples, one of each class, {100 * value.value:.0f} % are ranked in the right "
            "order; guessing ranks 50 %."
        )
    else:
        title = "Accuracy"
        classes = len(result.predictions.labels)
        sentence = (
            f"{100 * value.value:.0f} of 100 samples get the right class, of {classes} classes."
        )
    return Tile(title, number(value.value), sentence, limits_text(value))


def _baseline_tile(result: Evaluation, key: str) -> Tile:
    full = full_baselines(result.comparisons)
    if not full:
        return Tile("Best baseline", "none", "Without a baseline this number cannot be judged.")
    best, others = full[0], sum(not comparison.constant for comparison in full)
    which = " (guessing), the only one of all samples"
    if others:
        which = f", the best of {others} baseline{'s' if others > 1 else ''} and guessing"
    name = f"{best.name[0].upper()}{best.name[1:]}"
    value = best.metrics[key]
    return Tile("Best baseline", number(value.value), f"{name}{which}.", limits_text(value))


def tiles(result: Evaluation) -> list[Tile]:
    """The metric that decides, the best baseline, and the verdict; none without a metric."""
    key = headline(result.predictions.labels)
    if math.isnan(result.metrics[key].value):
        return []
    found = result.verdict
    return [
        _metric_tile(result, key),
        _baseline_tile(result, key),
        Tile("Verdict", found.words, found.sentence, sign=found.sign),
    ]


def judged_samples(result: Evaluation) -> str:
    """The target and the judged samples in words."""
    complete, names = result.predictions.complete(), result.names
    size = len(complete.truth)
    if not size:
        return f"No sample has both a value of {names.target} and a prediction."
    of = "" if complete.groups is None else f" of {complete.group_count} {names.group}"
    return f"{size} {SUBSETS[result.subset][1]}{of}."


# --- tables ------------------------------------------------------------------------------------


def _metrics_table(result: Evaluation) -> Table:
    """Metrics of all samples, by fold and by batch."""
    names, complete = result.names, result.predictions.complete()
    title, samples = SUBSETS[result.subset]
    rows = [(f"all {samples}", len(complete.truth), {**result.metrics, **result.coverage})]
    for kind, parts in (("fold", result.folds), (names.batch, result.batches)):
        rows += [(f"{kind} {level}", count, values) for level, (count, values) in parts.items()]
    unit, of = ("sample", "") if complete.groups is None else ("value", f" of {names.group}")
    over = f"with 95 % intervals over {complete.group_count} {unit}s{of}"
    if complete.group_count < intervals.LEAST_GROUPS:
        over = f"without intervals, {too_few(complete.group_count, unit, of)}"
    names_of = rows[0][2]
    header = ("", "samples", *(TITLES[name] for name in names_of))
    cells = tuple(
        (row, str(n), *(with_limits(of[name]) if name in of else "-" for name in names_of))
        for row, n, of in rows
    )
    return Table(f"{title}, {over}", header, cells, "metrics")


def _new_studies_table(new: InNewStudies, name: str) -> Table:
    """Metric of each study that was held out whole, and their mean."""
    rows = [
        (study, str(samples), with_limits(value)) for study, (samples, value) in new.studies.items()
    ]
    total = str(sum(samples for samples, _ in new.studies.values()))
    rows.append((f"mean over values of {name}", total, number(new.mean)))
    header = (name, "samples", f"{TITLES[new.metric]}, 95 % interval")
    return Table(f"Each {name} was held out whole", header, tuple(rows), "new-studies")


def _baselines_table(result: Evaluation) -> Table:
    """The headline metric, the difference and its p, and all other metrics."""
    key = headline(result.predictions.labels)
    others = [name for name in result.metrics if name != key]

    def row(name: str, samples: int, values: Metrics, *tested: str) -> tuple[str, ...]:
        cells = (number(values[other].value) if other in values else "-" for other in others)
        return (name, str(samples), with_limits(values[key]), *tested, *cells)

    rows = [row("the model", len(result.predictions.complete().truth), result.metrics, "", "")]
    for comparison in result.comparisons:
        tested = with_limits(comparison.tested_difference), number(comparison.corrected_p)
        rows.append(row(comparison.name, comparison.samples, comparison.metrics, *tested))
    tests = tests_corrected_for(result.comparisons)
    corrected = f" (p corrected for {tests} baselines; of guessing one-sided)" if tests > 1 else ""
    header = (
        "",
        "samples",
        TITLES[key],
        f"{TITLES[key]}, model minus it",
        "p",
        *(TITLES[name] for name in others),
    )
    return Table(f"The model and baselines{corrected}", header, tuple(rows), "baselines")


def _class_table(result: Evaluation) -> list[Table]:
    """Metrics of each class against all others."""
    complete = result.predictions.complete()
    if not complete.labels:
        return []
    by_class = metrics.per_class(
        complete.truth, complete.predicted, complete.labels, complete.cross_validated
    )
    rows = [
        (str(label), str(int(samples)), *map(number, values))
        for label, samples, *values in by_class.itertuples()
    ]
    header = ("class", "samples", *(TITLES[metric] for metric in by_class.columns[1:]))
    return [Table("Each class against all others", header, tuple(rows), "levels")]


def result_tables(result: Evaluation) -> list[Table]:
    """All tables of one target."""
    new = result.new_studies
    tables = [] if new is None else [_new_studies_table(new, result.names.batch)]
    tables.append(_metrics_table(result))
    tables += [_baselines_table(result)] if result.comparisons else []
    tables += _class_table(result)
    if any(n > kept for n, kept in result.dropped.values()):
        rows = (
            (name, str(n), str(kept), str(n - kept)) for name, (n, kept) in result.dropped.items()
        )
        header = ("class", "samples", "kept", "dropped")
        tables.append(Table("Samples dropped below the depth", header, tuple(rows), "dropped"))
    return tables


# --- a terminal --------------------------------------------------------------------------------


def several_targets(results: ReportData) -> tuple[str, ...]:
    """Warn that p is not corrected for several targets."""
    tested = sum(
        any(not math.isnan(comparison.p) for comparison in result.comparisons)
        for result in results.targets
    )
    sentence = (
        f"{tested} targets are tested, and p is corrected for the baselines of each target only. "
        "Of many targets without signal, some look predictable by chance."
    )
    return (sentence,) if tested > 1 else ()


def _target_lines(result: Evaluation) -> list[str]:
    """Lines about one target: metric, best baseline, verdict."""
    key, names = headline(result.predictions.labels), result.names
    value = result.metrics[key]
    unit = f" {unit_of(names.target)}" if key == "mae" and unit_of(names.target) else ""
    lines = [f"{names.target}: {TITLES[key]} {with_limits(value)}{unit}; {judged_samples(result)}"]
    if full := full_baselines(result.comparisons):
        lines.append(f"  best baseline: {full[0].name}, {with_limits(full[0].metrics[key])}{unit}")
    lines.append(f"  verdict: {result.verdict.sentences[0]}")
    cautions = result.verdict.cautions
    lines += [f"  note: {caution}" for caution in cautions[:MOST_CAUTIONS]]
    if len(cautions) > MOST_CAUTIONS:
        lines.append(f"  {len(cautions) - MOST_CAUTIONS} more notes are in the report")
    return lines


def summary_lines(results: ReportData) -> list[str]:
    """Lines of a run for the terminal: results, warnings, and tables of a pretrained encoder."""
    lines = [results.title, *(line for result in results.targets for line in _target_lines(result))]
    lines += [f"warning: {warning}" for warning in (*results.warnings, *several_targets(results))]
    wrapped = [
        part
        for line in map(printable, lines)
        for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    ]
    return [*wrapped, *(line for table in results.tables for line in plain_lines(table))]
