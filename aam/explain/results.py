"""The explanation of one target: names of ASVs and taxa, words, figures, tables, page and files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

from aam.evaluate.intervals import FEW_GROUPS, LEAST_GROUPS, Interval, number
from aam.explain.effects import FALSE_DISCOVERIES, TargetEffects, importance_of, losses
from aam.files.atomic import write_text
from aam.io.taxonomy import Lineage, display_name, plain_name, rank_name, short_ids, taxon_name
from aam.predict.estimator import Matrix
from aam.report.charts import Figure, IntervalRow, Table, interval_chart
from aam.report.page import as_data, templates
from aam.typing import Ints

# What the samples of an explanation were to its models.
HELD_OUT, TRAINING = "held-out", "training"

# Taxa that a sentence names.
NAMED = 8

# Taxa of a table, and rows of the figure that stands at the start of a report.
TAXA_SHOWN, FIRST_SHOWN = 10, 8

# Number of the colour of further classes; the first ones have the numbers before it.
OTHER = 8

# --- names --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asvs:
    """Names of the F ASVs of a table; there may be no lineages."""

    feature_ids: tuple[str, ...]
    sequences: tuple[str, ...]
    lineages: tuple[Lineage, ...] = ()

    @cached_property
    def short_ids(self) -> tuple[str, ...]:
        """Short ids of the sequences; the feature ids without these."""
        return short_ids(self.sequences) if self.sequences else self.feature_ids

    @property
    def unnamed(self) -> str:
        """Explanation of the ids, if no ASV has a name; else empty."""
        text = "Ids are the beginning of the MD5 of the sequence; --taxonomy gives names."
        return "" if self.lineages or not self.sequences else text

    def label(self, column: int) -> str:
        """Label of an ASV in figures and pages: its lowest known taxon and its short id."""
        lineage = self.lineages[column] if self.lineages else ()
        taxon = display_name(lineage) if lineage else ""
        return f"{taxon} {self.short_ids[column]}".strip()

    def table(self, importance: pd.DataFrame) -> pd.DataFrame:
        """A table of importances, by column of the ASVs, with what they are called."""
        columns = importance.index.tolist()
        lineages = self.lineages or ((),) * len(self.feature_ids)
        names = [
            (self.label(at), self.short_ids[at], self.feature_ids[at], "; ".join(lineages[at]))
            for at in columns
        ]
        table = pd.DataFrame(names, columns, ["label", "short-id", "feature-id", "taxon"])
        table.insert(0, "rank", range(1, len(columns) + 1))
        table = table.join(importance)
        if self.sequences and self.feature_ids != self.sequences:
            table["sequence"] = [self.sequences[column] for column in columns]
        return table


def taxa(lineages: Sequence[Lineage], columns: Ints) -> pd.DataFrame:
    """Return the taxa of the ASVs at `columns` at each rank, with the columns of their ASVs.

    ASVs without a name at a rank are one set for each taxon above. `tested` are sets that may stand
    out: an ASV of its own was tested as such, and ASVs without any taxon are no finding.
    """
    rows = []
    for level in range(max((len(lineages[column]) for column in columns if lineages), default=0)):
        rank = rank_name(level, lineages)
        members = defaultdict[tuple[Lineage, bool], list[int]](list)
        for column in columns.tolist():
            lineage = lineages[column]
            members[lineage[: level + 1], len(lineage) > level].append(column)
        for (lineage, is_named), columns_of_taxon in sorted(members.items()):
            name, label, size = "; ".join(lineage), taxon_name(lineage), len(columns_of_taxon)
            if not is_named and lineage:
                name = f"{name}; {rank} unknown"
                label = f"{plain_name(lineage[-1])}, {rank} unknown"
                label += f" ({size} ASVs)" if size > 1 else ""
            tested = size > 1 and lineage != ()
            name = name or display_name(())
            rows.append((rank, name, label, size, tested, columns_of_taxon))
    return pd.DataFrame(rows, columns=["rank", "taxon", "label", "ASVs", "tested", "columns"])


def membership(sets: pd.DataFrame, asvs: int) -> Matrix:
    """Membership of ASVs in sets, ``[F, sets]``."""
    column = np.concatenate([np.array(members, np.int64) for members in sets["columns"]])
    place = np.repeat(np.arange(len(sets)), sets["ASVs"])
    return sparse.csr_matrix((np.ones(len(column)), (column, place)), shape=(asvs, len(sets)))


# --- an explanation -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Explanation:
    """The explanation of one target.

    `features` and `taxa` are the tables of the files, `features` by column of the ASVs; `groups`
    counts those with a truth; `group_column` is what was resampled, empty where single samples
    were; `subset` is what the samples were to the models, `HELD_OUT` or `TRAINING`.
    """

    effects: TargetEffects
    features: pd.DataFrame
    asvs: Asvs
    groups: int
    group_column: str
    subset: str
    taxa: pd.DataFrame | None

    @property
    def has_truth(self) -> bool:
        """Whether the truth of any sample is known, without which there is no importance."""
        return bool(np.isfinite(self.effects.truth).any())

    @property
    def main_taxa(self) -> pd.DataFrame | None:
        """The taxa that are drawn: genera, or those of the lowest rank there is."""
        if self.taxa is None:
            return None
        ranks = self.taxa["rank"]
        return self.taxa[ranks == ("genus" if (ranks == "genus").any() else ranks.iloc[-1])]


def explanation_of(
    effects: TargetEffects,
    asvs: Asvs,
    groups: npt.NDArray[np.object_] | None,
    group_column: str,
    subset: str,
    seed: int = 0,
) -> Explanation:
    """Explain one target by its ASVs and, where they are known, taxa.

    Parameters
    ----------
    effects : TargetEffects
    asvs : Asvs
    groups : array [N], optional
        The group of each sample; single samples are resampled without.
    group_column, subset : str
        See `Explanation`.
    seed : int
        Of the resampling.
    """
    size, is_tested, taxon_table = effects.carriers.shape[1], subset != TRAINING, None
    features = importance_of(effects, groups, seed, tested=is_tested)
    if effects.attention.nnz:
        features["attention"] = np.asarray(effects.attention.mean(axis=0)).ravel()[features.index]
    sets = taxa(asvs.lineages, np.sort(features.index.to_numpy()))
    if len(sets):
        summed, tested = effects.summed(membership(sets, size)), sets.pop("tested") & is_tested
        importance = importance_of(summed, groups, seed, sets["rank"].tolist(), tested.to_numpy())
        first = [min(members, key=features.index.get_loc) for members in sets.pop("columns")]
        sets["first"] = [asvs.short_ids[column] for column in first]
        order = {rank: at for at, rank in enumerate(sets["rank"].unique())}
        taxon_table = sets.loc[importance.index].join(importance)
        taxon_table = taxon_table.sort_values(
            "rank", key=lambda ranks: ranks.map(order), kind="stable"
        )
    has_truth = np.isfinite(effects.truth)
    counted = has_truth if has_truth.any() else ~has_truth
    count = int(counted.sum()) if groups is None else len(set(groups[counted].tolist()))
    table = asvs.table(features)
    return Explanation(effects, table, asvs, count, group_column, subset, taxon_table)


# --- figures ------------------------------------------------------------------------------------


def _interval_in(row: pd.Series[float], name: str) -> Interval:
    """Return a value with its limits from a row of a table of an explanation."""
    return Interval(*row[[name, f"{name}.low", f"{name}.high"]].astype(float))


def _figure(
    explanation: Explanation,
    table: pd.DataFrame,
    top: int,
    name: str,
    title: str,
    axis: str,
    caption: str,
) -> Figure:
    """Return the first rows of a table in the colours of what each raises: mean effects without a
    truth, else importances, with the limits of their tests where there are tests.
    """
    spec, column = explanation.effects.spec, "importance" if explanation.has_truth else "effect"
    meanings = {label: f"raises the probability of {label}" for label in spec.labels[:OTHER]}
    meanings = meanings or {"lower": f"lowers {spec.name}", "higher": f"raises {spec.name}"}
    tests, rows, colours = int(table["q"].notna().sum()), [], [*meanings]
    for _, row in table.head(top).iterrows():
        value, text, raised = _interval_in(row, column), None, row["raises"]
        if tests:
            q = "not tested" if np.isnan(row["q"]) else f"q {number(row['q'])}"
            value = Interval(value.value, row["corrected.low"], row["corrected.high"])
            text = f"{number(value.value)}, {q}"
        colour = colours.index(raised) if raised in meanings else OTHER
        rows.append(IntervalRow(row["label"], value, colour, text))
    corrected = f"corrected for all tested rows ({tests}); one that includes 0 does not stand out"
    bars = corrected if tests else "95 % intervals"
    chart = interval_chart(rows, axis, 0.0, [*enumerate(meanings.values())])
    return Figure(name, title, chart, f"{caption} Bars are {bars}.")


@lru_cache(maxsize=4)
def explanation_figures(explanation: Explanation, top: int) -> list[Figure]:
    """Return the figures of one target, of its `top` most important ASVs and taxa, made once for
    the page and for the files. Without a truth they show mean effects of ASVs.
    """
    effects, features = explanation.effects, explanation.features
    spec, table = effects.spec, explanation.main_taxa
    if not explanation.has_truth:
        unit = "probability" if spec.labels else spec.name
        title = f"Mean effect of the ASV, where it is present, on {unit}"
        caption = "The prediction minus that of the same sample without the ASV."
        return [_figure(explanation, features, top, "effects", title, f"effect on {unit}", caption)]
    loss = "half Brier score" if spec.labels else "mean absolute error"
    mean = float(np.nanmean(losses(spec, effects.truth, effects.prediction)))
    caption = f"The {loss} of these samples is {number(mean)} (rarefactions: {effects.passes})."
    caption = f"{caption} {explanation.asvs.unnamed}".strip()
    title, axis = f"Increase of the {loss} when the ASV is permuted", f"rise of the {loss}"
    figures = [_figure(explanation, features, top, "importance", title, axis, caption)]
    if table is not None:
        rank = table["rank"].iloc[0]
        title, axis = f"Importance by {rank}: sums over ASVs", f"sum of rises of the {loss}"
        caption = "The sum of the importances of the ASVs of each taxon, or of all without a known "
        figures.append(_figure(explanation, table, top, "taxa", title, axis, f"{caption}{rank}."))
    return figures


# --- tables and page ---------------------------------------------------------------------------


def _stands_out(table: pd.DataFrame, kind: str, where: str = "") -> str:
    """Say how many of the tested rows matter beyond chance, and name the first of them."""
    names = table["label"][table["q"] <= FALSE_DISCOVERIES].tolist()
    leaders = "; ".join([*names[:NAMED], *["..."] * (len(names) > NAMED)])
    found = f"{len(names)} of {table['q'].notna().sum()} tested {kind} stand out{where}"
    return f"{found}: {leaders}." if leaders else f"{found}."


def opening(explanation: Explanation) -> str:
    """Return in plain words what was explained and what stands out."""
    truth, taxa, group = explanation.effects.truth, explanation.main_taxa, explanation.group_column
    known = f"{len(truth)} {explanation.subset} samples ({np.isfinite(truth).sum()} with a truth)"
    start = f"What drives the predictions of {explanation.effects.spec.name}:"
    units = f"values of {group}" if group else "samples"
    if not explanation.features["q"].notna().any():
        needs = f"a truth, samples that no model has learned from, and {LEAST_GROUPS} {units}"
        return f"{start} nothing is tested in {known}, which needs {needs}."
    found = _stands_out(explanation.features, "ASVs", f" in {known}")
    if taxa is not None and taxa["q"].notna().any():
        rank = taxa["rank"].iloc[0]
        found += f" {_stands_out(taxa, f'taxa ({rank}), sums over ASVs,')}"
    few = ", which are few, so this is rough" if explanation.groups < FEW_GROUPS else ""
    over = f"at most {FALSE_DISCOVERIES:g}, over {explanation.groups} {units}{few}"
    return f"{start} {found} The share of false discoveries is {over}."


def _table(title: str, name: str, table: pd.DataFrame, columns: Mapping[str, str]) -> Table:
    """Return the `columns` of a table of an explanation under their titles, values with their
    limits, and a direction with a question mark if the interval of the effect includes 0.
    """

    def cell(row: pd.Series[float], column: str) -> object:
        if f"{column}.low" in table:
            return _interval_in(row, column)
        if column == "raises":
            return f"{row['raises'] or '-'}{'?' * (row['effect.low'] <= 0 <= row['effect.high'])}"
        value: object = row[column]
        return int(row[column]) if column == "samples" else "-" if value == "" else value

    rows = [[cell(row, column) for column in columns] for _, row in table.iterrows()]
    return Table(title, pd.DataFrame(rows, columns=[*columns.values()], dtype=object), name)


TEST_COLUMNS = {"importance": "importance, 95 % interval", "q": "q", "raises": "direction"}


def asv_table(explanation: Explanation, top: int) -> Table:
    """The most important ASVs."""
    columns = {"label": "ASV", "samples": "samples", **TEST_COLUMNS, "effect": "mean effect"}
    if "attention" in explanation.features:
        columns["attention"] = "attention, mean share"
    table = explanation.features.head(top)
    return _table("The most important ASVs", "importance", table, columns)


def taxa_tables(explanation: Explanation) -> list[Table]:
    """The most important taxa of each rank."""
    if explanation.taxa is None:
        return []
    columns, tables = {"ASVs": "ASVs", **TEST_COLUMNS, "first": "most important ASV"}, []
    for rank, table in explanation.taxa.groupby("rank", sort=False):
        title = f"The most important taxa ({rank}): sums over ASVs"
        shown = {"taxon": str(rank), **columns}
        tables.append(_table(title, "taxa", table.head(TAXA_SHOWN), shown))
    return tables


def _parts(explanation: Explanation, top: int) -> dict[str, Any]:
    """What a page shows of one target."""
    figures, tables = explanation_figures(explanation, top), [asv_table(explanation, top)]
    return {
        "name": explanation.effects.spec.name,
        "opening": opening(explanation),
        "figures": as_data(figures),
        "tables": as_data(tables),
    }


def importances(
    explanations: Sequence[Explanation], notes: Sequence[str], top: int
) -> dict[str, Any]:
    """What the report of a run shows of its predictions: `explanation` of `page_html`.

    The figure of the most important taxa, or ASVs without a taxonomy, stands near the answer.
    """
    targets = []
    for explanation in explanations:
        target = _parts(explanation, top)
        first = explanation_figures(explanation, min(top, FIRST_SHOWN))[-1]
        first = replace(first, title=f"What drives the predictions: {first.title}")
        targets.append({**target, "first": first.to_dict(), "figures": target["figures"][:-1]})
    return {"notes": notes, "targets": targets}


def explanation_html(explanations: Sequence[Explanation], notes: Sequence[str], top: int) -> str:
    """Page of the targets, which needs no other file."""
    targets = [_parts(explanation, top) for explanation in explanations]
    for target, explanation in zip(targets, explanations, strict=True):
        target["tables"] += as_data(taxa_tables(explanation))
    page = templates().get_template("explain.html.j2")
    return page.render(title="aam explain", notes=notes, targets=targets) + "\n"


# --- files -------------------------------------------------------------------------------------


def folder_names(targets: Sequence[str]) -> list[str]:
    """Return a folder name for each target: its name with only letters, digits and ``.-_``, each
    name once.
    """
    names: list[str] = []
    for target in targets:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", target).lstrip(".") or "target"
        numbered = (plain, *(f"{plain}-{number}" for number in range(2, len(targets) + 1)))
        lower_case = {name.lower() for name in names}
        names.append(next(name for name in numbered if name.lower() not in lower_case))
    return names


def _sample_table(effects: TargetEffects, subset: str) -> pd.DataFrame:
    """Return a row for each sample: what it was to the models, truth, predictions, sum of its
    effects.
    """
    labels, truth = effects.spec.labels, effects.truth
    classes = [labels[int(k)] if np.isfinite(k) else "" for k in truth] if labels else truth
    columns = {"sample-id": effects.sample_ids, "subset": subset, "truth": classes}
    names = [f"prediction={label}" for label in labels] or ["prediction"]
    columns |= dict(zip(names, effects.prediction.T, strict=True))
    for label, part in zip(effects.outputs, effects.effects, strict=True):
        columns[f"sum-of-effects={label}".rstrip("=")] = np.asarray(part.sum(axis=1)).ravel()
    return pd.DataFrame(columns)


def _effect_table(effects: TargetEffects, asvs: Asvs) -> pd.DataFrame:
    """Return a row for each ASV of each sample: its effects, and the attention paid to it."""
    names = [f"effect={label}".rstrip("=") for label in effects.outputs]
    parts = dict(zip(names, effects.effects, strict=True))
    if effects.attention.nnz:
        parts["attention-not-importance"] = effects.attention
    row, column = effects.carriers.sorted_indices().nonzero()
    ids = {"sample-id": (effects.sample_ids, row), "short-id": (asvs.short_ids, column)}
    columns = {name: np.array(values, object)[places] for name, (values, places) in ids.items()}
    columns |= {name: np.asarray(part[row, column]).ravel() for name, part in parts.items()}
    return pd.DataFrame(columns)


def write_explanation(folder: Path, explanation: Explanation, top: int) -> None:
    """Write features.tsv, taxa.tsv, samples.tsv and effects.tsv to a folder, with six digits, and
    the figures of the `top` ASVs and taxa.
    """
    (folder / "figures").mkdir(parents=True)
    effects = explanation.effects
    tables = {"features": explanation.features, "effects": _effect_table(effects, explanation.asvs)}
    tables["samples"] = _sample_table(effects, explanation.subset)
    tables |= {} if explanation.taxa is None else {"taxa": explanation.taxa}
    for name, table in tables.items():
        text = table.to_csv(sep="\t", index=False, float_format="%.6g", lineterminator="\n")
        write_text(folder / f"{name}.tsv", str(text))
    for figure in explanation_figures(explanation, top):
        figure.write(folder / "figures")
