"""Figures of a numeric target: predicted against true values, and errors along the range of the target."""

from __future__ import annotations

import numpy as np

from aam.evaluate import conformal
from aam.evaluate.coverage import tenths
from aam.evaluate.metrics import Array, sorted_levels
from aam.evaluate.numbers import number
from aam.evaluate.target_predictions import TargetPredictions
from aam.report.figures.plot import WIDTH, Plot, span
from aam.report.figures.svg import LIGHT, Figure

# More points than this are drawn as a random part of them; up to so many say which sample they are.
MOST_POINTS, NAMED_POINTS = 2000, 500

SQUARE = 388.0


def drawn_rows(count: int, most: int = MOST_POINTS) -> Array:
    """Return which of so many samples are drawn, in order; the same ones every time."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def batch_legend(complete: TargetPredictions) -> dict[str, int]:
    """Return the number of the colour of each batch; nothing where there is one batch, or more than colours."""
    levels = [] if complete.batch is None else sorted_levels(complete.batch)
    return {str(level): at for at, level in enumerate(levels)} if 1 < len(levels) <= len(LIGHT) else {}


def scatter_figure(complete: TargetPredictions, target: str, batch_name: str) -> Figure:
    """Return predicted against true values, in colours of batches, with conformal intervals where there are some."""
    legend = batch_legend(complete)
    rows = drawn_rows(len(complete.truth))
    part = complete.at(rows)
    limits = np.empty((0, 2)) if part.limits is None else part.limits
    bounded = [] if part.limits is None else np.flatnonzero(np.isfinite(limits).all(axis=1)).tolist()
    ends = [*complete.truth, *complete.predicted]
    plot = Plot(span(ends), span([*ends, *limits[bounded].ravel()]), (WIDTH, SQUARE))
    plot.axes(f"true {target}", f"predicted {target}")
    low, high = max(plot.x.low, plot.y.low), min(plot.x.high, plot.y.high)
    plot.curve([(low, low), (high, high)], "axis", 'stroke-width="1.2" stroke-dasharray="5 4"')
    bars = [(float(part.truth[at]), float(limits[at, 0]), float(limits[at, 1])) for at in bounded]
    plot.bars(bars, "axis", 'stroke-width="1" opacity="0.28"')
    levels = [0] * len(rows) if not legend else [legend[str(level)] for level in np.asarray(part.batch)]
    named = len(rows) <= NAMED_POINTS
    for sample, truth, predicted, level in zip(part.sample_ids, part.truth, part.predicted, levels, strict=True):
        label = f"{sample}: true {number(float(truth))}, predicted {number(float(predicted))}" if named else ""
        plot.mark(plot.x(float(truth)), plot.y(float(predicted)), level, label, 0.75)
    caption = "On the dashed line a prediction is right."
    if bounded:
        caption += f" Vertical lines are {100 * conformal.LEVEL:.0f} % conformal intervals."
    if len(rows) < len(complete.truth):
        caption += f" A random {len(rows)} of {len(complete.truth)} samples are drawn."
    error = number(float(np.abs(complete.predicted - complete.truth).mean()))
    description = (
        f"Scatter of {len(rows)} samples. True values run from {number(float(complete.truth.min()))} to "
        f"{number(float(complete.truth.max()))}, predictions from {number(float(complete.predicted.min()))} to "
        f"{number(float(complete.predicted.max()))}; they differ by {error} on average."
    )
    by = f", coloured by {batch_name}" if legend else ""
    return Figure(
        "predicted", f"Predicted against true {target}", description + (f" Points are{by[1:]}." if by else ""),
        plot.width, plot.height, plot.body, caption, tuple((at, name) for name, at in legend.items()),
    )  # fmt: skip


def tenths_figure(complete: TargetPredictions, target: str) -> Figure | None:
    """Return the errors in each tenth of the true values: median, middle half and 5 to 95 %; none for few samples."""
    names = tenths(complete.truth)
    levels = sorted(np.unique(names), key=lambda name: float(np.median(complete.truth[names == name])))
    if len(levels) < 3:
        return None
    errors = [(complete.predicted - complete.truth)[names == name] for name in levels]
    quantiles = np.array([np.quantile(part, [0.05, 0.25, 0.5, 0.75, 0.95]) for part in errors])
    plot = Plot((0.3, len(levels) + 0.7), span([*quantiles.ravel(), 0.0]))
    plot.axes("tenth of the true values, low to high", "predicted minus true")
    plot.curve([(plot.x.low, 0.0), (plot.x.high, 0.0)], "inkline", 'stroke-width="1.2"')
    places = np.arange(1, len(levels) + 1).tolist()
    outer = [(at, float(q[0]), float(q[4])) for at, q in zip(places, quantiles, strict=True)]
    inner = [(at, float(q[1]), float(q[3])) for at, q in zip(places, quantiles, strict=True)]
    plot.bars(outer, "s0", 'stroke-width="1.5"')
    plot.bars(inner, "s0", 'stroke-width="9" opacity="0.55"')
    for at, middle, name in zip(places, quantiles[:, 2], levels, strict=True):
        plot.mark(plot.x(at), plot.y(float(middle)), 1, f"true {name}: median error {number(float(middle))}")
    listed = "; ".join(f"{name}: {number(float(q[2]))}" for name, q in zip(levels, quantiles, strict=True))
    return Figure(
        "errors-by-tenth", f"Errors along the range of {target}", f"Median of predicted minus true by tenth. {listed}.",
        plot.width, plot.height, plot.body,
        "Points are medians, thick bars the middle half, thin lines 5 to 95 % of the samples. Above the line the "
        "model predicts too much, below it too little.",
    )  # fmt: skip
