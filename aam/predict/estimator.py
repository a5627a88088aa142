"""Base of the estimators: parameters, sample weights, inner folds, scikit-learn's methods."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

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

    def fit(
        self, X: Any, y: Any, groups: Any = None, studies: Any = None, sample_weight: Any = None
    ) -> Any:
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
        sample_weight : array [n], optional
        """
        samples, values = Samples.of(X), np.asarray(y)
        weights = np.ones(len(values)) if sample_weight is None else np.asarray(sample_weight)
        kept = subsample(len(values), 0, MOST_SAMPLES)
        if isinstance(self, ClassifierMixin):
            self.classes_, codes = np.unique(values, return_inverse=True)
            values = codes.astype(np.int64)
        else:
            values = values.astype(np.float64)
        by_sample = [
            None if names is None else np.asarray(names, str)[kept] for names in (groups, studies)
        ]
        if len(kept) < len(samples):
            samples = samples[kept]
        self._fit(samples, values[kept], weights[kept].astype(np.float64), *by_sample)
        return self

    def _fit(
        self,
        samples: Samples,
        values: npt.NDArray[Any],
        weights: Floats,
        groups: Names | None,
        studies: Names | None,
    ) -> None:
        raise NotImplementedError

    def outputs(self, rarefied: Samples) -> Floats:
        """Numbers [n, 1] or probabilities [n, K] of samples that are rarefied already."""
        raise NotImplementedError

    def predict_draws(self, X: Any, passes: int | None = None) -> Floats:
        """Predictions of each rarefaction, [passes, n, 1] or [passes, n, K]."""
        samples, passes = Samples.of(X), passes or self.passes
        parts = []
        for start in range(0, max(len(samples), 1), SAMPLES_AT_ONCE):
            part = (
                samples[start : start + SAMPLES_AT_ONCE]
                if start or len(samples) > SAMPLES_AT_ONCE
                else samples
            )
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


def balanced_weights(
    values: npt.NDArray[Any], classes: int, weights: Floats, studies: Names | None
) -> Floats:
    """Weights of training samples, 1 on average.

    Two classes weigh the same. A study weighs by the root of its size, its two classes the same.
    """
    balanced = weights
    study = np.unique(
        np.zeros(len(values), str) if studies is None else studies, return_inverse=True
    )[1]
    if classes == 2:
        cell = 2 * study + values
        balanced = weights / np.maximum(np.bincount(cell, weights), 1e-12)[cell]
    if studies is not None:
        sizes, sums = np.bincount(study, weights), np.bincount(study, balanced)
        balanced = balanced * (np.sqrt(sizes) / np.maximum(sums, 1e-12))[study]
    return np.asarray(balanced * (len(balanced) / max(balanced.sum(), 1e-12)))


def inner_folds(
    names: Sequence[str],
    values: npt.NDArray[Any],
    classes: int,
    groups: Names | None,
    studies: Names | None,
    seed: int,
) -> list[tuple[Rows, Rows]]:
    """Up to `INNER_FOLDS` pairs of positions (learn, predict) of whole groups or whole studies.

    The list is empty if there is one group only.
    """
    whole = list(names) if groups is None else groups.tolist()
    if studies is not None and len(set(studies)) > 1:
        whole = studies.tolist()
    number = min(INNER_FOLDS, len(set(whole)))
    if number < 2:
        return []
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
