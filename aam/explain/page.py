"""Figures of an explanation (ASVs, taxa, clades, effects by sample, attention), its tables, and its
page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aam.evaluate.intervals import Interval, number, with_limits
from aam.explain.importance import HIGHER, LOWER
from aam.explain.results import Explanation
from aam.io.taxonomy import display_name
from aam.report.charts import Figure, IntervalRow, interval_chart, listed
from aam.report.report import FOLDED_ROWS
from aam.report.report_html import page_frame, templates
from aam.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

TAXA_SHOWN = 10

# Rows of the figure that stands at the start of a report.
FIRST_SHOWN = 8

# Numbers of colours: lower or the first class, higher or the second; other classes follow.
BLUE, RED, OTHER = 0, 1, 8


def colour_of(explanation: Explanation, raises: str) -> int:
    """Return the colour of what is raised: a class by its place, or higher and lower."""
    labels = explanation.effects.spec.labels
    if labels:
        return labels.index(raises) % 9 if raises in labels else OTHER
    return {HIGHER: RED, LOWER: BLUE}.get(raises, OTHER)


def _legend(explanation: Explanation) -> dict[int, str]:
    """Meaning of the colours of directions."""
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


def direction(table: pd.DataFrame, place: int, of: str = "") -> str:
    """What an ASV or taxon raises, then `of`; with a question mark if the interval holds 0."""
    effect = interval_in(table, place, "effect")
    doubt = "?" if effect.low <= 0 <= effect.high else ""
    return f"{table.loc[place, 'raises'] or '-'}{of}{doubt}"


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
    """Description of the bars of importances of ASVs or taxa."""
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


def importance_figure(explanation: Explanation, columns: Sequence[int]) -> Figure:
    """Importance of the ASVs at `columns`; without a truth, their mean effects."""
    spec, features = explanation.effects.spec, explanation.features
    labels = {column: explanation.asvs.label(column) for column in columns}
    if not explanation.has_truth:
        unit = "probability" if spec.labels else spec.name
        return _rows_figure(
            explanation,
            features,
            labels,
            "effect",
            name="effects",
            axis=f"effect on {unit}",
            title=f"Mean effect of the ASV, where it is present, on {unit}",
            caption="The prediction minus that of the same sample without the ASV. Bars are 95 % "
            "intervals.",
        )
    loss = _loss(explanation)
    return _rows_figure(
        explanation,
        features,
        labels,
        "importance",
        name="importance",
        axis=f"rise of the {loss}",
        title=f"Rise of the {loss} when the ASV is permuted",
        caption=f"The {loss} of these samples is {number(explanation.loss)}. "
        f"{_test_words(features, 'ASVs')} Colours show what the presence of the ASV does to the "
        f"prediction. {explanation.asvs.unnamed}".rstrip(),
    )


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


@lru_cache(maxsize=4)
def explanation_figures(explanation: Explanation, top: int) -> list[Figure]:
    """Return all figures of one target, of its `top` most important ASVs, made once for the page
    and for the files.
    """
    columns = explanation.features.index[:top].tolist()
    return [importance_figure(explanation, columns), *taxa_figure(explanation, top)]


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
            return direction(table, row)
        if isinstance(value, float):
            return f"{value:.0f}" if name == "samples" else number(value)
        return str(value) or "-"

    rows = tuple(tuple(cell(row, name) for name in columns) for row in table.index)
    return Table("", tuple(columns.values()), rows)


def asv_table(explanation: Explanation, top: int) -> Table:
    """The most important ASVs."""
    table = explanation.features.head(top)
    lineages = [explanation.asvs.lineage(column) for column in table.index]
    table = table.assign(taxon=[display_name(lineage) if lineage else "" for lineage in lineages])
    columns = {
        "short-id": "ASV",
        "taxon": "taxon",
        "samples": "samples",
        "importance": "importance, 95 % interval",
        "q": "q",
        "raises": "direction",
        "effect": "mean effect",
    }
    if explanation.effects.attention is not None:
        shares = np.asarray(explanation.effects.attention.mean(axis=0)).ravel()
        table = table.assign(attention=shares[table.index.to_numpy()])
        columns["attention"] = "attention, mean share"
    return replace(_cells(table, columns), title="The most important ASVs", name="importance")


def taxa_tables(explanation: Explanation) -> list[Table]:
    """The most important taxa of each rank."""
    if explanation.taxa is None:
        return []
    titles = {
        "ASVs": "ASVs",
        "importance": "importance, 95 % interval",
        "q": "q",
        "raises": "direction",
        "first": "most important ASV",
    }
    place = explanation.features["rank"].to_dict()
    tables = []
    for rank, part in explanation.taxa.groupby("rank", sort=False):
        table, sets = (
            part.head(TAXA_SHOWN),
            [explanation.sets[at] for at in part.index[:TAXA_SHOWN]],
        )
        first = [min(one.columns, key=place.__getitem__) for one in sets]
        table = table.assign(
            name=[one.name for one in sets],
            first=[explanation.asvs.short_ids[column] for column in first],
        )
        title = f"The most important taxa ({rank}): sums over ASVs"
        cells = _cells(table, {"name": str(rank), **titles})
        tables.append(replace(cells, title=title, name="taxa"))
    return tables


def _first_figure(drawn: Sequence[Figure]) -> Figure:
    """The figure that answers what drives the predictions: of taxa, else of ASVs."""
    return next((figure for figure in drawn if figure.name == "taxa"), drawn[0])


def features_html(explanation: Explanation, top: int) -> str:
    """Figure of the most important taxa, or ASVs without a taxonomy, for a report's start."""
    figure = _first_figure(explanation_figures(explanation, min(top, FIRST_SHOWN)))
    template = templates().from_string(
        '{% from "parts.html.j2" import picture %}{{ picture(figure) }}'
    )
    title = "What drives the predictions: " + figure.title
    return template.render(figure=replace(figure, title=title)).strip()


def importances_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """The part of a run's report on what drives its predictions, without what stands at its start
    and without taxa of all ranks.
    """
    template, targets = templates().get_template("importances.html.j2"), []
    for explanation in explanations:
        figures = explanation_figures(explanation, top)
        targets.append(
            {
                "opening": opening(explanation),
                "figures": [figure for figure in figures if figure is not _first_figure(figures)],
                "tables": [asv_table(explanation, top)],
            }
        )
    return template.render(notes=notes, targets=targets, folded_rows=FOLDED_ROWS)


def explanation_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Page of some targets, which needs no other file."""
    targets = [
        {
            "name": explanation.effects.spec.name,
            "opening": opening(explanation),
            "figures": explanation_figures(explanation, top),
            "tables": [asv_table(explanation, top), *taxa_tables(explanation)],
        }
        for explanation in explanations
    ]
    page = templates().get_template("explain.html.j2")
    words = {"title": "aam explain", "notes": notes, "targets": targets}
    return page.render(page_frame(), **words) + "\n"
