"""The paired test: exact for few groups, honest about undefined swaps, at most its level where
nothing differs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from aam.evaluate import comparison
from aam.evaluate.comparison import holm, paired_p
from tests.evaluate.simulated import predictions_of, scored
from tests.evaluate.simulations import learners_false_positives, paired_false_positives


def test_p_is_the_share_of_all_swaps_of_groups():
    draw = np.random.default_rng(0)
    groups = np.arange(30) % 7
    truth, model, other = draw.normal(size=(3, 30))
    seen = abs(np.abs(model - truth).sum() - np.abs(other - truth).sum())
    at_least = []
    for swapped in itertools.product([False, True], repeat=7):
        rows = np.array(swapped)[groups]
        first, second = np.where(rows, other, model), np.where(rows, model, other)
        difference = np.abs(first - truth).sum() - np.abs(second - truth).sum()
        at_least.append(abs(difference) >= seen - 1e-9)
    assert paired_p(predictions_of(truth, model, groups=groups), other, "mae", 0) == pytest.approx(
        np.mean(at_least)
    )


def test_point_7_below_six_groups_there_is_no_p_and_from_there_its_true_floor():
    """Two subjects gave p .002, four cages too."""
    for groups in range(1, 9):
        units = np.arange(80) % groups
        p = paired_p(
            predictions_of(np.zeros(80), np.zeros(80), groups=units), np.ones(80), "mae", 0
        )
        if groups < 6:
            assert math.isnan(p)
        else:
            assert p == 2 / 2**groups
    assert paired_p(predictions_of(np.zeros(80), np.zeros(80)), np.ones(80), "mae", 0) == 1 / 2000


def test_point_7_an_undefined_swap_is_no_evidence(monkeypatch: pytest.MonkeyPatch):
    given = scored(np.arange(40) % 2, np.linspace(0.1, 0.9, 40), groups=np.arange(40) % 8)
    other = np.full((40, 2), 0.5)
    differences = np.full(128, 0.01)
    differences[0] = 0.2
    differences[1:65] = math.nan
    monkeypatch.setattr(comparison, "_auroc_differences", lambda *_: differences)
    assert paired_p(given, other, "auroc", 0) == pytest.approx(65 / 128)


def test_point_7_several_baselines_are_corrected():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, math.nan, 0.01])[::2] == pytest.approx([0.5, 0.02])
    assert math.isnan(holm([0.5, math.nan, 0.01])[1])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("key", ["mae", "auroc", "accuracy"])
@pytest.mark.parametrize("groups", [6, 10, 20, 40])
def test_point_7_false_positives_stay_at_the_level(
    monkeypatch: pytest.MonkeyPatch, groups: int, key: str
):
    """Two predictions that are equally good, of unequal groups that share an error: at most 6 %
    differ.
    """
    monkeypatch.setattr(comparison, "RANDOM_SWAPS", 199)
    studies, most = (1000, 0.06) if key == "mae" else (300, 0.08)
    assert paired_false_positives(studies, key, groups) <= most


def test_scores_on_other_scales_are_ranked_before_they_are_swapped():
    """A monotone change of the baseline's scores leaves its AUROC and p as they are."""
    draw = np.random.default_rng(0)
    truth = draw.integers(2, size=60)
    model, other = (1 / (1 + np.exp(-draw.normal(size=60) - truth)) for _ in range(2))
    changed = other**5 / 10
    pair = [np.stack([1 - score, score], axis=1) for score in (other, changed)]
    assert paired_p(scored(truth, model), pair[0], "auroc", 0) == paired_p(
        scored(truth, model), pair[1], "auroc", 0
    )


@pytest.mark.parametrize(
    "groups",
    [10, pytest.param(20, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.slow)],
)
def test_point_7_learners_that_are_equally_good_are_not_told_apart_under_cross_validation(
    groups: int,
):
    """The models of the folds share samples: taken as fixed predictions, 10 to 15 % of equal pairs
    were told apart.
    """
    told_apart, as_if_fixed = learners_false_positives(200, groups, signal=2.0)
    assert told_apart <= 0.06
    assert as_if_fixed > 0.09


@pytest.mark.parametrize(
    ("key", "studies"), [("accuracy", 150), pytest.param("auroc", 200, marks=pytest.mark.slow)]
)
def test_point_7_learners_of_classes_that_are_equally_good_are_not_told_apart(
    key: str, studies: int
):
    assert learners_false_positives(studies, 20, signal=0.5, key=key)[0] <= 0.06


def test_point_7_the_floor_of_p_is_higher_under_cross_validation():
    """Six groups of one difference and two of none give the smallest p; one swap of eight equal
    ones is no evidence.
    """
    truth, units = np.zeros(16), np.arange(16) % 8
    given = replace(predictions_of(truth, truth, groups=units), fold=np.arange(16) % 8 % 2)
    six = np.where(units < 6, 1.0, 0.0)
    assert paired_p(given, six, "mae", 0) == 2 / 2**6
    assert paired_p(given, np.ones(16), "mae", 0) == (2 + 2 * 8) / 2**8


@pytest.mark.parametrize("studies", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_group_with_half_of_all_samples_does_not_tell_equal_predictions_apart(
    monkeypatch: pytest.MonkeyPatch, studies: int
):
    """Ranked by samples, 15 to 20 % were: the rank of the large group depends most on itself."""
    monkeypatch.setattr(comparison, "RANDOM_SWAPS", 399)
    assert paired_false_positives(studies, "auroc", 20, dominant=True) <= (
        0.08 if studies < 500 else 0.06
    )
