"""Where a model is wrong: its error along the range of a number, and by part of the samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from aam.evaluate.conformal import conformal_coverage
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import (
    LEAST_GROUPS,
    Interval,
    effective_groups,
    interval,
    intervals,
    number,
    resample_metrics,
    with_limits,
)
from aam.evaluate.metrics import sorted_levels
from aam.evaluate.predictions import TargetPredictions
from aam.report import charts
from aam.report.charts import LIGHT, Figure, Table
from aam.typing import Array

# Resamples of an interval.
REPEATS = 400

# Parts of the range with equal numbers of samples.
PARTS = 5

# Groups of a table: those with the largest errors.
MOST_GROUPS = 15


class Part(NamedTuple):
    """Some samples, and their name."""

    name: str
    predictions: TargetPredictions


def _mean_error(part: TargetPredictions) -> Interval:
    """The mean of prediction minus truth, with limits that resample groups."""

    def measure(truth: Array, predicted: Array, weights: Array) -> dict[str, Array]:
        return {"bias": weights @ (predicted - truth) / weights.sum(axis=1)}

    return interval(resample_metrics(part, 0, REPEATS, measure)["bias"], part.group_count)


def share_right(part: TargetPredictions) -> Interval:
    """The share of samples whose class is right, with limits over groups."""

    def measure(truth: Array, predicted: Array, weights: Array) -> dict[str, Array]:
        return {"accuracy": weights @ (predicted.argmax(axis=1) == truth) / weights.sum(axis=1)}

    has_few_groups = effective_groups(part.resampling_units) < LEAST_GROUPS
    resampled = resample_metrics(part, 0, 0 if has_few_groups else REPEATS, measure)
    return intervals(part, resampled, 0)["accuracy"]


def calibration(complete: TargetPredictions) -> pd.DataFrame:
    """Mean ``confidence`` in the chosen class, the share that is ``right`` with limits over groups,
    and ``samples``, by tenth of the confidence.
    """
    confidence = complete.predicted.max(axis=1)
    tenth = np.minimum((10 * confidence).astype(np.int64), 9)
    rows = [
        (float(confidence[tenth == at].mean()), share_right(complete.at(tenth == at)))
        for at in np.unique(tenth)
    ]
    frame = pd.DataFrame(rows, np.unique(tenth), columns=["confidence", "right"])
    return frame.assign(samples=np.unique(tenth, return_counts=True)[1])


def parts_of_range(complete: TargetPredictions) -> Iterator[Part]:
    """Parts of the range of a number with about as many samples each; none of few values."""
    if complete.labels or not len(complete.truth):
        return
    edges = np.unique(np.quantile(complete.truth, np.linspace(0, 1, PARTS + 1)))
    if len(edges) < 3:
        # Most samples have one value: the others are a part.
        values = np.unique(complete.truth)
        edges = values[[0, 1, -1]] if len(values) > 1 else values[:0]
    if not len(edges):
        return
    place = np.clip(np.searchsorted(edges, complete.truth, side="right") - 1, 0, len(edges) - 2)
    texts, last = [f"{edge:.3g}" for edge in edges.tolist()], len(edges) - 2
    if len(set(texts)) < len(texts):
        texts = [f"{edge:.9g}" for edge in edges.tolist()]
    # Edges between the values of a number that is rarely another one may enclose no sample.
    for at in np.unique(place).tolist():
        low, high = texts[at : at + 2]
        words = f"from {low} to below {high}"
        words = f"below {high}" if at == 0 else f"from {low} to {high}" if at == last else words
        yield Part(words, complete.at(place == at))


def parts_by(complete: TargetPredictions, name: str, values: Array | None) -> Iterator[Part]:
    """The samples of each value of a column, of those that have one."""
    for level in [] if values is None else sorted_levels(values):
        if str(level):
            yield Part(f"{name} {level}", complete.at(values == level))


def _error_frame(parts: Sequence[Part]) -> pd.DataFrame:
    """Error, coverage and size of each part of the samples of a number."""
    rows = []
    for name, samples in parts:
        covered = conformal_coverage(samples, 0, REPEATS)
        errors = {
            "prediction minus truth": _mean_error(samples),
            "absolute error": float(samples.errors.mean()),
            "coverage": covered.get("coverage", Interval(math.nan)),
        }
        size = {"samples": len(samples.truth), "groups": samples.group_count}
        rows.append({"": name, **errors, **size})
    return pd.DataFrame(rows)


def error_tables(result: Evaluation) -> list[Table]:
    """Error and coverage of a number by part of its range and by batch, and the groups with the
    largest errors.
    """
    complete, names, tables = result.complete, result.names, []
    if parts := [*parts_of_range(complete)]:
        parts += parts_by(complete, names.batch, complete.batch)
        tables.append(Table("Error by part of the samples", _error_frame(parts), "parts"))
    is_batch = complete.batch is not None and names.group == names.batch
    has_groups = complete.groups is not None and not is_batch
    if has_groups and 1 < complete.group_count < len(complete.truth):
        error = "1 - probability of the true class" if complete.labels else "absolute error"
        errors = pd.DataFrame({error: complete.errors}).groupby(complete.groups)
        frame = errors.mean().assign(samples=errors.size())
        frame = frame.sort_values(error, ascending=False, kind="stable").head(MOST_GROUPS)
        title = f"The {len(frame)} values of {names.group} with the largest errors"
        tables.append(Table(title, frame.reset_index(names=""), "groups"))
    return tables


# --- figure --------------------------------------------------------------------------------------


def residual_figure(result: Evaluation) -> list[Figure]:
    """Residuals of a number against the truth, and the mean error of each part of its range."""
    names, complete = result.names, result.complete
    if not (parts := [*parts_of_range(complete)]):
        return []
    drawn = complete.at(charts.drawn_rows(len(complete.truth)))
    residuals = drawn.predicted - drawn.truth
    samples = zip(drawn.sample_ids, drawn.truth.tolist(), residuals.tolist(), strict=True)
    rows = [{"x": x, "y": y, "tip": f"{name}: {number(y)}"} for name, x, y in samples]
    means = list[dict[str, object]]()
    for part in parts:
        bias, at = _mean_error(part.predictions), float(part.predictions.truth.mean())
        tip = f"{part.name}: {with_limits(bias)}"
        means.append({"x": at, "y": bias.value, "low": bias.low, "high": bias.high, "tip": tip})
    axes = charts.x_axis(f"true {names.target}"), charts.y_axis("prediction minus truth")
    ends = float(complete.truth.min()), float(complete.truth.max())
    caption = "Large points are means of parts of the range; above 0 predictions are too high."
    if complete.group_count >= LEAST_GROUPS:
        units = "samples" if complete.groups is None else f"values of {names.group}"
        caption += f" Bars are their 95 % intervals over {units}."
    return [
        Figure(
            "residuals",
            "Where it is wrong",
            charts.sized(
                charts.points(rows, axes, {}, color=LIGHT[0], opacity=0.4),
                charts.lines([("", x, 0.0) for x in ends], **charts.DASHED),
                charts.bars(means, color=LIGHT[1], strokeWidth=2.5),
                charts.points(means, axes, {}, color=LIGHT[1], opacity=1, filled=True, size=60),
            ),
            caption,
        )
    ]
