"""The opening words of a report where the metric that decides is not there, or not every baseline is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from aam.evaluation.baselines import Baseline
from aam.evaluation.opening import opening_of_target
from aam.evaluation.report import Names, target_result
from tests.evaluation.simulated import majority, median, numeric, two_classes


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
