"""Baselines of a study on its own splits, with the covariates that the model reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aam.config_commands import ForestConfig
from aam.data.collate import rarefied_table
from aam.data.splits import Split
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.evaluate.baselines import Baseline, Fold, Task, trivial_baselines
from aam.evaluate.metrics import Array
from aam.evaluate.target_predictions import UNKNOWN_CLASS
from aam.io.metadata import Metadata
from aam.predict.learned_baselines import learned_baselines


@dataclass(frozen=True)
class Columns:
    """Metadata columns of a report: they group samples, or are read beside the ASVs by model and baselines.

    `categories` are reported by category. `categorical` and `numeric` are the covariates, also the column of
    ``--normalize-by``.
    """

    group: str | None = None
    batch: str | None = None
    categories: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of all covariates."""
        return (*self.categorical, *self.numeric)


def truth_of(metadata: Metadata, spec: TargetSpec, ids: Sequence[str]) -> Array:
    """Return the target of samples: numbers, or the int index of their class.

    NaN or -1 where it is missing, `UNKNOWN_CLASS` where a class is none of the labels.
    """
    if spec.kind == "numeric":
        return metadata.numbers(spec.name, ids)
    place = {label: index for index, label in enumerate(spec.labels)}
    values = metadata.values(spec.name, ids)
    return np.array([place.get(value or "", UNKNOWN_CLASS if value else -1) for value in values], np.int64)


def column_values(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    """Return the values of a column as text, empty where missing; none without a column."""
    return None if column is None else np.array([value or "" for value in metadata.values(column, ids)])


def covariate_blocks(metadata: Metadata, columns: Columns, ids: Sequence[str]) -> tuple[Array, ...]:
    """Return the covariates of samples as float blocks [N, columns], one for each.

    Two categories, and the smallest and largest number, are 1 apart in city-block distance; a missing number is half
    a column from any other.
    """
    blocks = []
    for name in columns.categorical:
        values = np.array([value or "" for value in metadata.values(name, ids)])
        blocks.append((values[:, None] == np.unique(values)) / 2)
    for name in columns.numeric:
        numbers = metadata.numbers(name, ids)
        missing = np.isnan(numbers)
        low, high = (0.0, 0.0) if missing.all() else (np.nanmin(numbers), np.nanmax(numbers))
        scaled = np.where(missing, 0.5, (numbers - low) / (high - low if high > low else 1.0))
        blocks.append(np.stack([scaled, missing / 2], axis=1))
    return tuple(blocks)


def baselines_of(
    study: Study,
    splits: Sequence[Split],
    spec: TargetSpec,
    metadata: Metadata,
    columns: Columns,
    forest: ForestConfig | None = None,
) -> tuple[tuple[str, ...], tuple[Baseline, ...]]:
    """Return the samples of the study that have metadata, and baselines on the training samples of each split.

    The trivial ones and, with `forest`, the learned ones.
    """
    ids = tuple(name for name in study.table.sample_ids if name in metadata)
    rows = study.rows(ids)
    levels = {name: column_values(metadata, name, ids) for name in (columns.group, columns.batch) if name}
    task = Task(
        truth=truth_of(metadata, spec, ids),
        labels=spec.labels,
        folds=tuple(Fold(np.isin(ids, split.not_held_out), np.isin(ids, split.held_out)) for split in splits),
        depth=study.table.depths[rows],
        richness=np.diff(rarefied_table(study).indptr)[rows].astype(np.int64),
        levels={name: values for name, values in sorted(levels.items()) if values is not None},
        groups=column_values(metadata, columns.group, ids),
        covariates=covariate_blocks(metadata, columns, ids),
    )
    learned = () if forest is None else learned_baselines(task, study, rows, forest)
    return ids, (*trivial_baselines(task, study.seed), *learned)


def rows_for(baseline: Baseline, ids: Sequence[str], wanted: Sequence[str]) -> Baseline:
    """Return the baseline with rows for `wanted` in their order; those that it lacks are NaN."""
    place = {name: row for row, name in enumerate(ids)}
    padded = np.concatenate([baseline.predicted, np.full_like(baseline.predicted[:1], math.nan)])
    return replace(baseline, predicted=padded[[place.get(name, -1) for name in wanted]])
