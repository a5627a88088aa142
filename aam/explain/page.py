"""Figures of an explanation (ASVs and taxa), its tables, and its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam.evaluate.intervals import Interval, number, with_limits
from aam.explain.results import HIGHER, LOWER, Explanation
from aam.report.charts import Figure, IntervalRow, Table, interval_chart
from aam.report.page import templates

# Taxa of a table, and rows of the figure that stands at the start of a report.
TAXA_SHOWN, FIRST_SHOWN = 10, 8

# Number of the colour of further classes; the first ones have the numbers before it.
OTHER = 8


def _interval_in(row: pd.Series[float], name: str) -> Interval:
    """Return a value with its limits from a row of a table of an explanation."""
    return Interval(*row[[name, f"{name}.low", f"{name}.high"]].astype(float))


def _direction(row: pd.Series[float]) -> str:
    """Direction of an ASV or taxon; with a question mark if the interval includes 0."""
    effect = _interval_in(row, "effect")
    return f"{row['raises'] or '-'}{'?' if effect.low <= 0 <= effect.high else ''}"


# --- figures ------------------------------------------------------------------------------------


def _figure(
    explanation: Explanation, table: pd.DataFrame, top: int, words: Sequence[str]
) -> Figure:
    """Return the first rows of a table in the colours of what each raises: mean effects without a
    truth, else importances, with the limits of their tests where there are tests.

    `words` are the name, the title, the title of the axis, what the rows are, and a caption.
    """
    name, title, axis, what, caption = words
    spec, column = explanation.effects.spec, "importance" if explanation.has_truth else "effect"
    meanings = {label: f"raises the probability of {label}" for label in spec.labels[:OTHER]}
    meanings = meanings or {LOWER: f"lowers {spec.name}", HIGHER: f"raises {spec.name}"}
    tests, rows, colours = int(table["q"].notna().sum()), [], [*meanings]
    for _, row in table.head(top).iterrows():
        value, text, raised = _interval_in(row, column), None, row["raises"]
        if tests:
            q = "not tested" if np.isnan(row["q"]) else f"q {number(row['q'])}"
            value = Interval(value.value, row["corrected.low"], row["corrected.high"])
            text = f"{number(value.value)}, {q}"
        colour = colours.index(raised) if raised in meanings else OTHER
        rows.append(IntervalRow(row["label"], value, colour, text))
    bars = "Bars are 95 % intervals."
    if tests:
        bars = f"Bars are corrected for the {tests} tested {what}; a bar that includes 0 does not "
        bars += "stand out."
    chart = interval_chart(rows, axis, 0.0, [*enumerate(meanings.values())])
    return Figure(name, title, chart, f"{caption} {bars}")


@lru_cache(maxsize=4)
def explanation_figures(explanation: Explanation, top: int) -> list[Figure]:
    """Return the figures of one target, of its `top` most important ASVs and taxa, made once for
    the page and for the files. Without a truth they show mean effects of ASVs.
    """
    spec, features, table = explanation.effects.spec, explanation.features, explanation.main_taxa
    if not explanation.has_truth:
        unit = "probability" if spec.labels else spec.name
        title = f"Mean effect of the ASV, where it is present, on {unit}"
        caption = "The prediction minus that of the same sample without the ASV."
        words = ("effects", title, f"effect on {unit}", "ASVs", caption)
        return [_figure(explanation, features, top, words)]
    loss = "half Brier score" if spec.labels else "mean absolute error"
    title, axis = f"Increase of the {loss} when the ASV is permuted", f"rise of the {loss}"
    caption = f"The {loss} of these samples is {number(explanation.loss)}."
    caption = f"{caption} {explanation.asvs.unnamed}".strip()
    words = ("importance", title, axis, "ASVs", caption)
    figures = [_figure(explanation, features, top, words)]
    if table is not None:
        rank, axis = table["rank"].iloc[0], f"sum of rises of the {loss}"
        caption = "The sum of the importances of the ASVs of each taxon, or of all without a known "
        words = ("taxa", f"Importance by {rank}: sums over ASVs", axis, "taxa", f"{caption}{rank}.")
        figures.append(_figure(explanation, table, top, words))
    return figures


def write_figures(folder: Path, explanation: Explanation, top: int) -> None:
    """Write the figures of one target as SVG and PNG files."""
    folder.mkdir()
    for figure in explanation_figures(explanation, top):
        figure.write(folder)


# --- tables and page ---------------------------------------------------------------------------


def opening(explanation: Explanation) -> str:
    """Return in plain words what was explained and what stands out."""
    out, name = explanation.stands_out, explanation.effects.spec.name
    sentences = [f"What drives the predictions of {name}: {explanation.verdict()}."]
    if out.any():
        leaders = ", ".join(explanation.features["label"][out].head())
        sentences.append(f"Of those that stand out, the most important are {leaders}.")
    if of_taxa := explanation.taxa_verdict():
        sentences.append(f"{of_taxa}.")
    return " ".join(sentences)


def _table(title: str, name: str, table: pd.DataFrame, columns: Mapping[str, str]) -> Table:
    """Return the `columns` of a table of an explanation under their titles, values with their
    limits.
    """

    def cell(row: pd.Series[float], column: str) -> str:
        value: object = row[column]
        if f"{column}.low" in table:
            return with_limits(_interval_in(row, column))
        if isinstance(value, float):
            return f"{value:.0f}" if column == "samples" else number(value)
        return _direction(row) if column == "raises" else str(value) or "-"

    rows = (tuple(cell(row, column) for column in columns) for _, row in table.iterrows())
    return Table(title, tuple(columns.values()), tuple(rows), name)


TESTED = {"importance": "importance, 95 % interval", "q": "q", "raises": "direction"}


def asv_table(explanation: Explanation, top: int) -> Table:
    """The most important ASVs."""
    columns = {"label": "ASV", "samples": "samples", **TESTED, "effect": "mean effect"}
    if "attention" in explanation.features:
        columns["attention"] = "attention, mean share"
    table = explanation.features.head(top)
    return _table("The most important ASVs", "importance", table, columns)


def taxa_tables(explanation: Explanation) -> list[Table]:
    """The most important taxa of each rank."""
    if explanation.taxa is None:
        return []
    columns, tables = {"ASVs": "ASVs", **TESTED, "first": "most important ASV"}, []
    for rank, table in explanation.taxa.groupby("rank", sort=False):
        title = f"The most important taxa ({rank}): sums over ASVs"
        shown = {"taxon": str(rank), **columns}
        tables.append(_table(title, "taxa", table.head(TAXA_SHOWN), shown))
    return tables


def features_html(explanation: Explanation, top: int) -> str:
    """Figure of the most important taxa, or ASVs without a taxonomy, for a report's start."""
    figure = explanation_figures(explanation, min(top, FIRST_SHOWN))[-1]
    template = templates().from_string(
        '{% from "parts.html.j2" import picture %}{{ picture(figure) }}'
    )
    title = "What drives the predictions: " + figure.title
    return template.render(figure=replace(figure, title=title)).strip()


def _parts(explanation: Explanation, top: int) -> dict[str, Any]:
    """The parts of a page on one target."""
    figures, tables = explanation_figures(explanation, top), [asv_table(explanation, top)]
    name = explanation.effects.spec.name
    return {"name": name, "opening": opening(explanation), "figures": figures, "tables": tables}


def importances_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """The part of a run's report on what drives its predictions, without what stands at its start
    and without taxa of all ranks.
    """
    targets = [_parts(explanation, top) for explanation in explanations]
    for target in targets:
        target["figures"] = target["figures"][:-1]
    template = templates().get_template("importances.html.j2")
    return template.render(notes=notes, targets=targets)


def explanation_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Page of the targets, which needs no other file."""
    targets = [_parts(explanation, top) for explanation in explanations]
    for target, explanation in zip(targets, explanations, strict=True):
        target["tables"] += taxa_tables(explanation)
    page = templates().get_template("explain.html.j2")
    words = {"title": "aam explain", "notes": notes, "targets": targets}
    return page.render(**words) + "\n"
