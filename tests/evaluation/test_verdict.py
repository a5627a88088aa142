"""What a report says of a model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aam.evaluation.baselines import DEPTH, DEPTH_AND_RICHNESS, Baseline
from aam.evaluation.comparison import compare_with_baselines
from aam.evaluation.numbers import number
from aam.evaluation.target_predictions import TargetPredictions
from aam.evaluation.verdict import verdict
from tests.evaluation.simulated import majority, median, numeric, two_classes


def said(predictions: TargetPredictions, *baselines: Baseline, batch: str = "batch") -> tuple[str, ...]:
    return verdict(predictions, compare_with_baselines(predictions, baselines, seed=0, repeats=200), batch)


def test_a_model_without_signal_is_said_to_tie_the_median():
    given = numeric(0.5)
    shuffled = np.random.default_rng(1).permutation(given.truth) * 0.05
    empty = TargetPredictions(given.sample_ids, given.truth, shuffled)
    (only,) = said(empty, median(empty))
    assert only.startswith("The training median ties the model (MAE 0.")
    assert only.endswith("): what it learned cannot be told from chance.")
    assert "; p " in only


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
    given = TargetPredictions(
        tuple(map(str, range(240))), truth, medians + draw.normal(0, 0.2, 240), fold=fold, batch=study
    )
    found = said(given, median(given), Baseline("the study's median", medians), batch="study")
    text = "\n".join(found)
    assert "The study's median ties the model (MAE 2." in text
    assert "The study's median explains most of the target (R2 0.9" in text
    assert "Within a study, against each study's own mean, R2 is" in text
    assert "Inside a study the model hardly does better than that study's mean." in text
    assert "Samples of one study are in several folds" in text
    whole = TargetPredictions(given.sample_ids, truth, given.predicted, fold=study, batch=study)
    text = "\n".join(said(whole, median(whole), batch="study"))
    assert "Every study was held out whole: the metrics are those for a study never seen." in text


def test_depth_that_separates_the_classes_is_named():
    weak, strong = two_classes(0.3), two_classes(3.0)
    both = Baseline(DEPTH_AND_RICHNESS, strong.predicted)
    text = said(weak, majority(weak), Baseline(DEPTH, strong.predicted), both)
    assert any(one.startswith("Depth alone predicts better than the model (AUROC 1.00 against 0.") for one in text)
    assert any(one.startswith("Depth and richness alone predict better than the model") for one in text)
    separating = [one for one in text if "the classes (AUROC" in one]
    assert len(separating) == 1
    assert separating[0].startswith("Depth alone separates the classes (AUROC 1.00): a model of this table may")
    richer = said(weak, majority(weak), both)
    assert any(one.startswith("Depth and richness alone separate the classes") for one in richer)
    assert not any("separate" in one for one in said(strong, majority(strong), Baseline(DEPTH, weak.predicted)))


def test_a_tie_in_all_but_the_interval_is_said_to_be_one():
    given = numeric(0.3)
    close = given.truth + (given.predicted - given.truth) * 1.02
    text = said(given, median(given), Baseline(DEPTH_AND_RICHNESS, close))
    assert text[1].startswith("Depth and richness alone practically tie the model (MAE 0.")
    assert text[1].endswith("% of the model's gain over the training median.")


def test_few_groups_and_part_of_the_samples_are_said():
    given = numeric(0.5, groups=np.arange(200) % 8)
    part = numeric(0.5, seed=5).predicted
    part[:50] = math.nan
    text = said(given, median(given), Baseline("the subject's median", part))
    assert any(" on 150 of 200 samples" in one for one in text)
    assert text[-1] == "Intervals and tests rest on 8 groups only: read them as rough."


def test_point_7_few_groups_are_not_tested_and_the_correction_is_said():
    given = numeric(0.3)
    few = said(numeric(0.3, groups=np.arange(200) % 5), median(given))
    assert few[0].startswith("Whether the model does better than the training median is not tested (MAE ")
    assert few[-1].startswith("5 groups are too few for intervals and tests, 6 are needed: nothing is shown")
    assert not any("does better than the training median (" in one for one in few)
    both = (median(given), Baseline(DEPTH, numeric(0.9, seed=4).predicted))
    assert said(given, *both)[0].endswith(", each p corrected for 2 baselines (Holm).")
    lowest = said(numeric(0.3, groups=np.arange(200) % 6), *both)
    assert "With 6 groups and 2 baselines the smallest possible corrected p is 0.0625" in "\n".join(lowest)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.794, "2.79"), (3.9, "3.90"), (0.98599, "0.986"), (-0.00168, "-0.00168"), (123456.7, "123457"), (0.0, "0.00")],
)
def test_numbers_read_well(value: float, text: str):
    assert number(value) == text


def test_what_is_unknown_is_a_dash():
    assert number(math.nan) == "-"
