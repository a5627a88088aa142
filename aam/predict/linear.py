"""Linear models: ridge regression of indicators in the dual, all penalties at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.linalg
from scipy import sparse

from aam.device.rng import subsample
from aam.predict import estimator
from aam.predict.estimator import Floats, Labelled, Names, Samples

PENALTIES = tuple(10.0 ** np.arange(-1.5, 2.51, 0.25))

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
    penalties : sequence of float
        Candidates, in units of the variance of the features.

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
        penalties: tuple[float, ...] = PENALTIES,
    ) -> None:
        super().__init__(depth, passes, seed)
        self.features = features
        self.penalties = penalties

    def _fit(self, labelled: Labelled) -> None:
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
        if len(self.penalties) == 1:
            return self.penalties[0]
        penalties, values = np.array(self.penalties), labelled.values
        if not (folds := estimator.inner_folds(labelled, self.n_classes, self.seed)):
            return PENALTY
        held_out, errors = np.zeros((len(penalties), *target.shape)), []
        for learn, predict in folds:
            inner, of_learn = kernel[np.ix_(learn, learn)], weights[learn]
            duals, mean = ridge_duals(inner, target[learn], of_learn, penalties, None)
            cross = kernel[np.ix_(predict, learn)] - of_learn / of_learn.sum() @ inner
            held_out[:, predict] = cross @ duals + mean
        for indicators in held_out:
            predicted = self._published(indicators)
            error = np.abs(predicted[:, 0] - values)
            if self.n_classes:
                error = np.square(predicted - target).sum(axis=1)
            errors.append(np.average(error, weights=weights))
        return float(penalties[int(np.argmin(errors))])

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
