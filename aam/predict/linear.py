"""Linear models of features: ridge regression in the dual, all penalties from one tridiagonal form
of the kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg
from scipy import sparse
from scipy.linalg import lapack

from aam.device.platform import in_threads
from aam.errors import shown
from aam.predict.features import Inputs, Matrix, Product
from aam.predict.learner import (
    Floats,
    Folds,
    Learner,
    Names,
    Rows,
    Thresholds,
    Truth,
    check_shape,
    error_of,
    make_thresholds,
    subsample,
)

PENALTIES = 10.0 ** np.arange(-1.5, 2.51, 0.25)

# Without groups to choose on.
UNTRIED_PENALTY = np.array([10.0])

# Of classes in several studies: a share of the variance of the features within studies. Two or
# three studies held out choose a penalty worse than this (docs/decisions.md).
STUDY_PENALTY = 0.02

# The mean of fewer unlabelled samples is no better a centre of their study than the mean of
# training.
LEAST_TO_CENTRE = 20

# Ridge regression of indicators may give less than 0.
SMALLEST = 1e-3

# The cost of a kernel grows with the third power of the samples.
MAX_SAMPLES = 4000


def inner_products(features: Any, kind: type[np.floating[Any]] = np.float64) -> Floats:
    """Return the inner products ``[n, n]`` of the rows of a matrix, computed as numbers of a
    `kind`.
    """
    if sparse.issparse(features):
        values = features.astype(kind, copy=False)
        return Product(values, values.T.tocsr()).toarray(kind)
    values = (
        features.toarray(kind)
        if isinstance(features, Product)
        else features.astype(kind, copy=False)
    )
    return np.asarray(values @ values.T)


def scale_of(gram: Floats, weight: float) -> float:
    """Return the factor that gives a centred kernel the mean diagonal `weight`; 0 for constant
    features.
    """
    trace = float(np.diag(gram).mean(dtype=np.float64) - gram.mean(dtype=np.float64))
    return weight / trace if trace > 1e-9 * max(float(np.diag(gram).mean()), 1e-300) else 0.0


@dataclass(frozen=True, eq=False)
class Dual:
    """Ridge regression in the dual.

    Attributes
    ----------
    share : float64 [n]
        Weights of the training samples, of sum 1.
    centre : float64 [n]
        The kernel of their weighted mean to each of them.
    mean : float64 [C]
        Weighted mean of the targets.
    penalties : float64 [L]
    coefficients : float64 [L, n, C]
        Of the kernel to the training samples, at each penalty.
    """

    share: Floats
    centre: Floats
    mean: Floats
    penalties: Floats
    coefficients: Floats

    def predict(self, cross: Floats, studies: Names | None = None) -> Floats:
        """Return predictions ``[L, m, C]`` of samples with the kernel `cross` ``[m, n]`` to those
        of training.

        Samples of `studies` [m] with at least `LEAST_TO_CENTRE` of them are read relative to the
        mean of their study, others relative to that of training.
        """
        centre = np.broadcast_to(self.centre, cross.shape).copy()
        for study in () if studies is None else np.unique(studies):
            if (rows := studies == study).sum() >= LEAST_TO_CENTRE:
                centre[rows] = cross[rows].mean(axis=0)
        return np.asarray((cross - centre) @ self.coefficients + self.mean)


def fit_dual(
    kernel: Floats,
    indicators: Floats,
    weights: Floats,
    penalties: Floats | None = None,
    studies: Names | None = None,
) -> Dual:
    """Fit ridge regression of `indicators` ``[n, C]`` on a kernel ``[n, n]``, samples weighted by
    `weights`.

    Both are taken relative to their weighted mean or, with `studies` [n], to that of the sample's
    study. Several penalties cost one tridiagonal form, one a quarter of it; without any it is
    `STUDY_PENALTY` of the variance. The kernel, float64, is overwritten: it is the largest thing
    here.
    """
    share = weights / weights.sum()
    study = (
        np.zeros(len(share), np.int64)
        if studies is None
        else np.unique(studies, return_inverse=True)[1]
    )
    of_study = (np.arange(study.max() + 1)[:, None] == study).astype(np.float64)
    within = of_study * share / (of_study @ share)[:, None]
    # The mean of a single study is a row for all.
    each = slice(None) if studies is None else study
    root = np.sqrt(share * len(share))[:, None]
    centre, row = share @ kernel, (within @ kernel)[each]
    kernel -= row
    kernel -= row.T
    kernel += (row @ within.T)[:, each]
    kernel *= root
    kernel *= root.T
    target = root * (indicators - (within @ indicators)[each])
    if penalties is None:
        penalties = np.array([max(STUDY_PENALTY * float(np.trace(kernel)), SMALLEST)])
    if len(penalties) == 1:
        kernel[np.diag_indices_from(kernel)] += penalties[0]
        solved = scipy.linalg.solve(
            kernel.T, target, assume_a="pos", overwrite_a=True, check_finite=False
        )[None]
    else:
        solved = solve_shifted(kernel, target, penalties)
    coefficients = root * solved
    return Dual(
        share,
        centre,
        share @ indicators,
        penalties,
        coefficients - within.T @ (of_study @ coefficients),
    )


def solve_shifted(matrix: Floats, target: Floats, shifts: Floats) -> Floats:
    """Return ``inv(matrix + shift) @ target`` [L, n, C] for each of `shifts` [L] above 0; `matrix`
    is positive [n, n].

    The matrix is reduced to a tridiagonal one once (LAPACK's sytrd), in which a shift costs n
    steps: 2.5 to 3 times as fast as its eigenvectors. It is overwritten.
    """
    n, wide = len(matrix), target.shape[1] * len(shifts)
    if n == 1:
        return target / (matrix + shifts[:, None])[:, :, None]
    reduced, diagonal, off, tau, _ = lapack.dsytrd(
        matrix.T, lower=1, lwork=int(lapack.dsytrd_lwork(n, lower=1)[0]), overwrite_a=1
    )
    # All but the first row and the last column, moved together where they lie: it is the largest
    # thing here.
    columns = reduced.ravel(order="K")
    for column in range(n - 1):
        columns[column * (n - 1) : (column + 1) * (n - 1)] = columns[
            column * n + 1 : (column + 1) * n
        ]
    vectors = columns[: (n - 1) ** 2].reshape((n - 1, n - 1), order="F")

    def turned(values: Floats, transposed: str) -> Floats:
        """Return the product with the orthogonal matrix of the reduction; its first row and column
        are those of 1.
        """
        below = lapack.dormqr(
            "L", transposed, vectors, tau, np.asfortranarray(values[1:]), lwork=64 * wide
        )[0]
        return np.concatenate([values[:1], below])

    right = turned(target, "T")
    above = np.append(0.0, off)
    bands = (np.stack([above, diagonal + shift]) for shift in shifts)
    solved = [scipy.linalg.solveh_banded(band, right, check_finite=False) for band in bands]
    whole = turned(np.concatenate(solved, axis=1), "N")
    return np.asarray(whole.reshape(n, len(shifts), -1).transpose(1, 0, 2))


def _fit_indicators(
    gram: Floats, indicators: Floats, truth: Truth, penalties: Floats | None, centred: bool
) -> Dual:
    """Fit the dual; that of two classes has no base rate, which differs between folds and would
    move all scores.
    """
    weights = truth.sample_weights if truth.studies is None else truth.weights
    dual = fit_dual(gram, indicators, weights, penalties, truth.studies if centred else None)
    return replace(dual, mean=np.full(2, 0.5)) if truth.classes == 2 else dual


def _primal(values: Matrix, scale: float, dual: Dual) -> tuple[Floats, Floats]:
    """Return the weights ``[P, C]`` of a feature that predict as the dual does, and what they add
    to the mean.
    """
    weights = scale * np.asarray(values.T @ dual.coefficients[0])
    return weights, np.asarray(values.T @ dual.share[:, None])[:, 0] @ weights


@dataclass(eq=False)
class Linear(Learner):
    """Ridge regression of indicators: of the classes or, for numbers, of being at most each of some
    thresholds.

    A number is the median of the distribution that is predicted so. It is learned in each
    rarefaction, with one penalty, and the weights are averaged. An ASV that no training sample had,
    or too few, is read by the feature "kmers" alone, where that is one of the terms.

    Of several studies, features and targets may be taken relative to the mean of their study: of
    classes always, of numbers where inner folds of whole studies say that it helps.

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
        Of classes; where there are two, their scores are learned without. Alike where there are
        studies.
    centre_ : float64 [C]
        What is predicted of the mean of a study, where features are relative to it.
    """

    terms: Mapping[str, float] = field(default_factory=lambda: {"presence": 1.0, "covariates": 0.5})

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that are read."""
        return tuple(self.terms)

    def _kernel(self, X: Inputs, number: int) -> tuple[Floats, list[float]]:
        """Return the kernel ``[n, n]``, not centred: what is centred is decided by who learns; and
        its scales.
        """
        # Of many samples single precision, in which six kernels take .4 GB.
        kind = np.float32 if len(X) == MAX_SAMPLES else np.float64
        total, scales = np.zeros((len(X), len(X)), kind), []
        for name, weight in self.terms.items():
            gram = inner_products(X.read(name, number), kind)
            scales.append(scale_of(gram, weight))
            gram *= scales[-1]
            total += gram
        return total, scales

    def _fit(self, X: Inputs, truth: Truth, folds: Folds) -> None:
        if self.n_classes:
            indicators = truth.indicators
            rates = (
                indicators.mean(axis=0)
                if truth.studies is None
                else np.full(self.n_classes, 1 / self.n_classes)
            )
            self.base_rates_ = np.clip(rates, SMALLEST, 1)
        else:
            thresholds = make_thresholds(truth.values)
            self.thresholds_, self.range_ = thresholds.at, [thresholds.low, thresholds.high]
            indicators = thresholds.indicators(truth.values)
        learned = [
            subsample(len(indicators), number, MAX_SAMPLES) for number in range(X.rarefactions)
        ]
        for name in self.terms:
            # Computed once, before threads ask for it.
            X.read(name)
        kernels = in_threads(
            lambda number: self._kernel(X[learned[number]], number), range(X.rarefactions)
        )
        by_study = truth.studies is not None
        # None: what is right for classes in several studies.
        tried = None if by_study and self.n_classes else PENALTIES
        penalties = None if tried is None else UNTRIED_PENALTY
        if folds:
            # Whether numbers are relative to their study is chosen; ages of studies differ as their
            # microbes do.
            ways = (True, False) if by_study and not self.n_classes else (by_study,)
            grams = [gram for gram, _ in kernels]
            results = [
                self._tried(indicators, truth, folds, learned, grams, tried, way) for way in ways
            ]
            best = min(range(len(ways)), key=lambda way: results[way][0])
            by_study, (_, chosen, self.out_of_fold_) = ways[best], results[best]
            penalties = None if tried is None else tried[[chosen]]

        def solved(number: int) -> Dual:
            """Return the dual in a rarefaction."""
            places, (gram, _) = learned[number], kernels[number]
            own = np.array(gram, np.float64)
            return _fit_indicators(own, indicators[places], truth.rows(places), penalties, by_study)

        duals = in_threads(solved, range(X.rarefactions))
        totals = list[Floats]()
        # Summed one by one: weights of a wide table would take more than all else where those of
        # each are kept.
        for number, (places, dual, (_, scales)) in enumerate(
            zip(learned, duals, kernels, strict=True)
        ):
            inputs = X[places]
            pairs = zip(self.terms, scales, strict=True)
            weights, offsets = zip(
                *(_primal(inputs.read(n, number), scale, dual) for n, scale in pairs), strict=True
            )
            parts = [*weights, dual.mean, dual.mean - sum(offsets)]
            totals = (
                [one + other for one, other in zip(totals, parts, strict=True)] if totals else parts
            )
        *means, centre, self.intercept_ = (total / X.rarefactions for total in totals)
        self.coef_ = dict(zip(self.terms, means, strict=True))
        self.alpha_ = float(np.median([dual.penalties[0] for dual in duals]))
        if by_study:
            self.centre_ = centre

    def _tried(
        self,
        indicators: Floats,
        truth: Truth,
        folds: Folds,
        learned: Sequence[Any],
        kernels: Sequence[Floats],
        penalties: Floats | None,
        by_study: bool,
    ) -> tuple[float, int, Floats]:
        """Return the error at the best penalty, its number and what is predicted with it out of the
        folds.

        Each sample is predicted in as many rarefactions as are averaged: fewer are noisier and ask
        for a stronger penalty.
        """
        number = 1 if penalties is None else len(penalties)
        inside, times = np.zeros((number, *indicators.shape)), np.zeros(len(indicators))

        def predicted(case: tuple[Any, Floats, tuple[Rows, Rows]]) -> tuple[Rows, Floats]:
            """Return the held-out samples of a fold in one rarefaction, and what is predicted of
            them.
            """
            places, gram, fold = case
            learn, predict = (np.flatnonzero(np.isin(places, side)) for side in fold)
            inner_gram, cross = (
                gram[np.ix_(learn, learn)].astype(np.float64),
                gram[np.ix_(predict, learn)],
            )
            rows = truth.rows(places[learn])
            dual = _fit_indicators(inner_gram, indicators[places[learn]], rows, penalties, by_study)
            studies = (
                truth.studies[places[predict]] if truth.studies is not None and by_study else None
            )
            return places[predict], dual.predict(cross, studies)

        cases = [(*pair, fold) for pair in zip(learned, kernels, strict=True) for fold in folds]
        for held_out, values in in_threads(predicted, cases):
            inside[:, held_out] += values
            times[held_out] += 1
        judged = np.flatnonzero(times)
        scores = inside[:, judged] / times[judged, None]
        # Classes are judged by their scores: base rates change no order.
        candidates = scores if self.n_classes else np.stack([self.published(one) for one in scores])
        errors = [error_of(truth.rows(judged), one) for one in candidates]
        best, out_of_fold = int(np.argmin(errors)), np.full_like(self.out_of_fold_, np.nan)
        out_of_fold[judged] = self.published(scores[best])
        return errors[best], best, out_of_fold

    def check(self, widths: Mapping[str, int]) -> None:
        """Raise `ValueError` where weights do not fit features of these `widths`, or the classes or
        thresholds.
        """
        if self.coef_.keys() != self.terms.keys():
            raise ValueError(
                f"weights of {shown(self.coef_)}, expected those of {shown(self.terms)}"
            )
        columns = self.n_classes or len(self.thresholds_)
        for name, weights in self.coef_.items():
            check_shape(f"weights of {name}", weights, widths[name], columns)
        check_shape("intercepts", self.intercept_, columns)
        if self.n_classes == 2:
            check_shape("base rates", self.base_rates_, columns)
        check_shape("centre", getattr(self, "centre_", self.intercept_), columns)
        if not self.n_classes:
            low, high = self.range_
            check_shape("thresholds", self.thresholds_, columns)
            if not columns or not low <= high:
                raise ValueError(f"{columns} thresholds in a range from {low} to {high}")

    def published(self, indicators: Floats) -> Floats:
        """Return medians ``[n, 1]`` of the predicted distributions, or probabilities, from
        indicators ``[n, C]``.

        The latter are shares of at least `SMALLEST`. Scores of two classes, learned as if these
        were equally common, get the odds of the base rates back; their order stays.
        """
        if not self.n_classes:
            return Thresholds(self.thresholds_, *self.range_).quantile(indicators)[:, None]
        shares = np.clip(indicators, SMALLEST, 1)
        if self.n_classes == 2:
            shares = shares / shares.sum(axis=1, keepdims=True) * self.base_rates_
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def indicators(self, X: Inputs) -> Floats:
        """Return the predicted indicators ``[n, C]``, the mean over the rarefactions of the
        samples.
        """
        by_rarefaction = []
        for number in range(X.rarefactions):
            total = sum(
                np.asarray(X.read(name, number) @ weights) for name, weights in self.coef_.items()
            )
            by_rarefaction.append(total + self.intercept_)
        return np.asarray(np.mean(by_rarefaction, axis=0))

    def centred_on(self, X: Inputs) -> Linear:
        """Return the learner whose features are relative to the mean of `X`, samples of one study,
        if they are so.
        """
        centred = copy.copy(self)
        if hasattr(self, "centre_"):
            centred.intercept_ = self.intercept_ + self.centre_ - self.indicators(X).mean(axis=0)
        return centred

    def outputs(self, X: Inputs) -> Floats:
        """Return medians ``[n, 1]`` or probabilities ``[n, n_classes]``."""
        return self.published(self.indicators(X))
