"""From held-out predictions to a report: figures, intervals, and the trivial baselines beside the model."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.data.metadata import Metadata
from aam.data.split import Split
from aam.data.study import EVALUATION, Study
from aam.data.table import rarefied_row
from aam.data.targets import TargetSpec
from aam.runtime.files import write_text
from aam.training.baselines import Baseline, Fold, Task, trivial_baselines
from aam.training.metrics import Array, Predictions
from aam.training.predictions import PredictionTable
from aam.training.report import Names, ReportData, TargetResult, summary_lines, target_result, write_report

log = logging.getLogger("aam")


@dataclasses.dataclass(frozen=True)
class Columns:
    """Metadata columns that group the samples of a report."""

    group: str | None = None
    batch: str | None = None


def _truth(metadata: Metadata, spec: TargetSpec, ids: Sequence[str]) -> Array:
    if spec.kind == "numeric":
        return metadata.numbers(spec.name, ids)
    place = {label: index for index, label in enumerate(spec.labels)}
    return np.array(
        [-1 if value is None else place.get(value, -1) for value in metadata.values(spec.name, ids)]
    )


def _levels(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    if column is None:
        return None
    return np.array([value or "" for value in metadata.values(column, ids)], dtype=object).astype(str)


def _predictions(
    table: PredictionTable, spec: TargetSpec, metadata: Metadata, columns: Columns
) -> Predictions:
    ids = table.sample_ids
    return Predictions(
        sample_ids=ids,
        truth=_truth(metadata, spec, ids),
        predicted=table.values[spec.name] if spec.kind == "numeric" else table.probabilities[spec.name],
        labels=spec.labels,
        fold=np.array(table.folds) if len(set(table.folds)) > 1 else None,
        groups=_levels(metadata, columns.group, ids),
        batch=_levels(metadata, columns.batch, ids),
    )


def _baselines(
    study: Study, splits: Sequence[Split], spec: TargetSpec, table: PredictionTable, columns: Columns
) -> tuple[Baseline, ...]:
    """Trivial baselines on exactly the training side of each split, in the rows of `table`."""
    metadata, ids = study.metadata, study.table.sample_ids
    if metadata is None:
        return ()
    richness = np.array([
        len(rarefied_row(study.table, row, study.depth, study.seed, EVALUATION)[0]) for row in range(len(ids))
    ])  # fmt: skip
    named = {name for name in (columns.group, columns.batch) if name is not None}
    task = Task(
        truth=_truth(metadata, spec, ids),
        labels=spec.labels,
        folds=tuple(_fold(study, split) for split in splits),
        depth=study.table.depths,
        richness=richness,
        levels={
            name: levels for name in sorted(named) if (levels := _levels(metadata, name, ids)) is not None
        },
    )
    rows = study.rows(table.sample_ids)
    found = trivial_baselines(task, study.seed, len(os.sched_getaffinity(0)))
    return tuple(dataclasses.replace(one, predicted=one.predicted[rows]) for one in found)


def _fold(study: Study, split: Split) -> Fold:
    """Training and held-out rows of a split; validation is held out where there is no test side."""

    def mask(ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        result = np.zeros(len(study.table.sample_ids), bool)
        result[study.rows(ids)] = True
        return result

    held_out = split.ids("test") or split.ids("validation")
    train = split.ids("train") + (split.ids("validation") if split.ids("test") else ())
    return Fold(mask(train), mask(held_out))


def _losses(study: Study, spec: TargetSpec) -> dict[str, tuple[int, int]]:
    """Samples of each class in the metadata of the table, and those that reach the depth."""
    if study.metadata is None or spec.kind == "numeric":
        return {}
    known = [name for name in (*study.table.sample_ids, *study.dropped) if name in study.metadata]
    kept = set(study.table.sample_ids)
    counts = {label: [0, 0] for label in spec.labels}
    for name, value in zip(known, study.metadata.values(spec.name, known), strict=True):
        if value in counts:
            counts[value][0] += 1
            counts[value][1] += name in kept
    return {label: (total, left) for label, (total, left) in counts.items()}


def evaluate_targets(
    table: PredictionTable,
    metadata: Metadata,
    columns: Columns,
    study: Study | None = None,
    splits: Sequence[Split] = (),
) -> tuple[TargetResult, ...]:
    """Figures of every target; with `study` and `splits`, the trivial baselines beside them."""
    results = []
    for spec in table.specs:
        predictions = _predictions(table, spec, metadata, columns)
        baselines = _baselines(study, splits, spec, table, columns) if study is not None and splits else ()
        names = Names(spec.name, columns.batch or "batch", columns.group or "sample")
        losses = {} if study is None else _losses(study, spec)
        results.append(target_result(names, predictions, baselines, losses))
    return tuple(results)


def write_results(folder: Path, results: ReportData) -> None:
    """Write report.html and metrics.json, and log the report's plain lines."""
    write_report(folder / "report.html", results)
    figures = {
        result.names.target: {
            "pooled": {name: dataclasses.asdict(figure) for name, figure in result.pooled.items()},
            "folds": {
                fold: {name: figure.value for name, figure in values.items()}
                for fold, (_, values) in result.folds.items()
            },
            "baselines": {
                one.name: {name: figure.value for name, figure in one.figures.items()}
                for one in result.comparisons
            },
            "verdict": list(result.sentences),
        }
        for result in results.targets
    }
    tables = {
        table.title: [dict(zip(table.header, row, strict=True)) for row in table.rows]
        for table in results.tables
    }
    write_text(folder / "metrics.json", json.dumps({"targets": figures, "tables": tables}, indent=1) + "\n")
    for line in summary_lines(results):
        log.info("%s", line)
