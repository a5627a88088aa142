"""The linear part of target heads, fitted before training starts (docs/adr/005)."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from torch import nn

from aam.config import FineTuneConfig
from aam.data.study import Study
from aam.device.rng import subsample
from aam.model.aam import Aam
from aam.model.heads import Readout
from aam.training.inference import Array, AsvVectors, Rows, run_model
from aam.training.losses import class_weights

RAREFACTIONS = 2
# The few hundred weights of a linear model need no more training samples, and memory would grow.
MOST_SAMPLES = 10_000
# Folds of whole groups choose the penalty; the middle one is that of one or two groups.
INNER_FOLDS = 4
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)
DEFAULT = 2
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
    groups = np.unique(names or np.arange(len(rows)), return_inverse=True)[1]

    def write(layer: nn.Linear, at: slice, coefficients: Array, intercepts: Array) -> None:
        """Write a model of standardized vectors into a layer that reads them as they are."""
        scaled = coefficients / spread
        with torch.no_grad():
            layer.weight[at] = torch.from_numpy(scaled).to(layer.weight)
            layer.bias[at] = torch.from_numpy(intercepts - scaled @ center).to(layer.bias)

    if network.target is not None:
        for column, values in enumerate(labels.target[rows].T.astype(np.float64)):
            ridge = _best(Ridge(), {"alpha": PENALTIES}, np.isfinite(values), x, values, groups)
            at = slice(column, column + 1)
            write(network.target.linear, at, ridge.coef_[None], np.array([ridge.intercept_]))
    heads = [head for head in network.labels if isinstance(head, Readout)]
    sizes = [head.linear.out_features for head in heads]
    columns = labels.label[rows].T
    weights = class_weights(config.targets.class_weights, columns.T, sizes)
    for head, classes, of_classes in zip(heads, columns, weights, strict=True):
        weight = None if of_classes is None else dict(enumerate(of_classes.tolist()))
        write(head.linear, slice(None), *_of_classes(head, x, classes, weight, groups))


def _of_classes(
    head: Readout, x: Array, classes: Rows, weight: dict[int, float] | None, groups: Rows
) -> tuple[Array, Array]:
    """Coefficients [K, W] and intercepts [K] of a logistic regression."""
    number = head.linear.out_features
    coefficients, intercepts = np.zeros((number, x.shape[1])), np.full(number, ABSENT)
    present = np.unique(classes[classes >= 0])
    if len(present) < 2:
        intercepts[present] = 0.0
        return coefficients, intercepts
    model = LogisticRegression(max_iter=200, class_weight=weight)
    grid = {"C": [1 / penalty for penalty in PENALTIES]}
    fitted = _best(model, grid, classes >= 0, x, classes, groups)
    of_present, at_zero = fitted.coef_, fitted.intercept_
    if len(present) == 2:
        of_present = np.concatenate([-of_present, of_present]) / 2
        at_zero = np.concatenate([-at_zero, at_zero]) / 2
    coefficients[present], intercepts[present] = of_present, at_zero
    return coefficients, intercepts


def _best(
    model: Any,
    penalties: dict[str, Any],
    known: npt.NDArray[np.bool_],
    x: Array,
    y: npt.NDArray[Any],
    groups: Rows,
) -> Any:
    """The model with the strongest penalty whose error is within a standard error of the lowest.

    `x` [RAREFACTIONS * n, W] holds several rarefactions of the n samples.
    """
    x = x[np.tile(known, RAREFACTIONS)]
    y, groups = (np.tile(values[known], RAREFACTIONS) for values in (y, groups))
    folds = min(INNER_FOLDS, len(np.unique(groups)))
    with warnings.catch_warnings():
        # Folds without a class, and logistic regressions that stop early, are no news.
        warnings.simplefilter("ignore")
        # Of two folds each may lack a class that the other has.
        if folds > 2:
            cv = GroupKFold(folds)
            search = GridSearchCV(model, penalties, scoring=_score, cv=cv, refit=_strongest)
            return search.fit(x, y, groups=groups).best_estimator_
        ((name, values),) = penalties.items()
        return model.set_params(**{name: values[DEFAULT]}).fit(x, y)


def _score(model: Any, x: Array, y: npt.NDArray[Any]) -> float:
    """The negative absolute error, or the log-likelihood; NaN if all classes are new."""
    if isinstance(model, Ridge):
        return -float(np.abs(model.predict(x) - y).mean())
    is_known = np.isin(y, model.classes_)
    place = np.searchsorted(model.classes_, y[is_known])
    likelihood = model.predict_proba(x)[is_known, place]
    return float(np.log(np.maximum(likelihood, 1e-12)).mean())


def _strongest(results: dict[str, Any]) -> int:
    """The place of the strongest penalty by the one-standard-error rule.

    The rule is that of Breiman et al. (1984, section 3.4.3), with paired differences of folds.
    """
    folds = [values for name, values in results.items() if name.startswith("split")]
    scores = np.stack(folds)
    scores = scores[np.isfinite(scores).all(axis=1)]
    if not len(scores):
        return DEFAULT
    lost = scores[:, [scores.mean(axis=0).argmax()]] - scores
    limit = lost.std(axis=0) / math.sqrt(len(scores))
    return int(np.flatnonzero(lost.mean(axis=0) <= limit).max())
