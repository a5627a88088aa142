"""Agreement of two distance matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial.distance import squareform

from aam.evaluate.metrics import Array, pearson


def upper_triangle(matrix: Array) -> Array:
    """Return the upper triangle of a symmetric matrix."""
    return np.asarray(squareform(matrix.astype(np.float64), checks=False))


def mantel(first: Array, second: Array) -> float:
    """Return the Pearson correlation of the upper triangles of two distance matrices [N, N]."""
    return pearson(upper_triangle(first), upper_triangle(second))


def partial_mantel(first: Array, second: Array, others: Sequence[Array]) -> float:
    """Return the partial correlation of two distance matrices [N, N] given `others` (Smouse, Long and Sokal 1986)."""
    pair = np.stack([upper_triangle(first), upper_triangle(second)], axis=1)
    predictors = np.stack([np.ones(len(pair)), *map(upper_triangle, others)], axis=1)
    residuals = pair - predictors @ np.linalg.lstsq(predictors, pair, rcond=None)[0]
    if (np.abs(residuals).max(axis=0, initial=0.0) <= 1e-10 * np.abs(pair).max(axis=0, initial=0.0)).any():
        return math.nan
    return pearson(residuals[:, 0], residuals[:, 1])


def neighbours_recovered(predicted: Array, truth: Array, k: int = 10) -> float:
    """Return the mean share of a sample's k nearest by predicted distance [N, N] that are among its k nearest in truth.

    True ties at the k-th place all count. Chance is k / (N - 1).
    """
    if not 0 < k < len(truth):
        return math.nan
    apart = np.eye(len(truth), dtype=bool)
    nearest = np.argsort(np.where(apart, np.inf, predicted), axis=1, kind="stable")[:, :k]
    true = np.where(apart, np.inf, truth)
    reach = np.partition(true, k - 1, axis=1)[:, k - 1 : k]
    return float((np.take_along_axis(true, nearest, axis=1) <= reach).mean())
