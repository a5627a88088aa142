"""What is predicted beyond the batch itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sklearn.metrics

from aam.evaluation.batches import batches_held_out_whole, within_batches
from aam.evaluation.target_predictions import TargetPredictions


def test_a_prediction_of_the_batch_alone_is_worth_nothing_within_it():
    draw = np.random.default_rng(0)
    batch = np.repeat(["a", "b", "c"], 50)
    centre = np.repeat([0.0, 30.0, 60.0], 50)
    truth = centre + draw.normal(size=150)
    means = np.repeat([truth[batch == one].mean() for one in "abc"], 50)
    ids = tuple(map(str, range(150)))
    found = within_batches(TargetPredictions(ids, truth, means, batch=batch))
    assert sklearn.metrics.r2_score(truth, means) > 0.99
    assert found["r2"] == pytest.approx(0, abs=1e-12)
    half = TargetPredictions(ids, truth, means + (truth - means) / 2, batch=batch)
    assert within_batches(half)["r2"] == pytest.approx(0.75)
    shifted = TargetPredictions(ids, truth, truth + centre, batch=batch)
    assert within_batches(shifted)["pearson"] == pytest.approx(1.0)
    assert within_batches(shifted)["r2"] < 0


@pytest.mark.parametrize("number", [2, 3])
def test_auroc_within_batches_counts_pairs_of_one_batch(number: int):
    draw = np.random.default_rng(0)
    truth, weight = draw.integers(number, size=60), draw.integers(1, 6, size=(60, number))
    probabilities = weight / weight.sum(axis=1, keepdims=True)
    batch = np.arange(60) % 4
    labels = tuple("abc"[:number])
    predictions = TargetPredictions(tuple(map(str, range(60))), truth, probabilities, labels=labels, batch=batch)
    expected = []
    for k in [1] if number == 2 else range(number):
        pairs = [
            (probabilities[i, k] > probabilities[j, k]) + 0.5 * (probabilities[i, k] == probabilities[j, k])
            for i, j in itertools.product(range(60), range(60))
            if truth[i] == k != truth[j] and batch[i] == batch[j]
        ]
        expected.append(np.mean(pairs))
    assert within_batches(predictions)["auroc"] == pytest.approx(np.mean(expected))


def test_whether_batches_were_batches_held_out_whole():
    def held_out(fold: list[int], batch: list[str]) -> bool:
        values = np.zeros(len(fold))
        predictions = TargetPredictions(tuple(batch), values, values, fold=np.array(fold), batch=np.array(batch))
        return batches_held_out_whole(predictions)

    assert held_out([0, 0, 1, 1], ["a", "b", "c", "c"])
    assert not held_out([0, 0, 1, 1], ["a", "b", "b", "c"])
    assert not held_out([0, 0, 0, 0], ["a", "b", "b", "c"])
    assert not batches_held_out_whole(TargetPredictions(("a",), np.zeros(1), np.zeros(1)))
