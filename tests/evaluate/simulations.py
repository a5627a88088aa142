"""Simulated studies without signal, or with a known share of it, on which the statistics of reports are checked.

``python -m tests.evaluate.simulations TABLE --studies 2000`` prints one table.
``null`` and ``learned`` divide the samples of a simulated table into folds and predict a target of pure noise with the
presence kernel that `aam train --members presence` fits: the mean of a ranking metric is that of chance, its 95 %
interval covers chance, and nothing is called better. ``learners`` cross-validates two ridge regressions of
numbers, or of classes, that are equally good. ``paired`` and ``conformal`` draw predictions as they are. ``edge``
is the coverage of intervals of shares near 1 or of few positives; ``chance`` and ``power`` how often a learner of
noise, fitted anew in each of five folds, and predictions of AUROC .75 are called better than chance.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import norm

from aam.config import DataConfig
from aam.config_commands import SimulateConfig
from aam.data.simulate import simulate
from aam.data.splits import kfold
from aam.data.study import Study, load_study
from aam.evaluate import comparison, intervals, metrics
from aam.evaluate.comparison import SIGNIFICANT, compare_with_baselines, headline, outcome, paired_p
from aam.evaluate.target_predictions import TargetPredictions
from aam.predict.baselines import Fold, Task, trivial_baselines
from aam.predict.features import Inputs, Samples, fit_features
from aam.predict.linear import Linear

DEPTH = 500
LABELS = {0: (), 2: ("no", "yes"), 3: ("low", "middle", "high")}
# Metric, its value, samples, positives.
EDGES = (
    ("accuracy", 0.9, 10, 5), ("accuracy", 0.9, 20, 10), ("accuracy", 0.9, 40, 20), ("accuracy", 0.95, 40, 20),
    ("accuracy", 0.98, 100, 50), ("auroc", 0.92, 10, 5), ("auroc", 0.92, 20, 10), ("auroc", 0.92, 40, 20),
    ("auroc", 0.92, 100, 5), ("auroc", 0.76, 200, 10),
)  # fmt: skip
CHANCE = {"auroc": 0.5, "pearson": 0.0, "spearman": 0.0}


@cache
def simulated_table(samples: int) -> tuple[Study, Inputs]:
    """Return a simulated study and the presence of its ASVs in one rarefaction."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "study"
        simulate(SimulateConfig(output_dir=output, samples=samples, asvs=200, length=50, depth=3000))
        study = load_study(DataConfig(table=output / "table.biom", rarefy_depth=DEPTH), None, 0)
    samples = Samples.rarefied(study, np.arange(len(study.table.sample_ids)), [0])
    return study, Inputs.of(fit_features(Linear().features, samples), samples)


def null_target(seed: int, classes: int, samples: int, groups: int, folds: int) -> tuple[TargetPredictions, Task]:
    """Return held-out predictions of a target of noise, and what its baselines learn from.

    The target is one value for each group, as diagnosis is; groups are unequal (of one sample each where there are as
    many as samples) and the folds are drawn anew. Baselines know neither depth nor richness: the constant is left.
    """
    study, X = simulated_table(samples)
    ids = study.table.sample_ids
    draw = np.random.default_rng([seed, classes, samples, groups, folds])
    more = draw.choice(groups, len(ids) - groups, p=draw.dirichlet(np.full(groups, 3.0)))
    unit = draw.permutation(np.append(np.arange(groups), more))
    truth = (draw.integers(classes, size=groups) if classes else draw.normal(size=groups))[unit]
    names, place = [f"group {one}" for one in unit], {name: row for row, name in enumerate(ids)}
    predicted, fold = np.empty((len(ids), max(classes, 1))), np.empty(len(ids), np.int64)
    for number, split in enumerate(kfold(ids, folds, names, validation_size=0.0, seed=seed)):
        train, test = (np.array([place[name] for name in split.ids(subset)]) for subset in ("train", "test"))
        learner = Linear(classes, seed).fit(X[train], truth[train].astype(np.float64), groups=[names[r] for r in train])
        predicted[test] = learner.outputs(X[test])
        fold[test] = number
    masks = [Fold(fold != number, fold == number) for number in range(folds)]
    same = np.ones(len(ids), np.int64)
    values = predicted if classes else predicted[:, 0]
    given = TargetPredictions(ids, truth, values, LABELS[classes], fold=fold, groups=unit)
    return given, Task(truth, LABELS[classes], tuple(masks), same, same)


def null_ranking(studies: int, classes: int, samples: int, groups: int, folds: int = 5) -> dict[str, float]:
    """Return the mean of the headline ranking metric of null targets, its standard error, and how often its interval
    covers chance."""
    name = "auroc" if classes else "pearson"
    areas = []
    for seed in range(studies):
        values = intervals.metrics_with_intervals(null_target(seed, classes, samples, groups, folds)[0], seed)
        areas.append((values[name], values[name + "_pooled"].value))
    defined = [(one, pooled) for one, pooled in areas if not np.isnan(one.low)]
    mean = np.array([one.value for one, _ in defined])
    covers = np.mean([one.low <= CHANCE[name] <= one.high for one, _ in defined])
    return {
        "targets": len(defined),
        "mean": float(mean.mean()),
        "standard error": float(mean.std(ddof=1) / np.sqrt(len(mean))),
        "pooled mean": float(np.nanmean([pooled for _, pooled in defined])),
        "intervals that cover chance": float(covers),
    }


def learned_false_positives(studies: int, classes: int, groups: int, samples: int = 100) -> dict[str, float]:
    """Return how often a model of a null target is called better than the constant, or worse."""
    key, outcomes = headline(LABELS[classes]), []
    for seed in range(studies):
        given, task = null_target(seed, classes, samples, groups, min(5, groups // 2))
        (one,) = compare_with_baselines(given.complete(), trivial_baselines(task), seed, repeats=2)
        outcomes.append(outcome(one, one, key))
    return {"studies": studies} | {name: outcomes.count(name) / studies for name in ("better", "worse", "untested")}


def paired_false_positives(studies: int, key: str, groups: int, dominant: bool = False) -> dict[str, float]:
    """Return how often the paired test tells two equally good predictions apart, whose unequal groups share errors.

    If `dominant`, one group has half of all samples, and each prediction has an error of its own for each group.
    """
    draw = np.random.default_rng([groups, len(key)])
    called = 0
    for study in range(studies):
        sizes = draw.integers(1, 9, groups)
        sizes[0] = sizes[1:].sum() if dominant else sizes[0]
        unit = np.repeat(np.arange(groups), sizes)
        size = len(unit)
        shared, model, other = draw.normal(size=(3, groups))[:, unit] * (1 + dominant) + draw.normal(size=(3, size))
        ids, labels = tuple(map(str, range(size))), LABELS[0 if key == "mae" else 2]
        if key == "mae":
            truth, values = np.zeros(size), (shared + model, shared + other)
        else:
            truth = draw.integers(2, size=groups)[unit]
            scores = [1 / (1 + np.exp(-(2 * truth - 1) - shared - values)) for values in (model, other)]
            values = tuple(np.stack([1 - score, score], axis=1) for score in scores)
        given = TargetPredictions(ids, truth, values[0], labels, groups=unit)
        called += paired_p(given, values[1], key, study) <= SIGNIFICANT
    return {"studies": studies, "told apart": called / studies}


def edge_study(draw: np.random.Generator, key: str, value: float, samples: int, positives: int) -> TargetPredictions:
    """Return predictions whose expected accuracy or AUROC is such a value, of so many samples."""
    truth = (np.arange(samples) < positives).astype(np.int64)
    if key == "accuracy":
        score = np.where(draw.random(samples) < value, truth, 1 - truth).astype(np.float64)
    else:
        score = norm.cdf(draw.normal(size=samples) + np.sqrt(2) * norm.ppf(value) * truth)
    return TargetPredictions(tuple(map(str, range(samples))), truth, np.stack([1 - score, score], axis=1), LABELS[2])


def edge_coverage(studies: int, key: str, value: float, samples: int, positives: int) -> dict[str, float]:
    """Return how often the interval of accuracy or AUROC holds the value that predictions have, and how wide it is."""
    draw, limits = np.random.default_rng([samples, positives]), []
    for study in range(studies):
        given = edge_study(draw, key, value, samples, positives)
        found = intervals.resample_metrics(
            given.measure if key == "accuracy" else ranked_auroc, given.truth, given.predicted, given.resampling_units,
            study, 500,
        )  # fmt: skip
        one = intervals.intervals(given, {key: found[key]})[key]
        limits.append((one.low, one.high))
    low, high = np.transpose(limits)
    return {
        "studies": studies,
        "coverage": float(np.mean((low <= value) & (value <= high))),
        "mean width": float(np.mean(high - low)),
        "smallest width": float(np.min(high - low)),
    }


def ranked_auroc(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """The AUROC alone, which is faster than all metrics."""
    return metrics.weighted_auroc(truth == 1, predicted[:, 1], weights)


# n, positives, groups that share a class (none: each sample is one).
CHANCE_STUDIES = ((300, 15, None), (200, 20, None), (100, 50, None), (300, 15, 60), (200, 40, 40))


def labelled_study(
    draw: np.random.Generator, samples: int, positives: int, groups: int | None
) -> tuple[TargetPredictions, np.ndarray]:
    """Return samples in five folds of whole groups, which share a class, and 30 numbers of each that say nothing."""
    units = groups or samples
    unit = np.arange(samples) * units // samples
    case = draw.permutation(units) < round(positives * units / samples)
    inputs = draw.normal(size=(samples, 30))
    if groups:
        inputs += 0.7 * draw.normal(size=(units, 30))[unit]
    fold, truth = (draw.permutation(units) % 5)[unit], case[unit].astype(np.int64)
    given = TargetPredictions(
        tuple(map(str, range(samples))), truth, np.full((samples, 2), 0.5), LABELS[2], fold=fold,
        groups=unit if groups else None,
    )  # fmt: skip
    return given, inputs


def called_better(studies: int, samples: int, positives: int, groups: int | None, shift: float = 0.0) -> float:
    """Return how often a learner of noise is called better than chance or, with a `shift`, fixed scores are.

    The learner is the mean of one class minus that of the other, of all learners the one whose folds share most.
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
        called += comparison.permutation_p(given, study, 499) <= SIGNIFICANT
    return called / studies


def _ridge(inputs: np.ndarray, truth: np.ndarray, new: np.ndarray) -> np.ndarray:
    mean = inputs.mean(axis=0)
    centred = inputs - mean
    dual = np.linalg.solve(centred @ centred.T + 30 * np.eye(len(truth)), truth - truth.mean())
    return (new - mean) @ (centred.T @ dual) + truth.mean()


def two_learners(
    draw: np.random.Generator, groups: int, signal: float, classes: bool = False
) -> tuple[TargetPredictions, np.ndarray]:
    """Return what two ridge regressions predict in five folds, each from its own equally noisy view of the samples.

    With `classes` they regress the indicator of a number above 0, which is their probability of the second class.
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
    ids = tuple(map(str, range(size)))
    model, other = np.stack([1 - predicted, predicted], axis=2) if classes else predicted
    return TargetPredictions(ids, truth, model, LABELS[2 if classes else 0], fold=fold, groups=unit), other


def learners_false_positives(studies: int, groups: int, signal: float, key: str = "mae") -> dict[str, float]:
    """Return how often two learners that are equally good are told apart, and how often if folds shared nothing.

    `key` is mae, accuracy or auroc; AUROC without folds is another metric, so that only the first is given.
    """
    draw, rejected, naive = np.random.default_rng(groups), 0, 0
    for study in range(studies):
        given, other = two_learners(draw, groups, signal, classes=key != "mae")
        rejected += paired_p(given, other, key, study) <= SIGNIFICANT
        if key != "auroc":
            naive += paired_p(replace(given, fold=None), other, key, study) <= SIGNIFICANT
    rates = {"studies": studies, "told apart": rejected / studies}
    return rates if key == "auroc" else {**rates, "as if predictions were fixed": naive / studies}


def study_with_errors(draw: np.random.Generator, groups: int, dominant: bool) -> TargetPredictions:
    """Return predictions of unequal groups with an error of their own and errors that grow with the prediction."""
    sizes = draw.integers(1, 12, groups)
    if dominant:
        sizes[draw.integers(groups)] = 3 * sizes.sum()
    group = np.repeat(np.arange(groups), sizes)
    shared, mean = draw.normal(size=(2, groups))[:, group]
    predicted = mean + draw.normal(size=len(group))
    error = 0.7 * shared + 0.7 * draw.standard_t(5, size=len(group))
    ids = tuple(map(str, range(len(group))))
    return TargetPredictions(ids, predicted + np.exp(predicted / 2) * error, predicted, groups=group)


def conformal_coverage(studies: int, groups: int, dominant: bool) -> dict[str, float]:
    """Return what share of new groups the intervals of so many groups hold, and how far studies differ in it."""
    draw, held = np.random.default_rng(groups + dominant), []
    for _ in range(studies):
        fit = intervals.Conformal.fit(study_with_errors(draw, groups, dominant))
        new = study_with_errors(draw, 100, dominant=False)
        limits = fit.limits(new.predicted)
        inside = (limits[:, 0] <= new.truth) & (new.truth <= limits[:, 1])
        held.append(np.average(inside, weights=(1 / np.bincount(new.groups))[new.groups]))
    return {"studies": studies, "coverage": float(np.mean(held)), "standard deviation": float(np.std(held))}


def tables(name: str, studies: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Return the rows of one table, each with its title."""
    if name == "null":
        for classes in (2, 0):
            for samples, groups in ((100, 100), (100, 40), (240, 240)):
                title = f"{classes or 'no'} classes, {samples} samples, {groups} groups"
                yield title, null_ranking(studies, classes, samples, groups)
    if name == "learned":
        for classes in (0, 2, 3):
            for groups in (6, 10, 20, 40):
                yield f"{headline(LABELS[classes])}, {groups} groups", learned_false_positives(studies, classes, groups)
    if name == "learners":
        for key, counts in {"mae": (10, 20, 50), "accuracy": (20, 40), "auroc": (20, 40)}.items():
            for signal in (0.0, 0.5, 2.0):
                for groups in counts:
                    title = f"{key}, signal {signal:g}, {groups} groups"
                    yield title, learners_false_positives(studies, groups, signal, key)
    if name == "paired":
        for key in ("mae", "accuracy", "auroc"):
            for groups in (6, 10, 20, 40):
                yield f"{key}, {groups} groups", paired_false_positives(studies, key, groups)
        yield "auroc, 20 groups, one with half of all samples", paired_false_positives(studies, "auroc", 20, True)
    if name == "edge":
        for key, value, samples, positives in EDGES:
            title = f"{key} {value:g}, {samples} samples, {positives} positive"
            yield title, edge_coverage(studies, key, value, samples, positives)
    if name == "chance":
        for cell in CHANCE_STUDIES:
            yield str(cell), {"called better": called_better(studies, *cell)}
    if name == "power":
        for cell in CHANCE_STUDIES[:3]:
            yield str(cell), {"called better": called_better(studies, *cell, shift=np.sqrt(2) * norm.ppf(0.75))}
    if name == "conformal":
        for dominant in (False, True):
            for groups in (20, 40, 80):
                title = f"{groups} groups{', one of them with most samples' if dominant else ''}"
                yield title, conformal_coverage(studies, groups, dominant)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "table", choices=("null", "learned", "learners", "paired", "edge", "chance", "power", "conformal")
    )
    parser.add_argument("--studies", type=int, default=1000)
    chosen = parser.parse_args()
    for title, row in tables(chosen.table, chosen.studies):
        print(f"{title}: " + ", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
