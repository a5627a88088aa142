"""The opening words of a report where the metric that decides is not there, or not every baseline is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from aam.evaluate.comparison import Baseline
from aam.report.opening import opening_of_target
from aam.report.report import Names, target_result
from tests.evaluate.simulated import majority, median, numeric, two_classes


def test_without_an_auroc_nothing_is_said_of_baselines():
    """It read `the AUROC is -` and `There is no baseline beside it`, with a baseline in the table below."""
    given = two_classes(3.0)
    alone = given.at(given.truth == 1)
    words = opening_of_target(target_result(Names("case"), alone, (majority(alone),), repeats=20))
    assert words.endswith("There is no AUROC of them, so that nothing is compared; the verdict says why.")
    assert "baseline" not in words


def test_the_best_is_of_the_baselines_that_predict_all_samples():
    """The best of two was named, where the better one predicts half of the samples."""
    given = numeric(0.5)
    half = np.where(np.arange(200) % 2, given.truth, math.nan)
    result = target_result(Names("age"), given, (median(given), Baseline("the subject's median", half)), repeats=20)
    assert "The one baseline, the training median, has MAE" in opening_of_target(result)
    assert "no learned baseline, such as a forest, stands beside it" in opening_of_target(result)
    forest = target_result(
        Names("age"), given, (median(given), Baseline("forest", given.truth, trivial=False)), repeats=20
    )
    assert "no learned baseline" not in opening_of_target(forest)
    both = replace(result, comparisons=result.comparisons[:1])
    assert opening_of_target(both) == opening_of_target(result)


def test_a_model_that_is_no_better_than_a_constant_is_doubted():
    """The opening named the best baseline only, and the tie with the majority class stood far below."""
    tie, worse = (
        "it is not shown to do better than the training median (p ",
        "it does worse than the training median (p ",
    )
    for given, doubt in ((numeric(1.0), tie), (numeric(5.0), worse), (numeric(0.2), None)):
        result = target_result(
            Names("age"), given, (median(given), Baseline("forest", given.truth, trivial=False)), repeats=20
        )
        words = opening_of_target(result)
        assert [said for said in (tie, worse) if f"keep in mind: {said}" in words] == [said for said in [doubt] if said]
        assert (", one-sided)" in words) == bool(doubt)


def test_one_class_for_all_samples_is_said():
    given = two_classes(3.0)
    called = np.where(given.truth[:, None] == 0, [0.45, 0.55], [0.1, 0.9])
    result = target_result(Names("case"), replace(given, predicted=called), (majority(given),), repeats=20)
    share = np.mean(given.truth == 1)
    assert f"100% of the samples are called {given.labels[1]}, while {share:.0%} are" in opening_of_target(result)
    right = target_result(Names("case"), given, (majority(given),), repeats=20)
    assert "are called" not in opening_of_target(right)
