"""The model beside its baselines: the metric of each, and the paired differences."""

from __future__ import annotations

import math

from aam.evaluate.bootstrap import Interval
from aam.evaluate.comparison import Comparison, headline
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES
from aam.evaluate.numbers import number
from aam.report.figures.rows import Row, draw_rows
from aam.report.figures.svg import Figure

MODEL, TRIVIAL, LEARNED = 0, 8, 1


def _colour(comparison: Comparison) -> int:
    return TRIVIAL if comparison.trivial else LEARNED


def comparison_figures(
    labels: tuple[str, ...], metrics: dict[str, Interval], comparisons: tuple[Comparison, ...]
) -> list[Figure]:
    """Return the forest plots of a target's headline metric: of the model and its baselines, and of the differences."""
    if not comparisons:
        return []
    key = headline(labels)
    lower = key in LOWER_IS_BETTER
    ranked = sorted(comparisons, key=lambda one: one.metrics[key].value * (1 if lower else -1))
    colours = [(MODEL, "the model"), (TRIVIAL, "trivial baselines"), (LEARNED, "learned baselines")]
    legend = colours if len(set(map(_colour, comparisons))) > 1 else []
    title = TITLES[key]
    better = "lower is better" if lower else "higher is better"
    rows = [Row("the model", metrics[key], MODEL)]
    rows += [Row(one.name, one.metrics[key], _colour(one)) for one in ranked]
    plot = draw_rows(rows, f"{title} ({better})", line=metrics[key].value)
    listed = "; ".join(f"{row.name} {number(row.value.value)}" for row in rows)
    values = Figure(
        "baselines", f"{title} of the model and of each baseline", f"{title}, {better}: {listed}.",
        plot.width, plot.height, plot.body, "Bars are 95 % intervals; the line is the model.", legend,
    )  # fmt: skip
    paired = [Row(one.name, one.difference, _colour(one)) for one in ranked]
    plot = draw_rows(paired, f"{title} of the model minus that of the baseline", line=0.0)
    side = "left" if lower else "right"
    listed = "; ".join(f"{row.name} {number(row.value.value)}" for row in paired)
    few = "" if any(math.isfinite(row.value.low) for row in paired) else " Groups are too few for intervals."
    differences = Figure(
        "differences", f"Paired differences of {title}", f"Model minus baseline: {listed}.",
        plot.width, plot.height, plot.body,
        f"{side.capitalize()} of the line the model is better. Bars are paired 95 % intervals: both are resampled "
        f"together; a bar that crosses the line shows no difference.{few}", legend[1:],
    )  # fmt: skip
    return [values, differences]
