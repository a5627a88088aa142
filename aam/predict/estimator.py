"""Base of the estimators: parameters, sample weights, inner folds, scikit-learn's methods."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from aam.data.splits import kfold
from aam.device.rng import subsample
from aam.predict.samples import PASSES, Floats, Rows, Samples

Names = npt.NDArray[np.str_]
Arrays = dict[str, npt.NDArray[Any]]

INNER_FOLDS = 4

# Maximum number of training samples; of more, this number is drawn at random.
MOST_SAMPLES = 20_000

# Samples that are predicted at a time: 300,000 fit in 4 GB.
SAMPLES_AT_ONCE = 8192


class Labelled(NamedTuple):
    """Samples to learn from: numbers or codes of classes, groups and studies, each [n]."""

    samples: Samples
    values: npt.NDArray[Any]
    groups: Names | None = None
    studies: Names | None = None

    def at(self, rows: Rows) -> Labelled:
        """The samples at some rows."""
        if len(rows) == len(self.values):
            return self
        return Labelled._make(None if part is None else part[rows] for part in self)


class CountsEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator on raw counts, which it rarefies itself.

    Its subclasses define `_fit` and `outputs`. Predictions are means over rarefactions that
    training has not drawn.

    Parameters
    ----------
    depth : int
        Reads of each rarefied sample; samples with fewer are refused.
    passes : int
        Rarefactions to learn from, and to average predictions over.
    seed : int
        Seed of all random draws.
    """

    classes_: npt.NDArray[Any]

    def __init__(self, depth: int = 1000, passes: int = PASSES, seed: int = 0) -> None:
        self.depth = depth
        self.passes = passes
        self.seed = seed

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for numbers."""
        return len(self.classes_) if isinstance(self, ClassifierMixin) else 0

    def fit(self, X: Any, y: Any, groups: Any = None, studies: Any = None) -> Any:
        """Learn from n samples.

        Parameters
        ----------
        X : Samples, table, DataFrame or matrix [n, F]
            Raw counts.
        y : array [n]
            Numbers or classes.
        groups : array [n], optional
            Samples of one group are never separated by inner folds.
        studies : array [n], optional
            The model is to hold in further studies: inner folds hold out whole studies, and
            features may be centred by study.
        """
        values = np.asarray(y)
        if isinstance(self, ClassifierMixin):
            self.classes_, codes = np.unique(values, return_inverse=True)
            values = codes.astype(np.int64)
        else:
            values = values.astype(np.float64)
        whole = (None if names is None else np.asarray(names, str) for names in (groups, studies))
        labelled = Labelled(Samples.of(X), values, *whole)
        self._fit(labelled.at(subsample(len(values), 0, MOST_SAMPLES)))
        return self

    def _fit(self, labelled: Labelled) -> None:
        raise NotImplementedError

    def outputs(self, rarefied: Samples) -> Floats:
        """Numbers [n, 1] or probabilities [n, K] of samples that are rarefied already."""
        raise NotImplementedError

    def predict_draws(self, X: Any, passes: int | None = None) -> Floats:
        """Predictions of each rarefaction, [passes, n, 1] or [passes, n, K]."""
        samples, passes = Samples.of(X), passes or self.passes
        parts = []
        for start in range(0, max(len(samples), 1), SAMPLES_AT_ONCE):
            part = samples
            if len(samples) > SAMPLES_AT_ONCE:
                part = samples[start : start + SAMPLES_AT_ONCE]
            rarefactions = part.rarefactions(self.depth, self.seed, passes)
            parts.append(np.stack([self.outputs(rarefaction) for rarefaction in rarefactions]))
        return np.concatenate(parts, axis=1)

    def centred_on(self, X: Any) -> Any:
        """The estimator for a new study, given its samples without labels.

        It is the estimator itself if it was not centred by study.
        """
        return self

    def check(self) -> None:
        """Raise `ValueError` if arrays that were read from a file do not belong together."""


class Classifier(ClassifierMixin):  # type: ignore[misc]
    """Methods of classifiers."""

    def predict_proba(self: Any, X: Any) -> Floats:
        """Probabilities of the classes, [n, K]."""
        return np.asarray(self.predict_draws(X).mean(axis=0))

    def predict(self: Any, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each sample, [n]."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


class Regressor(RegressorMixin):  # type: ignore[misc]
    """Methods of regressors."""

    def predict(self: Any, X: Any) -> Floats:
        """The predicted number of each sample, [n]."""
        return np.asarray(self.predict_draws(X).mean(axis=0)[:, 0])


def training_weights(labelled: Labelled, classes: int) -> Floats:
    """Weights of training samples, 1 on average.

    A study weighs by the root of its size, and its two classes the same.
    """
    weights = np.ones(len(labelled.values))
    if labelled.studies is None:
        return weights
    study = np.unique(labelled.studies, return_inverse=True)[1]
    sizes = np.bincount(study)
    if classes == 2:
        cell = 2 * study + labelled.values
        weights = 1 / np.bincount(cell)[cell]
    weights = weights * (np.sqrt(sizes) / np.bincount(study, weights))[study]
    return np.asarray(weights * (len(weights) / weights.sum()))


def inner_folds(labelled: Labelled, classes: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Up to `INNER_FOLDS` pairs of positions (learn, predict) of whole groups or whole studies.

    The list is empty if there is one group only.
    """
    names, studies = labelled.samples.sample_ids, labelled.studies
    whole = list(names) if labelled.groups is None else labelled.groups.tolist()
    if studies is not None and len(set(studies)) > 1:
        whole = studies.tolist()
    number = min(INNER_FOLDS, len(set(whole)))
    if number < 2:
        return []
    values = labelled.values
    strata = [str(value) for value in values] if classes else values
    place = {name: row for row, name in enumerate(names)}
    folds = []
    for split in kfold(names, number, whole, strata, 0.0, seed=seed):
        learn, predict = (
            np.array(sorted(place[name] for name in split.ids(side)), np.int64)
            for side in ("train", "test")
        )
        folds.append((learn, predict))
    return folds


def error_of(values: npt.NDArray[Any], classes: int, predicted: Floats, weights: Floats) -> float:
    """The error that chooses a penalty: the mean absolute error of numbers, or the Brier score."""
    if classes:
        errors = np.square(predicted - np.eye(classes)[values]).sum(axis=1)
    else:
        errors = np.abs(predicted[:, 0] - values)
    return float(np.average(errors, weights=weights))


# --- as arrays and JSON -------------------------------------------------------------------------


def save_state(estimator: CountsEstimator, place: str, arrays: Arrays) -> dict[str, Any]:
    """Put the arrays and names that an estimator has learned into `arrays`; return the rest.

    What is returned can be written as JSON. A forest is left out.
    """
    values: dict[str, Any] = {}
    for name, value in vars(estimator).items():
        if name == "names_":
            text = "\n".join(value).encode()
            arrays[f"{place}/{name}"] = np.frombuffer(bytearray(text), np.uint8)
        elif name.endswith("_") and isinstance(value, np.ndarray):
            arrays[f"{place}/{name}"] = value
        elif name.endswith("_") and isinstance(value, (int, float)):
            values[name] = value
    return values


def restore_state(
    estimator: CountsEstimator, place: str, arrays: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Give an estimator what `save_state` took of it."""
    estimator.__dict__.update(values)
    for name, array in arrays.items():
        attribute = name.removeprefix(f"{place}/")
        if attribute == "names_":
            text = array.tobytes().decode()
            setattr(estimator, attribute, tuple(text.split("\n")) if text else ())
        elif attribute != name:
            setattr(estimator, attribute, array)


def check_shape(name: str, array: npt.NDArray[Any], *shape: int) -> None:
    """Raise `ValueError` if an array that was read from a file has another shape."""
    if array.shape != shape:
        raise ValueError(f"{name} has shape {list(array.shape)}, expected {list(shape)}")


def shallow_copy(estimator: Any, **changes: Any) -> Any:
    """A copy of a fitted estimator with other learned attributes."""
    copied = copy.copy(estimator)
    copied.__dict__.update(changes)
    return copied
