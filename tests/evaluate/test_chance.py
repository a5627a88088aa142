"""Permuted labels: which exchange, that p is exact, and that level and power are as they
should be.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm

from aam.evaluate import comparison
from aam.evaluate.comparison import permutation_p
from tests.evaluate.simulated import scored, two_classes
from tests.evaluate.simulations import CHANCE_STUDIES, called_better

AUROC_75 = float(np.sqrt(2) * norm.ppf(0.75))


def test_without_groups_and_folds_p_is_that_of_the_rank_sum_test():
    given = two_classes(0.2, 60)
    exact = mannwhitneyu(
        *(given.predicted[given.truth == k, 1] for k in (1, 0)), alternative="greater"
    ).pvalue
    assert permutation_p(given, 0, 20000) == pytest.approx(exact, abs=0.01)


def test_groups_of_one_label_exchange_it_whole():
    """Eight groups of ten equal samples: p is that of eight samples, not of eighty."""
    score, label = np.array([0.9, 0.7, 0.8, 0.4, 0.5, 0.3, 0.2, 0.1]), [1, 1, 0, 1, 0, 0, 0, 0]
    given = scored(np.repeat(label, 10), np.repeat(score, 10), groups=np.repeat(np.arange(8), 10))
    sums = [
        score.argsort().argsort()[list(three)].sum()
        for three in itertools.combinations(range(8), 3)
    ]
    seen = score.argsort().argsort()[np.array(label) == 1].sum()
    assert permutation_p(given, 0, 20000) == pytest.approx(
        np.mean(np.array(sums) >= seen), abs=0.01
    )


def test_labels_stay_in_their_fold_and_in_groups_that_have_several():
    """Scores that only tell folds, or groups of several labels, apart say nothing about the samples
    in them.
    """
    groups = np.arange(80) // 10
    truth = (np.arange(80) % 10 < groups + 1).astype(int)
    assert permutation_p(scored(truth, groups / 10, groups=groups), 0) == 1
    fold = np.arange(80) % 2
    told = scored((np.arange(80) % 7 < 2 + 3 * fold).astype(int), fold * 0.5 + 0.2)
    assert permutation_p(told, 0) < 0.01
    assert permutation_p(replace(told, fold=fold), 0) == 1


def test_folds_that_learn_from_each_other_count_for_less():
    given = two_classes(0.2)
    in_folds = replace(given, fold=np.arange(200) % 5)
    assert permutation_p(in_folds, 0) > 2 * permutation_p(given, 0)


def test_below_six_groups_there_is_no_p_and_draws_do_not_depend_on_how_many_are_held(
    monkeypatch: pytest.MonkeyPatch,
):
    given = two_classes(0.2)
    assert math.isnan(permutation_p(replace(given, groups=np.arange(200) % 5), 0))
    whole = permutation_p(given, 3)
    monkeypatch.setattr(comparison, "WEIGHTS_AT_ONCE", 1000)
    assert permutation_p(given, 3) == whole


@pytest.mark.parametrize(
    ("studies", "cell"),
    [
        (200, (100, 50, None)),
        *(pytest.param(2000, cell, marks=pytest.mark.slow) for cell in CHANCE_STUDIES),
    ],
    ids=str,
)
def test_a_learner_of_noise_is_not_better_than_chance(
    studies: int, cell: tuple[int, int, int | None]
):
    """Permuting beside cross-validated predictions taken as fixed, 10 to 13 % were."""
    assert called_better(studies, *cell) <= 0.06


@pytest.mark.parametrize(
    ("studies", "cell", "power"),
    [
        (150, (300, 15, None), 0.8),
        *(
            pytest.param(2000, cell, power, marks=pytest.mark.slow)
            for cell, power in zip(CHANCE_STUDIES[:3], (0.8, 0.9, 0.9), strict=True)
        ),
    ],
    ids=str,
)
def test_fifteen_positives_are_enough_for_an_auroc_of_75(
    studies: int, cell: tuple[int, int, None], power: float
):
    """By swaps with a constant an AUROC of .889 of 300 samples, 15 of them positive, had p .08."""
    assert called_better(studies, *cell, AUROC_75) >= power
