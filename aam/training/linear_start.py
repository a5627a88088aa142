"""The linear part of target heads, fitted before training starts, by the loss that each column
trains with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from aam.config import FineTuneConfig
from aam.data.study import Study
from aam.model.aam import Aam
from aam.model.heads import Readout
from aam.predict.estimator import inner_folds, subsample
from aam.predict.network import AsvVectors, run_model
from aam.training.losses import class_weights

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Linear = tuple[Array, Array]
Model = TypeVar("Model", Ridge, LogisticRegression)

RAREFACTIONS = 2
# Training samples that a linear model is fitted on: its few hundred weights need no more, and
# memory would grow.
MOST_SAMPLES = 40_000
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)
# Without validation samples to choose the penalty.
DEFAULT_PENALTY = 1e2
# With fewer validation samples, so many training samples or fewer help to choose it, whole groups
# at a time.
ENOUGH_VALIDATION, MOST_INNER = 500, 4000
# Intercept of a class that no training sample has.
ABSENT = -10.0


class Labelled(NamedTuple):
    """Vectors ``[n, W]``, labels, weights and groups ``[n]`` of samples."""

    x: Array
    y: Array
    weight: Array
    groups: Labels

    def part(self, kept: npt.NDArray[np.bool_] | Rows) -> Labelled:
        """Return some of the samples."""
        return Labelled(self.x[kept], self.y[kept], self.weight[kept], self.groups[kept])

    def folds(self) -> list[tuple[Rows, Rows]]:
        """Return inner folds of whole groups, a rarefaction of a sample with its others."""
        names = [f"{number:08d}" for number in range(len(self.y))]
        return inner_folds(names, self.y, 0, self.groups.astype(str), None, 0)


@dataclass(frozen=True, eq=False)
class HeadInputs:
    """What a head reads of the training samples ``[n, W]`` and of the validation samples ``[m,
    W]``, standardized.

    `mean` and `deviation` ``[W]`` are those before; `weight` ``[n]`` is that of the training
    samples, and `groups` int ``[n]`` name those that stay together.
    """

    train: Array
    validation: Array
    mean: Array
    deviation: Array
    weight: Array
    groups: Labels

    def labelled(self, y: Array, validation_y: Array) -> tuple[Labelled, Labelled]:
        """Return the training and validation samples whose labels ``[n]`` and ``[m]`` are not
        NaN.
        """
        m = len(validation_y)
        train = Labelled(self.train, y, self.weight, self.groups)
        validation = Labelled(self.validation, validation_y, np.ones(m), np.zeros(m, np.int64))
        return train.part(np.isfinite(y) & (self.weight > 0)), validation.part(
            np.isfinite(validation_y)
        )


def _most_regularized(models: Sequence[Model], errors: Array) -> Model:
    """Return the most regularized model whose error out of fold is within a standard error of the
    lowest.

    `models` go from weak to strong penalty; `errors` [models, rarefied samples]. The standard error
    is that of the paired difference (the one-standard-error rule of Breiman et al. 1984, section
    3.4.3).
    """
    if not errors.shape[1]:
        return models[PENALTIES.index(DEFAULT_PENALTY)]
    differences = errors - errors[errors.mean(axis=1).argmin()]
    limit = differences.std(axis=1) / math.sqrt(max(errors.shape[1] / RAREFACTIONS, 1))
    return models[int(np.flatnonzero(differences.mean(axis=1) <= limit).max())]


def _best(
    fit: Callable[[Labelled, float], Model],
    error: Callable[[Model, Labelled], Array],
    train: Labelled,
    validation: Labelled,
) -> Model:
    """Return the model of `train` with the penalty that predicts other samples best.

    These are the validation samples, and where they are few the groups of `train` too, each
    predicted by models of the others. Without validation samples the penalty is `DEFAULT_PENALTY`.
    """
    models = [fit(train, penalty) for penalty in PENALTIES]
    errors = [np.stack([error(model, validation) for model in models])]
    few = (
        0 < len(validation.y) < RAREFACTIONS * ENOUGH_VALIDATION
        and len(train.y) <= RAREFACTIONS * MOST_INNER
    )
    for learn, predict in train.folds() if few else ():
        inner, other = train.part(learn), train.part(predict)
        if len(np.unique(inner.y)) > 1:
            errors.append(np.stack([error(fit(inner, penalty), other) for penalty in PENALTIES]))
    return _most_regularized(models, np.concatenate(errors, axis=1))


def _ridge(train: Labelled, validation: Labelled) -> Ridge:
    """Return a ridge regression whose penalty is chosen by absolute errors."""

    def fit(samples: Labelled, penalty: float) -> Ridge:
        return Ridge(alpha=penalty).fit(samples.x, samples.y, samples.weight)

    def error(model: Ridge, samples: Labelled) -> Array:
        return np.abs(model.predict(samples.x) - samples.y) if len(samples.y) else np.zeros(0)

    return _best(fit, error, train, validation)


def _logistic(train: Labelled, validation: Labelled, classes: int) -> Linear:
    """Return a logistic regression whose penalty is chosen by likelihoods."""
    present = np.unique(train.y).astype(np.int64)
    weights, biases = np.zeros((classes, train.x.shape[1])), np.full(classes, ABSENT)
    if len(present) < 2:
        biases[present] = 0.0
        return weights, biases

    def fit(samples: Labelled, penalty: float) -> LogisticRegression:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return LogisticRegression(C=1 / penalty, max_iter=200).fit(
                samples.x, samples.y, samples.weight
            )

    def error(model: LogisticRegression, samples: Labelled) -> Array:
        known = samples.part(np.isin(samples.y, model.classes_))
        if not len(known.y):
            return np.zeros(0)
        true_class = np.searchsorted(model.classes_, known.y)
        likelihood = model.predict_proba(known.x)[np.arange(len(known.y)), true_class]
        return np.asarray(-np.log(np.maximum(likelihood, 1e-12)))

    best = _best(fit, error, train, validation)
    coefficients, intercepts = best.coef_, best.intercept_
    if len(present) == 2:
        coefficients, intercepts = (
            np.r_[-coefficients, coefficients] / 2,
            np.r_[-intercepts, intercepts] / 2,
        )
    weights[present], biases[present] = coefficients, intercepts
    return weights, biases


def _write_layer(layer: nn.Linear, rows: slice, model: Linear, inputs: HeadInputs) -> None:
    """Write a linear model of standardized vectors into a layer that reads them as they are."""
    weight = model[0] / inputs.deviation
    with torch.no_grad():
        layer.weight[rows] = torch.from_numpy(weight).to(layer.weight)
        layer.bias[rows] = torch.from_numpy(model[1] - weight @ inputs.mean).to(layer.bias)


def _groups(study: Study, rows: Rows) -> Labels:
    """Return a number ``[n]`` for the group of each sample; without ``--group-column`` each is its
    own.
    """
    names = study.column(study.config.group_column, [study.table.sample_ids[row] for row in rows])
    return (
        np.arange(len(rows))
        if names is None
        else np.unique(names, return_inverse=True)[1].astype(np.int64)
    )


def fit_heads(
    network: Aam,
    study: Study,
    rows: tuple[Rows, Rows],
    asvs: AsvVectors,
    device: torch.device,
    config: FineTuneConfig,
) -> None:
    """Fit the linear part of every target head on the vectors of the training samples, weighted as
    the loss is.

    `rows` are those of the training and of the validation samples; the latter only help to choose
    the penalty. Of more than `MOST_SAMPLES` training samples so many are used, drawn at random.
    """
    train, validation = rows
    train = train[subsample(len(train), 0, MOST_SAMPLES)]
    sample_weight = np.tile(study.labels.weight[train].astype(float), RAREFACTIONS)
    groups = np.tile(_groups(study, train), RAREFACTIONS)

    def sample_vectors(rows: Rows) -> Array:
        runs = (
            run_model(network, study, rows, device, config.runtime, at, asvs)
            for at in range(RAREFACTIONS)
        )
        return np.concatenate([run.read for run in runs])

    vectors = sample_vectors(train)
    validation_vectors = sample_vectors(validation) if len(validation) else vectors[:0]

    mean, deviation = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    inputs = HeadInputs(
        (vectors - mean) / deviation,
        (validation_vectors - mean) / deviation,
        mean,
        deviation,
        sample_weight,
        groups,
    )
    if network.target is not None and study.labels.target.shape[1]:
        targets = study.labels.target[train], study.labels.target[validation]
        _fit_numbers(network.target, targets, inputs)
    for column, head in enumerate(network.labels):
        if not study.labels.label.shape[1] or not isinstance(head, Readout):
            raise TypeError("class heads need the labels of the study")
        labels = study.labels.label[train, column], study.labels.label[validation, column]
        _fit_classes(head, labels, config.targets.class_weights, inputs)


def _fit_classes(
    head: Readout, labels: tuple[Labels, Labels], weighting: Sequence[str], inputs: HeadInputs
) -> None:
    """Fit one column of classes."""
    classes, weighted = head.linear.out_features, inputs
    label, validation_label = (np.tile(values, RAREFACTIONS) for values in labels)
    (class_weight,) = class_weights(weighting, labels[0][:, None], [classes])
    if class_weight is not None:
        weighted = replace(inputs, weight=inputs.weight * class_weight.double().numpy()[label])
    known, validation_known = (
        np.where(values >= 0, values, np.nan) for values in (label, validation_label)
    )
    model = _logistic(*weighted.labelled(known, validation_known), classes)
    _write_layer(head.linear, slice(None), model, inputs)


def _fit_numbers(
    head: Readout,
    targets: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    inputs: HeadInputs,
) -> None:
    """Fit each numeric column."""
    for column in range(targets[0].shape[1]):
        y, validation_y = (values[:, column].astype(np.float64) for values in targets)
        ridge = _ridge(
            *inputs.labelled(np.tile(y, RAREFACTIONS), np.tile(validation_y, RAREFACTIONS))
        )
        model = ridge.coef_[None], np.array([ridge.intercept_])
        _write_layer(head.linear, slice(column, column + 1), model, inputs)
