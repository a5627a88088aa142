"""The members of a blend that read counts: a linear model of presence, and trees."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_limits

from aam.device.rng import subsample
from aam.files.tensors import ArraySpec
from aam.predict import estimator
from aam.predict.estimator import Expected, Samples
from aam.predict.out_of_fold import all_classes, out_of_fold
from aam.typing import Array, Bools, Floats, Names, Reals, Rows

# --- the linear model: ridge regression of indicators in the dual, all penalties at once --------

# In units of the variance of the features.
RIDGE_PENALTIES = 10.0 ** np.arange(-1.5, 2.51, 0.25)

# Where no inner fold can choose.
PENALTY = 10.0

# Classes in several studies: a share of the variance of the features within studies. Two or three
# studies held out choose a worse penalty than this one.
STUDY_PENALTY = 0.02

# The mean of fewer samples is no better a centre of their study than the mean of training.
LEAST_TO_CENTRE = 20

# The share of the covariates in the kernel, next to 1 for the features of counts.
COVARIATE_SHARE = 0.5

# The cost of a kernel grows with the third power of the samples: a larger study is learned from
# in parts of this size, and their weights are averaged (Zhang, Duchi and Wainwright 2015).
MAX_KERNEL_SAMPLES = 4000
# Up to this number of samples BLAS computes with one thread.
ONE_THREAD = 1000

# Quantiles of the training values at which the distribution of a number is predicted.
THRESHOLDS = 40

# Ridge regression of indicators may predict less than 0.
SMALLEST = 1e-3

# No coefficient of indicators is as large as this.
LARGEST_COEFFICIENT = 1e6


def make_thresholds(values: Floats) -> Floats:
    """At most `THRESHOLDS` quantiles of the training values, without the largest value."""
    unique = chosen = np.unique(values)
    if len(unique) > THRESHOLDS:
        levels = (np.arange(THRESHOLDS) + 0.5) / THRESHOLDS
        chosen = np.unique(np.quantile(values, levels, method="nearest"))
    below = chosen[chosen < unique[-1]]
    return below if len(below) else unique[:1]


def medians(distribution: Floats, thresholds: Floats, low: float, high: float) -> Floats:
    """Medians [n] of predicted distributions [n, q], the shares up to each threshold.

    A distribution that falls somewhere is replaced by the mean of the closest rising ones above and
    below. It is linear between the midpoints of thresholds.
    """
    rising = np.maximum.accumulate(distribution, axis=1)
    falling = np.minimum.accumulate(distribution[:, ::-1], axis=1)[:, ::-1]
    steps = np.clip((rising + falling) / 2, 0, 1)
    middles = (thresholds + np.append(thresholds[1:], high)) / 2
    place = np.concatenate([[low - (middles[0] - low) / 2], middles, [high]])
    padded = np.pad(steps, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
    padded = padded + np.arange(len(place)) * 1e-9
    values = np.array([np.interp(0.5, row, place) for row in padded])
    return np.asarray(np.clip(values, low, high))


def ridge_duals(
    kernel: Floats, target: Floats, weights: Floats, penalties: Floats, studies: Names | None
) -> tuple[Floats, Floats]:
    """Dual coefficients [L, n, C] of weighted ridge regression at each penalty, and the mean [C].

    Kernel [n, n] and target [n, C] are taken relative to their weighted mean or, with `studies`, to
    that of the sample's study; penalties are then shares of the trace. One eigendecomposition
    serves all penalties.
    """
    share = weights / weights.sum()
    study = np.zeros(len(share), np.int64)
    if studies is not None:
        study = np.unique(studies, return_inverse=True)[1]
    member = np.arange(study.max() + 1)[:, None] == study
    within = member * share / (member @ share)[:, None]
    row = (within @ kernel)[study]
    centred = kernel - row - row.T + (row @ within.T)[:, study]
    root = np.sqrt(share * len(share))[:, None]
    rest = root * (target - (within @ target)[study])
    centred *= root * root.T
    if studies is not None:
        penalties = penalties * max(float(np.trace(centred)), 1e-9)
    values, vectors = scipy.linalg.eigh(centred, check_finite=False)
    turned, values = vectors.T @ rest, np.maximum(values, 0)[:, None]
    solved = [vectors @ (turned / (values + penalty)) for penalty in penalties]
    coefficients = root * np.stack(solved)
    return coefficients - within.T @ (member @ coefficients), share @ target


class RidgePath(BaseEstimator):  # type: ignore[misc]
    """Weighted ridge regression on a kernel at several penalties."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        return tags

    def __init__(self, penalties: Floats) -> None:
        self.penalties = penalties

    def fit(self, kernel: Floats, target: Floats, sample_weight: Floats) -> RidgePath:
        """Learn from a kernel [n, n] and targets [n, C]."""
        self.duals_, self.mean_ = ridge_duals(kernel, target, sample_weight, self.penalties, None)
        self.centre_ = sample_weight / sample_weight.sum() @ kernel
        return self

    def predict(self, kernel: Floats) -> Floats:
        """Predict targets at each of L penalties, [m, L, C], from a kernel [m, n]."""
        predictions = (kernel - self.centre_) @ self.duals_ + self.mean_
        return np.asarray(predictions.swapaxes(0, 1))


def centred_variance(kernel: Floats) -> float:
    """Mean squared distance of the samples from their mean; 0 for constant features."""
    diagonal = float(np.diag(kernel).mean())
    variance = diagonal - float(kernel.mean())
    return variance if variance > 1e-9 * diagonal else 0.0


def joint_kernel(features: list[Any], covariates: Floats) -> tuple[Floats, float, float]:
    """The kernel [n, n] of features, averaged over rarefactions, and of covariates.

    In addition the factors of its two parts.
    """
    total = np.zeros((len(covariates), len(covariates)))
    for block in features:
        product = block @ block.T
        total += product.toarray() if sparse.issparse(product) else product
    total /= len(features)
    covariate_kernel = covariates @ covariates.T
    variance, covariate_variance = centred_variance(total), centred_variance(covariate_kernel)
    scale = 1 / variance if variance else 0.0
    share = COVARIATE_SHARE / covariate_variance if covariate_variance else 0.0
    total *= scale
    return total + share * covariate_kernel if share else total, scale, share


@dataclass(eq=False, repr=False)
class Linear(estimator.CountsEstimator):
    """Ridge regression on features of rarefied counts.

    It predicts indicators of the classes or, for numbers, of not exceeding each of some thresholds:
    a number is the median of the predicted distribution. The penalty is chosen by inner folds of
    whole groups. For classes in several studies, features are relative to the mean of their study
    and the penalty is fixed.

    Parameters
    ----------
    features : "presence", "shares" or "clr"

    Attributes
    ----------
    names_ : tuple of str
        Features that were learned.
    coef_ : float64 [P + covariates, C]
    intercept_ : float64 [C]
    penalty_ : float
    centre_ : float64 [C]
        Indicators at the mean of a study, for a model that is centred by study.
    """

    features: str = "presence"

    def _fit(self, samples: Samples) -> None:
        # Threads of BLAS cost more than they save on small matrices, many times more if cores are
        # busy.
        threads = 1 if len(samples) <= ONE_THREAD else None
        with threadpool_limits(threads, user_api="blas"):
            self._solve(samples)

    def _solve(self, samples: Samples) -> None:
        values = samples.values
        rarefactions = samples.rarefactions(self.depth, self.seed, self.passes, training=True)
        self.names_ = estimator.common_names(rarefactions)
        if self.features == "clr":
            self.names_ = estimator.informative_names(rarefactions, self.names_)
        if self.n_classes:
            target = np.eye(self.n_classes)[values]
        else:
            self.thresholds_ = make_thresholds(values)
            self.range_ = np.array([values.min(), values.max()])
            target = (values[:, None] <= self.thresholds_).astype(np.float64)
        blocks = [estimator.feature_values(self.features, r, self.names_) for r in rarefactions]
        all_weights, models = estimator.training_weights(samples, self.n_classes), []
        for number in range(-(-len(values) // MAX_KERNEL_SAMPLES)):
            rows = subsample(len(values), number, MAX_KERNEL_SAMPLES)
            part, weights, part_target = samples[rows], all_weights[rows], target[rows]
            features, covariates = [block[rows] for block in blocks], part.covariates
            kernel, scale, share = joint_kernel(features, covariates)
            if number == 0:
                self.penalty_ = self._penalty(kernel, part_target, weights, part)
            studies, penalty = part.studies if self.n_classes else None, np.array([self.penalty_])
            (dual,), mean = ridge_duals(kernel, part_target, weights, penalty, studies)
            weights = weights / weights.sum()
            mean_coef = sum(np.asarray(block.T @ dual) for block in features) / len(features)
            coef = np.concatenate([scale * mean_coef, share * covariates.T @ dual])
            totals = sum(np.asarray(weights @ block).ravel() for block in features)
            centre = np.concatenate([totals / len(features), weights @ covariates])
            models.append((coef, mean - centre @ coef, mean))
        coefs, intercepts, means = zip(*models, strict=True)
        self.coef_, self.intercept_ = np.mean(coefs, axis=0), np.mean(intercepts, axis=0)
        self.__dict__.pop("centre_", None)
        if samples.studies is not None and self.n_classes:
            self.centre_ = np.mean(means, axis=0)

    def _penalty(self, kernel: Floats, target: Floats, weights: Floats, samples: Samples) -> float:
        """The penalty with the smallest error in inner folds; a fixed one for several studies.

        The error is the mean absolute error of numbers, or the Brier score.
        """
        if samples.studies is not None and self.n_classes:
            return STUDY_PENALTY
        if not (folds := estimator.inner_folds(samples, self.n_classes, self.seed)):
            return PENALTY
        path, errors = RidgePath(RIDGE_PENALTIES), []
        held_out = out_of_fold(path, kernel, target, folds, sample_weight=weights)
        for indicators in held_out.swapaxes(0, 1):
            predicted = self._published(indicators)
            error = np.abs(predicted[:, 0] - samples.values)
            if self.n_classes:
                error = np.square(predicted - target).sum(axis=1)
            errors.append(np.average(error, weights=weights))
        return float(RIDGE_PENALTIES[int(np.argmin(errors))])

    def _published(self, indicators: Floats) -> Floats:
        """Medians [n, 1] or probabilities [n, K] from predicted indicators [n, C]."""
        if not self.n_classes:
            return medians(indicators, self.thresholds_, *self.range_)[:, None]
        positive = np.clip(indicators, SMALLEST, 1)
        return np.asarray(positive / positive.sum(axis=1, keepdims=True))

    def indicators(self, rarefied: Samples) -> Floats:
        """Predicted indicators [n, C] of rarefied samples."""
        features, covariates = np.split(self.coef_, [len(self.names_)])
        values = estimator.feature_values(self.features, rarefied, self.names_) @ features
        values = np.asarray(values) + rarefied.covariates @ covariates
        return np.asarray(values + self.intercept_)

    def outputs(self, rarefied: Samples) -> Floats:
        """Medians [n, 1] or probabilities [n, K] of rarefied samples."""
        return self._published(self.indicators(rarefied))

    def centred_on(self, X: Any) -> Any:
        """The model for a new study: its features are relative to the mean of these samples."""
        samples = Samples.of(X)
        if not hasattr(self, "centre_") or len(samples) < LEAST_TO_CENTRE:
            return self
        rarefactions = samples.rarefactions(self.depth, self.seed, self.passes)
        means = [self.indicators(rarefaction).mean(axis=0) for rarefaction in rarefactions]
        centred = copy.copy(self)
        centred.intercept_ = self.intercept_ + self.centre_ - np.mean(means, axis=0)
        return centred

    def arrays(self, expected: Expected) -> dict[str, ArraySpec]:
        """The arrays that are learned, for `inputs` columns and `outputs` indicators."""
        arrays, limits = super().arrays(expected), (-LARGEST_COEFFICIENT, LARGEST_COEFFICIENT)
        if not expected.classes:
            arrays["thresholds_"] = ArraySpec("f8", ("outputs",), *expected.limits, sorted=True)
            arrays["range_"] = ArraySpec("f8", (2,), *expected.limits, sorted=True)
        elif expected.is_centred:
            arrays["centre_"] = ArraySpec("f8", ("outputs",), *limits)
        arrays["intercept_"] = ArraySpec("f8", ("outputs",), *limits)
        arrays["coef_"] = ArraySpec("f8", ("inputs", "outputs"), *limits)
        return arrays

    def restore(self, learned: Mapping[str, Array], expected: Expected) -> None:
        """Take what `state` gave; `ValueError` if its parts do not belong together."""
        super().restore(learned, expected)
        if not expected.classes:
            (low, high), values = self.range_, self.thresholds_
            if not len(values) or values[0] < low or values[-1] > high or not np.diff(values).all():
                raise ValueError(f"thresholds_ do not ascend from {low:g} to {high:g}")


class LinearClassifier(estimator.Classifier, Linear):
    """Ridge regression of classes on features of rarefied counts; parameters of `Linear`."""


class LinearRegressor(estimator.Regressor, Linear):
    """Ridge regression of a number on features of rarefied counts; parameters of `Linear`."""


# --- trees, grown by scikit-learn on several rarefactions ---------------------------------------

# Samples whose leaves are computed at a time, and how many leaves of several trees.
ROWS_AT_ONCE, LEAVES_AT_ONCE = 4096, 40_000

# The child of a leaf.
NO_CHILD = -1

# The largest number that a tree compares with a feature.
LARGEST_THRESHOLD = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Forest:
    """Nodes of T trees, one tree after the other; children are places in their tree, or `NO_CHILD`.

    Attributes
    ----------
    node_count : int64 [T]
    left_child, right_child, feature : int32 [nodes]
    threshold : float64 [nodes]
        A sample goes to the left if the value of the feature is at most this.
    value : float64 [nodes, K]
        The prediction of a leaf: a number, or probabilities.
    """

    node_count: Rows
    left_child: npt.NDArray[np.int32]
    right_child: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: Floats
    value: Floats

    @classmethod
    def of(cls, trees: Sequence[Any]) -> Forest:
        """The nodes of trees that scikit-learn has grown."""
        counts = np.array([tree.node_count for tree in trees])
        left = np.concatenate([tree.children_left for tree in trees]).astype(np.int32)
        right = np.concatenate([tree.children_right for tree in trees]).astype(np.int32)
        feature = np.concatenate([tree.feature for tree in trees]).astype(np.int32)
        threshold = np.concatenate([tree.threshold for tree in trees])
        value = np.concatenate([tree.value[:, 0] for tree in trees])
        return cls(counts, left, right, feature, threshold, value)

    @cached_property
    def walk(self) -> tuple[Rows, Bools, Rows, Floats, Rows]:
        """For two steps from each node, right and left: the next node, whether it is a leaf, the
        feature, the threshold; and the roots. Leaves lead to themselves.
        """
        roots = np.cumsum(self.node_count) - self.node_count
        start, node = np.repeat(roots, self.node_count), np.arange(len(self.feature))
        is_leaf = self.left_child == NO_CHILD
        right = np.where(is_leaf, node, self.right_child + start)
        left = np.where(is_leaf, node, self.left_child + start)
        child = 2 * np.stack([right, left], axis=1).ravel()
        feature = np.where(is_leaf, 0, self.feature).astype(np.int64)
        threshold = np.where(is_leaf, np.inf, self.threshold)
        leaves, features, thresholds = (np.repeat(x, 2) for x in (is_leaf, feature, threshold))
        return child, leaves, features, thresholds, 2 * roots

    def leaves(self, values: Reals) -> Rows:
        """The leaf [T, n] of each tree for samples with features [n, P].

        Strategy: several trees and all samples take a step at a time, features first in memory, so
        that the samples of one node read the same part of it. What has reached its leaf is left out
        from time to time.
        """
        child, is_leaf, feature, threshold, roots = self.walk
        n, flat = len(values), np.ascontiguousarray(values.T).ravel()
        start, leaves = feature * n, np.empty((len(roots), n), np.int64)
        trees = max(1, LEAVES_AT_ONCE // max(n, 1))
        for first in range(0, len(roots), trees):
            part = leaves[first : first + trees].reshape(-1)
            node, sample = np.repeat(roots[first : first + trees], n), np.arange(len(part)) % n
            place = np.arange(len(part))
            while len(place):
                for _ in range(2):
                    value = flat.take(start.take(node) + sample)
                    node = child.take(node + (value <= threshold.take(node)))
                reached = is_leaf.take(node)
                part[place[reached]] = node[reached]
                walking = np.flatnonzero(~reached)
                place, node, sample = (each.take(walking) for each in (place, node, sample))
        return leaves // 2

    @staticmethod
    def arrays(expected: Expected) -> dict[str, ArraySpec]:
        """The arrays of a forest, as they are saved."""
        node = ArraySpec("i4", ("nodes",))
        return {
            "node_count": ArraySpec("i8", ("trees",), 1, 2**31),
            **dict.fromkeys(("left_child", "right_child", "feature"), node),
            "threshold": ArraySpec("f8", ("nodes",)),
            "value": ArraySpec("f8", ("nodes", expected.classes or 1), *expected.limits),
        }

    def check(self, expected: Expected, low: Floats, high: Floats) -> None:
        """Raise `ValueError` if a node is not part of its tree, or does not divide a feature, whose
        thresholds are from `low` to `high` [P].
        """
        counts, nodes = self.node_count, len(self.feature)
        if not len(counts) or counts.max() > nodes or counts.sum() != nodes:
            raise ValueError(f"trees of {counts.sum()} nodes, expected {nodes}")
        place = np.arange(nodes) - np.repeat(np.cumsum(counts) - counts, counts)
        is_leaf, end = self.left_child == NO_CHILD, np.repeat(counts, counts)
        if (self.right_child[is_leaf] != NO_CHILD).any():
            raise ValueError("a leaf of a tree has a child")
        inner = np.flatnonzero(~is_leaf)
        children = np.stack([self.left_child[inner], self.right_child[inner]])
        if (children <= place[inner]).any() or (children >= end[inner]).any():
            raise ValueError("a node of a tree has a child that is not after it")
        feature, threshold = self.feature[inner], self.threshold[inner]
        if (feature < 0).any() or (feature >= len(low)).any():
            raise ValueError(f"a node of a tree reads none of {len(low)} features")
        if (threshold < low[feature]).any() or (threshold > high[feature]).any():
            raise ValueError("a node of a tree has a threshold that its feature does not reach")
        if expected.classes and not np.allclose(self.value.sum(axis=1), 1):
            raise ValueError("probabilities of a tree do not sum to 1")


@dataclass(eq=False, repr=False)
class Trees(estimator.CountsEstimator):
    """Extremely randomized trees (Geurts et al. 2006) on presence in rarefied counts.

    Each rarefaction of the training samples grows as many trees. A number is the median over the
    trees: a leaf is nearly one training sample, so that this is the median of the predicted
    distribution (Meinshausen 2006), with a smaller absolute error than the mean.

    Parameters
    ----------
    n_estimators : int
        Number of trees of all rarefactions together.
    """

    n_estimators: int = 300

    def _values(self, rarefied: Samples) -> Reals:
        """Presence [n, P] in one rarefaction with the covariates, float32: dense, because trees
        grow twice as fast on it.
        """
        values = estimator.feature_values("presence", rarefied, self.names_)
        parts = [sparse.csr_matrix(part) for part in (values, rarefied.covariates)]
        return np.asarray(sparse.hstack(parts, format="csr", dtype=np.float32).toarray())

    def _fit(self, samples: Samples) -> None:
        # The import takes 0.2 seconds, and predictions do without.
        from sklearn import ensemble

        values, classes = samples.values, self.n_classes
        weights = estimator.training_weights(samples, classes)
        rarefactions = samples.rarefactions(self.depth, self.seed, self.passes, training=True)
        common = estimator.common_names(rarefactions)
        self.names_ = estimator.informative_names(rarefactions, common)
        self.width_ = len(self.names_) + samples.covariates.shape[1]
        kind = ensemble.ExtraTreesClassifier if classes else ensemble.ExtraTreesRegressor
        # Features that a branching looks at.
        looked_at = "sqrt" if classes else 0.1
        usual = {"random_state": self.seed, "n_jobs": torch.get_num_threads(), "warm_start": True}
        forest = kind(max_features=looked_at, **usual)
        for number, rarefaction in enumerate(rarefactions, 1):
            forest.n_estimators = max(1, self.n_estimators * number // len(rarefactions))
            # scikit-learn warns that a warm start keeps the classes of the first fit.
            with warnings.catch_warnings(record=True):
                forest.fit(self._values(rarefaction), values, weights if np.ptp(weights) else None)
        self.trees_ = Forest.of([grown.tree_ for grown in forest.estimators_])
        if classes:
            value = all_classes(self.trees_.value, forest.classes_, classes)
            self.trees_ = replace(self.trees_, value=value)

    def outputs(self, rarefied: Samples) -> Floats:
        """Medians over the trees [n, 1] or mean probabilities [n, K] of rarefied samples."""
        rows = range(0, len(rarefied), ROWS_AT_ONCE)
        parts = [self._predicted(rarefied[row : row + ROWS_AT_ONCE]) for row in rows]
        return np.concatenate([np.zeros((0, self.n_classes or 1)), *parts])

    def _predicted(self, rarefied: Samples) -> Floats:
        """Predictions [n, 1] or [n, K]; `ValueError` for another number of covariates."""
        values = self._values(rarefied)
        if values.shape[1] != self.width_:
            raise ValueError(f"{values.shape[1]} features, expected {self.width_}")
        leaves, value = self.trees_.leaves(values), self.trees_.value
        if self.n_classes:
            return np.asarray(sum(value[tree_leaves] for tree_leaves in leaves) / len(leaves))
        return np.asarray(np.median(value[leaves, 0], axis=0)[:, None])

    def arrays(self, expected: Expected) -> dict[str, ArraySpec]:
        """The nodes of all trees, one tree after the other."""
        return {**super().arrays(expected), **Forest.arrays(expected)}

    def state(self) -> dict[str, Array]:
        """What was learned: the nodes of all trees, one tree after the other."""
        trees = {item.name: getattr(self.trees_, item.name) for item in fields(Forest)}
        return {**super().state(), **trees}

    def restore(self, learned: Mapping[str, Array], expected: Expected) -> None:
        """Take what `state` gave; `ValueError` if a node is not part of its tree."""
        super().restore(learned, expected)
        self.trees_ = Forest(**{item.name: learned[item.name] for item in fields(Forest)})
        features, self.width_ = len(self.names_), len(self.names_) + expected.covariates
        high = np.full(self.width_, LARGEST_THRESHOLD)
        low = -high
        low[:features], high[:features] = 0, 1
        self.trees_.check(expected, low, high)


class TreesClassifier(estimator.Classifier, Trees):
    """Trees that predict classes; parameters of `Trees`."""


class TreesRegressor(estimator.Regressor, Trees):
    """Trees that predict a number; parameters of `Trees`."""
