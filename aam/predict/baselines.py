"""Baselines: what a report compares a model with on the splits of its study."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn import ensemble
from sklearn.base import clone
from sklearn.neighbors import KNeighborsRegressor

from aam.data.loader import distances_of
from aam.data.rarefaction import rarefied_richness
from aam.data.splits import Split
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.evaluate import comparison, predictions
from aam.evaluate.comparison import Baseline
from aam.evaluate.metrics import auroc
from aam.evaluate.predictions import Columns, PredictionTable
from aam.io.metadata import Metadata
from aam.options import not_none
from aam.predict.blend import DESCRIPTIONS, MEMBERS
from aam.predict.estimator import CountsEstimator, Samples
from aam.typing import Array, Bools, Floats

log = logging.getLogger("aam")

# Members of a blend that are baselines when they predict alone.
IN_BLEND = {DESCRIPTIONS[name]: name for name in MEMBERS}

BOOSTING, NEIGHBOURS = "gradient boosting", "nearest neighbours on UniFrac"

# What q2-sample-classifier 2024.10 fits by default: scikit-learn's forest of 100 trees.
FIELD_DEFAULT = "random forest on counts, as q2-sample-classifier"

# Distances between more samples would fill the memory.
MAX_NEIGHBOUR_SAMPLES = 20_000
NEIGHBOUR_COUNT = 10

# Trees of the forest on a few columns.
TREES = 100


class Fold(NamedTuple):
    """Samples that a baseline learns from and those that it is scored on, masks [N]."""

    train: Bools
    test: Bools


@dataclass(frozen=True, eq=False)
class Task:
    """Data of one target that baselines may use.

    Attributes
    ----------
    truth : float64 or int64 [N]
        Numbers, NaN if missing; or indices of classes, negative if missing.
    labels : tuple of str
    folds : sequence of Fold
    depth, richness : int64 [N]
        Reads before rarefaction, and ASVs after it.
    levels : dict of str to str [N]
        Columns whose own median or classes are a baseline.
    groups, studies : str [N], optional
    covariates : float64 [N, C]
    samples : Samples [N], optional
        What estimators read.
    """

    truth: Array
    labels: tuple[str, ...]
    folds: Sequence[Fold]
    depth: Array
    richness: Array
    levels: Mapping[str, Array] = field(default_factory=dict)
    groups: Array | None = None
    studies: Array | None = None
    covariates: Array | None = None
    samples: Samples | None = None

    @property
    def known(self) -> Array:
        """Whether the truth of each sample is known, [N]."""
        return self.truth >= 0 if self.labels else np.isfinite(self.truth)

    @property
    def units(self) -> Array:
        """The group of each sample, or the sample, [N]."""
        return np.arange(len(self.truth)) if self.groups is None else self.groups

    def empty(self, rows: int) -> Array:
        """Missing predictions [rows] or [rows, K]."""
        return np.full((rows, len(self.labels)) if self.labels else rows, math.nan)

    def predictions(self, predict: Predictor) -> Array:
        """Predictions of the held-out samples of all folds, [N] or [N, K]."""
        result = self.empty(len(self.truth))
        for fold in self.folds:
            train, test = np.flatnonzero(fold.train & self.known), np.flatnonzero(fold.test)
            if len(train):
                result[test] = predict(self, train, test)
        return result


# Predictions of the test samples, given a task and the rows to learn from and to predict.
Predictor = Callable[[Task, Array, Array], Array]


def covariate_matrix(metadata: Metadata, columns: Columns, ids: Sequence[str]) -> Array:
    """Covariates of samples, float64 [N, C], whose city-block distance is that of Gower (1971).

    Two categories of a column, and its smallest and largest number, are 1 apart; a missing number
    is half a column from any other. The distance of two samples is the mean over the columns.
    """
    blocks = [np.zeros((len(ids), 0))]
    for name in columns.categorical:
        values = np.array([value or "" for value in metadata.values(name, ids)])
        blocks.append((values[:, None] == np.unique(values)) / 2)
    for name in columns.numeric:
        numbers = metadata.numbers(name, ids)
        missing = np.isnan(numbers)
        low, high = (0.0, 0.0) if missing.all() else (np.nanmin(numbers), np.nanmax(numbers))
        scaled = np.where(missing, 0.5, (numbers - low) / (high - low if high > low else 1.0))
        blocks.append(np.stack([scaled, missing / 2], axis=1))
    return np.concatenate(blocks, axis=1) / max(len(columns.covariates), 1)


# --- baselines that do not look at ASVs ---------------------------------------------------------


def _constant(task: Task, train: Array, test: Array) -> Array:
    """The median or the most frequent class of the training samples."""
    return predictions.guess(task.truth[train], len(task.labels))


def _of_level(levels: Array, task: Task, train: Array, test: Array) -> Array:
    """The median or class shares of the training samples of each test sample's own level."""
    result = task.empty(len(test))
    for level in np.unique(levels[test]):
        truth = task.truth[train[levels[train] == level]]
        if len(truth):
            counts = np.bincount(truth, minlength=len(task.labels)) if task.labels else None
            value = np.median(truth) if counts is None else counts / len(truth)
            result[levels[test] == level] = value
    return result


def _forest(
    inputs: Array, options: Mapping[str, Any], task: Task, train: Array, test: Array
) -> Array:
    """Predictions of a random forest on `inputs` [N, P]; `options` are those of scikit-learn."""
    kind = ensemble.RandomForestClassifier if task.labels else ensemble.RandomForestRegressor
    model = kind(TREES, **options)
    model.fit(inputs[train], task.truth[train])
    if not task.labels:
        return np.asarray(model.predict(inputs[test]))
    result = np.zeros((len(test), len(task.labels)))
    result[:, model.classes_] = model.predict_proba(inputs[test])
    return result


def _ordered(values: Array, task: Task, train: Array, test: Array) -> Array:
    """Probabilities of two classes in the order of one value, its direction chosen in training.

    The sigmoid is the same in every fold, so that the pooled AUROC is that of the value itself.
    """
    rising = auroc(task.truth[train] == 1, values[train])
    distance = (values[test] - np.median(values)) * (-1 if rising < 0.5 else 1)
    second = 1 / (1 + np.exp(-distance))
    return np.stack([1 - second, second], axis=1)


def trivial_baselines(task: Task, seed: int = 0) -> tuple[Baseline, ...]:
    """Baselines that do not look at which ASVs a sample has.

    The median or majority class; covariates; sequencing depth and richness, together and each
    alone; the median or class shares of the sample's own level of each column of `task.levels`. A
    value that is the same in all samples, and a level that training lacks, give no baseline.
    """
    guessed, two = comparison.MAJORITY if task.labels else comparison.MEDIAN, len(task.labels) == 2
    # Every branching looks at all of a few columns.
    options = {"max_features": 1.0, "random_state": seed}
    wide = {**options, "min_samples_leaf": 10}
    predictors: dict[str, Predictor] = {guessed: _constant}
    if task.covariates is not None and task.covariates.shape[1]:
        predictors[comparison.COVARIATES] = partial(
            _forest, task.covariates, {**options, "min_samples_leaf": 3}
        )
    columns = {comparison.DEPTH: np.log1p(task.depth), comparison.RICHNESS: np.log1p(task.richness)}
    columns = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if len(columns) == 2:
        both = np.stack([*columns.values()], axis=1)
        predictors[comparison.DEPTH_AND_RICHNESS] = partial(_forest, both, wide)
    for name, values in columns.items():
        forest = partial(_forest, values[:, None], wide)
        predictors[name] = partial(_ordered, values) if two else forest
    for column, levels in task.levels.items():
        name = f"the {column}'s {'classes' if task.labels else 'median'}"
        predictors[name] = partial(_of_level, levels)
    predicted = {name: task.predictions(predict) for name, predict in predictors.items()}
    made = {name: v for name, v in predicted.items() if name == guessed or np.isfinite(v).any()}
    return tuple(Baseline(name, values) for name, values in made.items())


# --- estimators ---------------------------------------------------------------------------------


def make_baselines(classes: bool, *parameters: int) -> dict[str, CountsEstimator]:
    """The strong baselines that are estimators on counts, by name.

    `parameters` are depth, passes and seed.
    """
    trees, linear = (MEMBERS[name][0 if classes else 1] for name in ("forest", "presence"))
    return {
        BOOSTING: trees(*parameters, "shares", "boosting"),
        "linear model of log-ratios": linear(*parameters, "clr"),
        DESCRIPTIONS["forest"]: trees(*parameters),
        DESCRIPTIONS["presence"]: linear(*parameters),
    }


def predicted_by_estimator(
    estimator: CountsEstimator, passes: int, task: Task, train: Array, test: Array
) -> Array:
    """Predictions of an estimator; each study that is held out is read relative to its mean."""
    samples = not_none(task.samples)
    whole = [None if names is None else names[train] for names in (task.groups, task.studies)]
    fitted = clone(estimator).fit(samples[train], task.truth[train], *whole)
    result = np.zeros((len(test), max(len(task.labels), 1)))
    columns = fitted.classes_ if task.labels else np.zeros(1, np.int64)
    levels = np.zeros(len(test)) if task.studies is None else task.studies[test]
    for level in np.unique(levels):
        rows = np.flatnonzero(levels == level)
        part = samples[test[rows]]
        model = fitted if task.studies is None else fitted.centred_on(part)
        result[np.ix_(rows, columns)] = model.predict_draws(part, passes).mean(axis=0)
    return result if task.labels else result[:, 0]


def _of_neighbours(distances: Sequence[Floats], task: Task, train: Array, test: Array) -> Array:
    """The mean of the nearest training samples, weighted by one over their distance."""
    target = np.eye(len(task.labels))[task.truth[train]] if task.labels else task.truth[train]
    number = min(NEIGHBOUR_COUNT, len(train))
    model = KNeighborsRegressor(number, metric="precomputed", weights="distance")
    predicted = []
    for distance in distances:
        model.fit(distance[np.ix_(train, train)], target)
        predicted.append(model.predict(distance[np.ix_(test, train)]))
    return np.asarray(np.mean(predicted, axis=0))


def unifrac_distances(study: Study, samples: Samples, passes: int) -> list[Floats]:
    """UniFrac distances between samples in several rarefactions, plus those of their covariates.

    The list is empty without a tree or a matrix.
    """
    if study.metric is None or len(samples) > MAX_NEIGHBOUR_SAMPLES:
        log.info("baseline %s: left out: it needs --tree, a tree of these ASVs", NEIGHBOURS)
        return []
    result = []
    for rarefaction in samples.rarefactions(study.depth, study.seed, passes):
        counts = sparse.csr_matrix(rarefaction.counts.astype(np.int64))
        distance = distances_of(study, counts, study.rows(samples.sample_ids))
        if distance is not None:
            values = np.maximum(distance.numpy(), 0).astype(np.float64)
            result.append(values + cdist(samples.covariates, samples.covariates, "cityblock"))
    return result


def strong_baselines(
    task: Task, study: Study, passes: int, known: Collection[str] = ()
) -> tuple[Baseline, ...]:
    """Held-out predictions of estimators that predict alone, except `known` ones."""
    samples, baselines, predictors = not_none(task.samples), [], dict[str, Predictor]()
    # Drawn once for all folds and estimators.
    for training in (True, False):
        samples.rarefactions(study.depth, study.seed, passes, training)
    fresh = make_baselines(bool(task.labels), study.depth, passes, study.seed)
    for name, estimator in fresh.items():
        if name not in known:
            predictors[name] = partial(predicted_by_estimator, estimator, passes)
    counts = samples.counts.astype(np.float32).toarray()
    forest = {"n_jobs": torch.get_num_threads(), "random_state": study.seed}
    predictors[FIELD_DEFAULT] = partial(_forest, counts, forest)
    if distances := unifrac_distances(study, samples, passes):
        predictors[NEIGHBOURS] = partial(_of_neighbours, distances)
    for name, predict in predictors.items():
        begun = time.monotonic()
        baselines.append(Baseline(name, task.predictions(predict), trivial=False))
        log.info("baseline %s: %.0f s", name, time.monotonic() - begun)
    return tuple(baselines)


def make_task(
    study: Study, splits: Sequence[Split], spec: TargetSpec, metadata: Metadata, columns: Columns
) -> Task:
    """Data of one target that baselines may use, from the samples with metadata."""
    ids = tuple(name for name in study.table.sample_ids if name in metadata)
    rows, covariates = study.rows(ids), covariate_matrix(metadata, columns, ids)
    held_out = [(np.isin(ids, s.not_held_out), np.isin(ids, s.held_out)) for s in splits]
    levels = dict[str, Array]()
    for name in sorted(filter(None, {columns.group, columns.batch})):
        levels[name] = not_none(predictions.column_values(metadata, name, ids))
    return Task(
        truth=predictions.truth_of(metadata, spec, ids),
        labels=spec.labels,
        folds=[Fold(*sides) for sides in held_out],
        depth=study.table.depths[rows],
        richness=rarefied_richness(study, rows),
        levels=levels,
        groups=predictions.group_values(metadata, columns.group, ids),
        studies=predictions.column_values(metadata, columns.study, ids),
        covariates=covariates,
        samples=replace(Samples.of_study(study, rows), covariates=covariates),
    )


def baselines_of(
    study: Study,
    splits: Sequence[Split],
    spec: TargetSpec,
    metadata: Metadata,
    columns: Columns,
    strong: bool = False,
    known: Collection[str] = (),
    passes: int = 3,
) -> tuple[tuple[str, ...], tuple[Baseline, ...]]:
    """The samples with metadata, and baselines that learn from the training samples of each split.

    They are the trivial ones and, if asked for, the strong ones except those `known` already.
    """
    task = make_task(study, splits, spec, metadata, columns)
    trivial = trivial_baselines(task, study.seed)
    baselines = (*trivial, *(strong_baselines(task, study, passes, known) if strong else ()))
    return not_none(task.samples).sample_ids, baselines


def baselines_by_target(
    table: PredictionTable,
    study: Study,
    splits: Sequence[Split],
    columns: Columns,
    strong: bool = False,
    in_blend: Mapping[str, PredictionTable] | None = None,
) -> dict[str, tuple[Baseline, ...]]:
    """Baselines of each target with the rows of the predictions `table`, learned on the `splits`.

    If asked for there are `strong` ones; those that are members of the blend are `in_blend`.
    """
    metadata, known, result = study.metadata, in_blend or {}, {}
    for spec in table.specs if metadata is not None else ():
        ids, fitted = baselines_of(study, splits, spec, not_none(metadata), columns, strong, known)
        found = [(baseline, ids) for baseline in fitted]
        for name, alone in known.items():
            member = Baseline(name, alone.predicted(spec.name), trivial=False)
            found.append((member, alone.sample_ids))
        baselines = []
        for baseline, ids in found:
            # The last row stands for samples that the baseline lacks.
            missing = np.full_like(baseline.predicted[:1], math.nan)
            rows = pd.Index(ids).get_indexer(list(table.sample_ids))
            predicted = np.concatenate([baseline.predicted, missing])[rows]
            baselines.append(replace(baseline, predicted=predicted))
        result[spec.name] = tuple(baselines)
    return result
