"""Figures of a report: predictions against the truth, comparisons, learning, losses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from aam.engine.logger import METRICS, Record
from aam.evaluate import metrics
from aam.evaluate.comparison import Outcome, best_constant, outcome
from aam.evaluate.conformal import CONFORMAL_LEVEL
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import number
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES, sorted_levels
from aam.evaluate.predictions import TargetPredictions
from aam.predict.learning_curve import LearningCurve
from aam.report import charts
from aam.report.charts import LIGHT, Figure, IntervalRow
from aam.report.residuals import calibration, residual_figure
from aam.typing import Array

# Points of the curve of a power law.
LAW_POINTS = 50

# More classes than these are no picture, or have no room for text in the cells.
MOST_CLASSES, MOST_WITH_TEXT = 40, 8

# Sizes of the text in cells of few and of many classes, and room for the labels of a wider font.
CELL_TEXT, SMALL_CELL_TEXT, WIDER_FONT = 13, 10, 20

# Longest name of a class in a legend.
LONGEST_LABEL = 24

# What the test says of a difference, and its colour.
OUTCOME_WORDS: dict[Outcome, tuple[str, int]] = {
    "better": ("the model is better", 0),
    "close": ("the model is better", 0),
    "worse": ("the model is worse", 1),
    "not shown": ("no difference is shown", 8),
    "untested": ("not tested", 8),
}

# Parts of the predictions whose intervals make the band.
BAND_PARTS = 20

SHARE_SCALE = {"domain": [0, 1]}


# --- predictions -------------------------------------------------------------------------------


def _colours_of(values: Array | None) -> dict[str, int]:
    """The colour of each level of `values`, if there are several and enough colours."""
    kinds = [] if values is None else [str(level) for level in sorted_levels(values)]
    return {kind: at for at, kind in enumerate(kinds)} if 1 < len(kinds) <= len(LIGHT) else {}


def interval_band(complete: TargetPredictions) -> list[dict[str, float]]:
    """Mean limits of the conformal intervals by part of the predictions: ``y``, the prediction, and
    ``low`` and ``high``, values of the truth; nothing without intervals.
    """
    if complete.limits is None:
        return []
    limits = np.column_stack([complete.predicted, complete.limits])
    frame = pd.DataFrame(limits, columns=["y", "low", "high"]).dropna()
    if len(frame) < 2:
        return []
    parts = pd.qcut(frame["y"], min(BAND_PARTS, len(frame)), duplicates="drop")
    means = frame.groupby(parts, observed=True).mean()
    return means.to_dict("records") if len(means) > 1 else []


def scatter_figure(result: Evaluation) -> Figure:
    """Predicted against true values, coloured by batch, with conformal intervals."""
    names, complete = result.names, result.complete
    part = complete.at(charts.drawn_rows(len(complete.truth)))
    colours, rows = _colours_of(complete.batch), list[dict[str, Any]]()
    for at, sample in enumerate(part.sample_ids):
        truth, predicted = float(part.truth[at]), float(part.predicted[at])
        tip = f"{sample}: true {number(truth)}, predicted {number(predicted)}"
        for name, values in ((names.group, part.groups), (names.batch, part.batch)):
            tip += "" if values is None else f", {name} {values[at]}"
        batch = "" if part.batch is None else str(part.batch[at])
        rows.append({"x": truth, "y": predicted, "batch": batch, "tip": tip})
    caption = "Points on the dashed line are exact predictions."
    band = interval_band(complete)
    if band:
        share = f"{100 * CONFORMAL_LEVEL:.0f} %"
        caption += (
            f" The band is the {share} conformal interval: about {share} of points lie in it."
        )
    if len(rows) < len(complete.truth):
        caption += f" A random {len(rows)} of {len(complete.truth)} samples are drawn."
    axes = charts.x_axis(f"true {names.target}"), charts.y_axis(f"predicted {names.target}")
    diagonal = charts.diagonal(float(complete.truth.min()), float(complete.truth.max()))
    marks = charts.points(rows, axes, charts.levels("batch", colours) if colours else {})
    return Figure(
        "predicted",
        f"Predicted against true {names.target}",
        charts.sized(charts.band(band, **charts.INTERVAL), diagonal, marks),
        caption,
    )


def roc_figures(complete: TargetPredictions) -> list[Figure]:
    """ROC curves of the second class of two, or of each of few classes that occur."""
    # Imported here: it takes half a second, and few commands draw curves.
    from sklearn.metrics import roc_curve

    classes, binary = np.unique(complete.truth).tolist(), len(complete.labels) <= 2
    if len(classes) < 2 or (not binary and len(classes) > len(LIGHT)):
        return []
    curves, colours = list[tuple[str, float, float]](), dict[str, int]()
    for k in [1] if binary else classes:
        positive, score = complete.truth == k, complete.predicted[:, k]
        false_rate, true_rate, _ = roc_curve(positive, score)
        area = number(metrics.auroc(positive, score))
        name = f"{charts.middle_cut(complete.labels[k], LONGEST_LABEL)}: {area}"
        # Names that were cut may be equal.
        name = f"{name} ({k + 1})" if name in colours else name
        colours[name] = 0 if binary else k
        curves += [(name, x, y) for x, y in zip(false_rate, true_rate, strict=True)]
    title, caption = "AUROC", "Guessing follows the dashed line."
    if binary:
        caption = f"The class is {complete.labels[1]}, the second of two. {caption}"
    if complete.cross_validated:
        title = "AUROC (pooled)"
        caption += " Samples of all folds are pooled here; elsewhere AUROC is the mean over folds."
    drawn = charts.lines(curves).encode(
        x=charts.x_axis("false positive rate", **SHARE_SCALE),
        y=charts.y_axis("true positive rate", **SHARE_SCALE),
        color=charts.levels("series", colours)["color"].title(title),
    )
    return [Figure("roc", "ROC curve", charts.sized(charts.diagonal(0, 1), drawn), caption)]


def reliability_figure(complete: TargetPredictions) -> Figure:
    """Accuracy against the probability of the chosen class, with 95 % intervals over groups."""
    rows = list[dict[str, Any]]()
    for level, x, right, count in calibration(complete).itertuples():
        tip = f"{level / 10:.1f} to {(level + 1) / 10:.1f}: {number(right.value)} of {count}"
        limits = {"low": right.low, "high": right.high}
        rows.append({"x": x, "y": right.value, **limits, "tip": tip})
    axes = (
        charts.x_axis("probability of the chosen class", **SHARE_SCALE),
        charts.y_axis("share right", **SHARE_SCALE),
    )
    marks = charts.points(rows, axes, {}, color=LIGHT[0], opacity=1)
    return Figure(
        "reliability",
        "Reliability of the probabilities",
        charts.sized(
            charts.diagonal(0, 1), charts.bars(rows, color=LIGHT[0], strokeWidth=1.5), marks
        ),
        "Each point is a tenth of the range of probabilities; bars are 95 % intervals over groups. "
        "Below the dashed line the model is too confident.",
    )


def confusion_figure(complete: TargetPredictions) -> Figure:
    """Confusion matrix: percentages of each true class, which shade the cells."""
    from sklearn.metrics import confusion_matrix

    labels, chosen = complete.labels, complete.predicted.argmax(axis=1)
    counts = confusion_matrix(complete.truth, chosen, labels=range(len(labels)))
    sizes, rows = counts.sum(axis=1).tolist(), list[dict[str, object]]()
    shares = counts / counts.sum(axis=1, keepdims=True).clip(1)
    with_text = len(labels) <= MOST_WITH_TEXT
    for (row, column), count in np.ndenumerate(counts):
        true, predicted, share = labels[row], labels[column], float(shares[row, column])
        tip = f"{true} called {predicted}: {count} of {sizes[row]}, {100 * share:.0f} %"
        text = f"{count}\n{100 * share:.0f} %"
        texts = {"true": f"{true} ({sizes[row]})", "text": text, "tip": tip}
        rows.append({"predicted": predicted, "share": share, **texts})
    # Readers may have a wider font than the one for which the axes are laid out.
    bare: dict[str, Any] = {"ticks": False, "domain": False, "titlePadding": WIDER_FONT}
    across = alt.Axis(labelAngle=-60 if len(labels) > 2 else 0, labelLimit=110, **bare)
    chart = alt.Chart(charts.data(rows)).encode(
        alt.X("predicted:N", sort=list(labels), title="predicted class", axis=across),
        alt.Y("true:N", sort=None, title="true class", axis=alt.Axis(labelLimit=150, **bare)),
    )
    symbols: dict[str, Any] = {"symbolFillColor": LIGHT[0], "symbolStrokeWidth": 0}
    symbols |= {"title": "share of the true class", "values": [0.1, 0.5, 1.0], "format": ".0%"}
    scale = alt.Scale(domain=[0, 1], range=[0, 0.75])
    shade = alt.Opacity("share:Q", scale=scale, legend=None if with_text else alt.Legend(**symbols))
    cells = chart.mark_rect(aria=True, color=LIGHT[0])
    layers = [cells.encode(alt.Description("tip:N"), opacity=shade)]
    if with_text:
        size = CELL_TEXT if len(labels) <= MOST_WITH_TEXT // 2 else SMALL_CELL_TEXT
        text = chart.mark_text(lineBreak="\n", dy=-size / 2, fontSize=size)
        layers.append(text.encode(alt.Text("text:N")))
    return Figure(
        "confusion",
        "True and predicted class",
        charts.sized(*layers),
        "Each row is a true class, with the number of its samples, in all and by predicted class.",
    )


def differences_figure(result: Evaluation) -> list[Figure]:
    """Forest plot of the paired differences; bars and colours show the results of the tests."""
    constant = best_constant(result.comparisons)
    if constant is None:
        return []
    rows, legend, title = [], dict[int, str](), TITLES[constant.key]
    for comparison in sorted(result.comparisons, key=lambda rival: rival.loss()):
        words, colour = OUTCOME_WORDS[outcome(comparison, constant)]
        legend[colour] = words
        rows.append(IntervalRow(comparison.name, comparison.tested_difference, colour))
    side = "Left" if constant.key in LOWER_IS_BETTER else "Right"
    axis = f"{title}, model minus baseline"
    return [
        Figure(
            "differences",
            f"Differences of {title} from baselines",
            charts.interval_chart(rows, axis, 0.0, list(legend.items())),
            f"{side} of the line the model is better; if a bar includes it, no difference is "
            "shown. Bars have the level of the test.",
        )
    ]


def target_figures(result: Evaluation) -> list[Figure]:
    """Figures of a target, the most important first; none if no sample has truth and prediction."""
    complete = result.complete
    if not len(complete.truth):
        return []
    compared = differences_figure(result)
    if not complete.labels:
        return [scatter_figure(result), *residual_figure(result), *compared]
    matrix = [confusion_figure(complete)] if len(complete.labels) <= MOST_CLASSES else []
    return [*roc_figures(complete), *matrix, *compared, reliability_figure(complete)]


def learning_curve_figure(curve: LearningCurve, name: str) -> Figure:
    """The metric by the number of training groups, values of `name`, and its power law."""
    title, rows, points = TITLES[curve.metric], list[dict[str, Any]](), curve.points
    for row in points.itertuples():
        tip = f"{row.groups:.0f} groups: {number(row.value)}"
        limits = {"low": row.low, "high": row.high}
        rows.append({"x": row.groups, "y": row.value, "tip": tip, **limits})
    ends = float(points["groups"].iloc[0]), 2 * float(points["groups"].iloc[-1])
    sizes = np.linspace(*ends, LAW_POINTS).tolist()
    law = [("", size, curve.expected(size).value) for size in sizes]
    axes = charts.x_axis(f"training groups ({name})"), charts.y_axis(title)
    layers = [charts.lines(law, **charts.DASHED)] if math.isfinite(law[0][2]) else []
    layers.append(charts.bars(rows, color=LIGHT[0], strokeWidth=1.5))
    about = (
        "Points are means over draws of groups, bars 95 % intervals. The dashed line is a power "
        "law, drawn to twice as many."
    )
    return Figure(
        "learning-curve",
        f"{title} by the number of training groups",
        charts.sized(*layers, charts.points(rows, axes, {}, color=LIGHT[0], opacity=1)),
        " ".join([about, *curve.sentences(name)]),
    )


# --- losses ------------------------------------------------------------------------------------


def read_epochs(folder: Path) -> list[Record]:
    """Return the records of epochs of a run; none where it has no metrics.jsonl.

    Losses of a run with targets are those of the targets, which decide on the epoch: its training
    loss also holds what pretraining learns from.
    """
    path = folder / METRICS
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    complete_lines = (line for line in text.splitlines(keepends=True) if line.endswith("\n"))
    records = [
        record for record in map(json.loads, complete_lines) if record.get("event") == "epoch"
    ]
    for record in records:
        target_losses = [
            name[4:] for name in record if name.startswith(("val_target", "val_label"))
        ]
        if target_losses and all(f"train_{name}" in record for name in target_losses):
            for kind in ("train", "val"):
                losses = (float(record[f"{kind}_{name}"]) for name in target_losses)
                record[f"{kind}_loss"] = sum(losses)
    return records


def loss_figures(runs: Mapping[str, Sequence[Record]]) -> list[Figure]:
    """Return the loss in training and validation by epoch; points mark the epochs that were kept.

    `runs` has the records of epochs of metrics.jsonl by the name of the run or fold.
    """
    rows = list[dict[str, object]]()
    runs = {name: epochs for name, epochs in runs.items() if len(epochs) > 1}
    for name, epochs in runs.items():
        best = max((record["epoch"] for record in epochs if record.get("best")), default=None)
        for kind, called in (("train", "training"), ("val", "validation")):
            for record in (one for one in epochs if one.get(f"{kind}_loss") is not None):
                is_kept = kind == "val" and record["epoch"] == best
                tip = f"{name} best epoch {best}".strip() if is_kept else ""
                drawn = {"x": record["epoch"], "y": record[f"{kind}_loss"], "tip": tip}
                rows.append({**drawn, "kind": called, "run": f"{name} {kind}"})
    if not any(row["kind"] == "validation" for row in rows):
        return []
    chart = alt.Chart(charts.data(rows))
    axes = {"x": charts.x_axis("epoch", nice=False), "y": charts.y_axis("loss")}
    colour = charts.levels("kind", {"training": 0, "validation": 1})["color"]
    curves = chart.mark_line(strokeWidth=2 if len(runs) == 1 else 1.3)
    kept = chart.transform_filter("datum.tip !== ''").mark_point(
        aria=True, opacity=1, color=LIGHT[1]
    )
    caption = "Points mark the epoch that was kept."
    caption += "" if len(runs) == 1 else f" One line for each of {len(runs)} folds."
    return [
        Figure(
            "loss",
            "Loss",
            charts.sized(
                curves.encode(alt.Detail("run:N"), color=colour, **axes),
                kept.encode(alt.Description("tip:N"), **axes),
            ),
            caption,
        )
    ]
