"""The model beside baselines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics

from aam.evaluate import intervals, metrics
from aam.evaluate.comparison import (
    MAJORITY,
    SIGNIFICANT,
    Baseline,
    Comparison,
    compare_with_baselines,
    holm,
    outcome,
    paired_p,
    permutation_p,
)
from aam.evaluate.predictions import TargetPredictions
from tests.evaluate.simulated import majority, median, numeric, two_classes


def outcomes(predictions: TargetPredictions, *baselines: Baseline) -> list[str]:
    first, *others = compare_with_baselines(predictions, baselines, seed=0, repeats=200)
    return [outcome(one, first) for one in (first, *others)]


def test_point_7_p_is_corrected_for_all_baselines():
    given = numeric(0.5)
    others = [Baseline(str(error), numeric(error, seed=7).predicted) for error in (0.52, 0.55, 0.6)]
    comparisons = compare_with_baselines(given, others, seed=0, repeats=20)
    assert [one.corrected_p for one in comparisons] == holm([one.p for one in comparisons])


@pytest.mark.parametrize("constant", [False, True])
def test_limits_of_a_tested_difference_hold_0_where_none_is_shown(constant):
    """Also where resampled limits and the test, which swaps predictions, disagree."""
    draw = np.random.default_rng(0)
    for _ in range(500):
        value, below, above = draw.normal(), *draw.exponential(size=2)
        # Of the one-sided test a p above 0.5 means worse than the constant.
        p = draw.uniform() ** 3 / (2 if constant else 1)
        corrected = p if constant else min(1.0, p * draw.integers(1, 11))
        difference = intervals.Interval(value, value - below, value + above)
        errors = {"mae": difference}
        one = Comparison("x", False, constant, 9, 9, "mae", errors, {}, difference, p, corrected)
        limits = one.tested_difference
        assert (limits.low <= 0 <= limits.high) == (corrected > SIGNIFICANT)
        assert limits.low < value < limits.high


def test_baselines_are_compared_on_the_samples_that_both_predict():
    given = numeric(0.5)
    half = given.predicted.copy()
    half[:150] = math.nan
    comparisons = compare_with_baselines(
        given,
        [Baseline("half", half), Baseline("none", np.full(200, math.nan))],
        seed=0,
        repeats=20,
    )
    assert [one.name for one in comparisons] == ["half"]
    assert comparisons[0].samples == 50
    assert comparisons[0].difference.value == 0
    assert comparisons[0].model == metrics.regression_metrics(given.truth[150:], half[150:])


def test_a_constant_ranks_nothing_though_folds_differ_in_majority():
    given = two_classes(1.0)
    fold = np.arange(200) % 2
    truth = np.where(np.random.default_rng(0).random(200) < 0.3, 1 - fold, fold)
    flipped = np.eye(2)[1 - fold]
    given = TargetPredictions(given.sample_ids, truth, given.predicted, given.labels, fold)
    comparison = compare_with_baselines(given, [Baseline(MAJORITY, flipped)], seed=0, repeats=20)[0]
    assert sklearn.metrics.roc_auc_score(truth, flipped[:, 1]) < 0.4
    assert comparison.metrics["auroc"].value == 0.5
    assert math.isnan(comparison.metrics["auroc"].low)
    model = intervals.metrics_with_intervals(given, 0, 20)["auroc"]
    assert comparison.difference == intervals.Interval(
        model.value - 0.5, model.low - 0.5, model.high - 0.5
    )
    assert comparison.metrics["auprc"].value == pytest.approx(truth.mean())
    assert comparison.metrics["accuracy"].value == (truth != fold).mean()


def test_outcomes():
    given = numeric(0.5)
    assert outcomes(given, median(given)) == ["better"]
    assert (
        outcomes(numeric(1.0), median(given), Baseline("alike", numeric(1.0, seed=5).predicted))[1]
        == "not shown"
    )
    assert (
        outcomes(given, median(given), Baseline("good", numeric(0.1, seed=5).predicted))[1]
        == "worse"
    )
    assert (
        outcomes(given, median(given), Baseline("bad", numeric(0.9, seed=5).predicted))[1]
        == "better"
    )
    # Always a fiftieth further off: p is small, and still it has nearly all of the gain.
    close = given.truth + (given.predicted - given.truth) * 1.02
    assert outcomes(given, median(given), Baseline("close", close)) == ["better", "close"]
    assert outcomes(given, median(given), Baseline("trees", close, trivial=False)) == [
        "better",
        "better",
    ]


def test_the_test_against_the_constant_is_one_sided_and_not_corrected_with_the_others():
    """AUROC .889 with 15 positives in five folds "could not be told from chance": two-sided, and
    times two.
    """
    given, alike = numeric(1.0), Baseline("alike", numeric(1.0, seed=5).predicted)
    constant, other = compare_with_baselines(given, [median(given), alike], seed=0, repeats=20)
    assert (
        constant.p == constant.corrected_p == paired_p(given, median(given).predicted, "mae", 0) / 2
    )
    assert other.corrected_p == other.p
    assert outcomes(numeric(5.0), median(given)) == ["worse"]
    rare = two_classes(2.0, 300)
    rare = replace(
        rare, truth=np.where(np.arange(300) % 20, 0, rare.truth), fold=np.arange(300) % 5
    )
    (constant,) = compare_with_baselines(rare, [majority(rare)], seed=0, repeats=20)
    assert constant.p == constant.corrected_p == permutation_p(rare, 0)
    flipped = replace(two_classes(2.0), predicted=two_classes(2.0).predicted[:, ::-1])
    assert outcomes(flipped, majority(flipped)) == ["worse"]
