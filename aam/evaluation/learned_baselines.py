"""Baselines that learn from the ASVs: forests and nearest neighbours."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from scipy.spatial.distance import cdist
from sklearn import ensemble, neighbors
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from aam.config_commands import ForestConfig
from aam.data.draw import distances_of, rarefied_table
from aam.data.study import Study
from aam.evaluation.baselines import Baseline, Task, by_folds, fit_and_predict
from aam.evaluation.metrics import Array, auroc

log = logging.getLogger("aam")

FOREST = "random forest"

TREES = "extra trees"

NEIGHBOURS = "nearest neighbours on UniFrac"

LEARNED = (FOREST, TREES, NEIGHBOURS)

# An ASV of fewer training samples says nothing of others.
LEAST_SAMPLES = 3

# Candidates are compared on the training samples, in so many parts of whole groups, with so many trees.
SEARCH_PARTS = 3
SEARCH_TREES = 100

NUMBERS = (ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor, neighbors.KNeighborsRegressor)

CLASSES = (ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier, neighbors.KNeighborsClassifier)

FEATURE_SHARES: dict[bool, tuple[Any, ...]] = {False: (1.0, 0.33, 0.1), True: ("sqrt", 0.1)}

NEAREST = (1, 3, 5, 10, 20, 40)

# More distances than those of so many samples fill the memory.
MAX_NEIGHBOUR_SAMPLES = 20_000

Candidates = Mapping[str, Sequence[Any]]


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


def _learned(task: Task, name: str, model: BaseEstimator, candidates: Candidates, inputs: Any) -> Baseline:
    """Return held-out predictions of a model of features [N, F], or of neighbours at distances [N, N]."""
    start = time.monotonic()

    def predict(train: Array, test: Array) -> Array:
        if name == NEIGHBOURS:
            train_inputs, test_inputs = inputs[np.ix_(train, train)], inputs[np.ix_(test, train)]
        else:
            common = np.flatnonzero(np.bincount(inputs[train].indices, minlength=inputs.shape[1]) >= LEAST_SAMPLES)
            train_inputs, test_inputs = inputs[train][:, common], inputs[test][:, common]
        best = _best_candidate(task, model, candidates, train_inputs, train)
        return fit_and_predict(task, best, train_inputs, test_inputs, train)

    # Threads of scikit-learn 1.9 empty each other's filters of warnings.
    with warnings.catch_warnings(record=True):
        baseline = Baseline(name, by_folds(task, predict), trivial=False)
    log.info("%s: %d splits in %.0f s", name, len(task.folds), time.monotonic() - start)
    return baseline


def max_features_candidates(value: str | None) -> tuple[Any, ...]:
    """Return what `--max-features` asks for; nothing where it is unset."""
    if value in (None, "sqrt", "log2"):
        return () if value is None else (value,)
    return (float(str(value)),)


def learned_baselines(task: Task, study: Study, rows: Array, forest: ForestConfig) -> tuple[Baseline, ...]:
    """Return forests on the relative abundances and neighbours on the UniFrac of the rarefied samples at `rows` [N].

    Forests read the covariates of the task as further columns. For neighbours, the mean distance of the covariates
    (0 to 1 for each: Gower 1971) is added to UniFrac.
    """
    counts = rarefied_table(study)[rows]
    shares = csr_matrix(counts, dtype=np.float32) / np.float32(study.depth)
    if task.covariates:
        shares = csr_matrix(hstack([shares, *(block.astype(np.float32) for block in task.covariates)]))
    # scikit-learn's trees read 32-bit indices only.
    shares.indices, shares.indptr = shares.indices.astype(np.int32), shares.indptr.astype(np.int32)
    *forests, nearest = CLASSES if task.labels else NUMBERS
    shares_tried = FEATURE_SHARES[bool(task.labels)]
    # A few covariates among thousands of ASVs are found where each branching looks at all columns.
    shares_tried = tuple(dict.fromkeys((*shares_tried, 1.0))) if task.covariates else shares_tried
    candidates = {"max_features": max_features_candidates(forest.max_features) or shares_tried}
    size = {"n_estimators": forest.n_estimators, "n_jobs": forest.n_jobs, "random_state": study.seed}
    baselines = [
        _learned(task, name, kind(**size), candidates, shares)
        for name, kind in zip((FOREST, TREES), forests, strict=True)
    ]
    distance = distances_of(study, counts, rows).get("distance") if len(rows) <= MAX_NEIGHBOUR_SAMPLES else None
    if distance is None:
        log.info("%s: left out, which needs a tree and at most %d samples", NEIGHBOURS, MAX_NEIGHBOUR_SAMPLES)
        return tuple(baselines)
    model, apart = nearest(metric="precomputed", weights="distance"), np.maximum(distance.numpy(), 0)
    for block in task.covariates:
        apart = apart + np.minimum(cdist(block, block, "cityblock"), 1) / len(task.covariates)
    return (*baselines, _learned(task, NEIGHBOURS, model, {"n_neighbors": NEAREST}, apart))
