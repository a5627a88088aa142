"""Baselines of a study on its own splits, computed or read from a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aam.config_commands import ForestConfig
from aam.data.draw import rarefied_table
from aam.data.metadata import Metadata
from aam.data.split import Split
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.errors import InputError, shown
from aam.evaluation.baselines import Baseline, Fold, Task, trivial_baselines
from aam.evaluation.learned_baselines import LEARNED, learned_baselines
from aam.evaluation.metrics import Array
from aam.evaluation.predictions import PredictionTable


@dataclass(frozen=True)
class Columns:
    """Metadata columns that group the samples of a report."""

    group: str | None = None
    batch: str | None = None
    categories: tuple[str, ...] = ()


def truth_of(metadata: Metadata, spec: TargetSpec, ids: Sequence[str]) -> Array:
    """The target of samples: numbers, or the int index of their class, -1 where it is none of the labels."""
    if spec.kind == "numeric":
        return metadata.numbers(spec.name, ids)
    place = {label: index for index, label in enumerate(spec.labels)}
    return np.array([place.get(value or "", -1) for value in metadata.values(spec.name, ids)], np.int64)


def levels(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    """The values of a column as text, empty where missing; none without a column."""
    return None if column is None else np.array([value or "" for value in metadata.values(column, ids)])


def baselines_of(
    study: Study,
    splits: Sequence[Split],
    spec: TargetSpec,
    metadata: Metadata,
    columns: Columns,
    forest: ForestConfig | None = None,
) -> tuple[tuple[str, ...], tuple[Baseline, ...]]:
    """Samples of the study that have metadata, and baselines on the training side of each split.

    The trivial ones and, with `forest`, the learned ones.
    """
    ids = tuple(name for name in study.table.sample_ids if name in metadata)
    rows = study.rows(ids)
    by = {name: levels(metadata, name, ids) for name in (columns.group, columns.batch) if name}
    task = Task(
        truth=truth_of(metadata, spec, ids),
        labels=spec.labels,
        folds=tuple(Fold(np.isin(ids, split.not_held_out), np.isin(ids, split.held_out)) for split in splits),
        depth=study.table.depths[rows],
        richness=np.diff(rarefied_table(study).indptr)[rows].astype(np.int64),
        levels={name: values for name, values in sorted(by.items()) if values is not None},
        groups=levels(metadata, columns.group, ids),
    )
    learned = () if forest is None else learned_baselines(task, study, rows, forest)
    return ids, (*trivial_baselines(task, study.seed), *learned)


def laid_out(baseline: Baseline, ids: Sequence[str], wanted: Sequence[str]) -> Baseline:
    """Rows for `wanted` in their order; those that the baseline lacks are NaN."""
    place = {name: row for row, name in enumerate(ids)}
    padded = np.concatenate([baseline.predicted, np.full_like(baseline.predicted[:1], math.nan)])
    return replace(baseline, predicted=padded[[place.get(name, -1) for name in wanted]])


def as_prediction_table(
    ids: Sequence[str], found: Sequence[tuple[TargetSpec, tuple[Baseline, ...]]], splits: Sequence[Split]
) -> PredictionTable:
    """Held-out predictions as one table, whose targets are called TARGET: BASELINE."""
    fold = {name: split.test_fold for split in splits for name in split.held_out}
    every = [(replace(spec, name=f"{spec.name}: {one.name}"), one.predicted) for spec, many in found for one in many]
    table = PredictionTable(
        tuple(ids),
        tuple(spec for spec, _ in every),
        {spec.name: predicted for spec, predicted in every if not spec.labels},
        {},
        {spec.name: predicted for spec, predicted in every if spec.labels},
        ("",) * len(ids),
        tuple(fold.get(name, "") for name in ids),
    )
    return table.with_rows([name for name in ids if name in fold], {})


def baselines_in(table: PredictionTable, spec: TargetSpec, target: PredictionTable) -> tuple[Baseline, ...]:
    """Those that `rf_baseline` wrote for a target, laid out like the predictions `target`.

    Raises `InputError`: no baseline of any target, other classes, or a sample that another fold held out.
    """
    found, fold = [], dict(zip(table.sample_ids, table.folds, strict=True))
    moved = [n for n, own in zip(target.sample_ids, target.folds, strict=True) if own and fold.get(n, own) != own]
    if moved:
        raise InputError(f"--baselines: {len(moved)} samples were held out in another fold: {shown(moved)}; one split")
    for other in table.specs:
        if other.name.startswith(f"{spec.name}: "):
            if unknown := set(other.labels) - set(spec.labels):
                raise InputError(f"--baselines: {other.name!r} has classes {shown(unknown)} that the model has not")
            name = other.name.removeprefix(f"{spec.name}: ")
            predicted = table.values.get(other.name)
            if predicted is None:
                predicted = np.zeros((len(table.sample_ids), len(spec.labels)))
                predicted[:, [spec.labels.index(label) for label in other.labels]] = table.probabilities[other.name]
            one = Baseline(name, predicted, trivial=name not in LEARNED)
            found.append(laid_out(one, table.sample_ids, target.sample_ids))
    if not any(other.name.startswith(f"{one.name}: ") for one in target.specs for other in table.specs):
        names = shown([one.name for one in table.specs])
        raise InputError(f"--baselines: no column '{spec.name}: BASELINE'; it has {names}; run `aam rf-baseline` again")
    return tuple(found)
