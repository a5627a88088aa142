"""The linear part of target heads, fitted before training starts, by the loss that each column trains with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold
from torch import nn

from aam.config import FineTuneConfig, TargetConfig
from aam.data.study import Study
from aam.model.aam import Aam
from aam.model.heads import Readout, TargetHead
from aam.training.inference import AsvVectors, run_model
from aam.training.losses import class_weights
from aam.training.members.truth import learned_places

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Linear = tuple[Array, Array]
Model = TypeVar("Model", Ridge, LogisticRegression)

RAREFACTIONS = 2
# Training samples that a linear model is fitted on: its few hundred weights need no more, and memory would grow.
MOST_SAMPLES = 40_000
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)
# Without held-out samples to choose the penalty.
DEFAULT_PENALTY = 1e2
# Intercept of a class that no training sample has.
ABSENT = -10.0
# Folds that give out-of-fold residuals, from which quantiles start.
RESIDUAL_FOLDS = 5
# The pinball loss is rounded off over this share of a standard deviation, so that it has a gradient everywhere.
ROUNDING = 0.02


@dataclass(frozen=True, eq=False)
class HeadInputs:
    """What a head reads of the training samples ``[n, W]`` and of the validation samples ``[m, W]``, standardized.

    `mean` and `spread` ``[W]`` are those before; `groups` int ``[n]`` name the training samples that stay together.
    """

    train: Array
    validation: Array
    mean: Array
    spread: Array
    groups: Labels


def _most_regularized(models: Sequence[Model], errors: Array) -> Model:
    """Return the most regularized model whose held-out error is within a standard error of the lowest.

    `models` go from weak to strong penalty; `errors` [models, held-out rarefactions]. The standard error is that of
    the paired difference (the one-standard-error rule of Breiman et al. 1984, section 3.4.3).
    """
    if not errors.shape[1]:
        return models[PENALTIES.index(DEFAULT_PENALTY)]
    differences = errors - errors[errors.mean(axis=1).argmin()]
    limit = differences.std(axis=1) / math.sqrt(max(errors.shape[1] / RAREFACTIONS, 1))
    return models[int(np.flatnonzero(differences.mean(axis=1) <= limit).max())]


def _ridge(x: Array, y: Array, held_x: Array, held_y: Array, weight: Array) -> Ridge:
    """Return a ridge regression; held-out samples choose the penalty by their absolute errors."""
    models = [Ridge(alpha=penalty).fit(x, y, weight) for penalty in PENALTIES]
    errors = [np.abs(model.predict(held_x) - held_y) if len(held_y) else held_y for model in models]
    return _most_regularized(models, np.stack(errors))


def pinball_ridge(x: Array, y: Array, weight: Array, level: float, start: Ridge) -> Linear:
    """Return the linear model that minimizes the pinball loss at `level`, with the penalty of `start`.

    The pinball loss (Koenker and Bassett 1978) is rounded off near 0; ``max(level e, (level - 1) e)`` is also the
    asymmetric loss with ``level = under / (over + under)``, up to a factor.
    """
    spread = max(float(np.std(y)), 1e-6)
    width, penalty = ROUNDING * spread, start.alpha / (2 * spread)
    residual = y - start.predict(x)
    initial = np.append(start.coef_, start.intercept_ + np.quantile(residual, level))

    def objective(parameters: Array) -> tuple[float, Array]:
        error = y - x @ parameters[:-1] - parameters[-1]
        scaled = np.clip(error / width, -1, 1)
        # Huber's rounding of |e| / 2, plus the tilt that makes it the pinball loss.
        rounded = np.where(np.abs(error) < width, (error**2 / width + width) / 4, np.abs(error) / 2)
        loss = weight @ (rounded + (level - 0.5) * error) + 0.5 * penalty * parameters[:-1] @ parameters[:-1]
        slope = weight * (scaled / 2 + level - 0.5)
        return float(loss), np.append(penalty * parameters[:-1] - slope @ x, -slope.sum())

    best = minimize(objective, initial, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    return best[None, :-1], best[-1:]


def _logistic(x: Array, y: Labels, held_x: Array, held_y: Labels, weight: Array, classes: int) -> Linear:
    """Return a logistic regression; held-out samples choose the penalty by their likelihoods."""
    present = np.unique(y)
    scored = np.isin(held_y, present)
    true_class = np.searchsorted(present, held_y[scored])

    def errors(model: LogisticRegression) -> Array:
        if not len(true_class):
            return np.zeros(0)
        likelihood = model.predict_proba(held_x[scored])[np.arange(len(true_class)), true_class]
        return np.asarray(-np.log(np.maximum(likelihood, 1e-12)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        models = [LogisticRegression(C=1 / penalty, max_iter=200).fit(x, y, weight) for penalty in PENALTIES]
    best = _most_regularized(models, np.stack([errors(model) for model in models]))
    coefficients, intercepts = best.coef_, best.intercept_
    if len(present) == 2:
        coefficients, intercepts = np.r_[-coefficients, coefficients] / 2, np.r_[-intercepts, intercepts] / 2
    weights, biases = np.zeros((classes, x.shape[1])), np.full(classes, ABSENT)
    weights[present], biases[present] = coefficients, intercepts
    return weights, biases


def _write_layer(layer: nn.Linear, rows: slice, model: Linear, inputs: HeadInputs) -> None:
    """Write a linear model of standardized vectors into a layer that reads them as they are."""
    weight = model[0] / inputs.spread
    with torch.no_grad():
        layer.weight[rows] = torch.from_numpy(weight).to(layer.weight)
        layer.bias[rows] = torch.from_numpy(model[1] - weight @ inputs.mean).to(layer.bias)


def _groups(study: Study, rows: Rows) -> Labels:
    """Return a number ``[n]`` for the group of each sample; without ``--group-column`` each is its own."""
    column = study.config.group_column
    if column is None or study.metadata is None:
        return np.arange(len(rows))
    names = study.metadata.values(column, [study.table.sample_ids[row] for row in rows])
    return np.unique([str(name) for name in names], return_inverse=True)[1].astype(np.int64)


def fit_heads(
    network: Aam, study: Study, rows: tuple[Rows, Rows], asvs: AsvVectors, device: torch.device, config: FineTuneConfig
) -> None:
    """Fit the linear part of every target head on the vectors of the training samples, weighted as the loss is.

    `rows` are those of the training and of the validation samples; the latter only choose the penalty. Of more than
    `MOST_SAMPLES` training samples so many are used, drawn at random.
    """
    train, validation = rows
    train = train[learned_places(len(train), 0, MOST_SAMPLES)]
    runtime = config.runtime
    sample_weight = np.ones(len(train)) if study.weight is None else study.weight[train].astype(float)
    sample_weight = np.tile(sample_weight, RAREFACTIONS)
    groups = np.tile(_groups(study, train), RAREFACTIONS)

    def sample_vectors(rows: Rows) -> Array:
        runs = [run_model(network, study, rows, device, runtime, number, asvs) for number in range(RAREFACTIONS)]
        return np.concatenate([run.read for run in runs])

    vectors = sample_vectors(train)
    held_vectors = sample_vectors(validation) if len(validation) else vectors[:0]

    def head_inputs(head: Readout) -> HeadInputs:
        with torch.inference_mode():
            x, held_x = (
                head.features(torch.from_numpy(values).float().to(device)).double().cpu().numpy()
                for values in (vectors, held_vectors)
            )
        mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
        return HeadInputs((x - mean) / spread, (held_x - mean) / spread, mean, spread, groups)

    if network.target is not None and study.target is not None:
        targets = study.target[train], study.target[validation]
        _fit_numbers(
            network.target, targets, sample_weight, head_inputs(network.target), network.losses, config.targets
        )
    for column, head in enumerate(network.labels):
        if study.label is None or not isinstance(head, Readout):
            raise TypeError("class heads need the labels of the study")
        inputs = head_inputs(head)
        label, held_label = (np.tile(study.label[subset, column], RAREFACTIONS) for subset in (train, validation))
        labelled = (label >= 0) & (sample_weight > 0)
        held_labelled = held_label >= 0
        classes = head.linear.out_features
        (class_weight,) = class_weights(config.targets.class_weights, study.label[train][:, [column]], [classes])
        weight = sample_weight if class_weight is None else sample_weight * class_weight.double().numpy()[label]
        model = _logistic(
            inputs.train[labelled], label[labelled], inputs.validation[held_labelled], held_label[held_labelled],
            weight[labelled], classes,
        )  # fmt: skip
        _write_layer(head.linear, slice(None), model, inputs)


def _fit_numbers(
    head: TargetHead,
    targets: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    weight: Array,
    inputs: HeadInputs,
    losses: Sequence[str],
    options: TargetConfig,
) -> None:
    """Fit each numeric column by its own loss; quantiles start as those of out-of-fold residuals."""
    for column in range(targets[0].shape[1]):
        y, held_y = (
            np.tile(
                head.unlinked(torch.from_numpy(values[:, column]).to(head.edges), column).double().cpu(), RAREFACTIONS
            )
            for values in targets
        )
        present = np.isfinite(y) & (weight > 0)
        held_present = np.isfinite(held_y)
        x, y, present_weight = inputs.train[present], y[present], weight[present]
        ridge = _ridge(x, y, inputs.validation[held_present], held_y[held_present], present_weight)
        model: Linear = ridge.coef_[None], np.array([ridge.intercept_])
        level = _level(losses[column] if losses else options.loss_type, options)
        if level is not None:
            model = pinball_ridge(x, y, present_weight, level, ridge)
        _write_layer(head.linear, slice(column, column + 1), model, inputs)
        if head.steps is not None:
            residual = _out_of_fold_residuals(x, y, present_weight, inputs.groups[present], ridge)
            gaps = np.maximum(np.diff(np.quantile(residual, head.levels)), 1e-3)
            biases = head.steps.bias.detach().view(len(gaps), -1)
            biases[:, column] = torch.from_numpy(np.log(np.expm1(gaps))).to(biases)


def _level(loss: str, options: TargetConfig) -> float | None:
    """Return the quantile that minimizes a loss; None where the mean does, or nearly."""
    if loss == "asymmetric":
        return options.under_penalty / (options.over_penalty + options.under_penalty)
    return 0.5 if loss in ("quantile", "mae") else None


def _out_of_fold_residuals(x: Array, y: Array, weight: Array, groups: Labels, ridge: Ridge) -> Array:
    """Return residuals of samples that a median regression has not seen, whole groups at a time.

    Those that it has seen are too small: quantiles that start from them hold too few new samples.
    """
    folds = min(RESIDUAL_FOLDS, len(np.unique(groups)))
    if folds < 2:
        return np.asarray(y - ridge.predict(x))
    residual = np.empty_like(y)
    for fit, held in GroupKFold(folds).split(x, y, groups):
        start = Ridge(alpha=ridge.alpha).fit(x[fit], y[fit], weight[fit])
        coefficients, intercept = pinball_ridge(x[fit], y[fit], weight[fit], 0.5, start)
        residual[held] = y[held] - x[held] @ coefficients[0] - intercept[0]
    return residual
