"""What is said of a model: paired comparisons, ties, traps and batches."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import sklearn.metrics

from aam.training import metrics
from aam.training.baselines import DEPTH, DEPTH_AND_RICHNESS, MAJORITY, MEDIAN, Baseline
from aam.training.metrics import Predictions
from aam.training.verdict import compare, held_out_whole, number, outcome, verdict, within_batches


def numeric(error: float, seed: int = 0, samples: int = 200, **columns: np.ndarray) -> Predictions:
    """Truth of unit spread and predictions off by `error`."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=samples)
    predicted = truth + error * np.random.default_rng(seed + 1).normal(size=samples)
    return Predictions(tuple(map(str, range(samples))), truth, predicted, **columns)


def two_classes(strength: float, samples: int = 200) -> Predictions:
    draw = np.random.default_rng(0)
    truth = draw.integers(2, size=samples)
    second = 1 / (1 + np.exp(-strength * (2 * truth - 1) - draw.normal(size=samples)))
    labels = ("control", "case")
    return Predictions(tuple(map(str, range(samples))), truth, np.stack([1 - second, second], axis=1), labels)


def median(predictions: Predictions) -> Baseline:
    return Baseline(MEDIAN, np.full(len(predictions.truth), np.median(predictions.truth)))


def majority(predictions: Predictions) -> Baseline:
    return Baseline(MAJORITY, np.tile([1.0, 0.0], (len(predictions.truth), 1)))


def outcomes(predictions: Predictions, *baselines: Baseline, key: str = "mae") -> list[str]:
    first, *others = compare(predictions, baselines, seed=0, repeats=200)
    return [outcome(one, first, key) for one in (first, *others)]


# --- comparing ---------------------------------------------------------------------------------------------


def test_a_comparison_holds_what_the_bootstrap_says():
    given = numeric(0.5, groups=np.arange(200) // 4)
    other = Baseline("other", numeric(0.7, seed=7).predicted)
    found = compare(given, [other], seed=5, repeats=50)[0]
    sides = (metrics.regression_metrics, given.truth)
    assert found.figures == metrics.bootstrap_intervals(*sides, other.predicted, given.groups, 5, 50)
    pair = (given.predicted, other.predicted)
    assert found.difference == metrics.paired_differences(*sides, pair, given.groups, 5, 50)
    assert found.model == metrics.regression_metrics(given.truth, given.predicted)
    assert found.samples == 200


def test_baselines_are_compared_on_the_samples_that_both_predict():
    given = numeric(0.5)
    half = given.predicted.copy()
    half[:150] = math.nan
    found = compare(
        given, [Baseline("half", half), Baseline("none", np.full(200, math.nan))], seed=0, repeats=20
    )
    assert [one.name for one in found] == ["half"]
    assert found[0].samples == 50
    assert found[0].difference["mae"].value == 0
    assert found[0].model == metrics.regression_metrics(given.truth[150:], half[150:])


def test_a_constant_ranks_nothing_though_folds_differ_in_majority():
    given = two_classes(1.0)
    fold = np.arange(200) % 2
    truth = np.where(np.random.default_rng(0).random(200) < 0.3, 1 - fold, fold)
    flipped = np.eye(2)[1 - fold]
    given = Predictions(given.sample_ids, truth, given.predicted, given.labels, fold)
    found = compare(given, [Baseline(MAJORITY, flipped)], seed=0, repeats=20)[0]
    assert sklearn.metrics.roc_auc_score(truth, flipped[:, 1]) < 0.4
    assert found.figures["auroc"] == metrics.Interval(0.5, 0.5, 0.5)
    assert found.figures["auprc"].value == pytest.approx(truth.mean())
    assert found.figures["accuracy"].value == (truth != fold).mean()


def test_outcomes():
    given = numeric(0.5)
    assert outcomes(given, median(given)) == ["beats"]
    assert (
        outcomes(numeric(1.0), median(given), Baseline("twin", numeric(1.0, seed=5).predicted))[1] == "ties"
    )
    assert outcomes(given, median(given), Baseline("better", numeric(0.1, seed=5).predicted))[1] == "loses"
    assert outcomes(given, median(given), Baseline("worse", numeric(0.9, seed=5).predicted))[1] == "beats"
    # Always a hundredth further off: the interval excludes 0, and still it has nearly all of the gain.
    close = given.truth + (given.predicted - given.truth) * 1.02
    assert outcomes(given, median(given), Baseline("close", close)) == ["beats", "nearly ties"]
    assert outcomes(given, median(given), Baseline("trees", close, trivial=False)) == ["beats", "beats"]
    one_group = numeric(0.5, groups=np.zeros(200))
    assert outcomes(one_group, median(given)) == ["untested"]


# --- sentences ---------------------------------------------------------------------------------------------


def said(predictions: Predictions, *baselines: Baseline, batch: str = "batch") -> tuple[str, ...]:
    return verdict(predictions, compare(predictions, baselines, seed=0, repeats=200), batch)


def test_a_model_without_signal_is_said_to_tie_the_median():
    given = numeric(0.5)
    shuffled = np.random.default_rng(1).permutation(given.truth) * 0.05
    empty = Predictions(given.sample_ids, given.truth, shuffled)
    (only,) = said(empty, median(empty))
    assert only.startswith("The training median ties the model (MAE 0.")
    assert only.endswith("includes 0): what it learned cannot be told from chance.")


def test_a_model_that_is_better_is_said_to_be():
    given = numeric(0.3)
    (only,) = said(given, median(given), Baseline(DEPTH, numeric(0.9, seed=4).predicted))
    assert only.startswith("The model (MAE 0.")
    assert " does better than the training median (0." in only
    assert " and depth alone (0." in only


def test_the_median_of_the_study_that_ties_is_named():
    draw = np.random.default_rng(0)
    study = np.repeat(["a", "b", "c", "d"], 60)
    centre = np.repeat([10.0, 30.0, 50.0, 70.0], 60)
    truth = centre + draw.normal(0, 3, 240)
    medians = np.repeat([np.median(truth[study == one]) for one in "abcd"], 60)
    fold = np.arange(240) % 4
    given = Predictions(
        tuple(map(str, range(240))), truth, medians + draw.normal(0, 0.2, 240), fold=fold, batch=study
    )
    found = said(given, median(given), Baseline("the study's median", medians), batch="study")
    text = "\n".join(found)
    assert "The study's median ties the model (MAE 2." in text
    assert "The study's median explains most of the target (R2 0.9" in text
    assert "Within a study, against each study's own mean, R2 is" in text
    assert "Inside a study the model hardly does better than that study's mean." in text
    assert "Samples of one study stand on both sides" in text
    whole = Predictions(given.sample_ids, truth, given.predicted, fold=study, batch=study)
    text = "\n".join(said(whole, median(whole), batch="study"))
    assert "Every study was held out whole: the figures are those for a study never seen." in text


def test_depth_that_separates_the_classes_is_named():
    weak, strong = two_classes(0.3), two_classes(3.0)
    both = Baseline(DEPTH_AND_RICHNESS, strong.predicted)
    text = said(weak, majority(weak), Baseline(DEPTH, strong.predicted), both)
    assert any(
        one.startswith("Depth alone predicts better than the model (AUROC 1.00 against 0.") for one in text
    )
    assert any(one.startswith("Depth and richness alone predict better than the model") for one in text)
    separating = [one for one in text if "the classes (AUROC" in one]
    assert len(separating) == 1
    assert separating[0].startswith(
        "Depth alone separates the classes (AUROC 1.00): a model of this table may"
    )
    richer = said(weak, majority(weak), both)
    assert any(one.startswith("Depth and richness alone separate the classes") for one in richer)
    assert not any(
        "separate" in one for one in said(strong, majority(strong), Baseline(DEPTH, weak.predicted))
    )


def test_a_tie_in_all_but_the_interval_is_said_to_be_one():
    given = numeric(0.3)
    close = given.truth + (given.predicted - given.truth) * 1.02
    text = said(given, median(given), Baseline(DEPTH_AND_RICHNESS, close))
    assert text[1].startswith("Depth and richness alone practically tie the model (MAE 0.")
    assert text[1].endswith("% of the model's gain over the training median.")


def test_few_groups_and_part_of_the_samples_are_said():
    given = numeric(0.5, groups=np.arange(200) % 5)
    part = numeric(0.5, seed=5).predicted
    part[:50] = math.nan
    text = said(given, median(given), Baseline("the subject's median", part))
    assert any(" on 150 of 200 samples" in one for one in text)
    assert text[-1] == "Intervals and tests rest on 5 groups only: read them as rough."
    single = said(numeric(0.5, groups=np.zeros(200)), median(given))
    assert single[0].startswith("Whether the model beats the training median cannot be tested")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.794, "2.79"),
        (3.9, "3.90"),
        (0.98599, "0.986"),
        (-0.00168, "-0.00168"),
        (123456.7, "123457"),
        (0.0, "0.00"),
    ],
)
def test_numbers_read_well(value: float, text: str):
    assert number(value) == text


def test_what_is_unknown_is_a_dash():
    assert number(math.nan) == "-"


# --- batches -----------------------------------------------------------------------------------------------


def test_a_prediction_of_the_batch_alone_is_worth_nothing_within_it():
    draw = np.random.default_rng(0)
    batch = np.repeat(["a", "b", "c"], 50)
    centre = np.repeat([0.0, 30.0, 60.0], 50)
    truth = centre + draw.normal(size=150)
    means = np.repeat([truth[batch == one].mean() for one in "abc"], 50)
    ids = tuple(map(str, range(150)))
    found = within_batches(Predictions(ids, truth, means, batch=batch))
    assert sklearn.metrics.r2_score(truth, means) > 0.99
    assert found["r2"] == pytest.approx(0, abs=1e-12)
    half = Predictions(ids, truth, means + (truth - means) / 2, batch=batch)
    assert within_batches(half)["r2"] == pytest.approx(0.75)
    shifted = Predictions(ids, truth, truth + centre, batch=batch)
    assert within_batches(shifted)["pearson"] == pytest.approx(1.0)
    assert within_batches(shifted)["r2"] < 0


@pytest.mark.parametrize("number", [2, 3])
def test_auroc_within_batches_counts_pairs_of_one_batch(number: int):
    draw = np.random.default_rng(0)
    truth, weight = draw.integers(number, size=60), draw.integers(1, 6, size=(60, number))
    probabilities = weight / weight.sum(axis=1, keepdims=True)
    batch = np.arange(60) % 4
    labels = tuple("abc"[:number])
    given_ = Predictions(tuple(map(str, range(60))), truth, probabilities, labels=labels, batch=batch)
    expected = []
    for k in [1] if number == 2 else range(number):
        pairs = [
            (probabilities[i, k] > probabilities[j, k]) + 0.5 * (probabilities[i, k] == probabilities[j, k])
            for i, j in itertools.product(range(60), range(60))
            if truth[i] == k != truth[j] and batch[i] == batch[j]
        ]
        expected.append(np.mean(pairs))
    assert within_batches(given_)["auroc"] == pytest.approx(np.mean(expected))


def test_whether_batches_were_held_out_whole():
    def held_out(fold: list[int], batch: list[str]) -> bool:
        values = np.zeros(len(fold))
        given_ = Predictions(tuple(batch), values, values, fold=np.array(fold), batch=np.array(batch))
        return held_out_whole(given_)

    assert held_out([0, 0, 1, 1], ["a", "b", "c", "c"])
    assert not held_out([0, 0, 1, 1], ["a", "b", "b", "c"])
    assert not held_out([0, 0, 0, 0], ["a", "b", "b", "c"])
    assert not held_out_whole(Predictions(("a",), np.zeros(1), np.zeros(1)))
