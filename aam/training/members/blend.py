"""Weights of members in a blend, fitted on what they said of samples out of their folds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from aam.training.members.truth import Truth

Floats = npt.NDArray[np.float64]

# In units of the loss of the equal blend, per member. Unshrunk weights lost to equal ones on every study tried.
SHRINKAGE = 0.1


def blend_weights(members: Floats, truth: Truth, shrinkage: float = SHRINKAGE) -> Floats:
    """Return weights ``[M]``, none negative and of sum 1, of predictions ``[M, n, W]`` out of their folds.

    They minimize the squared error of numbers, or the Brier score of probabilities, plus `shrinkage` times the squared
    distance from equal weights. Samples that a member has no prediction of (NaN) are left out; without any, or with a
    shrinkage of infinity, the weights are equal.
    """
    number = len(members)
    equal = np.full(number, 1 / number)
    rows = np.isfinite(members).all(axis=(0, 2))
    if number == 1 or not rows.any() or np.isinf(shrinkage):
        return equal
    expected = truth.indicators if truth.classes else truth.values[:, None]
    errors = (members[:, rows] - expected[rows]) * np.sqrt(truth.weights[rows])[None, :, None]
    cross = np.einsum("mnc,knc->mk", errors, errors)
    cross = cross / max(float(equal @ cross @ equal), 1e-300) + shrinkage * number * np.eye(number)
    found = minimize(
        lambda weights: weights @ cross @ weights, equal, jac=lambda weights: 2 * cross @ weights, method="SLSQP",
        bounds=[(0, 1)] * number, constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
    )  # fmt: skip
    weights = np.maximum(found.x, 0)
    return np.asarray(weights / weights.sum())
