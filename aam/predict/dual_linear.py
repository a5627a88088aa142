"""Linear models of many features, fitted in at most as many dimensions as there are samples."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVR

Array = npt.NDArray[Any]

# Error that costs nothing, in standard deviations of the target.
TUBE = 0.1

# A direction with less than this share of the largest variance is rounding.
ROUNDING = 1e-10


class _DualLinear(BaseEstimator):  # type: ignore[misc]
    """A penalized linear model of centred features ``[n, P]``, which are first turned into at most n coordinates.

    The turn keeps all inner products of the training samples, so that a model whose penalty is the squared length of
    its coefficients stays the same. Coordinates are scaled to a mean squared length of 1: `C` has no unit.
    """

    def __init__(self, C: float = 1.0, n_jobs: int = 1) -> None:
        self.C = C
        self.n_jobs = n_jobs

    def fit(self, features: csr_matrix, truth: Array) -> _DualLinear:
        """Learn from training samples."""
        mean = np.asarray(features.mean(axis=0)).ravel()
        of_mean = np.asarray(features @ mean)
        gram = (features @ features.T).toarray() - of_mean[:, None] - of_mean + mean @ mean
        values, vectors = scipy.linalg.eigh(gram)
        kept = values > max(ROUNDING * values[-1], ROUNDING)
        # Constant features leave one direction, in which all samples stand at 0.
        kept[-1] = True
        turned = vectors[:, kept] / np.sqrt(np.maximum(values[kept] * (values[kept].sum() / len(values)), ROUNDING))
        self.axes_ = np.asarray(features.T @ turned) - np.outer(mean, turned.sum(axis=0))
        self.origin_ = mean @ self.axes_
        self._fit(self._coordinates(features), truth)
        return self

    def _coordinates(self, features: csr_matrix) -> Array:
        return np.asarray(features @ self.axes_ - self.origin_)

    def _fit(self, coordinates: Array, truth: Array) -> None:
        raise NotImplementedError


class LinearRegressor(_DualLinear):
    """Support vector regression with a linear kernel (Smola and Schölkopf 2004)."""

    def _fit(self, coordinates: Array, truth: Array) -> None:
        self.center_, self.unit_ = truth.mean(), max(float(truth.std()), 1e-12)
        self.model_ = SVR(kernel="linear", C=self.C, epsilon=TUBE)
        self.model_.fit(coordinates, (truth - self.center_) / self.unit_)

    def predict(self, features: csr_matrix) -> Array:
        """Return predictions ``[n]``."""
        return np.asarray(self.model_.predict(self._coordinates(features)) * self.unit_ + self.center_)


class LinearClassifier(_DualLinear):
    """Logistic regression with a penalty on the squared length of the coefficients."""

    def _fit(self, coordinates: Array, truth: Array) -> None:
        self.classes_ = np.unique(truth)
        if len(self.classes_) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.model_ = LogisticRegression(C=self.C, max_iter=300).fit(coordinates, truth)

    def predict_proba(self, features: csr_matrix) -> Array:
        """Return probabilities ``[n, classes]``, all on the only class where training has one."""
        if len(self.classes_) == 1:
            return np.ones((features.shape[0], 1))
        return np.asarray(self.model_.predict_proba(self._coordinates(features)))
