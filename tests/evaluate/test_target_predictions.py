"""Predictions of one target: what counts, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aam.evaluate import intervals
from aam.evaluate.target_predictions import TargetPredictions


def test_samples_without_truth_or_prediction_are_left_out():
    truth = np.array([1.0, math.nan, 3.0, 4.0])
    predicted = np.array([1.0, 2.0, math.nan, 5.0])
    predictions = TargetPredictions(("a", "b", "c", "d"), truth, predicted, fold=np.array([0, 0, 1, 1]))
    assert predictions.complete().sample_ids == ("a", "d")
    assert predictions.complete().fold.tolist() == [0, 1]
    assert intervals.metrics_with_intervals(predictions, seed=0, repeats=5)["mae"].value == 0.5
    probabilities = np.array([[0.2, 0.8], [0.6, 0.4], [math.nan, math.nan]])
    named = TargetPredictions(("a", "b", "c"), np.array([1, -1, 0]), probabilities, labels=("no", "yes"))
    assert named.complete().sample_ids == ("a",)


def test_predictions_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match=r"predicted has shape \(2,\), expected \(2, 2\)"):
        TargetPredictions(("a", "b"), np.zeros(2, dtype=int), np.zeros(2), labels=("no", "yes"))
    with pytest.raises(ValueError, match="batch has shape"):
        TargetPredictions(("a", "b"), np.zeros(2), np.zeros(2), batch=np.zeros(3))
