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
from scipy.sparse import csr_matrix
from sklearn import ensemble, neighbors
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from aam.config_commands import ForestConfig
from aam.data.draw import distances_of, rarefied_table
from aam.data.metadata import is_number
from aam.data.study import Study
from aam.errors import InputError
from aam.evaluation.baselines import Baseline, Task, by_folds, predicted_by
from aam.evaluation.metrics import Array, auroc

log = logging.getLogger("aam")


FOREST, TREES, NEIGHBOURS = "random forest", "extra trees", "nearest neighbours on UniFrac"

LEARNED = (FOREST, TREES, NEIGHBOURS)

# An ASV of fewer training samples says nothing of others.
FEWEST = 3

# Candidates are compared on the training side, divided by groups into so many parts, with so many trees.
PARTS, SEARCH_TREES = 3, 100

NUMBERS = (ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor, neighbors.KNeighborsRegressor)

CLASSES = (ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier, neighbors.KNeighborsClassifier)

SHARES: dict[bool, tuple[Any, ...]] = {False: (1.0, 0.33, 0.1), True: ("sqrt", 0.1)}

NEAREST = (1, 3, 5, 10, 20, 40)

# More distances than those of so many samples fill the memory.
MOST_NEIGHBOURS = 20_000

Candidates = Mapping[str, Sequence[Any]]


def _score(labels: Sequence[str], model: Any, inputs: Any, truth: Array) -> float:
    """How well a model predicts, by the figure that decides: minus MAE, AUROC of two classes, accuracy of more."""
    model.set_params(n_jobs=1)
    if not labels:
        return -float(np.abs(model.predict(inputs) - truth).mean())
    probabilities = np.zeros((len(truth), len(labels)))
    probabilities[:, model.classes_] = model.predict_proba(inputs)
    area = auroc(truth == 1, probabilities[:, 1]) if len(labels) == 2 else math.nan
    return float((probabilities.argmax(axis=1) == truth).mean()) if math.isnan(area) else area


def _chosen(task: Task, model: BaseEstimator, candidates: Candidates, inputs: Any, train: Array) -> BaseEstimator:
    """The model with those of the candidates that predict unseen groups of the training side best."""
    ((name, values),) = candidates.items()
    groups = train if task.groups is None else task.groups[train]
    number = min(PARTS, len(np.unique(groups)))
    parts = list(GroupKFold(number).split(train, groups=groups)) if number > 1 and len(values) > 1 else []
    if name == "n_neighbors":
        values = [one for one in values if one <= min([len(rows) for rows, _ in parts] or [len(train)])]
    if not parts or len(values) < 2:
        return clone(model).set_params(**{name: values[0]})
    quick = clone(model)
    if "n_estimators" in quick.get_params():
        quick.set_params(n_estimators=min(SEARCH_TREES, quick.n_estimators))
    search = GridSearchCV(quick, {name: values}, scoring=partial(_score, task.labels), cv=parts, refit=False)
    return clone(model).set_params(**search.fit(inputs, task.truth[train]).best_params_)


def _learned(task: Task, name: str, model: BaseEstimator, candidates: Candidates, inputs: Any) -> Baseline:
    """Held-out predictions of a model of features [N, F], or of neighbours at distances [N, N]."""
    begun, paired = time.monotonic(), name == NEIGHBOURS

    def predict(train: Array, test: Array) -> Array:
        if paired:
            own, other = inputs[np.ix_(train, train)], inputs[np.ix_(test, train)]
        else:
            common = np.flatnonzero(np.bincount(inputs[train].indices, minlength=inputs.shape[1]) >= FEWEST)
            own, other = inputs[train][:, common], inputs[test][:, common]
        return predicted_by(task, _chosen(task, model, candidates, own, train), own, other, train)

    # Threads of scikit-learn 1.9 empty each other's filters of warnings.
    with warnings.catch_warnings(record=True):
        found = Baseline(name, by_folds(task, predict), trivial=False)
    log.info("%s: %d splits in %.0f s", name, len(task.folds), time.monotonic() - begun)
    return found


def features_tried(given: str | None) -> tuple[Any, ...]:
    """What `--max-features` asks for; nothing where it is unset."""
    if given in (None, "sqrt", "log2"):
        return () if given is None else (given,)
    if not is_number(given) or not 0 < float(given) <= 1:
        raise InputError(f"--max-features is {given}, expected sqrt, log2, or a share above 0 and at most 1")
    return (float(given),)


def learned_baselines(task: Task, study: Study, rows: Array, forest: ForestConfig) -> tuple[Baseline, ...]:
    """Forests on the relative abundances, and neighbours on the UniFrac, of the rarefied samples at `rows` [N]."""
    counts = rarefied_table(study)[rows]
    shares = csr_matrix(counts, dtype=np.float32) / np.float32(study.depth)
    # scikit-learn's trees read 32-bit indices only.
    shares.indices, shares.indptr = shares.indices.astype(np.int32), shares.indptr.astype(np.int32)
    *forests, nearest = CLASSES if task.labels else NUMBERS
    tried = {"max_features": features_tried(forest.max_features) or SHARES[bool(task.labels)]}
    size = {"n_estimators": forest.n_estimators, "n_jobs": forest.n_jobs, "random_state": study.seed}
    found = [_learned(task, name, kind(**size), tried, shares) for name, kind in zip(LEARNED, forests, strict=False)]
    distance = distances_of(study, counts, rows).get("distance") if len(rows) <= MOST_NEIGHBOURS else None
    if distance is None:
        log.info("%s: left out, which needs a tree and at most %d samples", NEIGHBOURS, MOST_NEIGHBOURS)
        return tuple(found)
    model, apart = nearest(metric="precomputed", weights="distance"), np.maximum(distance.numpy(), 0)
    return (*found, _learned(task, NEIGHBOURS, model, {"n_neighbors": NEAREST}, apart))
