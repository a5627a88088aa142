"""Intervals against closed forms, and their coverage of chance."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from aam.evaluate import intervals, metrics
from aam.evaluate.intervals import metrics_by_level, metrics_with_intervals
from aam.evaluate.predictions import TargetPredictions
from tests.evaluate.simulated import measured, predictions_of, scored, two_classes
from tests.evaluate.simulations import (
    EDGES,
    ERROR_SHAPES,
    edge_coverage,
    error_coverage,
    fold_error_coverage,
)


def test_metrics_by_level_are_those_of_its_samples():
    truth, predicted = measured(0)
    level = np.array(["10", "9", "x", "-1.5"])[np.arange(len(truth)) % 4]
    by_level = metrics_by_level(predictions_of(truth, predicted), level, seed=0, repeats=5)
    assert list(by_level) == ["-1.5", "9", "10", "x"]
    for name, (samples, values) in by_level.items():
        rows = level == name
        assert samples == rows.sum()
        expected = metrics.regression_metrics(truth[rows], predicted[rows])
        assert {key: one.value for key, one in values.items()} == expected


def test_a_level_that_is_mostly_one_group_has_no_interval():
    truth, predicted = (values[:30] for values in measured(0))
    mostly = np.where(np.arange(30) < 20, 0, np.arange(30))
    for groups, has_limits in ((np.arange(30) // 3, True), (mostly, False)):
        given = predictions_of(truth, predicted, groups=groups.astype(str))
        found = metrics_by_level(given, np.full(30, "x"), seed=0, repeats=50)["x"][1]["mae"]
        assert np.isfinite(found.low) == has_limits


def mean_only(truth, predicted, weights) -> dict[str, np.ndarray]:
    return {"mean": weights @ (predicted - truth) / weights.sum(axis=1)}


def interval_of_mean(error, groups, seed=0, repeats=1000) -> intervals.Interval:
    given = predictions_of(np.zeros(len(error)), error, groups=groups)
    drawn = intervals.resample_metrics(given, seed, repeats, mean_only)["mean"]
    return intervals.interval(drawn, len(np.unique(groups)))


def test_the_interval_of_a_mean_is_that_of_the_normal_and_depends_on_the_seed():
    error = np.random.default_rng(0).normal(size=400)
    found, half = interval_of_mean(error, np.arange(400), repeats=4000), 1.96 * error.std() / 20
    limits = (error.mean(), error.mean() - half, error.mean() + half)
    assert (found.value, found.low, found.high) == pytest.approx(limits, abs=0.01)
    groups, order = np.arange(400) // 5, np.random.default_rng(0).permutation(400)
    first = interval_of_mean(error, groups, 3, 50)
    assert interval_of_mean(error, groups, 3, 50) == first != interval_of_mean(error, groups, 4, 50)
    moved = interval_of_mean(error[order], groups[order], 3, 50)
    assert moved.low == pytest.approx(first.low, abs=1e-12)


def test_limits_of_the_calibration_error_hold_it():
    """Resampling raises it: percentiles of the resamples begin above the error of probabilities
    that are right.
    """
    draw = np.random.default_rng(0)
    share = draw.uniform(size=300)
    given = scored((draw.uniform(size=300) < share).astype(int), share)
    resampled = intervals.resample_metrics(given, 0)["ece"]
    error = metrics_with_intervals(given, seed=0)["ece"]
    assert np.percentile(resampled[1:], 20) > error.value
    assert 0 <= error.low < error.value < error.high


def test_intervals_resample_groups():
    """Repeating each sample nine times says nothing new; resampling samples would make it seem
    so.
    """
    error = np.random.default_rng(0).normal(size=60)

    def width(values: np.ndarray, by: np.ndarray) -> float:
        found = interval_of_mean(values, by, seed=1)
        return found.high - found.low

    many, single = np.repeat(error, 9), width(error, np.arange(60))
    assert width(many, np.repeat(np.arange(60).astype(str), 9)) == pytest.approx(single, rel=0.05)
    assert width(many, np.arange(540)) == pytest.approx(single / 3, rel=0.15)


def test_few_groups_and_metrics_missing_from_most_resamples_have_no_interval():
    for groups in (1, 2, 5, 6, 7):
        found = interval_of_mean(np.arange(60.0), np.arange(60) % groups)
        assert math.isnan(found.low) == math.isnan(found.high) == (groups < 6)
    rare = intervals.interval(np.array([1.0, math.nan, math.nan, 1.0]), 20)
    assert rare.value == 1.0
    assert math.isnan(rare.low)


def null_study(seed: int, numeric: bool) -> TargetPredictions:
    """Five folds of 100 samples, each predicted by ridge regression of noise on the other four."""
    draw = np.random.default_rng(seed)
    inputs, fold, predicted = draw.normal(size=(100, 20)), np.arange(100) % 5, np.empty(100)
    truth = draw.normal(size=100) if numeric else draw.permutation(100) % 2
    for train in (fold != test for test in range(5)):
        mean, centre = inputs[train].mean(axis=0), truth[train].mean()
        x, y = inputs[train] - mean, truth[train] - centre
        weights = np.linalg.solve(x.T @ x + 20 * np.eye(20), x.T @ y)
        predicted[~train] = (inputs[~train] - mean) @ weights + centre
    if numeric:
        return predictions_of(truth, predicted, fold=fold)
    return scored(truth, np.clip(predicted, -1, 2) / 3 + 1 / 3, fold=fold)


@pytest.mark.parametrize(
    ("numeric", "key", "chance"), [(False, "auroc", 0.5), (True, "pearson", 0.0)]
)
def test_without_signal_the_mean_over_folds_is_chance_and_its_interval_covers_it(
    numeric: bool, key: str, chance: float
):
    """150 null targets: the metric over all folds at once lies below chance, the mean over folds
    does not.
    """
    given = [null_study(seed, numeric) for seed in range(150)]
    studies = [metrics_with_intervals(study, 0, repeats=200) for study in given]
    at_once = [metrics_with_intervals(replace(study, fold=None), 0, repeats=0) for study in given]
    values = np.array([study[key].value for study in studies])
    covered = np.mean([study[key].low <= chance <= study[key].high for study in studies])
    assert abs(values.mean() - chance) < (0.02 if numeric else 0.01)
    assert np.mean([study[key].value for study in at_once]) < values.mean()
    assert 0.93 <= covered <= (0.98 if numeric else 1)


def test_the_mean_over_folds_is_weighted_by_samples():
    given = null_study(0, numeric=False)
    given = given.at(np.flatnonzero((given.fold != 0) | (np.arange(100) < 40)))
    values = metrics_with_intervals(given, 0, repeats=20)
    positive, score = given.truth == 1, given.predicted[:, 1]
    parts = [given.fold == fold for fold in range(5)]
    areas = [metrics.auroc(positive[part], score[part]) for part in parts]
    mean = np.average(areas, weights=[part.sum() for part in parts])
    assert values["auroc"].value == pytest.approx(mean)


def test_a_draw_without_one_of_the_classes_has_no_balanced_accuracy():
    """Such draws gave a model that finds one of three classes an interval from 0.33 up to 0.50."""
    truth = np.append(np.zeros(95, np.int64), [1, 2, 1, 2, 1])
    given = predictions_of(truth, np.tile([0.8, 0.1, 0.1], (100, 1)), tuple("abc"))
    found = metrics_with_intervals(given, 0, repeats=200)["balanced_accuracy"]
    assert found.value == pytest.approx(1 / 3)
    assert 0 < found.low < 1 / 3 < found.high < 0.5


def six_classes(draw: np.random.Generator, groups: int) -> TargetPredictions:
    """Groups with about one sample of each class, three of the first, and scores that vary by
    group.
    """
    number = draw.poisson([3, 1, 1, 1, 1, 1], size=(groups, 6))
    group, truth = (np.repeat(which.ravel(), number.ravel()) for which in np.indices((groups, 6)))
    own = draw.normal(size=(len(truth), 6))
    of_group = draw.normal(scale=0.5, size=(groups, 6))[group]
    chances = np.exp(2.2 * (own + of_group + 2.2 * np.eye(6)[truth]))
    chances /= chances.sum(axis=1, keepdims=True)
    return predictions_of(truth, chances, tuple("abcdef"), groups=group.astype(str))


def test_intervals_of_six_classes_rest_on_the_groups_of_all_of_them():
    """Of 15 groups that of AUPRC went from .46 to .99, as if it rested on the rarest class
    alone.
    """
    large = six_classes(np.random.default_rng(0), 3000)
    values = metrics.unweighted_metrics(large.measure, large.truth, large.predicted)
    studies = (six_classes(np.random.default_rng(seed), 15) for seed in range(1, 81))
    found = [metrics_with_intervals(study, 0, repeats=200) for study in studies]
    for key in ("auprc", "accuracy", "balanced_accuracy"):
        held = [study[key].low <= values[key] <= study[key].high for study in found]
        assert np.mean(held) > 0.92, key
        assert np.mean([study[key].high - study[key].low for study in found]) < 0.25, key


# --- shares near the edge ----------------------------------------------------------------------


def accuracy_of(wrong: np.ndarray, groups=None, repeats: int = 1000) -> intervals.Interval:
    """The accuracy of predictions that are wrong in some samples."""
    predicted = np.eye(2)[wrong.astype(int)]
    given = predictions_of(np.zeros(len(wrong), np.int64), predicted, ("a", "b"), groups=groups)
    return metrics_with_intervals(given, 0, repeats)["accuracy"]


@pytest.mark.parametrize(("right", "samples"), [(10, 10), (9, 10), (37, 40), (0, 8)])
def test_the_interval_of_an_accuracy_of_single_samples_is_the_exact_one_of_a_binomial(
    right: int, samples: int
):
    found = accuracy_of(np.arange(samples) >= right, repeats=20000)
    exact = binomtest(right, samples).proportion_ci()
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.005)


def test_the_interval_of_a_share_counts_groups_where_their_samples_are_alike_and_samples_where_not():
    """Forty groups of ten samples: errors of whole groups say as much as 40 samples, single errors
    nearly as 400.
    """
    unit, widths = np.arange(400) // 10, []
    for wrong in (unit % 5 == 0, np.arange(400) % 5 == 0, unit < 0):
        found = accuracy_of(wrong, unit)
        widths.append(found.high - found.low)
    exact = [binomtest(round(0.8 * n), n).proportion_ci() for n in (40, 400)]
    few, many = (limits.high - limits.low for limits in exact)
    assert widths[0] == pytest.approx(few, rel=0.1)
    assert many < widths[1] < 0.6 * widths[0]
    assert widths[2] == pytest.approx(1 - 0.025 ** (1 / 40), rel=0.15)


def test_no_interval_is_without_width():
    """A run printed `AUROC 1.00 (1.00, 1.00)` for four positives, which could well be 0.8 of new
    ones.
    """
    truth = (np.arange(40) < 4).astype(np.int64)
    given = predictions_of(truth, np.eye(2)[truth] * 0.8 + 0.1, ("a", "b"))
    found = metrics_with_intervals(given, 0)
    assert found["auroc"].value == found["auroc"].high == 1
    assert 0.6 < found["auroc"].low < 0.85
    assert all(math.isnan(one.low) or one.low < one.high for one in found.values())
    exact = metrics_with_intervals(predictions_of(truth * 1.0, truth * 1.0), 0)
    assert math.isnan(exact["mae"].low)


HALF = np.maximum(np.arange(100), 59)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"groups": np.arange(100) % 8}, "few groups (8)"),
        ({"truth": (np.arange(100) < 5).astype(np.int64)}, "few groups of the class 'case' (5)"),
        ({"groups": HALF}, "one group above all, which has 60 % of the samples"),
        ({}, ""),
    ],
)
def test_what_makes_intervals_rough_is_said(columns: dict[str, np.ndarray], words: str):
    given = two_classes(1.0, 100)
    assert intervals.rough(replace(given, **columns)) == words


SLOW_EDGES = [pytest.param(2000, cell, marks=pytest.mark.slow) for cell in EDGES]


@pytest.mark.parametrize(
    ("studies", "cell"), [*((150, cell) for cell in EDGES[::4]), *SLOW_EDGES], ids=str
)
def test_intervals_near_the_edge_hold(studies: int, cell: tuple[str, float, int, int]):
    """Accuracy .90 of 10 samples was held by 65 % of the intervals, AUROC .92 with 5 positives of
    100 by 79 %.
    """
    coverage, smallest_width = edge_coverage(studies, *cell)
    assert coverage >= 0.93
    assert smallest_width > 0


SLOW_SHAPES = [
    pytest.param(studies, shape, groups, marks=pytest.mark.slow)
    for studies, shape, groups in [
        (150, "scales", 20),
        *itertools.product((1000,), ERROR_SHAPES, (6, 10, 20, 30, 100)),
    ]
]


@pytest.mark.parametrize(("studies", "shape", "groups"), [(150, "skewed", 10), *SLOW_SHAPES])
def test_intervals_of_errors_hold_the_error_of_new_groups(studies: int, shape: str, groups: int):
    """Percentiles held the RMSE of 30 groups with unequal scales in 85 % of the studies."""
    held = [coverage for coverage, _ in error_coverage(studies, groups, shape).values()]
    expected = 0.90 if groups < 20 else 0.93
    # Three standard errors of the mean of three metrics that go together.
    slack = 3 * math.sqrt(expected * (1 - expected) / studies)
    assert np.mean(held) >= expected - slack
    assert min(held) >= 0.91 - slack - (groups < 20) * 0.03


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "samples"), [(20, 5), (30, 4), (100, 1)])
def test_intervals_of_errors_hold_those_of_the_models_of_the_folds(groups: int, samples: int):
    held = list(fold_error_coverage(400, groups, samples, 1.0).values())
    # Of 20 groups they held it in 0.91 of 500 studies.
    assert np.mean(held) >= 0.91 - 3 * math.sqrt(0.91 * 0.09 / 400)


def errors_without_limits(truth, predicted, groups) -> list[str]:
    found = metrics_with_intervals(predictions_of(truth, predicted, groups=groups), 0, 200)
    return [name for name in intervals.ERRORS if math.isnan(found[name].low)]


def test_errors_that_do_not_vary_have_no_limits():
    truth, predicted = measured(0)
    groups = np.arange(len(truth)) % 40
    assert errors_without_limits(truth, predicted, groups) == []
    assert errors_without_limits(truth, truth, groups) == list(intervals.ERRORS)
    assert errors_without_limits(np.ones(200), predicted, groups) == ["nrmse", "r2"]
    assert errors_without_limits(truth, predicted, groups % 5) == list(intervals.ERRORS)
    assert errors_without_limits(truth * 1e180, predicted, groups) == ["rmse", "nrmse", "r2"]
    assert errors_without_limits(truth + 1e9, predicted + 1e9, groups) == []


def test_limits_of_nrmse_are_those_of_rmse_over_the_range():
    truth, predicted = measured(1)
    found = metrics_with_intervals(predictions_of(truth, predicted), 0, 200)
    scaled = [found["nrmse"].low * np.ptp(truth), found["nrmse"].high * np.ptp(truth)]
    assert scaled == pytest.approx([found["rmse"].low, found["rmse"].high])
    assert found["mae"].low < found["mae"].value < found["mae"].high


@pytest.mark.parametrize("predicted", ["median", "model"])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("is_negative", [False, True])
def test_limits_of_errors_are_within_what_an_error_can_be(predicted, scale, is_negative):
    """A median whose largest error was 15 months had an MAE of 4.56 (1.42 to 47.2) months."""
    truth = np.array([0.5, 1.0, 2.0, 16.5, 2.5, 1.5, 3.0, 2.0, 1.0]) * scale
    truth = -truth if is_negative else truth
    groups = np.array([0, 0, 1, 2, 3, 3, 4, 5, 5])
    values = np.full(9, np.median(truth)) if predicted == "median" else truth[::-1] / 2
    given = predictions_of(truth, values, groups=groups)
    found = metrics_with_intervals(given, 0)
    largest = np.abs(values[:, None] - truth).max()
    for name in ("mae", "rmse"):
        assert found[name].value < found[name].high <= largest * (1 + 1e-12)
    assert found["mae"].high == pytest.approx(largest)
    assert found["nrmse"].high == pytest.approx(found["rmse"].high / np.ptp(truth))
