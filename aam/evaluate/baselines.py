"""Baselines that predictions are compared with: their names and what they predicted of held-out samples."""

from __future__ import annotations

from dataclasses import dataclass

from aam.evaluate.metrics import Array

MEDIAN = "the training median"

MAJORITY = "the majority class"

DEPTH = "depth alone"

RICHNESS = "richness alone"

DEPTH_AND_RICHNESS = "depth and richness alone"

COVARIATES = "covariates alone"


@dataclass(frozen=True, eq=False)
class Baseline:
    """Held-out predictions of a baseline: float [N] or [N, K], NaN where it has none."""

    name: str
    predicted: Array
    trivial: bool = True

    @property
    def constant(self) -> bool:
        """Whether it knows nothing of a sample."""
        return self.name in (MEDIAN, MAJORITY)
