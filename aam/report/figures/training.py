"""Loss curves of a run, from the records of its training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.engine.logger import METRICS
from aam.evaluate.numbers import number
from aam.report.figures.plot import Plot, span
from aam.report.figures.svg import Figure

Record = dict[str, Any]

TRAIN, VALIDATION = 0, 1

# Losses that are drawn beside their sum.
MOST_PARTS = 5

TITLES = {
    "loss": "Loss",
    "nucleotide": "Loss of masked bases",
    "unifrac": "Loss of UniFrac distances",
    "faith_pd": "Loss of Faith PD",
    "count": "Loss of masked counts",
    "bray-curtis": "Loss of Bray-Curtis distances",
    "jaccard": "Loss of Jaccard distances",
    "faith-pd": "Loss of Faith PD",
    "taxonomy": "Loss of taxa",
}


def read_epochs(folder: Path) -> list[Record]:
    """Return the records of epochs of a run; none where it has no metrics.jsonl."""
    path = folder / METRICS
    if not path.is_file():
        return []
    records = [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1:] == "\n"
    ]
    return [record for record in records if record.get("event") == "epoch"]


def _points(epochs: Sequence[Record], name: str) -> list[tuple[float, float]]:
    return [(float(record["epoch"]), float(record[name])) for record in epochs if record.get(name) is not None]


def _losses(runs: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return the losses that both training and validation have, the sum first, those that vary only."""
    names = {name for epochs in runs.values() for record in epochs for name in record}
    both = {name.removeprefix("train_") for name in names if name.startswith("train_")}
    both &= {name.removeprefix("val_") for name in names if name.startswith("val_")}
    parts = sorted(both - {"loss"})
    return ["loss", *parts[: MOST_PARTS if len(parts) > 1 else 0]] if "loss" in both else []


def loss_names(numeric: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    """Return what to call the losses of targets, by their names in metrics.jsonl."""
    return {"target": ", ".join(numeric), **{f"label{at}": name for at, name in enumerate(classes)}}


def loss_figures(runs: Mapping[str, Sequence[Record]], names: Mapping[str, str] | None = None) -> list[Figure]:
    """Return the loss in training and validation by epoch, and each of its parts.

    Parameters
    ----------
    runs : mapping of str to sequence of dict
        Records of epochs of metrics.jsonl, by the name of the run or fold.
    names : mapping of str to str, optional
        What to call losses that are not in `TITLES`.
    """
    plots = []
    runs = {name: epochs for name, epochs in runs.items() if len(epochs) > 1}
    for loss in _losses(runs):
        curves = [
            (level, name, points)
            for name, epochs in runs.items()
            for level, kind in ((TRAIN, "train"), (VALIDATION, "val"))
            if (points := _points(epochs, f"{kind}_{loss}"))
        ]
        values = [y for _, _, points in curves for _, y in points]
        last = max(x for _, _, points in curves for x, _ in points)
        first = min(x for _, _, points in curves for x, _ in points)
        plot = Plot(span((first, last), 0.02), span(values))
        title = TITLES.get(loss, f"Loss of {(names or {}).get(loss, loss)}")
        plot.axes("epoch", title[0].lower() + title[1:])
        thin = 'stroke-width="2"' if len(runs) == 1 else 'stroke-width="1.3" opacity="0.75"'
        for level, _, points in curves:
            plot.curve(points, f"s{level}", thin)
        for name, epochs in runs.items():
            best = max((record["epoch"] for record in epochs if record.get("best")), default=None)
            at = None if best is None else dict(_points(epochs, f"val_{loss}")).get(float(best))
            if best is not None and at is not None:
                plot.mark(plot.x(best), plot.y(at), VALIDATION, f"{name} best epoch {best}".strip())
        ends = [number(points[-1][1]) for level, _, points in curves if level == VALIDATION]
        folds = f" One line for each of {len(runs)} folds." if len(runs) > 1 else ""
        plots.append(
            Figure(
                f"loss-{loss}" if loss != "loss" else "loss", title,
                f"{title} by epoch; on the validation samples it ends at {', '.join(ends)}.",
                plot.width, plot.height, plot.body, f"Points mark the epoch that was kept.{folds}",
                ((TRAIN, "training"), (VALIDATION, "validation")),
            )
        )  # fmt: skip
    return plots
