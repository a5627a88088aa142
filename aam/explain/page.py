"""The page of an explanation: its words, figures and first rows of its tables as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aam.evaluate.intervals import LEAST_GROUPS, number, with_limits
from aam.explain.asvs import raised
from aam.explain.figures import explanation_figures
from aam.explain.results import Explanation, SetsExplained
from aam.explain.sets import CLADE
from aam.io.taxonomy import display_name
from aam.report.charts import Figure
from aam.report.report import FOLDED_ROWS
from aam.report.report_html import page_frame, templates
from aam.report.tables import Table

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
    leaders = [
        explanation.asvs.label(column)
        for column in explanation.importance.order()[:5].tolist()
        if explanation.importance.stands_out[column]
    ]
    first = f" The most important are {', '.join(leaders)}." if leaders else ""
    return f"{what}{explanation.verdict()}.{first}"


def asv_table(explanation: Explanation, top: int) -> Table:
    """Return the most important ASVs."""
    importance, asvs = explanation.importance, explanation.asvs
    members = list(importance.by_learner)
    header = (
        "ASV", "taxon", "samples", "importance", "q", "raises", "mean effect", "by presence", "by reads",
        *(f"importance to {name} alone" for name in members),
    )  # fmt: skip
    directions, rows = importance.direction(), []
    for column in importance.order()[:top].tolist():
        output = int(directions[column])
        rows.append((
            asvs.short_ids[column],
            display_name(asvs.lineages[column]) if asvs.lineages[column] else "-",
            f"{importance.carriers[column]:.0f}",
            with_limits(importance.importance[column]),
            number(float(importance.q[column])),
            explanation.raised(column) or "-",
            with_limits(importance.effect[output][column]),
            number(float(importance.presence[output, column])),
            number(float(importance.abundance[output, column])),
            *(number(float(importance.by_learner[name][column])) for name in members),
        ))  # fmt: skip
    return Table("The most important ASVs", header, tuple(rows))


def set_tables(of_sets: SetsExplained | None, asvs: Sequence[str]) -> list[Table]:
    """Return the most important taxa of each rank, or clades."""
    if of_sets is None:
        return []
    tables, order = [], of_sets.importance.order().tolist()
    for kind in dict.fromkeys(one.kind for one in of_sets.sets):
        places = [place for place in order if of_sets.sets[place].kind == kind]
        title = f"The most important taxa, {kind}: sums over ASVs"
        if kind == CLADE:
            places = [place for place in places if len(of_sets.sets[place].columns) <= LARGEST_CLADE]
            title = f"The most important clades of at most {LARGEST_CLADE} ASVs: sums over ASVs"
        places, rows = places[:TAXA_SHOWN], []
        for place in places:
            one = of_sets.sets[place]
            name = f"{one.name}: {display_name(one.lineage)}" if kind == CLADE and one.lineage else one.name
            rows.append((
                name, str(len(one.columns)), with_limits(of_sets.importance.importance[place]),
                number(float(of_sets.importance.q[place])), raised(of_sets.effects, of_sets.importance, place) or "-",
                asvs[one.columns[0]],
            ))  # fmt: skip
        header = (kind, "ASVs", "importance", "q", "raises", "one of its ASVs")
        tables.append(Table(title, header, tuple(rows)))
    return tables


def member_table(explanation: Explanation) -> list[Table]:
    """Return how far each member orders ASVs as the whole model does."""
    importance, whole = explanation.importance, explanation.importance.value
    used = np.flatnonzero(np.isfinite(whole) & (importance.groups >= LEAST_GROUPS))
    if len(used) < 3 or len(importance.by_learner) < 2:
        return []
    ranks = np.argsort(np.argsort(whole[used]))
    rows = []
    for name, values in importance.by_learner.items():
        member_ranks = np.argsort(np.argsort(values[used]))
        rows.append((name, number(float(np.corrcoef(ranks, member_ranks)[0, 1]))))
    title = f"Rank correlation of importances with those of the whole model, {len(used)} ASVs"
    return [Table(title, ("member", "rank correlation"), tuple(rows))]


def _target(explanation: Explanation, top: int) -> dict[str, object]:
    return {
        "name": explanation.effects.spec.name,
        "opening": opening(explanation),
        "figures": explanation_figures(explanation, top),
        "tables": [
            asv_table(explanation, top),
            *set_tables(explanation.taxa, explanation.asvs.short_ids),
            *set_tables(explanation.clades, explanation.asvs.short_ids),
            *member_table(explanation),
        ],
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
    template, targets = templates().get_template("importances.html.j2"), []
    for explanation in explanations:
        figures = explanation_figures(explanation, top)
        targets.append({
            "opening": opening(explanation),
            "figures": [figure for figure in figures if figure is not _first_figure(figures)],
            "tables": [asv_table(explanation, top)],
        })  # fmt: skip
    return template.render(notes=notes, targets=targets, how_to_read=HOW_TO_READ, folded_rows=FOLDED_ROWS)


def explanation_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Return the page of some targets, which needs no other file."""
    page = templates().get_template("explain.html.j2")
    targets = [_target(explanation, top) for explanation in explanations]
    return page.render(page_frame(), title="aam explain", notes=notes, targets=targets, how_to_read=HOW_TO_READ) + "\n"
