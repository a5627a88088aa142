"""Predictions out of fold: each sample is predicted by an estimator that did not learn from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import get_tags

from aam.data.splits import Groups, Split, Strata, kfold
from aam.typing import Array, Floats, Ints, Names, Rows


class Fold(NamedTuple):
    """Positions of the samples that an estimator learns from, and of those that it predicts."""

    train: Rows
    test: Rows


def folds_of(splits: Sequence[Split], ids: Sequence[str]) -> list[Fold]:
    """Return the folds of splits, as positions among the samples `ids`."""
    sides = [(np.isin(ids, s.not_held_out), np.isin(ids, s.held_out)) for s in splits]
    return [Fold(*map(np.flatnonzero, pair)) for pair in sides]


def group_folds(
    ids: Sequence[str], number: int, groups: Groups, strata: Strata, seed: int
) -> list[Fold]:
    """Divide samples into up to `number` folds of whole groups; one group has no folds."""
    number = min(number, len(set(ids if groups is None else groups)))
    return folds_of(kfold(ids, number, groups, strata, 0.0, seed=seed), ids) if number > 1 else []


def out_of_fold(
    estimator: BaseEstimator,
    X: Any,
    y: Array,
    folds: Sequence[Fold],
    classes: int = 0,
    **by_sample: Any,
) -> Floats:
    """Predict the test samples of each fold by a clone of an estimator that learns from the rest.

    Parameters
    ----------
    estimator : scikit-learn estimator
        One with the tag `pairwise` gets the rows and the columns of a matrix of all samples.
    X : Samples or array [N, ...]
    y : float64 [N, ...] or int64 [N]
        Numbers, NaN if missing; or codes of classes, negative if missing. Samples without a value
        are not learned from.
    folds : sequence of Fold
    classes : int
        Number of classes K; 0 for numbers.
    **by_sample : array [N], optional
        Further arguments of `fit`, such as ``groups`` or ``sample_weight``. Of ``studies``, each is
        predicted relative to its own mean.

    Returns
    -------
    float64 [N, ...]
        Numbers or, for classes, probabilities [N, K]; NaN where no fold predicts. Where a fold
        learns from one class alone, that has probability 1.
    """
    has_value = np.asarray(y >= 0 if classes else np.isfinite(y).reshape(len(y), -1).all(axis=1))
    is_pairwise = get_tags(estimator).input_tags.pairwise
    by_sample = {name: values for name, values in by_sample.items() if values is not None}
    predicted = np.full((len(y), classes) if classes else y.shape, math.nan)
    for train, test in folds:
        train = train[has_value[train]]
        if not len(train) or not len(test):
            continue
        if classes and len(np.unique(y[train])) == 1:
            predicted[test] = np.eye(classes)[y[train[0]]]
            continue
        inputs = [X[np.ix_(rows, train)] if is_pairwise else X[rows] for rows in (train, test)]
        arguments = {name: values[train] for name, values in by_sample.items()}
        model = clone(estimator).fit(inputs[0], y[train], **arguments)
        studies = by_sample["studies"][test] if "studies" in by_sample else None
        values = _predicted(model, inputs[1], studies)
        if classes:
            values = all_classes(values, model.classes_, classes)
        # An estimator may predict several numbers for each target, such as one for each penalty.
        if values.shape[1:] != predicted.shape[1:]:
            predicted = np.full((len(y), *values.shape[1:]), math.nan)
        predicted[test] = values
    return predicted


def all_classes(probabilities: Floats, codes: Ints, classes: int) -> Floats:
    """Probabilities [n, K] of all classes from those of the classes `codes`, [n, k].

    Classes that training lacks have 0; a sample without probabilities has NaN.
    """
    values = np.where(np.isnan(probabilities[:, :1]), math.nan, np.zeros(classes))
    values[:, codes] = probabilities
    return values


def _predicted(model: Any, X: Any, studies: Names | None) -> Array:
    """Return the numbers or probabilities of samples; each study is read relative to its mean."""
    if studies is None:
        return np.asarray(model.predict_proba(X) if is_classifier(model) else model.predict(X))
    parts = [np.flatnonzero(studies == name) for name in np.unique(studies)]
    values = [_predicted(model.centred_on(X[rows]), X[rows], None) for rows in parts]
    return np.concatenate(values)[np.argsort(np.concatenate(parts))]
