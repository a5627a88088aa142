"""The linear part of target heads, fitted before training starts (docs/adr/005)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold
from torch import nn

from aam.config import FineTuneConfig
from aam.data.study import Study
from aam.device.rng import subsample
from aam.model.aam import Aam
from aam.model.heads import Readout
from aam.training.inference import AsvVectors, run_model
from aam.training.losses import class_weights

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

RAREFACTIONS = 2
# The few hundred weights of a linear model need no more training samples, and memory would grow.
MOST_SAMPLES = 40_000
# Samples that choose the penalty, in folds of whole groups.
MOST_INNER, INNER_FOLDS = 4000, 4
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)
# With a single group.
DEFAULT_PENALTY = 1e2
# Intercept of a class that no training sample has.
ABSENT = -10.0


def fit_heads(
    network: Aam,
    study: Study,
    train_rows: Rows,
    asvs: AsvVectors,
    device: torch.device,
    config: FineTuneConfig,
) -> None:
    """Fit the linear part of each target head on the vectors of the training samples.

    Classes weigh as they do in the loss, and groups of `--group-column` choose the penalty.
    """
    rows = train_rows[subsample(len(train_rows), 0, MOST_SAMPLES)]
    runtime, draws = config.runtime, range(RAREFACTIONS)
    read = [run_model(network, study, rows, device, runtime, at, asvs).read for at in draws]
    vectors, labels = np.concatenate(read), study.labels
    center, spread = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    x = (vectors - center) / spread
    names = study.column(study.config.group_column, [study.table.sample_ids[row] for row in rows])
    even = np.ones(len(rows))
    groups = np.unique(names or np.arange(len(rows)), return_inverse=True)[1]

    def write(layer: nn.Linear, at: slice, coefficients: Array, intercepts: Array) -> None:
        """Write a model of standardized vectors into a layer that reads them as they are."""
        scaled = coefficients / spread
        with torch.no_grad():
            layer.weight[at] = torch.from_numpy(scaled).to(layer.weight)
            layer.bias[at] = torch.from_numpy(intercepts - scaled @ center).to(layer.bias)

    if network.target is not None:
        for column, values in enumerate(labels.target[rows].T.astype(np.float64)):
            ridge = _best(_ridge, np.isfinite(values), x, values, even, groups)
            at = slice(column, column + 1)
            write(network.target.linear, at, ridge.coef_[None], np.array([ridge.intercept_]))
    heads = [head for head in network.labels if isinstance(head, Readout)]
    sizes = [head.linear.out_features for head in heads]
    columns = labels.label[rows].T
    weights = class_weights(config.targets.class_weights, columns.T, sizes)
    for head, classes, of_classes in zip(heads, columns, weights, strict=True):
        weight = even if of_classes is None else of_classes.double().numpy()[classes]
        number = head.linear.out_features
        linear = _of_classes(number, classes >= 0, x, classes, weight, groups)
        write(head.linear, slice(None), *linear)


def _ridge(penalty: float) -> Any:
    return Ridge(alpha=penalty)


def _logistic(penalty: float) -> Any:
    return LogisticRegression(C=1 / penalty, max_iter=200)


def _of_classes(
    number: int, known: npt.NDArray[np.bool_], x: Array, classes: Rows, weight: Array, groups: Rows
) -> tuple[Array, Array]:
    """Coefficients [K, W] and intercepts [K] of a logistic regression."""
    coefficients, intercepts = np.zeros((number, x.shape[1])), np.full(number, ABSENT)
    present = np.unique(classes[known])
    if len(present) < 2:
        intercepts[present] = 0.0
        return coefficients, intercepts
    model = _best(_logistic, known, x, classes, weight, groups)
    if len(present) == 2:
        coefficients[present] = np.concatenate([-model.coef_, model.coef_]) / 2
        intercepts[present] = np.concatenate([-model.intercept_, model.intercept_]) / 2
    else:
        coefficients[present], intercepts[present] = model.coef_, model.intercept_
    return coefficients, intercepts


def _errors(model: Any, x: Array, y: npt.NDArray[Any]) -> Array:
    """The error of each sample: absolute, or the negative log-likelihood; NaN of new classes."""
    if isinstance(model, Ridge):
        return np.asarray(np.abs(model.predict(x) - y))
    place = np.searchsorted(model.classes_, y).clip(max=len(model.classes_) - 1)
    likelihood: Array = model.predict_proba(x)[np.arange(len(y)), place]
    likelihood[model.classes_[place] != y] = np.nan
    return np.asarray(-np.log(np.maximum(likelihood, 1e-12)))


def _best(
    make: Callable[[float], Any],
    known: npt.NDArray[np.bool_],
    x: Array,
    y: npt.NDArray[Any],
    weight: Array,
    groups: Rows,
) -> Any:
    """The model with the strongest penalty whose error is within a standard error of the lowest.

    This is the one-standard-error rule of Breiman et al. (1984, section 3.4.3), with paired
    differences. `x` [RAREFACTIONS * n, W] holds several rarefactions of the n samples.
    """
    x = np.concatenate([part[known] for part in np.split(x, RAREFACTIONS)])
    y, weight, groups = y[known], weight[known], groups[known]
    penalty = DEFAULT_PENALTY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        inner = subsample(len(y), 0, MOST_INNER)
        if len(np.unique(groups[inner])) > 1:
            errors = _held_out_errors(make, inner, x, y, weight, groups[inner])
            if errors.shape[1]:
                differences = errors - errors[errors.mean(axis=1).argmin()]
                number = max(errors.shape[1] / RAREFACTIONS, 1)
                limit = differences.std(axis=1) / math.sqrt(number)
                penalty = PENALTIES[int(np.flatnonzero(differences.mean(axis=1) <= limit).max())]
        return make(penalty).fit(x, np.tile(y, RAREFACTIONS), np.tile(weight, RAREFACTIONS))


def _held_out_errors(
    make: Callable[[float], Any],
    rows: Rows,
    x: Array,
    y: npt.NDArray[Any],
    weight: Array,
    groups: Rows,
) -> Array:
    """Errors [penalties, samples] of samples that are predicted from other groups."""
    parts, number = [], len(y)
    folds = GroupKFold(min(INNER_FOLDS, len(np.unique(groups))))
    for learn, held in folds.split(rows, groups=groups):
        learned, other = (
            np.concatenate([rows[part] + at * number for at in range(RAREFACTIONS)])
            for part in (learn, held)
        )
        samples = learned % number
        if len(np.unique(y[samples])) < 2:
            continue
        known = x[learned], y[samples], weight[samples]
        models = [make(penalty).fit(*known) for penalty in PENALTIES]
        parts.append(np.stack([_errors(model, x[other], y[other % number]) for model in models]))
    errors = np.concatenate([np.zeros((len(PENALTIES), 0)), *parts], axis=1)
    return errors[:, np.isfinite(errors).all(axis=0)]
