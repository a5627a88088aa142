"""Metrics, and agreement of distances, against scikit-learn, SciPy, closed forms and naive
loops.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from scipy.spatial.distance import cdist
from sklearn.metrics import average_precision_score as precision
from sklearn.metrics import roc_auc_score as auc

from aam.evaluate import metrics
from aam.evaluate.metrics import regression_metrics, sorted_levels
from tests.evaluate.simulated import measured


def classes(seed: int, samples: int = 200, number: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Labels and informative probabilities with many ties."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(number, size=samples)
    weight = draw.integers(1, 6, size=(samples, number)) + 3.0 * np.eye(number)[truth]
    return truth, weight / weight.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(3))
def test_numeric_figures_equal_the_reference(seed: int):
    truth, predicted = measured(seed)
    rmse = sklearn.metrics.root_mean_squared_error(truth, predicted)
    expected = {
        "mae": sklearn.metrics.mean_absolute_error(truth, predicted),
        "rmse": rmse,
        "r2": sklearn.metrics.r2_score(truth, predicted),
        "pearson": scipy.stats.pearsonr(truth, predicted).statistic,
        "spearman": scipy.stats.spearmanr(truth, predicted).statistic,
        "nrmse": rmse / (truth.max() - truth.min()),
    }
    assert regression_metrics(truth, predicted) == pytest.approx(expected, abs=1e-12)


def naive_ece(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """Guo et al. 2017, sample by sample."""
    gaps = np.zeros(10)
    for label, row in zip(truth, probabilities, strict=True):
        gaps[min(int(10 * max(row)), 9)] += max(row) - (np.argmax(row) == label)
    return np.abs(gaps).sum() / len(truth)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("number", [2, 3, 6])
def test_class_figures_equal_the_reference(seed: int, number: int):
    truth, shares = classes(seed, number=number)
    predicted = shares.argmax(axis=1)
    areas = [
        (auc(truth == k, shares[:, k]), precision(truth == k, shares[:, k]))
        for k in ([1] if number == 2 else range(number))
    ]
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(truth, predicted),
        "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(truth, predicted),
        "macro_f1": sklearn.metrics.f1_score(truth, predicted, average="macro"),
        "auroc": np.mean([area for area, _ in areas]),
        "auprc": np.mean([area for _, area in areas]),
        "ece": naive_ece(truth, shares),
    }
    assert metrics.classification_metrics(truth, shares) == pytest.approx(expected, abs=1e-12)


def test_the_table_of_classes_equals_the_reference():
    truth, probabilities = classes(1)
    predicted = probabilities.argmax(axis=1)
    by_class = metrics.per_class(truth, probabilities, ["a", "b", "c", "d"])
    reference = np.array(sklearn.metrics.precision_recall_fscore_support(truth, predicted))
    found = by_class[["precision", "recall", "f1", "samples"]]
    np.testing.assert_allclose(found.to_numpy().T, reference)
    assert list(by_class.index) == ["a", "b", "c", "d"]
    assert by_class["auroc"].mean() == pytest.approx(
        metrics.classification_metrics(truth, probabilities)["auroc"]
    )


@pytest.mark.parametrize("number", [0, 2, 5])
def test_weights_count_a_sample_as_often_as_it_is_drawn(number: int):
    """What makes the bootstrap fast: a row of weights gives the values of the samples repeated."""
    truth, predicted = classes(3, 60, number) if number else measured(3, 60)
    kind = "classification" if number else "regression"
    measure = getattr(metrics, f"weighted_{kind}_metrics")
    times = np.random.default_rng(0).poisson(1.0, (40, 60))
    times[0], times[1], times[2] = 0, np.arange(60) == 7, truth == truth[0]
    weighted = measure(truth, predicted, times.astype(float))
    for row, count in enumerate(times):
        at = np.repeat(np.arange(60), count)
        expected = metrics.unweighted_metrics(measure, truth[at], predicted[at])
        if not number:
            # The range of the truth is that of all samples, drawn or not.
            expected["nrmse"] = expected["rmse"] / np.ptp(truth)
        found = {name: values[row] for name, values in weighted.items()}
        assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_constant_and_empty_inputs_are_nan():
    ones, ramp = np.ones(4), np.arange(4.0)
    flat = regression_metrics(ones, ramp)
    assert flat["mae"] == 1.0
    assert all(math.isnan(flat[name]) for name in ("r2", "pearson", "spearman", "nrmse"))
    assert math.isnan(regression_metrics(ramp, ones)["pearson"])
    assert math.isnan(metrics.pearson(np.array([0.0, 5e-324]), ramp[:2]))
    assert all(map(math.isnan, regression_metrics(ramp[:0], ramp[:0]).values()))
    single = metrics.classification_metrics(np.zeros(3, dtype=int), np.tile([0.9, 0.1], (3, 1)))
    assert single["accuracy"] == single["balanced_accuracy"] == single["macro_f1"] == 1.0
    called = metrics.classification_metrics(np.array([0, 0, 0, 0]), np.eye(3)[[0, 0, 0, 2]])
    assert called["macro_f1"] == pytest.approx(2 * 3 / 7), (
        "a class that no sample is of does not count"
    )
    assert math.isnan(single["auroc"])
    assert math.isnan(single["auprc"])
    empty = metrics.classification_metrics(np.zeros(0, dtype=int), np.zeros((0, 2)))
    assert all(map(math.isnan, empty.values()))


def test_a_class_without_samples_does_not_count():
    truth, probabilities = classes(0, number=3)
    wider = np.column_stack([probabilities, np.zeros(len(truth))])
    expected = metrics.classification_metrics(truth, probabilities)
    assert metrics.classification_metrics(truth, wider) == pytest.approx(expected)
    last = metrics.per_class(truth, wider, ["a", "b", "c", "d"]).loc["d"]
    assert last["samples"] == 0
    assert math.isnan(last["recall"])


def test_values_that_have_no_square_give_no_warning():
    large = np.array([1e200, -1e200, 3e200])
    scores = metrics.regression_metrics(large, large / 2)
    assert scores["mae"] == pytest.approx(2.5e200 / 3)
    assert math.isinf(scores["rmse"])
    assert math.isnan(scores["r2"])
    missing = {name for name, score in scores.items() if not math.isfinite(score)}
    assert missing == {"rmse", "r2", "pearson", "nrmse"}


def test_levels_that_are_no_number_stand_behind_those_that_are():
    levels = np.array(["nan", "10", "b", "9", "inf", "1e-3"])
    assert sorted_levels(levels) == ["1e-3", "9", "10", "b", "inf", "nan"]


# --- distances ---------------------------------------------------------------------------------


def random_distances(seed: int, samples: int = 30) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(samples, 3))
    return cdist(points, points)


def test_mantel_is_the_correlation_of_all_pairs():
    first, second = random_distances(0), random_distances(1) + random_distances(0)
    rows = np.array(list(itertools.combinations(range(30), 2)))
    expected = scipy.stats.pearsonr(first[tuple(rows.T)], second[tuple(rows.T)]).statistic
    assert metrics.mantel(first, second) == pytest.approx(expected)
    assert metrics.mantel(first, 2 * first + 1) == pytest.approx(1.0)
    assert math.isnan(metrics.mantel(first, np.ones_like(first)))


def test_neighbours_recovered():
    truth = random_distances(0, samples=200)
    assert metrics.neighbours_recovered(truth, truth) == 1.0
    assert metrics.neighbours_recovered(truth**2, truth) == 1.0
    chance = metrics.neighbours_recovered(random_distances(1, samples=200), truth)
    assert chance == pytest.approx(10 / 199, abs=0.02)
    assert math.isnan(metrics.neighbours_recovered(truth[:5, :5], truth[:5, :5]))


def test_neighbours_recovered_counts_true_ties_and_never_the_sample_itself():
    tied = 1 - np.eye(5)
    assert metrics.neighbours_recovered(random_distances(0, samples=5), tied, k=2) == 1.0
    line = np.abs(np.subtract.outer([0.0, 1.0, 3.0], [0.0, 1.0, 3.0]))
    other = np.abs(np.subtract.outer([0.0, 2.0, 3.0], [0.0, 2.0, 3.0]))
    assert metrics.neighbours_recovered(other, line, k=1) == pytest.approx(2 / 3)


def test_many_folds_take_memory_of_the_samples():
    """A mask for each of 10,000 folds took 200 MB."""
    tracemalloc.start()
    metrics.by_fold(metrics.weighted_regression_metrics, np.arange(20_000) // 2)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000
