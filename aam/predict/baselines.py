"""Baselines: what a report compares a model with on the splits of its study."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn import ensemble
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from aam.config import PREDICTION_PASSES
from aam.data.loader import distances_of
from aam.data.rarefaction import rarefied_table
from aam.data.splits import Split
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.evaluate import comparison, predictions
from aam.evaluate.comparison import Baseline
from aam.evaluate.predictions import PredictionTable, combined
from aam.options import RuntimeConfig, not_none
from aam.predict import estimator
from aam.predict.blend import DEFAULT_MEMBERS, MEMBERS, Blend
from aam.predict.column_estimators import LevelMedian, LevelShares
from aam.predict.estimator import CountsEstimator, Samples
from aam.predict.out_of_fold import Fold, folds_of, out_of_fold
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel
from aam.typing import Array, Bools, Floats

log = logging.getLogger("aam")

# Members of a blend that are baselines when they predict alone.
IN_BLEND = {member.description: name for name, member in MEMBERS.items()}

BOOSTING, NEIGHBOURS = "gradient boosting", "nearest neighbours on UniFrac"

# What q2-sample-classifier 2024.10 fits by default: scikit-learn's forest of 100 trees.
FIELD_DEFAULT = "random forest on counts, as q2-sample-classifier"

# Distances between more samples would fill the memory.
MAX_NEIGHBOUR_SAMPLES = 20_000
NEIGHBOUR_COUNT = 10

# Folds by default; the size of a study that is cross-validated by default; and the number of
# samples up to which a report compares the model with strong baselines.
DEFAULT_FOLDS, MOST_FOLD_ROWS, MOST_CELLS = 5, 1_500, 20_000_000
MOST_BASELINE_ROWS = MOST_FOLD_ROWS

# The time of boosting grows with the features, the classes and the trees.
BOOSTED_FEATURES, BOOSTED_TREES = 500, 50

# Trees of the forest on a few columns.
TREES = 100


@dataclass(frozen=True, eq=False)
class TargetData:
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
    def units(self) -> Array:
        """The group of each sample, or the sample, [N]."""
        return np.arange(len(self.truth)) if self.groups is None else self.groups

    @property
    def has_truth(self) -> Bools:
        """Samples with a truth, [N]."""
        return np.asarray(self.truth >= 0 if self.labels else np.isfinite(self.truth))

    def out_of_fold(self, estimator: BaseEstimator, X: Any) -> Array:
        """Held-out predictions [N] or [N, K] of an estimator that reads X: samples or inputs."""
        names = ("groups", "studies") if isinstance(estimator, CountsEstimator) else ()
        by_sample = {name: getattr(self, name) for name in names}
        return out_of_fold(estimator, X, self.truth, self.folds, len(self.labels), **by_sample)


def covariate_matrix(study: Study) -> Array:
    """Covariates of the samples, float64 [N, C], whose city-block distance is that of Gower (1971).

    Two categories of a column, and its smallest and largest number, are 1 apart; a missing number
    is half a column from any other. The distance of two samples is the mean over the columns.
    """
    ids, metadata = study.table.sample_ids, not_none(study.metadata)
    covariates, blocks = study.columns.covariates, [np.zeros((len(ids), 0))]
    for name in covariates.categorical_columns:
        values = np.array([value or "" for value in metadata.values(name, ids)])
        blocks.append((values[:, None] == np.unique(values)) / 2)
    for name in covariates.numeric_columns:
        numbers = metadata.numbers(name, ids)
        missing = np.isnan(numbers)
        low, high = (0.0, 0.0) if missing.all() else (np.nanmin(numbers), np.nanmax(numbers))
        scaled = np.where(missing, 0.5, (numbers - low) / (high - low if high > low else 1.0))
        blocks.append(np.stack([scaled, missing / 2], axis=1))
    return np.concatenate(blocks, axis=1) / max(len(covariates.columns), 1)


# --- baselines that do not look at ASVs ---------------------------------------------------------


def _forest(classes: bool, **options: Any) -> BaseEstimator:
    """A random forest of `TREES` trees; options are those of scikit-learn."""
    kind = ensemble.RandomForestClassifier if classes else ensemble.RandomForestRegressor
    return kind(TREES, **options)


def _trivial_estimators(task: TargetData, seed: int) -> dict[str, tuple[BaseEstimator, Array]]:
    """Estimators that do not look at which ASVs a sample has, and what they read, by name."""
    classes = bool(task.labels)
    # Every branching looks at all of a few columns.
    forest = partial(_forest, classes, max_features=1.0, random_state=seed)
    wide = forest(min_samples_leaf=10)
    if classes:
        estimators = {comparison.MAJORITY: (DummyClassifier(strategy="most_frequent"), task.depth)}
    else:
        estimators = {comparison.MEDIAN: (DummyRegressor(strategy="median"), task.depth)}
    if task.covariates is not None and task.covariates.shape[1]:
        estimators[comparison.COVARIATES] = forest(min_samples_leaf=3), task.covariates
    columns = {
        comparison.DEPTH_ALONE: np.log1p(task.depth),
        comparison.RICHNESS_ALONE: np.log1p(task.richness),
    }
    columns = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if len(columns) == 2:
        both = np.stack([*columns.values()], axis=1)
        estimators[comparison.DEPTH_AND_RICHNESS] = wide, both
    for name, values in columns.items():
        estimators[name] = wide, values[:, None]
        if len(task.labels) == 2:
            centred = (values - np.median(values))[:, None]
            estimators[name] = LogisticRegression(), centred
    for column, levels in task.levels.items():
        name = f"the {column}'s {'classes' if classes else 'median'}"
        estimators[name] = LevelShares() if classes else LevelMedian(), levels
    return estimators


def trivial_baselines(task: TargetData, seed: int = 0) -> tuple[Baseline, ...]:
    """Baselines that do not look at which ASVs a sample has.

    The median or majority class; covariates; sequencing depth and richness, together and each
    alone; the median or class shares of the sample's own level of each column of `task.levels`. A
    value that is the same in all samples, and a level that training lacks, give no baseline.
    """
    baselines = []
    for name, (learner, values) in _trivial_estimators(task, seed).items():
        baseline = Baseline(name, task.out_of_fold(learner, values))
        if baseline.constant or np.isfinite(baseline.predicted).any():
            baselines.append(baseline)
    return tuple(baselines)


# --- baselines that learn from ASVs -------------------------------------------------------------


def make_baselines(classes: bool, *parameters: int) -> dict[str, CountsEstimator]:
    """The strong baselines that are estimators on counts, by name.

    `parameters` are depth, passes and seed.
    """
    kind = 0 if classes else 1
    trees, linear = (MEMBERS[name].estimators[kind] for name in ("forest", "presence"))
    return {
        "linear model of log-ratios": linear(*parameters, "clr"),
        MEMBERS["forest"].description: trees(*parameters),
        MEMBERS["presence"].description: linear(*parameters),
    }


def boosting(classes: bool, samples: Samples, study: Study) -> tuple[BaseEstimator, Array]:
    """Gradient boosting by histograms, and the shares and covariates of samples that it reads."""
    rarefied = samples.rarefied(study.depth, study.seed, 0)
    common = estimator.common_names([rarefied])
    names = estimator.informative_names([rarefied], common, BOOSTED_FEATURES)
    shares = estimator.feature_values("shares", rarefied, names).toarray()
    kind: Any = ensemble.HistGradientBoostingClassifier
    if not classes:
        kind = partial(ensemble.HistGradientBoostingRegressor, loss="absolute_error")
    trees = kind(max_iter=BOOSTED_TREES, random_state=study.seed)
    return trees, np.hstack([shares, samples.covariates])


def _without_distances(study: Study, samples: int) -> str:
    """Why samples are not compared by UniFrac; empty if they are."""
    if study.metric is None:
        return "it needs --tree, a tree of these ASVs"
    is_large = samples > MAX_NEIGHBOUR_SAMPLES
    return f"{samples:,} samples, and it takes {MAX_NEIGHBOUR_SAMPLES:,}" if is_large else ""


def unifrac_distances(study: Study, samples: Samples, passes: int) -> Floats | None:
    """UniFrac distances between samples, the mean over several rarefactions, plus those of their
    covariates, [N, N]; None without a tree or a matrix.
    """
    if _without_distances(study, len(samples)):
        return None
    draws = []
    for rarefaction in samples.rarefactions(study.depth, study.seed, passes):
        counts = sparse.csr_matrix(rarefaction.counts.astype(np.int64))
        distance = distances_of(study, counts, study.rows(samples.sample_ids))
        if distance is not None:
            values = np.maximum(distance.numpy(), 0).astype(np.float64)
            draws.append(values + cdist(samples.covariates, samples.covariates, "cityblock"))
    return np.mean(draws, axis=0) if draws else None


def strong_baselines(
    task: TargetData, study: Study, passes: int, in_blend: Collection[str], target: str
) -> tuple[Baseline, ...]:
    """Held-out predictions of estimators that predict a target alone, except those `in_blend`."""
    samples, classes = not_none(task.samples), bool(task.labels)
    # Drawn once for all folds and estimators.
    for training in (True, False):
        samples.rarefactions(study.depth, study.seed, passes, training)
    estimators: dict[str, tuple[BaseEstimator, Any]] = {
        name: (learner, samples)
        for name, learner in make_baselines(classes, study.depth, passes, study.seed).items()
        if name not in in_blend
    }
    forest = _forest(classes, n_jobs=torch.get_num_threads(), random_state=study.seed)
    estimators[FIELD_DEFAULT] = forest, samples.counts.astype(np.float32).toarray()
    estimators[BOOSTING] = boosting(classes, samples, study)
    if (distances := unifrac_distances(study, samples, passes)) is not None:
        neighbours = KNeighborsClassifier if classes else KNeighborsRegressor
        sizes = [int(task.has_truth[fold.train].sum()) for fold in task.folds]
        number = max(1, min([NEIGHBOUR_COUNT, *sizes]))
        nearest = neighbours(number, metric="precomputed", weights="distance")
        estimators[NEIGHBOURS] = nearest, distances
    baselines = []
    for name, (learner, inputs) in estimators.items():
        begun = time.monotonic()
        predicted = task.out_of_fold(learner, inputs)
        baselines.append(Baseline(name, predicted, trivial=False))
        log.info("baseline %s of %s: %.0f s", name, target, time.monotonic() - begun)
    return tuple(baselines)


def is_quick(samples: int, asvs: int, targets: int, folds: int) -> bool:
    """Whether folds and strong baselines of a study take about two minutes on two cores, or less.

    That is up to five folds of `MOST_FOLD_ROWS` samples for each target and `MOST_CELLS` samples
    times ASVs, or more folds of fewer samples.
    """
    rows = samples * targets * max(1.0, folds / DEFAULT_FOLDS)
    return rows <= MOST_FOLD_ROWS and rows * asvs <= MOST_CELLS


def has_strong_baselines(study: Study, targets: int, folds: int) -> bool:
    """Whether a report compares predictions of a study with strong baselines."""
    samples, asvs = study.table.shape
    return samples <= MOST_BASELINE_ROWS and is_quick(samples, asvs, targets, folds)


# --- the baselines of a study -------------------------------------------------------------------


def target_data(study: Study, splits: Sequence[Split], spec: TargetSpec) -> TargetData:
    """Data of one target that baselines may use."""
    ids, metadata, levels = study.table.sample_ids, not_none(study.metadata), dict[str, Array]()
    covariates, data = covariate_matrix(study), study.config
    for name in sorted(filter(None, {data.group_column, data.batch_column})):
        levels[name] = not_none(predictions.column_values(metadata, name, ids))
    return TargetData(
        truth=spec.truth(metadata, ids),
        labels=spec.labels,
        folds=folds_of(splits, ids),
        depth=study.table.depths,
        richness=np.diff(rarefied_table(study).indptr),
        levels=levels,
        groups=predictions.column_values(metadata, data.group_column, ids, groups=True),
        studies=predictions.column_values(metadata, data.study_column, ids),
        covariates=covariates,
        samples=replace(Samples.of_study(study, np.arange(len(ids))), covariates=covariates),
    )


def baselines_of(
    study: Study,
    splits: Sequence[Split],
    spec: TargetSpec,
    strong: bool = False,
    in_blend: Collection[str] = (),
    passes: int = 3,
) -> tuple[Baseline, ...]:
    """Baselines that learn from the training samples of each split and predict every sample: the
    trivial ones and, if asked for, the strong ones except those `in_blend`.
    """
    task = target_data(study, splits, spec)
    baselines = trivial_baselines(task, study.seed)
    if strong:
        baselines += strong_baselines(task, study, passes, in_blend, spec.name)
    return baselines


def _is_baseline(name: str, blend: Blend) -> bool:
    """Whether a member of a blend is a baseline: a network only where others predict with it."""
    return name in blend.members and (name in DEFAULT_MEMBERS or len(blend.members) > 1)


def alone_in_blend(
    models: Sequence[SavedModel],
    study: Study,
    sample_ids: Sequence[str],
    runtime: RuntimeConfig,
    passes: int = PREDICTION_PASSES,
    **place: Any,
) -> dict[str, PredictionTable]:
    """Predictions of the members that are baselines when they predict alone, by baseline.

    `place` is fold and studies of the samples, as in `predict_rows`.
    """
    by_baseline = dict[str, PredictionTable]()
    for baseline, name in IN_BLEND.items():
        if all(_is_baseline(name, saved.blend) for saved in models):
            alone = [saved.only(name) for saved in models]
            inputs = study, sample_ids, runtime, passes
            by_baseline[baseline] = combined([predict_rows(x, *inputs, **place) for x in alone])
    return by_baseline


def baselines_by_target(
    table: PredictionTable,
    study: Study,
    splits: Sequence[Split],
    strong: bool = False,
    in_blend: Mapping[str, PredictionTable] | None = None,
) -> dict[str, tuple[Baseline, ...]]:
    """Baselines of each target with the rows of the predictions `table`, learned on the `splits`.

    If asked for there are `strong` ones; those that are members of the blend are `in_blend`.
    """
    members, ids, new_ids = in_blend or {}, study.table.sample_ids, table.sample_ids
    result = dict[str, tuple[Baseline, ...]]()
    if strong and (reason := _without_distances(study, len(study.table))):
        log.info("baseline %s: left out: %s", NEIGHBOURS, reason)
    for spec in table.specs:
        aligned = [
            replace(baseline, predicted=_aligned(baseline.predicted, ids, new_ids))
            for baseline in baselines_of(study, splits, spec, strong, members)
        ]
        for name, alone in members.items():
            predicted = _aligned(alone.predicted(spec.name), alone.sample_ids, new_ids)
            aligned.append(Baseline(name, predicted, trivial=False))
        result[spec.name] = tuple(aligned)
    return result


def _aligned(predicted: Array, ids: Sequence[str], new_ids: Sequence[str]) -> Array:
    """Predictions of the samples `ids` in the order of `new_ids`, NaN for those that they lack."""
    padded = np.concatenate([predicted, np.full_like(predicted[:1], math.nan)])
    return np.asarray(padded[pd.Index(ids).get_indexer(list(new_ids))])
