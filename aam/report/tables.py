"""The tables of a target: its metrics, the baselines, the classes, and the worst samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from aam.evaluate.comparison import tests_corrected_for
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import MetricIntervals
from aam.evaluate.metrics import TITLES, per_class
from aam.predict.audit import Audit
from aam.report.audit import audit_table
from aam.report.charts import Table
from aam.report.record import SUBSET_TITLES, rendered
from aam.report.residuals import error_tables

# Number of samples that are listed as the worst.
WORST_SAMPLES = 15


def _titles(result: Evaluation) -> Any:
    """The titles of the tables of a target, by name."""
    tests = tests_corrected_for(result.comparisons)
    return rendered("tables.j2", result=result, tests=tests)


def metrics_table(result: Evaluation) -> Table:
    """Metrics of all samples, by fold and by batch."""
    names, complete = result.names, result.complete
    has_others = complete.count_that_decides < len(complete.truth)
    samples = "samples" if has_others else SUBSET_TITLES[result.subset][1]
    # The metric that decides stands first, where a phone shows it.
    metrics = {result.key: result.metrics[result.key], **result.metrics, **result.coverage}
    parts = [(f"all {samples}", len(complete.truth), metrics)]
    # Folds that are the values of the batch column would repeat its rows.
    folds = {} if result.batches and names.fold == names.batch else result.folds
    for kind, levels in (("fold", folds), (names.batch, result.batches)):
        parts += [(f"{kind} {level}", count, values) for level, (count, values) in levels.items()]
    rows = [(part, n, *(values.get(name, "-") for name in metrics)) for part, n, values in parts]
    frame = pd.DataFrame(rows, columns=["", "samples", *(TITLES[name] for name in metrics)])
    return Table(str(_titles(result).metrics), frame, "metrics")


def baselines_table(result: Evaluation) -> list[Table]:
    """The headline metric, the difference and its p, and all other metrics."""
    if not result.comparisons:
        return []
    key = result.key
    other_metrics = [name for name in result.metrics if name != key]

    def row(name: str, samples: int, values: MetricIntervals, *tested: object) -> list[object]:
        cells = [values[other].value if other in values else "-" for other in other_metrics]
        return [name, samples, values[key], *tested, *cells]

    rows = [row("the model", len(result.complete.truth), result.metrics, "", "")]
    for rival in result.comparisons:
        tested = rival.tested_difference, rival.corrected_p
        rows.append(row(rival.name, rival.samples, rival.metrics, *tested))
    titles = [f"{TITLES[key]}, model minus it", "p", *(TITLES[name] for name in other_metrics)]
    frame = pd.DataFrame(rows, columns=["", "samples", TITLES[key], *titles])
    return [Table(str(_titles(result).baselines), frame, "baselines")]


def class_table(result: Evaluation) -> list[Table]:
    """Metrics of each class against all others."""
    complete = result.complete
    if not complete.labels:
        return []
    frame = per_class(complete.truth, complete.predicted, complete.labels).rename(columns=TITLES)
    frame.insert(0, "class", complete.labels)
    return [Table(str(_titles(result).levels), frame, "levels")]


def dropped_table(dropped: Mapping[str, tuple[int, int]]) -> list[Table]:
    """The number of samples of each class, of those that are kept, and of those that are lost."""
    if all(count == kept for count, kept in dropped.values()):
        return []
    rows = [(name, count, kept, count - kept) for name, (count, kept) in dropped.items()]
    frame = pd.DataFrame(rows, columns=["class", "samples", "kept", "dropped"])
    return [Table("Samples left out, by class", frame, "dropped")]


def worst_table(result: Evaluation) -> list[Table]:
    """The samples with the largest errors."""
    names, labels = result.names, result.complete.labels
    rows = np.argsort(-result.complete.errors, kind="stable")[:WORST_SAMPLES]
    worst = result.complete.at(rows)
    if not len(worst.truth):
        return []
    true, predicted = f"true {names.target}", f"predicted {names.target}"
    columns: dict[str, object] = {"sample-id": worst.sample_ids}
    if labels:
        columns[true] = [labels[at] for at in worst.truth]
        columns[predicted] = [labels[at] for at in worst.predicted.argmax(axis=1)]
        of_truth = worst.predicted[np.arange(len(worst.truth)), worst.truth]
        columns["probability of the true class"] = of_truth
    else:
        columns |= {true: worst.truth, predicted: worst.predicted, "absolute error": worst.errors}
    places = (names.group, worst.groups), (names.batch, worst.batch), ("fold", worst.fold)
    columns |= {name: list(map(str, x)) for name, x in places if x is not None}
    frame = pd.DataFrame(columns)
    return [Table(f"The {len(frame)} samples predicted worst", frame, "worst")]


def target_tables(
    result: Evaluation, dropped: Mapping[str, tuple[int, int]], audit: Audit | None
) -> list[Table]:
    """All tables of a target, in the order of the report."""
    return [
        metrics_table(result),
        *baselines_table(result),
        *error_tables(result),
        *class_table(result),
        *dropped_table(dropped),
        *([] if audit is None else [audit_table(audit)]),
        *worst_table(result),
    ]
