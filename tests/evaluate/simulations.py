"""Simulated studies without signal, or with a known share of it, on which the statistics of reports
are checked.

Learners of `two_learners`, and the one of `called_better`, are fitted anew in each of five folds;
other predictions are drawn as they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.stats import norm

from aam.evaluate import conformal, intervals, metrics
from aam.evaluate.comparison import SIGNIFICANT
from aam.evaluate.hypothesis_tests import paired_p, permutation_p
from aam.evaluate.predictions import TargetPredictions
from tests.evaluate.simulated import predictions_of, scored

LABELS = {0: (), 2: ("no", "yes")}
# Metric, its value, samples, positives.
EDGES = (
    ("accuracy", 0.9, 10, 5),
    ("accuracy", 0.9, 20, 10),
    ("accuracy", 0.9, 40, 20),
    ("accuracy", 0.95, 40, 20),
    ("accuracy", 0.98, 100, 50),
    ("auroc", 0.92, 10, 5),
    ("auroc", 0.92, 20, 10),
    ("auroc", 0.92, 40, 20),
    ("auroc", 0.92, 100, 5),
    ("auroc", 0.76, 200, 10),
)


def paired_false_positives(studies: int, key: str, groups: int, dominant: bool = False) -> float:
    """Return how often the paired test tells two equally good predictions apart, whose unequal
    groups share errors.

    If `dominant`, one group has half of all samples, and each prediction has an error of its own
    for each group.
    """
    draw = np.random.default_rng([groups, len(key)])
    called = 0
    for study in range(studies):
        sizes = draw.integers(1, 9, groups)
        sizes[0] = sizes[1:].sum() if dominant else sizes[0]
        unit = np.repeat(np.arange(groups), sizes)
        size = len(unit)
        shared, model, other = draw.normal(size=(3, groups))[:, unit] * (
            1 + dominant
        ) + draw.normal(size=(3, size))
        if key == "mae":
            truth, values = np.zeros(size), (shared + model, shared + other)
        else:
            truth = draw.integers(2, size=groups)[unit]
            scores = [
                1 / (1 + np.exp(-(2 * truth - 1) - shared - values)) for values in (model, other)
            ]
            values = tuple(np.stack([1 - score, score], axis=1) for score in scores)
        given = predictions_of(truth, values[0], LABELS[0 if key == "mae" else 2], groups=unit)
        called += paired_p(given, values[1], key, study) <= SIGNIFICANT
    return called / studies


def edge_study(
    draw: np.random.Generator, key: str, value: float, samples: int, positives: int
) -> TargetPredictions:
    """Return predictions whose expected accuracy or AUROC is such a value, of so many samples."""
    truth = (np.arange(samples) < positives).astype(np.int64)
    if key == "accuracy":
        score = np.where(draw.random(samples) < value, truth, 1 - truth).astype(np.float64)
    else:
        score = norm.cdf(draw.normal(size=samples) + np.sqrt(2) * norm.ppf(value) * truth)
    return scored(truth, score)


def edge_coverage(
    studies: int, key: str, value: float, samples: int, positives: int
) -> tuple[float, float]:
    """Return how often the interval of accuracy or AUROC holds the value that predictions have, and
    the least width.
    """
    draw, limits = np.random.default_rng([samples, positives]), []
    for study in range(studies):
        given = edge_study(draw, key, value, samples, positives)
        measure = None if key == "accuracy" else ranked_auroc
        found = intervals.resample_metrics(given, study, 500, measure)
        one = intervals.intervals(given, {key: found[key]}, study)[key]
        limits.append((one.low, one.high))
    low, high = np.transpose(limits)
    return float(np.mean((low <= value) & (value <= high))), float(np.min(high - low))


def ranked_auroc(
    truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """The AUROC alone, which is faster than all metrics."""
    return {"auroc": metrics.weighted_auroc(truth == 1, predicted[:, 1], weights)}


# n, positives, groups that share a class (none: each sample is one).
CHANCE_STUDIES = ((300, 15, None), (200, 20, None), (100, 50, None), (300, 15, 60), (200, 40, 40))


def labelled_study(
    draw: np.random.Generator, samples: int, positives: int, groups: int | None
) -> tuple[TargetPredictions, np.ndarray]:
    """Return samples in five folds of whole groups, which share a class, and 30 numbers of each
    that say nothing.
    """
    units = groups or samples
    unit = np.arange(samples) * units // samples
    case = draw.permutation(units) < round(positives * units / samples)
    inputs = draw.normal(size=(samples, 30))
    if groups:
        inputs += 0.7 * draw.normal(size=(units, 30))[unit]
    fold, truth = (draw.permutation(units) % 5)[unit], case[unit].astype(np.int64)
    given = scored(truth, np.full(samples, 0.5), fold=fold, groups=unit if groups else None)
    return given, inputs


def called_better(
    studies: int, samples: int, positives: int, groups: int | None, shift: float = 0.0
) -> float:
    """Return how often a learner of noise is called better than chance or, with a `shift`, fixed
    scores are.

    The learner is the mean of one class minus that of the other, of all learners the one whose
    folds share most.
    """
    draw, called = np.random.default_rng([samples, positives]), 0
    for study in range(studies):
        given, inputs = labelled_study(draw, samples, positives, groups)
        score = draw.normal(size=samples) + shift * given.truth
        for test in (given.fold == fold for fold in range(0 if shift else 5)):
            centre = given.truth[~test] - given.truth[~test].mean()
            score[test] = inputs[test] @ (centre @ inputs[~test])
        probability = norm.cdf(score / score.std())
        given = replace(given, predicted=np.stack([1 - probability, probability], axis=1))
        called += permutation_p(given, study, 499) <= SIGNIFICANT
    return called / studies


def _ridge(inputs: np.ndarray, truth: np.ndarray, new: np.ndarray) -> np.ndarray:
    mean = inputs.mean(axis=0)
    centred = inputs - mean
    dual = np.linalg.solve(centred @ centred.T + 30 * np.eye(len(truth)), truth - truth.mean())
    return (new - mean) @ (centred.T @ dual) + truth.mean()


def two_learners(
    draw: np.random.Generator, groups: int, signal: float, classes: bool = False
) -> tuple[TargetPredictions, np.ndarray]:
    """Return what two ridge regressions predict in five folds, each from its own equally noisy view
    of the samples.

    With `classes` they regress the indicator of a number above 0, which is their probability of the
    second class.
    """
    unit = np.repeat(np.arange(groups), 100 // groups)
    size, width = len(unit), 30
    hidden = draw.normal(size=(size, width)) + draw.normal(size=(groups, width))[unit]
    truth = signal * hidden @ draw.normal(size=width) / np.sqrt(width)
    truth += 0.7 * draw.normal(size=groups)[unit] + 0.7 * draw.normal(size=size)
    truth = (truth > 0).astype(np.int64) if classes else truth
    views = hidden + 0.7 * draw.normal(size=(2, size, width))
    fold, predicted = draw.permutation(np.arange(groups) % 5)[unit], np.empty((2, size))
    for test in (fold == number for number in range(5)):
        for view, values in zip(views, predicted, strict=True):
            values[test] = _ridge(view[~test], truth[~test], view[test])
    model, other = np.stack([1 - predicted, predicted], axis=2) if classes else predicted
    return predictions_of(truth, model, LABELS[2 if classes else 0], fold=fold, groups=unit), other


def learners_false_positives(
    studies: int, groups: int, signal: float, key: str = "mae"
) -> tuple[float, float]:
    """Return how often two learners that are equally good are told apart, and how often if folds
    shared nothing.

    `key` is mae, accuracy or auroc, which is another metric without folds.
    """
    draw, rejected, naive = np.random.default_rng(groups), 0, 0
    for study in range(studies):
        given, other = two_learners(draw, groups, signal, classes=key != "mae")
        rejected += paired_p(given, other, key, study) <= SIGNIFICANT
        naive += paired_p(replace(given, fold=None), other, key, study) <= SIGNIFICANT
    return rejected / studies, naive / studies


def study_with_errors(draw: np.random.Generator, groups: int, dominant: bool) -> TargetPredictions:
    """Return predictions of unequal groups with an error of their own and errors that grow with the
    prediction.
    """
    sizes = draw.integers(1, 12, groups)
    if dominant:
        sizes[draw.integers(groups)] = 3 * sizes.sum()
    group = np.repeat(np.arange(groups), sizes)
    shared, mean = draw.normal(size=(2, groups))[:, group]
    predicted = mean + draw.normal(size=len(group))
    error = 0.7 * shared + 0.7 * draw.standard_t(5, size=len(group))
    return predictions_of(predicted + np.exp(predicted / 2) * error, predicted, groups=group)


# Sizes of groups, spread of their scales (of its logarithm), shared error, noise.
ERROR_SHAPES = {
    "equal": ("equal", 0.0, 0.7, "normal"),
    "unequal": ("lognormal", 0.0, 0.7, "normal"),
    "single": ("single", 0.0, 0.0, "t"),
    "scales": ("uniform", 0.3, 0.7, "normal"),
    "skewed": ("uniform", 0.0, 0.7, "gamma"),
    "shared": ("equal", 0.0, 2.0, "normal"),
}


def error_study(draw: np.random.Generator, groups: int, shape: str) -> TargetPredictions:
    """Return predictions of a number for groups of a shape of `ERROR_SHAPES`."""
    size, spread, shared, kind = ERROR_SHAPES[shape]
    sizes = {
        "equal": np.full(groups, 8),
        "single": np.ones(groups, int),
        "uniform": draw.integers(2, 14, groups),
        "lognormal": np.maximum(1, np.exp(1.5 + 0.6 * draw.normal(size=groups))).astype(int),
    }[size]
    group = np.repeat(np.arange(groups), sizes)
    samples = len(group)
    noise = {
        "normal": lambda: draw.normal(size=samples),
        "t": lambda: draw.standard_t(5, samples),
        "gamma": lambda: draw.gamma(1, 1, samples) - 1,
    }[kind]()
    scale = np.exp(spread * draw.normal(size=groups))[group]
    error = scale * (shared * draw.normal(size=groups)[group] + noise)
    truth = 2 * draw.normal(size=groups)[group] + 1.5 * draw.normal(size=samples)
    return predictions_of(truth, truth + 0.8 * error, groups=group)


def error_coverage(
    studies: int, groups: int, shape: str, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return how often the intervals of errors hold the error of so many groups' population, and
    their median width.
    """
    population = error_study(np.random.default_rng(1), 200_000, shape)
    values = metrics.regression_metrics(population.truth, population.predicted)
    draw, names = np.random.default_rng([seed, groups]), ("mae", "rmse", "r2")
    limits = [
        intervals.error_intervals(error_study(draw, groups, shape), study, 500)
        for study in range(studies)
    ]
    found = {name: np.array([one[name] for one in limits]) for name in names}
    return {
        name: (
            float(
                np.mean((found[name][:, 0] <= values[name]) & (values[name] <= found[name][:, 1]))
            ),
            float(np.median(np.diff(found[name]))),
        )
        for name in names
    }


def fold_error_coverage(studies: int, groups: int, samples: int, signal: float) -> dict[str, float]:
    """Return how often the intervals of a cross-validation hold the error of the models of its five
    folds, weighted by their samples, on 5,000 new groups.
    """

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        unit = np.repeat(np.arange(count), samples)
        hidden = draw.normal(size=(len(unit), 30)) + draw.normal(size=(count, 30))[unit]
        truth = signal * hidden.mean(axis=1) * np.sqrt(30)
        truth += 0.7 * draw.normal(size=count)[unit] + 0.7 * draw.normal(size=len(unit))
        return hidden + 0.7 * draw.normal(size=hidden.shape), truth, unit

    draw, held = np.random.default_rng([groups, samples]), []
    new_inputs, new_truth, _ = drawn(5_000)
    for study in range(studies):
        inputs, truth, unit = drawn(groups)
        fold, predicted = draw.permutation(np.arange(groups) % 5)[unit], np.empty(len(unit))
        absolute = squared = 0.0
        for test in (fold == number for number in range(5)):
            predicted[test] = _ridge(inputs[~test], truth[~test], inputs[test])
            error = _ridge(inputs[~test], truth[~test], new_inputs) - new_truth
            absolute += test.mean() * np.abs(error).mean()
            squared += test.mean() * (error**2).mean()
        values = {"mae": absolute, "rmse": squared**0.5, "r2": 1 - squared / new_truth.var()}
        given = predictions_of(truth, predicted, fold=fold, groups=unit)
        limits = intervals.error_intervals(given, study, 500)
        held.append([limits[name][0] <= value <= limits[name][1] for name, value in values.items()])
    return dict(zip(values, np.mean(held, axis=0).tolist(), strict=True))


def conformal_coverage(studies: int, groups: int, dominant: bool) -> float:
    """Return what share of new groups the intervals of so many groups hold."""
    draw, held = np.random.default_rng(groups + dominant), []
    for _ in range(studies):
        fit = conformal.Conformal.fit(study_with_errors(draw, groups, dominant))
        new = study_with_errors(draw, 100, dominant=False)
        limits = fit.limits(new.predicted)
        inside = (limits[:, 0] <= new.truth) & (new.truth <= limits[:, 1])
        held.append(np.average(inside, weights=(1 / np.bincount(new.groups))[new.groups]))
    return float(np.mean(held))
