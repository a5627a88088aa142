"""Simulated predictions of a model, and the trivial baselines beside them."""

from __future__ import annotations

import numpy as np

from aam.evaluate.comparison import MAJORITY, MEDIAN, Baseline
from aam.evaluate.predictions import TargetPredictions


def predictions_of(truth, predicted, labels=(), **columns) -> TargetPredictions:
    """Predictions of samples that are called 0, 1, ..."""
    return TargetPredictions(
        tuple(map(str, range(len(truth)))), truth, predicted, labels, **columns
    )


def scored(truth, score, labels=("no", "yes"), **columns) -> TargetPredictions:
    """Predictions of two classes, with the probability of the second one."""
    return predictions_of(truth, np.stack([1 - score, score], axis=1), labels, **columns)


def numeric(
    error: float, seed: int = 0, samples: int = 200, **columns: np.ndarray
) -> TargetPredictions:
    """Truth of unit spread and predictions off by `error`."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=samples)
    predicted = truth + error * np.random.default_rng(seed + 1).normal(size=samples)
    return predictions_of(truth, predicted, **columns)


def measured(seed: int, samples: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Return truth and predictions with one digit, many of them equal."""
    draw = np.random.default_rng(seed)
    truth = np.round(draw.normal(5, 2, samples), 1)
    return truth, np.round(truth + draw.normal(0.3, 1, samples), 1)


def two_classes(strength: float, samples: int = 200) -> TargetPredictions:
    draw = np.random.default_rng(0)
    truth = draw.integers(2, size=samples)
    second = 1 / (1 + np.exp(-strength * (2 * truth - 1) - draw.normal(size=samples)))
    return scored(truth, second, ("control", "case"))


def median(predictions: TargetPredictions) -> Baseline:
    return Baseline(MEDIAN, np.full(len(predictions.truth), np.median(predictions.truth)))


def majority(predictions: TargetPredictions, classes: int = 2) -> Baseline:
    return Baseline(MAJORITY, np.tile(np.eye(classes)[0], (len(predictions.truth), 1)))
