"""Conformal intervals: their quantile, their scales, and the share of new samples that they hold."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from aam.evaluation import conformal, metrics
from aam.evaluation.target_predictions import TargetPredictions


def spreading(seed: int, samples: int = 600) -> TargetPredictions:
    """Errors that grow with the prediction, three samples of a group."""
    draw = np.random.default_rng(seed)
    predicted = draw.uniform(1, 10, samples)
    ids = tuple(f"s{row}" for row in range(samples))
    truth = predicted + draw.normal(0, 0.3 * predicted)
    return TargetPredictions(ids, truth, predicted, groups=np.arange(samples) // 3)


def test_one_width_for_all_is_the_quantile_of_the_residuals():
    predictions = spreading(0, 99)
    found = conformal.Conformal.fit(predictions, scales=1)
    assert (found.samples, found.groups) == (99, 33)
    residual = np.sort(np.abs(predictions.truth - predictions.predicted))
    np.testing.assert_allclose(found.half_width(np.array([-5.0, 3.0])), residual[89], rtol=1e-12)
    np.testing.assert_allclose(found.limits(np.array([3.0])), [[3 - residual[89], 3 + residual[89]]])


def test_scaled_intervals_cover_every_part_of_the_predictions_and_are_narrower():
    fitted, new = spreading(0), spreading(1, 3000)
    scaled, same = conformal.Conformal.fit(fitted), conformal.Conformal.fit(fitted, scales=1)
    low, high = new.predicted < 3, new.predicted > 8
    weights = np.stack([low, high, low | True])
    values = {
        name: metrics.weighted_interval_metrics(new.truth, fit.limits(new.predicted), weights)
        for name, fit in (("scaled", scaled), ("same", same))
    }
    assert values["scaled"]["coverage"] == pytest.approx([0.9, 0.9, 0.9], abs=0.05)
    assert values["same"]["coverage"][0] > 0.99
    assert values["same"]["coverage"][1] < 0.85
    assert values["scaled"]["width"][2] < 0.95 * values["same"]["width"][2]
    again = conformal.Conformal.from_json(json.loads(json.dumps(dataclasses.asdict(scaled))))
    assert again == scaled


def test_few_groups_and_perfect_predictions():
    assert conformal.Conformal.fit(spreading(0, 57)) is None
    assert conformal.Conformal.fit(spreading(0, 60)) is not None
    perfect = dataclasses.replace(spreading(0, 60), truth=spreading(0, 60).predicted)
    assert conformal.Conformal.fit(perfect).half_width(np.array([1.0, 20.0])).tolist() == [0.0, 0.0]
