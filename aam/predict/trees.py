"""Extra trees and random forests, grown by scikit-learn on several rarefactions."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn import ensemble

from aam.predict import estimator
from aam.predict.estimator import Floats, Labelled, Samples

# Trees grow twice as fast on dense features: numbers that take 400 MB.
MAX_DENSE = 10**8

# The time of boosting grows with the features, the classes and the trees.
BOOSTED_FEATURES, BOOSTED_TREES = 500, 50

# Samples whose leaves are computed at a time.
ROWS_AT_ONCE = 1024


class Trees(estimator.CountsEstimator):
    """Extra trees or a random forest on features of rarefied counts.

    Each rarefaction of the training samples grows as many trees. A number is the median over the
    trees: a leaf is nearly one training sample, so that this is the median of the predicted
    distribution (Meinshausen 2006), with a smaller absolute error than the mean.

    Parameters
    ----------
    features : "presence", "shares" or "clr"
    kind : "extra", "random" or "boosting"
        Extremely randomized trees (Geurts et al. 2006), a random forest (Breiman 2001), or gradient
        boosting by histograms on one rarefaction.
    n_estimators : int
        Number of trees of all rarefactions together.
    max_features : float or str, optional
        Features that a branching looks at; a tenth of them for numbers, their square root for
        classes if it is not given.
    """

    def __init__(
        self,
        depth: int = 1000,
        passes: int = estimator.PASSES,
        seed: int = 0,
        features: str = "presence",
        kind: str = "extra",
        n_estimators: int = 300,
        max_features: float | str | None = None,
    ) -> None:
        super().__init__(depth, passes, seed)
        self.features = features
        self.kind = kind
        self.n_estimators = n_estimators
        self.max_features = max_features

    def _values(self, rarefied: Samples) -> Any:
        """Features [n, P] of one rarefaction with the covariates, float32."""
        values = estimator.feature_values(self.features, rarefied, self.names_)
        covariates = rarefied.covariates[:, : self.covariates_]
        joined = sparse.hstack([values, covariates], format="csr", dtype=np.float32)
        if joined.shape[0] * joined.shape[1] <= MAX_DENSE:
            return joined.toarray()
        joined.indices = joined.indices.astype(np.int32)
        joined.indptr = joined.indptr.astype(np.int32)
        return joined

    def _fit(self, labelled: Labelled) -> None:
        samples, values, classes = labelled.samples, labelled.values, self.n_classes
        weights = estimator.training_weights(labelled, classes)
        rarefactions = samples.rarefactions(self.depth, self.seed, self.passes, training=True)
        common = estimator.common_names(rarefactions)
        self.names_ = estimator.informative_names(rarefactions, common)
        self.covariates_ = samples.covariates.shape[1]
        if self.kind == "boosting" and classes != 1:
            self.names_ = estimator.informative_names(rarefactions, self.names_, BOOSTED_FEATURES)
            boosted: Any = ensemble.HistGradientBoostingClassifier
            if not classes:
                boosted = partial(ensemble.HistGradientBoostingRegressor, loss="absolute_error")
            model = boosted(max_iter=BOOSTED_TREES, random_state=self.seed)
            self.forest_ = model.fit(self._values(rarefactions[0]), values, weights)
            return
        name = "ExtraTrees" if self.kind == "extra" else "RandomForest"
        name += "Classifier" if classes else "Regressor"
        looked_at = self.max_features or ("sqrt" if classes else 0.1)
        usual = {"random_state": self.seed, "n_jobs": torch.get_num_threads(), "warm_start": True}
        forest = getattr(ensemble, name)(max_features=looked_at, **usual)
        for number, rarefaction in enumerate(rarefactions, 1):
            forest.n_estimators = max(1, self.n_estimators * number // len(rarefactions))
            # scikit-learn warns that a warm start keeps the classes of the first fit.
            with warnings.catch_warnings(record=True):
                forest.fit(self._values(rarefaction), values, weights if np.ptp(weights) else None)
        self.forest_ = forest

    def outputs(self, rarefied: Samples) -> Floats:
        """Medians over the trees [n, 1] or mean probabilities [n, K] of rarefied samples."""
        parts, values = [np.zeros((0, self.n_classes or 1))], self._values(rarefied)
        for start in range(0, len(rarefied), ROWS_AT_ONCE):
            part = values[start : start + ROWS_AT_ONCE]
            if not hasattr(self.forest_, "estimators_"):
                boosted = self.forest_.predict_proba if self.n_classes else self.forest_.predict
                parts.append(boosted(part).reshape(part.shape[0], -1))
                continue
            drawn = [tree.tree_.predict(part) for tree in self.forest_.estimators_]
            if self.n_classes:
                parts.append(np.asarray(sum(drawn) / len(drawn)))
            else:
                parts.append(np.median(np.stack(drawn)[..., 0], axis=0)[:, None])
        return np.concatenate(parts)

    def check(self) -> None:
        """Raise `ValueError` if a node of a tree that was read from a file is not part of it."""
        width = len(self.names_) + self.covariates_
        for tree in (grown.tree_ for grown in self.forest_.estimators_):
            if (tree.n_features, tree.value.shape[1:]) != (width, (1, self.n_classes or 1)):
                raise ValueError(f"a tree of other features or classes, expected {width} features")
            inner = np.flatnonzero(tree.children_left != -1)
            feature = tree.feature[inner]
            children = np.stack([tree.children_left[inner], tree.children_right[inner]])
            if (children <= inner).any() or (children >= tree.node_count).any():
                raise ValueError("a node of a tree has a child that is not after it")
            if (feature < 0).any() or (feature >= width).any():
                raise ValueError(f"a node of a tree reads none of {width} features")


class TreesClassifier(estimator.Classifier, Trees):
    """Trees that predict classes; parameters of `Trees`."""


class TreesRegressor(estimator.Regressor, Trees):
    """Trees that predict a number; parameters of `Trees`."""
