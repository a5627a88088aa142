"""The explanation of one target: names of ASVs and taxa, tables of their importance, and files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

from aam.evaluate.intervals import FEW_GROUPS, LEAST_GROUPS, too_few
from aam.explain.effects import Ints, Matrix, TargetEffects, losses
from aam.explain.importance import FALSE_DISCOVERIES, importance_of
from aam.files.atomic import write_text
from aam.io.taxonomy import Lineage, display_name, plain_name, rank_name, short_ids, taxon_name
from aam.report.tables import shortened

# What the samples of an explanation were to its models.
HELD_OUT, TRAINING = "held-out", "training"

# Taxa that a sentence names.
NAMED = 8


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
        text = (
            "Ids are the beginning of the MD5 of the sequence (features.tsv has it); "
            "--taxonomy gives names."
        )
        return "" if self.lineages or not self.sequences else text

    def lineage(self, column: int) -> Lineage:
        """Return the taxa of an ASV, from the top; empty where nothing is known."""
        return self.lineages[column] if self.lineages else ()

    def label(self, column: int, longest: int = 80) -> str:
        """Label of an ASV in figures and pages: its lowest known taxon and its short id.

        The taxon is cut where both have more than `longest` characters: the id tells ASVs of one
        taxon apart.
        """
        lineage, short_id = self.lineage(column), self.short_ids[column]
        if not lineage:
            return short_id
        return f"{shortened(display_name(lineage), longest - len(short_id) - 1)} {short_id}"

    def table(self, importance: pd.DataFrame) -> pd.DataFrame:
        """A table of importances, by column of the ASVs, with what they are called."""
        columns = importance.index
        names = {
            "rank": np.arange(1, len(columns) + 1),
            "label": [self.label(column) for column in columns],
            "short-id": [self.short_ids[column] for column in columns],
            "feature-id": [self.feature_ids[column] for column in columns],
            "taxon": ["; ".join(self.lineage(column)) for column in columns],
        }
        table = pd.concat([pd.DataFrame(names, index=columns), importance], axis=1)
        if self.sequences and self.feature_ids != self.sequences:
            table["sequence"] = [self.sequences[column] for column in columns]
        return table


def taxa(lineages: Sequence[Lineage], columns: Ints) -> pd.DataFrame:
    """Return the taxa of the ASVs at `columns` at each rank, with the columns of their ASVs.

    ASVs without a name at a rank are one set for each taxon above. `tested` are sets that may stand
    out: an ASV of its own was tested as such, and ASVs without any taxon are no finding.
    """
    found = []
    deepest = max((len(lineages[column]) for column in columns), default=0) if lineages else 0
    for level in range(deepest):
        rank = rank_name(level, lineages)
        members = defaultdict[tuple[Lineage, bool], list[int]](list)
        for column in columns.tolist():
            lineage = lineages[column]
            members[lineage[: level + 1], len(lineage) > level].append(column)
        for (lineage, named), of_taxon in sorted(members.items()):
            name, label, size = display_name(lineage), taxon_name(lineage), len(of_taxon)
            if lineage:
                name = "; ".join(lineage if named else (*lineage, f"{rank} unknown"))
            if lineage and not named:
                label = f"{plain_name(lineage[-1])}, {rank} unknown"
                label += f" ({size} ASVs)" if size > 1 else ""
            found.append((rank, name, label, size, size > 1 and bool(lineage), of_taxon))
    return pd.DataFrame(found, columns=["rank", "taxon", "label", "ASVs", "tested", "columns"])


def membership(sets: pd.DataFrame, asvs: int) -> Matrix:
    """Membership of ASVs in sets, ``[F, sets]``."""
    column = np.concatenate([np.array(members, np.int64) for members in sets["columns"]])
    place = np.repeat(np.arange(len(sets)), sets["ASVs"])
    return sparse.csr_matrix((np.ones(len(column)), (column, place)), shape=(asvs, len(sets)))


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

    @cached_property
    def has_truth(self) -> bool:
        """Whether the truth of any sample is known, without which there is no importance."""
        return bool(np.isfinite(self.effects.truth).any())

    @property
    def loss(self) -> float:
        """The mean loss of the samples whose truth is known, which importances are rises of."""
        of = self.effects
        return float(np.nanmean(losses(of.spec, of.truth, of.prediction)))

    @property
    def stands_out(self) -> pd.Series[bool]:
        """ASVs that matter beyond chance, at `FALSE_DISCOVERIES`."""
        return self.features["q"] <= FALSE_DISCOVERIES

    @property
    def main_taxa(self) -> pd.DataFrame | None:
        """The taxa that are drawn: genera, or those of the lowest rank there is."""
        if self.taxa is None:
            return None
        ranks = self.taxa["rank"]
        return self.taxa[ranks == ("genus" if (ranks == "genus").any() else ranks.iloc[-1])]

    def taxa_verdict(self) -> str:
        """Return in one sentence which taxa matter beyond chance; nothing where none is tested."""
        table = self.main_taxa
        tested = 0 if table is None else int(table["p"].notna().sum())
        if table is None or not tested:
            return ""
        found = table["label"][table["q"] <= FALSE_DISCOVERIES].tolist()
        names = "; ".join([*found[:NAMED], *["..."][: len(found) // (NAMED + 1)]])
        return (
            f"{len(found)} of {tested} tested taxa ({table['rank'].iloc[0]}), sums over ASVs, "
            f"stand out{': ' if found else ''}{names}"
        )

    def verdict(self) -> str:
        """Return in one sentence how many ASVs matter to predictions of these samples, beyond
        chance.
        """
        samples, known = len(self.effects.truth), int(np.isfinite(self.effects.truth).sum())
        what = f"{samples} {self.subset} samples with {len(self.features)} ASVs after rarefaction"
        if 0 < known < samples:
            what += f", {known} of them with a truth"
        unit, of = ("value", f" of {self.group_column}") if self.group_column else ("sample", "")
        if not self.has_truth:
            return f"effects on the predictions of {what}; no truth, so no importance"
        if self.subset == TRAINING:
            return f"{what}; the models have learned from them, so nothing is tested"
        if self.groups < LEAST_GROUPS:
            return f"{what}; {too_few(self.groups, unit, of)} for intervals or tests"
        rough = ", which are few, so this is rough" if self.groups < FEW_GROUPS else ""
        return (
            f"{self.stands_out.sum()} of {self.features['p'].notna().sum()} tested ASVs stand out "
            f"in {what} (share of false discoveries at most {FALSE_DISCOVERIES:g}, over "
            f"{self.groups} {unit}s{of}{rough})"
        )


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
    size, is_tested = effects.carriers.shape[1], subset != TRAINING
    features = importance_of(effects, groups, seed, tested=np.full(size, is_tested))
    if effects.attention is not None:
        features["attention"] = np.asarray(effects.attention.mean(axis=0)).ravel()[features.index]
    sets, of_taxa = taxa(asvs.lineages, np.sort(features.index.to_numpy())), None
    if len(sets):
        summed, tested = effects.summed(membership(sets, size)), sets.pop("tested") & is_tested
        found = importance_of(summed, groups, seed, sets["rank"].tolist(), tested.to_numpy())
        place = {column: at for at, column in enumerate(features.index)}
        first = [min(members, key=place.__getitem__) for members in sets.pop("columns")]
        sets["first"] = [asvs.short_ids[column] for column in first]
        of_taxa = sets.loc[found.index].join(found)
        order = {rank: at for at, rank in enumerate(dict.fromkeys(sets["rank"]))}
        of_taxa = of_taxa.sort_values("rank", key=lambda rank: rank.map(order), kind="stable")
    has_truth = np.isfinite(effects.truth)
    counted = has_truth if has_truth.any() else ~has_truth
    return Explanation(
        effects=effects,
        features=asvs.table(features),
        asvs=asvs,
        groups=int(counted.sum()) if groups is None else len(set(groups[counted].tolist())),
        group_column=group_column,
        subset=subset,
        taxa=of_taxa,
    )


# --- files -------------------------------------------------------------------------------------


def folder_names(targets: Sequence[str]) -> list[str]:
    """Return a folder name for each target: its name with only letters, digits and ``.-_``, each
    name once.
    """
    names: list[str] = []
    for target in targets:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", target).lstrip(".") or "target"
        name, number = plain, 1
        while name.lower() in {other.lower() for other in names}:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def sample_table(effects: TargetEffects, subset: str) -> pd.DataFrame:
    """Return a row for each sample: what it was to the models, truth, predictions, sum of its
    effects.
    """
    labels, truth = effects.spec.labels, effects.truth
    columns = {
        "sample-id": effects.sample_ids,
        "subset": subset,
        "truth": [labels[int(k)] if np.isfinite(k) else "" for k in truth] if labels else truth,
    }
    names = [f"prediction={label}" for label in labels] or ["prediction"]
    columns |= dict(zip(names, effects.prediction.T, strict=True))
    for label, part in zip(effects.outputs, effects.effects, strict=True):
        columns[f"sum-of-effects={label}".rstrip("=")] = np.asarray(part.sum(axis=1)).ravel()
    return pd.DataFrame(columns)


def effect_table(effects: TargetEffects, asvs: Asvs) -> pd.DataFrame:
    """Return a row for each ASV of each sample: its effects, and the attention paid to it."""
    names = [f"effect={label}".rstrip("=") for label in effects.outputs]
    parts = dict(zip(names, effects.effects, strict=True))
    if effects.attention is not None:
        parts["attention-not-importance"] = effects.attention
    row, column = effects.carriers.sorted_indices().nonzero()
    columns = {
        "sample-id": np.array(effects.sample_ids, object)[row],
        "short-id": np.array(asvs.short_ids, object)[column],
    }
    for name, part in parts.items():
        columns[name] = np.asarray(part[row, column]).ravel()
    return pd.DataFrame(columns)


def write_explanation(folder: Path, explanation: Explanation) -> None:
    """Write features.tsv, taxa.tsv, samples.tsv and effects.tsv to a folder; numbers have six
    digits.
    """
    folder.mkdir()
    tables = {
        "features": explanation.features,
        "taxa": explanation.taxa,
        "samples": sample_table(explanation.effects, explanation.subset),
        "effects": effect_table(explanation.effects, explanation.asvs),
    }
    for name, table in tables.items():
        if table is not None:
            text = table.to_csv(sep="\t", index=False, float_format="%.6g", lineterminator="\n")
            write_text(folder / f"{name}.tsv", str(text))
