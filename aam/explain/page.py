"""Figures of an explanation (ASVs and taxa), its tables, and its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from aam.evaluate.intervals import Interval, number, with_limits
from aam.explain.importance import HIGHER, LOWER
from aam.explain.results import Explanation
from aam.report.charts import Figure, IntervalRow, interval_chart, listed
from aam.report.page import templates
from aam.report.tables import Table

TAXA_SHOWN = 10

# Rows of the figure that stands at the start of a report.
FIRST_SHOWN = 8

# Numbers of colours: lower or the first class, higher or the second; other classes follow.
BLUE, RED, OTHER = 0, 1, 8


def _colours(explanation: Explanation) -> dict[str, tuple[int, str]]:
    """Colour, and its meaning, of what an ASV may raise."""
    name, labels = explanation.effects.spec.name, explanation.effects.spec.labels
    of_numbers = {LOWER: (BLUE, f"lowers {name}"), HIGHER: (RED, f"raises {name}")}
    of_classes = {
        label: (place, f"raises the probability of {label}")
        for place, label in enumerate(labels[:OTHER])
    }
    return of_classes or of_numbers


def interval_in(row: pd.Series[float], name: str) -> Interval:
    """Return a value with its limits from a row of a table of an explanation."""
    return Interval(*row[[name, f"{name}.low", f"{name}.high"]].astype(float))


def direction(row: pd.Series[float], of: str = "") -> str:
    """Direction of an ASV or taxon, then `of`; with a question mark if the interval includes 0."""
    effect = interval_in(row, "effect")
    return f"{row['raises'] or '-'}{of}{'?' if effect.low <= 0 <= effect.high else ''}"


def _tested(row: pd.Series[float]) -> tuple[Interval, str]:
    """Return an importance with the limits of its test, and its text with q."""
    value, q, low, high = row[["importance", "q", "corrected.low", "corrected.high"]].astype(float)
    q_text = "not tested" if math.isnan(q) else f"q {number(q)}"
    return Interval(value, low, high), f"{number(value)}, {q_text}"


def _figure(
    explanation: Explanation, table: pd.DataFrame, shown: int, name: str, title: str, **words: str
) -> Figure:
    """Return the first rows of a table, in the colours of what each row raises: importances with
    the limits of their tests, or with 95 % limits without tests.
    """
    colours, rows, column = _colours(explanation), [], words.pop("column", "importance")
    is_tested, tests = column == "importance", int(table["q"].notna().sum())
    for _, row in table.head(shown).iterrows():
        value, text = _tested(row) if is_tested and tests else (interval_in(row, column), None)
        colour = colours.get(row["raises"], (OTHER, ""))[0]
        rows.append(IntervalRow(row["label"], value, colour, text))
    bars = "Bars are 95 % intervals."
    if is_tested and tests:
        bars = (
            f"Bars are corrected for the {tests} tested {words['what']}; a bar that includes 0 "
            f"does not stand out. {words['file']} has uncorrected 95 % intervals."
        )
    caption = f"{words['before']} {bars} {words.get('after', '')}".strip()
    chart = interval_chart(rows, words.get("axis", title), 0.0, list(colours.values()))
    return Figure(name, title, f"{title}: {listed(rows)}.", chart, caption)


@lru_cache(maxsize=4)
def explanation_figures(explanation: Explanation, top: int) -> list[Figure]:
    """Return the figures of one target, of its `top` most important ASVs and taxa, made once for
    the page and for the files. Without a truth they show mean effects of ASVs.
    """
    spec, features, table = explanation.effects.spec, explanation.features, explanation.main_taxa
    if not explanation.has_truth:
        unit = "probability" if spec.labels else spec.name
        title = f"Mean effect of the ASV, where it is present, on {unit}"
        before = "The prediction minus that of the same sample without the ASV."
        words = {"axis": f"effect on {unit}", "before": before, "column": "effect"}
        return [_figure(explanation, features, top, "effects", title, **words)]
    loss = "half Brier score" if spec.labels else "mean absolute error"
    of_asvs = {
        "axis": f"rise of the {loss}",
        "before": f"The {loss} of these samples is {number(explanation.loss)}.",
        "what": "ASVs",
        "file": "features.tsv",
        "after": "Colours show what the presence of the ASV does to the prediction. "
        + explanation.asvs.unnamed,
    }
    title = f"Increase of the {loss} when the ASV is permuted"
    figures = [_figure(explanation, features, top, "importance", title, **of_asvs)]
    if table is not None:
        rank = table["rank"].iloc[0]
        of_taxa = {
            "axis": f"sum of rises of the {loss}",
            "before": "The sum of the importances of the ASVs of each taxon, or of all that have "
            f"no known {rank}.",
            "what": "taxa",
            "file": "ASVs of no taxon are not tested. taxa.tsv",
        }
        title = f"Importance by {rank}: sums over ASVs"
        figures.append(_figure(explanation, table, top, "taxa", title, **of_taxa))
    return figures


def write_figures(folder: Path, explanation: Explanation, top: int) -> None:
    """Write the figures of one target as SVG and PNG files."""
    folder.mkdir()
    for figure in explanation_figures(explanation, top):
        figure.write(folder)


# --- tables and page ---------------------------------------------------------------------------


def opening(explanation: Explanation) -> str:
    """Return in plain words what was explained and what stands out."""
    out, of_taxa = explanation.stands_out, explanation.taxa_verdict()
    sentences = [
        f"What drives the predictions of {explanation.effects.spec.name}: {explanation.verdict()}."
    ]
    if out.any():
        leaders = ", ".join(explanation.features["label"][out].head())
        sentences.append(f"Of those that stand out, the most important are {leaders}.")
    return " ".join([*sentences, *([f"{of_taxa}."] if of_taxa else [])])


def _table(title: str, name: str, table: pd.DataFrame, columns: Mapping[str, str]) -> Table:
    """Return the `columns` of a table of an explanation under their titles, values with their
    limits.
    """

    def cell(row: pd.Series[float], column: str) -> str:
        if f"{column}.low" in table:
            return with_limits(interval_in(row, column))
        if column == "raises":
            return direction(row)
        value: object = row[column]
        if isinstance(value, float):
            return f"{value:.0f}" if column == "samples" else number(value)
        return str(value) or "-"

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
    columns = {"ASVs": "ASVs", **TESTED, "first": "most important ASV"}
    return [
        _table(
            f"The most important taxa ({rank}): sums over ASVs",
            "taxa",
            table.head(TAXA_SHOWN),
            {"taxon": str(rank), **columns},
        )
        for rank, table in explanation.taxa.groupby("rank", sort=False)
    ]


def _first_figure(drawn: Sequence[Figure]) -> Figure:
    """The figure that answers what drives the predictions: of taxa, else of ASVs."""
    return drawn[-1]


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
    targets = []
    for explanation in explanations:
        figures = explanation_figures(explanation, top)
        rest = [figure for figure in figures if figure is not _first_figure(figures)]
        about = {"opening": opening(explanation), "tables": [asv_table(explanation, top)]}
        targets.append({**about, "figures": rest})
    template = templates().get_template("importances.html.j2")
    return template.render(notes=notes, targets=targets)


def explanation_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Page of the targets, which needs no other file."""
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
    return page.render(**words) + "\n"
