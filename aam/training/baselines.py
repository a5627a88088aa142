"""Baselines on the folds of a model: what little knowledge, or a forest, predicts of the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, csr_matrix
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

from aam.training.metrics import Array, auroc

MEDIAN = "the training median"
MAJORITY = "the majority class"
DEPTH = "depth alone"
RICHNESS = "richness alone"
DEPTH_AND_RICHNESS = "depth and richness alone"

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Fold:
    """Samples that a baseline learns from and those that it is scored on, masks [N]."""

    train: Mask
    test: Mask


@dataclass(frozen=True, eq=False)
class Task:
    """What baselines may know of one target.

    Attributes
    ----------
    truth : float [N], NaN = missing; or int [N], index into `labels`, -1 = missing
    labels : tuple of str
        Names of the classes; empty for a numeric target.
    folds : tuple of Fold
        Test sides do not overlap.
    depth : int [N]
        Reads of each sample in the table as it was given, before rarefaction.
    richness : int [N]
        ASVs of each sample at the rarefied depth.
    levels : mapping of column name to str [N]
        Group and batch columns whose own median or classes are a baseline.
    """

    truth: Array
    labels: tuple[str, ...]
    folds: tuple[Fold, ...]
    depth: Array
    richness: Array
    levels: Mapping[str, Array] = field(default_factory=dict)

    @property
    def known(self) -> Mask:
        """Samples whose truth is not missing, [N]."""
        return np.asarray(self.truth >= 0 if self.labels else np.isfinite(self.truth))


@dataclass(frozen=True, eq=False)
class Baseline:
    """Held-out predictions of a baseline: float [N] or [N, K], NaN where it has none."""

    name: str
    predicted: Array
    trivial: bool = True

    @property
    def constant(self) -> bool:
        """Whether it knows nothing of a sample."""
        return self.name in (MEDIAN, MAJORITY)


@dataclass(frozen=True)
class Trees:
    """A forest: `extra` draws its thresholds at random; `max_features` as in scikit-learn."""

    kind: Literal["forest", "extra"] = "forest"
    estimators: int = 500
    max_features: float | str = 0.1
    smallest_leaf: int = 1
    seed: int = 0
    jobs: int = 1

    @property
    def name(self) -> str:
        """How reports call it."""
        return f"{'extra trees' if self.kind == 'extra' else 'random forest'} on abundances"


# --- predicting --------------------------------------------------------------------------------------------

Learner = Callable[[Array, Array], Array]


def _held_out(task: Task, predict: Learner) -> Array:
    """Predictions [N] or [N, K] of `predict(train rows, test rows)` on the test side of every fold."""
    shape = (len(task.truth), len(task.labels)) if task.labels else (len(task.truth),)
    result = np.full(shape, math.nan)
    for fold in task.folds:
        train = np.flatnonzero(fold.train & task.known)
        if len(train):
            result[fold.test] = predict(train, np.flatnonzero(fold.test))
    return result


def _constant(task: Task, train: Array) -> Array:
    """The training median, or all probability [K] on the most frequent class."""
    if not task.labels:
        return np.asarray(np.median(task.truth[train]))
    most = np.bincount(task.truth[train], minlength=len(task.labels)).argmax()
    return np.asarray(np.eye(len(task.labels))[most])


def _of_level(task: Task, levels: Array, train: Array, test: Array) -> Array:
    """Median or class shares of the training samples of each test sample's own level; NaN if it has none."""
    result = np.full((len(test), *((len(task.labels),) if task.labels else ())), math.nan)
    for level in np.unique(levels[test]):
        own = task.truth[train[levels[train] == level]]
        if len(own) and task.labels:
            result[levels[test] == level] = np.bincount(own, minlength=len(task.labels)) / len(own)
        elif len(own):
            result[levels[test] == level] = np.median(own)
    return result


def _forest(task: Task, inputs: Array | csr_matrix, trees: Trees, train: Array, test: Array) -> Array:
    """Predictions of trees that learn from the rows `train` of `inputs` [N, F]."""
    options: dict[str, Any] = {
        "n_estimators": trees.estimators,
        "max_features": trees.max_features,
        "min_samples_leaf": trees.smallest_leaf,
        "random_state": trees.seed,
        "n_jobs": trees.jobs,
    }
    extra = trees.kind == "extra"
    if not task.labels:
        model = ExtraTreesRegressor(**options) if extra else RandomForestRegressor(**options)
        return np.asarray(model.fit(inputs[train], task.truth[train]).predict(inputs[test]))
    model = ExtraTreesClassifier(**options) if extra else RandomForestClassifier(**options)
    model.fit(inputs[train], task.truth[train])
    result = np.zeros((len(test), len(task.labels)))
    result[:, model.classes_] = model.predict_proba(inputs[test])
    return result


def _ordered(task: Task, values: Array, train: Array, test: Array) -> Array:
    """Probabilities of two classes in the order of one value, its direction chosen on the training side.

    The sigmoid is the same in every fold, so that the pooled AUROC is that of the value itself.
    """
    rising = auroc(task.truth[train] == 1, values[train])
    distance = (values[test] - np.median(values)) * (-1 if rising < 0.5 else 1)
    second = 1 / (1 + np.exp(-distance))
    return np.stack([1 - second, second], axis=1)


def _alone(task: Task, values: Array, trees: Trees) -> Array:
    if len(task.labels) == 2:
        return _held_out(task, lambda train, test: _ordered(task, values, train, test))
    return _held_out(task, lambda train, test: _forest(task, values[:, None], trees, train, test))


def trivial_baselines(task: Task, seed: int = 0, jobs: int = 1) -> tuple[Baseline, ...]:
    """Baselines that do not look at which ASVs a sample has, learned on the training side of each fold.

    The median or majority class; sequencing depth and richness, together and each alone; the median or class
    shares of the sample's own level of each column of `task.levels`, where the training side has that level.
    A value that is the same in all samples, and a level never seen in training, gives no baseline.
    """

    def constant(train: Array, test: Array) -> Array:
        return _constant(task, train)

    trees = Trees(estimators=200, max_features=1.0, smallest_leaf=10, seed=seed, jobs=jobs)
    found = [Baseline(MAJORITY if task.labels else MEDIAN, _held_out(task, constant))]
    columns = {DEPTH: np.log1p(task.depth), RICHNESS: np.log1p(task.richness)}
    columns = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if len(columns) == 2:
        both = np.stack([*columns.values()], axis=1)
        predicted = _held_out(task, lambda train, test: _forest(task, both, trees, train, test))
        found.append(Baseline(DEPTH_AND_RICHNESS, predicted))
    found += [Baseline(name, _alone(task, values, trees)) for name, values in columns.items()]
    for column, levels in task.levels.items():
        predicted = _held_out(
            task,
            lambda train, test, levels=levels: _of_level(task, levels, train, test),  # type: ignore[misc]
        )
        if np.isfinite(predicted).any():
            found.append(Baseline(f"the {column}'s {'classes' if task.labels else 'median'}", predicted))
    return tuple(found)


def trees_baseline(counts: csr_array, task: Task, trees: Trees, fewest: int = 3) -> Baseline:
    """Trees on the relative abundances of the ASVs that at least `fewest` training samples have.

    Parameters
    ----------
    counts : csr_array [N, F]
        Rarefied reads, rows in the order of `task.truth`.
    """
    reads = np.maximum(np.asarray(counts.sum(axis=1)), 1)
    shares = csr_matrix(counts, dtype=np.float32)
    shares.data /= np.repeat(reads, np.diff(shares.indptr)).astype(np.float32)

    def predict(train: Array, test: Array) -> Array:
        common = np.bincount(shares[train].indices, minlength=shares.shape[1]) >= fewest
        inputs = shares[:, np.flatnonzero(common)]
        # scikit-learn's trees read 32-bit indices only.
        inputs.indices, inputs.indptr = inputs.indices.astype(np.int32), inputs.indptr.astype(np.int32)
        return _forest(task, inputs, trees, train, test)

    return Baseline(trees.name, _held_out(task, predict), trivial=False)
