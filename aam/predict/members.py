"""The members of a blend that read counts: a linear model of presence, and trees."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch
from scipy import sparse
from sklearn.tree._tree import NODE_DTYPE, Tree
from threadpoolctl import threadpool_limits

from aam.device.rng import subsample
from aam.predict import estimator
from aam.predict.estimator import Floats, Labelled, Names, Samples

# --- the linear model: ridge regression of indicators in the dual, all penalties at once --------

# In units of the variance of the features.
PENALTIES = 10.0 ** np.arange(-1.5, 2.51, 0.25)

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
MAX_SAMPLES = 4000
# Up to this number of samples BLAS computes with one thread.
ONE_THREAD = 1000

# Quantiles of the training values at which the distribution of a number is predicted.
THRESHOLDS = 40

# Ridge regression of indicators may predict less than 0.
SMALLEST = 1e-3


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
    of_covariates = covariates @ covariates.T
    variance, second = centred_variance(total), centred_variance(of_covariates)
    scale = 1 / variance if variance else 0.0
    share = COVARIATE_SHARE / second if second else 0.0
    total *= scale
    return total + share * of_covariates if share else total, scale, share


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

    def __init__(
        self,
        depth: int = 1000,
        passes: int = estimator.PASSES,
        seed: int = 0,
        features: str = "presence",
    ) -> None:
        super().__init__(depth, passes, seed)
        self.features = features

    def _fit(self, labelled: Labelled) -> None:
        # Threads of BLAS cost more than they save on small matrices, many times more if cores are
        # busy.
        threads = 1 if len(labelled.values) <= ONE_THREAD else None
        with threadpool_limits(threads, user_api="blas"):
            self._solve(labelled)

    def _solve(self, labelled: Labelled) -> None:
        samples, values = labelled.samples, labelled.values
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
        whole = [estimator.feature_values(self.features, r, self.names_) for r in rarefactions]
        all_weights, models = estimator.training_weights(labelled, self.n_classes), []
        for number in range(-(-len(values) // MAX_SAMPLES)):
            rows = subsample(len(values), number, MAX_SAMPLES)
            part, weights, wanted = labelled.at(rows), all_weights[rows], target[rows]
            features, covariates = [block[rows] for block in whole], part.samples.covariates
            kernel, scale, share = joint_kernel(features, covariates)
            if number == 0:
                self.penalty_ = self._penalty(kernel, wanted, weights, part)
            studies, penalty = part.studies if self.n_classes else None, np.array([self.penalty_])
            (dual,), mean = ridge_duals(kernel, wanted, weights, penalty, studies)
            weights = weights / weights.sum()
            of_features = sum(np.asarray(block.T @ dual) for block in features) / len(features)
            coef = np.concatenate([scale * of_features, share * covariates.T @ dual])
            at_mean = sum(np.asarray(weights @ block).ravel() for block in features) / len(features)
            centre = np.concatenate([at_mean, weights @ covariates])
            models.append((coef, mean - centre @ coef, mean))
        coefs, intercepts, means = zip(*models, strict=True)
        self.coef_, self.intercept_ = np.mean(coefs, axis=0), np.mean(intercepts, axis=0)
        self.__dict__.pop("centre_", None)
        if labelled.studies is not None and self.n_classes:
            self.centre_ = np.mean(means, axis=0)

    def _penalty(
        self, kernel: Floats, target: Floats, weights: Floats, labelled: Labelled
    ) -> float:
        """The penalty with the smallest error in inner folds; a fixed one for several studies.

        The error is the mean absolute error of numbers, or the Brier score.
        """
        if labelled.studies is not None and self.n_classes:
            return STUDY_PENALTY
        if not (folds := estimator.inner_folds(labelled, self.n_classes, self.seed)):
            return PENALTY
        held_out, errors = np.zeros((len(PENALTIES), *target.shape)), []
        for learn, predict in folds:
            inner, of_learn = kernel[np.ix_(learn, learn)], weights[learn]
            duals, mean = ridge_duals(inner, target[learn], of_learn, PENALTIES, None)
            cross = kernel[np.ix_(predict, learn)] - of_learn / of_learn.sum() @ inner
            held_out[:, predict] = cross @ duals + mean
        for indicators in held_out:
            predicted = self._published(indicators)
            error = np.abs(predicted[:, 0] - labelled.values)
            if self.n_classes:
                error = np.square(predicted - target).sum(axis=1)
            errors.append(np.average(error, weights=weights))
        return float(PENALTIES[int(np.argmin(errors))])

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
        values = np.asarray(values) + rarefied.covariates[:, : len(covariates)] @ covariates
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
        return self.changed(intercept_=self.intercept_ + self.centre_ - np.mean(means, axis=0))

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Take what `state` gave; `ValueError` if its parts do not belong together."""
        super().restore(learned)
        columns = self.n_classes or len(self.thresholds_)
        rows = max(len(self.coef_), len(self.names_))
        shapes = {"intercept_": (columns,), "centre_": (columns,), "coef_": (rows, columns)}
        for name, shape in shapes.items():
            array: Floats = vars(self).get(name, self.intercept_)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {list(array.shape)}, expected {list(shape)}")
        if not self.n_classes and not self.range_[0] <= self.range_[1]:
            raise ValueError(f"a range from {self.range_[0]} to {self.range_[1]}")


class LinearClassifier(estimator.Classifier, Linear):
    """Ridge regression of classes on features of rarefied counts; parameters of `Linear`."""


class LinearRegressor(estimator.Regressor, Linear):
    """Ridge regression of a number on features of rarefied counts; parameters of `Linear`."""


# --- trees, grown by scikit-learn on several rarefactions ---------------------------------------

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
    """

    def __init__(
        self,
        depth: int = 1000,
        passes: int = estimator.PASSES,
        seed: int = 0,
        features: str = "presence",
        kind: str = "extra",
        n_estimators: int = 300,
    ) -> None:
        super().__init__(depth, passes, seed)
        self.features = features
        self.kind = kind
        self.n_estimators = n_estimators

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
        # Features that a branching looks at.
        looked_at = "sqrt" if classes else 0.1
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
