"""The page of an explanation: its words, figures and first rows of its tables as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aam.evaluate.intervals import LEAST_GROUPS, number, with_limits
from aam.explain.figures import explanation_figures, interval_in
from aam.explain.results import CLADE, Explanation
from aam.io.taxonomy import display_name
from aam.report.charts import Figure
from aam.report.reading import entries, names_in
from aam.report.report import FOLDED_ROWS
from aam.report.report_html import page_frame, templates
from aam.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

HOW_TO_READ = (
    "An effect is the prediction of a sample minus the prediction of the same sample without the ASV. Its part by "
    "presence is that of a single read; the rest is due to the number of reads.",
    "An importance is by how much the loss of the samples rises, on average, when the ASV is permuted over them: "
    "samples that have it lose it, and others get it, as often as it occurs. Loss is the absolute error of a number, "
    "or half the Brier score of classes. ASVs that occur together share what they say, so that each of them can be "
    "replaced by the others and looks unimportant; taxa and clades are sums over ASVs and have the same limit.",
    "An importance is of this model in these samples. It says nothing of causes, and nothing of ASVs that the model "
    "does not use.",
)

TAXA_SHOWN = 10

# Rows of the figure that stands at the start of a report.
FIRST_SHOWN = 8

# Larger clades are left to clades.tsv: near the root each is nearly all ASVs.
LARGEST_CLADE = 30


def opening(explanation: Explanation) -> str:
    """Return in plain words what was explained and what stands out."""
    spec = explanation.effects.spec
    words = {"held-out": "samples from which its models have not learned", "training": "samples of the training"}
    what = f"What drives the predictions of {spec.name}, in {words.get(explanation.subset, explanation.subset)}: "
    out = explanation.stands_out
    leaders = ", ".join(explanation.asvs.label(column) for column in out.index[out][:5])
    text = f"{what}{explanation.verdict()}." + (
        f" Of those that stand out, the most important are {leaders}." if leaders else ""
    )
    of_taxa = explanation.taxa_verdict()
    return f"{text} {of_taxa}." if of_taxa else text


def _cells(table: pd.DataFrame, columns: Mapping[str, str]) -> Table:
    """Return the `columns` of a table of an explanation under their titles, values with their limits."""

    def cell(row: int, name: str) -> str:
        if f"{name}.low" in table:
            return with_limits(interval_in(table, row, name))
        value = table.loc[row, name]
        if isinstance(value, float):
            return f"{value:.0f}" if name == "samples" else number(value)
        return str(value) or "-"

    rows = tuple(tuple(cell(row, name) for name in columns) for row in table.index)
    return Table("", tuple(columns.values()), rows)


def asv_table(explanation: Explanation, top: int) -> Table:
    """Return the most important ASVs."""
    table = explanation.features.head(top)
    lineages = [explanation.asvs.lineage(column) for column in table.index]
    table = table.assign(taxon=[display_name(lineage) if lineage else "" for lineage in lineages])
    # Models of presence alone have nothing to divide.
    parts = {"presence-effect": "by presence", "abundance-effect": "by reads"}
    columns = {
        "short-id": "ASV", "taxon": "taxon", "samples": "samples",
        "importance": "importance, 95 % interval of it alone", "q": "q", "raises": "raises", "effect": "mean effect",
        **(parts if explanation.features["abundance-effect"].any() else {}),
        **{f"importance.{name}": f"importance to {name} alone" for name in explanation.effects.learners},
    }  # fmt: skip
    return replace(_cells(table, columns), title="The most important ASVs", name="importance")


def set_tables(explanation: Explanation) -> list[Table]:
    """Return the most important taxa of each rank, and clades."""
    titles = {
        "ASVs": "ASVs", "importance": "importance, 95 % interval of it alone", "q": "q", "raises": "raises",
        "first": "one of its ASVs",
    }  # fmt: skip
    parts: dict[str, pd.DataFrame] = {}
    if explanation.taxa is not None:
        parts |= dict(iter(explanation.taxa.groupby("rank", sort=False)))
    if explanation.clades is not None:
        parts[CLADE] = explanation.clades[explanation.clades["ASVs"] <= LARGEST_CLADE]
    tables = []
    for kind, part in parts.items():
        sets, table = [explanation.sets[place] for place in part.index[:TAXA_SHOWN]], part.head(TAXA_SHOWN)
        of_clade = [f": {display_name(one.lineage)}" if kind == CLADE and one.lineage else "" for one in sets]
        names = [f"{one.name}{lowest}" for one, lowest in zip(sets, of_clade, strict=True)]
        table = table.assign(name=names, first=[explanation.asvs.short_ids[one.columns[0]] for one in sets])
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
    rows = ((name, number(ranks["importance"].corr(ranks[f"importance.{name}"]))) for name in learners)
    title = f"Rank correlation of importances with those of the whole model, {len(used)} ASVs"
    return [Table(title, ("member", "rank correlation"), tuple(rows), "importance")]


def _target(explanation: Explanation, top: int) -> dict[str, object]:
    return {
        "name": explanation.effects.spec.name,
        "opening": opening(explanation),
        "figures": explanation_figures(explanation, top),
        "tables": [asv_table(explanation, top), *set_tables(explanation), *learner_table(explanation)],
    }


def _first_figure(of_target: Sequence[Figure]) -> Figure:
    """Return the figure that answers what drives the predictions: of taxa, else of ASVs."""
    return next((figure for figure in of_target if figure.name == "taxa"), of_target[0])


def features_html(explanation: Explanation, top: int) -> str:
    """Return the figure of the most important taxa, or ASVs where those are not known, for the start of a report."""
    figure = _first_figure(explanation_figures(explanation, min(top, FIRST_SHOWN)))
    template = templates().from_string('{% from "parts.html.j2" import picture %}{{ picture(figure) }}')
    return template.render(figure=replace(figure, title="What drives the predictions: " + figure.title)).strip()


def importances_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Return the part of a run's report that says what drives its predictions, without tables of taxa and clades.

    The figure of `features_html` is not in it.
    """
    template, targets, names = templates().get_template("importances.html.j2"), [], list[str]()
    for explanation in explanations:
        figures = explanation_figures(explanation, top)
        names += [figure.name for figure in figures]
        targets.append({
            "opening": opening(explanation),
            "figures": [figure for figure in figures if figure is not _first_figure(figures)],
            "tables": [asv_table(explanation, top)],
        })  # fmt: skip
    reading = entries(names)
    return template.render(
        notes=notes, targets=targets, how_to_read=HOW_TO_READ, folded_rows=FOLDED_ROWS, reading=reading
    )


def explanation_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Return the page of some targets, which needs no other file."""
    page = templates().get_template("explain.html.j2")
    targets = [_target(explanation, top) for explanation in explanations]
    words = {"title": "aam explain", "notes": notes, "targets": targets, "how_to_read": HOW_TO_READ}
    return page.render(page_frame(), reading=entries(names_in(targets)), **words) + "\n"
