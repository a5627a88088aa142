"""Weights of a blend: none negative, of sum one, shrunk to equal, better where one learner is."""

from __future__ import annotations

import numpy as np
import pytest

from aam.predict import blend
from aam.predict.blend import NETWORK, OutOfFold, TargetBlend, blend_power, blend_weights, fit_power, temper
from aam.predict.learner import make_truth

RNG = np.random.default_rng(0)
NUMBERS = make_truth(RNG.normal(size=200), 0)


def noisy(*deviations: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack([NUMBERS.values[:, None] + deviation * rng.normal(size=(200, 1)) for deviation in deviations])


def test_the_better_learner_weighs_more():
    weights = blend_weights(noisy(0.3, 1.0), NUMBERS)
    assert weights[0] > weights[1] >= 0
    assert weights.sum() == pytest.approx(1)


def test_without_shrinkage_weights_are_the_least_squares_of_independent_errors():
    weights = blend_weights(noisy(0.5, 1.0), NUMBERS, shrinkage=0.0)
    assert weights[0] == pytest.approx(1 / 0.25 / (1 / 0.25 + 1), abs=0.08)


def test_shrinkage_pulls_to_equal_weights():
    gaps = [np.ptp(blend_weights(noisy(0.3, 1.0), NUMBERS, shrinkage)) for shrinkage in (0.0, 0.1, 1.0, 10.0, np.inf)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] == 0


def test_few_samples_move_the_weights_less(monkeypatch):
    few = make_truth(NUMBERS.values[:5], 0)
    gap = np.ptp(blend_weights(noisy(0.3, 1.0)[:, :5], few))
    monkeypatch.setattr(blend, "FEW_SAMPLES", 0)
    assert gap < 0.7 * np.ptp(blend_weights(noisy(0.3, 1.0)[:, :5], few))


def test_weights_are_shrunk_to_the_prior():
    prior = np.array([0.2, 0.8])
    np.testing.assert_allclose(blend_weights(noisy(0.5, 0.5), NUMBERS, 1e6, prior), prior, atol=1e-3)
    np.testing.assert_array_equal(blend_weights(noisy(0.5, 0.5) * np.nan, NUMBERS, prior=prior), prior)


def test_a_learner_that_is_only_wrong_has_no_weight():
    away = np.stack([NUMBERS.values[:, None], NUMBERS.values[:, None] + 50])
    np.testing.assert_allclose(blend_weights(away, NUMBERS, shrinkage=0.0), [1, 0], atol=1e-6)


def test_equal_learners_weigh_the_same():
    np.testing.assert_allclose(blend_weights(np.repeat(noisy(0.5), 3, axis=0), NUMBERS), np.full(3, 1 / 3), atol=1e-6)


def test_samples_that_a_learner_has_not_predicted_are_left_out():
    learners = noisy(0.3, 1.0)
    learners[0, 150:] = np.nan
    half = make_truth(NUMBERS.values[:150], 0)
    np.testing.assert_allclose(blend_weights(learners, NUMBERS), blend_weights(learners[:, :150], half), atol=1e-9)
    learners[0] = np.nan
    np.testing.assert_array_equal(blend_weights(learners, NUMBERS), [0.5, 0.5])


def test_classes_are_weighed_by_the_brier_score():
    label = np.arange(90) % 3
    truth = make_truth(label.astype(float), 3)
    sure, unsure = 0.1 + 0.7 * np.eye(3)[label], np.full((90, 3), 1 / 3)
    weights = blend_weights(np.stack([sure, unsure]), truth)
    assert weights[0] > weights[1]


def test_a_power_makes_probabilities_as_sure_as_they_are_right():
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(4000, 3))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    drawn = (true.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    unsure = temper(true, 0.2)
    assert fit_power(unsure, make_truth(drawn.astype(float), 3)) == pytest.approx(5, rel=0.1)
    np.testing.assert_allclose(temper(unsure, 5.0), true, atol=1e-9)
    np.testing.assert_array_equal(unsure.argmax(axis=1), true.argmax(axis=1))


def test_a_power_is_1_where_there_is_nothing_to_fit_it_on():
    assert fit_power(np.full((4, 2), np.nan), make_truth(np.array([0.0, 1.0, 0.0, 1.0]), 2)) == 1
    assert fit_power(NUMBERS.values[:, None], NUMBERS) == 1
    two = make_truth(np.array([0.0, 1.0, 0.0, 1.0]), 2)
    assert blend_power(np.array([[0.6, 0.4], [0.4, 0.6]] * 2), two) == 1


def test_an_unsure_learner_that_ranks_as_well_weighs_as_much():
    rng = np.random.default_rng(9)
    logits = rng.normal(size=(1000, 3)) * 2
    true = temper(np.exp(logits), 1.0)
    drawn = (true.cumsum(axis=1) < rng.random((1000, 1))).sum(axis=1)
    weights = blend_weights(np.stack([true, temper(true, 0.2)]), make_truth(drawn.astype(float), 3))
    np.testing.assert_allclose(weights, [0.5, 0.5], atol=0.02)


# --- the network's weight beside the other learners: earned on validation samples, or 0 ---------------------


ROWS = np.arange(200)


def share(rows: np.ndarray, predicted: np.ndarray) -> float:
    out_of_fold = OutOfFold(ROWS, NUMBERS, noisy(1.0, 1.0))
    blend = TargetBlend({}, {"kernel": 0.5, "forest": 0.5}, 1.0, out_of_fold)
    weights = blend.with_network(rows, predicted).weights
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["kernel"] == pytest.approx(weights["forest"])
    return weights[NETWORK]


def of_network(deviation: float) -> np.ndarray:
    return NUMBERS.values[:, None] + deviation * np.random.default_rng(2).normal(size=(200, 1))


def test_a_network_that_helps_gets_more_weight_and_one_that_does_not_gets_none():
    good, equal, useless = (share(ROWS, of_network(deviation)) for deviation in (0.3, 0.7, 5.0))
    assert good > 0.5
    assert good > equal > 0.2
    assert useless < 0.05


def test_few_validation_samples_show_less_and_none_show_nothing():
    assert share(ROWS[:10], of_network(0.3)[:10]) < share(ROWS, of_network(0.3))
    assert share(ROWS[:0], np.zeros((0, 1))) == 0
    with pytest.raises(ValueError, match="nothing to fit weights on"):
        TargetBlend().with_network(ROWS, of_network(0.3))


def test_a_network_alone_is_what_is_predicted():
    predicted = np.array([[0.2, 0.8], [0.5, 0.5]])
    np.testing.assert_array_equal(TargetBlend().blend({NETWORK: predicted}), predicted)
