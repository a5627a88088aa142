"""Predictions adapted to a few labels of a new study: against ridge regression and the density of a Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge

from aam.evaluate.metrics import auroc
from aam.predict import prediction
from aam.predict.features import Samples
from aam.predict.prediction import adapt, study_kernel


def balanced(classes: np.ndarray) -> np.ndarray:
    return len(classes) / 2 / np.bincount(classes)[classes]


def centred(values: np.ndarray) -> np.ndarray:
    values = values - values.mean(axis=0)
    return values / np.sqrt(np.square(values).sum(axis=1).mean())


def study_of(seed: int, n: int = 120, strength: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Return features, one of which is of the class, and classes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 10))
    x[:, 0] += strength * classes
    return centred(x), classes


def test_the_kernel_is_that_of_presence_and_of_logs_relative_to_the_mean():
    rng = np.random.default_rng(0)
    counts = [rng.poisson(0.8, (12, 30)).astype(float) for _ in range(3)]
    samples = Samples(None, np.arange(12), np.arange(30), tuple(map(sparse.csr_matrix, counts)))
    expected = np.zeros((12, 12))
    for read in (np.sign, np.log1p):
        values = [read(one) - read(one).mean(axis=0) for one in counts]
        gram = np.mean([one @ one.T for one in values], axis=0)
        expected += gram / np.diag(gram).mean() / 2
    places = np.array([7, 2, 3])
    np.testing.assert_allclose(study_kernel(samples, places), expected[:, places], atol=1e-12)


def test_a_candidate_is_ridge_regression_of_what_the_prediction_leaves(monkeypatch):
    x, classes = study_of(1)
    places, probability = np.arange(0, 120, 8), np.random.default_rng(2).random(120) * 0.2 + 0.4
    base = (probability - probability.mean()) / probability.std()
    scores, evidence = [], []
    for slope, share in ((0.2, 0.3), (0.5, 0.3)):
        left, weights = 2 * classes[places] - 1 - slope * base[places], balanced(classes[places])
        ridge = Ridge((1 - share) / share, fit_intercept=False).fit(x[places], left, weights)
        scores.append(slope * base + ridge.predict(x))
        covariance = share * x[places] @ x[places].T + np.diag((1 - share) / weights)
        density = multivariate_normal.logpdf(left, cov=covariance * (1 - slope**2))
        evidence.append(density - (prediction.PENALTY if slope == 0.2 else 0))
    weights = np.exp(np.array(evidence) - max(evidence))
    expected = (1 + np.tanh(weights @ np.stack(scores) / weights.sum())) / 2
    monkeypatch.setattr(prediction, "SLOPES", (0.2, 0.5))
    monkeypatch.setattr(prediction, "SHARES", (0.3,))
    np.testing.assert_allclose(adapt(x @ x[places].T, probability, places, classes[places]), expected, atol=1e-9)


@pytest.mark.parametrize("number", [6, 20])
def test_labels_decide_where_the_prediction_says_nothing_and_not_where_it_says_all(number):
    gain, loss = [], []
    for seed in range(10):
        x, classes = study_of(seed)
        rng = np.random.default_rng(seed)
        places = np.concatenate([np.flatnonzero(classes == value)[: number // 2] for value in (0, 1)])
        others = np.setdiff1d(np.arange(120), places)
        kernel = x @ x[places].T
        for truth, base, differences in (
            (classes, rng.random(120), gain),
            (hidden := rng.permutation(classes), 0.3 + 0.4 * hidden + 0.1 * rng.random(120), loss),
        ):
            both = (truth[places] == 0).any() and (truth[places] == 1).any()
            adapted = adapt(kernel, base, places, truth[places]) if both else base
            assert ((adapted > 0) & (adapted < 1)).all()
            before, after = (auroc(truth[others] == 1, one[others]) for one in (base, adapted))
            differences.append(after - before)
    assert np.mean(gain) > (0.05 if number == 6 else 0.25)
    assert np.mean(loss) > -0.01


def test_labels_of_nothing_leave_chance():
    areas = []
    for seed in range(40):
        x, classes = study_of(seed)
        permuted = np.random.default_rng(seed).permutation(classes)
        places = np.arange(20)
        adapted = adapt(x @ x[places].T, np.random.default_rng(seed + 1).random(120), places, permuted[places])
        areas.append(auroc(permuted[20:] == 1, adapted[20:]))
    assert np.mean(areas) == pytest.approx(0.5, abs=0.02)
