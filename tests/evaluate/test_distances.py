"""Agreement of distances against SciPy, closed forms and naive loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from scipy.spatial.distance import cdist
from sklearn.linear_model import LinearRegression

from aam.evaluate import metrics


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


def test_partial_mantel_with_one_matrix_is_the_closed_form():
    first, second, other = (
        random_distances(0) + random_distances(2),
        random_distances(1) + random_distances(2),
        random_distances(2),
    )
    ab, ac, bc = metrics.mantel(first, second), metrics.mantel(first, other), metrics.mantel(second, other)
    expected = (ab - ac * bc) / math.sqrt((1 - ac**2) * (1 - bc**2))
    assert metrics.partial_mantel(first, second, [other]) == pytest.approx(expected)
    assert metrics.partial_mantel(first, second, []) == pytest.approx(ab)


def test_partial_mantel_with_two_matrices_is_that_of_the_residuals():
    predictions = [random_distances(2), random_distances(3)]
    first, second = random_distances(0) + predictions[0], random_distances(1) + predictions[1]
    upper = np.triu_indices(30, 1)
    predictors = np.column_stack([one[upper] for one in predictions])
    rest = [one[upper] - LinearRegression().fit(predictors, one[upper]).predict(predictors) for one in (first, second)]
    assert metrics.partial_mantel(first, second, predictions) == pytest.approx(np.corrcoef(*rest)[0, 1])
    assert math.isnan(metrics.partial_mantel(predictions[0], second, predictions))


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
