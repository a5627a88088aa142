"""Figures of a run: its losses by epoch, and true and predicted distances of an encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from aam.engine.logger import METRICS
from aam.evaluate.intervals import number
from aam.evaluate.metrics import Array, mantel, upper_triangle
from aam.report.charts import LIGHT, Figure, data, diagonal, levels, sized, x_axis, y_axis

Record = dict[str, Any]

# What a loss is of, and the number of its colour.
KINDS = {"train": "training", "val": "validation"}
COLOURS = {"training": 0, "validation": 1}

# Maximum number of losses that are drawn next to their sum.
MOST_PARTS = 5

TITLES = {
    "loss": "Loss",
    "nucleotide": "Loss of masked bases",
    "unifrac": "Loss of UniFrac distances",
    "count": "Loss of masked counts",
}

BINS = 40


def read_epochs(folder: Path) -> list[Record]:
    """Return the records of epochs of a run; none where it has no metrics.jsonl."""
    path = folder / METRICS
    if not path.is_file():
        return []
    records = [
        json.loads(line)
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        if line[-1:] == "\n"
    ]
    return [_with_one_sum(record) for record in records if record.get("event") == "epoch"]


def _with_one_sum(record: Record) -> Record:
    """Return a record whose losses are of the same sum: of the targets, which alone decide on the
    epoch, if any.

    The training loss of a run with targets holds what pretraining learns from too, and the
    validation loss does not.
    """
    of_targets = [
        name.removeprefix("val_") for name in record if name.startswith(("val_target", "val_label"))
    ]
    if not of_targets or not all(f"train_{name}" in record for name in of_targets):
        return record
    sums = {
        f"{kind}_loss": sum(float(record[f"{kind}_{name}"]) for name in of_targets)
        for kind in KINDS
    }
    return {**record, **sums}


def _losses(runs: Mapping[str, Sequence[Record]]) -> list[str]:
    """The losses that both training and validation have, the sum first."""
    names = {name for epochs in runs.values() for record in epochs for name in record}
    both = {name[6:] for name in names if name.startswith("train_") and f"val_{name[6:]}" in names}
    parts = sorted(both - {"loss"})
    return ["loss", *parts[: MOST_PARTS if len(parts) > 1 else 0]] if "loss" in both else []


def loss_names(numeric: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """Titles of the losses of targets, by their names in metrics.jsonl."""
    return {"target": ", ".join(numeric), **{f"label{at}": name for at, name in enumerate(classes)}}


def loss_figures(
    runs: Mapping[str, Sequence[Record]], names: Mapping[str, str] | None = None
) -> list[Figure]:
    """Return the loss in training and validation by epoch, and each of its parts.

    Parameters
    ----------
    runs : mapping of str to sequence of dict
        Records of epochs of metrics.jsonl, by the name of the run or fold.
    names : mapping of str to str, optional
        What to call losses that are not in `TITLES`.
    """
    runs = {name: epochs for name, epochs in runs.items() if len(epochs) > 1}
    return [
        _loss_figure(runs, loss, TITLES.get(loss, f"Loss of {(names or {}).get(loss, loss)}"))
        for loss in _losses(runs)
    ]


def _loss_figure(runs: Mapping[str, Sequence[Record]], loss: str, title: str) -> Figure:
    """One loss in training and validation; points mark the epochs that were kept."""
    rows, ends = list[dict[str, object]](), list[str]()
    for name, epochs in runs.items():
        best = max((record["epoch"] for record in epochs if record.get("best")), default=None)
        for kind, kind_name in KINDS.items():
            known = [record for record in epochs if record.get(f"{kind}_{loss}") is not None]
            for record in known:
                kept = kind == "val" and record["epoch"] == best
                rows.append(
                    {
                        "x": int(record["epoch"]),
                        "y": float(record[f"{kind}_{loss}"]),
                        "kind": kind_name,
                        "run": f"{name} {kind}",
                        "tip": f"{name} best epoch {best}".strip() if kept else "",
                    }
                )
            ends += [number(float(known[-1][f"val_{loss}"]))] if known and kind == "val" else []
    chart = alt.Chart(data(rows))
    axes = {"x": x_axis("epoch", nice=False), "y": y_axis(title[0].lower() + title[1:])}
    curves = chart.mark_line(strokeWidth=2 if len(runs) == 1 else 1.3).encode(
        alt.Detail("run:N"), color=levels("kind", COLOURS)["color"], **axes
    )
    kept_epochs = chart.transform_filter("datum.tip !== ''").mark_point(
        aria=True, opacity=1, color=LIGHT[COLOURS["validation"]]
    )
    folds = "" if len(runs) == 1 else f" One line for each of {len(runs)} folds."
    return Figure(
        "loss" if loss == "loss" else f"loss-{loss}",
        title,
        f"{title} by epoch; on the validation samples it ends at {', '.join(ends)}.",
        sized(curves, kept_epochs.encode(alt.Description("tip:N"), **axes)),
        f"Points mark the epoch that was kept.{folds}",
    )


def distances_figure(truth: Array, predicted: Array, metric: str) -> Figure:
    """Predicted against true distances [N, N] of all pairs, as shades of how many there are."""
    x, y = upper_triangle(truth), upper_triangle(predicted)
    metric = metric.replace("unifrac", "UniFrac").replace("_", " ")
    counts, xs, ys = np.histogram2d(x, y, BINS)
    rows = [
        {
            "x": xs[i],
            "x2": xs[i + 1],
            "y": ys[j],
            "y2": ys[j + 1],
            "tip": f"{int(counts[i, j])} pairs",
            "shade": round(0.1 + 0.9 * float(np.sqrt(counts[i, j] / counts.max())), 2),
        }
        for i, j in np.argwhere(counts > 0).tolist()
    ]
    cells = alt.Chart(data(rows)).mark_rect(aria=True, color=LIGHT[0])
    cells = cells.encode(
        x_axis(f"true {metric}", nice=False),
        alt.X2("x2:Q"),
        y_axis(f"predicted {metric}", nice=False),
        alt.Y2("y2:Q"),
        alt.Opacity("shade:Q", scale=None),
        alt.Description("tip:N"),
    )
    correlation = number(mantel(predicted, truth))
    return Figure(
        "distances",
        f"Predicted against true {metric}",
        f"Shades of {len(x)} pairs of samples; the correlation of predicted and true distances "
        f"is {correlation}.",
        sized(cells, diagonal(float(x.min()), float(x.max()))),
        "Pairs of held-out samples; a stronger colour means more pairs. Points on the dashed line "
        f"are exact. The Mantel correlation is {correlation}.",
    )
