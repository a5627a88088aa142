"""The network's weight beside the other members: earned on validation samples, or 0."""

from __future__ import annotations

import numpy as np
import pytest

from aam.data.targets import Targets, TargetSpec
from aam.predict.members import Members, TargetMembers
from aam.predict.network import NETWORK, join_network
from aam.predict.presence import Vocabulary
from aam.predict.truth import make_truth

SAMPLES = 400
RNG = np.random.default_rng(0)
TRUTH = RNG.normal(size=SAMPLES)
ROWS = np.arange(SAMPLES)


def noisy(spread: float) -> np.ndarray:
    return (TRUTH + spread * RNG.normal(size=SAMPLES))[:, None]


@pytest.fixture
def members() -> Members:
    truth = make_truth(TRUTH, 0)
    held_out = np.stack([noisy(1.0), noisy(1.0)])
    fitted = TargetMembers({}, {"kernel": 0.5, "forest": 0.5}, 1.0, ROWS, truth, held_out)
    fitted.members.update(dict.fromkeys(("kernel", "forest")))
    return Members(Targets((TargetSpec("age", "numeric"),)), Vocabulary(()), (fitted,))


def share(members: Members, rows: np.ndarray, predicted: np.ndarray) -> float:
    weights = join_network(members, rows, [predicted]).fitted[0].weights
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["kernel"] == pytest.approx(weights["forest"])
    return weights[NETWORK]


def test_a_network_that_helps_gets_more_weight_and_one_that_does_not_gets_none(members):
    good, equal, useless = (share(members, ROWS, noisy(spread)) for spread in (0.3, 0.7, 5.0))
    assert good > 0.5
    assert good > equal > 0.2
    assert useless < 0.05


def test_few_samples_show_less(members):
    assert share(members, ROWS[:10], noisy(0.3)[:10]) < share(members, ROWS, noisy(0.3))


def test_without_validation_samples_nothing_shows_that_the_network_helps(members):
    assert share(members, ROWS[:0], np.zeros((0, 1))) == 0
