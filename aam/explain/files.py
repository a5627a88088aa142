"""The files of an explanation: TSV of ASVs, taxa, clades, samples and effects, and an artifact for QIIME 2."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from aam.explain.effects import TargetEffects
from aam.explain.importance import Importance
from aam.explain.tables import Asvs, text
from aam.files.atomic import write_text
from aam.io.qza import write_artifact

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


def write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows as tab-separated text."""
    output = io.StringIO(newline="")
    csv.writer(output, dialect="excel-tab", lineterminator="\n").writerows(rows)
    write_text(path, output.getvalue())


def write_importance(path: Path, effects: TargetEffects, importance: Importance, asvs: Asvs) -> None:
    """Write a QIIME 2 artifact ``FeatureData[Importance]``, as q2-sample-classifier has it, of the ASVs of the samples.

    The column ``importance`` is that of the whole model; without a truth, its place is taken by
    ``mean-absolute-effect`` alone.
    """
    value = importance.value
    columns = {} if np.isnan(value).all() else {"importance": value}
    columns["mean-absolute-effect"] = importance.absolute.max(axis=0)
    if len(effects.outputs) == 1:
        columns["effect"] = np.array([one.value for one in importance.effect[0]])
    lines = ["\t".join(["feature", *columns])]
    for column in importance.order().tolist():
        if importance.carriers[column] > 0:
            cells = (text(float(np.nan_to_num(values[column]))) for values in columns.values())
            lines.append("\t".join([asvs.feature_ids[column], *cells]))
    blob = ("\n".join(lines) + "\n").encode()
    write_artifact(path, IMPORTANCE_TYPE, IMPORTANCE_FORMAT, {"importance.tsv": blob})
