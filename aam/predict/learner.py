"""A learner: scikit-learn's interface, without its import, over features of rarefied samples; saved as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.predict.features import Inputs
from aam.predict.truth import Floats, Folds, Truth, inner_folds, make_truth

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(eq=False)
class Learner:
    """A scikit-learn estimator: parameters are the arguments of its class, what is fitted ends with an underscore.

    A learner of its own is one subclass: `features`, `_fit` and `_outputs`.

    Attributes
    ----------
    n_classes : int
        Classes 0 to n - 1 are learned; 0: numbers.
    random_state : int
        Seed of inner folds, and of what else is random.
    out_of_fold_ : float64 [n, 1] or [n, n_classes]
        After `fit`: predictions of the training samples by learners of the other inner folds; NaN where there are
        none. Not saved.
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
        self, X: Inputs, y: Floats, sample_weight: Floats | None = None, groups: Sequence[str] | None = None,
        studies: Sequence[str] | None = None, choose: bool = True,
    ) -> Learner:  # fmt: skip
        """Learn from n samples; inner folds of whole groups, or of whole studies where there are several, choose.

        Parameters
        ----------
        X : Inputs
        y : float64 [n]
            Numbers, or indices of classes.
        sample_weight : float64 [n], optional
        groups : sequence of str, optional
            Samples of a group stay together in inner folds; without them each sample is its own group.
        studies : sequence of str, optional
            What is learned is to hold in a study that is none of them; they weigh by the root of their samples.
        choose : bool
            Whether inner folds choose; without them nothing is predicted out of fold.
        """
        truth = make_truth(y, self.n_classes, sample_weight, studies)
        self.out_of_fold_ = np.full((len(y), self.n_classes or 1), np.nan)
        self._fit(X, truth, inner_folds(truth, X.ids, groups, self.random_state) if choose else ())
        return self

    def centred_on(self, X: Inputs) -> Learner:
        """Return the learner for a study of which `X` are unlabelled samples: itself, unless it learned of studies."""
        return self

    def _fit(self, X: Inputs, truth: Truth, folds: Folds) -> None:
        raise NotImplementedError

    def outputs(self, X: Inputs) -> Floats:
        """Return numbers ``[n, 1]`` or probabilities ``[n, n_classes]`` from all rarefactions of the samples."""
        raise NotImplementedError

    def check(self, widths: Mapping[str, int]) -> None:
        """Raise `ValueError` where what was read from a file does not fit features of these `widths`, or itself."""
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


def fitted_state(learner: Any) -> tuple[Arrays, dict[str, Any]]:
    """Return what a learner or feature has learned, as arrays and as values of JSON: attributes with an underscore.

    An attribute that is a dict of arrays is saved as ``name.key``.
    """
    arrays: Arrays = {}
    values: dict[str, Any] = {}
    for name, value in vars(learner).items():
        if not name.endswith("_") or name == "out_of_fold_":
            continue
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif isinstance(value, dict):
            arrays |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            values[name] = value
    return arrays, values


def restore_state(learner: Any, arrays: Arrays, values: dict[str, Any]) -> None:
    """Give a learner or feature what `fitted_state` returned of it."""
    for name, value in values.items():
        setattr(learner, name, value)
    for name, array in arrays.items():
        attribute, _, key = name.partition(".")
        if key:
            vars(learner).setdefault(attribute, {})[key] = array
        else:
            setattr(learner, attribute, array)
