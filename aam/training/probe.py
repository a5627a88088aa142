"""Heads start as linear models fitted on the sample vectors, then everything is fine-tuned (Kumar et al. 2022)."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from aam.config import RuntimeConfig
from aam.data.study import Study
from aam.model.aam import Aam
from aam.training.inference import encode_table, run_model

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

DRAWS = 2
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)


def _set(layer: nn.Linear, row: slice, weight: Array, bias: Array, mean: Array, spread: Array) -> None:
    """Write a linear model of standardized vectors into a layer that reads them as they are."""
    scaled = weight / spread
    with torch.no_grad():
        layer.weight[row] = torch.from_numpy(scaled).to(layer.weight)
        layer.bias[row] = torch.from_numpy(bias - scaled @ mean).to(layer.bias)


def _ridge(x: Array, y: Array, held_x: Array, held_y: Array) -> tuple[Array, Array]:
    """Ridge regression whose penalty does best on the held-out samples."""

    def error(model: Ridge) -> float:
        return float(np.abs(model.predict(held_x) - held_y).mean()) if len(held_y) else model.alpha

    best = min((Ridge(alpha=penalty).fit(x, y) for penalty in PENALTIES), key=error)
    return best.coef_[None], np.array([best.intercept_])


def _logistic(x: Array, y: npt.NDArray[np.int64], held_x: Array, held_y: npt.NDArray[np.int64], classes: int) -> tuple[Array, Array]:
    """Multinomial logistic regression, likewise; classes without a sample get a low intercept."""
    known = np.unique(y)
    inside = np.isin(held_y, known)

    def error(model: LogisticRegression) -> float:
        if not inside.any():
            return -float(model.C)
        chosen = model.predict_proba(held_x[inside])[np.arange(inside.sum()), np.searchsorted(known, held_y[inside])]
        return float(-np.log(np.maximum(chosen, 1e-12)).mean())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = [LogisticRegression(C=1 / penalty, max_iter=200).fit(x, y) for penalty in PENALTIES]
    best = min(fitted, key=error)
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, -10.0)
    if len(known) == 2:
        weight[known], bias[known] = np.stack([-best.coef_[0], best.coef_[0]]) / 2, np.array([-1, 1]) * best.intercept_[0] / 2
    else:
        weight[known], bias[known] = best.coef_, best.intercept_
    return weight, bias


def fit_heads(
    network: Aam, study: Study, train: Rows, validation: Rows, device: torch.device, config: RuntimeConfig
) -> None:
    """Fit the linear part of every target head on the vectors of the training samples.

    The strength of regularization is what predicts the validation samples best.
    """
    asvs = encode_table(network, study, device, config)

    def vectors(rows: Rows) -> Array:
        if not len(rows):
            return np.zeros((0, network.asv.position.shape[1]))
        return np.concatenate([run_model(network, study, rows, device, config, draw, asvs).samples for draw in range(DRAWS)])

    x, held = vectors(train), vectors(validation)
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
    x, held = (x - mean) / spread, (held - mean) / spread
    if network.target is not None and study.target is not None:
        for column in range(study.target.shape[1]):
            y, held_y = (np.tile(study.target[rows, column].astype(np.float64), DRAWS) for rows in (train, validation))
            known, held_known = np.isfinite(y), np.isfinite(held_y)
            weight, bias = _ridge(x[known], y[known], held[held_known], held_y[held_known])
            _set(network.target.linear, slice(column, column + 1), weight, bias, mean, spread)
    for column, head in enumerate(network.labels):
        if study.label is None:
            raise ValueError("the study has no labels")
        labels, held_labels = (np.tile(study.label[rows, column], DRAWS) for rows in (train, validation))
        known, held_known = labels >= 0, held_labels >= 0
        n_classes = head.linear.out_features
        weight, bias = _logistic(x[known], labels[known], held[held_known], held_labels[held_known], n_classes)
        _set(head.linear, slice(None), weight, bias, mean, spread)
