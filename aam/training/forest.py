"""What a model is held against on its own splits: trivial and learned baselines, and `aam rf-baseline`."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn import ensemble, neighbors
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from aam.config import DataConfig
from aam.config_commands import ForestConfig, RfBaselineConfig
from aam.config_file import out_of_range
from aam.data.loader import distances_of, rarefied_table
from aam.data.metadata import Metadata, is_number
from aam.data.split import Split, read_sides, restricted, twins_apart
from aam.data.study import Study, divided, division_columns, division_problems, load_study
from aam.data.targets import TargetSpec, fit_targets
from aam.errors import InputError, Problems, shown
from aam.runtime.files import check_writable, write_text
from aam.training.baselines import Baseline, Fold, Task, by_folds, compare, predicted_by, trivial_baselines
from aam.training.metrics import TITLES, Array, Predictions, auroc
from aam.training.predictions import PredictionTable, write_predictions
from aam.training.report import Table, plain_json, plain_lines, with_limits

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


@dataclass(frozen=True)
class Columns:
    """Metadata columns that group the samples of a report."""

    group: str | None = None
    batch: str | None = None
    categories: tuple[str, ...] = ()


# --- learning ----------------------------------------------------------------------------------------------
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


# --- of a study --------------------------------------------------------------------------------------------
def truth_of(metadata: Metadata, spec: TargetSpec, ids: Sequence[str]) -> Array:
    """The target of samples: numbers, or the int index of their class, -1 where it is none of the labels."""
    if spec.kind == "numeric":
        return metadata.numbers(spec.name, ids)
    place = {label: index for index, label in enumerate(spec.labels)}
    return np.array([place.get(value or "", -1) for value in metadata.values(spec.name, ids)], np.int64)


def levels(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    """The values of a column as text, empty where missing; none without a column."""
    return None if column is None else np.array([value or "" for value in metadata.values(column, ids)])


def baselines_of(
    study: Study,
    splits: Sequence[Split],
    spec: TargetSpec,
    metadata: Metadata,
    columns: Columns,
    forest: ForestConfig | None = None,
) -> tuple[tuple[str, ...], tuple[Baseline, ...]]:
    """Samples of the study that have metadata, and baselines on the training side of each split.

    The trivial ones and, with `forest`, the learned ones.
    """
    ids = tuple(name for name in study.table.sample_ids if name in metadata)
    rows = study.rows(ids)
    by = {name: levels(metadata, name, ids) for name in (columns.group, columns.batch) if name}
    task = Task(
        truth=truth_of(metadata, spec, ids),
        labels=spec.labels,
        folds=tuple(Fold(np.isin(ids, split.learned), np.isin(ids, split.held_out)) for split in splits),
        depth=study.table.depths[rows],
        richness=np.diff(rarefied_table(study).indptr)[rows].astype(np.int64),
        levels={name: values for name, values in sorted(by.items()) if values is not None},
        groups=levels(metadata, columns.group, ids),
    )
    learned = () if forest is None else learned_baselines(task, study, rows, forest)
    return ids, (*trivial_baselines(task, study.seed), *learned)


def laid_out(baseline: Baseline, ids: Sequence[str], wanted: Sequence[str]) -> Baseline:
    """Rows for `wanted` in their order; those that the baseline lacks are NaN."""
    place = {name: row for row, name in enumerate(ids)}
    padded = np.concatenate([baseline.predicted, np.full_like(baseline.predicted[:1], math.nan)])
    return replace(baseline, predicted=padded[[place.get(name, -1) for name in wanted]])


def _as_table(
    ids: Sequence[str], found: Sequence[tuple[TargetSpec, tuple[Baseline, ...]]], splits: Sequence[Split]
) -> PredictionTable:
    """Held-out predictions as one table, whose targets are called TARGET: BASELINE."""
    fold = {name: split.test_fold for split in splits for name in split.held_out}
    every = [(replace(spec, name=f"{spec.name}: {one.name}"), one.predicted) for spec, many in found for one in many]
    table = PredictionTable(
        tuple(ids),
        tuple(spec for spec, _ in every),
        {spec.name: predicted for spec, predicted in every if not spec.labels},
        {},
        {spec.name: predicted for spec, predicted in every if spec.labels},
        ("",) * len(ids),
        tuple(fold.get(name, "") for name in ids),
    )
    return table.with_rows([name for name in ids if name in fold], {})


def baselines_in(table: PredictionTable, spec: TargetSpec, target: PredictionTable) -> tuple[Baseline, ...]:
    """Those that `rf_baseline` wrote for a target, laid out like the predictions `target`.

    Raises `InputError`: no baseline of any target, other classes, or a sample that another fold held out.
    """
    found, fold = [], dict(zip(table.sample_ids, table.folds, strict=True))
    moved = [n for n, own in zip(target.sample_ids, target.folds, strict=True) if own and fold.get(n, own) != own]
    if moved:
        raise InputError(f"--baselines: {len(moved)} samples were held out in another fold: {shown(moved)}; one split")
    for other in table.specs:
        if other.name.startswith(f"{spec.name}: "):
            if unknown := set(other.labels) - set(spec.labels):
                raise InputError(f"--baselines: {other.name!r} has classes {shown(unknown)} that the model has not")
            name = other.name.removeprefix(f"{spec.name}: ")
            predicted = table.values.get(other.name)
            if predicted is None:
                predicted = np.zeros((len(table.sample_ids), len(spec.labels)))
                predicted[:, [spec.labels.index(label) for label in other.labels]] = table.probabilities[other.name]
            one = Baseline(name, predicted, trivial=name not in LEARNED)
            found.append(laid_out(one, table.sample_ids, target.sample_ids))
    if not any(other.name.startswith(f"{one.name}: ") for one in target.specs for other in table.specs):
        names = shown([one.name for one in table.specs])
        raise InputError(f"--baselines: no column '{spec.name}: BASELINE'; it has {names}; run `aam rf-baseline` again")
    return tuple(found)


# --- command -----------------------------------------------------------------------------------------------
def _checked(config: RfBaselineConfig) -> tuple[Path, tuple[Path, Path] | None]:
    """Output and files of sample ids; `InputError` with every option that is missing or contradicts another."""
    data, given, problems = config.data, (config.train_samples, config.val_samples), Problems()
    problems.found += out_of_range(config) + division_problems(data)
    if not config.metadata_column:
        problems.add("--metadata-column: not given; name the column to predict")
    if (given[0] is None) != (given[1] is None):
        problems.add("--train-samples and --val-samples need each other")
    if given[0] is not None and (data.split or data.split_column or data.cv):
        problems.add("--train-samples divides the samples already; leave out --split, --split-column and --cv")
    if config.output is None:
        problems.add("--output: not given; name the .tsv of the predictions")
    try:
        features_tried(config.forest.max_features)
    except InputError as error:
        problems.extend(error)
    problems.raise_if_any()
    output = Path(config.output or "")
    for path in (output, output.with_suffix(".json")):
        check_writable(path, config.overwrite)
    return output, None if given[0] is None or given[1] is None else (given[0], given[1])


def _splits(config: RfBaselineConfig, study: Study, files: tuple[Path, Path] | None) -> tuple[Split, ...]:
    if files is None:
        splits = divided(study, config.data, config.seed)
    else:
        named = read_sides(*files)
        present = sorted(set(named.sample_ids) & set(study.table.sample_ids))
        if lost := len(named.sample_ids) - len(present):
            log.warning("%d of %d samples named are not in the table at this depth", lost, len(named.sample_ids))
        splits = (restricted(named, present),)
    if not any(split.held_out for split in splits):
        raise InputError("no sample is held out; pass --cv, --split, --split-column, or a --test-size above 0")
    for split in splits:
        for said in twins_apart(study.table, split):
            log.warning("warning: %s", said)
    return splits


def rf_baseline(config: RfBaselineConfig) -> None:
    """Predict held-out samples with every baseline, write the predictions and, beside them, the figures.

    Raises `InputError`: options, files, targets or splits that cannot be used, before any long work.
    """
    output, files = _checked(config)
    data = DataConfig(**{item.name: getattr(config.data, item.name) for item in dataclasses.fields(config.data)})
    names = config.metadata_column
    wanted = [*names, *division_columns(data)]
    study = load_study(data, sys.maxsize, config.seed, wanted, names, config.classifier)
    if study.metadata is None:
        raise InputError("--metadata: not given; name the sample metadata")
    splits = _splits(config, study, files)
    metadata, columns = study.metadata, Columns(data.group_column, data.batch_column)
    specs = fit_targets(metadata, names, study.table.sample_ids, classifier=config.classifier, transform="none").specs
    every, figures = [], {}
    for spec in specs:
        ids, found = baselines_of(study, splits, spec, metadata, columns, config.forest)
        every.append((spec, found))
        group = levels(metadata, columns.group, ids)
        constant = Predictions(ids, truth_of(metadata, spec, ids), found[0].predicted, spec.labels, groups=group)
        rows = compare(constant, found, config.seed)
        keys = list(rows[0].figures)
        cells = ((one.name, str(one.samples), *(with_limits(one.figures[key]) for key in keys)) for one in rows)
        for line in plain_lines(Table(spec.name, ("", "samples", *(TITLES[key] for key in keys)), tuple(cells))):
            log.info("%s", line)
        figures[spec.name] = {one.name: {key: dataclasses.asdict(one.figures[key]) for key in keys} for one in rows}
    write_predictions(output, _as_table(ids, every, splits))
    write_text(output.with_suffix(".json"), json.dumps(plain_json({"baselines": figures}), indent=1) + "\n")
    log.info("%s: for `aam evaluate --baselines`", output)
