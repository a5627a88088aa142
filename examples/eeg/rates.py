"""The learning-rate range test of Smith (2017), "Cyclical learning rates for training neural
networks".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aam.engine.step import StepRunner


def learning_rate_curve(
    runner: StepRunner, batches: Iterator[Any], steps: int
) -> list[tuple[float, float]]:
    """Return learning rate and smoothed loss of `steps` steps from 1e-6 to 1, until the loss is
    four times the lowest.
    """
    curve: list[tuple[float, float]] = []
    mean = 0.0
    with runner.restored():
        for number, rate in enumerate(np.geomspace(1e-6, 1.0, steps)):
            for group in runner.optimizer.param_groups:
                group["lr"] = float(rate)
            runner.step(next(batches), number)
            loss = float(runner.losses[-1])
            mean = 0.9 * mean + 0.1 * loss
            smooth = mean / (1 - 0.9 ** (number + 1))
            if not math.isfinite(loss) or (curve and smooth > 4 * min(value for _, value in curve)):
                break
            curve.append((float(rate), smooth))
    return curve


def suggested_learning_rate(curve: Sequence[tuple[float, float]]) -> float:
    """Return a third of the learning rate at which the loss is lowest."""
    return min(curve, key=lambda pair: pair[1])[0] / 3
