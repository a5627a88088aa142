"""Conformal prediction intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aam.evaluation.bootstrap import FEW_GROUPS, Predictions
from aam.evaluation.metrics import Array

# Share of new samples that a conformal interval is to hold; their scale is that of so many quantiles of the prediction.
LEVEL, SCALES = 0.9, 5

# No part of the predictions counts as this much surer than all of them.
SMALLEST_SCALE = 0.25


@dataclass(frozen=True)
class Conformal:
    """An interval's half width: `quantile` times a scale that goes through `scales` at the predictions `knots`.

    It was fitted on so many `samples` and `groups`.
    """

    knots: tuple[float, ...]
    scales: tuple[float, ...]
    quantile: float
    samples: int
    groups: int

    @classmethod
    def fit(cls, known: Predictions, scales: int = SCALES) -> Conformal | None:
        """Fit residuals of samples held out of training and early stopping, of `FEW_GROUPS` groups at least.

        Scales are mean absolute residuals in so many quantiles of the prediction: Lei et al. 2018, section 5.2.
        """
        groups = len(np.unique(known.resampled))
        if groups < FEW_GROUPS:
            return None
        residual = np.abs(known.truth - known.predicted)
        parts = np.array_split(np.argsort(known.predicted, kind="stable"), scales)
        least = SMALLEST_SCALE * residual.mean() or 1.0
        knots = tuple(float(known.predicted[part].mean()) for part in parts)
        found = cls(
            knots, tuple(max(float(residual[part].mean()), least) for part in parts), 1.0, len(residual), groups
        )
        ranked = np.sort(residual / found.half_width(known.predicted))
        return replace(found, quantile=float(ranked[math.ceil((len(ranked) + 1) * LEVEL) - 1]))

    @classmethod
    def from_json(cls, value: Any) -> Conformal:
        """From what `dataclasses.asdict` gave and JSON kept."""
        return cls(**{**value, "knots": tuple(value["knots"]), "scales": tuple(value["scales"])})

    def half_width(self, predicted: Array) -> Array:
        """Half of the interval's width [N] for predictions [N]."""
        return np.asarray(self.quantile * np.interp(predicted, self.knots, self.scales))

    def limits(self, predicted: Array) -> Array:
        """Lower and upper limit [N, 2]."""
        half = self.half_width(predicted)
        return np.stack([predicted - half, predicted + half], axis=1)
