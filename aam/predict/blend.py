"""The blend of learners: which there are, and their weights, fitted on what they predict out of
their folds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aam.data.study import Study
from aam.data.targets import Targets, TargetSpec
from aam.errors import shown
from aam.predict.features import FEATURES, Feature, Inputs, Samples, fit_features
from aam.predict.forest import Forest
from aam.predict.learner import (
    Arrays,
    Floats,
    Learner,
    Rows,
    Truth,
    make_truth,
    restore_state,
    save_state,
    subsample,
)
from aam.predict.linear import Linear

log = logging.getLogger("aam")

# The network's name among learners; it is trained apart, and its weight is fitted on validation
# samples.
NETWORK = "deep"

# Learners beside the network, by what --members calls them; those of `n_classes` and a
# `random_state`.
LEARNERS: dict[str, Callable[[int, int], Learner]] = {"presence": Linear, "forest": Forest}

# What they are.
IN_WORDS = {
    NETWORK: "a network",
    "presence": "linear, of which ASVs are present",
    "forest": "extra trees",
}

# Learners that are saved and read.
CLASSES: dict[str, type[Learner]] = {"Linear": Linear, "Forest": Forest}

RAREFACTIONS = 6

# Of more training samples so many are learned from, drawn at random: as many as a forest learns
# from in one rarefaction. The 8-mers of the ASVs of all 300,000 samples of a study would take 5 GB.
MOST_SAMPLES = 20_000

# In units of the loss of the equal blend, per learner. Unshrunk weights lost to equal ones on every
# study tried.
SHRINKAGE = 0.1

# What weights are shrunk toward where whole studies are held out, other learners 1: linear models
# hold better there.
STUDY_WEIGHTS = {"presence": 2.0}

# So many samples double the shrinkage, fewer raise it further: of a handful, one would decide.
FEW_SAMPLES = 50


def in_words(names: Sequence[str]) -> str:
    """Return the names of learners, and what each is."""
    return "; ".join(f"{name} ({IN_WORDS[name]})" for name in names)


# Powers that are tried, as logarithms.
LOWEST_POWER, HIGHEST_POWER = -2.0, 3.0


def temper(probabilities: Floats, power: float) -> Floats:
    """Return probabilities ``[n, classes]`` to a power, again of sum 1: above 1 surer, below 1 less
    sure.
    """
    logs = power * np.log(np.maximum(probabilities, 1e-12))
    powers = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def fit_power(probabilities: Floats, truth: Truth) -> float:
    """Return the power at which probabilities out of their folds make the true classes most likely
    (Guo et al. 2017).

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

    return float(
        np.exp(minimize_scalar(loss, bounds=(LOWEST_POWER, HIGHEST_POWER), method="bounded").x)
    )


def blend_power(blended: Floats, truth: Truth) -> float:
    """Return the power of blended probabilities ``[n, classes]``, fitted out of their folds; 1 for
    two classes.

    Two classes are predicted without their base rate, and a slope that differs between folds would
    mix their order.
    """
    return fit_power(blended, truth) if truth.classes > 2 else 1.0


def blend_weights(
    predictions: Floats, truth: Truth, shrinkage: float = SHRINKAGE, prior: Floats | None = None
) -> Floats:
    """Return weights ``[M]``, none negative and of sum 1, of the `predictions` ``[M, n, W]`` of M
    learners out of fold.

    They minimize the squared error of numbers, or the Brier score of probabilities, plus
    `shrinkage` times the squared distance from `prior`, equal weights by default; few samples
    shrink more. Probabilities are tempered first, each learner's to be as sure as it is right: the
    weight is to go to the learner that ranks best, not to the surest. Samples that a learner has no
    prediction of (NaN) are left out; without any, or with a shrinkage of infinity, the weights are
    those of the prior.
    """
    from scipy.optimize import minimize

    number = len(predictions)
    default = np.full(number, 1 / number) if prior is None else prior
    rows = np.isfinite(predictions).all(axis=(0, 2))
    if number == 1 or not rows.any() or np.isinf(shrinkage):
        return default
    expected = truth.indicators if truth.classes else truth.values[:, None]
    if truth.classes:
        predictions = np.stack([temper(one, fit_power(one, truth)) for one in predictions])
    errors = (predictions[:, rows] - expected[rows]) * np.sqrt(truth.weights[rows])[None, :, None]
    cross = np.einsum("mnc,knc->mk", errors, errors)
    pull = shrinkage * number * (1 + FEW_SAMPLES / rows.sum())
    cross = cross / max(float(default @ cross @ default), 1e-300) + pull * np.eye(number)
    toward = pull * default
    solution = minimize(
        lambda weights: weights @ cross @ weights - 2 * toward @ weights,
        default,
        jac=lambda weights: 2 * (cross @ weights - toward),
        method="SLSQP",
        bounds=[(0, 1)] * number,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
    )
    weights = np.maximum(solution.x, 0)
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What M learners said of the samples at `rows` out of their folds, ``[M, n, W]``, and the
    truth.
    """

    rows: Rows
    truth: Truth
    predictions: Floats


@dataclass(frozen=True, eq=False)
class TargetBlend:
    """The learners of one target by name, the weight of each, the network's too, and the power of
    probabilities.

    `out_of_fold` is there after fitting, and is not saved.
    """

    learners: dict[str, Learner] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=lambda: {NETWORK: 1.0})
    power: float = 1.0
    out_of_fold: OutOfFold | None = field(default=None, repr=False)

    def blend(self, scores: Mapping[str, Floats]) -> Floats:
        """Return the weighted mean of what each learner says, probabilities to the power."""
        mean = np.asarray(
            sum(weight * scores[name] for name, weight in self.weights.items() if weight > 0)
        )
        return mean if self.power == 1 else temper(mean, self.power)

    def with_network(self, rows: Rows, predicted: Floats) -> TargetBlend:
        """Return the blend with the network in it, whose weight against the others is fitted on
        some samples.

        Parameters
        ----------
        rows : int64 [n]
            Validation samples, from which the network has not learned, though they chose its epoch.
            Where there are none, nothing shows that the network helps, and its weight is 0.
        predicted : float64 [n, W]
            What it says of them.
        """
        if self.out_of_fold is None:
            raise ValueError(
                "the learners were read from a file, which holds nothing to fit weights on"
            )
        out_of_fold, others = self.out_of_fold, np.array(list(self.weights.values()))
        place = {row: number for number, row in enumerate(out_of_fold.rows.tolist())}
        pairs = [(number, place[row]) for number, row in enumerate(rows.tolist()) if row in place]
        share, power = 0.0, self.power
        if pairs:
            taken, at = np.array(pairs, np.int64).T
            mean = np.tensordot(others, out_of_fold.predictions[:, at], axes=1)
            both, truth = np.stack([predicted[taken], mean]), out_of_fold.truth.rows(at)
            share = float(blend_weights(both, truth, prior=np.array([0.0, 1.0]))[0])
            power = blend_power(np.tensordot([share, 1 - share], both, axes=1), truth)
        weights = {name: (1 - share) * weight for name, weight in self.weights.items()}
        return replace(self, weights={NETWORK: share, **weights}, power=power)


def specs_in_order(targets: Targets) -> tuple[TargetSpec, ...]:
    """Return the targets as a study holds them: numbers first, then classes."""
    return (*targets.numeric, *targets.classes)


@dataclass(frozen=True, eq=False)
class Blend:
    """What predicts: for each target, numbers first, learners and their weights, and the features
    that they read.
    """

    fitted: tuple[TargetBlend, ...] = ()
    features: Mapping[str, Feature] = field(default_factory=dict, repr=False)

    @property
    def learners(self) -> list[str]:
        """Names of the learners beside the network."""
        return list(dict.fromkeys(name for one in self.fitted for name in one.learners))

    @property
    def is_relative(self) -> bool:
        """Whether any learner reads samples relative to the mean of their study."""
        return any(
            hasattr(learner, "centre_") for one in self.fitted for learner in one.learners.values()
        )

    @property
    def network_weight(self) -> float:
        """The largest weight of the network for a target; where it is 0, it need not be run."""
        return max((one.weights.get(NETWORK, 0.0) for one in self.fitted), default=0.0)

    def alone(self, name: str) -> Blend:
        """Return what predicts every target by one of the learners alone."""
        return replace(
            self,
            fitted=tuple(
                TargetBlend({name: one.learners[name]}, {name: 1.0}) for one in self.fitted
            ),
        )

    def check(self, targets: Targets, network: bool) -> None:
        """Raise `ValueError` where what was read from a file does not belong together, or to the
        `targets`.

        `network` says whether there is one.
        """
        pairs = list(zip(specs_in_order(targets), self.fitted, strict=True))
        widths = {name: feature.checked_width() for name, feature in self.features.items()}
        for spec, one in pairs:
            names = {*one.learners, NETWORK} if network else one.learners.keys()
            weights = np.array(list(one.weights.values()))
            if (
                not one.weights.keys() <= names
                or not (weights >= 0).all()
                or not 0 < weights.sum() < np.inf
            ):
                raise ValueError(f"weights {one.weights} for {shown(names)}")
            if not np.isfinite(one.power):
                raise ValueError(f"a power of {one.power}")
            for learner in one.learners.values():
                if learner.n_classes != len(spec.labels):
                    raise ValueError(
                        f"{learner.n_classes} classes of {spec.name}, expected {len(spec.labels)}"
                    )
                learner.check(widths)

    def inputs(self, samples: Samples) -> Inputs:
        """Return what the learners read of samples, `X`."""
        return Inputs.of(self.features, samples)

    def centred_on(self, samples: Samples) -> Blend:
        """Return the blend for a study of which these are samples, whose labels nobody needs."""
        X = self.inputs(samples)
        fitted = [
            replace(
                one,
                learners={name: learner.centred_on(X) for name, learner in one.learners.items()},
            )
            for one in self.fitted
        ]
        return replace(self, fitted=tuple(fitted))

    def scores(self, X: Inputs | None) -> list[dict[str, Floats]]:
        """Return for each target what each learner but the network says, from all rarefactions of
        the samples.

        Numbers are encoded, ``[n, 1]``; classes have probabilities, ``[n, classes]``. Without
        learners `X` is none.
        """
        if X is None:
            return [{} for _ in self.fitted]
        return [
            {name: learner.outputs(X) for name, learner in one.learners.items()}
            for one in self.fitted
        ]

    def blend(self, scores: Sequence[Mapping[str, Floats]]) -> list[Floats]:
        """Return for each target the blend of what its learners, the network too, say."""
        return [one.blend(of_target) for one, of_target in zip(self.fitted, scores, strict=True)]

    def with_network(self, rows: Rows, predicted: Sequence[Floats]) -> Blend:
        """Return the blend with the network in it; parameters as `TargetBlend.with_network`, for
        each target.
        """
        pairs = zip(self.fitted, predicted, strict=True)
        return replace(self, fitted=tuple(one.with_network(rows, values) for one, values in pairs))


def network_alone(targets: Targets) -> Blend:
    """Return what predicts where there is nothing but a network."""
    return Blend(tuple(TargetBlend() for _ in targets.specs))


def fit_blend(
    study: Study,
    targets: Targets,
    rows: Rows,
    groups: Sequence[str] | None,
    seed: int,
    names: Sequence[str],
    studies: Sequence[str] | None = None,
    rarefactions: int = RAREFACTIONS,
) -> Blend:
    """Fit learners of every target on the samples at `rows`, and the weights of their blend.

    Inner folds of whole groups, or of whole studies, choose penalties and weights; then every
    learner learns from all.

    Parameters
    ----------
    study : Study
        With targets and covariates, whose scales know the training samples only.
    targets : Targets
    rows : int64 [n]
        The training samples. No label of another sample is read.
    groups : sequence of str, optional
        The group of each; without it each sample is its own.
    seed : int
        Of inner folds and of the forest; rarefactions follow the study's.
    names : sequence of str
        Of `LEARNERS`.
    studies : sequence of str, optional
        The study of each, where what is learned is to hold in others.
    rarefactions : int
    """
    kept = subsample(len(rows), RAREFACTIONS, MOST_SAMPLES)
    samples = Samples.rarefied(study, rows[kept], range(rarefactions))
    features = fit_features(
        [name for one in names for name in LEARNERS[one](0, seed).features], samples
    )
    X = Inputs.of(features, samples)
    weights = study.labels.weight[samples.rows].astype(np.float64)
    numbers = study.labels.target[samples.rows, : len(targets.numeric)].astype(np.float64)
    labels = study.labels.label[samples.rows, : len(targets.classes)]
    values = [*numbers.T, *np.where(labels < 0, np.nan, labels).T]
    fitted = []
    for spec, of_target in zip(specs_in_order(targets), values, strict=True):
        # An inner fold of samples without weight would have nothing to learn from.
        known = np.flatnonzero(np.isfinite(of_target) & (weights > 0))
        by_sample = [
            None if one is None else [one[place] for place in kept[known].tolist()]
            for one in (groups, studies)
        ]
        learners = {name: LEARNERS[name](len(spec.labels), seed) for name in names}
        fitted.append(
            _fit_target(spec, learners, X[known], of_target[known], weights[known], *by_sample)
        )
    return Blend(tuple(fitted), features)


def _fit_target(
    spec: TargetSpec,
    learners: dict[str, Learner],
    X: Inputs,
    y: Floats,
    sample_weight: Floats,
    groups: list[str] | None,
    studies: list[str] | None,
) -> TargetBlend:
    """Return the learners of one target, fitted, and their weights."""
    for name, learner in learners.items():
        begun = time.monotonic()
        learner.fit(X, y, sample_weight, groups, studies)
        log.info("%s: learner %s fitted in %.1f s", spec.name, name, time.monotonic() - begun)
    truth = make_truth(y, len(spec.labels), sample_weight, studies)
    predictions = np.stack([learner.out_of_fold_ for learner in learners.values()])
    toward = np.array(
        [1.0 if studies is None else STUDY_WEIGHTS.get(name, 1.0) for name in learners]
    )
    shares = blend_weights(predictions, truth, prior=toward / toward.sum())
    power = blend_power(np.tensordot(shares, predictions, axes=1), truth)
    out_of_fold = OutOfFold(X.samples.rows[X.places], truth, predictions)
    return TargetBlend(
        learners, dict(zip(learners, shares.tolist(), strict=True)), power, out_of_fold
    )


def blend_to_arrays(blend: Blend) -> tuple[Arrays, dict[str, Any]]:
    """Return the learners and features of a blend as arrays by name, and what describes them in
    JSON.
    """
    arrays: Arrays = {}
    features = {
        name: save_state(one, f"features/{name}", arrays) for name, one in blend.features.items()
    }
    targets = []
    for number, one in enumerate(blend.fitted):
        learners = {
            name: {
                "class": type(learner).__name__,
                "parameters": learner.get_params(),
                "fitted": save_state(learner, f"{number}/{name}", arrays),
            }
            for name, learner in one.learners.items()
        }
        targets.append({"learners": learners, "weights": one.weights, "power": one.power})
    return arrays, {"features": features, "targets": targets}


def blend_from_arrays(arrays: Arrays, description: dict[str, Any]) -> Blend:
    """Return the blend of which `blend_to_arrays` made arrays and a description.

    Raises KeyError, TypeError or ValueError where they do not belong together.
    """
    features = {
        name: restore_state(FEATURES[name](), f"features/{name}", arrays, values)
        for name, values in description["features"].items()
    }
    fitted = []
    for number, one in enumerate(description["targets"]):
        learners = {
            name: restore_state(
                CLASSES[facts["class"]](**facts["parameters"]),
                f"{number}/{name}",
                arrays,
                facts["fitted"],
            )
            for name, facts in one["learners"].items()
        }
        weights = {name: float(weight) for name, weight in one["weights"].items()}
        fitted.append(TargetBlend(learners, weights, float(one["power"])))
    return Blend(tuple(fitted), features)
