"""Baselines that learn from the ASVs: forests, linear models of presence, and nearest neighbours."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn import ensemble, neighbors
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from aam.config_commands import ForestConfig
from aam.data.study import Study
from aam.evaluate.baselines import Baseline, Task, by_folds, fit_and_predict
from aam.evaluate.metrics import Array, auroc
from aam.predict.baseline_inputs import (
    kmer_distance,
    linear_features,
    presence,
    rarefactions,
    shares,
    unifrac_of,
    words_of,
)  # fmt: skip
from aam.predict.dual_linear import LinearClassifier, LinearRegressor

log = logging.getLogger("aam")

FOREST = "random forest"

TREES = "extra trees"

FOREST_OF_PRESENCE = "random forest on presence"

TREES_OF_PRESENCE = "extra trees on presence"

LINEAR = "linear model of presence"

NEIGHBOURS = "nearest neighbours on UniFrac"

KMER_NEIGHBOURS = "nearest neighbours on 8-mers"

LEARNED = (FOREST, TREES, FOREST_OF_PRESENCE, TREES_OF_PRESENCE, LINEAR, NEIGHBOURS, KMER_NEIGHBOURS)

# An ASV of fewer training samples says nothing of others.
LEAST_SAMPLES = 3

# Candidates are compared on the training samples, in so many parts of whole groups, with so many trees.
SEARCH_PARTS = 4
SEARCH_TREES = 100

NUMBERS = (ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor, LinearRegressor, neighbors.KNeighborsRegressor)

CLASSES = (
    ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier, LinearClassifier, neighbors.KNeighborsClassifier,
)  # fmt: skip

FEATURE_SHARES: dict[bool, tuple[Any, ...]] = {False: (1.0, 0.33, 0.1), True: ("sqrt", 0.1)}

NEAREST = (1, 3, 5, 10, 20, 40)

# Inverse penalties of support vector regression, and of logistic regression.
INVERSE_PENALTIES = {False: (0.03, 0.1, 0.3, 1.0, 3.0), True: (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)}

# More distances than those of so many samples fill the memory; a linear model takes hours.
MAX_NEIGHBOUR_SAMPLES = 20_000
MAX_LINEAR_SAMPLES = 4_000

Candidates = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Learner:
    """A model with the candidates of one of its parameters, and what it reads in each rarefaction.

    `inputs` are features ``[N, F]``, or distances ``[N, N]`` of nearest neighbours.
    """

    name: str
    model: BaseEstimator
    candidates: Candidates
    inputs: Sequence[Any]


def _score(labels: Sequence[str], model: Any, inputs: Any, truth: Array) -> float:
    """Return the metric that decides, larger is better: minus MAE, AUROC of two classes, accuracy of more."""
    model.set_params(n_jobs=1)
    if not labels:
        return -float(np.abs(model.predict(inputs) - truth).mean())
    probabilities = np.zeros((len(truth), len(labels)))
    probabilities[:, model.classes_] = model.predict_proba(inputs)
    area = auroc(truth == 1, probabilities[:, 1]) if len(labels) == 2 else math.nan
    return float((probabilities.argmax(axis=1) == truth).mean()) if math.isnan(area) else area


def _best_candidate(
    task: Task, model: BaseEstimator, candidates: Candidates, inputs: Any, train: Array
) -> BaseEstimator:
    """Return the model with the candidate that predicts unseen groups of the training samples best."""
    ((name, values),) = candidates.items()
    groups = train if task.groups is None else task.groups[train]
    number = min(SEARCH_PARTS, len(np.unique(groups)))
    parts = list(GroupKFold(number).split(train, groups=groups)) if number > 1 and len(values) > 1 else []
    if name == "n_neighbors":
        values = [value for value in values if value <= min([len(rows) for rows, _ in parts] or [len(train)])]
    if not parts or len(values) < 2:
        return clone(model).set_params(**{name: values[0]})
    quick = clone(model)
    if "n_estimators" in quick.get_params():
        quick.set_params(n_estimators=min(SEARCH_TREES, quick.n_estimators))
    search = GridSearchCV(quick, {name: values}, scoring=partial(_score, task.labels), cv=parts, refit=False)
    return clone(model).set_params(**search.fit(inputs, task.truth[train]).best_params_)


def _subset_inputs(inputs: Any, train: Array, test: Array) -> tuple[Any, Any]:
    """Return what is read of training and of test samples: distances to the former, or features common there."""
    if isinstance(inputs, np.ndarray):
        return inputs[np.ix_(train, train)], inputs[np.ix_(test, train)]
    common = np.flatnonzero(np.bincount(inputs[train].indices, minlength=inputs.shape[1]) >= LEAST_SAMPLES)
    return inputs[train][:, common], inputs[test][:, common]


def _learned(task: Task, learner: Learner) -> Baseline:
    """Return the held-out predictions of a learner, the mean over its rarefactions; the first one tunes it."""
    start = time.monotonic()

    def predict(train: Array, test: Array) -> Array:
        by_draw = [_subset_inputs(inputs, train, test) for inputs in learner.inputs]
        best = _best_candidate(task, learner.model, learner.candidates, by_draw[0][0], train)
        parts = [fit_and_predict(task, best, of_train, of_test, train) for of_train, of_test in by_draw]
        return np.asarray(np.mean(parts, axis=0))

    # Threads of scikit-learn 1.9 empty each other's filters of warnings.
    with warnings.catch_warnings(record=True):
        baseline = Baseline(learner.name, by_folds(task, predict), trivial=False)
    log.info("baseline %s fitted in %.0f s", learner.name, time.monotonic() - start)
    return baseline


def max_features_candidates(value: str | None) -> tuple[Any, ...]:
    """Return what `--max-features` asks for; nothing where it is unset."""
    if value in (None, "sqrt", "log2"):
        return () if value is None else (value,)
    return (float(str(value)),)


def _of_features(task: Task, counts: Sequence[csr_matrix], forest: ForestConfig, seed: int) -> list[Learner]:
    """Return forests on shares and on presence, and the linear model of presence."""
    by_shares = [shares(one, task.covariates) for one in counts]
    by_presence = [presence(one, task.covariates) for one in counts]
    random_forest, extra_trees, linear, _ = CLASSES if task.labels else NUMBERS
    tried = FEATURE_SHARES[bool(task.labels)]
    # A few covariates among thousands of ASVs are found where each branching looks at all columns.
    tried = tuple(dict.fromkeys((*tried, 1.0))) if task.covariates else tried
    features = {"max_features": max_features_candidates(forest.max_features) or tried}
    # The trees of all rarefactions together are those of one forest.
    size = {
        "n_estimators": math.ceil(forest.n_estimators / len(counts)), "n_jobs": forest.n_jobs, "random_state": seed,
    }  # fmt: skip
    learners = [
        Learner(FOREST, random_forest(**size), features, by_shares),
        Learner(TREES, extra_trees(**size), features, by_shares),
        Learner(FOREST_OF_PRESENCE, random_forest(**size), features, by_presence),
        Learner(TREES_OF_PRESENCE, extra_trees(**size), features, by_presence),
    ]
    if len(task.truth) > MAX_LINEAR_SAMPLES:
        log.info("%s: left out, which takes at most %d samples", LINEAR, MAX_LINEAR_SAMPLES)
        return learners
    by_both = [linear_features(one, task.covariates) for one in counts]
    return [*learners, Learner(LINEAR, linear(), {"C": INVERSE_PENALTIES[bool(task.labels)]}, by_both)]


def _neighbours(task: Task, study: Study, rows: Array, counts: Sequence[csr_matrix]) -> list[Learner]:
    """Return nearest neighbours on UniFrac, where there is a tree or a matrix, and on 8-mers."""
    if len(rows) > MAX_NEIGHBOUR_SAMPLES:
        log.info("nearest neighbours: left out, which take at most %d samples", MAX_NEIGHBOUR_SAMPLES)
        return []
    model = (CLASSES if task.labels else NUMBERS)[-1](metric="precomputed", weights="distance")
    candidates = {"n_neighbors": NEAREST}
    words = words_of(study)
    by_kmers = [kmer_distance(words, one, task.covariates) for one in counts]
    by_unifrac = [unifrac_of(study, one, rows, task.covariates) for one in counts]
    learners = [Learner(KMER_NEIGHBOURS, model, candidates, by_kmers)]
    if any(distance is None for distance in by_unifrac):
        log.info("%s: left out, which needs a tree", NEIGHBOURS)
        return learners
    return [Learner(NEIGHBOURS, model, candidates, by_unifrac), *learners]


def learned_baselines(task: Task, study: Study, rows: Array, forest: ForestConfig) -> tuple[Baseline, ...]:
    """Return forests on relative abundances and on presence, a linear model of presence, and nearest neighbours.

    All read the samples at `rows` ``[N]`` in the rarefactions that a model's predictions average, and the covariates of
    the task: features as further columns, neighbours as a distance of their own.
    """
    counts = rarefactions(study, rows, forest.val_prediction_passes)
    learners = (*_of_features(task, counts, forest, study.seed), *_neighbours(task, study, rows, counts))
    return tuple(_learned(task, learner) for learner in learners)
