"""The explanation of one target: names of ASVs and taxa, tables of their importance, and files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.evaluate.intervals import FEW_GROUPS, LEAST_GROUPS, too_few
from aam.explain.effects import Ints, Matrix, TargetEffects, losses
from aam.explain.importance import FALSE_DISCOVERIES, importance_of
from aam.files.atomic import write_text
from aam.io.taxonomy import Lineage, display_name, plain_name, rank_name, short_ids, taxon_name
from aam.report.tables import shortened

if TYPE_CHECKING:
    import pandas as pd

# What the samples of an explanation were to its models.
HELD_OUT, TRAINING = "held-out", "training"

# Taxa that a sentence names.
NAMED = 8


@dataclass(frozen=True, eq=False)
class Asvs:
    """What the F ASVs of a table are called; there may be no lineages."""

    feature_ids: tuple[str, ...]
    sequences: tuple[str, ...]
    lineages: tuple[Lineage, ...] = ()

    @cached_property
    def short_ids(self) -> tuple[str, ...]:
        """Short ids of the sequences; the feature ids without these."""
        return short_ids(self.sequences) if self.sequences else self.feature_ids

    @property
    def unnamed(self) -> str:
        """What the ids are, where no ASV has a name; nothing otherwise."""
        text = (
            "Ids are the beginning of the MD5 of the sequence (features.tsv has it); "
            "--taxonomy gives names."
        )
        return "" if self.lineages or not self.sequences else text

    def lineage(self, column: int) -> Lineage:
        """Return the taxa of an ASV, from the top; empty where nothing is known."""
        return self.lineages[column] if self.lineages else ()

    def label(self, column: int, longest: int = 80) -> str:
        """Return what a figure or a page calls an ASV: its lowest taxon, where one is given, and
        its short id.

        The taxon is cut where both have more than `longest` characters: the id tells ASVs of one
        taxon apart.
        """
        lineage, short_id = self.lineage(column), self.short_ids[column]
        return (
            f"{shortened(display_name(lineage), longest - len(short_id) - 1)} {short_id}"
            if lineage
            else short_id
        )


@dataclass(frozen=True)
class Taxon:
    """A taxon: its rank, its name, its lineage, the columns of its ASVs."""

    rank: str
    name: str
    lineage: Lineage
    columns: tuple[int, ...]

    @property
    def is_tested(self) -> bool:
        """Whether it may stand out: one ASV was tested as such already, and ASVs without any taxon
        are no finding.
        """
        return len(self.columns) > 1 and bool(self.lineage)

    @property
    def label(self) -> str:
        """Name for a figure; of ASVs without a name at this rank, their lowest taxon and number."""
        if not self.lineage or self.name == "; ".join(self.lineage):
            return taxon_name(self.lineage)
        number = f" ({len(self.columns)} ASVs)" if len(self.columns) > 1 else ""
        return f"{plain_name(self.lineage[-1])}, {self.rank} unknown{number}"


def taxa(lineages: Sequence[Lineage], columns: Ints) -> list[Taxon]:
    """Return the taxa of the ASVs at `columns` at each rank; those without a name there are one
    set.

    `lineages` are those of all F ASVs.
    """
    found: list[Taxon] = []
    deepest = max((len(lineages[column]) for column in columns), default=0) if lineages else 0
    for level in range(deepest):
        kind = rank_name(level, lineages)
        members: dict[tuple[Lineage, bool], list[int]] = {}
        for column in columns.tolist():
            lineage = lineages[column]
            members.setdefault((lineage[: level + 1], len(lineage) > level), []).append(column)
        for (lineage, named), of_taxon in sorted(members.items()):
            name = (
                "; ".join(lineage if named else (*lineage, f"{kind} unknown"))
                if lineage
                else display_name(lineage)
            )
            found.append(Taxon(kind, name, lineage, tuple(of_taxon)))
    return found


def membership(sets: Sequence[Taxon], asvs: int) -> Matrix:
    """Return which ASV is in which set, ``[F, sets]``."""
    column = np.concatenate([np.array(one.columns, np.int64) for one in sets])
    place = np.repeat(np.arange(len(sets)), [len(one.columns) for one in sets])
    return sparse.csr_matrix((np.ones(len(column)), (column, place)), shape=(asvs, len(sets)))


@dataclass(frozen=True, eq=False)
class Explanation:
    """What drives the predictions of one target.

    `features` and `taxa` are the tables of the files, by column of the ASVs and by place among the
    `sets`; `groups` counts those with a truth;
    `group_column` is what was resampled, empty where single samples were; `subset` is what the
    samples were to the models, `HELD_OUT` or `TRAINING`.
    """

    effects: TargetEffects
    features: pd.DataFrame
    asvs: Asvs
    groups: int
    group_column: str
    subset: str
    sets: tuple[Taxon, ...]
    taxa: pd.DataFrame | None

    @cached_property
    def has_truth(self) -> bool:
        """Whether the truth of any sample is known, without which there is no importance."""
        return bool(np.isfinite(self.effects.truth).any())

    @property
    def loss(self) -> float:
        """The mean loss of the samples whose truth is known, which importances are rises of."""
        return float(
            np.nanmean(losses(self.effects.spec, self.effects.truth, self.effects.prediction))
        )

    @property
    def stands_out(self) -> pd.Series[bool]:
        """Which ASVs matter beyond chance, at `FALSE_DISCOVERIES`."""
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
        if (
            table is None
            or self.groups < LEAST_GROUPS
            or not (tested := int(table["p"].notna().sum()))
        ):
            return ""
        names = [self.sets[at].label for at in table.index[table["q"] <= FALSE_DISCOVERIES]]
        most = (
            f": {'; '.join(names[:NAMED])}{'; ...' if len(names) > NAMED else ''}" if names else ""
        )
        return (
            f"{len(names)} of {tested} tested taxa ({table['rank'].iloc[0]}), sums over ASVs, "
            f"stand out{most}"
        )

    def verdict(self) -> str:
        """Return in one sentence how many ASVs matter to predictions of these samples, beyond
        chance.
        """
        samples, with_truth = (
            len(self.effects.sample_ids),
            int(np.isfinite(self.effects.truth).sum()),
        )
        of_what = (
            f"{samples} {self.subset} samples with {len(self.features)} ASVs after rarefaction"
        )
        if 0 < with_truth < samples:
            of_what += f", {with_truth} of them with a truth"
        unit, of = ("value", f" of {self.group_column}") if self.group_column else ("sample", "")
        if not self.has_truth:
            return f"effects on the predictions of {of_what}; no truth, so no importance"
        if self.subset == TRAINING:
            return (
                f"{of_what}; the models have learned from them, so nothing is tested or said "
                "to stand out"
            )
        if self.groups < LEAST_GROUPS:
            return (
                f"{of_what}; {too_few(self.groups, unit, of)} for intervals or tests, so "
                "nothing is said to stand out"
            )
        rough = ", which are few, so this is rough" if self.groups < FEW_GROUPS else ""
        return (
            f"{self.stands_out.sum()} of {self.features['p'].notna().sum()} tested ASVs stand "
            f"out in {of_what} (share "
            f"of false discoveries at most {FALSE_DISCOVERIES:g}, over {self.groups} "
            f"{unit}s{of}{rough})"
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
    every = np.full(effects.carriers.shape[1], subset != TRAINING)
    features = importance_of(effects, groups, seed, tested=every)
    sets = taxa(asvs.lineages, np.sort(features.index.to_numpy()))
    of_taxa = None
    if sets:
        ranks = [one.rank for one in sets]
        summed = effects.summed(membership(sets, effects.carriers.shape[1]))
        tested = np.array([one.is_tested for one in sets]) & (subset != TRAINING)
        of_taxa = _named_taxa(importance_of(summed, groups, seed, ranks, tested), sets)
    has_truth = np.isfinite(effects.truth)
    counted = has_truth if has_truth.any() else ~has_truth
    return Explanation(
        effects=effects,
        features=_named_asvs(features, asvs),
        asvs=asvs,
        groups=int(counted.sum()) if groups is None else len(set(groups[counted].tolist())),
        group_column=group_column,
        subset=subset,
        sets=tuple(sets),
        taxa=of_taxa,
    )


def _named_asvs(importance: pd.DataFrame, asvs: Asvs) -> pd.DataFrame:
    """Return the table of the ASVs, with what they are called."""
    import pandas as pd

    columns = importance.index
    names = {
        "rank": np.arange(1, len(columns) + 1),
        "short-id": [asvs.short_ids[column] for column in columns],
        "feature-id": [asvs.feature_ids[column] for column in columns],
        "taxon": ["; ".join(asvs.lineage(column)) for column in columns],
    }
    table = pd.concat([pd.DataFrame(names, index=columns), importance], axis=1)
    if asvs.sequences and asvs.feature_ids != asvs.sequences:
        table["sequence"] = [asvs.sequences[column] for column in columns]
    return table


def _named_taxa(importance: pd.DataFrame, sets: Sequence[Taxon]) -> pd.DataFrame:
    """Table of the taxa, rank by rank."""
    import pandas as pd

    ranks = list(dict.fromkeys(one.rank for one in sets))
    order = np.argsort([ranks.index(sets[at].rank) for at in importance.index], kind="stable")
    importance = importance.iloc[order]
    ordered = [sets[place] for place in importance.index]
    names = {
        "rank": [one.rank for one in ordered],
        "taxon": [one.name for one in ordered],
        "ASVs": [len(one.columns) for one in ordered],
    }
    return pd.concat([pd.DataFrame(names, index=importance.index), importance], axis=1)


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
    import pandas as pd

    labels, truth = effects.spec.labels, effects.truth
    predictions = [f"prediction={label}" for label in labels] or ["prediction"]
    sums = [f"sum-of-effects={label}" if label else "sum-of-effects" for label in effects.outputs]
    return pd.DataFrame(
        {
            "sample-id": effects.sample_ids,
            "subset": subset,
            "truth": [labels[int(k)] if np.isfinite(k) else "" for k in truth] if labels else truth,
            **dict(zip(predictions, effects.prediction.T, strict=True)),
            **{
                name: np.asarray(part.sum(axis=1)).ravel()
                for name, part in zip(sums, effects.effects, strict=True)
            },
        }
    )


def effect_table(effects: TargetEffects, asvs: Asvs) -> pd.DataFrame:
    """Return a row for each ASV of each sample: its effects, their parts, and the attention paid to
    it.
    """
    import pandas as pd

    names = [f"effect={label}" if label else "effect" for label in effects.outputs]
    parts = dict(zip(names, effects.effects, strict=True))
    if effects.attention is not None:
        parts["attention-not-importance"] = effects.attention
    carriers = effects.carriers.sorted_indices().tocoo()
    return pd.DataFrame(
        {
            "sample-id": np.array(effects.sample_ids, object)[carriers.row],
            "short-id": np.array(asvs.short_ids, object)[carriers.col],
            **{
                name: np.asarray(part.tocsr()[carriers.row, carriers.col]).ravel()
                for name, part in parts.items()
            },
        }
    )


def _tsv(table: pd.DataFrame) -> str:
    """Return a table as tab-separated text, numbers with six digits and nothing for NaN."""
    return str(table.to_csv(sep="\t", index=False, float_format="%.6g", lineterminator="\n"))


def write_explanation(folder: Path, explanation: Explanation) -> None:
    """Write features.tsv, taxa.tsv, samples.tsv and effects.tsv to a folder."""
    folder.mkdir()
    tables = {
        "features": explanation.features,
        "taxa": explanation.taxa,
        "samples": sample_table(explanation.effects, explanation.subset),
        "effects": effect_table(explanation.effects, explanation.asvs),
    }
    for name, table in tables.items():
        if table is not None:
            write_text(folder / f"{name}.tsv", _tsv(table))
