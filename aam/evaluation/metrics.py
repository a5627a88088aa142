"""Metrics of predictions.

Resamples are rows of whole-number weights, all computed at once: 1,000 of 700 samples in 0.1 s, not in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Figures [R] of truth and prediction under each row of weights [R, N].
Measure = Callable[[Array, Array, Array], dict[str, Array]]

LOWER_IS_BETTER = frozenset({"mae", "rmse", "nrmse", "ece"})

NAMES = ("MAE", "RMSE", "R2", "Pearson", "Spearman", "NRMSE", "accuracy", "balanced accuracy", "macro F1",
         "AUROC", "AUPRC", "ECE", "precision", "recall", "F1", "coverage", "width", "confidence")  # fmt: skip

TITLES = {name.lower().replace(" ", "_"): name for name in NAMES}

CONFIDENCES = 10


def predicted_rows(predicted: Array) -> npt.NDArray[np.bool_]:
    """Which samples have a prediction, [N], from values [N] or probabilities [N, K]."""
    finite = np.isfinite(predicted)
    return np.asarray(finite.all(axis=1) if finite.ndim == 2 else finite)


def _share(part: Array, whole: Array) -> Array:
    """Elementwise part / whole, NaN where the whole is not above 0."""
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, math.nan), where=whole > 0))


def mean_known(values: Array) -> Array:
    """Mean of each row of what is not NaN; NaN when nothing is left."""
    known = ~np.isnan(values)
    return _share(np.where(known, values, 0.0).sum(axis=1), known.sum(axis=1))


def _range(values: Array, weights: Array) -> Array:
    """Largest minus smallest of the values [N] or [R, N] that have weight, [R]."""
    high = np.where(weights > 0, values, -np.inf).max(axis=1, initial=-np.inf)
    return np.asarray(high - np.where(weights > 0, values, np.inf).min(axis=1, initial=np.inf))


def _centred(values: Array, weights: Array) -> Array:
    """Values [N] or [R, N] minus their weighted mean, [R, N]."""
    mean = _share((weights * values).sum(axis=1), weights.sum(axis=1))
    return np.asarray(values - mean[:, None])


def _correlation(first: Array, second: Array, weights: Array) -> Array:
    """Pearson correlation [R]; NaN where one of them is constant."""
    a, b = _centred(first, weights), _centred(second, weights)
    aa, bb, ab = (np.einsum("rn,rn,rn->r", weights, x, y) for x, y in ((a, a), (b, b), (a, b)))
    varied = (_range(first, weights) > 0) & (_range(second, weights) > 0)
    return _share(ab, np.where(varied, np.sqrt(aa) * np.sqrt(bb), 0.0))


def _up_to(values: Array, weights: Array, ends: Array) -> tuple[Array, Array]:
    """Weight of the values below each of `ends` [M], and of those not above it, both [R, M]."""
    order = np.argsort(values)
    running = np.zeros((len(weights), len(values) + 1))
    np.cumsum(weights[:, order], axis=1, out=running[:, 1:])
    ranked = values[order]
    return running[:, np.searchsorted(ranked, ends)], running[:, np.searchsorted(ranked, ends, "right")]


def regression_figures(truth: Array, predicted: Array, weights: Array) -> dict[str, Array]:
    """MAE and RMSE in the target's units, R2, Pearson, Spearman, and RMSE over the range of truth, [R]."""
    error, total = predicted - truth, weights.sum(axis=1)
    squares, spread = weights @ error**2, _range(truth, weights)
    around = np.einsum("rn,rn->r", weights, _centred(truth, weights) ** 2)
    ranks = [np.add(*_up_to(values, weights, values)) for values in (truth, predicted)]
    rmse = np.sqrt(_share(squares, total))
    return {
        "mae": _share(weights @ np.abs(error), total),
        "rmse": rmse,
        "r2": 1 - _share(squares, np.where(spread > 0, around, 0.0)),
        "pearson": _correlation(truth, predicted, weights),
        "spearman": _correlation(ranks[0], ranks[1], weights),
        "nrmse": _share(rmse, spread),
    }


def _areas(positive: Array, score: Array, weights: Array) -> tuple[Array, Array]:
    """AUROC and average precision [R] of one class; NaN unless both sides are present."""
    ours, others, ends = weights[:, positive], weights[:, ~positive], -score[positive]
    above, reached = _up_to(-score[~positive], others, ends)
    _, found = _up_to(ends, ours, ends)
    members, rest = ours.sum(axis=1), others.sum(axis=1)
    precision = np.divide(found, found + reached, out=np.zeros_like(found), where=found > 0)
    lost = np.einsum("rm,rm->r", ours, above + reached) / 2
    precise = np.einsum("rm,rm->r", ours, precision)
    return 1 - _share(lost, members * rest), _share(precise, np.where(rest > 0, members, 0.0))


def _by_class(truth: Array, probabilities: Array, weights: Array) -> dict[str, Array]:
    """Precision, recall, F1, AUROC and AUPRC of each class against all others, [R, K]."""
    number, chosen = probabilities.shape[1], probabilities.argmax(axis=1)
    true, guess = np.eye(number)[truth], np.eye(number)[chosen]
    hits, members, found = weights @ (true * guess), weights @ true, weights @ guess
    areas = np.array([_areas(truth == k, probabilities[:, k], weights) for k in range(number)])
    return {
        "precision": _share(hits, found),
        "recall": _share(hits, members),
        "f1": _share(2 * hits, members + found),
        "auroc": areas[:, 0].T,
        "auprc": areas[:, 1].T,
    }


def classification_figures(truth: Array, probabilities: Array, weights: Array) -> dict[str, Array]:
    """Accuracy, balanced accuracy, macro F1, AUROC, AUPRC and ECE [R] of probabilities [N, K], classes int [N].

    With two classes AUROC and AUPRC are those of the second; with more, the mean over the classes present,
    each against all others. Balanced accuracy is the mean recall of the classes present, as in scikit-learn. ECE is
    how far accuracy and the probability of the chosen class are apart, on average over tenths of that probability.
    """
    each, total = _by_class(truth, probabilities, weights), weights.sum(axis=1)
    scored = slice(1, None) if probabilities.shape[1] == 2 else slice(None)
    right, sure, level = _confidence(truth, probabilities)
    apart = np.abs(weights @ (np.eye(CONFIDENCES)[level] * (sure - right)[:, None])).sum(axis=1)
    return {
        "accuracy": _share(weights @ right, total),
        "balanced_accuracy": mean_known(each["recall"]),
        "macro_f1": mean_known(each["f1"]),
        "auroc": mean_known(each["auroc"][:, scored]),
        "auprc": mean_known(each["auprc"][:, scored]),
        "ece": _share(apart, total),
    }


def _confidence(truth: Array, probabilities: Array) -> tuple[Array, Array, Array]:
    """Whether the chosen class is right [N], its probability [N], and which of `CONFIDENCES` equal bins holds that."""
    sure = probabilities.max(axis=1, initial=0.0)
    level = np.clip((sure * CONFIDENCES).astype(int), 0, CONFIDENCES - 1)
    return (probabilities.argmax(axis=1) == truth).astype(float), sure, level


def interval_figures(truth: Array, limits: Array, weights: Array) -> dict[str, Array]:
    """Share of the truths inside their limits [N, 2], and the mean width in the target's units, [R]."""
    inside = (limits[:, 0] <= truth) & (truth <= limits[:, 1])
    total = weights.sum(axis=1)
    return {
        "coverage": _share(weights @ inside.astype(float), total),
        "width": _share(weights @ (limits[:, 1] - limits[:, 0]), total),
    }


def measured(measure: Measure, truth: Array, predicted: Array) -> dict[str, float]:
    """Figures of the samples as they are."""
    found = measure(truth, predicted, np.ones((1, len(truth))))
    return {name: float(values[0]) for name, values in found.items()}


regression_metrics = partial(measured, regression_figures)

classification_metrics = partial(measured, classification_figures)


def per_class(truth: Array, probabilities: Array, labels: Sequence[str]) -> dict[str, tuple[int, dict[str, float]]]:
    """Of every class the number of samples, precision, recall, F1, AUROC and AUPRC; NaN where undefined."""
    found = _by_class(truth, probabilities, np.ones((1, len(truth))))
    return {
        label: (int((truth == k).sum()), {name: float(values[0, k]) for name, values in found.items()})
        for k, label in enumerate(labels)
    }


def reliability(truth: Array, probabilities: Array) -> dict[str, tuple[int, dict[str, float]]]:
    """Samples, mean probability of the chosen class and accuracy, by tenths of that probability."""
    right, sure, level = _confidence(truth, probabilities)
    return {
        f"{number / CONFIDENCES:.1f} to {(number + 1) / CONFIDENCES:.1f}": (
            int((level == number).sum()),
            {"confidence": float(sure[level == number].mean()), "accuracy": float(right[level == number].mean())},
        )
        for number in np.unique(level).tolist()
    }


def auroc(positive: Array, score: Array) -> float:
    """Share of positive-negative pairs that the score puts in order, ties counting half; NaN if no pair."""
    return float(_areas(positive, score, np.ones((1, len(score))))[0][0])


def pearson(first: Array, second: Array) -> float:
    """Correlation of two vectors; NaN when one is constant."""
    return float(_correlation(first, second, np.ones((1, len(first))))[0])


def levels_of(values: Array) -> list[Any]:
    """The distinct values, numbers in numeric order even where they are text."""

    def place(level: Any) -> tuple[bool, float, str]:
        number = str(level).replace(".", "", 1).removeprefix("-")
        return (False, float(level), "") if number.isdecimal() else (True, 0.0, str(level))

    return sorted(np.unique(values), key=place)
