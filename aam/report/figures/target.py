"""All figures of one target."""

from __future__ import annotations

import numpy as np

from aam.evaluate.error_analysis import errors_by_level
from aam.evaluate.numbers import number
from aam.evaluate.target_predictions import TargetPredictions
from aam.report.figures.classification import confusion_figure, reliability_figure, threshold_figures
from aam.report.figures.comparison import comparison_figures
from aam.report.figures.regression import scatter_figure, tenths_figure
from aam.report.figures.rows import Row, draw_rows
from aam.report.figures.svg import Figure
from aam.report.report import TargetResult

# More classes than this are no picture, only a table.
MOST_CLASSES = 40


def _level_figures(result: TargetResult, complete: TargetPredictions) -> list[Figure]:
    """Return the mean error by group and by batch, the worst levels first."""
    plots = []
    kind = "1 - probability of the true class" if complete.labels else "absolute error"
    columns = {result.names.group: complete.groups, result.names.batch: complete.batch}
    for at, (column, levels) in enumerate(columns.items()):
        if levels is None or len(np.unique(levels)) < 2:
            continue
        errors = errors_by_level(complete, levels)
        overall = float(np.average([v.value for _, v in errors.values()], weights=[n for n, _ in errors.values()]))
        rows = [Row(name or "(none)", v, 0, f"{number(v.value)}, n = {count}") for name, (count, v) in errors.items()]
        plot = draw_rows(rows, f"mean {kind}", overall, zero=True)
        few = (
            f" The {len(errors)} worst of {len(np.unique(levels))} are drawn."
            if len(errors) < len(np.unique(levels))
            else ""
        )
        listed = "; ".join(f"{row.name} {row.text}" for row in rows)
        plots.append(
            Figure(
                ("errors-by-group", "errors-by-batch")[at], f"Errors by {column}", f"Mean {kind}: {listed}.",
                plot.width, plot.height, plot.body,
                f"Mean error and number of samples; bars are one standard error, the line is their mean.{few}",
            )
        )  # fmt: skip
    return plots


def target_figures(result: TargetResult) -> list[Figure]:
    """Return the figures of a target, the most important first; none where no sample has truth and prediction."""
    complete = result.predictions.complete()
    if not len(complete.truth):
        return []
    plots: list[Figure] = []
    if not complete.labels:
        plots.append(scatter_figure(complete, result.names.target, result.names.batch))
    plots += comparison_figures(complete.labels, result.metrics, result.comparisons)
    if complete.labels:
        plots += threshold_figures(complete)
        plots.append(reliability_figure(complete))
    elif (tenths := tenths_figure(complete, result.names.target)) is not None:
        plots.append(tenths)
    return plots + _level_figures(result, complete)


def file_figures(result: TargetResult) -> list[Figure]:
    """Return the figures that the page shows as tables: the confusion matrix."""
    complete = result.predictions.complete()
    drawn = 0 < len(complete.labels) <= MOST_CLASSES and len(complete.truth) > 0
    return [confusion_figure(complete)] if drawn else []
