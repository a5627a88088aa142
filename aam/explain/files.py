"""The tables of an explanation as DataFrames, and its files: TSV, and an artifact of QIIME 2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aam.evaluate.intervals import Interval
from aam.explain.asvs import Asvs, raised
from aam.explain.effects import TargetEffects
from aam.explain.importance import Importance, Ints
from aam.explain.results import Explanation
from aam.explain.sets import CLADE, AsvSet
from aam.files.atomic import write_text
from aam.io.qza import write_artifact

if TYPE_CHECKING:
    import pandas as pd

IMPORTANCE_TYPE, IMPORTANCE_FORMAT = "FeatureData[Importance]", "ImportanceDirectoryFormat"


def folder_names(targets: Sequence[str]) -> list[str]:
    """Return a folder name for each target: its name with only letters, digits and ``.-_``, each name once."""
    names: list[str] = []
    for target in targets:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", target).lstrip(".") or "target"
        name, number = plain, 1
        while name.lower() in {other.lower() for other in names}:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def _limits(name: str, values: Sequence[Interval]) -> dict[str, list[float]]:
    """Return the columns of values with limits."""
    parts = {name: "value", f"{name}.low": "low", f"{name}.high": "high"}
    return {column: [getattr(value, part) for value in values] for column, part in parts.items()}


def _table(names: dict[str, object], effects: TargetEffects, importance: Importance, order: Ints) -> pd.DataFrame:
    """Return `names` and the statistics of ASVs, or of sets of them, rows in an order."""
    import pandas as pd

    outputs, directions = effects.outputs, importance.direction()[order]
    places = list(zip(directions.tolist(), order.tolist(), strict=True))
    columns = {
        **names,
        "samples": importance.carriers[order],
        "groups": importance.groups[order],
        **_limits("importance", [importance.importance[place] for _, place in places]),
        "p": importance.p[order],
        "q": importance.q[order],
        "raises": [raised(effects, importance, place) for _, place in places],
        **_limits("effect", [importance.effect[output][place] for output, place in places]),
        "presence-effect": importance.presence[directions, order],
        "abundance-effect": importance.abundance[directions, order],
        "mean-absolute-effect": importance.absolute[directions, order],
    }
    if len(outputs) > 1:
        for label, values in zip(outputs, importance.effect, strict=True):
            columns[f"effect={label}"] = [values[place].value for _, place in places]
    columns |= {f"importance.{name}": values[order] for name, values in importance.by_learner.items()}
    if len(outputs) == 1:
        columns |= {f"effect.{name}": importance.learner_effects[name][0, order] for name in importance.by_learner}
    return pd.DataFrame(columns)


def asv_table(effects: TargetEffects, importance: Importance, asvs: Asvs) -> pd.DataFrame:
    """Return a row for each ASV that a sample carries, the most important one first."""
    order = importance.order()
    order = order[importance.carriers[order] > 0]
    names = {
        "rank": np.arange(1, len(order) + 1),
        "short-id": [asvs.short_ids[column] for column in order],
        "feature-id": [asvs.feature_ids[column] for column in order],
        "taxon": ["; ".join(asvs.lineages[column]) for column in order],
    }
    table = _table(names, effects, importance, order)
    if asvs.feature_ids != asvs.sequences:
        table["sequence"] = [asvs.sequences[column] for column in order]
    return table


def set_table(effects: TargetEffects, importance: Importance, sets: Sequence[AsvSet], asvs: Asvs) -> pd.DataFrame:
    """Return a row for each taxon or clade, the most important one of each kind first.

    `effects` and `importance` are of the sets. A clade is named by its number, what its ASVs have in common, and the
    short ids of its ASVs.
    """
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(one.kind for one in sets))}
    order = np.array(sorted(importance.order().tolist(), key=lambda place: kinds[sets[place].kind]), np.int64)
    ordered = [sets[place] for place in order]
    is_clade = CLADE in kinds
    names = {"clade": [one.name for one in ordered]} if is_clade else {"rank": [one.kind for one in ordered]}
    names["taxon"] = ["; ".join(one.lineage) if is_clade else one.name for one in ordered]
    table = _table({**names, "ASVs": [len(one.columns) for one in ordered]}, effects, importance, order)
    if is_clade:
        table["short-ids"] = [",".join(asvs.short_ids[column] for column in one.columns) for one in ordered]
    return table


def sample_table(effects: TargetEffects, subset: str) -> pd.DataFrame:
    """Return a row for each sample: what it was to the models, truth, predictions, sum of its effects."""
    import pandas as pd

    labels, truth = effects.spec.labels, effects.truth
    predictions = [f"prediction={label}" for label in labels] or ["prediction"]
    sums = [f"sum-of-effects={label}" if label else "sum-of-effects" for label in effects.outputs]
    return pd.DataFrame({
        "sample-id": effects.sample_ids,
        "subset": subset,
        "truth": [labels[int(k)] if np.isfinite(k) else "" for k in truth] if labels else truth,
        **dict(zip(predictions, effects.prediction.T, strict=True)),
        **{name: np.asarray(part.sum(axis=1)).ravel() for name, part in zip(sums, effects.effects, strict=True)},
    })  # fmt: skip


def effect_table(effects: TargetEffects, asvs: Asvs) -> pd.DataFrame:
    """Return a row for each ASV of each sample: its effects, their parts, and the attention paid to it."""
    import pandas as pd

    names = [
        f"{name}={label}" if label else name for name in ("effect", "abundance-effect") for label in effects.outputs
    ]
    parts = dict(zip(names, (*effects.effects, *effects.abundance), strict=True))
    if effects.attention is not None:
        parts["attention-not-importance"] = effects.attention
    rows = np.repeat(np.arange(len(effects.sample_ids)), np.diff(effects.carriers.indptr))
    order = np.lexsort((effects.carriers.indices, rows))
    rows, columns = rows[order], effects.carriers.indices[order]
    return pd.DataFrame({
        "sample-id": np.array(effects.sample_ids, object)[rows],
        "short-id": np.array(asvs.short_ids, object)[columns],
        **{name: np.asarray(matrix.tocsr()[rows, columns]).ravel() for name, matrix in parts.items()},
    })  # fmt: skip


def _tsv(table: pd.DataFrame) -> str:
    """Return a table as tab-separated text, numbers with six digits and nothing for NaN."""
    return str(table.to_csv(sep="\t", index=False, float_format="%.6g", lineterminator="\n"))


def write_importance(path: Path, effects: TargetEffects, importance: Importance, asvs: Asvs) -> None:
    """Write a QIIME 2 artifact ``FeatureData[Importance]``, as q2-sample-classifier has it, of the ASVs of the samples.

    The column ``importance`` is that of the whole model; without a truth, its place is taken by
    ``mean-absolute-effect`` alone.
    """
    import pandas as pd

    order = importance.order()
    order = order[importance.carriers[order] > 0]
    columns = {} if np.isnan(importance.value).all() else {"importance": importance.value[order]}
    columns["mean-absolute-effect"] = importance.absolute.max(axis=0)[order]
    if len(effects.outputs) == 1:
        columns["effect"] = np.array([importance.effect[0][column].value for column in order])
    features = {"feature": [asvs.feature_ids[column] for column in order]}
    numbers = {name: np.nan_to_num(values) for name, values in columns.items()}
    blob = _tsv(pd.DataFrame({**features, **numbers})).encode()
    write_artifact(path, IMPORTANCE_TYPE, IMPORTANCE_FORMAT, {"importance.tsv": blob})


def write_explanation(folder: Path, explanation: Explanation) -> None:
    """Write features.tsv, taxa.tsv, clades.tsv, samples.tsv, effects.tsv and importance.qza to a folder."""
    effects, importance, asvs = explanation.effects, explanation.importance, explanation.asvs
    folder.mkdir()
    tables = {"features": asv_table(effects, importance, asvs)}
    for name, of_sets in (("taxa", explanation.taxa), ("clades", explanation.clades)):
        if of_sets is not None:
            tables[name] = set_table(of_sets.effects, of_sets.importance, of_sets.sets, asvs)
    tables |= {"samples": sample_table(effects, explanation.subset), "effects": effect_table(effects, asvs)}
    for name, table in tables.items():
        write_text(folder / f"{name}.tsv", _tsv(table))
    write_importance(folder / "importance.qza", effects, importance, asvs)
