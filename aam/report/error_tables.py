"""Tables of the error analysis: the worst samples, and what they share."""

from __future__ import annotations

import numpy as np

from aam.evaluate.error_analysis import WORST_SAMPLES, errors_of, shared_by_worst, worst_rows
from aam.evaluate.metrics import Array
from aam.evaluate.numbers import number
from aam.report.report import TargetResult
from aam.report.tables import Table


def _columns(result: TargetResult, complete_rows: Array) -> dict[str, Array]:
    """Return group, batch, fold and other columns of the samples that have truth and prediction."""
    names, predictions = result.names, result.predictions
    columns = {
        names.group: predictions.groups,
        names.batch: predictions.batch,
        "fold": predictions.fold,
        **result.levels,
    }
    return {name: values[complete_rows] for name, values in columns.items() if values is not None}


def error_tables(result: TargetResult) -> list[Table]:
    """Return the samples with the largest errors, and the levels that the worst tenth of all shares."""
    complete, columns = result.predictions.complete(), _columns(result, result.predictions.has_both)
    if not len(complete.truth):
        return []
    errors, rows = errors_of(complete), worst_rows(complete, WORST_SAMPLES)
    labels = complete.labels

    def value(at: int) -> tuple[str, str, str]:
        if labels:
            chosen = int(np.argmax(complete.predicted[at]))
            return labels[int(complete.truth[at])], labels[chosen], number(float(complete.predicted[at, chosen]))
        return number(float(complete.truth[at])), number(float(complete.predicted[at])), number(float(errors[at]))

    header = ("sample-id", "true", "predicted", "probability" if labels else "absolute error", *columns)
    body = [(complete.sample_ids[at], *value(at), *(str(v[at]) for v in columns.values())) for at in rows.tolist()]
    tables = [Table(f"The {len(body)} samples predicted worst", header, tuple(body))]
    shared = shared_by_worst(complete, columns)
    if shared:
        count, total = len(complete.truth) // 10, len(complete.truth)
        cells = (
            (
                f"{one.column}: {one.level}",
                str(one.worst),
                str(one.samples),
                number(one.worst / count),
                number(one.samples / total),
            )
            for one in shared
        )
        header = ("", f"of the worst {count}", f"of all {total}", "share of the worst", "share of all")
        tables.append(Table("What the worst tenth of the samples has in common", header, tuple(cells)))
    return tables
