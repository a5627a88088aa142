"""The kernel member: ridge regression on ASVs as themselves and as sequences, kept as a weight for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
from scipy import sparse

from aam.predict.presence import Features
from aam.predict.truth import Folds, Thresholds, Truth, error_of, learned_places, make_thresholds

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

PENALTIES = 10.0 ** np.arange(-1.5, 2.51, 0.25)

# Without groups to choose on.
UNTRIED_PENALTY = 10.0

# Ridge regression of indicators may give less than 0.
SMALLEST = 1e-3

COVARIATE_WEIGHT = 0.5

# The cost of a kernel grows with the third power of the samples.
MAX_SAMPLES = 4000


class Part(NamedTuple):
    """Features ``[n, P]`` whose inner products, centred, times `scale`, are one term of the kernel."""

    gram: Floats
    scale: float


def _scale(gram: Floats, weight: float) -> float:
    """Return the factor that gives the centred kernel the mean diagonal `weight`; 0 for constant features."""
    trace = float(np.diag(gram).mean() - gram.mean())
    return weight / trace if trace > 1e-9 * max(float(np.diag(gram).mean()), 1e-300) else 0.0


def _grams(features: Features, sequences: bool) -> tuple[Part, ...]:
    """Return the terms of the kernel: known ASVs, sequences (zero unless asked for), covariates."""
    by_presence = (features.known_asvs @ features.known_asvs.T).toarray()
    smoothed = (features.all_asvs @ features.sketch).toarray() if sequences else np.zeros((len(by_presence), 1))
    grams = (by_presence, smoothed @ smoothed.T, features.covariates @ features.covariates.T)
    weights = (1.0, 1.0, COVARIATE_WEIGHT)
    return tuple(Part(gram, _scale(gram, weight)) for gram, weight in zip(grams, weights, strict=True))


def gram_of(parts: Sequence[Part]) -> Floats:
    """Return the kernel ``[n, n]``, not centred: what is centred is decided by who learns from it."""
    total = np.zeros_like(parts[0].gram)
    for part in parts:
        total += part.scale * part.gram
    return total


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


@dataclass(frozen=True, eq=False)
class KernelMember:
    """A linear model: a bias, a weight for each known ASV, each bucket of 8-mers and each covariate.

    An ASV that no training sample had, or too few, is read by its sequence alone. `thresholds` are there for a number,
    whose distribution is predicted. `base_rates` ``[2]`` are there for two classes, whose scores are learned without.
    """

    asvs: Floats
    kmers: Floats
    covariates: Floats
    bias: Floats
    penalty: float
    thresholds: Thresholds | None = None
    base_rates: Floats | None = None

    def raw(self, features: Features) -> Floats:
        """Return the predicted indicators ``[n, C]`` of one draw."""
        by_sequence = features.all_asvs @ (features.sketch @ self.kmers)
        return np.asarray(
            features.known_asvs @ self.asvs + by_sequence + features.covariates @ self.covariates + self.bias
        )

    def finish(self, raw_values: Sequence[Floats]) -> Floats:
        """Return numbers ``[n, 1]`` or probabilities ``[n, classes]`` from the indicators of several draws."""
        return finished(np.mean(raw_values, axis=0), self.thresholds, self.base_rates)

    def quantile(self, raw_values: Sequence[Floats], level: float) -> Floats:
        """Return a quantile ``[n]`` of the predicted distribution of a number; `ValueError` for classes."""
        if self.thresholds is None:
            raise ValueError("classes have no quantiles")
        return self.thresholds.quantile(np.mean(raw_values, axis=0), level)


def finished(indicators: Floats, thresholds: Thresholds | None, base_rates: Floats | None = None) -> Floats:
    """Return the median ``[n, 1]`` of a predicted distribution, or class scores as shares of at least `SMALLEST`.

    Scores that were learned as if classes were equally common get the odds of `base_rates` back; their order stays.
    """
    if thresholds is not None:
        return thresholds.quantile(indicators)[:, None]
    shares = np.clip(indicators, SMALLEST, 1)
    shares = shares if base_rates is None else shares / shares.sum(axis=1, keepdims=True) * base_rates
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _fit(gram: Floats, indicators: Floats, truth: Truth) -> Dual:
    """Fit the dual; that of two classes has no base rate, which differs between folds and would move all scores."""
    dual = fit_dual(gram, indicators, truth.sample_weights)
    return replace(dual, mean=np.full(2, 0.5)) if truth.classes == 2 else dual


def _primal(features: Features, scales: Sequence[float], dual: Dual, penalty: float) -> tuple[Floats, ...]:
    """Return weights of known ASVs, of 8-mers and of covariates, and the bias, that predict as the dual does."""
    coefficients = dual.coefficients(penalty)
    total = coefficients.sum(axis=0)

    def weights(
        values: sparse.csr_matrix | Floats, turn: Callable[[Floats], Floats], scale: float
    ) -> tuple[Floats, Floats]:
        mean = turn(np.asarray(values.T @ dual.share)[:, None])
        weight = scale * (turn(np.asarray(values.T @ coefficients)) - mean * total)
        return weight, mean[:, 0] @ weight

    def same(values: Floats) -> Floats:
        return values

    def kmers(values: Floats) -> Floats:
        return np.asarray(features.sketch.T @ values)

    terms = (
        weights(features.known_asvs, same, scales[0]),
        weights(features.all_asvs, kmers, scales[1]),
        weights(features.covariates, same, scales[2]),
    )
    return (*(weight for weight, _ in terms), dual.mean - sum(offset for _, offset in terms))


def fit_kernel(
    rarefactions: Sequence[Features], truth: Truth, folds: Folds, sequences: bool = True
) -> tuple[KernelMember, Floats]:
    """Fit the kernel member on several draws of the training samples.

    Inner folds choose the penalty; then all samples are learned from, in each draw, and the weights averaged.

    Parameters
    ----------
    rarefactions : sequence of Features
        Of the n training samples.
    truth : Truth
    folds : sequence of (places that learn, places that are predicted)
    sequences : bool
        Read ASVs as sequences too, beside which ASVs they are.

    Returns
    -------
    KernelMember
    float64 [n, 1] or [n, classes]
        What the member says of each sample out of its fold; NaN without folds.
    """
    thresholds = None if truth.classes else make_thresholds(truth.values)
    indicators = truth.indicators if thresholds is None else thresholds.indicators(truth.values)
    base_rates = np.clip(indicators.mean(axis=0), SMALLEST, 1) if truth.classes == 2 else None
    seen = [learned_places(len(indicators), number, MAX_SAMPLES) for number in range(len(rarefactions))]
    inside = np.zeros((len(PENALTIES), *indicators.shape))
    times = np.zeros(len(indicators))
    terms = (_grams(features.rows(places), sequences) for features, places in zip(rarefactions, seen, strict=True))
    # The terms of one draw at a time: with thousands of samples each takes a hundred megabytes.
    kernels = [(gram_of(parts), [part.scale for part in parts]) for parts in terms]
    # As many draws as the member averages: fewer are noisier and ask for a stronger penalty.
    for places, (gram, _) in zip(seen, kernels, strict=True):
        for fold in folds:
            learn, predict = (np.flatnonzero(np.isin(places, side)) for side in fold)
            inner_gram, cross = gram[np.ix_(learn, learn)], gram[np.ix_(predict, learn)]
            dual = _fit(inner_gram, indicators[places[learn]], truth.rows(places[learn]))
            inside[:, places[predict]] += dual.predict(inner_gram, cross, PENALTIES.tolist())
            times[places[predict]] += 1
    penalty, held_out = UNTRIED_PENALTY, np.full((len(indicators), truth.classes or 1), np.nan)
    if folds:
        judged = np.flatnonzero(times)
        scores = inside[:, judged] / times[judged, None]
        shown = scores if thresholds is None else np.stack([finished(one, thresholds) for one in scores])
        best = int(np.argmin([error_of(truth.rows(judged), one) for one in shown]))
        penalty, held_out[judged] = float(PENALTIES[best]), finished(scores[best], thresholds, base_rates)
    weights = [
        _primal(features.rows(p), scales, _fit(gram, indicators[p], truth.rows(p)), penalty)
        for features, p, (gram, scales) in zip(rarefactions, seen, kernels, strict=True)
    ]
    asv_weights, kmers, covariates, bias = (np.mean(values, axis=0) for values in zip(*weights, strict=True))
    return KernelMember(asv_weights, kmers, covariates, bias, penalty, thresholds, base_rates), held_out
