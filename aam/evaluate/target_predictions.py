"""Predictions of one target next to its truth, and the metadata columns that they are judged by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aam.data.targets import TargetSpec
from aam.evaluate.metrics import (
    Array,
    WeightedMetrics,
    by_fold,
    has_prediction,
    weighted_classification_metrics,
    weighted_regression_metrics,
)
from aam.evaluate.predictions import PredictionTable
from aam.io.metadata import Metadata

WHOLE = re.compile(r"-?\d+\.0")

# What the samples of a report were to the model. Only "held-out" ones took no part in learning or
# choosing anything.
Subset = Literal["held-out", "validation", "training", "unknown"]


# The truth of a sample whose class no training sample had: the model has no probability of it.
UNKNOWN_CLASS = -2


@dataclass(frozen=True, eq=False)
class TargetPredictions:
    """Predictions of one target on N samples.

    Attributes
    ----------
    sample_ids : tuple of str [N]
    truth : float [N], or int [N] of classes
        In the column's units, NaN = missing; or the index into `labels`, -1 = missing,
        `UNKNOWN_CLASS` = none of them.
    predicted : float [N], or float [N, K] of classes
        Values or probabilities, NaN = none was made.
    labels : tuple of str [K]
        The classes; empty for numbers.
    fold, groups, batch : array [N], optional
        The fold that held each sample out; its group (subject); its batch (study, run, plate).
    limits : float [N, 2], optional
        Limits of the conformal intervals, NaN = none.
    """

    sample_ids: tuple[str, ...]
    truth: Array
    predicted: Array
    labels: tuple[str, ...] = ()
    fold: Array | None = None
    groups: Array | None = None
    batch: Array | None = None
    limits: Array | None = None

    def __post_init__(self) -> None:
        size = len(self.sample_ids)
        for name in ("truth", "predicted", "fold", "groups", "batch"):
            shape = (size, len(self.labels)) if name == "predicted" and self.labels else (size,)
            values = getattr(self, name)
            if values is not None and values.shape != shape:
                raise ValueError(f"{name} has shape {values.shape}, expected {shape}")

    @property
    def measure(self) -> WeightedMetrics:
        """The metrics of this kind of target, ranking metrics inside each fold."""
        return by_fold(
            weighted_classification_metrics if self.labels else weighted_regression_metrics,
            self.fold,
        )

    @property
    def cross_validated(self) -> bool:
        """Whether samples of several folds, predicted by several models, stand together."""
        return self.fold is not None and len(np.unique(self.fold)) > 1

    @property
    def resampling_units(self) -> Array:
        """The units of resampling, [N]: groups, or single samples without groups."""
        return np.arange(len(self.truth)) if self.groups is None else self.groups

    @property
    def group_count(self) -> int:
        """Number of units of resampling."""
        return len(np.unique(self.resampling_units))

    @property
    def has_both(self) -> npt.NDArray[np.bool_]:
        """Samples with both a truth and a prediction, [N]."""
        has_truth = self.truth >= 0 if self.labels else np.isfinite(self.truth)
        return has_truth & has_prediction(self.predicted)

    @property
    def errors(self) -> Array:
        """Error of each prediction, float [N]: absolute error, or 1 - probability of the true
        class.
        """
        if self.labels:
            return np.asarray(
                1 - self.predicted[np.arange(len(self.truth)), self.truth], np.float64
            )
        return np.asarray(np.abs(self.predicted - self.truth), np.float64)

    def at(self, rows: Array) -> TargetPredictions:
        """Return the same for a choice of samples: a mask or positions."""
        chosen: dict[str, Any] = {
            k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray)
        }
        return replace(
            self, sample_ids=tuple(np.asarray(self.sample_ids, dtype=object)[rows]), **chosen
        )

    def complete(self) -> TargetPredictions:
        """Return the samples that have both a truth and a prediction."""
        return self.at(self.has_both)

    def with_limits(self) -> TargetPredictions:
        """Return the samples that have a truth, a prediction and a conformal interval."""
        complete = self.complete()
        if complete.limits is None:
            return complete.at(np.zeros(len(complete.truth), bool))
        return complete.at(np.asarray(np.isfinite(complete.limits).all(axis=1)))


@dataclass(frozen=True)
class Columns:
    """Metadata columns by which predictions are judged.

    `group` and `batch` divide the samples; `categorical` and `numeric` are the covariates; a model
    is to hold in a new value of `study`; each value of `fold` was held out whole.
    """

    group: str | None = None
    batch: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    study: str | None = None
    fold: str | None = None

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of all covariates."""
        return (*self.categorical, *self.numeric)


def truth_of(metadata: Metadata, spec: TargetSpec, ids: Sequence[str]) -> Array:
    """True values of samples: numbers (NaN = missing), or the index of the class.

    -1 is a missing class, `UNKNOWN_CLASS` one that is not among the labels.
    """
    if spec.kind == "numeric":
        return metadata.numbers(spec.name, ids)
    place = {label: index for index, label in enumerate(spec.labels)}
    values = metadata.values(spec.name, ids)
    return np.array(
        [place.get(value or "", UNKNOWN_CLASS if value else -1) for value in values], np.int64
    )


def column_values(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    """Values of a column as text, empty where missing; None without a column.

    Whole numbers that a spreadsheet wrote as "25.0" are "25".
    """
    if column is None:
        return None
    return _as_whole_numbers([value or "" for value in metadata.values(column, ids)])


def group_values(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    """Group of each sample, one of its own where it has none; None without a column."""
    return None if column is None else _as_whole_numbers(metadata.groups(column, ids))


def _as_whole_numbers(values: Sequence[str]) -> Array:
    """Values [N] without the ".0" of whole numbers, if all are whole numbers."""
    if all(WHOLE.fullmatch(value) for value in values if value):
        values = [value.removesuffix(".0") for value in values]
    return np.array(values)


def guess(truth: Array, classes: int) -> Array:
    """Median of the known values [N], or all probability [K] on the most frequent class."""
    if not classes:
        return np.asarray(np.median(truth[np.isfinite(truth)]))
    return np.asarray(np.eye(classes)[np.bincount(truth[truth >= 0]).argmax()])


def target_predictions(
    table: PredictionTable, spec: TargetSpec, metadata: Metadata, columns: Columns
) -> TargetPredictions:
    """Predictions of one target of a table next to what the metadata say of the same samples."""
    ids, folds = table.sample_ids, table.texts("fold")
    return TargetPredictions(
        sample_ids=ids,
        truth=truth_of(metadata, spec, ids),
        predicted=table.predicted(spec.name),
        labels=spec.labels,
        fold=np.array(folds) if len(set(folds)) > 1 else None,
        groups=group_values(metadata, columns.group, ids),
        batch=column_values(metadata, columns.batch, ids),
        limits=table.limits(spec.name),
    )
