"""Baselines of a study on its own splits: learners run alone, trivial ones that do not look at the
ASVs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aam.config import ForestConfig
from aam.data.rarefaction import EVALUATION, rarefied_richness
from aam.data.splits import Split
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.evaluate.comparison import (
    COVARIATES,
    DEPTH,
    DEPTH_AND_RICHNESS,
    MAJORITY,
    MEDIAN,
    RICHNESS,
    Baseline,
)
from aam.evaluate.metrics import Array, auroc
from aam.evaluate.predictions import PredictionTable
from aam.evaluate.target_predictions import Columns, column_values, group_values, guess, truth_of
from aam.io.metadata import Metadata
from aam.predict.features import FEATURES, Inputs, Samples, fit_features
from aam.predict.forest import Forest
from aam.predict.learner import Floats, Folds, Learner, Rows, Truth, error_of
from aam.predict.linear import LEAST_TO_CENTRE, Linear

log = logging.getLogger("aam")

Mask = npt.NDArray[np.bool_]

FOREST = "random forest"

TREES = "extra trees"

FOREST_OF_PRESENCE = "random forest on presence"

TREES_OF_PRESENCE = "extra trees on presence"

LINEAR = "linear model of presence"

NEIGHBOURS = "nearest neighbours on UniFrac"

KMER_NEIGHBOURS = "nearest neighbours on 8-mers"

# Those that are learners of a blend, by their names there: where it was trained, they are what
# these say in it.
IN_BLEND = {LINEAR: "presence", TREES_OF_PRESENCE: "forest"}

LEARNED = (
    FOREST,
    TREES,
    FOREST_OF_PRESENCE,
    TREES_OF_PRESENCE,
    LINEAR,
    NEIGHBOURS,
    KMER_NEIGHBOURS,
)

# How many features a split looks at: candidates for numbers and for classes.
FEATURE_SHARES: dict[bool, tuple[float | str, ...]] = {False: (0.33, 0.1), True: ("sqrt", 0.1)}

# How many neighbours: candidates.
NEAREST = (1, 3, 5, 10, 20, 40)

# More distances than those of so many samples fill the memory.
MAX_NEIGHBOUR_SAMPLES = 20_000


def covariate_matrix(metadata: Metadata, columns: Columns, ids: Sequence[str]) -> Array:
    """Return the covariates of samples, float [N, C], whose city-block distance is that of Gower
    (1971).

    In one column two categories, and the smallest and largest number, are 1 apart, a missing number
    half a column from any other; the distance of samples is the mean over the columns.
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


class Fold(NamedTuple):
    """Samples that a baseline learns from and those that it is scored on, masks [N]."""

    train: Mask
    test: Mask


@dataclass(frozen=True, eq=False)
class Task:
    """What baselines may know of one target.

    `truth` is as in `TargetPredictions`; test samples of `folds` do not overlap; `depth` int [N]
    are reads before rarefaction, `richness` int [N] ASVs after; `levels` str [N] are group and
    batch columns whose own median or classes are a baseline; samples of one of `groups` [N] are
    never parted when a baseline is tuned; `covariates` float [N, C] are what the model reads too;
    what is learned is to hold in others than its `studies` [N].
    """

    truth: Array
    labels: tuple[str, ...]
    folds: tuple[Fold, ...]
    depth: Array
    richness: Array
    levels: Mapping[str, Array] = field(default_factory=dict)
    groups: Array | None = None
    covariates: Array | None = None
    studies: Array | None = None

    @property
    def has_truth(self) -> Mask:
        """Which samples have a truth, [N]."""
        return np.asarray(self.truth >= 0 if self.labels else np.isfinite(self.truth))

    def empty(self, rows: int) -> Array:
        """Return missing predictions [rows] or [rows, K]."""
        return np.full((rows, len(self.labels)) if self.labels else rows, math.nan)

    def train_and_test(self) -> list[tuple[Array, Array]]:
        """Return the rows of training samples with a truth, if any, and those of test samples, for
        each fold.
        """
        folds = [
            (np.flatnonzero(fold.train & self.has_truth), np.flatnonzero(fold.test))
            for fold in self.folds
        ]
        return [(train, test) for train, test in folds if len(train)]


def _constant(task: Task, train: Array, test: Array) -> Array:
    """Return the `guess` of the training samples."""
    return guess(task.truth[train], len(task.labels))


def _of_level(levels: Array, task: Task, train: Array, test: Array) -> Array:
    """Return median or class shares of the training samples of each test sample's own level; NaN if
    it has none.
    """
    result = task.empty(len(test))
    for level in np.unique(levels[test]):
        truth = task.truth[train[levels[train] == level]]
        if len(truth):
            shares = (
                np.bincount(truth, minlength=len(task.labels)) / len(truth) if task.labels else None
            )
            result[levels[test] == level] = np.median(truth) if shares is None else shares
    return result


def _forest(inputs: Array, least: int, seed: int, task: Task, train: Array, test: Array) -> Array:
    """Return predictions of a random forest on a few columns ``[N, P]``, with leaves of `least`
    samples.
    """
    from sklearn import ensemble

    kind = ensemble.RandomForestClassifier if task.labels else ensemble.RandomForestRegressor
    model = kind(100, max_features=1.0, min_samples_leaf=least, random_state=seed).fit(
        inputs[train], task.truth[train]
    )
    if not task.labels:
        return np.asarray(model.predict(inputs[test]))
    result = np.zeros((len(test), len(task.labels)))
    result[:, model.classes_] = model.predict_proba(inputs[test])
    return result


def _ordered(values: Array, task: Task, train: Array, test: Array) -> Array:
    """Return probabilities of two classes in the order of one value, its direction chosen on the
    training samples.

    The sigmoid is the same in every fold, so that the pooled AUROC is that of the value itself.
    """
    rising = auroc(task.truth[train] == 1, values[train])
    distance = (values[test] - np.median(values)) * (-1 if rising < 0.5 else 1)
    second = 1 / (1 + np.exp(-distance))
    return np.stack([1 - second, second], axis=1)


def trivial_baselines(task: Task, seed: int = 0) -> tuple[Baseline, ...]:
    """Return baselines that do not look at which ASVs a sample has, learned on the training samples
    of each fold.

    The median or majority class; covariates alone; sequencing depth and richness, together and each
    alone; the median or class shares of the sample's own level of each column of `task.levels`,
    where training has that level. A value that is the same in all samples, and a level never seen
    in training, gives no baseline.
    """
    predictors: dict[str, Callable[..., Array]] = {MAJORITY if task.labels else MEDIAN: _constant}
    if task.covariates is not None and task.covariates.shape[1]:
        predictors[COVARIATES] = partial(_forest, task.covariates, 3, seed)
    columns = {DEPTH: np.log1p(task.depth), RICHNESS: np.log1p(task.richness)}
    columns = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if len(columns) == 2:
        predictors[DEPTH_AND_RICHNESS] = partial(
            _forest, np.stack([*columns.values()], axis=1), 10, seed
        )
    for name, values in columns.items():
        two = len(task.labels) == 2
        predictors[name] = (
            partial(_ordered, values) if two else partial(_forest, values[:, None], 10, seed)
        )
    for column, levels in task.levels.items():
        predictors[f"the {column}'s {'classes' if task.labels else 'median'}"] = partial(
            _of_level, levels
        )
    baselines = []
    for name, predict in predictors.items():
        result = task.empty(len(task.truth))
        for train, test in task.train_and_test():
            result[test] = predict(task, train, test)
        if predict is _constant or np.isfinite(result).any():
            baselines.append(Baseline(name, result))
    return tuple(baselines)


# --- learners alone ----------------------------------------------------------------------------


@dataclass(eq=False)
class Neighbours(Learner):
    """The mean of the nearest training samples, weighted by one over their distance, in each
    rarefaction.

    It predicts samples of the table that it was fitted on: its feature holds distances to all of
    them.

    Attributes
    ----------
    distance : str
        Feature of distances ``[n, N]`` to all N samples of the table.
    n_neighbors : tuple of int
        Candidates, of which inner folds choose one.
    """

    distance: str = "unifrac"
    n_neighbors: tuple[int, ...] = NEAREST

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that are read."""
        return (self.distance,)

    def _fit(self, X: Inputs, truth: Truth, folds: Folds) -> None:
        self.places_ = X.places
        self.targets_ = truth.indicators if self.n_classes else truth.values[:, None]
        least = min([len(learn) for learn, _ in folds] or [len(X)])
        candidates = [number for number in self.n_neighbors if number <= least] or [1]
        self.chosen_ = candidates[0]
        if folds and len(candidates) > 1:
            held_out = np.empty((len(candidates), *self.targets_.shape))
            for learn, predict in folds:
                for number, predicted in zip(candidates, held_out, strict=True):
                    predicted[predict] = self._vote(X.rarefaction(0)[predict], learn, number)
            best = int(np.argmin([error_of(truth, predicted) for predicted in held_out]))
            self.chosen_, self.out_of_fold_ = candidates[best], held_out[best]

    def _vote(self, X: Inputs, learn: Rows, number: int) -> Floats:
        """Return what the `number` nearest of the training samples `learn` say of samples."""
        from sklearn.neighbors import KNeighborsRegressor

        model, columns = (
            KNeighborsRegressor(number, metric="precomputed", weights="distance"),
            self.places_[learn],
        )
        by_rarefaction = []
        for rarefaction in range(X.rarefactions):
            distances: Floats = np.asarray(X.read(self.distance, rarefaction))[:, columns]
            # The model learns no more than the targets and that there are so many distances.
            model.fit(np.zeros((len(learn), len(learn))), self.targets_[learn])
            by_rarefaction.append(model.predict(distances))
        return np.asarray(np.mean(by_rarefaction, axis=0))

    def outputs(self, X: Inputs) -> Floats:
        """Return numbers ``[n, 1]`` or shares of classes ``[n, n_classes]``."""
        return self._vote(X, np.arange(len(self.places_)), self.chosen_)


def _max_features(task: Task, value: str | None) -> tuple[float | str, ...]:
    """Return what `--max-features` asks for, or the candidates."""
    if value is not None:
        return (value if value in ("sqrt", "log2") else float(value),)
    candidates = FEATURE_SHARES[bool(task.labels)]
    # A few covariates among thousands of ASVs are found where each branching looks at all columns.
    has_covariates = task.covariates is not None and task.covariates.shape[1] > 0
    return tuple(dict.fromkeys((*candidates, 1.0))) if has_covariates else candidates


def _learners(task: Task, forest: ForestConfig, seed: int) -> dict[str, Learner]:
    """Return the learners that are baselines; those of presence are those of the blend."""
    both: dict[str, Any] = {"n_classes": len(task.labels), "random_state": seed}
    size: dict[str, Any] = {
        **both,
        # The trees of all rarefactions together are those of one forest.
        "n_estimators": math.ceil(forest.n_estimators / forest.val_prediction_passes),
        "max_features": _max_features(task, forest.max_features),
        "n_jobs": forest.n_jobs,
        "out_of_fold": False,
    }
    usual = {**size, "median": False, "balanced": False}
    return {
        FOREST: Forest(**usual, kind="random", reads=("shares", "covariates")),
        TREES: Forest(**usual, reads=("shares", "covariates")),
        FOREST_OF_PRESENCE: Forest(**usual, kind="random"),
        TREES_OF_PRESENCE: Forest(**size),
        LINEAR: Linear(**both),
        NEIGHBOURS: Neighbours(**both, distance="unifrac"),
        KMER_NEIGHBOURS: Neighbours(**both, distance="kmer-jaccard"),
    }


def _by_study(task: Task, test: Array) -> list[Array]:
    """Return the rows of test samples, by study where there are studies."""
    if task.studies is None:
        return [test]
    return [test[task.studies[test] == study] for study in np.unique(task.studies[test])]


def learned_baselines(
    task: Task, study: Study, rows: Array, forest: ForestConfig, known: Collection[str] = ()
) -> tuple[Baseline, ...]:
    """Return the held-out predictions of learners that are run alone on the samples at `rows`
    ``[N]``.

    They read the rarefactions that a model's predictions average, and the covariates of the task:
    as further features or, for neighbours, as a part of the distance. Those of which the
    predictions are `known` are left out.
    """
    if task.covariates is not None:
        covariate = np.zeros((len(study.table.sample_ids), task.covariates.shape[1]), np.float32)
        covariate[rows] = task.covariates
        category = np.zeros((len(covariate), 0), np.int64)
        study = replace(study, labels=replace(study.labels, category=category, covariate=covariate))
    samples = Samples.rarefied(
        study, rows, [EVALUATION - 1 - number for number in range(forest.val_prediction_passes)]
    )
    learners = {
        name: one for name, one in _learners(task, forest, study.seed).items() if name not in known
    }
    distances = {}
    for name in (NEIGHBOURS, KMER_NEIGHBOURS):
        (distance,) = learners[name].features
        computed = (
            FEATURES[distance]().transform(samples) if len(rows) <= MAX_NEIGHBOUR_SAMPLES else ()
        )
        if computed:
            distances[distance] = computed
            continue
        many = len(rows) > MAX_NEIGHBOUR_SAMPLES
        why = (
            f"they take at most {MAX_NEIGHBOUR_SAMPLES} samples"
            if many
            else "they need --tree, a tree of these ASVs"
        )
        log.info("baseline %s: left out, as %s", name, why)
        del learners[name]
    alone = "; parts of the model, alone: " + ", ".join(sorted(known)) if known else ""
    log.info(
        "%d learned baselines, on the same samples: %s%s",
        len({*learners, *known}),
        ", ".join(learners),
        alone,
    )
    predicted = {name: task.empty(len(rows)) for name in learners}
    seconds = dict.fromkeys(learners, 0.0)
    for train, test in task.train_and_test():
        names = {
            feature for learner in learners.values() for feature in learner.features
        } - distances.keys()
        X = replace(
            Inputs.of(fit_features(sorted(names), samples.at(train)), samples),
            computed=dict(distances),
        )
        groups, studies = (
            None if one is None else [*map(str, one[train])] for one in (task.groups, task.studies)
        )
        for name, learner in learners.items():
            begun = time.monotonic()
            fitted = learner.fit(
                X[train], task.truth[train].astype(np.float64), groups=groups, studies=studies
            )
            for part in _by_study(task, test):
                centred = (
                    fitted.centred_on(X[part])
                    if len(part) >= LEAST_TO_CENTRE and studies
                    else fitted
                )
                outputs = centred.outputs(X[part])
                predicted[name][part] = outputs if task.labels else outputs[:, 0]
            seconds[name] += time.monotonic() - begun
    for name, spent in seconds.items():
        log.info("baseline %s fitted in %.0f s", name, spent)
    return tuple(Baseline(name, values, trivial=False) for name, values in predicted.items())


def baselines_of(
    study: Study,
    splits: Sequence[Split],
    spec: TargetSpec,
    metadata: Metadata,
    columns: Columns,
    forest: ForestConfig | None = None,
    known: Collection[str] = (),
) -> tuple[tuple[str, ...], tuple[Baseline, ...]]:
    """Return the samples of the study that have metadata, and baselines on the training samples of
    each split.

    The trivial ones and, with `forest`, the learned ones but for those `known` already.
    """
    ids = tuple(name for name in study.table.sample_ids if name in metadata)
    rows = study.rows(ids)
    levels = {
        name: column_values(metadata, name, ids) for name in (columns.group, columns.batch) if name
    }
    task = Task(
        truth=truth_of(metadata, spec, ids),
        labels=spec.labels,
        folds=tuple(
            Fold(np.isin(ids, split.not_held_out), np.isin(ids, split.held_out)) for split in splits
        ),
        depth=study.table.depths[rows],
        richness=rarefied_richness(study, rows),
        levels={name: values for name, values in sorted(levels.items()) if values is not None},
        groups=group_values(metadata, columns.group, ids),
        covariates=covariate_matrix(metadata, columns, ids),
        studies=column_values(metadata, columns.study, ids),
    )
    learned = () if forest is None else learned_baselines(task, study, rows, forest, known)
    return ids, (*trivial_baselines(task, study.seed), *learned)


def rows_for(baseline: Baseline, ids: Sequence[str], wanted: Sequence[str]) -> Baseline:
    """Return the baseline with rows for `wanted` in their order; those that it lacks are NaN."""
    place = {name: row for row, name in enumerate(ids)}
    padded = np.concatenate([baseline.predicted, np.full_like(baseline.predicted[:1], math.nan)])
    return replace(baseline, predicted=padded[[place.get(name, -1) for name in wanted]])


def baselines_by_target(
    table: PredictionTable,
    study: Study,
    splits: Sequence[Split],
    columns: Columns,
    forest: ForestConfig | None = None,
    in_blend: Mapping[str, PredictionTable] | None = None,
) -> dict[str, tuple[Baseline, ...]]:
    """Baselines of each target with the rows of the predictions `table`, learned on the `splits`.

    With `forest` there are learned ones too; what members of the blend predict alone is `in_blend`.
    """
    metadata, known = study.metadata, in_blend or {}
    if metadata is None:
        return {}
    result = {}
    for spec in table.specs:
        ids, fitted = baselines_of(study, splits, spec, metadata, columns, forest, known)
        baselines = [rows_for(one, ids, table.sample_ids) for one in fitted]
        for name, alone in known.items():
            member = Baseline(name, alone.predicted(spec.name), trivial=False)
            baselines.append(rows_for(member, alone.sample_ids, table.sample_ids))
        result[spec.name] = tuple(baselines)
    return result
