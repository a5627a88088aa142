"""Figures of a run: its losses by epoch, and true beside predicted distances of a pretrained
encoder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from aam.engine.run import METRICS
from aam.evaluate.intervals import number
from aam.evaluate.metrics import Array, mantel, upper_triangle
from aam.report.charts import (
    LIGHT,
    Figure,
    data,
    diagonal,
    drawn_rows,
    levels,
    points,
    sized,
    x_axis,
    y_axis,
)

Record = dict[str, Any]

# What a loss is of, and the number of its colour.
KINDS = {"train": "training", "val": "validation"}
COLOURS = {"training": 0, "validation": 1}

# Losses that are drawn beside their sum.
MOST_PARTS = 5

TITLES = {
    "loss": "Loss",
    "nucleotide": "Loss of masked bases",
    "unifrac": "Loss of UniFrac distances",
    "count": "Loss of masked counts",
}

# Samples of an ordination are coloured by parts of equal size along the first true axis.
FIFTHS = {
    name: len(LIGHT) + at
    for at, name in enumerate(
        (
            "lowest fifth of the first axis",
            "second fifth",
            "third fifth",
            "fourth fifth",
            "highest fifth",
        )
    )
}

# More samples than this are drawn as a random part of them.
MOST_POINTS = 500

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
    """Return the losses that both training and validation have, the sum first, those that vary
    only.
    """
    names = {name for epochs in runs.values() for record in epochs for name in record}
    both = {name.removeprefix("train_") for name in names if name.startswith("train_")}
    both &= {name.removeprefix("val_") for name in names if name.startswith("val_")}
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
    """Return one loss in training and validation; points mark the epochs that were kept."""
    rows, ends = [], []
    for name, epochs in runs.items():
        best = max((record["epoch"] for record in epochs if record.get("best")), default=None)
        for kind, kind_name in KINDS.items():
            values = [
                (int(r["epoch"]), float(v))
                for r in epochs
                if (v := r.get(f"{kind}_{loss}")) is not None
            ]
            ends += [number(values[-1][1])] if values and kind == "val" else []
            rows += [
                {
                    "x": epoch,
                    "y": value,
                    "kind": kind_name,
                    "run": f"{name} {kind}",
                    "tip": f"{name} best epoch {best}".strip()
                    if kind == "val" and epoch == best
                    else "",
                }
                for epoch, value in values
            ]
    chart = alt.Chart(data(rows))
    colours = levels("kind", COLOURS)
    axes = {"x": x_axis("epoch", nice=False), "y": y_axis(title[0].lower() + title[1:])}
    one = len(runs) == 1
    curves = chart.mark_line(strokeWidth=2 if one else 1.3, opacity=1 if one else 0.75)
    curves = curves.encode(alt.Detail("run:N"), color=colours["color"], **axes)
    kept = chart.transform_filter("datum.tip !== ''")
    kept = kept.mark_point(aria=True, opacity=1, color=LIGHT[COLOURS["validation"]])
    kept = kept.encode(alt.Description("tip:N"), **axes)
    folds = "" if one else f" One line for each of {len(runs)} folds."
    return Figure(
        "loss" if loss == "loss" else f"loss-{loss}",
        title,
        f"{title} by epoch; on the validation samples it ends at {', '.join(ends)}.",
        sized(curves, kept),
        f"Points mark the epoch that was kept.{folds}",
    )


def pcoa(distances: Array) -> tuple[Array, Array]:
    """Return coordinates [N, 2] of a classical ordination of distances [N, N], and the share of
    each axis (Gower 1966).

    Shares are of the sum of all positive eigenvalues.
    """
    squared = -0.5 * distances.astype(np.float64) ** 2
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1, keepdims=True) + squared.mean()
    values, vectors = np.linalg.eigh(centred)
    largest = np.maximum(values[[-1, -2]], 0.0)
    total = np.maximum(values, 0.0).sum()
    return np.asarray(vectors[:, [-1, -2]] * np.sqrt(largest)), largest / (
        total if total > 0 else 1.0
    )


def ordination_figure(
    name: str,
    title: str,
    ordination: tuple[Array, Array],
    kinds: Sequence[str],
    colour_of: Mapping[str, int],
    tips: Sequence[str],
    caption: str,
) -> Figure:
    """Return the points [N, 2] of an ordination, and the share of each axis, in the colours of
    their kinds [N].
    """
    places, shares = ordination
    rows = [
        {"x": x, "y": y, "kind": kind, "tip": tip}
        for (x, y), kind, tip in zip(places.tolist(), kinds, tips, strict=True)
    ]
    axes = [f"axis {at + 1} ({100 * share:.0f} %)" for at, share in enumerate(shares)]
    chart = points(
        rows, x_axis(axes[0]), y_axis(axes[1]), levels("kind", colour_of), aria=any(tips)
    )
    words = (
        f"{title}: {len(rows)} samples; the axes hold "
        f"{' and '.join(number(float(s)) for s in shares)}"
    )
    return Figure(name, title, f"{words} of the variation.", sized(chart), caption)


def _pairs_figure(truth: Array, predicted: Array, metric: str) -> Figure:
    """Return predicted against true distances of all pairs, as shades of how many there are."""
    x, y = upper_triangle(truth), upper_triangle(predicted)
    low, high = min(float(x.min()), float(y.min())), max(float(x.max()), float(y.max()))
    counts, xs, ys = np.histogram2d(x, y, BINS, [[float(x.min()), float(x.max())], [low, high]])
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
    cells = (
        alt.Chart(data(rows))
        .mark_rect(aria=True, color=LIGHT[0])
        .encode(
            x_axis(f"true {metric}", nice=False),
            alt.X2("x2:Q"),
            y_axis(f"predicted {metric}", nice=False),
            alt.Y2("y2:Q"),
            alt.Opacity("shade:Q", scale=None),
            alt.Description("tip:N"),
        )
    )
    correlation = number(mantel(predicted, truth))
    return Figure(
        "distances",
        f"Predicted against true {metric}",
        f"Shades of {len(x)} pairs of samples; the correlation of predicted and true distances "
        f"is {correlation}.",
        sized(cells, diagonal(float(x.min()), float(x.max()))),
        "Each pair of held-out samples; the stronger the colour, the more pairs. On the dashed "
        "line a distance is "
        f"right. Their correlation is the Mantel correlation, {correlation}.",
    )


def ordination_figures(
    truth: Array, predicted: Array, metric: str, ids: Sequence[str] = ()
) -> list[Figure]:
    """Return PCoA of true and of predicted distances [N, N], turned onto each other, and predicted
    against true ones.

    A pointer shows the `ids` [N] of the samples. There are no figures for fewer than four samples.
    """
    if len(truth) < 4:
        return []
    # Imported here: they take half a second, and few reports need them.
    from scipy.linalg import orthogonal_procrustes
    from scipy.stats import rankdata

    metric = metric.replace("unifrac", "UniFrac").replace("_", " ")
    true, true_shares = pcoa(truth)
    other, other_shares = pcoa(predicted)
    turn, scale = orthogonal_procrustes(other, true)
    turned = other @ turn * scale / max(float((other**2).sum()), 1e-12)
    rows = drawn_rows(len(true), MOST_POINTS)
    fifth = (rankdata(true[:, 0], "ordinal") - 1) * len(FIFTHS) // len(true)
    kinds = [list(FIFTHS)[int(at)] for at in fifth[rows]]
    tips = [ids[row] if ids else "" for row in rows]
    caption = (
        "Colours are fifths of the samples along the first true axis. Where the encoder is "
        "right, colours lie in the "
        "same order in both pictures."
    )
    if len(rows) < len(true):
        caption += f" A random {len(rows)} of {len(true)} samples are drawn."
    ordinations = {"true": (true[rows], true_shares), "predicted": (turned[rows], other_shares)}
    return [
        *(
            ordination_figure(
                f"pcoa-{name}", f"PCoA of {name} {metric}", ordination, kinds, FIFTHS, tips, caption
            )
            for name, ordination in ordinations.items()
        ),
        _pairs_figure(truth, predicted, metric),
    ]
