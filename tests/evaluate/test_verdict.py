"""What a report says of a model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from aam.evaluate.comparison import (
    DEPTH,
    DEPTH_AND_RICHNESS,
    MEDIAN,
    OWN_MAJORITY,
    OWN_MEDIAN,
    Baseline,
    compare_with_baselines,
)
from aam.evaluate.intervals import number, too_few
from aam.evaluate.predictions import UNKNOWN_CLASS, TargetPredictions
from aam.evaluate.verdict import Verdict, verdict
from tests.evaluate.simulated import majority, median, numeric, predictions_of, two_classes


def judged(predictions: TargetPredictions, *baselines: Baseline, batch: str = "batch") -> Verdict:
    compared = compare_with_baselines(predictions, baselines, seed=0, repeats=200)
    return verdict(predictions, compared, batch)


def said(
    predictions: TargetPredictions, *baselines: Baseline, batch: str = "batch"
) -> tuple[str, ...]:
    return judged(predictions, *baselines, batch=batch).cautions


def test_a_model_without_signal_is_not_shown_to_be_better_than_the_median():
    given = numeric(0.5)
    shuffled = np.random.default_rng(1).permutation(given.truth) * 0.05
    empty = TargetPredictions(given.sample_ids, given.truth, shuffled)
    found = judged(empty, median(empty))
    assert (found.words, found.sign) == ("Chance not excluded", "open")
    assert found.sentence.startswith(
        "The model is not shown to do better than the training median (p "
    )


def test_a_baseline_that_is_beaten_or_comes_close():
    given = numeric(0.3)
    beaten = judged(given, median(given), Baseline(DEPTH, numeric(0.9, seed=4).predicted))
    assert beaten.words == "Beats trivial baselines"
    assert "The MAE of the model minus that of depth alone: -0." in beaten.sentence
    close = given.truth + (given.predicted - given.truth) * 1.02
    found = judged(given, median(given), Baseline(DEPTH_AND_RICHNESS, close))
    assert found.words == "Close to baseline"
    assert "Depth and richness alone has 9" in found.sentence
    assert found.sentence.endswith("% of the model's gain over the training median.")


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


def test_an_accuracy_below_the_base_rate_is_said():
    draw = np.random.default_rng(0)
    truth = (np.arange(200) % 10 == 0).astype(np.int64)
    score = np.clip(0.6 + 0.2 * truth + draw.normal(0, 0.05, 200), 0, 1)
    given = predictions_of(truth, np.stack([1 - score, score], axis=1), ("control", "case"))
    own = Baseline(OWN_MAJORITY, np.tile([1.0, 0.0], (200, 1)))
    found = judged(given, own)
    assert found.words == "Better than guessing"
    assert any(
        "guessing (the majority class of these samples) has 0.900" in one for one in found.cautions
    )


def test_few_groups_are_too_few_or_rough():
    given = numeric(0.3)
    alone = said(numeric(0.3, groups=np.zeros(200)), median(given))
    assert alone[-1].startswith("1 group is too few for intervals and tests; 6 are needed")
    few = judged(numeric(0.3, groups=np.arange(200) % 5), median(given))
    assert few.words == "Cannot be tested"
    assert few.cautions[-1].startswith("5 groups are too few for intervals and tests; 6 are needed")
    others = [Baseline(name, numeric(0.9, seed=4).predicted) for name in (DEPTH, "richness alone")]
    rough = judged(numeric(0.3, groups=np.arange(200) % 6), median(given), *others)
    assert rough.cautions[-1] == "Intervals and tests rest on 6 groups only: read them as rough."
    assert (too_few(1, "sample"), too_few(3, "value", " of child")) == (
        "1 sample is too few",
        "3 values of child are too few",
    )


def test_the_median_of_the_study_that_ties_is_named():
    draw = np.random.default_rng(0)
    study = np.repeat(["a", "b", "c", "d"], 60)
    centre = np.repeat([10.0, 30.0, 50.0, 70.0], 60)
    truth = centre + draw.normal(0, 3, 240)
    medians = np.repeat([np.median(truth[study == one]) for one in "abcd"], 60)
    fold = np.arange(240) % 4
    given = predictions_of(truth, medians + draw.normal(0, 0.2, 240), fold=fold, batch=study)
    sentences = said(given, median(given), Baseline("the study's median", medians), batch="study")
    text = "\n".join(sentences)
    assert 'The baseline "the study\'s median" explains most of the target (R2 0.9' in text
    assert "Within a study, against each study's own mean, R2 is" in text
    assert "Inside a study the model is not clearly better than that study's mean." in text
    assert "Samples of one study are in several folds" in text
    whole = TargetPredictions(given.sample_ids, truth, given.predicted, fold=study, batch=study)
    text = "\n".join(said(whole, median(whole), batch="study"))
    assert "Every study was held out whole: the metrics are those for a study never seen." in text


def test_depth_that_separates_the_classes_is_named():
    weak, strong = two_classes(0.3), two_classes(3.0)
    both = Baseline(DEPTH_AND_RICHNESS, strong.predicted)
    text = said(weak, majority(weak), Baseline(DEPTH, strong.predicted), both)
    assert judged(weak, majority(weak), both).words == "Worse than baseline"
    separating = [one for one in text if "the classes (AUROC" in one]
    assert len(separating) == 1
    assert separating[0].startswith(
        'The baseline "depth alone" separates the classes (AUROC 1.00): the model may'
    )
    richer = said(weak, majority(weak), both)
    assert any(
        one.startswith('The baseline "depth and richness alone" separates') for one in richer
    )
    assert not any(
        "separate" in one for one in said(strong, majority(strong), Baseline(DEPTH, weak.predicted))
    )


def test_without_two_classes_in_a_fold_there_is_no_auroc_and_no_word_of_few_groups():
    """Leave-one-subject-out of a diagnosis: 20 groups were said to be too few, 6 being needed."""
    given = two_classes(3.0)
    order = np.argsort(given.truth, kind="stable")
    fold = np.empty(200, np.int64)
    fold[order] = np.arange(200) // 10
    alone = replace(given, fold=fold, groups=fold)
    alone = alone.at(
        np.isin(fold, [f for f in range(20) if len(np.unique(given.truth[fold == f])) == 1])
    )
    text = said(alone, majority(alone), Baseline(DEPTH, alone.predicted))
    assert text[0].startswith(
        "No fold has both classes: there is no AUROC, and nothing is compared. Fewer folds"
    )
    assert not any("too few" in one or "not tested" in one or "does better" in one for one in text)
    some = replace(given, fold=fold)
    assert (
        said(some, majority(some))[0]
        == "The AUROC is the mean over the 1 of 20 folds that have both classes."
    )
    single = given.at(given.truth == 1)
    assert said(single, majority(single))[0] == (
        "All samples are 'case': there is no AUROC, and nothing is compared."
    )


def test_samples_that_no_metric_counts_are_named():
    """Half of the predictions were missing, or half of the classes unknown to the model, without a
    word.
    """
    given = numeric(0.3)
    half = replace(given, predicted=np.where(np.arange(200) % 2, math.nan, given.predicted))
    assert (
        said(half, median(half))[0] == "100 of 200 samples have no prediction and are in no metric."
    )
    classes = two_classes(3.0)
    truth = np.where(np.arange(200) < 50, UNKNOWN_CLASS, classes.truth)
    truth[50:60] = -1
    text = said(replace(classes, truth=truth), majority(classes))
    assert text[0].startswith(
        "50 of 190 samples are of classes that the model does not know and in no metric."
    )


def test_a_frequent_class_is_no_separation_of_the_classes():
    """95 of 100 samples are of one of three classes, which depth alone predicts for all."""
    truth = np.append(np.zeros(95, np.int64), [1, 2, 1, 2, 1])
    frequent = np.tile([0.9, 0.06, 0.04], (100, 1))
    given = predictions_of(truth, frequent, ("a", "b", "c"))
    assert not any(
        "separate" in one for one in said(given, majority(given, 3), Baseline(DEPTH, frequent))
    )
    exact = np.eye(3)[truth]
    assert any(
        one.startswith('The baseline "depth alone" separates the classes (balanced')
        for one in said(given, majority(given, 3), Baseline(DEPTH, exact))
    )


def test_a_baseline_of_few_samples_solves_nothing():
    given = numeric(0.5)
    few = np.where(np.arange(200) < 4, given.truth, math.nan)
    text = said(given, median(given), Baseline("the subject's median", few))
    assert not any("explains most of the target" in one for one in text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.794, "2.79"),
        (3.9, "3.90"),
        (0.98599, "0.986"),
        (-0.00168, "-0.00168"),
        (123456.7, "123457"),
        (0.0, "0.00"),
        (-1.5e12, "-1.50e+12"),
        (math.nan, "-"),
    ],
)
def test_numbers_read_well(value: float, text: str):
    assert number(value) == text
