"""What a report says of a model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from aam.evaluate.comparison import DEPTH, DEPTH_AND_RICHNESS, Baseline, compare_with_baselines
from aam.evaluate.intervals import number, too_few
from aam.evaluate.target_predictions import UNKNOWN_CLASS, TargetPredictions
from aam.evaluate.verdict import verdict
from tests.evaluate.simulated import majority, median, numeric, predictions_of, two_classes


def said(
    predictions: TargetPredictions, *baselines: Baseline, batch: str = "batch"
) -> tuple[str, ...]:
    return verdict(
        predictions, compare_with_baselines(predictions, baselines, seed=0, repeats=200), batch
    )


def test_a_model_without_signal_is_not_shown_to_be_better_than_the_median():
    given = numeric(0.5)
    shuffled = np.random.default_rng(1).permutation(given.truth) * 0.05
    empty = TargetPredictions(given.sample_ids, given.truth, shuffled)
    (only,) = said(empty, median(empty))
    assert only.startswith("The model is not shown to do better than the training median (MAE 0.")
    assert only.endswith(
        ", one-sided): chance alone may give such a difference on the same samples, and either may "
        "predict new ones better."
    )
    assert "; p " in only


def test_a_model_that_is_better_is_said_to_be():
    given = numeric(0.3)
    first, second = said(given, median(given), Baseline(DEPTH, numeric(0.9, seed=4).predicted))
    assert first.startswith("The model (MAE 0.")
    assert " does better than the training median (0." in first
    assert first.endswith("; p below 0.001, one-sided).")
    assert " does better than depth alone (0." in second


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
    assert "The model is not shown to do better than the study's median (MAE 2." in text
    assert "The study's median explains most of the target (R2 0.9" in text
    assert "Within a study, against each study's own mean, R2 is" in text
    assert "Inside a study the model is not seen to do better than that study's mean." in text
    assert "Samples of one study are in several folds" in text
    whole = TargetPredictions(given.sample_ids, truth, given.predicted, fold=study, batch=study)
    text = "\n".join(said(whole, median(whole), batch="study"))
    assert "Every study was held out whole: the metrics are those for a study never seen." in text


def test_depth_that_separates_the_classes_is_named():
    weak, strong = two_classes(0.3), two_classes(3.0)
    both = Baseline(DEPTH_AND_RICHNESS, strong.predicted)
    text = said(weak, majority(weak), Baseline(DEPTH, strong.predicted), both)
    assert any(
        one.startswith("Depth alone predicts better than the model (AUROC 1.00 against 0.")
        for one in text
    )
    assert any(
        one.startswith("Depth and richness alone predict better than the model") for one in text
    )
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


def test_a_baseline_with_nearly_all_of_the_gain_is_said_to_come_close():
    given = numeric(0.3)
    close = given.truth + (given.predicted - given.truth) * 1.02
    text = said(given, median(given), Baseline(DEPTH_AND_RICHNESS, close))
    assert text[1].startswith("Depth and richness alone come close to the model (MAE 0.")
    assert text[1].endswith("% of the model's gain over the training median.")


def test_few_groups_and_part_of_the_samples_are_said():
    given = numeric(0.5, groups=np.arange(200) % 8)
    part = numeric(0.5, seed=5).predicted
    part[:50] = math.nan
    text = said(given, median(given), Baseline("the subject's median", part))
    assert any(" on 150 of 200 samples" in one for one in text)
    assert text[-1] == "Intervals and tests rest on 8 groups only: read them as rough."


def test_a_single_group_or_sample_is_too_few():
    alone = said(numeric(0.3, groups=np.zeros(200)), median(numeric(0.3)))
    assert alone[-1].startswith("1 group is too few for intervals and tests, 6 are needed")
    assert (too_few(1, "sample"), too_few(3, "value", " of child")) == (
        "1 sample is too few",
        "3 values of child are too few",
    )


def test_point_7_few_groups_are_not_tested_and_the_correction_is_said():
    given = numeric(0.3)
    few = said(numeric(0.3, groups=np.arange(200) % 5), median(given))
    assert few[0].startswith(
        "Whether the model does better than the training median is not tested (MAE "
    )
    assert few[-1].startswith(
        "5 groups are too few for intervals and tests, 6 are needed: nothing is shown"
    )
    assert not any("does better than the training median (" in one for one in few)
    others = [Baseline(name, numeric(0.9, seed=4).predicted) for name in (DEPTH, "richness alone")]
    assert said(given, median(given), *others)[1].endswith(
        ", each p corrected for 2 baselines (Holm)."
    )
    lowest = said(numeric(0.3, groups=np.arange(200) % 6), median(given), *others)
    assert "With 6 groups and 2 baselines the smallest possible corrected p is 0.0625" in "\n".join(
        lowest
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
        "No fold holds samples of both classes: there is no AUROC inside a fold"
    )
    assert not any("too few" in one or "not tested" in one or "does better" in one for one in text)
    some = replace(given, fold=fold)
    assert (
        said(some, majority(some))[0]
        == "The AUROC is the mean over 1 of 20 folds: the others hold samples of one class only."
    )
    single = given.at(given.truth == 1)
    assert said(single, majority(single)) == (
        "All samples are 'case': there is no AUROC, and nothing is compared.",
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
        "50 of 190 samples are of classes that the model does not know: they are in no metric"
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
        one.startswith("Depth alone separates the classes (balanced accuracy 1.00)")
        for one in said(given, majority(given, 3), Baseline(DEPTH, exact))
    )


def test_a_baseline_of_few_samples_solves_nothing():
    given = numeric(0.5)
    few = np.where(np.arange(200) < 4, given.truth, math.nan)
    text = said(given, median(given), Baseline("the subject's median", few))
    assert any(" on 4 of 200 samples" in one for one in text)
    assert not any("explains most of the target" in one for one in text)


def test_validation_samples_are_named_where_the_model_does_better_on_them():
    given = numeric(0.3)
    comparisons = compare_with_baselines(given, [median(given)], seed=0, repeats=20)
    for subset, start in (
        ("validation", "On the validation samples the model"),
        ("unknown", "On these samples the"),
    ):
        assert any(one.startswith(start) for one in verdict(given, comparisons, subset=subset))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.794, "2.79"),
        (3.9, "3.90"),
        (0.98599, "0.986"),
        (-0.00168, "-0.00168"),
        (123456.7, "123457"),
        (0.0, "0.00"),
        (-1.5e12, "-1.5e+12"),
        (math.nan, "-"),
    ],
)
def test_numbers_read_well(value: float, text: str):
    assert number(value) == text


def test_learned_baselines_that_are_not_beaten_are_listed_in_one_sentence():
    given = two_classes(1.0)
    draw = np.random.default_rng(7)
    close = [
        Baseline(name, given.predicted + draw.normal(0, 1e-3, (200, 1)) * [1, -1], trivial=False)
        for name in ("random forest", "extra trees")
    ]
    text = said(given, majority(given), *close)
    (one,) = [sentence for sentence in text if "random forest" in sentence]
    assert one.startswith("Learned baselines that the model (AUROC 0.")
    assert one.count("p 1.00") == 2
    (single,) = [
        sentence
        for sentence in said(given, majority(given), close[0])
        if "andom forest" in sentence
    ]
    assert single.startswith("The model is not shown to do better than random forest (AUROC 0.")
