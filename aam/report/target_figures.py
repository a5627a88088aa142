"""All figures of one target: predictions against the truth, differences from baselines, errors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import numpy as np

from aam.evaluate import metrics
from aam.evaluate.comparison import Outcome, best_constant, headline, outcome
from aam.evaluate.conformal import CONFORMAL_LEVEL, tenths
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import Interval, number, with_limits
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES, Array, sorted_levels
from aam.evaluate.target_predictions import TargetPredictions
from aam.report.charts import (
    INK,
    LIGHT,
    SOFT,
    Chart,
    Figure,
    IntervalRow,
    data,
    diagonal,
    drawn_rows,
    in_legend,
    interval_chart,
    levels,
    lines,
    listed,
    points,
    shades_legend,
    sized,
    x_axis,
    y_axis,
)

# Points of a curve: more are not seen.
MOST_STEPS = 200

# More classes than this are no picture, only a table.
MOST_CLASSES = 40

# Of more classes than these, cells have no room for numbers of samples, or for any text.
MOST_WITH_COUNTS, MOST_WITH_TEXT = 5, 8

# What the test says of a difference, and its colour.
SHOWN: dict[Outcome, tuple[str, int]] = {
    "better": ("the model is better", 0),
    "close": ("the model is better", 0),
    "worse": ("the model is worse", 1),
    "not shown": ("no difference is shown", 8),
    "untested": ("not tested", 8),
}

SHARE = {"domain": [0, 1]}

# Name of a curve, x and y.
CurvePoint = tuple[str, float, float]


# --- numbers -----------------------------------------------------------------------------------


def scatter_figure(complete: TargetPredictions, result: Evaluation) -> Figure:
    """Return predicted against true values, in colours of batches, with conformal intervals where
    there are some.
    """
    names, rows = result.names, drawn_rows(len(complete.truth))
    part = complete.at(rows)
    batches = (
        [] if complete.batch is None else [str(level) for level in sorted_levels(complete.batch)]
    )
    coloured = 1 < len(batches) <= len(LIGHT)
    shared = {names.group: part.groups, names.batch: part.batch}
    known = {name: values for name, values in shared.items() if values is not None}
    rows_of_points = [
        {
            "x": truth,
            "y": predicted,
            "batch": str(part.batch[at]) if coloured and part.batch is not None else "",
            "tip": f"{sample}: true {number(truth)}, predicted {number(predicted)}"
            + "".join(f", {name} {values[at]}" for name, values in known.items()),
        }
        for at, (sample, truth, predicted) in enumerate(
            zip(part.sample_ids, part.truth.tolist(), part.predicted.tolist(), strict=True)
        )
    ]
    colours = levels("batch", {name: at for at, name in enumerate(batches)}) if coloured else {}
    layers = [diagonal(float(complete.truth.min()), float(complete.truth.max()))]
    bounded = (
        np.empty(0, int)
        if part.limits is None
        else np.flatnonzero(np.isfinite(part.limits).all(axis=1))
    )
    if part.limits is not None and len(bounded):
        limits = zip(part.truth[bounded].tolist(), *part.limits[bounded].T.tolist(), strict=True)
        bars = alt.Chart(data({"x": x, "low": low, "high": high} for x, low, high in limits))
        bars = bars.mark_rule(color=SOFT, opacity=0.28)
        layers.append(bars.encode(alt.X("x:Q"), alt.Y("low:Q"), alt.Y2("high:Q")))
    axes = x_axis(f"true {names.target}"), y_axis(f"predicted {names.target}")
    layers.append(points(rows_of_points, *axes, colours))
    caption = "On the dashed line a prediction is right."
    if len(bounded):
        caption += f" Vertical lines are {100 * CONFORMAL_LEVEL:.0f} % conformal intervals."
        caption += " They are made to hold that share of the true values."
    if len(rows) < len(complete.truth):
        caption += f" A random {len(rows)} of {len(complete.truth)} samples are drawn."
    ends = [
        f"{number(float(v.min()))} to {number(float(v.max()))}"
        for v in (complete.truth, complete.predicted)
    ]
    error = number(float(np.abs(complete.predicted - complete.truth).mean()))
    by = f" Points are coloured by {names.batch}." if coloured else ""
    return Figure(
        "predicted",
        f"Predicted against true {names.target}",
        f"Scatter of {len(rows)} samples. True values run from {ends[0]}, predictions from "
        f"{ends[1]}; they differ by "
        f"{error} on average.{by}",
        sized(*layers),
        caption,
    )


def tenths_figure(complete: TargetPredictions, target: str) -> list[Figure]:
    """Return the errors in each tenth of the true values: median, middle half and 5 to 95 %; none
    for few samples.
    """
    part_of = tenths(complete.truth)
    parts = sorted(
        np.unique(part_of), key=lambda name: float(np.median(complete.truth[part_of == name]))
    )
    if len(parts) < 3:
        return []
    errors = complete.predicted - complete.truth
    rows = []
    for at, name in enumerate(parts, 1):
        low, first, middle, third, high = np.quantile(
            errors[part_of == name], [0.05, 0.25, 0.5, 0.75, 0.95]
        ).tolist()
        tip = f"true {name}: median error {number(middle)}"
        rows.append(
            {
                "x": at,
                "low": low,
                "first": first,
                "y": middle,
                "third": third,
                "high": high,
                "tip": tip,
            }
        )
    chart = alt.Chart(data(rows))
    axes = {
        "x": alt.X("x:O", title="tenth of the true values, low to high").axis(
            labelAngle=0, labelAlign="center", labelBaseline="top"
        ),
        "y": y_axis("predicted minus true"),
    }
    zero = alt.Chart(data([{"y": 0}])).mark_rule(color=INK, strokeWidth=1.2).encode(alt.Y("y:Q"))
    outer = chart.mark_rule(color=LIGHT[0], strokeWidth=1.5).encode(
        alt.X("x:O"), alt.Y("low:Q"), alt.Y2("high:Q")
    )
    inner = chart.mark_rule(color=LIGHT[0], strokeWidth=9, opacity=0.55).encode(
        alt.X("x:O"), alt.Y("first:Q"), alt.Y2("third:Q")
    )
    marks = chart.mark_point(aria=True, color=LIGHT[1], shape="square", opacity=1)
    medians = marks.encode(alt.Description("tip:N"), **axes)
    medians_by_tenth = "; ".join(
        str(row["tip"]).removeprefix("true ").replace("median error ", "") for row in rows
    )
    return [
        Figure(
            "errors-by-tenth",
            f"Errors along the range of {target}",
            f"Median of predicted minus true by tenth. {medians_by_tenth}.",
            sized(zero, outer, inner, medians),
            "Points are medians, thick bars the middle half, thin lines 5 to 95 % of the "
            "samples. Above the line the "
            "model predicts too much, below it too little.",
        )
    ]


# --- classes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """Points of curves by their name in a legend, and the colour of each name."""

    points: list[CurvePoint] = field(default_factory=list)
    colours: dict[str, int] = field(default_factory=dict)

    def drawn(self, axes: tuple[Any, Any], title: str, **mark: object) -> Chart:
        """Draw the curves."""
        colour = levels("series", self.colours)["color"].title(title)
        return lines(self.points, **mark).encode(x=axes[0], y=axes[1], color=colour)


def _points(series: str, x: Array, y: Array) -> list[CurvePoint]:
    """Return at most `MOST_STEPS` points of a curve, the first and the last among them."""
    at = np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_STEPS)).round().astype(int))
    return [(series, *point) for point in zip(x[at].tolist(), y[at].tolist(), strict=True)]


def _threshold_curves(complete: TargetPredictions, classes: list[int]) -> list[Curves]:
    """Return the ROC and the precision-recall curves of classes, and the lines of guessing."""
    # Imported here: it takes half a second, and few commands draw curves.
    from sklearn.metrics import roc_curve

    roc, recall, chance = Curves(), Curves(), Curves()
    for k in classes:
        positive, score, label = complete.truth == k, complete.predicted[:, k], complete.labels[k]
        colour, share = k if len(complete.labels) > 2 else 0, float(positive.mean())
        false, found, _ = roc_curve(positive, score, drop_intermediate=False)
        precision = found[1:] * share / (found[1:] * share + false[1:] * (1 - share))
        average = float(np.diff(found) @ precision)
        area = in_legend(label, f": {number(metrics.auroc(positive, score))}")
        mean = in_legend(label, f": {number(average)}, guessing {number(share)}")
        # Names that were cut may be one.
        area, mean = (
            f"{text} ({k + 1})" if text in {*roc.colours, *recall.colours} else text
            for text in (area, mean)
        )
        roc.colours[area] = recall.colours[mean] = chance.colours[mean] = colour
        roc.points.extend(_points(area, false, found))
        recall.points.extend(_points(mean, found[1:], precision))
        chance.points.extend([(mean, 0.0, share), (mean, 1.0, share)])
    return [roc, recall, chance]


def threshold_figures(complete: TargetPredictions) -> list[Figure]:
    """Return the ROC and the precision-recall curves of the second class of two, or of each of few
    that occurs.
    """
    classes, binary = np.unique(complete.truth).tolist(), len(complete.labels) <= 2
    if len(classes) < 2 or (not binary and len(classes) > len(LIGHT)):
        return []
    roc, recall, chance = _threshold_curves(complete, [1] if binary else classes)
    pooled = " (pooled)" if complete.cross_validated else ""
    folds = (
        " Samples of all folds are pooled here; without that word, AUROC and AUPRC are means "
        "over folds."
    )
    folds = folds if pooled else ""
    which = (
        f"The class is {complete.labels[1]}, the second of two. "
        if len(complete.labels) == 2
        else ""
    )
    rates = (
        x_axis("share of the others taken for the class", **SHARE),
        y_axis("share of the class that is found", **SHARE),
    )
    axes = x_axis("recall", **SHARE), y_axis("precision", **SHARE)
    area, mean = f"AUROC{pooled}", f"AUPRC{pooled}"
    dashes = chance.drawn(axes, mean, strokeWidth=1.2, strokeDash=[5, 4], opacity=0.7)
    return [
        Figure(
            "roc",
            "ROC curve",
            f"Share of a class that is found against false alarms. {area} of "
            f"{'; '.join(roc.colours)}.",
            sized(diagonal(0, 1), roc.drawn(rates, area)),
            f"{which}Guessing follows the dashed line; the nearer a curve is to the upper left, "
            f"the better.{folds}",
        ),
        Figure(
            "precision-recall",
            "Precision and recall",
            f"Precision against recall. {mean} of {'; '.join(recall.colours)}.",
            sized(dashes, recall.drawn(axes, mean)),
            f"{which}Guessing follows the dashed lines: the share of the class.{folds}",
        ),
    ]


def reliability_figure(complete: TargetPredictions) -> Figure:
    """Return accuracy against the probability of the chosen class, with 95 % intervals (Wilson
    1927).
    """
    parts, z = metrics.reliability(complete.truth, complete.predicted), 1.96
    largest = max((count for count, _ in parts.values()), default=1)
    rows = []
    for name, (count, values) in parts.items():
        x, y, low = values["confidence"], values["accuracy"], float(name.partition(" ")[0])
        centre = (y + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * (y * (1 - y) / count + z**2 / (4 * count**2)) ** 0.5
        rows.append(
            {
                "x": x,
                "y": y,
                "low": max(centre - half, 0.0),
                "high": min(centre + half, 1.0),
                "start": low + 0.01,
                "end": low + 0.09,
                "share": count / largest / 7,
                "tip": f"probability {name}: {number(y)} of {count} samples right",
            }
        )
    chart = alt.Chart(data(rows))
    # A histogram of the samples along the bottom, a seventh of the height at most.
    samples = chart.mark_rect(color=SOFT, opacity=0.25).encode(
        alt.X("start:Q"), alt.X2("end:Q"), alt.Y("share:Q"), alt.Y2Datum(0)
    )
    intervals = chart.mark_rule(color=LIGHT[0], strokeWidth=1.5).encode(
        alt.X("x:Q"), alt.Y("low:Q"), alt.Y2("high:Q")
    )
    marks = chart.mark_point(aria=True, color=LIGHT[0], opacity=1).encode(
        x_axis("probability of the chosen class", **SHARE),
        y_axis("share that is right", **SHARE),
        alt.Description("tip:N"),
    )
    shares = "; ".join(
        f"{name}: {number(values['accuracy'])} of {count}"
        for name, (count, values) in parts.items()
    )
    return Figure(
        "reliability",
        "Reliability of the probabilities",
        f"Share that is right by probability. {shares}.",
        sized(samples, diagonal(0, 1), intervals, marks),
        "On the dashed line probabilities are what they say; below it the model is too sure of "
        "itself. Each point is "
        "the samples of one tenth; its bar, a 95 % interval, counts them as independent, also "
        "those of one group. "
        "Grey columns show how many samples there are.",
    )


def _confusion_cells(
    labels: Sequence[str], true: Sequence[str], counts: Array, shares: Array
) -> list[dict[str, object]]:
    """Return one row for each cell of a confusion matrix."""
    rows = list[dict[str, object]]()
    for row, column in np.ndindex(*counts.shape):
        percent, count = f"{100 * float(shares[row, column]):.0f} %", int(counts[row, column])
        called = f"{labels[row]} called {labels[column]}"
        rows.append(
            {
                "true": true[row],
                "predicted": labels[column],
                "share": float(shares[row, column]),
                "percent": percent,
                "count": f"n = {count}",
                "tip": f"{called}: {count} of {counts[row].sum()}, {percent}",
            }
        )
    return rows


def confusion_figure(complete: TargetPredictions) -> Figure:
    """Return the confusion matrix: per cent of each true class, which shade the cells, and numbers
    of samples.
    """
    from sklearn.metrics import confusion_matrix

    labels = complete.labels
    counts = confusion_matrix(
        complete.truth, complete.predicted.argmax(axis=1), labels=range(len(labels))
    )
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    with_counts = len(labels) <= MOST_WITH_COUNTS
    true = [
        label if with_counts else f"{label} ({n})"
        for label, n in zip(labels, counts.sum(axis=1), strict=True)
    ]
    axis: dict[str, Any] = {"ticks": False, "domain": False, "labelLimit": 110}
    angle = -60 if len(labels) > 2 else 0
    chart = alt.Chart(data(_confusion_cells(labels, true, counts, shares))).encode(
        alt.X(
            "predicted:N",
            sort=list(labels),
            title="predicted class",
            axis=alt.Axis(labelAngle=angle, **axis),
        ),
        alt.Y("true:N", sort=true, title="true class", axis=alt.Axis(**axis | {"labelLimit": 150})),
    )
    shade = alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0, 0.75]), legend=None)
    if len(labels) > MOST_WITH_TEXT:
        shade = shade.legend(
            shades_legend("share of the true class", [0.1, 0.5, 1.0], ".0%", LIGHT[0])
        )
    layers = [
        chart.mark_rect(aria=True, color=LIGHT[0]).encode(alt.Description("tip:N"), opacity=shade)
    ]
    if len(labels) <= MOST_WITH_TEXT:
        layers.append(
            chart.mark_text(yOffset=-8 if with_counts else 0).encode(alt.Text("percent:N"))
        )
    if with_counts:
        layers.append(chart.mark_text(yOffset=9).encode(alt.Text("count:N")))
    right = ", ".join(f"{labels[k]} {100 * float(shares[k, k]):.0f} %" for k in range(len(labels)))
    return Figure(
        "confusion",
        "True and predicted class",
        f"Share of each class that is right: {right}.",
        sized(*layers),
        "Each row is a true class, and the per cent of its samples that are called each class.",
        labels,
    )


# --- both --------------------------------------------------------------------------------------


def differences_figure(result: Evaluation) -> list[Figure]:
    """Return the forest plot of the paired differences, in which bars and colours say what the
    tests say.
    """
    key = headline(result.predictions.labels)
    constant = best_constant(result.comparisons, key)
    if constant is None:
        return []
    lower, title = key in LOWER_IS_BETTER, TITLES[key]
    ranked = sorted(
        result.comparisons, key=lambda one: one.metrics[key].value * (1 if lower else -1)
    )
    shown = [SHOWN[outcome(one, constant, key)] for one in ranked]
    rows = [
        IntervalRow(one.name, one.tested_difference, colour)
        for one, (_, colour) in zip(ranked, shown, strict=True)
    ]
    few = (
        ""
        if any(math.isfinite(row.value.low) for row in rows)
        else " Groups are too few for intervals."
    )
    legend = {colour: words for words, colour in shown}
    return [
        Figure(
            "differences",
            f"Differences of {title} from baselines",
            f"Model minus baseline: {listed(rows)}.",
            interval_chart(rows, f"{title}, model minus baseline", 0.0, list(legend.items())),
            f"{'Left' if lower else 'Right'} of the line the model is better; where a bar holds "
            "it, no difference is "
            f"shown. Bars are intervals of the level of the test.{few}",
        )
    ]


def new_studies_figures(result: Evaluation) -> list[Figure]:
    """Forest plot of the studies that were held out whole, if they were, with their mean."""
    new, name = result.new_studies, result.names.batch
    if new is None:
        return []
    mean = new.mean
    rows = [IntervalRow("mean over studies", Interval(mean))]
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
            interval_chart(rows, title, mean),
            f"Each {name} was predicted by a model that saw none of its samples. Bars are 95 % "
            "intervals, the line is the mean.",
        )
    ]


@functools.lru_cache(maxsize=32)
def target_figures(result: Evaluation) -> list[Figure]:
    """Return the figures of a target, the most important first; none where no sample has truth and
    prediction.

    They are drawn once for the page and for the files.
    """
    complete = result.predictions.complete()
    if not len(complete.truth):
        return []
    compared = [*new_studies_figures(result), *differences_figure(result)]
    if complete.labels:
        curves = threshold_figures(complete)
        matrix = [confusion_figure(complete)] if len(complete.labels) <= MOST_CLASSES else []
        return [*curves[:1], *matrix, *compared, *curves[1:], reliability_figure(complete)]
    scatter = scatter_figure(complete, result)
    return [scatter, *compared, *tenths_figure(complete, result.names.target)]
