"""The contents of a report: results of each target, the tables made of them, and their plain-text
form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aam.evaluate import intervals, metrics
from aam.evaluate.comparison import (
    Baseline,
    Comparison,
    compare_with_baselines,
    headline,
    tests_corrected_for,
)
from aam.evaluate.intervals import Interval, Metrics, limits_text, number, too_few, with_limits
from aam.evaluate.metrics import TITLES, Array
from aam.evaluate.new_studies import InNewStudies, in_new_studies, new_study_sentence
from aam.evaluate.target_predictions import Subset, TargetPredictions
from aam.evaluate.verdict import verdict
from aam.report.tables import Table, plain_lines, printable

if TYPE_CHECKING:
    from aam.report.charts import Figure
    from aam.report.samples import Surroundings

# Metrics that a terminal shows beside the headline of numbers and of classes.
SECOND = {False: "r2", True: "balanced_accuracy"}

# A level of fewer samples says nothing, and so many levels are drawn or listed.
LEAST_IN_LEVEL, MOST_LEVELS = 5, 15

# Longer tables are folded up.
FOLDED_ROWS = 30

# How a report calls the metrics of samples, and the row of all of them.
SUBSET_TITLES: dict[Subset, tuple[str, str]] = {
    "held-out": ("Held-out metrics", "all held-out samples"),
    "validation": ("Validation metrics (these samples chose the epoch)", "all validation samples"),
    "training": ("Metrics of samples that training has seen", "all samples, seen in training"),
    "unknown": ("Metrics (whether the samples were held out is not known)", "all samples"),
}


@dataclass(frozen=True)
class Names:
    """What the report calls a target, the batches and groups of its samples, and what divides them
    into folds.

    `fold` is the metadata column whose values were held out whole, empty where folds were drawn.
    """

    target: str
    batch: str = "batch"
    group: str = "group"
    fold: str = ""


@dataclass(frozen=True, eq=False)
class TargetResult:
    """One target of a run; made by `target_result`.

    `metrics` are those of all samples; `folds` and `batches` hold by level the number of samples
    and their metrics, `parts` the same for other columns; `coverage` is that of conformal intervals
    and `quantiles` that of predicted quantiles; `dropped` holds by class the number of samples in
    the metadata and of those whose depth sufficed; `levels` [N] are the metadata columns of few
    values, and `subset` is what the samples were to the model; `new_studies` are there where every
    batch was held out whole.
    """

    names: Names
    predictions: TargetPredictions
    metrics: Metrics
    folds: Mapping[str, tuple[int, Metrics]]
    batches: Mapping[str, tuple[int, Metrics]]
    comparisons: tuple[Comparison, ...]
    sentences: tuple[str, ...]
    dropped: Mapping[str, tuple[int, int]]
    parts: Mapping[str, Mapping[str, tuple[int, Metrics]]] = field(default_factory=dict)
    coverage: Metrics = field(default_factory=dict)
    quantiles: Metrics = field(default_factory=dict)
    subset: Subset = "held-out"
    levels: Mapping[str, Array] = field(default_factory=dict)
    new_studies: InNewStudies | None = None


@dataclass(frozen=True, eq=False)
class ReportData:
    """What a report shows.

    `task`, `data` and `split` say what was done, with what, and how samples were split; `tables`
    and `encoder_figures` are those of pretraining, `curves` those of training, `around` is how the
    samples lie to each other; `transductive`: pretraining saw held-out samples, without labels;
    `explain_command` adds importances to the report, which has no place for them without it.
    """

    title: str
    task: Mapping[str, object]
    data: Mapping[str, object]
    split: Mapping[str, object]
    targets: tuple[TargetResult, ...] = ()
    tables: tuple[Table, ...] = ()
    encoder_figures: tuple[Figure, ...] = ()
    curves: tuple[Figure, ...] = ()
    around: Surroundings | None = None
    warnings: tuple[str, ...] = ()
    transductive: bool = False
    explain_command: str = ""
    configuration: Mapping[str, object] = field(default_factory=dict)


def target_result(
    names: Names,
    predictions: TargetPredictions,
    baselines: Sequence[Baseline] = (),
    dropped: Mapping[str, tuple[int, int]] | None = None,
    parts: Mapping[str, Array] | None = None,
    subset: Subset = "held-out",
    seed: int = 0,
    repeats: int = 1000,
    unlike: Mapping[str, str] | None = None,
) -> TargetResult:
    """Return metrics, comparisons and verdict of one target.

    Rows of baselines and `parts` [N] are those of `predictions`. Samples that training has seen are
    not compared.
    """

    def by(levels: Array | None, repeats: int = repeats) -> Mapping[str, tuple[int, Metrics]]:
        return (
            {} if levels is None else intervals.metrics_by_level(predictions, levels, seed, repeats)
        )

    compared = () if subset == "training" else baselines
    comparisons = compare_with_baselines(predictions, compared, seed, repeats)
    coverage = intervals.conformal_coverage(predictions, seed, repeats)
    quantiles = intervals.quantile_coverage(predictions, seed, repeats)
    new_studies = in_new_studies(predictions, seed, repeats) if subset == "held-out" else None
    sentences = (
        *((new_study_sentence(new_studies, names.batch),) if new_studies is not None else ()),
        *verdict(predictions, comparisons, names.batch, subset),
        *intervals.conformal_sentences(predictions, coverage, unlike or {}),
        *intervals.quantile_sentences(predictions, quantiles, bool(coverage)),
    )
    return TargetResult(
        names=names,
        predictions=predictions,
        metrics=intervals.metrics_with_intervals(predictions, seed, repeats),
        folds=by(predictions.fold, repeats=0),
        batches=by(predictions.batch),
        comparisons=comparisons,
        sentences=sentences,
        dropped=dropped or {},
        parts={name: by(levels) for name, levels in (parts or {}).items()},
        coverage=coverage,
        quantiles=quantiles,
        subset=subset,
        levels=parts or {},
        new_studies=new_studies,
    )


def _metrics_table(result: TargetResult, brief: bool = False) -> Table:
    """Return the metrics of all samples by fold and batch, or, if `brief`, two metrics of all."""
    names, complete = result.names, result.predictions.complete()
    title, all_samples = SUBSET_TITLES[result.subset]
    rows = [(all_samples, len(complete.truth), result.metrics)]
    for kind, parts in () if brief else (("fold", result.folds), (names.batch, result.batches)):
        rows += [(f"{kind} {level}", count, values) for level, (count, values) in parts.items()]
    unit, of = ("sample", "") if complete.groups is None else ("value", f" of {names.group}")
    over = f"with 95 % intervals over {complete.group_count} {unit}s{of}"
    if complete.group_count < intervals.LEAST_GROUPS:
        over = f"without intervals, {too_few(complete.group_count, unit, of)}"
    ranking = "; AUROC, AUPRC" if complete.labels else "; Pearson, Spearman"
    mean = (
        f"{ranking}: mean over folds, weighted by samples"
        if complete.cross_validated and not brief
        else ""
    )
    none = Interval(math.nan)
    shown = (
        [headline(complete.labels), SECOND[bool(complete.labels)]]
        if brief
        else list(result.metrics)
    )
    return Table(
        f"{title}, {over}{mean}",
        ("", "samples", *(TITLES[name] for name in shown)),
        tuple(
            (row, str(count), *(with_limits(values.get(name, none)) for name in shown))
            for row, count, values in rows
        ),
        "metrics",
    )


def _new_studies_table(new: InNewStudies, name: str) -> Table:
    """Return the metric of each study that was held out whole, their mean, and where a further one
    is expected.
    """
    rows = [
        (study, str(samples), with_limits(value)) for study, (samples, value) in new.studies.items()
    ]
    total = str(sum(samples for samples, _ in new.studies.values()))
    rows.append((f"mean, each {name} alike", total, number(new.mean)))
    if not math.isnan(new.pooled.value):
        between = (
            f"standard deviation between them {number(new.deviation)}, I2 "
            f"{100 * new.heterogeneity:.0f} %"
        )
        rows.append((f"random-effects mean ({between})", total, with_limits(new.pooled)))
    if new.further.low < new.further.high:
        rows.append((f"expected in a further {name}", "", limits_text(new.further)))
    header = (name, "samples", f"{TITLES[new.metric]}, 95 % interval")
    return Table(
        f"In a {name} never seen: each was held out whole", header, tuple(rows), "new-studies"
    )


def _baselines_table(result: TargetResult, brief: bool = False) -> Table:
    """Return the headline metric, its difference and p, and, unless `brief`, the other metrics."""
    key = headline(result.predictions.labels)
    others = [] if brief else [name for name in result.metrics if name != key]

    def row(name: str, samples: int, values: Metrics, *tested: str) -> tuple[str, ...]:
        cells = (number(values[other].value) if other in values else "-" for other in others)
        return (name, str(samples), with_limits(values[key]), *tested, *cells)

    def p_text(p: float) -> str:
        return "<.001" if brief and p < 0.001 else number(p)

    rows = [row("the model", len(result.predictions.complete().truth), result.metrics, "", "")]
    rows += [
        row(
            one.name,
            one.samples,
            one.metrics,
            with_limits(one.tested_difference),
            p_text(one.corrected_p),
        )
        for one in result.comparisons
    ]
    tests = tests_corrected_for(result.comparisons)
    corrected = ""
    if tests > 1:
        corrected = (
            f", differences and p corrected for {tests} baselines (Holm); of guessing "
            "one-sided, not corrected"
        )
    title = f"The model beside baselines{corrected}"
    if brief:
        return Table(title, ("", "samples", TITLES[key], "model minus it", "p"), tuple(rows))
    header = (
        "",
        "samples",
        TITLES[key],
        f"{TITLES[key]}, model minus it",
        "p",
        *(TITLES[name] for name in others),
    )
    return Table(title, header, tuple(rows), "baselines")


def _coverage_tables(result: TargetResult) -> list[Table]:
    """Return coverage and width over all, by tenth of the target, fold, batch and group."""
    if not result.coverage:
        return []
    bounded, names = result.predictions.with_limits(), result.names
    columns = {"fold": bounded.fold, names.batch: bounded.batch, names.group: bounded.groups}
    values = (with_limits(result.coverage[name]) for name in ("coverage", "width"))
    title, header = (
        f"{100 * intervals.CONFORMAL_LEVEL:.0f} % conformal intervals",
        ("", "samples", "coverage", "width"),
    )
    tables = [Table(title, header, (("all", str(len(bounded.truth)), *values),), "coverage")]
    for kind, levels in (
        {"tenth of the target": intervals.tenths(bounded.truth)} | columns
    ).items():
        if levels is not None:
            tables += _level_table(
                f"Intervals by {kind}", kind, intervals.coverage_by(bounded, levels)
            )
    return tables


def _quantile_table(result: TargetResult) -> Table:
    """Return what share of the truths lies below each predicted quantile and between the outermost
    ones.
    """
    levels = result.predictions.levels
    rows = [
        (f"below {level:g}", number(level), with_limits(result.quantiles[f"below {level:g}"]))
        for level in levels
    ]
    between = f"{levels[0]:g} to {levels[-1]:g}"
    rows.append(
        (between, number(levels[-1] - levels[0]), with_limits(result.quantiles["coverage"]))
    )
    header = ("", "expected share", "share of the values")
    return Table("Coverage of the predicted quantiles", header, tuple(rows), "coverage")


def _plain_table(
    title: str, kind: str, parts: Mapping[str, tuple[int, Mapping[str, Interval | float]]]
) -> Table:
    """Return number of samples and metrics at each level, with intervals where they have some."""
    names = list(dict.fromkeys(name for _, values in parts.values() for name in values))

    def cell(value: Interval | float) -> str:
        return with_limits(value) if isinstance(value, Interval) else number(value)

    rows = (
        (level or "no value", str(count), *(cell(values.get(name, math.nan)) for name in names))
        for level, (count, values) in parts.items()
    )
    name = "coverage" if "coverage" in names else "levels"
    return Table(title, (kind, "samples", *(TITLES[one] for one in names)), tuple(rows), name)


def _level_table(
    title: str, kind: str, parts: Mapping[str, tuple[int, Mapping[str, Interval | float]]]
) -> list[Table]:
    """Return the table of the levels that have samples enough to say anything; none where there are
    not two.
    """
    large = {level: part for level, part in parts.items() if part[0] >= LEAST_IN_LEVEL}
    few = "" if len(large) == len(parts) else f", where there are {LEAST_IN_LEVEL} samples or more"
    return [_plain_table(f"{title}{few}", kind, large)] if len(large) > 1 else []


def result_tables(result: TargetResult) -> list[Table]:
    """Return all tables of one target."""
    tables, complete = [_metrics_table(result)], result.predictions.complete()
    if result.new_studies is not None:
        tables.insert(0, _new_studies_table(result.new_studies, result.names.batch))
    if result.comparisons:
        tables.append(_baselines_table(result))
    if complete.labels:
        by_class = metrics.per_class(
            complete.truth, complete.predicted, complete.labels, complete.cross_validated
        )
        tables.append(_plain_table("Each class against all others", "class", by_class))
    for name, parts in result.parts.items():
        # A figure shows errors by group.
        if name != result.names.group:
            tables += _level_table(f"By {name}", name, parts)
    tables += _coverage_tables(result)
    tables += [_quantile_table(result)] if result.quantiles else []
    if result.dropped:
        header = ("class", "samples", "kept", "dropped")
        rows = (
            (name, str(n), str(kept), str(n - kept)) for name, (n, kept) in result.dropped.items()
        )
        tables.append(Table("Samples dropped below the depth", header, tuple(rows), "dropped"))
    return tables


def warning_lines(results: ReportData) -> tuple[str, ...]:
    """Return what a reader must be warned of."""
    label = "Transductive: pretraining saw the held-out samples, though not their labels."
    return ((label,) if results.transductive else ()) + results.warnings


def several_targets(results: ReportData) -> tuple[str, ...]:
    """Return what p is not corrected for, where several targets are tested."""
    tested = sum(
        any(not math.isnan(one.p) for one in result.comparisons) for result in results.targets
    )
    sentence = (
        f"{tested} targets are tested, and p is corrected for the baselines of each target "
        "alone: of many targets that "
        "cannot be predicted, some look better than a baseline by chance."
    )
    return (sentence,) if tested > 1 else ()


def summary_lines(results: ReportData) -> list[str]:
    """Return the verdict of each target first, then warnings, metrics and baselines, for a terminal
    of 80 columns.
    """
    lines = [results.title]
    for result in results.targets:
        lines += [f"{result.names.target}:" for _ in result.sentences[:1]]
        lines += [f"* {sentence}" for sentence in result.sentences]
    lines += [f"warning: {warning}" for warning in warning_lines(results)]
    for table in results.tables:
        lines += ["", *plain_lines(table)]
    for result in results.targets:
        tables = [_metrics_table(result, brief=True)]
        tables += [_baselines_table(result, brief=True)] if result.comparisons else []
        tables[0] = replace(tables[0], title=f"{result.names.target}: {tables[0].title}")
        lines += ["", *(line for table in tables for line in plain_lines(table))]
    return [printable(line) for line in lines]
