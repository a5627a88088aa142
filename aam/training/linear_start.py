"""The linear part of target heads, fitted before training starts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from aam.config import FineTuneConfig
from aam.data.study import Study
from aam.model.aam import Aam
from aam.model.heads import Readout, TargetHead
from aam.training.inference import AsvVectors, run_model
from aam.training.losses import class_weights

Array = npt.NDArray[np.float64]

Floats = npt.NDArray[np.float32]

Labels = npt.NDArray[np.int64]

Rows = npt.NDArray[np.int64]

Linear = tuple[Array, Array]

Model = TypeVar("Model", Ridge, LogisticRegression)

DRAWS = 2

PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)

# Without held-out samples.
UNTRIED = 1e2

# Intercept of a class that no training sample has.
ABSENT = -10.0


def _chosen(models: Sequence[Model], errors: Array) -> Model:
    """The most regularized model whose held-out error is within a standard error of the lowest.

    `models` go from weak to strong penalty; `errors` [models, held-out draws]. The standard error is that of
    the paired difference (the one-standard-error rule of Breiman et al. 1984, section 3.4.3).
    """
    if not errors.shape[1]:
        return models[PENALTIES.index(UNTRIED)]
    apart = errors - errors[errors.mean(axis=1).argmin()]
    near = apart.mean(axis=1) <= apart.std(axis=1) / math.sqrt(max(errors.shape[1] / DRAWS, 1))
    return models[int(np.flatnonzero(near).max())]


def _ridge(x: Array, y: Array, held_x: Array, held_y: Array, weight: Array) -> Linear:
    """Ridge regression; held-out samples choose the penalty by their absolute errors."""
    models = [Ridge(alpha=penalty).fit(x, y, weight) for penalty in PENALTIES]
    errors = [np.abs(model.predict(held_x) - held_y) if len(held_y) else held_y for model in models]
    best = _chosen(models, np.stack(errors))
    return best.coef_[None], np.array([best.intercept_])


def _logistic(x: Array, y: Labels, held_x: Array, held_y: Labels, weight: Array, classes: int) -> Linear:
    """Logistic regression; held-out samples choose the penalty by their likelihoods."""
    known = np.unique(y)
    inside = np.isin(held_y, known)
    true = np.searchsorted(known, held_y[inside])

    def errors(model: LogisticRegression) -> Array:
        if not len(true):
            return np.zeros(0)
        chosen = model.predict_proba(held_x[inside])[np.arange(len(true)), true]
        return np.asarray(-np.log(np.maximum(chosen, 1e-12)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        models = [LogisticRegression(C=1 / penalty, max_iter=200).fit(x, y, weight) for penalty in PENALTIES]
    best = _chosen(models, np.stack([errors(model) for model in models]))
    coefficients, intercepts = best.coef_, best.intercept_
    if len(known) == 2:
        coefficients, intercepts = np.r_[-coefficients, coefficients] / 2, np.r_[-intercepts, intercepts] / 2
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, ABSENT)
    weight[known], bias[known] = coefficients, intercepts
    return weight, bias


def _set(layer: nn.Linear, rows: slice, found: Linear, mean: Array, spread: Array) -> None:
    """Write a linear model of standardized vectors into a layer that reads them as they are."""
    weight = found[0] / spread
    with torch.no_grad():
        layer.weight[rows] = torch.from_numpy(weight).to(layer.weight)
        layer.bias[rows] = torch.from_numpy(found[1] - weight @ mean).to(layer.bias)


def fit_heads(
    network: Aam, study: Study, sides: tuple[Rows, Rows], asvs: AsvVectors, device: torch.device, config: FineTuneConfig
) -> None:
    """Fit the linear part of every target head on the vectors of the training samples, weighted as the loss is.

    `sides` are the rows that train and those that validate; only the strength of regularization looks at the latter.
    """
    (train, validation), runtime = sides, config.runtime
    own = np.tile(np.ones(len(train)) if study.weight is None else study.weight[train].astype(float), DRAWS)

    def draws(rows: Rows) -> Array:
        return np.concatenate([run_model(network, study, rows, device, runtime, n, asvs).read for n in range(DRAWS)])

    drawn = draws(train)
    held_drawn = draws(validation) if len(validation) else drawn[:0]

    def standardized(head: Readout) -> tuple[Array, Array, Array, Array]:
        with torch.inference_mode():
            read = [head.features(torch.from_numpy(rows).float().to(device)) for rows in (drawn, held_drawn)]
        x, held_x = (features.double().cpu().numpy() for features in read)
        mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
        return (x - mean) / spread, (held_x - mean) / spread, mean, spread

    if network.target is not None and study.target is not None:
        _fit_numbers(network.target, study.target[train], study.target[validation], own, *standardized(network.target))
    for column, head in enumerate(network.labels):
        if study.label is None or not isinstance(head, Readout):
            raise TypeError("class heads need the labels of the study")
        x, held_x, mean, spread = standardized(head)
        label, held_label = (np.tile(study.label[rows, column], DRAWS) for rows in (train, validation))
        known, held, classes = label >= 0, held_label >= 0, head.linear.out_features
        (of_class,) = class_weights(config.targets.class_weights, study.label[train][:, [column]], [classes])
        weight = own if of_class is None else own * of_class.double().numpy()[label]
        found = _logistic(x[known], label[known], held_x[held], held_label[held], weight[known], classes)
        _set(head.linear, slice(None), found, mean, spread)


def _fit_numbers(
    head: TargetHead, target: Floats, held_target: Floats, weight: Array,
    x: Array, held_x: Array, mean: Array, spread: Array,
) -> None:  # fmt: skip
    """Fit each numeric column; quantiles start as those of its residuals."""
    for column in range(target.shape[1]):
        y, held_y = (
            np.tile(head.unlinked(torch.from_numpy(values[:, column]).to(head.edges), column).double().cpu(), DRAWS)
            for values in (target, held_target)
        )
        known, held = np.isfinite(y), np.isfinite(held_y)
        found = _ridge(x[known], y[known], held_x[held], held_y[held], weight[known])
        _set(head.linear, slice(column, column + 1), found, mean, spread)
        if head.steps is not None:
            residual = y[known] - (x[known] @ found[0][0] + found[1][0])
            gaps = np.maximum(np.diff(np.quantile(residual, head.levels)), 1e-3)
            place = head.steps.bias.detach().view(len(gaps), -1)
            place[:, column] = torch.from_numpy(np.log(np.expm1(gaps))).to(place)
