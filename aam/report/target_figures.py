"""Figures of one target: predictions against the truth, and differences from baselines."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from aam.evaluate import metrics
from aam.evaluate.comparison import Outcome, best_constant, headline, outcome
from aam.evaluate.conformal import CONFORMAL_LEVEL
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import Interval, number, with_limits
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES, Array, sorted_levels
from aam.evaluate.predictions import TargetPredictions
from aam.predict.learning_curve import LearningCurve
from aam.report.charts import (
    DASHES,
    LIGHT,
    SOFT,
    Figure,
    IntervalRow,
    data,
    diagonal,
    drawn_rows,
    interval_chart,
    levels,
    lines,
    listed,
    points,
    sized,
    x_axis,
    y_axis,
)
from aam.report.report import ReportData
from aam.report.samples import sample_figures
from aam.report.tables import middle_cut

# Points of a curve: more are not seen.
MOST_STEPS = 200

# More classes than this are no picture, only a table.
MOST_CLASSES = 40

# Of more classes than these, cells have no room for numbers of samples, or for any text.
MOST_WITH_COUNTS, MOST_WITH_TEXT = 5, 8

# Longest name of a class in a legend.
LONGEST_NAME = 24

# What the test says of a difference, and its colour.
SHOWN: dict[Outcome, tuple[str, int]] = {
    "better": ("the model is better", 0),
    "close": ("the model is better", 0),
    "worse": ("the model is worse", 1),
    "not shown": ("no difference is shown", 8),
    "untested": ("not tested", 8),
}

SHARE = {"domain": [0, 1]}


def scatter_figure(complete: TargetPredictions, result: Evaluation) -> Figure:
    """Predicted against true values, coloured by batch, with conformal intervals."""
    names, part = result.names, complete.at(drawn_rows(len(complete.truth)))
    batches = (
        [] if complete.batch is None else [str(level) for level in sorted_levels(complete.batch)]
    )
    coloured = 1 < len(batches) <= len(LIGHT)
    known = {names.group: part.groups, names.batch: part.batch}
    rows = []
    for at, (sample, truth, predicted) in enumerate(
        zip(part.sample_ids, part.truth.tolist(), part.predicted.tolist(), strict=True)
    ):
        tip = f"{sample}: true {number(truth)}, predicted {number(predicted)}"
        tip += "".join(f", {name} {of[at]}" for name, of in known.items() if of is not None)
        low, high = (math.nan, math.nan) if part.limits is None else part.limits[at].tolist()
        batch = str(part.batch[at]) if coloured and part.batch is not None else ""
        rows.append(
            {"x": truth, "y": predicted, "low": low, "high": high, "batch": batch, "tip": tip}
        )
    colours = levels("batch", {name: at for at, name in enumerate(batches)}) if coloured else {}
    bars = alt.Chart(data(rows)).transform_filter("isValid(datum.low)")
    bars = bars.mark_rule(color=SOFT, opacity=0.28)
    caption = "Points on the dashed line are exact predictions."
    if any(math.isfinite(row["low"]) for row in rows):
        caption += (
            f" Vertical lines are {100 * CONFORMAL_LEVEL:.0f} % conformal intervals. They should "
            "contain that share of the true values."
        )
    if len(rows) < len(complete.truth):
        caption += f" A random {len(rows)} of {len(complete.truth)} samples are drawn."
    error = number(float(np.abs(complete.predicted - complete.truth).mean()))
    return Figure(
        "predicted",
        f"Predicted against true {names.target}",
        f"Scatter of {len(rows)} samples. Predictions differ from the truth by {error} on average.",
        sized(
            diagonal(float(complete.truth.min()), float(complete.truth.max())),
            bars.encode(alt.X("x:Q"), alt.Y("low:Q"), alt.Y2("high:Q")),
            points(
                rows, x_axis(f"true {names.target}"), y_axis(f"predicted {names.target}"), colours
            ),
        ),
        caption,
    )


def roc_figures(complete: TargetPredictions) -> list[Figure]:
    """ROC curves of the second class of two, or of each of few classes that occur."""
    # Imported here: it takes half a second, and few commands draw curves.
    from sklearn.metrics import roc_curve

    classes, binary = np.unique(complete.truth).tolist(), len(complete.labels) <= 2
    if len(classes) < 2 or (not binary and len(classes) > len(LIGHT)):
        return []
    curves = list[tuple[str, float, float]]()
    colours = dict[str, int]()
    for k in [1] if binary else classes:
        positive, score = complete.truth == k, complete.predicted[:, k]
        false, found, _ = roc_curve(positive, score, drop_intermediate=False)
        area = number(metrics.auroc(positive, score))
        name = f"{middle_cut(complete.labels[k], LONGEST_NAME)}: {area}"
        # Names that were cut may be equal.
        name = f"{name} ({k + 1})" if name in colours else name
        colours[name] = 0 if binary else k
        steps = min(len(false), MOST_STEPS)
        at = np.unique(np.linspace(0, len(false) - 1, steps).round().astype(int))
        curves += [(name, *xy) for xy in zip(false[at].tolist(), found[at].tolist(), strict=True)]
    which = f"The class is {complete.labels[1]}, the second of two. " if binary else ""
    title, pooled = "AUROC", ""
    if complete.cross_validated:
        title = "AUROC (pooled)"
        pooled = " Samples of all folds are pooled here; elsewhere AUROC is the mean over folds."
    drawn = lines(curves).encode(
        x=x_axis("false positive rate", **SHARE),
        y=y_axis("true positive rate", **SHARE),
        color=levels("series", colours)["color"].title(title),
    )
    return [
        Figure(
            "roc",
            "ROC curve",
            f"True positive rate against false positive rate. {title} of {'; '.join(colours)}.",
            sized(diagonal(0, 1), drawn),
            f"{which}Guessing follows the dashed line; the nearer a curve is to the upper left, "
            f"the better.{pooled}",
        )
    ]


def reliability_figure(complete: TargetPredictions) -> Figure:
    """Accuracy against the probability of the chosen class, with 95 % intervals (Wilson 1927)."""
    parts, z = metrics.reliability(complete.truth, complete.predicted), 1.96
    rows = []
    for level, x, y, count in parts.itertuples():
        centre = (y + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * (y * (1 - y) / count + z**2 / (4 * count**2)) ** 0.5
        tip = f"{level / 10:.1f} to {(level + 1) / 10:.1f}: {number(y)} of {count}"
        rows.append({"x": x, "y": y, "low": centre - half, "high": centre + half, "tip": tip})
    chart = alt.Chart(data(rows))
    intervals = chart.mark_rule(color=LIGHT[0], strokeWidth=1.5).encode(
        alt.X("x:Q"), alt.Y("low:Q"), alt.Y2("high:Q")
    )
    axes = (
        x_axis("probability of the chosen class", **SHARE),
        y_axis("share that is right", **SHARE),
    )
    return Figure(
        "reliability",
        "Reliability of the probabilities",
        f"Accuracy by predicted probability. {'; '.join(str(row['tip']) for row in rows)}.",
        sized(diagonal(0, 1), intervals, points(rows, *axes, {}, color=LIGHT[0], opacity=1)),
        "Each point is a tenth of the range of probabilities; bars are 95 % intervals for "
        "independent samples. Below the dashed line the model is too confident.",
    )


def confusion_figure(complete: TargetPredictions) -> Figure:
    """Confusion matrix: percentages of each true class, which shade the cells, and counts."""
    from sklearn.metrics import confusion_matrix

    labels = complete.labels
    chosen = complete.predicted.argmax(axis=1)
    counts = confusion_matrix(complete.truth, chosen, labels=range(len(labels)))
    sizes = counts.sum(axis=1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    with_counts = len(labels) <= MOST_WITH_COUNTS
    rows = _cells(labels, counts, shares, with_counts)
    axis: dict[str, Any] = {"ticks": False, "domain": False}
    across = alt.Axis(labelAngle=-60 if len(labels) > 2 else 0, labelLimit=110, **axis)
    chart = alt.Chart(data(rows)).encode(
        alt.X("predicted:N", sort=list(labels), title="predicted class", axis=across),
        alt.Y("true:N", sort=None, title="true class", axis=alt.Axis(labelLimit=150, **axis)),
    )
    legend = None
    if len(labels) > MOST_WITH_TEXT:
        symbols: dict[str, Any] = {"symbolFillColor": LIGHT[0], "symbolStrokeWidth": 0}
        legend = alt.Legend(
            title="share of the true class", values=[0.1, 0.5, 1.0], format=".0%", **symbols
        )
    shade = alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0, 0.75]), legend=legend)
    cells = chart.mark_rect(aria=True, color=LIGHT[0]).encode(
        alt.Description("tip:N"), opacity=shade
    )
    layers = [cells]
    if len(labels) <= MOST_WITH_TEXT:
        layers.append(chart.mark_text(yOffset=-8 * with_counts).encode(alt.Text("percent:N")))
    if with_counts:
        layers.append(chart.mark_text(yOffset=9).encode(alt.Text("count:N")))
    right = ", ".join(f"{label} {100 * shares[k, k]:.0f} %" for k, label in enumerate(labels))
    return Figure(
        "confusion",
        "True and predicted class",
        f"Share of each class that is right: {right}.",
        sized(*layers),
        "Each row is a true class, with the percentage of its samples by predicted class.",
        labels,
    )


def _cells(
    labels: Sequence[str], counts: Array, shares: Array, with_counts: bool
) -> list[dict[str, object]]:
    """Cells of a confusion matrix [K, K]."""
    sizes = counts.sum(axis=1)
    rows = list[dict[str, object]]()
    for row, column in np.ndindex(*counts.shape):
        share, count = float(shares[row, column]), int(counts[row, column])
        called = f"{labels[row]} called {labels[column]}"
        rows.append(
            {
                "true": labels[row] if with_counts else f"{labels[row]} ({sizes[row]})",
                "predicted": labels[column],
                "share": share,
                "percent": f"{100 * share:.0f} %",
                "count": f"n = {count}",
                "tip": f"{called}: {count} of {sizes[row]}, {100 * share:.0f} %",
            }
        )
    return rows


def differences_figure(result: Evaluation) -> list[Figure]:
    """Forest plot of the paired differences; bars and colours show the results of the tests."""
    key = headline(result.predictions.labels)
    constant = best_constant(result.comparisons)
    if constant is None:
        return []
    sign, title = (1 if key in LOWER_IS_BETTER else -1), TITLES[key]
    ranked = sorted(result.comparisons, key=lambda comparison: sign * comparison.metrics[key].value)
    shown = [SHOWN[outcome(comparison, constant)] for comparison in ranked]
    rows = [
        IntervalRow(comparison.name, comparison.tested_difference, colour)
        for comparison, (_, colour) in zip(ranked, shown, strict=True)
    ]
    legend = [(colour, words) for words, colour in dict.fromkeys(shown)]
    return [
        Figure(
            "differences",
            f"Differences of {title} from baselines",
            f"Model minus baseline: {listed(rows)}.",
            interval_chart(rows, f"{title}, model minus baseline", 0.0, legend),
            f"{'Left' if sign > 0 else 'Right'} of the line the model is better; if a bar includes "
            "it, no difference is shown. Bars have the level of the test.",
        )
    ]


def new_studies_figures(result: Evaluation) -> list[Figure]:
    """Forest plot of the studies that were held out whole, if they were, with their mean."""
    new, name = result.new_studies, result.names.batch
    if new is None:
        return []
    rows = [IntervalRow("mean over studies", Interval(new.mean))]
    rows += [
        IntervalRow(study, value, 1, f"{with_limits(value)}, n = {samples}")
        for study, (samples, value) in new.studies.items()
    ]
    title = TITLES[new.metric]
    return [
        Figure(
            "new-studies",
            f"{title} in each {name}, held out whole",
            f"{title}: {listed(rows)}.",
            interval_chart(rows, title, new.mean),
            f"Each {name} was predicted by a model that saw none of its samples. Bars are 95 % "
            "intervals, the line is the mean.",
        )
    ]


@functools.lru_cache(maxsize=32)
def target_figures(result: Evaluation) -> list[Figure]:
    """Figures of a target, the most important first; none if no sample has truth and prediction.

    They are drawn once for the page and for the files.
    """
    complete = result.predictions.complete()
    if not len(complete.truth):
        return []
    compared = [*new_studies_figures(result), *differences_figure(result)]
    if not complete.labels:
        return [scatter_figure(complete, result), *compared]
    matrix = [confusion_figure(complete)] if len(complete.labels) <= MOST_CLASSES else []
    return [*roc_figures(complete), *matrix, *compared, reliability_figure(complete)]


def learning_curve_figure(curve: LearningCurve, name: str) -> Figure:
    """The metric by the number of training groups, values of `name`, and its power law."""
    title, most = TITLES[curve.metric], 2 * float(curve.points["groups"].iloc[-1])
    rows = [
        {
            "x": row.groups,
            "y": row.value,
            "low": row.low,
            "high": row.high,
            "tip": f"{row.groups:.0f} groups: {number(row.value)}",
        }
        for row in curve.points.itertuples()
    ]
    chart = alt.Chart(data(rows))
    bars = chart.mark_rule(color=LIGHT[0], strokeWidth=1.5).encode(
        alt.X("x:Q"), alt.Y("low:Q"), alt.Y2("high:Q")
    )
    sizes = np.linspace(float(curve.points["groups"].iloc[0]), most, MOST_STEPS // 4)
    law = [("", size, curve.expected(size).value) for size in sizes.tolist()]
    axes = x_axis(f"training groups ({name})"), y_axis(title)
    layers = [bars, points(rows, *axes, {}, color=LIGHT[0], opacity=1)]
    if math.isfinite(law[0][2]):
        layers.insert(0, lines(law, color=SOFT, strokeWidth=1.2, strokeDash=DASHES))
    return Figure(
        "learning-curve",
        f"{title} by the number of training groups",
        f"{title}: {'; '.join(str(row['tip']) for row in rows)}.",
        sized(*layers),
        " ".join(
            [
                "Points are means over draws of groups, bars 95 % intervals. The dashed line is a "
                "power law, drawn to twice as many.",
                *curve.sentences(name),
            ]
        ),
    )


def figures_of(results: ReportData, result: Evaluation) -> list[Figure]:
    """All figures of a target of a report."""
    curve = results.learning_curves.get(result.names.target)
    drawn = [] if curve is None else [learning_curve_figure(curve, result.names.group)]
    return [*target_figures(result), *drawn, *sample_figures(result, results.around)]
