"""Figures of an explanation: the most important ASVs, taxa, effects by sample, and attention, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aam.evaluate.bootstrap import Interval
from aam.evaluate.numbers import number
from aam.explain.effects import Matrix
from aam.explain.importance import Ints
from aam.explain.results import Explanation
from aam.explain.tables import HIGHER, LONGEST_LABEL, LOWER, raised
from aam.explain.tree_figure import tree_figure
from aam.explain.variants import Floats
from aam.files.atomic import write_text
from aam.io.taxonomy import display_name
from aam.report.figures.plot import TOP, WIDTH, Plot, shortened
from aam.report.figures.rows import Row, draw_rows
from aam.report.figures.svg import Figure, LegendEntry, number_text, standalone

# Numbers of colours: lower or the first class, higher or the second; other classes follow.
BLUE, RED = 0, 1

# Samples stand in at most so many rows of a heatmap, each the mean of neighbours.
MOST_ROWS = 80
ROW_HEIGHT, COLUMN_WIDTH = 4.0, 15.0
LABEL_HEIGHT, SIDE = 166.0, 74.0

# Room for the last name, which is turned.
TURNED = 84.0

SHADES = 8


def colour_of(explanation: Explanation, raises: str) -> int:
    """Return the colour of what is raised: a class by its place, or higher and lower."""
    labels = explanation.effects.spec.labels
    if labels:
        return labels.index(raises) % 9 if raises in labels else 8
    return {HIGHER: RED, LOWER: BLUE}.get(raises, 8)


def legend_of(explanation: Explanation) -> list[LegendEntry]:
    """Return what the colours of directions mean."""
    spec = explanation.effects.spec
    if spec.labels:
        return [(place % 9, f"raises the probability of {label}") for place, label in enumerate(spec.labels)]
    return [(BLUE, f"lowers {spec.name}"), (RED, f"raises {spec.name}")]


def _loss_name(explanation: Explanation) -> str:
    return "Brier score" if explanation.effects.spec.labels else "mean absolute error"


def _rows_figure(
    explanation: Explanation, name: str, names: Sequence[str], values: Sequence[Interval], colours: Sequence[int],
    title: str, caption: str, axis: str = "",
) -> Figure:  # fmt: skip
    rows = [Row(label, value, colour) for label, value, colour in zip(names, values, colours, strict=True)]
    plot = draw_rows(rows, axis or title, line=0.0)
    listed = "; ".join(f"{row.name} {number(row.value.value)}" for row in rows)
    used = [entry for entry in legend_of(explanation) if entry[0] in colours]
    return Figure(
        name, title, f"{title}: {listed}.", plot.width, plot.height, plot.body, caption, used if len(used) > 1 else ()
    )


def importance_figures(explanation: Explanation, columns: Sequence[int]) -> list[Figure]:
    """Return the importance of the ASVs at `columns`, where the truth is known, and their mean effects."""
    importance, asvs = explanation.importance, explanation.asvs
    names = [asvs.label(column, LONGEST_LABEL) for column in columns]
    colours = [colour_of(explanation, explanation.raised(column)) for column in columns]
    units = explanation.group_column or "samples"
    caption = f"Bars are 95 % intervals over {units}; colours say what the presence of the ASV does to the prediction."
    plots = []
    if explanation.has_truth:
        values = [importance.importance[column] for column in columns]
        plots.append(
            _rows_figure(
                explanation, "importance", names, values, colours,
                f"Rise of the {_loss_name(explanation)} when the ASV is permuted", caption,
            )
        )  # fmt: skip
    directions = importance.direction()
    values = [importance.effect[directions[column]][column] for column in columns]
    unit = "probability" if explanation.effects.spec.labels else explanation.effects.spec.name
    plots.append(
        _rows_figure(
            explanation, "effects", names, values, colours, f"Mean effect of the ASV, where it is present, on {unit}",
            f"The prediction minus that of the same sample without the ASV. {caption}", f"effect on {unit}",
        )
    )  # fmt: skip
    return plots


def taxa_figure(explanation: Explanation, top: int) -> list[Figure]:
    """Return the most important genera, or taxa of the lowest rank there is, where the truth is known."""
    of_taxa = explanation.taxa
    if of_taxa is None or not explanation.has_truth:
        return []
    kinds = list(dict.fromkeys(one.kind for one in of_taxa.sets))
    rank = "genus" if "genus" in kinds else kinds[-1]
    places = [place for place in of_taxa.importance.order().tolist() if of_taxa.sets[place].kind == rank][:top]
    deepest = max(len(of_taxa.sets[place].lineage) for place in places)
    names = [
        display_name(one.lineage) + ("" if len(one.lineage) == deepest else f", no {rank}")
        for one in (of_taxa.sets[place] for place in places)
    ]
    values = [of_taxa.importance.importance[place] for place in places]
    colours = [colour_of(explanation, raised(of_taxa.effects, of_taxa.importance, place)) for place in places]
    return [
        _rows_figure(
            explanation, "taxa", names, values, colours, f"Importance by {rank}: sums over ASVs",
            "Each bar is the sum of the importances of the ASVs of a taxon, with its 95 % interval.",
        )
    ]  # fmt: skip


def _binned(values: Floats, order: Ints) -> Floats:
    """Return rows ``[N, C]`` in an order, as means of neighbours where there are more than `MOST_ROWS`."""
    parts = np.array_split(order, min(MOST_ROWS, len(order)))
    return np.array([values[part].mean(axis=0) for part in parts])


def _heatmap(values: Floats, names: Sequence[str], row_labels: Sequence[str], title: str) -> Plot:
    """Return a heatmap ``[R, C]``: blue below 0, red above, the deeper the larger; names stand on top."""
    rows, columns = values.shape
    width = max(SIDE + COLUMN_WIDTH * columns + TURNED, WIDTH)
    height = LABEL_HEIGHT + ROW_HEIGHT * rows + TOP
    plot = Plot((0, 1), (0, 1), (width, height))
    largest = np.quantile(np.abs(values[values != 0]), 0.98) if values.any() else 1.0
    shade = np.ceil(np.clip(np.abs(values) / largest, 0, 1) * SHADES).astype(int)
    for colour, sign in ((BLUE, -1), (RED, 1)):
        for level in range(1, SHADES + 1):
            at = np.argwhere((shade == level) & (np.sign(values) == sign))
            path = "".join(
                f"M{number_text(SIDE + COLUMN_WIDTH * column)} {number_text(LABEL_HEIGHT + ROW_HEIGHT * row)}"
                f"h{COLUMN_WIDTH - 1:g}v{ROW_HEIGHT:g}h-{COLUMN_WIDTH - 1:g}z"
                for row, column in at.tolist()
            )
            if path:
                plot.parts.append(f'<path class="fill f{colour}" d="{path}" opacity="{level / SHADES:.2f}"/>')
    for column, name in enumerate(names):
        place = f"translate({number_text(SIDE + COLUMN_WIDTH * (column + 0.6))} {LABEL_HEIGHT - 6:g}) rotate(-60)"
        plot.parts.append(f'<g transform="{place}">')
        plot.text(0, 0, name, "small")
        plot.parts.append("</g>")
    for row in range(0, rows, max(1, rows // 8)):
        plot.text(SIDE - 7, LABEL_HEIGHT + ROW_HEIGHT * row + 8, row_labels[row], "small soft end")
    middle = number_text(LABEL_HEIGHT + ROW_HEIGHT * rows / 2)
    plot.parts.append(f'<g transform="translate(13 {middle}) rotate(-90)">')
    plot.text(0, 0, shortened(title, 40), "middle")
    plot.parts.append("</g>")
    return plot


def _dense(matrices: Sequence[Matrix], outputs: Sequence[int], columns: Sequence[int]) -> Floats:
    """Return the effects ``[N, C]`` of some ASVs, each on its own output."""
    parts = [matrices[output][:, [column]].toarray()[:, 0] for output, column in zip(outputs, columns, strict=True)]
    return np.array(parts).T


def heatmap_figures(explanation: Explanation, columns: Sequence[int]) -> list[Figure]:
    """Return the effects of some ASVs in samples in the order of their prediction, and the network's attention."""
    effects, importance = explanation.effects, explanation.importance
    labels = effects.spec.labels
    place = 1 if len(labels) == 2 else 0
    by = effects.prediction[:, place] if len(labels) <= 2 else effects.prediction.argmax(axis=1).astype(float)
    order = np.argsort(by, kind="stable")
    shown = _binned(by[:, None], order)[:, 0]
    texts = [labels[round(float(value))] if len(labels) > 2 else f"{value:.3g}" for value in shown]
    what = "predicted class" if len(labels) > 2 else f"predicted {labels[1] if labels else effects.spec.name}"
    directions = importance.direction()
    values = _binned(_dense(effects.effects, [int(directions[column]) for column in columns], columns), order)
    names = [explanation.asvs.label(column, LONGEST_LABEL) for column in columns]
    plot = _heatmap(values, names, texts, what)
    raised_text = "the class that the ASV raises" if len(labels) > 2 else "the prediction"
    binned = f" Each row is the mean of about {len(order) / len(shown):.0f} samples." if len(shown) < len(order) else ""
    plots = [
        Figure(
            "heatmap", "Effects by sample", f"Effects of {len(names)} ASVs in samples in the order of the prediction.",
            plot.width, plot.height, plot.body,
            f"Red raises {raised_text}, blue lowers it; the deeper, the more. Blank: the ASV is absent.{binned}",
        )
    ]  # fmt: skip
    if effects.attention is None:
        return plots
    mean = np.asarray(effects.attention.mean(axis=0)).ravel()
    attended = np.argsort(-mean, kind="stable")[: len(columns)].tolist()
    values = _binned(effects.attention[:, attended].toarray(), order)
    plot = _heatmap(values, [explanation.asvs.label(column, LONGEST_LABEL) for column in attended], texts, what)
    plots.append(
        Figure(
            "attention", "Attention of the network, which is not importance",
            f"Weights of attention of {len(attended)} ASVs in samples in the order of the prediction.",
            plot.width, plot.height, plot.body,
            "The share of a sample's attention that each ASV gets when the network pools ASVs. An ASV may be looked at "
            f"and change nothing, or the other way round; the figures of importance say what matters.{binned}",
        )
    )  # fmt: skip
    return plots


def explanation_figures(explanation: Explanation, top: int) -> list[Figure]:
    """Return all figures of one target, of its `top` most important ASVs."""
    order = explanation.importance.order()
    columns = order[explanation.importance.carriers[order] > 0][:top].tolist()
    tree = tree_figure(explanation, order, colour_of, legend_of(explanation))
    return [
        *importance_figures(explanation, columns), *taxa_figure(explanation, top), *tree,
        *heatmap_figures(explanation, columns),
    ]  # fmt: skip


def write_figures(folder: Path, explanation: Explanation, top: int) -> None:
    """Write the figures of one target as SVG files."""
    folder.mkdir()
    for figure in explanation_figures(explanation, top):
        write_text(folder / f"{figure.name}.svg", standalone(figure))
