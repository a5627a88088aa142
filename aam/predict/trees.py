"""Extra trees and random forests, grown by scikit-learn on several rarefactions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sklearn.tree._tree import NODE_DTYPE, Tree

from aam.predict import estimator
from aam.predict.estimator import Floats, Labelled, Samples

# Trees grow twice as fast on dense features: numbers that take 400 MB.
MAX_DENSE = 10**8

# The time of boosting grows with the features, the classes and the trees.
BOOSTED_FEATURES, BOOSTED_TREES = 500, 50

# Samples whose leaves are computed at a time.
ROWS_AT_ONCE = 1024

# What predictions read of a node, as it is saved.
NODE_FIELDS = {"left_child": "i4", "right_child": "i4", "feature": "i4", "threshold": "f8"}

# The child of a leaf.
NO_CHILD = -1


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
        # The import takes 0.2 seconds, and predictions do without.
        from sklearn import ensemble

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
            self.boosted_ = model.fit(self._values(rarefactions[0]), values, weights)
            self.trees_ = []
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
        self.trees_ = [grown.tree_ for grown in forest.estimators_]

    def outputs(self, rarefied: Samples) -> Floats:
        """Medians over the trees [n, 1] or mean probabilities [n, K] of rarefied samples."""
        values, starts = self._values(rarefied), range(0, len(rarefied), ROWS_AT_ONCE)
        parts = [self._predicted(values[start : start + ROWS_AT_ONCE]) for start in starts]
        return np.concatenate([np.zeros((0, self.n_classes or 1)), *parts])

    def _predicted(self, values: Any) -> Floats:
        """Predictions [n, 1] or [n, K] from features [n, P]."""
        if not self.trees_:
            predict = self.boosted_.predict_proba if self.n_classes else self.boosted_.predict
            return np.asarray(predict(values).reshape(values.shape[0], -1))
        drawn = [tree.predict(values) for tree in self.trees_]
        if self.n_classes:
            return np.asarray(sum(drawn) / len(drawn))
        return np.asarray(np.median(np.stack(drawn)[..., 0], axis=0)[:, None])

    def state(self) -> dict[str, Any]:
        """What was learned: the nodes of all trees, one tree after the other."""
        states = [tree.__getstate__() for tree in self.trees_]
        nodes = np.concatenate([state["nodes"] for state in states])
        learned = {name: nodes[name].astype(kind) for name, kind in NODE_FIELDS.items()}
        learned["value"] = np.concatenate([state["values"][:, 0] for state in states])
        learned["node_count"] = np.array([state["node_count"] for state in states])
        return {**super().state(), **learned}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Take what `state` gave; `ValueError` if a node is not part of its tree."""
        super().restore({name: part for name, part in learned.items() if name.endswith("_")})
        counts, width = learned["node_count"], len(self.names_) + self.covariates_
        nodes = np.zeros(len(learned["threshold"]), NODE_DTYPE)
        for name in NODE_FIELDS:
            nodes[name] = learned[name]
        _check_nodes(nodes, counts, width)
        classes, ends = np.array([self.n_classes or 1]), np.cumsum(counts)[:-1]
        parts = np.split(nodes, ends), np.split(learned["value"][:, None], ends)
        self.trees_ = []
        for part, values in zip(*parts, strict=True):
            tree = Tree(width, classes, 1)
            # Predictions do not read the depth.
            state = {"max_depth": 0, "node_count": len(part), "nodes": part, "values": values}
            tree.__setstate__(state)
            self.trees_.append(tree)


def _check_nodes(nodes: npt.NDArray[Any], counts: npt.NDArray[Any], width: int) -> None:
    """Raise `ValueError` if a node is not part of its tree, or reads none of `width` features."""
    if counts.min() < 1 or counts.max() > len(nodes) or counts.sum() != len(nodes):
        raise ValueError(f"trees of {counts.sum()} nodes, expected {len(nodes)}")
    place = np.arange(len(nodes)) - np.repeat(np.cumsum(counts) - counts, counts)
    inner = nodes["left_child"] != NO_CHILD
    place, end, nodes = place[inner], np.repeat(counts, counts)[inner], nodes[inner]
    children = np.stack([nodes["left_child"], nodes["right_child"]])
    if (children <= place).any() or (children >= end).any():
        raise ValueError("a node of a tree has a child that is not after it")
    if (nodes["feature"] < 0).any() or (nodes["feature"] >= width).any():
        raise ValueError(f"a node of a tree reads none of {width} features")


class TreesClassifier(estimator.Classifier, Trees):
    """Trees that predict classes; parameters of `Trees`."""


class TreesRegressor(estimator.Regressor, Trees):
    """Trees that predict a number; parameters of `Trees`."""
