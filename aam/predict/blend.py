"""The blend: a linear model and trees learn apart and predict together, as an equal mean. A network
joins in `SavedModel.predicted`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from aam.data.study import Study
from aam.data.targets import Targets, TargetSpec
from aam.predict import estimator
from aam.predict.estimator import PASSES, CountsEstimator, Labelled, Samples
from aam.predict.members import LinearClassifier, LinearRegressor, TreesClassifier, TreesRegressor
from aam.typing import Floats

log = logging.getLogger("aam")

# The network's name among members; it predicts all targets and is trained apart.
NETWORK = "deep"

# Members on counts: the estimators of classes and of numbers.
MEMBERS: dict[str, tuple[Any, Any]] = {
    "presence": (LinearClassifier, LinearRegressor),
    "forest": (TreesClassifier, TreesRegressor),
}
DEFAULT_MEMBERS = tuple(MEMBERS)

DESCRIPTIONS = {
    NETWORK: "network",
    "presence": "linear model of presence",
    "forest": "extra trees on presence",
}


class Blend(CountsEstimator):
    """The equal mean of several estimators on the same rarefactions.

    Parameters
    ----------
    members : sequence of str
        Names of members, such as "presence" and "forest".

    Attributes
    ----------
    members_ : dict of str to CountsEstimator
    """

    members_: dict[str, CountsEstimator]

    def __init__(
        self,
        depth: int = 1000,
        passes: int = PASSES,
        seed: int = 0,
        members: Sequence[str] = DEFAULT_MEMBERS,
    ) -> None:
        super().__init__(depth, passes, seed)
        self.members = members

    def _fit(self, labelled: Labelled) -> None:
        self.members_ = {}
        for name in self.members:
            begun = time.monotonic()
            of_classes, of_numbers = MEMBERS[name]
            kind = of_classes if isinstance(self, ClassifierMixin) else of_numbers
            self.members_[name] = kind(self.depth, self.passes, self.seed).fit(*labelled)
            log.debug("member %s fitted in %.1f s", name, time.monotonic() - begun)

    def scores(self, rarefied: Samples) -> list[Floats]:
        """Predictions of the members for rarefied samples: numbers [n, 1], probabilities [n, K]."""
        return [member.outputs(rarefied) for member in self.members_.values()]

    def outputs(self, rarefied: Samples) -> Floats:
        """The mean of the members, [n, 1] or [n, K]."""
        return np.asarray(sum(self.scores(rarefied)) / len(self.members_))

    def centred_on(self, X: Any) -> Any:
        """The blend for a new study, given its samples without labels."""
        samples = Samples.of(X)
        members = {name: member.centred_on(samples) for name, member in self.members_.items()}
        return self.changed(members_=members)

    @property
    def is_centred(self) -> bool:
        """Whether a member reads samples relative to the mean of their study."""
        return any(hasattr(member, "centre_") for member in self.members_.values())


class BlendClassifier(estimator.Classifier, Blend):
    """A blend that predicts classes; parameters of `Blend`."""


class BlendRegressor(estimator.Regressor, Blend):
    """A blend that predicts a number; parameters of `Blend`."""


def make_blend(classes: bool, *parameters: Any) -> Blend:
    """A blend of classes or of numbers that is not fitted yet; parameters as `Blend`."""
    return (BlendClassifier if classes else BlendRegressor)(*parameters)


def specs_in_order(targets: Targets) -> tuple[TargetSpec, ...]:
    """The targets as a study holds them: numbers first, then classes."""
    return (*targets.numeric, *targets.classes)


def in_words(names: Sequence[str]) -> str:
    """Names of members, and what each is."""
    return "; ".join(f"{name} ({DESCRIPTIONS[name]})" for name in names)


def fit_blends(
    study: Study,
    targets: Targets,
    samples: Samples,
    members: Sequence[str],
    groups: Sequence[str] | None = None,
    studies: Sequence[str] | None = None,
    sample_weight: Sequence[float] | None = None,
) -> tuple[Blend, ...]:
    """Fit a blend for each target on some samples of a study; numbers come first.

    Parameters
    ----------
    study : Study
        With the labels of its samples, which are encoded as training knows them.
    targets : Targets
    samples : Samples
        The training samples.
    members : sequence of str
        Members without the network.
    groups, studies : sequence of str, optional
        The group and the study of each sample.
    sample_weight : sequence of float, optional
    """
    rows, labels, blends = study.rows(samples.sample_ids), study.labels, []
    columns = [*labels.target[rows].T.astype(np.float64), *labels.label[rows].T]
    by_sample: list[Any] = [None if part is None else np.array(part) for part in (groups, studies)]
    by_sample.append(None if sample_weight is None else np.array(sample_weight, np.float64))
    for spec, values in zip(specs_in_order(targets), columns, strict=True):
        known = np.flatnonzero((values >= 0) if spec.labels else np.isfinite(values))
        labelled = Labelled(samples, values, *by_sample).at(known)
        blend = make_blend(bool(spec.labels), study.depth, PASSES, study.seed, tuple(members))
        blends.append(blend.fit(*labelled))
    return tuple(blends)
