"""Figures of an explanation (ASVs, taxa, clades, effects by sample, attention), its tables, and its
page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from aam.evaluate.intervals import LEAST_GROUPS, Interval, number, with_limits
from aam.explain.effects import Floats, Ints, Matrix
from aam.explain.importance import HIGHER, LOWER
from aam.explain.results import CLADE, Explanation
from aam.io.phylogeny import prune
from aam.io.taxonomy import display_name
from aam.report.charts import (
    LIGHT,
    SOFT,
    WIDTH,
    Chart,
    Figure,
    IntervalRow,
    data,
    interval_chart,
    levels,
    listed,
    shades_legend,
    text_width,
)
from aam.report.report import FOLDED_ROWS
from aam.report.report_html import entries, names_in, page_frame, templates
from aam.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

TAXA_SHOWN = 10

# ASVs that are listed of each class.
ASVS_OF_CLASS = 3

# Rows of the figure that stands at the start of a report.
FIRST_SHOWN = 8

# Larger clades are left to clades.tsv: near the root each is nearly all ASVs.
LARGEST_CLADE = 30

# Characters of the name of an ASV in a heatmap and a tree, and the pixels for them.
LONGEST_LABEL, LABEL_LIMIT = 41, 300

# Numbers of colours: lower or the first class, higher or the second; other classes follow.
BLUE, RED, OTHER = 0, 1, 8

# Samples stand in at most so many rows of a heatmap, each the mean of neighbours.
MOST_ROWS = 80
ROW_HEIGHT, COLUMN_WIDTH, NAMES_WIDTH = 4, 17, 120

# Rows that a name needs.
NAME_ROWS = 3

# Shades of a heatmap; the share of its values that are told apart by them: larger ones have the
# deepest.
SHADES, DEEPEST = 8, 0.98

# Tips of the tree, the height of each, and from where to where branches and names stand, in pixels.
MOST_TIPS = 40
TIP_HEIGHT = 15
TREE_LEFT, TREE_RIGHT = 4, WIDTH - 24
THIN, THICK = 0.8, 7.0


def colour_of(explanation: Explanation, raises: str) -> int:
    """Return the colour of what is raised: a class by its place, or higher and lower."""
    labels = explanation.effects.spec.labels
    if labels:
        return labels.index(raises) % 9 if raises in labels else OTHER
    return {HIGHER: RED, LOWER: BLUE}.get(raises, OTHER)


def _legend(explanation: Explanation) -> dict[int, str]:
    """Return what the colours of directions mean."""
    spec = explanation.effects.spec
    if spec.labels:
        return {
            place: f"raises the probability of {label}"
            for place, label in enumerate(spec.labels[:OTHER])
        }
    return {BLUE: f"lowers {spec.name}", RED: f"raises {spec.name}"}


def interval_in(table: pd.DataFrame, place: int, name: str) -> Interval:
    """Return a value with its limits from a table of an explanation."""
    return Interval(*table.loc[place, [name, f"{name}.low", f"{name}.high"]].astype(float))


def lowered_more(table: pd.DataFrame) -> list[str]:
    """Return the class that each ASV or taxon of a table lowers by more than it raises any, empty
    where none is.
    """
    names = [name for name in table if name.startswith("effect=")]
    if not names:
        return [""] * len(table)
    effects = table[names].to_numpy()
    by_more = (-effects.min(axis=1) > effects.max(axis=1)).tolist()
    lowest = effects.argmin(axis=1).tolist()
    return [
        names[at].removeprefix("effect=") if more else ""
        for at, more in zip(lowest, by_more, strict=True)
    ]


def speaks_for(table: pd.DataFrame, place: int, of: str = "") -> str:
    """Return what an ASV or taxon speaks for, then `of`; a question mark where the interval of its
    effect holds 0.

    Of several classes, one that it lowers more than it raises any is named too.
    """
    effect = interval_in(table, place, "effect")
    text = f"{table.loc[place, 'raises'] or '-'}{of}{'?' if effect.low <= 0 <= effect.high else ''}"
    (lowered,) = lowered_more(table.loc[[place]])
    return f"{text}; more against {lowered}" if lowered else text


def _corrected(table: pd.DataFrame, place: int) -> tuple[Interval, str]:
    """Return an importance with the limits of its test, and its text: where nothing is tested 95 %
    limits, and none.
    """
    if table["q"].isna().all():
        value = interval_in(table, place, "importance")
        return value, with_limits(value)
    value, q, low, high = table.loc[
        place, ["importance", "q", "corrected.low", "corrected.high"]
    ].astype(float)
    return Interval(
        value, low, high
    ), f"{number(value)}, {'not tested' if math.isnan(q) else f'q {number(q)}'}"


def _test_words(table: pd.DataFrame, what: str) -> str:
    """Return what the bars of importances of ASVs or taxa are."""
    tested = int(table["q"].notna().sum())
    if not tested:
        return "Bars are 95 % intervals."
    file = "features.tsv" if what == "ASVs" else "ASVs of no taxon are not tested. taxa.tsv"
    return (
        f"Bars are corrected for the {tested} {what} that are tested: one that holds 0 does not "
        "stand out. "
        f"{file} has the 95 % interval of each alone."
    )


def _rows_figure(
    explanation: Explanation,
    table: pd.DataFrame,
    labels: Mapping[int, str],
    value: str,
    **texts: str,
) -> Figure:
    """Return a column of the rows of a table that have labels, in the colours of what each row
    raises.
    """
    rows = []
    for place, label in labels.items():
        colour = colour_of(explanation, table.loc[place, "raises"])
        of_row = (
            _corrected(table, place)
            if value == "importance"
            else (interval_in(table, place, value), None)
        )
        rows.append(IntervalRow(label, of_row[0], colour, of_row[1]))
    axis = texts.pop("axis", texts["title"])
    chart = interval_chart(rows, axis, 0.0, list(_legend(explanation).items()))
    description = f"{texts['title']}: {listed(rows)}."
    return Figure(texts["name"], texts["title"], description, chart, texts["caption"])


def _loss(explanation: Explanation) -> str:
    return "half Brier score" if explanation.effects.spec.labels else "mean absolute error"


def importance_figures(explanation: Explanation, columns: Sequence[int]) -> list[Figure]:
    """Return the importance of the ASVs at `columns`, where the truth is known, and their mean
    effects.
    """
    spec, features = explanation.effects.spec, explanation.features
    labels = {column: explanation.asvs.label(column) for column in columns}
    units = explanation.group_column or "samples"
    colours = "Colours say what the presence of the ASV does to the prediction"
    colours += (
        ": which class it raises most, though it may lower another by more."
        if len(spec.labels) > 2
        else "."
    )
    loss, unit = _loss(explanation), "probability" if spec.labels else spec.name
    effects = _rows_figure(
        explanation,
        features,
        labels,
        "effect",
        name="effects",
        axis=f"effect on {unit}",
        title=f"Mean effect of the ASV, where it is present, on {unit}",
        caption="The prediction minus that of the same sample without the ASV: what the model "
        "does with it. Whether "
        f"predictions are better for it is its importance. Bars are 95 % intervals over {units}.",
    )
    if not explanation.has_truth:
        return [effects]
    title = f"Rise of the {loss} when the ASV is permuted"
    as_it_is = (
        f"As it is, the {loss} of these samples is {number(explanation.loss)}, of the "
        "rarefactions explained here."
    )
    of_importance = _rows_figure(
        explanation,
        features,
        labels,
        "importance",
        name="importance",
        title=title,
        caption=f"{as_it_is} {_test_words(features, 'ASVs')} {colours} {explanation.asvs.unnamed}".rstrip(),  # noqa: E501
    )
    return [of_importance, effects]


def taxa_figure(explanation: Explanation, top: int) -> list[Figure]:
    """Return the most important genera, or taxa of the lowest rank there is, where the truth is
    known.
    """
    table = explanation.main_taxa
    if table is None or not explanation.has_truth:
        return []
    rank, labels = (
        table["rank"].iloc[0],
        {at: explanation.sets[at].label for at in table.index[:top]},
    )
    return [
        _rows_figure(
            explanation,
            table,
            labels,
            "importance",
            name="taxa",
            title=f"Importance by {rank}: sums over ASVs",
            axis=f"rise of the {_loss(explanation)}, summed over ASVs",
            caption="The sum of the importances of the ASVs of each taxon, or of all that have "
            f"no known {rank}. "
            f"{_test_words(table, 'taxa')}",
        )
    ]


def tree_figure(explanation: Explanation) -> list[Figure]:
    """Return the tree of the `MOST_TIPS` most important ASVs that have a tip, if there is a tree.

    A branch is as thick as the importance of these ASVs below it, summed (without a truth, their
    mean absolute effect), and has the colour of what most of that raises.
    """
    if explanation.tree is None:
        return []
    tree, tips = explanation.tree
    columns = [column for column in explanation.features.index if tips[column] >= 0][:MOST_TIPS]
    if len(columns) < 2:
        return []
    columns.sort(key=lambda column: int(tips[column]))
    pruned = prune(tree, tips[columns])
    below = [slice(lo, hi) for lo, hi in zip(pruned.lo.tolist(), pruned.hi.tolist(), strict=True)]
    features = explanation.features.loc[columns]
    weight = (
        features["importance" if explanation.has_truth else "mean-absolute-effect"]
        .clip(lower=0)
        .to_numpy()
    )
    colours = np.array([colour_of(explanation, raises) for raises in features["raises"]])
    total = np.array([weight[part].sum() for part in below])
    thick = THIN + (THICK - THIN) * np.sqrt(
        total / max(float(total[:-1].max(initial=0.0)), 1e-12)
    ).clip(0, 1)
    depth = np.zeros(len(below))
    for node in range(len(below) - 2, -1, -1):
        depth[node] = depth[pruned.parent[node]] + pruned.length[node]
    height = [-(part.start + part.stop - 1) / 2 for part in below]
    what, legend, rows = (
        "importance" if explanation.has_truth else "mean absolute effect",
        _legend(explanation),
        [],
    )
    for node, part in enumerate(below[:-1]):
        above, single = int(pruned.parent[node]), part.stop - part.start == 1
        colour = int(np.bincount(colours[part], weight[part] + 1e-12).argmax())
        label = (
            explanation.asvs.label(columns[part.start], LONGEST_LABEL)
            if single
            else f"{part.stop - part.start} ASVs"
        )
        rows.append(
            {
                "x": float(depth[above]),
                "x2": float(depth[node]),
                "y": height[node],
                "y2": height[above],
                "kind": legend.get(colour, str(colour)),
                "colour": colour,
                "width": round(float(thick[node]), 2),
                "label": label if single else "",
                "tip": f"{label}: {what} {number(float(total[node]))}",
            }
        )
    used = sorted({int(str(row["colour"])) for row in rows})
    colour = levels("kind", {legend.get(one, str(one)): one for one in used}, legend=len(used) > 1)[
        "color"
    ]
    chart = alt.Chart(data(rows)).encode(
        y=alt.Y("y:Q", axis=None, scale=alt.Scale(nice=False, zero=False, padding=8))
    )
    names = max(text_width(str(row["label"])) for row in rows)
    scale = alt.Scale(nice=False, zero=False, range=[TREE_LEFT, TREE_RIGHT - names])
    length = alt.X("x:Q", axis=None, scale=scale)
    stem = chart.mark_rule(color=SOFT, strokeWidth=0.7).encode(length, alt.Y2("y2:Q"))
    width = alt.StrokeWidth("width:Q", scale=None)
    branch = chart.mark_rule(aria=True).encode(
        length, alt.X2("x2:Q"), colour, width, alt.Description("tip:N")
    )
    label = chart.mark_text(align="left", dx=6).encode(alt.X("x2:Q"), alt.Text("label:N"))
    best = explanation.asvs.label(columns[int(weight.argmax())])
    return [
        Figure(
            "tree",
            "The most important ASVs on the tree",
            f"A tree of {len(columns)} ASVs; the thickest branch leads to {best}.",
            alt.layer(stem, branch, label).properties(
                width=WIDTH, height=TIP_HEIGHT * len(columns) + 16
            ),
            f"A branch is as thick as the {what} of the ASVs below it that are shown, summed.",
        )
    ]


def _rows(order: Ints, by: Floats, classes: bool) -> list[Ints]:
    """Return the samples of each row of a heatmap: neighbours in an order, where there are more
    than `MOST_ROWS`.

    Of classes, numbered in `by` [N], none shares a row, and each of so many samples has rows enough
    for its name.
    """
    parts = [order[by[order] == one] for one in np.unique(by)] if classes else [order]
    share = MOST_ROWS / len(order)
    return [
        row
        for part in parts
        for row in np.array_split(part, min(len(part), max(NAME_ROWS, round(share * len(part)))))
    ]


def _named_rows(row_labels: Sequence[str], classes: bool) -> list[int]:
    """Return the rows that are named: the middle of the rows of each class or, of numbers, some at
    equal distances.

    Names have `NAME_ROWS` rows each: one that is nearer to that before it is left out.
    """
    if not classes:
        return list(range(0, len(row_labels), max(NAME_ROWS, len(row_labels) // 8)))
    named = [-NAME_ROWS]
    for label in dict.fromkeys(row_labels):
        rows = [row for row, other in enumerate(row_labels) if other == label]
        named += [middle] if (middle := rows[len(rows) // 2]) - named[-1] >= NAME_ROWS else []
    return named[1:]


def _heatmap(
    values: Floats,
    names: Sequence[str],
    row_labels: Sequence[str],
    named: Sequence[int],
    title: str,
    what: str,
) -> Chart:
    """Return a heatmap ``[R, C]`` of `what`: blue below 0, red above, the deeper the larger; names
    stand on top.
    """
    largest = np.quantile(np.abs(values[values != 0]), DEEPEST) if values.any() else 1.0
    shade = np.ceil(np.clip(np.abs(values) / largest, 0, 1) * SHADES) / SHADES
    names = [
        f"{at + 1}. {name}" if names.count(name) > 1 else name for at, name in enumerate(names)
    ]
    rows = [
        {
            "row": row,
            "name": names[column],
            "sign": "above 0" if values[row, column] > 0 else "below 0",
            "size": float(largest * shade[row, column]),
            "tip": f"{names[column]}, {row_labels[row]}: {number(float(values[row, column]))}",
        }
        for row, column in np.argwhere(shade > 0).tolist()
    ]
    label_of_row = f"{json.dumps(row_labels)}[datum.value]"
    y_axis = alt.Axis(
        values=list(named),
        tickCount=len(named),
        labelOverlap=False,
        labelExpr=label_of_row,
        domain=False,
    )
    top = alt.Axis(
        orient="top",
        labelAngle=-90,
        labelAlign="left",
        labelLimit=LABEL_LIMIT,
        domain=False,
        ticks=False,
    )
    signs = {"above 0": LIGHT[RED], "below 0": LIGHT[BLUE]}
    signs = {
        sign: colour for sign, colour in signs.items() if any(row["sign"] == sign for row in rows)
    }
    colour = alt.Scale(domain=list(signs), range=list(signs.values()))
    shades = shades_legend(what, [largest / 4, largest / 2, largest], ".2g", SOFT)
    size: dict[str, Any] = {
        "width": max(COLUMN_WIDTH * len(names) + NAMES_WIDTH, WIDTH),
        "height": ROW_HEIGHT * len(values),
    }
    return (
        alt.Chart(data(rows), **size)
        .mark_rect(aria=True)
        .encode(
            alt.X("name:N", title=None, axis=top, scale=alt.Scale(domain=names)),
            alt.Y(
                "row:O", title=title, axis=y_axis, scale=alt.Scale(domain=list(range(len(values))))
            ),
            alt.Color("sign:N", scale=colour, legend=alt.Legend(direction="horizontal")),
            alt.Description("tip:N"),
            alt.Opacity(
                "size:Q", scale=alt.Scale(domain=[0, largest], range=[0, 1]), legend=shades
            ),
        )
    )


def heatmap_figures(explanation: Explanation, columns: Sequence[int]) -> list[Figure]:
    """Return the effects of some ASVs in samples in the order of their prediction, and the
    network's attention.
    """
    effects = explanation.effects
    labels = effects.spec.labels
    by = effects.prediction[:, 1 if len(labels) == 2 else 0]
    by = by if len(labels) <= 2 else effects.prediction.argmax(axis=1).astype(float)
    order = np.argsort(by, kind="stable")
    rows = _rows(order, by, len(labels) > 2)
    middle = [float(by[row[len(row) // 2]]) for row in rows]
    texts = [labels[int(value)] if len(labels) > 2 else f"{value:.3g}" for value in middle]
    what = (
        "predicted class"
        if len(labels) > 2
        else f"predicted {labels[1] if labels else effects.spec.name}"
    )
    notes = (
        f" The largest {1 - DEEPEST:.0%} of the values all have the deepest shade; a pointer "
        "shows each value."
    )
    if len(order) >= 2 * len(rows):
        notes += f" Each row is the mean of about {len(order) / len(rows):.0f} samples."

    def heatmap(matrices: Sequence[Matrix], asvs: Sequence[int], of: str) -> Chart:
        parts = [
            matrix[:, [column]].toarray()[:, 0]
            for matrix, column in zip(matrices, asvs, strict=True)
        ]
        names = [explanation.asvs.label(column, LONGEST_LABEL) for column in asvs]
        values = np.array(parts).T
        means = np.array([values[row].mean(axis=0) for row in rows])
        return _heatmap(means, names, texts, _named_rows(texts, len(labels) > 2), what, of)

    raised = explanation.features["raises"]
    matrices = [
        dict(zip(effects.outputs, effects.effects, strict=True)).get(raised[c], effects.effects[0])
        for c in columns
    ]
    raised_text = "the class that the ASV raises" if len(labels) > 2 else "the prediction"
    plots = [
        Figure(
            "heatmap",
            "Effects by sample",
            f"Effects of {len(columns)} ASVs in samples in the order of the prediction.",
            heatmap(matrices, columns, "change of the prediction"),
            f"Red raises {raised_text}, blue lowers it; the deeper, the more. Blank: the ASV is "
            f"absent.{notes}",
        )
    ]
    if effects.attention is None:
        return plots
    mean = np.asarray(effects.attention.mean(axis=0)).ravel()
    attended = np.argsort(-mean, kind="stable")[: len(columns)].tolist()
    attention = Figure(
        "attention",
        "Attention of the network, which is not importance",
        f"Weights of attention of {len(attended)} ASVs in samples in the order of the prediction.",
        heatmap([effects.attention] * len(attended), attended, "share of the attention"),
        "The share of a sample's attention that each ASV gets when the network pools ASVs. An "
        "ASV may be looked at "
        "and change nothing, or the other way round; the figures of importance say what "
        f"matters.{notes}",
    )
    return [*plots, attention]


@lru_cache(maxsize=4)
def explanation_figures(explanation: Explanation, top: int) -> list[Figure]:
    """Return all figures of one target, of its `top` most important ASVs, made once for the page
    and for the files.
    """
    columns = explanation.features.index[:top].tolist()
    return [
        *importance_figures(explanation, columns),
        *taxa_figure(explanation, top),
        *tree_figure(explanation),
        *heatmap_figures(explanation, columns),
    ]


def write_figures(folder: Path, explanation: Explanation, top: int) -> None:
    """Write the figures of one target as SVG and PNG files."""
    folder.mkdir()
    for figure in explanation_figures(explanation, top):
        figure.write(folder)


# --- tables and page ---------------------------------------------------------------------------


def opening(explanation: Explanation) -> str:
    """Return in plain words what was explained and what stands out."""
    spec = explanation.effects.spec
    words = {
        "held-out": "samples from which its models have not learned",
        "training": "samples of the training",
    }
    what = (
        f"What drives the predictions of {spec.name}, in "
        f"{words.get(explanation.subset, explanation.subset)}: "
    )
    out = explanation.stands_out
    leaders = ", ".join(explanation.asvs.label(column) for column in out.index[out][:5])
    text = f"{what}{explanation.verdict()}." + (
        f" Of those that stand out, the most important are {leaders}." if leaders else ""
    )
    of_taxa = explanation.taxa_verdict()
    return f"{text} {of_taxa}." if of_taxa else text


def _cells(table: pd.DataFrame, columns: Mapping[str, str]) -> Table:
    """Return the `columns` of a table of an explanation under their titles, values with their
    limits.
    """

    def cell(row: int, name: str) -> str:
        if f"{name}.low" in table:
            return with_limits(interval_in(table, row, name))
        value = table.loc[row, name]
        if name == "raises":
            return speaks_for(table, row)
        if isinstance(value, float):
            return f"{value:.0f}" if name == "samples" else number(value)
        return str(value) or "-"

    rows = tuple(tuple(cell(row, name) for name in columns) for row in table.index)
    return Table("", tuple(columns.values()), rows)


def _means_of_truth(explanation: Explanation, columns: Iterable[int]) -> dict[str, list[float]]:
    """Return the mean true number of the samples that have each ASV, and of those that have not;
    NaN without any.
    """
    truth, carriers = explanation.effects.truth, explanation.effects.carriers.tocsc()
    known = np.isfinite(truth)
    # Shares of rarefactions; sums of 1 / k are 1 but for rounding.
    has = [np.asarray(carriers[:, [column]].todense())[known, 0].round(9) for column in columns]
    shares = {"with": has, "without": [1 - one for one in has]}
    return {
        name: [
            float(np.average(truth[known], weights=one)) if one.any() else math.nan
            for one in weights
        ]
        for name, weights in shares.items()
    }


def asv_table(explanation: Explanation, top: int) -> Table:
    """Return the most important ASVs."""
    table = explanation.features.head(top)
    lineages = [explanation.asvs.lineage(column) for column in table.index]
    table = table.assign(taxon=[display_name(lineage) if lineage else "" for lineage in lineages])
    observed = {
        "with": f"mean {explanation.effects.spec.name} of samples with it",
        "without": "without it",
    }
    numeric = not explanation.effects.spec.labels
    if numeric:
        means = _means_of_truth(explanation, table.index)
        apart = np.subtract(means["with"], means["without"]) * table["effect"].to_numpy()
        raises = [
            f"{word} given the others" if one < 0 else word
            for word, one in zip(table["raises"], apart, strict=True)
        ]
        table = table.assign(raises=raises, **means)
    # Models of presence alone have nothing to divide.
    parts = {"presence-effect": "by presence", "abundance-effect": "by reads"}
    columns = {
        "short-id": "ASV",
        "taxon": "taxon",
        "samples": "samples",
        "importance": "importance, 95 % interval of it alone",
        "q": "q",
        "raises": "speaks for",
        "effect": "mean effect",
        **(observed if numeric else {}),
        **(parts if explanation.features["abundance-effect"].any() else {}),
    }
    return replace(_cells(table, columns), title="The most important ASVs", name="importance")


def class_table(explanation: Explanation) -> list[Table]:
    """Return the `ASVS_OF_CLASS` most important of the ASVs that raise each of three classes or
    more.

    Those that lower another class by more mark no class.
    """
    import pandas as pd

    outputs, table = explanation.effects.outputs, explanation.features
    if len(outputs) < 2:
        return []
    table = table[[not lowered for lowered in lowered_more(table)]]
    table = pd.concat([table[table["raises"] == label].head(ASVS_OF_CLASS) for label in outputs])
    carriers, truth = explanation.effects.carriers.tocsc(), explanation.effects.truth
    shares = {"with": list[str](), "without": list[str]()}
    for column, raises in table["raises"].items():
        is_class, has = truth == outputs.index(raises), carriers[:, [column]].toarray()[:, 0]
        for name, rows in (("with", is_class), ("without", np.isfinite(truth) & ~is_class)):
            shares[name].append(f"{has[rows].mean():.0%}" if rows.any() else "-")
    names = [explanation.asvs.label(column) for column in table.index]
    table = table.assign(name=names, label=table["raises"], **shares)
    columns = {
        "label": "class",
        "name": "ASV",
        "with": "has it, of the class",
        "without": "of the others",
        "effect": "mean effect on its probability",
        "importance": "importance, 95 % interval of it alone",
        "q": "q",
    }
    return [
        replace(
            _cells(table, columns), title="The most important ASVs of each class", name="importance"
        )
    ]


def set_tables(explanation: Explanation) -> list[Table]:
    """Return the most important taxa of each rank, and clades."""
    titles = {
        "ASVs": "ASVs",
        "importance": "importance, 95 % interval of it alone",
        "q": "q",
        "raises": "speaks for",
        "first": "its most important ASV",
    }
    parts: dict[str, pd.DataFrame] = {}
    rank = explanation.features["rank"].to_dict()
    if explanation.taxa is not None:
        parts |= dict(iter(explanation.taxa.groupby("rank", sort=False)))
    if explanation.clades is not None:
        parts[CLADE] = explanation.clades[explanation.clades["ASVs"] <= LARGEST_CLADE]
    tables = []
    for kind, part in parts.items():
        sets, table = (
            [explanation.sets[place] for place in part.index[:TAXA_SHOWN]],
            part.head(TAXA_SHOWN),
        )
        of_clade = [
            f": {display_name(one.lineage)}" if kind == CLADE and one.lineage else ""
            for one in sets
        ]
        names = [f"{one.name}{lowest}" for one, lowest in zip(sets, of_clade, strict=True)]
        first = [min(one.columns, key=rank.__getitem__) for one in sets]
        table = table.assign(
            name=names, first=[explanation.asvs.short_ids[column] for column in first]
        )
        of = f"clades of at most {LARGEST_CLADE} ASVs" if kind == CLADE else f"taxa, {kind}"
        title = f"The most important {of}: sums over ASVs"
        tables.append(replace(_cells(table, {"name": kind, **titles}), title=title, name="taxa"))
    return tables


def learner_table(explanation: Explanation) -> list[Table]:
    """Return how far each learner orders ASVs as the whole model does."""
    features, learners = explanation.features, explanation.effects.learners
    used = features[features["importance"].notna() & (features["groups"] >= LEAST_GROUPS)]
    if len(used) < 3 or len(learners) < 2:
        return []
    ranks = used.rank()
    rows = (
        (name, number(ranks["importance"].corr(ranks[f"importance.{name}"]))) for name in learners
    )
    title = (
        "Whether each member ranks the ASVs as the whole model does: rank correlation over "
        f"{len(used)} ASVs"
    )
    return [Table(title, ("member", "rank correlation"), tuple(rows), "importance")]


def _target(explanation: Explanation, top: int) -> dict[str, object]:
    return {
        "name": explanation.effects.spec.name,
        "opening": opening(explanation),
        "figures": explanation_figures(explanation, top),
        "tables": [
            asv_table(explanation, top),
            *class_table(explanation),
            *set_tables(explanation),
            *learner_table(explanation),
        ],
    }


def _first_figure(of_target: Sequence[Figure]) -> Figure:
    """Return the figure that answers what drives the predictions: of taxa, else of ASVs."""
    return next((figure for figure in of_target if figure.name == "taxa"), of_target[0])


def features_html(explanation: Explanation, top: int) -> str:
    """Return the figure of the most important taxa, or ASVs where those are not known, for the
    start of a report.
    """
    figure = _first_figure(explanation_figures(explanation, min(top, FIRST_SHOWN)))
    template = templates().from_string(
        '{% from "parts.html.j2" import picture %}{{ picture(figure) }}'
    )
    return template.render(
        figure=replace(figure, title="What drives the predictions: " + figure.title)
    ).strip()


def importances_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Return the part of a run's report that says what drives its predictions, without tables of
    taxa and clades.

    The figure of `features_html` is not in it.
    """
    template, targets, names = templates().get_template("importances.html.j2"), [], list[str]()
    for explanation in explanations:
        figures = explanation_figures(explanation, top)
        names += [figure.name for figure in figures]
        targets.append(
            {
                "opening": opening(explanation),
                "figures": [figure for figure in figures if figure is not _first_figure(figures)],
                "tables": [asv_table(explanation, top), *class_table(explanation)],
            }
        )
    reading = entries(names)
    return template.render(notes=notes, targets=targets, folded_rows=FOLDED_ROWS, reading=reading)


def explanation_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Return the page of some targets, which needs no other file."""
    page = templates().get_template("explain.html.j2")
    targets = [_target(explanation, top) for explanation in explanations]
    words = {"title": "aam explain", "notes": notes, "targets": targets}
    return page.render(page_frame(), reading=entries(names_in(targets)), **words) + "\n"
