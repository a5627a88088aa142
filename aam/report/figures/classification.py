"""Figures of a class target: ROC, precision and recall, reliability, and the confusion matrix as a file."""

from __future__ import annotations

from html import escape

import numpy as np

from aam.evaluate import metrics
from aam.evaluate.metrics import Array
from aam.evaluate.numbers import number
from aam.evaluate.target_predictions import TargetPredictions
from aam.report.figures.plot import WIDTH, Plot, shortened
from aam.report.figures.svg import LIGHT, Figure

UNIT = (0.0, 1.0)

SQUARE = (WIDTH, 388.0)

# Points of a curve: more are not seen.
MOST_STEPS = 200


def confusion_counts(complete: TargetPredictions) -> Array:
    """Return samples by true (rows) and predicted class, int [K, K]."""
    indicator = np.eye(len(complete.labels), dtype=np.int64)
    return np.asarray(indicator[complete.truth].T @ indicator[complete.predicted.argmax(1)])


def threshold_counts(positive: Array, score: Array) -> tuple[Array, Array]:
    """Return true and false positives at each distinct threshold from high to low, after 0 and 0 at the start."""
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.append(np.diff(score[order]) != 0, True)) if len(score) else np.empty(0, np.int64)
    hits = np.concatenate([[0], np.cumsum(positive[order])[last]])
    return hits, np.concatenate([[0], last + 1]) - hits


def _thinned(points: Array) -> list[tuple[float, float]]:
    """Return at most `MOST_STEPS` of the points [M, 2], the first and the last among them."""
    at = np.unique(np.linspace(0, len(points) - 1, min(len(points), MOST_STEPS)).round().astype(int))
    return [(float(x), float(y)) for x, y in points[at]]


def _scored_classes(complete: TargetPredictions) -> list[int]:
    """Return the classes that have a curve: the second of two, each that occurs of few, none of many."""
    if len(complete.labels) == 2:
        return [1]
    classes = np.unique(complete.truth).tolist()
    return classes if len(classes) <= len(LIGHT) else []


def _curves(complete: TargetPredictions) -> list[tuple[int, Array, Array]]:
    """Return class, true positives and false positives of each curve that has both."""
    curves = []
    for k in _scored_classes(complete):
        hits, false = threshold_counts(complete.truth == k, complete.predicted[:, k])
        if hits[-1] and false[-1]:
            curves.append((k, hits, false))
    return curves


def _folds(complete: TargetPredictions) -> str:
    return " Samples of all folds stand together." if complete.cross_validated else ""


def threshold_figures(complete: TargetPredictions) -> list[Figure]:
    """Return the ROC and the precision-recall curves of each class against all others."""
    curves = _curves(complete)
    if not curves:
        return []
    roc, recall = Plot(UNIT, UNIT, SQUARE), Plot(UNIT, UNIT, SQUARE)
    roc.axes("share of the others taken for the class", "share of the class that is found")
    recall.axes("recall", "precision")
    roc.curve([(0, 0), (1, 1)], "axis", 'stroke-width="1.2" stroke-dasharray="5 4"')
    areas, averages = [], []
    for k, hits, false in curves:
        level = k if len(complete.labels) > 2 else 0
        positive, score = complete.truth == k, complete.predicted[:, k]
        area = metrics.auroc(positive, score)
        precision = hits[1:] / (hits[1:] + false[1:])
        average = float((np.diff(hits) / hits[-1]) @ precision)
        roc.curve(_thinned(np.stack([false / false[-1], hits / hits[-1]], axis=1)), f"s{level}")
        recall.curve(_thinned(np.stack([hits[1:] / hits[-1], precision], axis=1)), f"s{level}")
        share = float(positive.mean())
        recall.curve([(0, share), (1, share)], f"s{level}", 'stroke-width="1.2" stroke-dasharray="5 4" opacity="0.7"')
        areas.append((level, f"{complete.labels[k]}: AUROC {number(area)}"))
        averages.append((level, f"{complete.labels[k]}: AUPRC {number(average)}, chance {number(share)}"))
    folds = _folds(complete)
    notes = ["; ".join(text for _, text in entries) for entries in (areas, averages)]
    return [
        Figure(
            "roc", "ROC curve", f"Share of a class that is found against false alarms. {notes[0]}.", *SQUARE, roc.body,
            f"Guessing follows the dashed line.{folds}", tuple(areas),
        ),
        Figure(
            "precision-recall", "Precision and recall", f"Precision against recall. {notes[1]}.", *SQUARE, recall.body,
            f"Guessing follows the dashed lines: the share of the class.{folds}", tuple(averages),
        ),
    ]  # fmt: skip


def reliability_figure(complete: TargetPredictions) -> Figure:
    """Return accuracy against the probability of the chosen class, with 95 % intervals (Wilson 1927)."""
    plot = Plot(UNIT, UNIT, SQUARE)
    plot.axes("probability of the chosen class", "share that is right")
    plot.curve([(0, 0), (1, 1)], "axis", 'stroke-width="1.2" stroke-dasharray="5 4"')
    parts = metrics.reliability(complete.truth, complete.predicted)
    largest = max((count for count, _ in parts.values()), default=1)
    shares = []
    for name, (count, values) in parts.items():
        x, y = values["confidence"], values["accuracy"]
        z = 1.96
        centre = (y + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * (y * (1 - y) / count + z**2 / (4 * count**2)) ** 0.5
        plot.bars([(x, max(centre - half, 0.0), min(centre + half, 1.0))], "s0", 'stroke-width="1.5"')
        # A histogram of the samples along the bottom, a seventh of the height at most.
        low = float(name.partition(" ")[0])
        plot.bars([(low + 0.05, 0.0, count / largest / 7)], "axis", 'stroke-width="26" opacity="0.25"')
        plot.mark(plot.x(x), plot.y(y), 0, f"probability {name}: {number(y)} of {count} samples right")
        shares.append(f"{name}: {number(y)} of {count}")
    return Figure(
        "reliability", "Reliability of the probabilities", f"Share that is right by probability. {'; '.join(shares)}.",
        *SQUARE, plot.body,
        "On the dashed line probabilities are what they say; below it the model is too sure of itself. Bars are 95 % "
        "intervals of single samples; grey columns show how many samples there are.",
    )  # fmt: skip


def confusion_figure(complete: TargetPredictions) -> Figure:
    """Return the confusion matrix, shaded by the share of each true class."""
    counts, labels = confusion_counts(complete), complete.labels
    size = len(labels)
    left, cell = 120.0, max(26.0, min(60.0, 260 / max(size, 1)))
    extent = cell * size
    plot = Plot((0, size), (0, size), (left + extent + 14, extent + 12 + 110), left=left, bottom=110)
    shades = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for row in range(size):
        top = 12 + cell * row
        plot.text(left - 6, top + cell / 2 + 4, shortened(labels[row], 16), "small end")
        across = left + cell * (row + 0.5)
        turned = f'class="small end" transform="translate({across + 4:.1f} {12 + extent + 10:.1f}) rotate(-60)"'
        plot.parts.append(f"<text {turned}>{escape(shortened(labels[row], 16))}</text>")
        for column in range(size):
            place = f'x="{left + cell * column:.1f}" y="{top:.1f}" width="{cell:.1f}" height="{cell:.1f}"'
            plot.parts.append(f'<rect class="f0" {place} opacity="{0.7 * shades[row, column]:.2f}"/>')
            plot.text(left + cell * (column + 0.5), top + cell / 2 + 4, str(counts[row, column]), "small middle")
    shares = ", ".join(f"{labels[k]} {number(float(shades[k, k]))}" for k in range(size))
    return Figure(
        "confusion", "True class (rows) and predicted class (columns)", f"Share of each class that is right: {shares}.",
        plot.width, plot.height, plot.body,
    )  # fmt: skip
