"""Linear models in the dual, against scikit-learn on the features themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVR

from aam.predict.dual_linear import TUBE, LinearClassifier, LinearRegressor


@pytest.fixture(params=[12, 80], ids=["few features", "more features than samples"])
def presence(request) -> np.ndarray:
    return (np.random.default_rng(0).random((45, request.param)) < 0.3).astype(np.float32)


def centred(train: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values less the training mean, in units in which training samples have a mean squared length of 1."""
    centred_train = train - train.mean(axis=0)
    return (values - train.mean(axis=0)) / np.sqrt((centred_train**2).sum(axis=1).mean())


def test_regression_is_that_of_the_features_themselves(presence):
    train, test = presence[:30], presence[30:]
    truth = train[:, 0] * 5 + train[:, 1] + 40
    standardized = (truth - truth.mean()) / truth.std()
    expected = SVR(kernel="linear", C=0.7, epsilon=TUBE, tol=1e-6).fit(centred(train, train), standardized)
    model = LinearRegressor(C=0.7).fit(csr_matrix(train), truth)
    predicted = (model.predict(csr_matrix(test)) - truth.mean()) / truth.std()
    np.testing.assert_allclose(predicted, expected.predict(centred(train, test)), atol=0.01)


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_that_of_the_features_themselves(presence, classes):
    train, test = presence[:30], presence[30:]
    truth = np.arange(30) % classes
    expected = LogisticRegression(C=2.0, tol=1e-8, max_iter=2000).fit(centred(train, train), truth)
    model = LinearClassifier(C=2.0).fit(csr_matrix(train), truth)
    assert model.predict_proba(csr_matrix(test)) == pytest.approx(
        expected.predict_proba(centred(train, test)), abs=2e-3
    )


def test_one_class_and_constant_features_are_no_problem(presence):
    one = LinearClassifier().fit(csr_matrix(presence), np.full(len(presence), 3))
    assert one.predict_proba(csr_matrix(presence[:2])).tolist() == [[1.0], [1.0]]
    flat = LinearRegressor().fit(csr_matrix(np.ones((6, 4))), np.arange(6.0))
    assert flat.predict(csr_matrix(np.ones((2, 4)))) == pytest.approx([2.5, 2.5], abs=0.2)
