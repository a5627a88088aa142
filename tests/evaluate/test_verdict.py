"""What a report says of a model, and of its predictions beyond the batch itself."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics

from aam.data.targets import UNKNOWN_CLASS
from aam.evaluate.comparison import (
    DEPTH_ALONE,
    DEPTH_AND_RICHNESS,
    MAJORITY,
    MEDIAN,
    OWN_MEDIAN,
    Baseline,
    Comparison,
    outcome,
)
from aam.evaluate.evaluation import Names, evaluate_target
from aam.evaluate.intervals import Interval, number
from aam.evaluate.predictions import TargetPredictions
from aam.evaluate.verdict import Verdict, _solved, batch_sentences, compare_in_words, within_batches
from tests.evaluate.simulated import majority, median, numeric, predictions_of, scored, two_classes


def judged(given: TargetPredictions, *baselines: Baseline, batch: str = "batch") -> Verdict:
    return evaluate_target(Names("age", batch), given, baselines, repeats=200).verdict


def said(given: TargetPredictions, *baselines: Baseline, batch: str = "batch") -> tuple[str, ...]:
    return judged(given, *baselines, batch=batch).cautions


def compared(name: str, error: float, p: float, trivial: bool = True) -> Comparison:
    """A baseline with such an MAE next to a model that errs by 1."""
    of = {"mae": Interval(error), "r2": Interval(0.0)}, {"mae": 1.0}
    difference = Interval(1 - error, -error, 2 - error)
    return Comparison(name, trivial, name == MEDIAN, 9, 9, "mae", *of, difference, p, p)


def test_a_model_without_signal_is_not_shown_to_be_better_than_the_median():
    given = numeric(0.5)
    empty = replace(given, predicted=np.random.default_rng(1).permutation(given.truth) * 0.05)
    found = judged(empty, median(empty))
    assert (found.words, found.sign) == ("Chance not excluded", "open")
    start = "The MAE of the model minus that of the training median: "
    assert found.sentence.startswith(start)
    assert found.sentence.endswith(", one-sided.")


@pytest.mark.parametrize(
    ("chance", "trivial", "error", "p", "words", "sign", "sentence"),
    [
        (0.001, True, 2.0, 0.01, "Beats trivial baselines", "better", "Better than guessing (t"),
        (0.001, False, 2.0, 0.01, "Beats best baseline", "better", "Better than guessing (the"),
        (0.001, True, 1.1, 0.01, "Close to baseline", "open", "Better than guessing (the"),
        (0.001, True, 2.0, 0.3, "Better than guessing", "open", "The MAE of the model minus"),
        (0.001, False, 0.5, 0.01, "Worse than baseline", "worse", "Better than guessing (the"),
        (0.001, True, 2.0, math.nan, "Cannot be tested", "none", "Better than guessing (the"),
        (0.001, None, 0.0, 0.0, "Better than guessing", "open", "The MAE of the model minus"),
        (math.nan, None, 0.0, 0.0, "Cannot be tested", "none", "The MAE of the model minus"),
        (math.nan, True, 2.0, 0.3, "Not shown better", "open", "The MAE of the model minus"),
        (math.nan, True, 2.0, 0.01, "Beats trivial baselines", "better", "The MAE of the"),
        (0.3, True, 2.0, 0.01, "Chance not excluded", "open", "The MAE of the model minus"),
    ],
)
def test_the_words_follow_the_outcomes(chance, trivial, error, p, words, sign, sentence):
    """`trivial` is none where nothing but the guess is compared."""
    rivals = [compared(MEDIAN, 3.0, chance)]
    rivals += [] if trivial is None else [compared(DEPTH_ALONE, error, p, trivial)]
    found = compare_in_words(rivals)
    assert (found.words, found.sign) == (words, sign)
    assert found.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("auroc", "low", "high", "p", "words"),
    [
        (0.7, 0.48, 0.86, 0.03, "Chance not excluded"),
        (0.7, 0.50, 0.86, 0.03, "Chance not excluded"),
        (0.7, 0.51, 0.86, 0.03, "Better than guessing"),
        (0.7, 0.51, 0.86, 0.06, "Chance not excluded"),
        (0.7, math.nan, math.nan, 0.03, "Better than guessing"),
        (0.7, math.nan, math.nan, math.nan, "Cannot be tested"),
        (0.3, 0.10, 0.51, 0.99, "Chance not excluded"),
        (0.3, 0.10, 0.49, 0.99, "Worse than guessing"),
    ],
)
def test_better_than_guessing_does_not_stand_next_to_an_interval_that_holds_half(
    auroc, low, high, p, words
):
    difference = Interval(auroc - 0.5, low - 0.5, high - 0.5)
    of = {"auroc": Interval(0.5), "accuracy": Interval(0.5)}, {"auroc": auroc, "accuracy": 0.6}
    guess = Comparison(MAJORITY, True, True, 40, 40, "auroc", *of, difference, p, p)
    found = compare_in_words([guess])
    assert found.words == words
    tested = guess.tested_difference
    if words == "Chance not excluded":
        assert tested.low <= 0 <= tested.high


def test_the_better_of_two_guesses_must_be_beaten():
    """A cohort whose values are offset: its own median errs less than that of training."""
    given = numeric(0.5)
    away = Baseline(MEDIAN, np.full(200, 50.0))
    own = Baseline(OWN_MEDIAN, np.full(200, np.median(given.truth)))
    shifted = replace(given, predicted=given.truth + 10)
    assert judged(shifted, away).words == "Better than guessing"
    found = judged(shifted, away, own)
    assert (found.words, found.sign) == ("Worse than guessing", "worse")
    assert "the median of these samples" in found.sentence


def test_few_groups_are_too_few_or_rough():
    def of_groups(count: int) -> Verdict:
        given = numeric(0.3, groups=np.arange(200) % count)
        return judged(given, median(given))

    assert of_groups(1).cautions[-1] == "Nothing is tested: too few groups (1), 6 are needed."
    assert of_groups(5).words == "Cannot be tested"
    assert of_groups(5).cautions[-1] == "Nothing is tested: too few groups (5), 6 are needed."
    rough = "Intervals and tests rest on few groups (6): read them as rough."
    assert of_groups(6).cautions[-1] == rough


def test_the_median_of_the_study_that_ties_is_named():
    draw, study = np.random.default_rng(0), np.repeat(["a", "b", "c", "d"], 60)
    truth = np.repeat([10.0, 30.0, 50.0, 70.0], 60) + draw.normal(0, 3, 240)
    medians = np.repeat([np.median(truth[study == one]) for one in "abcd"], 60)
    predicted = medians + draw.normal(0, 0.2, 240)
    given = predictions_of(truth, predicted, fold=np.arange(240) % 4, batch=study)
    rivals = median(given), Baseline("the study's median", medians)
    text = "\n".join(said(given, *rivals, batch="study"))
    assert 'The baseline "the study\'s median" has R2 0.9' in text
    assert "Within a study, the R2 against each study's own mean is" in text
    assert "Samples of one study are in several folds" in text
    whole = "\n".join(said(replace(given, fold=study), median(given), batch="study"))
    assert "Each of 4 values of study was held out whole: MAE " in whole


def test_depth_that_separates_the_classes_is_named():
    weak, strong = two_classes(0.3), two_classes(3.0)
    depth, both = (Baseline(name, strong.predicted) for name in (DEPTH_ALONE, DEPTH_AND_RICHNESS))
    start = 'The baseline "{}" has AUROC 1.00: the model may have learned'

    def separating(given: TargetPredictions, *rivals: Baseline) -> list[str]:
        return [one for one in said(given, majority(given), *rivals) if "instead of biology" in one]

    names = ("depth alone", "depth and richness alone")
    for said_of, name in zip(separating(weak, depth, both), names, strict=True):
        assert said_of.startswith(start.format(name))
    assert separating(weak, both)[0].startswith(start.format("depth and richness alone"))
    assert judged(weak, majority(weak), both).words == "Worse than baseline"
    assert separating(strong, Baseline(DEPTH_ALONE, weak.predicted)) == []


def test_a_frequent_class_solves_nothing():
    """95 of 100 samples are of one of three classes, which depth alone predicts for all."""
    truth = np.append(np.zeros(95, np.int64), [1, 2, 1, 2, 1])
    frequent = np.tile([0.9, 0.06, 0.04], (100, 1))
    given = predictions_of(truth, frequent, ("a", "b", "c"))
    for predicted, solves in ((frequent, False), (np.eye(3)[truth], True)):
        text = " ".join(said(given, majority(given, 3), Baseline(DEPTH_ALONE, predicted)))
        assert ('"depth alone" has balanced' in text) == solves


def test_without_two_classes_in_a_fold_there_is_no_auroc_and_no_word_of_few_groups():
    """Leave-one-subject-out of a diagnosis: 20 groups were said to be too few, 6 being needed."""
    given, fold = two_classes(3.0), np.empty(200, np.int64)
    fold[np.argsort(given.truth, kind="stable")] = np.arange(200) // 10
    mixed = [f for f in range(20) if len(np.unique(given.truth[fold == f])) > 1]
    alone = replace(given, fold=fold, groups=fold).at(~np.isin(fold, mixed))
    text = said(alone, majority(alone), Baseline(DEPTH_ALONE, alone.predicted))
    start = f"0 of {20 - len(mixed)} folds have both classes: the others have no AUROC."
    assert text[0] == start
    assert not any("too few" in one or "not tested" in one or "does better" in one for one in text)
    some = said(replace(given, fold=fold), majority(given))
    assert some[0] == "1 of 20 folds have both classes: the others have no AUROC."
    single = given.at(given.truth == 1)
    text = said(single, majority(single))
    assert text[0] == "All samples are 'case': other classes are not judged."


@pytest.mark.parametrize(("classes", "says"), [(1, True), (2, False)])
def test_samples_of_one_of_three_classes_are_called_so(classes, says):
    shares = np.random.default_rng(0).dirichlet(np.ones(3), 40)
    given = predictions_of(np.arange(40) % classes, shares, ("gill", "gut", "skin"))
    text = "All samples are 'gill': other classes are not judged."
    assert (text in said(given, majority(given, 3))) == says


def test_samples_that_no_metric_counts_are_named():
    """Half of the predictions were missing, or half of the classes unknown to the model, without a
    word.
    """
    given, classes = numeric(0.3), two_classes(3.0)
    half = replace(given, predicted=np.where(np.arange(200) % 2, math.nan, given.predicted))
    text = said(half, median(half))
    assert text[0].startswith("100 of 200 samples with a value are in no metric: ")
    truth = np.where(np.arange(200) < 50, UNKNOWN_CLASS, classes.truth)
    truth[50:60] = -1
    text = said(replace(classes, truth=truth), majority(classes))
    assert text[0].startswith("50 of 190 samples with a value are in no metric: ")


def test_numbers_read_well():
    values = (2.794, 3.9, -0.00168, 123456.7, 0.0, -1.5e12, math.nan)
    texts = ["2.79", "3.90", "-0.00168", "123457", "0.00", "-1.50e+12", "-"]
    assert [number(value) for value in values] == texts


# --- within batches ----------------------------------------------------------------------------


def test_a_prediction_of_the_batch_alone_is_worth_nothing_within_it():
    draw, batch = np.random.default_rng(0), np.repeat(["a", "b", "c"], 50)
    centre = np.repeat([0.0, 30.0, 60.0], 50)
    truth = centre + draw.normal(size=150)
    means = np.repeat([truth[batch == one].mean() for one in "abc"], 50)
    assert sklearn.metrics.r2_score(truth, means) > 0.99

    def r2(predicted: np.ndarray) -> float:
        return within_batches(predictions_of(truth, predicted, batch=batch))

    assert r2(means) == pytest.approx(0, abs=1e-12)
    assert r2(means + (truth - means) / 2) == pytest.approx(0.75)
    assert r2(truth + centre) < 0


def test_a_class_that_has_a_batch_of_its_own_counts_on_neither_side():
    """Sea water, all of which is in one level, is told from fish perfectly; fish are not told
    apart.
    """
    draw, water = np.random.default_rng(0), np.arange(100) >= 80
    truth = np.where(water, 2, np.arange(100) % 2)
    batch = np.repeat(["spring", "fall", "none"], [40, 40, 20])
    fish = np.c_[draw.dirichlet([1, 1], 100), np.zeros(100)]
    shares = np.where(water[:, None], np.eye(3)[truth], fish)
    given = predictions_of(truth, shares, ("gut", "skin", "water"), batch=batch)
    first = batch_sentences(given, "season")[0]
    within, over = map(float, re.findall(r"is (0?\.\d+)", first))
    assert abs(within - over) < 0.05, first


@pytest.mark.parametrize("number", [2, 3])
def test_auroc_within_batches_is_the_mean_of_those_that_have_one(number: int):
    draw = np.random.default_rng(0)
    truth, weight = draw.integers(number, size=60), draw.integers(1, 6, size=(60, number))
    shares, batch = weight / weight.sum(axis=1, keepdims=True), np.array([0, 1, 1, 2] * 15)
    truth[batch == 2] = 0
    given = predictions_of(truth, shares, tuple("abc"[:number]), batch=batch)
    areas = []
    for part in (given.at(batch == level) for level in (0, 1)):
        score = part.predicted[:, 1] if number == 2 else part.predicted
        areas.append(sklearn.metrics.roc_auc_score(part.truth, score, multi_class="ovr"))
    assert within_batches(given) == pytest.approx(np.average(areas, weights=[1, 2]))


def test_scores_of_different_folds_are_not_ordered_within_a_batch():
    """Each fold is perfect and has an offset of its own, which once made three quarters of the
    pairs of a batch.
    """
    place = np.arange(40)
    truth, fold, batch = place % 2, place // 20, place // 4 % 2
    given = scored(truth, 0.1 + 0.6 * fold + 0.1 * truth, fold=fold, batch=batch)
    assert within_batches(given) == 1
    text = "Within a run, the AUROC is 1.00; over all of these samples it is 1.00."
    assert batch_sentences(given, "run")[0] == text
    parted = batch_sentences(replace(given, fold=truth), "run")[0]
    assert parted.startswith("No run holds two values of the target in one fold:")


def test_a_target_that_differs_between_batches_only_is_said_to_be_one():
    """It read `Within a run the AUROC is -`, with not a word of why."""
    batch = np.repeat(["a", "b"], 20)
    truth = (batch == "b").astype(np.int64)
    score = np.where(truth == 1, 0.8, 0.2)
    expected = "No run holds two values of the target in one fold: the target may not be told "
    expected += "from the run."
    classes = scored(truth, score, batch=batch)
    assert batch_sentences(classes, "run") == [expected]
    numbers = predictions_of(truth * 4.0, score, batch=batch)
    assert batch_sentences(numbers, "run")[0] == expected


def test_samples_without_a_batch_are_no_batch():
    draw = np.random.default_rng(0)
    truth, batch = draw.normal(size=60), np.repeat(["a", "b", ""], 20)
    given = predictions_of(truth, truth.copy(), batch=batch)
    assert batch_sentences(given, "run") == batch_sentences(given.at(np.arange(40)), "run") != []
    assert batch_sentences(given.at(np.arange(20, 60)), "run") == []


# --- each threshold by a case on both sides ------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "of_one", "true_of_one", "is_said"),
    [
        (100, 95, 50, True),
        (100, 94, 50, False),
        (100, 95, 90, True),
        (100, 95, 91, False),
        (100, 100, 95, True),
        (100, 100, 96, False),
        (20, 19, 10, True),
        (19, 19, 10, False),
    ],
)
def test_one_class_is_named_from_95_of_100_predictions_of_20_samples_on(
    samples, of_one, true_of_one, is_said
):
    truth = (np.arange(samples) >= true_of_one).astype(np.int64)
    given = scored(truth, np.where(np.arange(samples) < of_one, 0.2, 0.8))
    text = " ".join(said(given))
    assert ("of the samples are predicted as no, but" in text) == is_said


def solved_by(key: str, value: float, groups: int = 6, samples: int = 20) -> bool:
    """Whether depth alone is said to solve a task with such a metric; the guess has 40 samples."""
    labels = {"r2": (), "auroc": tuple("ab"), "balanced_accuracy": tuple("abc")}[key]
    of = {key: Interval(value), "auroc": Interval(value), "r2": Interval(value)}, {}
    more = Interval(0.0), math.nan, math.nan
    depth = Comparison(DEPTH_ALONE, True, False, samples, groups, "mae", *of, *more)
    guess = replace(depth, name=MEDIAN, constant=True, samples=40)
    return bool(_solved([guess, depth], labels))


@pytest.mark.parametrize(
    ("key", "limit"), [("auroc", 0.9), ("balanced_accuracy", 0.9), ("r2", 0.8)]
)
def test_a_baseline_solves_a_task_from_its_limit_on(key, limit):
    assert solved_by(key, limit)
    assert not solved_by(key, limit - 0.005)
    assert not solved_by(key, limit, groups=5)
    assert not solved_by(key, limit, samples=19)


@pytest.mark.parametrize(
    ("p", "mae", "expected"),
    [
        # The model errs by 1 and the guess by 3: nine tenths of the gain are an error of 1.2.
        (0.05, 1.21, "better"),
        (0.05, 1.19, "close"),
        (0.051, 1.21, "not shown"),
        (0.051, 1.19, "not shown"),
        (math.nan, 1.21, "untested"),
    ],
)
def test_the_level_of_a_test_and_the_share_of_a_gain(p, mae, expected):
    assert outcome(compared(DEPTH_ALONE, mae, p), compared(MEDIAN, 3.0, 0.001)) == expected


@pytest.mark.parametrize(("p", "expected"), [(0.975, "not shown"), (0.976, "worse")])
def test_a_guess_is_better_at_half_of_the_level(p, expected):
    guess = compared(MEDIAN, 0.5, p)
    assert outcome(guess, guess) == expected
