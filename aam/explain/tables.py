"""Explanations as rows: of ASVs, of sets of them, of samples, and of each ASV in each sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aam.evaluate.bootstrap import Interval
from aam.explain.effects import TargetEffects
from aam.explain.importance import Importance
from aam.explain.sets import CLADE, AsvSet
from aam.io.taxonomy import Lineage, display_name, short_ids
from aam.report.tables import shortened

Rows = list[list[str]]

# Characters of the name of an ASV in a figure.
LONGEST_LABEL = 27

HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True, eq=False)
class Asvs:
    """What the ASVs of a table are called.

    Attributes
    ----------
    feature_ids, sequences, short_ids : tuple of str [F]
    lineages : tuple of Lineage [F]
        Empty where nothing is known.
    """

    feature_ids: tuple[str, ...]
    sequences: tuple[str, ...]
    short_ids: tuple[str, ...]
    lineages: tuple[Lineage, ...]

    def label(self, column: int, longest: int = 80) -> str:
        """Return what a figure or a page calls an ASV: its lowest taxon, where one is given, and its short id.

        The taxon is cut where both have more than `longest` characters: the id tells ASVs of one taxon apart.
        """
        lineage, short_id = self.lineages[column], self.short_ids[column]
        return f"{shortened(display_name(lineage), longest - len(short_id) - 1)} {short_id}" if lineage else short_id


def make_asvs(feature_ids: Sequence[str], sequences: Sequence[str], lineages: Sequence[Lineage] | None = None) -> Asvs:
    """Return the names of ASVs, with short ids of their sequences."""
    given = tuple(lineages) if lineages is not None else ((),) * len(sequences)
    return Asvs(tuple(feature_ids), tuple(sequences), short_ids(sequences), given)


def text(value: float) -> str:
    """Return a number for a file; nothing for NaN."""
    return "" if math.isnan(value) else f"{value:.6g}"


def _limits(value: Interval) -> list[str]:
    return [text(value.value), text(value.low), text(value.high)]


def raised(effects: TargetEffects, importance: Importance, column: int) -> str:
    """Return what the presence of an ASV raises: a class, or whether it makes a number higher or lower; or nothing."""
    outputs, output = effects.outputs, int(importance.direction()[column])
    value = importance.effect[output][column].value
    if math.isnan(value) or value == 0:
        return ""
    if effects.spec.kind == "numeric":
        return HIGHER if value > 0 else LOWER
    if len(outputs) > 1:
        return outputs[output]
    return effects.spec.labels[int(value > 0)]


def _statistics_header(effects: TargetEffects, importance: Importance) -> list[str]:
    outputs = effects.outputs
    by_class = [f"effect={label}" for label in outputs] if len(outputs) > 1 else []
    members = [
        f"{name}.{learner}" for name in ("importance", "effect") for learner in importance.by_learner
        if name == "importance" or len(outputs) == 1
    ]  # fmt: skip
    return [
        "samples", "groups", "importance", "importance.low", "importance.high", "p", "q", "raises", "effect",
        "effect.low", "effect.high", "presence-effect", "abundance-effect", "mean-absolute-effect", *by_class, *members,
    ]  # fmt: skip


def _statistics(effects: TargetEffects, importance: Importance, column: int, directions: np.ndarray) -> list[str]:
    output = int(directions[column])
    outputs = range(len(effects.outputs))
    cells = [
        text(float(importance.carriers[column])),
        str(int(importance.groups[column])),
        *_limits(importance.importance[column]),
        text(float(importance.p[column])),
        text(float(importance.q[column])),
        raised(effects, importance, column),
        *_limits(importance.effect[output][column]),
        text(float(importance.presence[output, column])),
        text(float(importance.abundance[output, column])),
        text(float(importance.absolute[output, column])),
    ]
    if len(outputs) > 1:
        cells += [text(importance.effect[each][column].value) for each in outputs]
    cells += [text(float(values[column])) for values in importance.by_learner.values()]
    if len(outputs) == 1:
        cells += [text(float(importance.learner_effects[name][0, column])) for name in importance.by_learner]
    return cells


def asv_rows(effects: TargetEffects, importance: Importance, asvs: Asvs) -> Rows:
    """Return a header and a row for each ASV that a sample carries, the most important one first."""
    directions = importance.direction()
    header = ["rank", "short-id", "feature-id", "taxon", *_statistics_header(effects, importance)]
    shown = [column for column in importance.order().tolist() if importance.carriers[column] > 0]
    with_sequences = asvs.feature_ids != asvs.sequences
    rows = [[*header, *(["sequence"] if with_sequences else [])]]
    for rank, column in enumerate(shown, start=1):
        names = [str(rank), asvs.short_ids[column], asvs.feature_ids[column], "; ".join(asvs.lineages[column])]
        sequence = [asvs.sequences[column]] if with_sequences else []
        rows.append([*names, *_statistics(effects, importance, column, directions), *sequence])
    return rows


def set_rows(effects: TargetEffects, importance: Importance, sets: Sequence[AsvSet], asvs: Asvs) -> Rows:
    """Return a header and a row for each taxon or clade, the most important one of each kind first.

    `effects` and `importance` are of the sets. A clade is named by its number, what its ASVs have in common, and the
    short ids of its ASVs.
    """
    directions, is_clade = importance.direction(), sets[0].kind == CLADE if sets else False
    header = ["clade", "taxon"] if is_clade else ["rank", "taxon"]
    rows = [[*header, "ASVs", *_statistics_header(effects, importance), *(["short-ids"] if is_clade else [])]]
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(one.kind for one in sets))}
    order = sorted(enumerate(importance.order().tolist()), key=lambda pair: (kinds[sets[pair[1]].kind], pair[0]))
    for _, place in order:
        one = sets[place]
        names = [one.name, "; ".join(one.lineage)] if is_clade else [one.kind, one.name]
        members = [",".join(asvs.short_ids[column] for column in one.columns)] if is_clade else []
        rows.append([*names, str(len(one.columns)), *_statistics(effects, importance, place, directions), *members])
    return rows


def sample_rows(effects: TargetEffects, held_out: Sequence[str]) -> Rows:
    """Return a header and a row for each sample: what it was to the models, truth, predictions, sum of its effects."""
    labels = effects.spec.labels
    columns = [f"prediction={label}" for label in labels] or ["prediction"]
    names = [f"sum-of-effects={label}" if label else "sum-of-effects" for label in effects.outputs]
    rows = [["sample-id", "subset", "truth", *columns, *names]]
    sums = [np.asarray(matrix.sum(axis=1)).ravel() for matrix in effects.effects]
    for row, name in enumerate(effects.sample_ids):
        truth = effects.truth[row]
        truth_text = "" if math.isnan(truth) else labels[int(truth)] if labels else text(float(truth))
        predicted = [text(float(value)) for value in effects.prediction[row]]
        rows.append([name, held_out[row], truth_text, *predicted, *(text(float(one[row])) for one in sums)])
    return rows


def effect_rows(effects: TargetEffects, asvs: Asvs) -> Iterator[list[str]]:
    """Yield a header and a row for each ASV of each sample: its effects, their parts, and the attention paid to it."""
    outputs = effects.outputs
    names = [f"{name}={label}" if label else name for name in ("effect", "abundance-effect") for label in outputs]
    attention = effects.attention
    yield ["sample-id", "short-id", *names, *(["attention-not-importance"] if attention is not None else [])]
    for row, sample in enumerate(effects.sample_ids):
        start, stop = effects.carriers.indptr[row : row + 2]
        columns = np.sort(effects.carriers.indices[start:stop])
        parts = [matrix[row].toarray()[0, columns] for matrix in (*effects.effects, *effects.abundance)]
        if attention is not None:
            parts.append(attention[row].toarray()[0, columns])
        for column, values in zip(columns.tolist(), np.transpose(parts).tolist(), strict=True):
            yield [sample, asvs.short_ids[column], *map(text, values)]
