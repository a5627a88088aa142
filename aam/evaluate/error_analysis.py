"""Where a model errs: errors by level of a column, the worst samples, and what these share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aam.evaluate.intervals import Interval
from aam.evaluate.metrics import Array
from aam.evaluate.target_predictions import TargetPredictions

# So many samples are listed as the worst, and so many levels are drawn.
WORST_SAMPLES = 15
MOST_LEVELS = 15

# A level of fewer samples says nothing.
LEAST_IN_LEVEL = 5

# The worst tenth shares a level that is this many times as frequent there as among all, in at least so many samples.
ENRICHED, LEAST_SHARED = 1.5, 3


def errors_of(complete: TargetPredictions) -> Array:
    """Return how wrong each prediction is, float [N]: absolute error, or 1 - probability of the true class."""
    if complete.labels:
        return np.asarray(1 - complete.predicted[np.arange(len(complete.truth)), complete.truth], np.float64)
    return np.asarray(np.abs(complete.predicted - complete.truth), np.float64)


def worst_rows(complete: TargetPredictions, most: int) -> Array:
    """Return the rows of the samples that are predicted worst, the worst first."""
    return np.argsort(-errors_of(complete), kind="stable")[:most]


def errors_by_level(complete: TargetPredictions, levels: Array) -> dict[str, tuple[int, Interval]]:
    """Return number of samples, and mean error with the standard error of the mean on both sides, by level.

    The levels of at least `LEAST_IN_LEVEL` samples that have the largest mean errors, the worst first.
    """
    errors = errors_of(complete)
    names, level = np.unique(levels.astype(str), return_inverse=True)
    counts = np.bincount(level)
    means = np.bincount(level, errors) / counts
    spread = np.bincount(level, (errors - means[level]) ** 2) / np.maximum(counts - 1, 1)
    halves = np.sqrt(spread / counts)
    result = {
        str(name): (int(count), Interval(float(mean), float(max(mean - half, 0.0)), float(mean + half)))
        for name, count, mean, half in zip(names, counts, means, halves, strict=True)
        if count >= LEAST_IN_LEVEL
    }
    worst = sorted(result.items(), key=lambda item: -item[1][1].value)
    return dict(worst[:MOST_LEVELS])


def shared_by_worst(complete: TargetPredictions, columns: Mapping[str, Array]) -> list[tuple[str, int, int]]:
    """Return the levels of `columns` [N] that the worst tenth of the samples holds more often than all samples do.

    Each is `COLUMN: LEVEL`, how many samples of the worst tenth have it, and how many of all.
    """
    count = len(complete.truth) // 10
    if count < LEAST_SHARED:
        return []
    worst = worst_rows(complete, count)
    shared = []
    for column, values in columns.items():
        names, place = np.unique(values.astype(str), return_inverse=True)
        all_of, worst_of = np.bincount(place), np.bincount(place[worst], minlength=len(names))
        often = (worst_of >= LEAST_SHARED) & (worst_of / count >= ENRICHED * all_of / len(place))
        shared += [
            (f"{column}: {names[at]}", int(worst_of[at]), int(all_of[at])) for at in np.flatnonzero(often) if names[at]
        ]
    return sorted(shared, key=lambda one: -one[1])[:MOST_LEVELS]
