"""Estimators that read one column: the level of each sample."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from aam.typing import Array


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
