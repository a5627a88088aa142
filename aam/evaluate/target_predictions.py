"""Predictions of one target beside its truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aam.evaluate.metrics import (
    Array,
    WeightedMetrics,
    by_fold,
    has_prediction,
    weighted_classification_metrics,
    weighted_regression_metrics,
)

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
    quantiles : float [N, Q], optional
        Predicted quantiles at the levels `levels` [Q].
    """

    sample_ids: tuple[str, ...]
    truth: Array
    predicted: Array
    labels: tuple[str, ...] = ()
    fold: Array | None = None
    groups: Array | None = None
    batch: Array | None = None
    limits: Array | None = None
    quantiles: Array | None = None
    levels: tuple[float, ...] = ()

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
        """What is resampled, [N]: the groups, or single samples where there are none."""
        return np.arange(len(self.truth)) if self.groups is None else self.groups

    @property
    def group_count(self) -> int:
        """How many units there are to resample."""
        return len(np.unique(self.resampling_units))

    @property
    def has_both(self) -> npt.NDArray[np.bool_]:
        """Which samples have both a truth and a prediction, [N]."""
        has_truth = self.truth >= 0 if self.labels else np.isfinite(self.truth)
        return has_truth & has_prediction(self.predicted)

    @property
    def errors(self) -> Array:
        """How wrong each prediction is, float [N]: absolute error, or 1 - probability of the true
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
