"""What is predicted beyond the batch itself."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
import sklearn.metrics

from aam.evaluate.verdict import batch_sentences, within_batches
from tests.evaluate.simulated import predictions_of, scored


def test_a_prediction_of_the_batch_alone_is_worth_nothing_within_it():
    draw = np.random.default_rng(0)
    batch = np.repeat(["a", "b", "c"], 50)
    centre = np.repeat([0.0, 30.0, 60.0], 50)
    truth = centre + draw.normal(size=150)
    means = np.repeat([truth[batch == one].mean() for one in "abc"], 50)
    result = within_batches(predictions_of(truth, means, batch=batch))
    assert sklearn.metrics.r2_score(truth, means) > 0.99
    assert result["r2"] == pytest.approx(0, abs=1e-12)
    half = predictions_of(truth, means + (truth - means) / 2, batch=batch)
    assert within_batches(half)["r2"] == pytest.approx(0.75)
    shifted = predictions_of(truth, truth + centre, batch=batch)
    assert within_batches(shifted)["r2"] < 0


def test_a_class_that_has_a_batch_of_its_own_counts_on_neither_side():
    """Sea water, all of which is in one level, is told from fish perfectly; fish are not told
    apart.
    """
    draw = np.random.default_rng(0)
    truth, batch = (
        np.r_[np.arange(80) % 2, np.full(20, 2)],
        np.repeat(["spring", "fall", "none"], [40, 40, 20]),
    )
    probabilities = (
        np.eye(3)[truth] * (truth == 2)[:, None]
        + np.c_[draw.dirichlet([1, 1], 100), np.zeros(100)] * (truth < 2)[:, None]
    )
    first = batch_sentences(
        predictions_of(truth, probabilities, ("gut", "skin", "water"), batch=batch), "season"
    )[0]
    within, over = map(float, re.findall(r"is (0?\.\d+)", first))
    assert abs(within - over) < 0.05, first


def test_batches_of_one_value_and_models_no_better_than_chance_are_not_said_to_have_learned():
    batch, truth = np.repeat(["a", "b", "c"], 3), np.repeat([0.1, 0.7, 1.3], 3)
    assert np.isnan(within_batches(predictions_of(truth, truth, batch=batch))["r2"])


@pytest.mark.parametrize("number", [2, 3])
def test_auroc_within_batches_counts_pairs_of_one_batch(number: int):
    draw = np.random.default_rng(0)
    truth, weight = draw.integers(number, size=60), draw.integers(1, 6, size=(60, number))
    probabilities = weight / weight.sum(axis=1, keepdims=True)
    batch = np.arange(60) % 4
    predictions = predictions_of(truth, probabilities, tuple("abc"[:number]), batch=batch)
    expected = []
    for k in [1] if number == 2 else range(number):
        pairs = [
            (probabilities[i, k] > probabilities[j, k])
            + 0.5 * (probabilities[i, k] == probabilities[j, k])
            for i, j in itertools.product(range(60), range(60))
            if truth[i] == k != truth[j] and batch[i] == batch[j]
        ]
        expected.append(np.mean(pairs))
    assert within_batches(predictions)["auroc"] == pytest.approx(np.mean(expected))


def test_scores_of_different_folds_are_not_ordered_within_a_batch():
    """Each fold is perfect and has an offset of its own, which once made three quarters of the
    pairs of a batch.
    """
    place = np.arange(40)
    truth, fold, batch = place % 2, place // 20, place // 4 % 2
    score = 0.1 + 0.6 * fold + 0.1 * truth
    given = scored(truth, score, fold=fold, batch=batch)
    assert within_batches(given)["auroc"] == 1
    assert batch_sentences(given, "run")[0] == (
        "Within a run, of pairs of samples of one run and of different classes, the AUROC is "
        "1.00; over all of these "
        "samples it is 1.00."
    )
    parted = dataclasses.replace(given, fold=truth, batch=batch)
    assert batch_sentences(parted, "run")[0].startswith(
        "No run holds samples of two classes in one fold:"
    )


def test_a_target_that_differs_between_batches_only_is_said_to_be_one():
    """It read `Within a run the AUROC is -`, with not a word of why."""
    batch = np.repeat(["a", "b"], 20)
    truth = (batch == "b").astype(np.int64)
    score = np.where(truth == 1, 0.8, 0.2)
    classes = scored(truth, score, batch=batch)
    expected = ["No run holds samples of two classes: the target cannot be told from the run."]
    assert batch_sentences(classes, "run") == expected
    numbers = predictions_of(truth * 4.0, score, batch=batch)
    assert batch_sentences(numbers, "run")[0].startswith("No run holds two values of the target:")


def test_samples_without_a_batch_are_no_batch():
    draw = np.random.default_rng(0)
    truth, batch = draw.normal(size=60), np.repeat(["a", "b", ""], 20)
    truth[:40] += np.where(batch[:40] == "a", 5, 0)
    given = predictions_of(truth, truth.copy(), batch=batch)
    result = batch_sentences(given, "run")
    assert result[0] == "20 of 60 samples have no run and are left out of statements about it."
    assert result[1:] == batch_sentences(given.at(np.arange(40)), "run")
    assert len(batch_sentences(given.at(np.arange(20, 60)), "run")) == 1
