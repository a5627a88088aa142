"""Baselines that do not look at which ASVs a sample has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn import ensemble
from sklearn.base import BaseEstimator, clone

from aam.evaluate.metrics import Array, auroc

MEDIAN = "the training median"

MAJORITY = "the majority class"

DEPTH = "depth alone"

RICHNESS = "richness alone"

DEPTH_AND_RICHNESS = "depth and richness alone"

COVARIATES = "covariates alone"

Mask = npt.NDArray[np.bool_]


class Fold(NamedTuple):
    """Samples that a baseline learns from and those that it is scored on, masks [N]."""

    train: Mask
    test: Mask


@dataclass(frozen=True, eq=False)
class Task:
    """What baselines may know of one target.

    `truth` is as in `TargetPredictions`; test samples of `folds` do not overlap; `depth` int [N] are reads before
    rarefaction, `richness` int [N] ASVs after; `levels` str [N] are group and batch columns whose own median
    or classes are a baseline; samples of one of `groups` [N] are never parted when a baseline is tuned;
    `covariates` float [N, C] are columns that the model reads too, one block for each.
    """

    truth: Array
    labels: tuple[str, ...]
    folds: tuple[Fold, ...]
    depth: Array
    richness: Array
    levels: Mapping[str, Array] = field(default_factory=dict)
    groups: Array | None = None
    covariates: tuple[Array, ...] = ()

    @property
    def has_truth(self) -> Mask:
        """Which samples have a truth, [N]."""
        return np.asarray(self.truth >= 0 if self.labels else np.isfinite(self.truth))

    def empty(self, rows: int) -> Array:
        """Return missing predictions [rows] or [rows, K]."""
        return np.full((rows, len(self.labels)) if self.labels else rows, math.nan)


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


def by_folds(task: Task, predict: Callable[[Array, Array], Array]) -> Array:
    """Return predictions [N] or [N, K] of `predict(train rows, test rows)` on the test samples of each fold."""
    result = task.empty(len(task.truth))
    for fold in task.folds:
        train = np.flatnonzero(fold.train & task.has_truth)
        if len(train):
            result[fold.test] = predict(train, np.flatnonzero(fold.test))
    return result


def _constant(task: Task, train: Array, test: Array) -> Array:
    """Return the training median, or all probability [K] on the most frequent class."""
    if not task.labels:
        return np.asarray(np.median(task.truth[train]))
    return np.asarray(np.eye(len(task.labels))[np.bincount(task.truth[train]).argmax()])


def _of_level(task: Task, levels: Array, train: Array, test: Array) -> Array:
    """Return median or class shares of the training samples of each test sample's own level; NaN if it has none."""
    result = task.empty(len(test))
    for level in np.unique(levels[test]):
        truth = task.truth[train[levels[train] == level]]
        if len(truth):
            shares = np.bincount(truth, minlength=len(task.labels)) / len(truth) if task.labels else None
            result[levels[test] == level] = np.median(truth) if shares is None else shares
    return result


def fit_and_predict(task: Task, model: BaseEstimator, train_inputs: Any, test_inputs: Any, train: Array) -> Array:
    """Return predictions for `test_inputs` of a model, fitted anew to `train_inputs` of the rows `train`."""
    # Threads would add the trees up in any order, which shows in the last bits.
    fitted = clone(model).fit(train_inputs, task.truth[train]).set_params(n_jobs=1)
    if not task.labels:
        return np.asarray(fitted.predict(test_inputs))
    probabilities = np.asarray(fitted.predict_proba(test_inputs))
    result = np.zeros((len(probabilities), len(task.labels)))
    result[:, fitted.classes_] = probabilities
    return result


def _forest(task: Task, inputs: Array, trees: BaseEstimator, train: Array, test: Array) -> Array:
    return fit_and_predict(task, trees, inputs[train], inputs[test], train)


def _ordered(task: Task, values: Array, train: Array, test: Array) -> Array:
    """Return probabilities of two classes in the order of one value, its direction chosen on the training samples.

    The sigmoid is the same in every fold, so that the pooled AUROC is that of the value itself.
    """
    rising = auroc(task.truth[train] == 1, values[train])
    distance = (values[test] - np.median(values)) * (-1 if rising < 0.5 else 1)
    second = 1 / (1 + np.exp(-distance))
    return np.stack([1 - second, second], axis=1)


def trivial_baselines(task: Task, seed: int = 0) -> tuple[Baseline, ...]:
    """Return baselines that do not look at which ASVs a sample has, learned on the training samples of each fold.

    The median or majority class; covariates alone; sequencing depth and richness, together and each alone; the median
    or class shares of the sample's own level of each column of `task.levels`, where training has that level.
    A value that is the same in all samples, and a level never seen in training, gives no baseline.
    """

    def baseline(name: str, predict: Callable[..., Array], *inputs: Any) -> Baseline:
        return Baseline(name, by_folds(task, lambda train, test: predict(task, *inputs, train, test)))

    kind = ensemble.RandomForestClassifier if task.labels else ensemble.RandomForestRegressor
    trees = kind(n_estimators=100, max_features=1.0, min_samples_leaf=10, random_state=seed)
    baselines = [baseline(MAJORITY if task.labels else MEDIAN, _constant)]
    if task.covariates:
        small_leaves = clone(trees).set_params(min_samples_leaf=3)
        baselines.append(baseline(COVARIATES, _forest, np.concatenate(task.covariates, axis=1), small_leaves))
    columns = {DEPTH: np.log1p(task.depth), RICHNESS: np.log1p(task.richness)}
    columns = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if len(columns) == 2:
        baselines.append(baseline(DEPTH_AND_RICHNESS, _forest, np.stack([*columns.values()], axis=1), trees))
    for name, values in columns.items():
        inputs = (_ordered, values) if len(task.labels) == 2 else (_forest, values[:, None], trees)
        baselines.append(baseline(name, *inputs))
    for column, levels in task.levels.items():
        of_level = baseline(f"the {column}'s {'classes' if task.labels else 'median'}", _of_level, levels)
        baselines += [of_level] if np.isfinite(of_level.predicted).any() else []
    return tuple(baselines)
