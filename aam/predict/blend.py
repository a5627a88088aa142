"""The blend: members learn apart and predict together, as an equal mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight

from aam.data.study import Study
from aam.data.targets import Targets, TargetSpec
from aam.predict.estimator import PASSES, CountsEstimator, Samples
from aam.predict.members import LinearClassifier, LinearRegressor, TreesClassifier, TreesRegressor
from aam.predict.network import Network
from aam.typing import Array, Floats, Rows


@dataclass(frozen=True)
class Member:
    """A kind of member of the blend, and what it needs.

    Attributes
    ----------
    description : str
    estimators : tuple of types
        The estimators of classes and of numbers; of a multi-output member the only one.
    """

    description: str
    estimators: tuple[Any, ...]


MEMBERS = {
    "presence": Member("linear model of presence", (LinearClassifier, LinearRegressor)),
    "forest": Member("extra trees on presence", (TreesClassifier, TreesRegressor)),
    Network.name: Member("network", (Network,)),
}
DEFAULT_MEMBERS = tuple(name for name in MEMBERS if name != Network.name)


def mean_of(scores: Sequence[Floats]) -> Floats:
    """The equal mean of the predictions of members, [n, 1] or [n, K]."""
    return np.asarray(sum(scores) / len(scores))


# --- a blend of all targets ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PerTarget:
    """Estimators on counts that each learn one target, numbers first."""

    estimators: tuple[CountsEstimator, ...]

    @classmethod
    def of(cls, name: str, targets: Targets, depth: int, seed: int) -> PerTarget:
        """The estimators of a member, not fitted yet."""
        classifier, regressor = MEMBERS[name].estimators
        kinds = (classifier if spec.labels else regressor for spec in specs_in_order(targets))
        return cls(tuple(kind(depth, PASSES, seed) for kind in kinds))

    @property
    def is_centred(self) -> bool:
        """Whether samples are read relative to the mean of their study."""
        return any(hasattr(part, "centre_") for part in self.estimators)

    def fit(
        self,
        X: Samples,
        y: Sequence[Array],
        groups: Any = None,
        studies: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
    ) -> PerTarget:
        """Fit each estimator to the samples whose target is known.

        `y` holds the targets, [n] each: numbers, NaN if not known, or codes of classes, -1 if not
        known. `class_weight` is as in scikit-learn: None, "balanced" or weights by code.
        """
        by_sample = [None if x is None else np.array(x) for x in (groups, studies, sample_weight)]
        for part, values in zip(self.estimators, y, strict=True):
            is_class = isinstance(part, ClassifierMixin)
            rows = np.flatnonzero(values >= 0 if is_class else np.isfinite(values))
            group, study, weights = (None if x is None else x[rows] for x in by_sample)
            if is_class and class_weight is not None:
                balance = compute_sample_weight(class_weight, values[rows])
                weights = balance if weights is None else balance * weights
            part.fit(X[rows], values[rows], group, study, weights)
        return self

    def outputs(self, rarefied: Samples) -> list[Floats]:
        """Predictions of each target for rarefied samples, [n, 1] or [n, K]."""
        return [part.outputs(rarefied) for part in self.estimators]

    def centred_on(self, X: Samples) -> PerTarget:
        """The estimators for a new study, given its samples without labels."""
        return PerTarget(tuple(part.centred_on(X) for part in self.estimators))


@dataclass(frozen=True, eq=False)
class Blend:
    """The equal mean of members that each predict all targets, numbers first.

    Attributes
    ----------
    members : dict of str to PerTarget or Network
    """

    members: Mapping[str, PerTarget | Network] = field(default_factory=dict)

    @classmethod
    def of(
        cls, names: Sequence[str], targets: Targets, depth: int, seed: int, network: Network
    ) -> Blend:
        """A blend that is not fitted yet; the `network` takes the place of a member."""
        on_counts = [name for name in names if name != Network.name]
        blend = cls({name: PerTarget.of(name, targets, depth, seed) for name in on_counts})
        # The network comes last, so that sums have one order.
        return blend.joined(network) if Network.name in names else blend

    @property
    def is_centred(self) -> bool:
        """Whether a member reads samples relative to the mean of their study."""
        return any(member.is_centred for member in self.members.values())

    def joined(self, network: Network) -> Blend:
        """The blend with a network."""
        return Blend({**self.members, network.name: network})

    def outputs(self, rarefied: Samples) -> list[Floats]:
        """The mean of the members for each target of rarefied samples, [n, 1] or [n, K]."""
        scores = [member.outputs(rarefied) for member in self.members.values()]
        return [mean_of(column) for column in zip(*scores, strict=True)]

    def centred_on(self, X: Samples) -> Blend:
        """The blend for a new study, given its samples without labels."""
        return Blend({name: member.centred_on(X) for name, member in self.members.items()})


def columns_of(study: Study, rows: Rows) -> list[Array]:
    """The targets of some samples, numbers first: numbers, NaN if not known, or codes of classes,
    -1 if not known.
    """
    labels = study.labels
    return [*labels.target[rows].T.astype(np.float64), *labels.label[rows].T]


def specs_in_order(targets: Targets) -> tuple[TargetSpec, ...]:
    """The targets as a study holds them: numbers first, then classes."""
    return (*targets.numeric, *targets.classes)


def in_words(names: Sequence[str]) -> str:
    """Names of members, and what each is."""
    return "; ".join(f"{name} ({MEMBERS[name].description})" for name in names)
