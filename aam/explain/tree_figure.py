"""A tree of the most important ASVs, whose branches show the importance of their clades."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aam.explain.results import Explanation
from aam.explain.tables import LONGEST_LABEL
from aam.io.phylogeny import Ints, prune
from aam.report.figures.plot import TOP, Plot
from aam.report.figures.svg import Figure, LegendEntry

MOST_TIPS = 40
ROW = 13.0
WIDTH, LABELS = 440.0, 200.0
THIN, THICK = 0.8, 7.0


def _depths(parent: Ints, length: np.ndarray) -> np.ndarray:
    """Return how far each node is from the root."""
    depth = np.zeros(len(parent))
    for node in range(len(parent) - 2, -1, -1):
        depth[node] = depth[parent[node]] + length[node]
    return depth


def tree_figure(
    explanation: Explanation, order: Ints, colour_of: Callable[[Explanation, str], int], legend: Sequence[LegendEntry]
) -> list[Figure]:
    """Return the tree of the first `MOST_TIPS` ASVs of `order` that have a tip, if there is a tree.

    A branch is as thick as the importance of the shown ASVs below it, summed (without a truth, their mean absolute
    effect), and has the colour of what most of that raises.
    """
    if explanation.tree is None:
        return []
    tree, tips = explanation.tree
    importance = explanation.importance
    columns = [c for c in order.tolist() if tips[c] >= 0 and importance.carriers[c] > 0][:MOST_TIPS]
    if len(columns) < 2:
        return []
    columns.sort(key=lambda column: int(tips[column]))
    shown = prune(tree, tips[columns])
    value = importance.value if explanation.has_truth else importance.absolute.max(axis=0)
    weight = np.maximum(value[columns], 0.0)
    colours = np.array([colour_of(explanation, explanation.raised(column)) for column in columns])
    ends = np.arange(len(columns))
    nodes = len(shown.parent)
    total = np.array([weight[shown.lo[node] : shown.hi[node]].sum() for node in range(nodes)])
    colour = [
        int(np.bincount(colours[lo:hi], weight[lo:hi] + 1e-12).argmax())
        for lo, hi in zip(shown.lo.tolist(), shown.hi.tolist(), strict=True)
    ]
    depth = _depths(shown.parent, shown.length)
    height = TOP + ROW * len(columns) + TOP
    plot = Plot((0.0, max(float(depth.max()), 1e-9)), (0.0, 1.0), (WIDTH, height), left=14.0)
    across = (WIDTH - LABELS - 14.0) / max(float(depth.max()), 1e-9)
    x = 14.0 + across * depth
    y = np.array([TOP + ROW * (ends[lo:hi].mean() + 0.5) for lo, hi in zip(shown.lo, shown.hi, strict=True)])
    thick = THIN + (THICK - THIN) * np.sqrt(total / max(float(total[:-1].max(initial=0.0)), 1e-12)).clip(0, 1)
    for node in range(nodes - 1):
        above = int(shown.parent[node])
        plot.line((x[above], y[above]), (x[above], y[node]), "axis", 0.7)
        plot.line((x[above], y[node]), (x[node], y[node]), f"s{colour[node]}", round(float(thick[node]), 2))
        if shown.hi[node] - shown.lo[node] == 1:
            label = explanation.asvs.label(columns[int(shown.lo[node])], LONGEST_LABEL)
            plot.text(x[node] + 6, y[node] + 4, label, "small")
    what = "importance" if explanation.has_truth else "mean absolute effect"
    best = columns[int(weight.argmax())]
    return [
        Figure(
            "tree", "The most important ASVs on the tree",
            f"A tree of {len(columns)} ASVs; the thickest branch leads to {explanation.asvs.label(best)}.",
            plot.width, plot.height, plot.body,
            f"A branch is as thick as the {what} of the ASVs below it that are shown, summed.",
            [entry for entry in legend if entry[0] in set(colour)],
        )
    ]  # fmt: skip
