"""Estimators that read one column: the level of each sample, or a number."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.tree import DecisionTreeRegressor

from aam.evaluate.metrics import auroc
from aam.typing import Array

# Leaves of a tree hold at least this number of samples, and a share of a fiftieth.
LEAST_OF_LEAF, LEAVES = 5, 50


class LevelMedian(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The median of the training samples of a sample's level; NaN for a new level."""

    def fit(self, levels: Array, y: Array) -> LevelMedian:
        """Learn from levels [n] and numbers [n]."""
        self.medians_ = pd.Series(y).groupby(levels).median()
        return self

    def predict(self, levels: Array) -> Array:
        """Predict numbers [n]."""
        return np.asarray(self.medians_.reindex(levels))


class LevelShares(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The class shares of the training samples of a sample's level; NaN for a new level."""

    def fit(self, levels: Array, y: Array) -> LevelShares:
        """Learn from levels [n] and codes of classes [n]."""
        self.shares_ = pd.crosstab(levels, y, normalize="index")
        self.classes_ = self.shares_.columns.to_numpy()
        return self

    def predict_proba(self, levels: Array) -> Array:
        """Predict probabilities [n, K]."""
        return np.asarray(self.shares_.reindex(levels))


class ShrunkenLevelMean(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The mean of the training samples of a sample's level, as if one more had the mean of all."""

    def fit(self, levels: Array, y: Array) -> ShrunkenLevelMean:
        """Learn from levels [n] and numbers [n, K]."""
        groups = pd.DataFrame(y).groupby(levels)
        mean = y.mean(axis=0)
        self.sums_, self.sizes_, self.mean_ = groups.sum(), groups.size(), mean
        return self

    def predict(self, levels: Array) -> Array:
        """Predict numbers [n, K]."""
        sums = self.sums_.reindex(levels, fill_value=0).to_numpy()
        sizes = self.sizes_.reindex(levels, fill_value=0).to_numpy()[:, None]
        return np.asarray((sums + self.mean_) / (sizes + 1))


class ShallowTree(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A tree of depth 3 on one number."""

    def fit(self, numbers: Array, y: Array) -> ShallowTree:
        """Learn from numbers [n] and targets [n, K]."""
        leaf = max(LEAST_OF_LEAF, len(y) // LEAVES)
        tree = DecisionTreeRegressor(max_depth=3, min_samples_leaf=leaf, random_state=0)
        self.tree_ = tree.fit(numbers[:, None], y)
        return self

    def predict(self, numbers: Array) -> Array:
        """Predict targets [n, K]."""
        return np.asarray(self.tree_.predict(numbers[:, None]).reshape(len(numbers), -1))


class Ordered(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Probabilities of two classes in the order of one value, its direction chosen in training.

    The sigmoid is the same in every fold, so that the pooled AUROC is that of the value itself.
    """

    def fit(self, values: Array, y: Array) -> Ordered:
        """Choose the direction from values [n] and classes 0 or 1 [n]."""
        self.classes_ = np.arange(2)
        self.sign_ = -1 if auroc(y == 1, values) < 0.5 else 1
        return self

    def predict_proba(self, values: Array) -> Array:
        """Probabilities [n, 2]."""
        second = 1 / (1 + np.exp(-self.sign_ * values))
        return np.stack([1 - second, second], axis=1)
