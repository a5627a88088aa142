"""The explanation of one target: importance of ASVs and taxa over groups, its words, and its
files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.special import stdtr, stdtrit

from aam.device.rng import generator
from aam.evaluate.intervals import FEW_GROUPS, LEAST_GROUPS, interval, too_few
from aam.explain.effects import Floats, Ints, Matrix, TargetEffects, losses
from aam.files.atomic import write_text
from aam.io.taxonomy import Lineage, display_name, plain_name, rank_name, short_ids, taxon_name
from aam.report.charts import shortened

# The share of false discoveries among what is said to stand out.
FALSE_DISCOVERIES = 0.05

# Resamplings of groups for an interval, and columns resampled at a time.
REPEATS, COLUMNS_AT_ONCE = 1000, 512

HIGHER, LOWER = "higher", "lower"

# What the samples of an explanation were to its models.
HELD_OUT, TRAINING = "held-out", "training"

# Taxa that a sentence names.
NAMED = 8

# --- importance ---------------------------------------------------------------------------------


def one_sided_test(sums: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Return the p [F] of a mean of at most 0 over samples in groups, and the standard error [F] of
    the mean.

    It is a t-test on the sums of groups: `sums` ``[G, F]``, and `sizes` ``[G]``, the samples of
    each.
    """
    groups, total = len(sizes), sizes.sum()
    around = sums - sizes[:, None] * sums.sum(axis=0) / total
    error = np.sqrt(groups / max(groups - 1, 1) * (around**2).sum(axis=0)) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, sums.sum(axis=0) / total / error, 0.0)
    return np.asarray(stdtr(groups - 1, -t)), np.asarray(error)


def _tests(raised: Matrix, sizes: Floats, tested: Ints, kinds: Sequence[str]) -> dict[str, Floats]:
    """Return p, q and corrected limits of the `tested` columns of the sums of groups ``[G, F]``,
    NaN of others.

    p is corrected by Benjamini and Hochberg (1995) within each of the `kinds`. The limits have the
    rate of false coverage `FALSE_DISCOVERIES` among what is said to stand out (Benjamini and
    Yekutieli 2005), each end at the level of the test: they hold 0 wherever the test shows nothing.
    """
    # The import takes a second.
    from scipy.stats import false_discovery_control

    p, q, reach = np.full((3, raised.shape[1]), np.nan)
    if len(tested):
        p[tested], reach[tested] = one_sided_test(raised[:, tested].toarray(), sizes)
    kind_of = np.array(kinds or [""] * len(p), object)
    for kind in set(kind_of):
        chosen = (kind_of == kind) & ~np.isnan(p)
        q[chosen] = false_discovery_control(p[chosen])
        found = max((q[chosen] <= FALSE_DISCOVERIES).sum(), 1) / max(chosen.sum(), 1)
        reach[chosen] *= stdtrit(len(sizes) - 1, 1 - FALSE_DISCOVERIES * found)
    reach[reach == 0] = np.nan
    mean = _sum(raised) / sizes.sum()
    return {"p": p, "q": q, "corrected.low": mean - reach, "corrected.high": mean + reach}


def _sum(matrix: Matrix) -> Floats:
    return np.asarray(matrix.sum(axis=0)).ravel()


def _ratios(top: Matrix, bottom: Matrix, seed: int) -> Floats:
    """Return top / bottom of each column and its limits over groups, [3, F]; `bottom` is ``[G, F]``
    or, for all columns, ``[G, 1]``.
    """
    groups, found = top.shape[0], [np.zeros((0, 3))]
    repeats = REPEATS if groups >= LEAST_GROUPS else 0
    drawn = generator(seed, "bootstrap").integers(groups, size=(repeats, groups))
    # How often each group counts: once, and then as drawn with replacement.
    weights = np.stack([np.ones(groups), *(np.bincount(row, minlength=groups) for row in drawn)])
    for start in range(0, top.shape[1], COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        above = weights @ top[:, columns].toarray()
        below = weights @ bottom[:, columns if bottom.shape[1] > 1 else slice(1)].toarray()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(below > 0, above / below, np.nan)
        found.append(np.array([astuple(interval(values, groups)) for values in ratio.T]))
    return np.concatenate(found).T


def _limits(name: str, found: Floats) -> dict[str, Floats]:
    """Columns of values with limits, [3, F]."""
    return dict(zip((name, f"{name}.low", f"{name}.high"), found, strict=True))


def _of_effects(effects: TargetEffects, by_group: Matrix, seed: int) -> dict[str, object]:
    """Return the columns of the effects, from what the presence of an ASV raises to effects on each
    output.
    """
    spec, outputs, carriers = effects.spec, effects.outputs, by_group @ effects.carriers
    found = np.array([_ratios(by_group @ matrix, carriers, seed) for matrix in effects.effects])
    sizes = np.array([_sum(abs(matrix)) for matrix in effects.effects]) / len(effects.sample_ids)
    means, places = found[:, 0], np.arange(found.shape[2])
    highest = np.argmax(means, axis=0)
    largest = means[highest, places]
    low, high = (LOWER, HIGHER) if spec.kind == "numeric" else spec.labels[:2]
    several = np.array(outputs, object)[highest]
    signed = several if len(outputs) > 1 else np.where(largest > 0, high, low)
    columns = {
        "raises": np.where(np.isnan(largest) | (largest == 0), "", signed),
        **_limits("effect", found[highest, :, places].T),
        "mean-absolute-effect": sizes[highest, places],
    }
    named = zip(outputs, means, strict=True) if len(outputs) > 1 else ()
    return columns | {f"effect={label}": values for label, values in named}


def importance_of(
    effects: TargetEffects,
    groups: npt.NDArray[np.object_] | None,
    seed: int = 0,
    kinds: Sequence[str] = (),
    tested: npt.NDArray[np.bool_] | bool = True,
) -> pd.DataFrame:
    """Return the importance of every ASV, or set of ASVs, that a sample has, the most important one
    first.

    Only groups with a sample whose truth is known count in tests and intervals of importances.

    Parameters
    ----------
    effects : TargetEffects
    groups : array [N], optional
        Groups that are resampled whole; single samples without.
    seed : int
        Of the resampling.
    kinds : sequence of str [F], optional
        Kinds of sets; each kind has a correction of its own.
    tested : bool or bool [F]
        Which importances have a p. A model that has learned from the samples uses their noise too.

    Returns
    -------
    pandas.DataFrame
        The columns of features.tsv (docs/reference/files.md) by column of the ASVs, or place among
        the sets. p is one-sided, of an importance of 0, and NaN for an ASV of fewer than
        `LEAST_GROUPS` groups.
    """
    every = np.arange(len(effects.sample_ids))
    _, group = np.unique(every if groups is None else groups.astype(str), return_inverse=True)
    by_group = sparse.csr_matrix((np.ones(len(group)), (group, every)))
    sizes = by_group @ np.isfinite(effects.truth).astype(np.float64)
    judged = np.flatnonzero(sizes)
    carriers, raised = by_group @ effects.carriers, (by_group @ effects.losses)[judged]
    columns = {
        "samples": _sum(effects.carriers > 0),
        "groups": _sum(carriers > 0),
        **_limits("importance", _ratios(raised, sparse.csr_matrix(sizes[judged][:, None]), seed)),
        **dict.fromkeys(("p", "q", "corrected.low", "corrected.high"), np.nan),
    }
    if len(judged):
        enough = (_sum(carriers[judged] > 0) >= LEAST_GROUPS) & tested
        columns |= _tests(raised, sizes[judged], np.flatnonzero(enough), kinds)
    table = pd.DataFrame({**columns, **_of_effects(effects, by_group, seed)})
    size = np.max([_sum(abs(matrix)) for matrix in effects.effects], axis=0)
    ordered = table.iloc[np.lexsort((-size, -table["importance"].fillna(0.0)))]
    return ordered[ordered["samples"] > 0]


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
        text = (
            "Ids are the beginning of the MD5 of the sequence (features.tsv has it); "
            "--taxonomy gives names."
        )
        return "" if self.lineages or not self.sequences else text

    def label(self, column: int, longest: int = 80) -> str:
        """Label of an ASV in figures and pages: its lowest known taxon and its short id.

        The taxon is cut where both have more than `longest` characters: the id tells ASVs of one
        taxon apart.
        """
        lineage, short_id = self.lineages[column] if self.lineages else (), self.short_ids[column]
        taxon = shortened(display_name(lineage), longest - len(short_id) - 1) if lineage else ""
        return f"{taxon} {short_id}".strip()

    def table(self, importance: pd.DataFrame) -> pd.DataFrame:
        """A table of importances, by column of the ASVs, with what they are called."""
        columns = importance.index.tolist()
        lineages = self.lineages or ((),) * len(self.feature_ids)
        names = {
            "rank": range(1, len(columns) + 1),
            "label": [self.label(column) for column in columns],
            "short-id": [self.short_ids[column] for column in columns],
            "feature-id": [self.feature_ids[column] for column in columns],
            "taxon": ["; ".join(lineages[column]) for column in columns],
        }
        table = pd.DataFrame(names, index=columns).join(importance)
        if self.sequences and self.feature_ids != self.sequences:
            table["sequence"] = [self.sequences[column] for column in columns]
        return table


def taxa(lineages: Sequence[Lineage], columns: Ints) -> pd.DataFrame:
    """Return the taxa of the ASVs at `columns` at each rank, with the columns of their ASVs.

    ASVs without a name at a rank are one set for each taxon above. `tested` are sets that may stand
    out: an ASV of its own was tested as such, and ASVs without any taxon are no finding.
    """
    found = []
    for level in range(max((len(lineages[column]) for column in columns if lineages), default=0)):
        rank = rank_name(level, lineages)
        members = defaultdict[tuple[Lineage, bool], list[int]](list)
        for column in columns.tolist():
            lineage = lineages[column]
            members[lineage[: level + 1], len(lineage) > level].append(column)
        for (lineage, named), of_taxon in sorted(members.items()):
            name, label, size = "; ".join(lineage), taxon_name(lineage), len(of_taxon)
            if not named and lineage:
                name = f"{name}; {rank} unknown"
                label = f"{plain_name(lineage[-1])}, {rank} unknown"
                label += f" ({size} ASVs)" if size > 1 else ""
            tested = size > 1 and lineage != ()
            found.append((rank, name or display_name(()), label, size, tested, of_taxon))
    return pd.DataFrame(found, columns=["rank", "taxon", "label", "ASVs", "tested", "columns"])


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
        if table is None or not (tested := table["p"].notna().sum()):
            return ""
        found = table["label"][table["q"] <= FALSE_DISCOVERIES].tolist()
        names = "; ".join([*found[:NAMED], *["..."][: len(found) // (NAMED + 1)]])
        what = f"{len(found)} of {tested} tested taxa ({table['rank'].iloc[0]})"
        return f"{what}, sums over ASVs, stand out{names and ': '}{names}"

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
        out, tested = self.stands_out.sum(), self.features["p"].notna().sum()
        over = f"at most {FALSE_DISCOVERIES:g}, over {self.groups} {unit}s{of}{rough}"
        found = f"{out} of {tested} tested ASVs stand out in {what}"
        return f"{found} (share of false discoveries {over})"


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
    size, is_tested, of_taxa = effects.carriers.shape[1], subset != TRAINING, None
    features = importance_of(effects, groups, seed, tested=is_tested)
    if effects.attention is not None:
        features["attention"] = np.asarray(effects.attention.mean(axis=0)).ravel()[features.index]
    sets = taxa(asvs.lineages, np.sort(features.index.to_numpy()))
    if len(sets):
        summed, tested = effects.summed(membership(sets, size)), sets.pop("tested") & is_tested
        found = importance_of(summed, groups, seed, sets["rank"].tolist(), tested.to_numpy())
        place = {column: at for at, column in enumerate(features.index)}
        first = [min(members, key=place.__getitem__) for members in sets.pop("columns")]
        sets["first"] = [asvs.short_ids[column] for column in first]
        order = {rank: at for at, rank in enumerate(sets["rank"].unique())}
        of_taxa = sets.loc[found.index].join(found)
        of_taxa = of_taxa.sort_values("rank", key=lambda ranks: ranks.map(order), kind="stable")
    has_truth = np.isfinite(effects.truth)
    counted = has_truth if has_truth.any() else ~has_truth
    number = int(counted.sum()) if groups is None else len(set(groups[counted].tolist()))
    table = asvs.table(features)
    return Explanation(effects, table, asvs, number, group_column, subset, of_taxa)


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


def _sample_table(effects: TargetEffects, subset: str) -> pd.DataFrame:
    """Return a row for each sample: what it was to the models, truth, predictions, sum of its
    effects.
    """
    labels, truth = effects.spec.labels, effects.truth
    known = [labels[int(k)] if np.isfinite(k) else "" for k in truth] if labels else truth
    columns = {"sample-id": effects.sample_ids, "subset": subset, "truth": known}
    names = [f"prediction={label}" for label in labels] or ["prediction"]
    columns |= dict(zip(names, effects.prediction.T, strict=True))
    for label, part in zip(effects.outputs, effects.effects, strict=True):
        columns[f"sum-of-effects={label}".rstrip("=")] = np.asarray(part.sum(axis=1)).ravel()
    return pd.DataFrame(columns)


def _effect_table(effects: TargetEffects, asvs: Asvs) -> pd.DataFrame:
    """Return a row for each ASV of each sample: its effects, and the attention paid to it."""
    names = [f"effect={label}".rstrip("=") for label in effects.outputs]
    parts = dict(zip(names, effects.effects, strict=True))
    if effects.attention is not None:
        parts["attention-not-importance"] = effects.attention
    row, column = effects.carriers.sorted_indices().nonzero()
    ids = {"sample-id": (effects.sample_ids, row), "short-id": (asvs.short_ids, column)}
    columns = {name: np.array(values, object)[places] for name, (values, places) in ids.items()}
    columns |= {name: np.asarray(part[row, column]).ravel() for name, part in parts.items()}
    return pd.DataFrame(columns)


def write_explanation(folder: Path, explanation: Explanation) -> None:
    """Write features.tsv, taxa.tsv, samples.tsv and effects.tsv to a folder; numbers have six
    digits.
    """
    folder.mkdir()
    tables = {
        "features": explanation.features,
        "taxa": explanation.taxa,
        "samples": _sample_table(explanation.effects, explanation.subset),
        "effects": _effect_table(explanation.effects, explanation.asvs),
    }
    for name, table in tables.items():
        if table is not None:
            text = table.to_csv(sep="\t", index=False, float_format="%.6g", lineterminator="\n")
            write_text(folder / f"{name}.tsv", str(text))
