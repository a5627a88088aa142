"""What ASVs are called in tables and figures, and what their presence raises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aam.explain.effects import TargetEffects
from aam.explain.importance import Importance
from aam.io.taxonomy import Lineage, display_name, short_ids
from aam.report.tables import shortened

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
