"""What learners have in common: what they learn of n samples, inner folds, scikit-learn's
interface, plain arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aam.data.splits import kfold
from aam.device.rng import generator
from aam.evaluate.metrics import auroc
from aam.predict.features import Inputs

Arrays = dict[str, npt.NDArray[Any]]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]
Folds = Sequence[tuple[Rows, Rows]]
L = TypeVar("L")

THRESHOLDS = 40

INNER_FOLDS = 4


@dataclass(frozen=True, eq=False)
class Truth:
    """One target of n training samples.

    Attributes
    ----------
    values : float64 [n]
        Numbers, or indices of classes.
    classes : int
        How many there are; 0 for a number.
    sample_weights : float64 [n]
        Of the samples, 1 on average.
    weights : float64 [n]
        The same, but two classes weigh as much as each other: otherwise the share of a class among
        the training samples, which differs between folds, would move all scores of a fold. Of
        several studies each weighs by the root of its samples, and the two classes of a study as
        much as each other.
    studies : str [n], optional
        Of each sample, where there are several.
    """

    values: Floats
    classes: int
    sample_weights: Floats
    weights: Floats
    studies: Names | None = None

    def rows(self, places: Rows) -> Truth:
        """Return the target of some of the samples, whose classes and studies are weighed anew."""
        studies = None if self.studies is None else self.studies[places]
        return make_truth(self.values[places], self.classes, self.sample_weights[places], studies)

    @property
    def indicators(self) -> Floats:
        """Which class a sample has, ``[n, classes]``."""
        return np.eye(self.classes)[self.values.astype(np.int64)]


def make_truth(
    values: Floats,
    classes: int,
    weights: Floats | None = None,
    studies: Sequence[str] | Names | None = None,
) -> Truth:
    """Return a target whose weights are 1 on average, and as large in sum for both of two classes.

    `studies` [n] weigh by the root of their sums, and their two classes alike within each.
    """
    of_samples = np.ones(len(values)) if weights is None else weights.astype(np.float64)
    balanced, of_study = of_samples, None if studies is None else np.asarray(studies, dtype=str)
    study = (
        np.zeros(len(values), np.int64)
        if of_study is None
        else np.unique(of_study, return_inverse=True)[1]
    )
    if classes == 2:
        both = 2 * study + values.astype(np.int64)
        balanced = of_samples / np.maximum(np.bincount(both, of_samples), 1e-12)[both]
    if of_study is not None and len(values):
        roots = np.sqrt(np.bincount(study, of_samples)) / np.maximum(
            np.bincount(study, balanced), 1e-12
        )
        balanced = balanced * roots[study]
    averages = [one * (len(one) / max(one.sum(), 1e-12)) for one in (of_samples, balanced)]
    return Truth(values, classes, averages[0], averages[1], of_study)


def inner_folds(
    truth: Truth, names: Sequence[str], groups: Sequence[str] | None, seed: int
) -> list[tuple[Rows, Rows]]:
    """Return up to `INNER_FOLDS` pairs of places (learn, predict) in the samples `names`, whole
    groups at a time.

    Of several studies each is a group; without groups each sample is its own. Every sample is
    predicted once; without a second group there is nothing to divide and no pair.
    """
    groups = names if groups is None else groups
    if truth.studies is not None and len(set(truth.studies)) > 1:
        groups = truth.studies.tolist()
    number = min(INNER_FOLDS, len(set(groups)))
    if number < 2:
        return []
    strata = [str(int(value)) for value in truth.values] if truth.classes else truth.values
    place = {name: row for row, name in enumerate(names)}
    folds = []
    for split in kfold(names, number, groups, strata, 0.0, seed=seed):
        subsets = [
            np.array(sorted(place[name] for name in split.ids(side)), np.int64)
            for side in ("train", "test")
        ]
        folds.append((subsets[0], subsets[1]))
    return folds


def subsample(samples: int, number: int, limit: int) -> Rows:
    """Return which of the training samples rarefaction `number` learns from, ascending: all, or
    `limit` at random.

    An average over random parts is nearly as good as one model of all (Zhang, Duchi and Wainwright
    2015).
    """
    if samples <= limit:
        return np.arange(samples)
    return np.sort(generator("kernel samples", number).permutation(samples)[:limit])


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The numbers q at which a distribution is predicted, and the range of the training values."""

    at: Floats
    low: float
    high: float

    def indicators(self, values: Floats) -> Floats:
        """Return whether each value is at most each threshold, ``[n, q]``."""
        return (values[:, None] <= self.at).astype(np.float64)

    def quantile(self, distribution: Floats, level: float = 0.5) -> Floats:
        """Return a quantile ``[n]``, the median by default, of predicted distributions ``[n, q]``.

        Predictions that fall somewhere are replaced by the mean of the closest rising ones above
        and below; the step at a threshold stands halfway to the next, and between steps the
        distribution is linear.
        """
        rising = np.maximum.accumulate(distribution, axis=1)
        falling = np.minimum.accumulate(distribution[:, ::-1], axis=1)[:, ::-1]
        steps = np.clip((rising + falling) / 2, 0, 1)
        middles = (self.at + np.append(self.at[1:], self.high)) / 2
        place = np.concatenate([[self.low - (middles[0] - self.low) / 2], middles, [self.high]])
        padded = np.pad(steps, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
        padded = padded + np.arange(len(place)) * 1e-9
        quantiles = np.array([np.interp(level, row, place) for row in padded])
        return np.asarray(np.clip(quantiles, self.low, self.high))


def make_thresholds(values: Floats) -> Thresholds:
    """Return thresholds at no more than `THRESHOLDS` quantiles of the training values, the largest
    value left out.
    """
    unique = chosen = np.unique(values)
    if len(unique) > THRESHOLDS:
        levels = (np.arange(THRESHOLDS) + 0.5) / THRESHOLDS
        chosen = np.unique(np.quantile(values, levels, method="nearest"))
    below = chosen[chosen < unique[-1]]
    return Thresholds(below if len(below) else unique[:1], float(values.min()), float(values.max()))


def error_of(truth: Truth, predicted: Floats) -> float:
    """Return what chooses a penalty: MAE, 1 - AUROC of two classes, or 1 - accuracy of more.

    `predicted` are numbers ``[n, 1]`` or scores ``[n, classes]``.
    """
    if not truth.classes:
        return float(np.average(np.abs(predicted[:, 0] - truth.values), weights=truth.weights))
    if truth.classes == 2:
        area = auroc(truth.values == 1, predicted[:, 1])
        if not math.isnan(area):
            return 1 - area
    return 1 - float(np.average(predicted.argmax(axis=1) == truth.values, weights=truth.weights))


# --- the interface -----------------------------------------------------------------------------


@dataclass(eq=False)
class Learner:
    """A scikit-learn estimator: parameters are the arguments of its class, what is fitted ends with
    an underscore.

    A learner of its own is one subclass: `features`, `_fit` and `_outputs`.

    Attributes
    ----------
    n_classes : int
        Classes 0 to n - 1 are learned; 0: numbers.
    random_state : int
        Seed of inner folds, and of what else is random.
    out_of_fold_ : float64 [n, 1] or [n, n_classes]
        After `fit`: predictions of the training samples by learners of the other inner folds; NaN
        where there are none. Not saved.
    """

    n_classes: int = 0
    random_state: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that are read."""
        raise NotImplementedError

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    def set_params(self, **parameters: Any) -> Learner:
        """Change some parameters."""
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        X: Inputs,
        y: Floats,
        sample_weight: Floats | None = None,
        groups: Sequence[str] | None = None,
        studies: Sequence[str] | None = None,
    ) -> Learner:
        """Learn from n samples; inner folds of whole groups, or of whole studies where there are
        several, choose.

        Parameters
        ----------
        X : Inputs
        y : float64 [n]
            Numbers, or indices of classes.
        sample_weight : float64 [n], optional
        groups : sequence of str, optional
            Samples of a group stay together in inner folds; without them each sample is its own
            group.
        studies : sequence of str, optional
            What is learned is to hold in a study that is none of them; they weigh by the root of
            their samples.
        """
        truth = make_truth(y, self.n_classes, sample_weight, studies)
        self.out_of_fold_ = np.full((len(y), self.n_classes or 1), np.nan)
        self._fit(X, truth, inner_folds(truth, X.ids, groups, self.random_state))
        return self

    def centred_on(self, X: Inputs) -> Learner:
        """Return the learner for a study of which `X` are unlabelled samples: itself, unless it
        learned of studies.
        """
        return self

    def _fit(self, X: Inputs, truth: Truth, folds: Folds) -> None:
        raise NotImplementedError

    def outputs(self, X: Inputs) -> Floats:
        """Return numbers ``[n, 1]`` or probabilities ``[n, n_classes]`` from all rarefactions of
        the samples.
        """
        raise NotImplementedError

    def check(self, widths: Mapping[str, int]) -> None:
        """Raise `ValueError` where what was read from a file does not fit features of these
        `widths`, or itself.
        """
        raise NotImplementedError

    def predict(self, X: Inputs) -> npt.NDArray[Any]:
        """Return numbers, or indices of the most likely classes, ``[n]``."""
        outputs = self.outputs(X)
        return np.asarray(outputs.argmax(axis=1) if self.n_classes else outputs[:, 0])

    def predict_proba(self, X: Inputs) -> Floats:
        """Return probabilities of classes ``[n, n_classes]``."""
        return self.outputs(X)


def check_shape(name: str, array: npt.NDArray[Any], *shape: int) -> None:
    """Raise `ValueError` where an array that was read from a file has another shape."""
    if array.shape != shape:
        raise ValueError(f"{name} has shape {list(array.shape)}, expected {list(shape)}")


def save_state(learner: Any, place: str, arrays: Arrays) -> dict[str, Any]:
    """Put the arrays that a learner or feature has learned into `arrays`, and return the rest as
    values of JSON.

    These are its attributes with an underscore. They are called ``place/name``; of a dict of arrays
    each is called ``place/name.key``.
    """
    values: dict[str, Any] = {}
    for name, value in vars(learner).items():
        if not name.endswith("_") or name == "out_of_fold_":
            continue
        if isinstance(value, np.ndarray):
            arrays[f"{place}/{name}"] = value
        elif isinstance(value, dict):
            arrays.update({f"{place}/{name}.{key}": one for key, one in value.items()})
        else:
            values[name] = value
    return values


def restore_state(learner: L, place: str, arrays: Arrays, values: dict[str, Any]) -> L:
    """Give a learner or feature what `save_state` took of it, and return it."""
    vars(learner).update(values)
    for name, array in arrays.items():
        if name.startswith(f"{place}/"):
            attribute, _, key = name.removeprefix(f"{place}/").partition(".")
            if key:
                vars(learner).setdefault(attribute, {})[key] = array
            else:
                setattr(learner, attribute, array)
    return learner
