"""Linear models of features: ridge regression in the dual, all penalties from one eigendecomposition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg
from scipy import sparse

from aam.errors import shown
from aam.predict.features import Inputs, Matrix, Product
from aam.predict.learner import Learner, check_shape
from aam.predict.truth import Floats, Folds, Thresholds, Truth, error_of, make_thresholds, subsample

PENALTIES = 10.0 ** np.arange(-1.5, 2.51, 0.25)

# Without groups to choose on.
UNTRIED_PENALTY = 10.0

# Ridge regression of indicators may give less than 0.
SMALLEST = 1e-3

# The cost of a kernel grows with the third power of the samples.
MAX_SAMPLES = 4000


def inner_products(features: Any) -> Floats:
    """Return the inner products ``[n, n]`` of the rows of a matrix."""
    if sparse.issparse(features):
        return np.asarray((features @ features.T).toarray())
    values = features.toarray() if isinstance(features, Product) else features
    return np.asarray(values @ values.T)


def scale_of(gram: Floats, weight: float) -> float:
    """Return the factor that gives a centred kernel the mean diagonal `weight`; 0 for constant features."""
    trace = float(np.diag(gram).mean() - gram.mean())
    return weight / trace if trace > 1e-9 * max(float(np.diag(gram).mean()), 1e-300) else 0.0


@dataclass(frozen=True, eq=False)
class Dual:
    """Ridge regression in the dual, at every penalty: from one eigendecomposition of the centred, weighted kernel.

    Attributes
    ----------
    share : float64 [n]
        Weights of the samples, of sum 1, by which kernel and targets are centred.
    mean : float64 [C]
        Weighted mean of the targets.
    values, vectors : float64 [n] and [n, n]
        Of the eigendecomposition.
    turned : float64 [n, C]
        The centred targets in its directions.
    """

    share: Floats
    mean: Floats
    values: Floats
    vectors: Floats
    turned: Floats

    def coefficients(self, penalty: float) -> Floats:
        """Return the dual coefficients ``[n, C]`` of the centred features of the training samples."""
        solved = self.vectors @ (self.turned / (self.values + penalty)[:, None])
        return np.asarray(np.sqrt(self.share * len(self.share))[:, None] * solved)

    def predict(self, gram: Floats, cross: Floats, penalties: Sequence[float]) -> Floats:
        """Return predictions ``[L, m, C]`` of samples with the kernel `cross` ``[m, n]`` to those of `gram`."""
        row = gram @ self.share
        centred = cross - (cross @ self.share)[:, None] - row + self.share @ row
        reach = (centred * np.sqrt(self.share * len(self.share))) @ self.vectors
        return np.stack([reach @ (self.turned / (self.values + p)[:, None]) + self.mean for p in penalties])


def fit_dual(gram: Floats, indicators: Floats, weights: Floats) -> Dual:
    """Fit ridge regression of `indicators` ``[n, C]`` on a kernel ``[n, n]``, samples weighted by `weights`."""
    share = weights / weights.sum()
    root, row, mean = np.sqrt(share * len(share)), gram @ share, share @ indicators
    centred = gram - row[:, None] - row + share @ row
    values, vectors = scipy.linalg.eigh(centred * root[:, None] * root, driver="evr", check_finite=False)
    turned = vectors.T @ (root[:, None] * (indicators - mean))
    return Dual(share, mean, np.maximum(values, 0), vectors, turned)


def _published(indicators: Floats, thresholds: Thresholds | None, base_rates: Floats | None = None) -> Floats:
    """Return the median ``[n, 1]`` of a predicted distribution, or class scores as shares of at least `SMALLEST`.

    Scores that were learned as if classes were equally common get the odds of `base_rates` back; their order stays.
    """
    if thresholds is not None:
        return thresholds.quantile(indicators)[:, None]
    shares = np.clip(indicators, SMALLEST, 1)
    shares = shares if base_rates is None else shares / shares.sum(axis=1, keepdims=True) * base_rates
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _fit_indicators(gram: Floats, indicators: Floats, truth: Truth) -> Dual:
    """Fit the dual; that of two classes has no base rate, which differs between folds and would move all scores."""
    dual = fit_dual(gram, indicators, truth.sample_weights)
    return replace(dual, mean=np.full(2, 0.5)) if truth.classes == 2 else dual


def _primal(values: Matrix, scale: float, dual: Dual, coefficients: Floats) -> tuple[Floats, Floats]:
    """Return the weights ``[P, C]`` of a feature that predict as the dual does, and what they add to the mean."""
    mean = np.asarray(values.T @ dual.share[:, None])
    weights = scale * (np.asarray(values.T @ coefficients) - mean * coefficients.sum(axis=0))
    return weights, mean[:, 0] @ weights


@dataclass(eq=False)
class Linear(Learner):
    """Ridge regression of indicators: of the classes or, for numbers, of being at most each of some thresholds.

    A number is the median of the distribution that is predicted so. It is learned in each rarefaction, with one
    penalty, and the weights are averaged. An ASV that no training sample had, or too few, is read by the feature
    "kmers" alone, where that is one of the terms.

    Attributes
    ----------
    terms : mapping of str to float
        Features, and the share of each in the kernel.
    coef_ : dict of float64 [P, C]
        Weights of each feature.
    intercept_ : float64 [C]
    alpha_ : float
        The penalty.
    thresholds_ : float64 [C]
        Of a number; `range_` is that of the training values.
    base_rates_ : float64 [C]
        Of classes; where there are two, their scores are learned without.
    """

    terms: Mapping[str, float] = field(default_factory=lambda: {"presence": 1.0, "covariates": 0.5})

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that are read."""
        return tuple(self.terms)

    def _kernel(self, X: Inputs, number: int) -> tuple[Floats, list[float]]:
        """Return the kernel ``[n, n]``, not centred: what is centred is decided by who learns; and its scales."""
        total, scales = np.zeros((len(X), len(X))), []
        for name, weight in self.terms.items():
            gram = inner_products(X.read(name, number))
            scales.append(scale_of(gram, weight))
            total += scales[-1] * gram
        return total, scales

    def _fit(self, X: Inputs, truth: Truth, folds: Folds) -> None:
        if self.n_classes:
            indicators = truth.indicators
            self.base_rates_ = np.clip(indicators.mean(axis=0), SMALLEST, 1)
        else:
            thresholds = make_thresholds(truth.values)
            self.thresholds_, self.range_ = thresholds.at, [thresholds.low, thresholds.high]
            indicators = thresholds.indicators(truth.values)
        learned = [subsample(len(indicators), number, MAX_SAMPLES) for number in range(X.rarefactions)]
        # The terms of one rarefaction at a time: with thousands of samples each takes a hundred megabytes.
        kernels = [self._kernel(X[places], number) for number, places in enumerate(learned)]
        self.alpha_ = UNTRIED_PENALTY
        if folds:
            self._choose_penalty(indicators, truth, folds, learned, [gram for gram, _ in kernels])
        by_rarefaction = []
        for number, (places, (gram, scales)) in enumerate(zip(learned, kernels, strict=True)):
            dual, inputs = _fit_indicators(gram, indicators[places], truth.rows(places)), X[places]
            coefficients = dual.coefficients(self.alpha_)
            pairs = [
                _primal(inputs.read(name, number), scale, dual, coefficients)
                for name, scale in zip(self.terms, scales, strict=True)
            ]
            weights = [weight for weight, _ in pairs]
            by_rarefaction.append((*weights, dual.mean - sum(offset for _, offset in pairs)))
        *means, self.intercept_ = (np.mean(values, axis=0) for values in zip(*by_rarefaction, strict=True))
        self.coef_ = dict(zip(self.terms, means, strict=True))

    def _choose_penalty(
        self, indicators: Floats, truth: Truth, folds: Folds, learned: Sequence[Any], kernels: Sequence[Floats]
    ) -> None:
        """Choose the penalty by samples out of their folds, each predicted in as many rarefactions as are averaged.

        Fewer rarefactions are noisier and ask for a stronger penalty.
        """
        inside, times = np.zeros((len(PENALTIES), *indicators.shape)), np.zeros(len(indicators))
        for places, gram in zip(learned, kernels, strict=True):
            for fold in folds:
                learn, predict = (np.flatnonzero(np.isin(places, side)) for side in fold)
                inner_gram, cross = gram[np.ix_(learn, learn)], gram[np.ix_(predict, learn)]
                dual = _fit_indicators(inner_gram, indicators[places[learn]], truth.rows(places[learn]))
                inside[:, places[predict]] += dual.predict(inner_gram, cross, PENALTIES.tolist())
                times[places[predict]] += 1
        judged = np.flatnonzero(times)
        scores = inside[:, judged] / times[judged, None]
        # Classes are judged by their scores: base rates change no order.
        candidates = scores if self.n_classes else np.stack([self.published(one) for one in scores])
        best = int(np.argmin([error_of(truth.rows(judged), one) for one in candidates]))
        self.alpha_, self.out_of_fold_[judged] = float(PENALTIES[best]), self.published(scores[best])

    def check(self, widths: Mapping[str, int]) -> None:
        """Raise `ValueError` where weights do not fit features of these `widths`, or the classes or thresholds."""
        if self.coef_.keys() != self.terms.keys():
            raise ValueError(f"weights of {shown(self.coef_)}, expected those of {shown(self.terms)}")
        columns = self.n_classes or len(self.thresholds_)
        for name, weights in self.coef_.items():
            check_shape(f"weights of {name}", weights, widths[name], columns)
        check_shape("intercepts", self.intercept_, columns)
        if self.n_classes == 2:
            check_shape("base rates", self.base_rates_, columns)
        if not self.n_classes:
            low, high = self.range_
            check_shape("thresholds", self.thresholds_, columns)
            if not columns or not low <= high:
                raise ValueError(f"{columns} thresholds in a range from {low} to {high}")

    def published(self, indicators: Floats) -> Floats:
        """Return what is predicted, numbers or probabilities, from indicators ``[n, C]``."""
        thresholds = None if self.n_classes else Thresholds(self.thresholds_, *self.range_)
        return _published(indicators, thresholds, self.base_rates_ if self.n_classes == 2 else None)

    def indicators(self, X: Inputs) -> Floats:
        """Return the predicted indicators ``[n, C]``, the mean over the rarefactions of the samples."""
        by_rarefaction = []
        for number in range(X.rarefactions):
            total = sum(np.asarray(X.read(name, number) @ weights) for name, weights in self.coef_.items())
            by_rarefaction.append(total + self.intercept_)
        return np.asarray(np.mean(by_rarefaction, axis=0))

    def outputs(self, X: Inputs) -> Floats:
        """Return medians ``[n, 1]`` or probabilities ``[n, n_classes]``."""
        return self.published(self.indicators(X))
