"""True beside predicted distances: two ordinations, and each pair of samples."""

from __future__ import annotations

import numpy as np

from aam.evaluate.distances import mantel, upper_triangle
from aam.evaluate.metrics import Array
from aam.evaluate.numbers import number
from aam.report.figures.plot import WIDTH, Plot, span
from aam.report.figures.regression import drawn_rows
from aam.report.figures.svg import Figure

# Samples of an ordination are coloured by so many parts of equal size along the first true axis.
PARTS = 5

BINS = 40

# More samples than this are drawn as a random part of them.
MOST_POINTS = 500


def pcoa(distances: Array) -> tuple[Array, Array]:
    """Return coordinates [N, 2] of a classical ordination of distances [N, N], and the share of each axis (Gower 1966).

    Shares are of the sum of all positive eigenvalues.
    """
    squared = -0.5 * distances.astype(np.float64) ** 2
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1, keepdims=True) + squared.mean()
    values, vectors = np.linalg.eigh(centred)
    largest = np.maximum(values[[-1, -2]], 0.0)
    total = np.maximum(values, 0.0).sum()
    return np.asarray(vectors[:, [-1, -2]] * np.sqrt(largest)), largest / (total if total > 0 else 1.0)


def procrustes(points: Array, onto: Array) -> Array:
    """Return points [N, 2] rotated, mirrored and scaled onto others, both around 0 (Gower 1975)."""
    first, singular, second = np.linalg.svd(points.T @ onto)
    spread = float((points**2).sum())
    return np.asarray(points @ (first @ second) * (singular.sum() / spread if spread > 0 else 1.0))


def _ordination(name: str, title: str, points: Array, shares: Array, levels: Array, legend: bool) -> Figure:
    axes = [f"axis {at + 1} ({100 * share:.0f} % of the variation)" for at, share in enumerate(shares)]
    plot = Plot(span(points[:, 0]), span(points[:, 1]))
    plot.axes(axes[0], axes[1])
    rows = drawn_rows(len(points), MOST_POINTS)
    for (x, y), level in zip(points[rows].tolist(), levels[rows].tolist(), strict=True):
        plot.mark(plot.x(x), plot.y(y), level, opacity=0.7)
    summary = f"{title}: {len(points)} samples; the axes hold {' and '.join(number(float(s)) for s in shares)}."
    caption = (
        "Colours are fifths of the samples along the first true axis. Where the encoder is right, colours lie in the "
        "same order in both pictures."
    )
    if len(rows) < len(points):
        caption += f" A random {len(rows)} of {len(points)} samples are drawn."
    entries = tuple((at, f"{'lowest' if not at else 'highest'} fifth of the first axis") for at in (0, PARTS - 1))
    return Figure(name, title, summary, plot.width, plot.height, plot.body, caption, entries if legend else ())


def _pairs_figure(truth: Array, predicted: Array, metric: str) -> Figure:
    """Return predicted against true distances of all pairs, as shades of how many there are."""
    x, y = upper_triangle(truth), upper_triangle(predicted)
    plot = Plot(
        span(x, 0.0), span([float(y.min()), float(y.max()), float(x.min()), float(x.max())], 0.0), (WIDTH, 388.0)
    )
    plot.axes(f"true {metric}", f"predicted {metric}")
    counts, xs, ys = np.histogram2d(x, y, BINS, [[plot.x.low, plot.x.high], [plot.y.low, plot.y.high]])
    shades = np.sqrt(counts / max(counts.max(), 1))
    width, height = plot.x(xs[1]) - plot.x(xs[0]), plot.y(ys[0]) - plot.y(ys[1])
    for shade in range(1, 11):
        cells = np.argwhere((shades > (shade - 1) / 10) & (shades <= shade / 10)).tolist()
        path = "".join(
            f"M{plot.x(float(xs[i])):.1f} {plot.y(float(ys[j + 1])):.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
            for i, j in cells
        )
        if path:
            plot.parts.append(f'<path class="fill f0" d="{path}" opacity="{0.1 + 0.09 * shade:.2f}"/>')
    ends = (max(plot.x.low, plot.y.low), min(plot.x.high, plot.y.high))
    plot.curve([(ends[0], ends[0]), (ends[1], ends[1])], "axis", 'stroke-width="1.2" stroke-dasharray="5 4"')
    correlation = number(mantel(predicted, truth))
    return Figure(
        "distances", f"Predicted against true {metric}",
        f"Shades of {len(x)} pairs of samples; the correlation of predicted and true distances is {correlation}.",
        plot.width, plot.height, plot.body,
        f"Each pair of held-out samples; the stronger the colour, the more pairs. On the dashed line a distance is "
        f"right. Their correlation is the Mantel correlation, {correlation}.",
    )  # fmt: skip


def ordination_figures(truth: Array, predicted: Array, metric: str) -> list[Figure]:
    """Return PCoA of true and of predicted distances [N, N], turned onto each other, and predicted against true ones.

    There are none for fewer than four samples.
    """
    if len(truth) < 4:
        return []
    metric = metric.replace("unifrac", "UniFrac").replace("_", " ")
    true, true_shares = pcoa(truth)
    other, other_shares = pcoa(predicted)
    turned = procrustes(other, true)
    order = np.argsort(np.argsort(true[:, 0], kind="stable"), kind="stable")
    levels = order * PARTS // len(true)
    return [
        _ordination("pcoa-true", f"PCoA of true {metric}", true, true_shares, levels, True),
        _ordination("pcoa-predicted", f"PCoA of predicted {metric}", turned, other_shares, levels, True),
        _pairs_figure(truth, predicted, metric),
    ]
