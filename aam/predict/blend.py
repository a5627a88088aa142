"""Weights of members in a blend, fitted on what they said of samples out of their folds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aam.predict.truth import Truth

Floats = npt.NDArray[np.float64]

# In units of the loss of the equal blend, per member. Unshrunk weights lost to equal ones on every study tried.
SHRINKAGE = 0.1

# So many samples double the shrinkage, fewer raise it further: of a handful, one would decide.
FEW_SAMPLES = 50


# Powers that are tried, as logarithms.
LOWEST_POWER, HIGHEST_POWER = -2.0, 3.0


def temper(probabilities: Floats, power: float) -> Floats:
    """Return probabilities ``[n, classes]`` to a power, again of sum 1: above 1 surer, below 1 less sure."""
    logs = power * np.log(np.maximum(probabilities, 1e-12))
    powers = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def fit_power(probabilities: Floats, truth: Truth) -> float:
    """Return the power at which probabilities out of their folds make the true classes most likely (Guo et al. 2017).

    Samples without a prediction (NaN) are left out; 1 without any, and for numbers.
    """
    # Predictions are blended without fitting, and the import takes half a second.
    from scipy.optimize import minimize_scalar

    rows = np.isfinite(probabilities).all(axis=1)
    if not truth.classes or not rows.any():
        return 1.0
    true, weights = truth.values[rows].astype(np.int64), truth.weights[rows]

    def loss(log_power: float) -> float:
        tempered = temper(probabilities[rows], float(np.exp(log_power)))[np.arange(len(true)), true]
        return float(-(weights * np.log(np.maximum(tempered, 1e-12))).sum())

    return float(np.exp(minimize_scalar(loss, bounds=(LOWEST_POWER, HIGHEST_POWER), method="bounded").x))


def blend_power(blended: Floats, truth: Truth) -> float:
    """Return the power of blended probabilities ``[n, classes]``, fitted out of their folds; 1 for two classes.

    Two classes are predicted without their base rate, and a slope that differs between folds would mix their order.
    """
    return fit_power(blended, truth) if truth.classes > 2 else 1.0


def blend_weights(members: Floats, truth: Truth, shrinkage: float = SHRINKAGE, prior: Floats | None = None) -> Floats:
    """Return weights ``[M]``, none negative and of sum 1, of predictions ``[M, n, W]`` out of their folds.

    They minimize the squared error of numbers, or the Brier score of probabilities, plus `shrinkage` times the squared
    distance from `prior`, equal weights unless given; few samples shrink more. Probabilities are tempered first, each
    member's to be as sure as it is right: the weight is to go to the member that ranks best, not to the surest. Samples
    that a member has no prediction of (NaN) are left out; without any, or with a shrinkage of infinity, the weights are
    those of the prior.
    """
    from scipy.optimize import minimize

    number = len(members)
    default = np.full(number, 1 / number) if prior is None else prior
    rows = np.isfinite(members).all(axis=(0, 2))
    if number == 1 or not rows.any() or np.isinf(shrinkage):
        return default
    expected = truth.indicators if truth.classes else truth.values[:, None]
    shown = members
    if truth.classes:
        shown = np.stack([temper(member, fit_power(member, truth)) for member in members])
    errors = (shown[:, rows] - expected[rows]) * np.sqrt(truth.weights[rows])[None, :, None]
    cross = np.einsum("mnc,knc->mk", errors, errors)
    pull = shrinkage * number * (1 + FEW_SAMPLES / rows.sum())
    cross = cross / max(float(default @ cross @ default), 1e-300) + pull * np.eye(number)
    toward = pull * default
    solution = minimize(
        lambda weights: weights @ cross @ weights - 2 * toward @ weights, default,
        jac=lambda weights: 2 * (cross @ weights - toward), method="SLSQP", bounds=[(0, 1)] * number,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
    )  # fmt: skip
    weights = np.maximum(solution.x, 0)
    return np.asarray(weights / weights.sum())
