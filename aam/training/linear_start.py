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
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from aam.config import FineTuneConfig, TargetConfig
from aam.data.study import Study
from aam.model.aam import Aam
from aam.model.heads import Readout, TargetHead
from aam.predict.learner import inner_folds, make_truth, subsample
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
# The pinball loss is rounded off over this share of a standard deviation, so that it has a gradient
# everywhere.
ROUNDING = 0.02


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
        truth = make_truth(self.y, 0)
        names = [f"{number:08d}" for number in range(len(self.y))]
        return inner_folds(truth, names, [str(group) for group in self.groups], 0)


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


def pinball_ridge(x: Array, y: Array, weight: Array, level: float, start: Ridge) -> Linear:
    """Return the linear model that minimizes the pinball loss at `level`, with the penalty of
    `start`.

    The pinball loss (Koenker and Bassett 1978) is rounded off near 0; ``max(level e, (level - 1)
    e)`` is also the asymmetric loss with ``level = under / (over + under)``, up to a factor.
    """
    deviation = max(float(np.std(y)), 1e-6)
    width, penalty = ROUNDING * deviation, start.alpha / (2 * deviation)
    residual = y - start.predict(x)
    initial = np.append(start.coef_, start.intercept_ + np.quantile(residual, level))

    def objective(parameters: Array) -> tuple[float, Array]:
        error = y - x @ parameters[:-1] - parameters[-1]
        scaled = np.clip(error / width, -1, 1)
        # Huber's rounding of |e| / 2, plus the tilt that makes it the pinball loss.
        rounded = np.where(np.abs(error) < width, (error**2 / width + width) / 4, np.abs(error) / 2)
        loss = (
            weight @ (rounded + (level - 0.5) * error)
            + 0.5 * penalty * parameters[:-1] @ parameters[:-1]
        )
        slope = weight * (scaled / 2 + level - 0.5)
        return float(loss), np.append(penalty * parameters[:-1] - slope @ x, -slope.sum())

    best = minimize(objective, initial, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    return best[None, :-1], best[-1:]


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

    def head_inputs(head: Readout) -> HeadInputs:
        with torch.inference_mode():
            x, validation_x = (
                head.features(torch.from_numpy(values).float().to(device)).double().cpu().numpy()
                for values in (vectors, validation_vectors)
            )
        mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6
        return HeadInputs(
            (x - mean) / deviation,
            (validation_x - mean) / deviation,
            mean,
            deviation,
            sample_weight,
            groups,
        )

    if network.target is not None and study.labels.target.shape[1]:
        targets = study.labels.target[train], study.labels.target[validation]
        _fit_numbers(
            network.target, targets, head_inputs(network.target), network.losses, config.targets
        )
    for column, head in enumerate(network.labels):
        if not study.labels.label.shape[1] or not isinstance(head, Readout):
            raise TypeError("class heads need the labels of the study")
        inputs, classes = head_inputs(head), head.linear.out_features
        label, validation_label = (
            np.tile(study.labels.label[subset, column], RAREFACTIONS)
            for subset in (train, validation)
        )
        (class_weight,) = class_weights(
            config.targets.class_weights, study.labels.label[train][:, [column]], [classes]
        )
        if class_weight is not None:
            inputs = replace(inputs, weight=sample_weight * class_weight.double().numpy()[label])
        known, validation_known = (
            np.where(of_subset >= 0, of_subset, np.nan) for of_subset in (label, validation_label)
        )
        _write_layer(
            head.linear,
            slice(None),
            _logistic(*inputs.labelled(known, validation_known), classes),
            inputs,
        )


def _fit_numbers(
    head: TargetHead,
    targets: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    inputs: HeadInputs,
    losses: Sequence[str],
    options: TargetConfig,
) -> None:
    """Fit each numeric column by its own loss; quantiles start as those of out-of-fold
    residuals.
    """
    for column in range(targets[0].shape[1]):
        y, validation_y = (
            head.unlinked(torch.from_numpy(values[:, column]).to(head.edges), column)
            .double()
            .cpu()
            .numpy()
            for values in targets
        )
        train, validation = inputs.labelled(
            np.tile(y, RAREFACTIONS), np.tile(validation_y, RAREFACTIONS)
        )
        ridge = _ridge(train, validation)
        model: Linear = ridge.coef_[None], np.array([ridge.intercept_])
        level = _level(losses[column] if losses else options.loss_type, options)
        if level is not None:
            model = pinball_ridge(train.x, train.y, train.weight, level, ridge)
        _write_layer(head.linear, slice(column, column + 1), model, inputs)
        if head.steps is not None:
            residual = _out_of_fold_residuals(train, ridge)
            gaps = np.maximum(np.diff(np.quantile(residual, head.levels)), 1e-3)
            biases = head.steps.bias.detach().view(len(gaps), -1)
            biases[:, column] = torch.from_numpy(np.log(np.expm1(gaps))).to(biases)


def _level(loss: str, options: TargetConfig) -> float | None:
    """Return the quantile that minimizes a loss; None where the mean does, or nearly."""
    if loss == "asymmetric":
        return options.under_penalty / (options.over_penalty + options.under_penalty)
    return 0.5 if loss in ("quantile", "mae") else None


def _out_of_fold_residuals(samples: Labelled, ridge: Ridge) -> Array:
    """Return residuals of samples that a median regression has not seen, whole groups at a time.

    Those that it has seen are too small: quantiles that start from them hold too few new samples.
    """
    x, y, weight, _ = samples
    residual = np.asarray(y - ridge.predict(x))
    for learn, predict in samples.folds():
        start = Ridge(alpha=ridge.alpha).fit(x[learn], y[learn], weight[learn])
        coefficients, intercept = pinball_ridge(x[learn], y[learn], weight[learn], 0.5, start)
        residual[predict] = y[predict] - x[predict] @ coefficients[0] - intercept[0]
    return residual
