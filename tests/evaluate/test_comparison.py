"""The model compared with baselines: paired and permutation tests, exact for few groups, honest
about undefined swaps, at their level where nothing differs, and outcomes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
from scipy.stats import mannwhitneyu, norm

from aam.evaluate import hypothesis_tests, intervals, metrics
from aam.evaluate.comparison import (
    MAJORITY,
    SIGNIFICANT,
    Baseline,
    Comparison,
    compare_with_baselines,
    outcome,
)
from aam.evaluate.hypothesis_tests import holm, paired_p, permutation_p
from aam.evaluate.intervals import Interval
from aam.evaluate.predictions import TargetPredictions
from tests.evaluate.simulated import majority, median, numeric, predictions_of, scored, two_classes
from tests.evaluate.simulations import (
    CHANCE_STUDIES,
    called_better,
    learners_false_positives,
    paired_false_positives,
)

SLOW = pytest.mark.slow

AUROC_75 = float(np.sqrt(2) * norm.ppf(0.75))


# --- swaps of groups ---------------------------------------------------------------------------


def p_of_errors(other: np.ndarray, **columns: np.ndarray) -> float:
    """The paired p of a perfect model and another with these errors."""
    truth = np.zeros(len(other))
    return paired_p(predictions_of(truth, truth, **columns), other, "mae", 0)


def test_p_is_the_share_of_all_swaps_of_groups():
    draw, groups = np.random.default_rng(0), np.arange(30) % 7
    truth, model, other = draw.normal(size=(3, 30))
    errors = np.abs(model - truth) - np.abs(other - truth)
    signs = np.array(list(itertools.product([-1, 1], repeat=7)))
    at_least = np.abs(signs[:, groups] @ errors) >= abs(errors.sum()) - 1e-9
    found = paired_p(predictions_of(truth, model, groups=groups), other, "mae", 0)
    assert found == pytest.approx(np.mean(at_least))


def test_below_six_groups_there_is_no_p_and_from_there_its_true_floor():
    """Two subjects gave p .002, four cages too."""
    for groups in range(1, 9):
        p = p_of_errors(np.ones(80), groups=np.arange(80) % groups)
        assert math.isnan(p) if groups < 6 else p == 2 / 2**groups
    assert p_of_errors(np.ones(80)) == 1 / 2000


def test_the_floor_of_p_is_higher_under_cross_validation():
    """Six groups of one difference and two of none give the smallest p; one swap of eight equal
    ones is no evidence.
    """
    units = np.arange(16) % 8
    columns = {"groups": units, "fold": units % 2}
    assert p_of_errors(np.where(units < 6, 1.0, 0.0), **columns) == 2 / 2**6
    assert p_of_errors(np.ones(16), **columns) == (2 + 2 * 8) / 2**8


def test_an_undefined_swap_is_no_evidence(monkeypatch: pytest.MonkeyPatch):
    given = scored(np.arange(40) % 2, np.linspace(0.1, 0.9, 40), groups=np.arange(40) % 8)
    differences = np.full(128, 0.01)
    differences[0] = 0.2
    differences[1:65] = math.nan
    monkeypatch.setattr(hypothesis_tests, "_auroc_differences", lambda *_: differences)
    assert paired_p(given, np.full((40, 2), 0.5), "auroc", 0) == pytest.approx(65 / 128)


def test_scores_on_other_scales_are_ranked_before_they_are_swapped():
    """A monotone change of the baseline's scores leaves its AUROC and p as they are."""
    draw = np.random.default_rng(0)
    truth = draw.integers(2, size=60)
    model, other = (1 / (1 + np.exp(-draw.normal(size=60) - truth)) for _ in range(2))
    pair = [np.stack([1 - score, score], axis=1) for score in (other, other**5 / 10)]
    first, second = (paired_p(scored(truth, model), rival, "auroc", 0) for rival in pair)
    assert first == second


@pytest.mark.parametrize("key", ["mae", "auroc", "accuracy"])
@pytest.mark.parametrize("groups", [6, 10, 40])
def test_false_positives_stay_at_the_level(monkeypatch, groups: int, key: str):
    """Two predictions that are equally good, of unequal groups that share an error: at most 6 %
    differ.
    """
    monkeypatch.setattr(hypothesis_tests, "RANDOM_SWAPS", 199)
    studies, most = (1000, 0.06) if key == "mae" else (300, 0.08)
    assert paired_false_positives(studies, key, groups) <= most


@pytest.mark.parametrize("studies", [150, pytest.param(2000, marks=SLOW)])
def test_a_group_with_half_of_all_samples_does_not_tell_equal_predictions_apart(
    monkeypatch, studies: int
):
    """Ranked by samples, 15 to 20 % were: the rank of the large group depends most on itself."""
    monkeypatch.setattr(hypothesis_tests, "RANDOM_SWAPS", 399)
    found = paired_false_positives(studies, "auroc", 20, dominant=True)
    assert found <= (0.08 if studies < 500 else 0.06)


@pytest.mark.parametrize("groups", [10, pytest.param(20, marks=SLOW), pytest.param(50, marks=SLOW)])
def test_learners_that_are_equally_good_are_not_told_apart_under_cross_validation(groups: int):
    """The models of the folds share samples: taken as fixed predictions, 10 to 15 % of equal pairs
    were told apart.
    """
    told_apart, as_if_fixed = learners_false_positives(200, groups, signal=2.0)
    assert told_apart <= 0.06
    assert as_if_fixed > 0.09


@pytest.mark.parametrize(
    ("key", "studies"), [("accuracy", 150), pytest.param("auroc", 200, marks=SLOW)]
)
def test_learners_of_classes_that_are_equally_good_are_not_told_apart(key: str, studies: int):
    assert learners_false_positives(studies, 20, signal=0.5, key=key)[0] <= 0.06


def test_several_baselines_are_corrected():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, math.nan, 0.01])[::2] == pytest.approx([0.5, 0.02])
    assert math.isnan(holm([0.5, math.nan, 0.01])[1])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    given = numeric(0.5)
    rivals = [Baseline(str(error), numeric(error, seed=7).predicted) for error in (0.52, 0.55, 0.6)]
    found = compare_with_baselines(given, rivals, seed=0, repeats=20)
    assert [one.corrected_p for one in found] == holm([one.p for one in found])


# --- permuted labels ---------------------------------------------------------------------------


def test_without_groups_and_folds_p_is_that_of_the_rank_sum_test():
    given = two_classes(0.2, 60)
    scores = (given.predicted[given.truth == k, 1] for k in (1, 0))
    exact = mannwhitneyu(*scores, alternative="greater").pvalue
    assert permutation_p(given, 0, 20000) == pytest.approx(exact, abs=0.01)


def test_groups_of_one_label_exchange_it_whole():
    """Eight groups of ten equal samples: p is that of eight samples, not of eighty."""
    score, label = np.array([0.9, 0.7, 0.8, 0.4, 0.5, 0.3, 0.2, 0.1]), [1, 1, 0, 1, 0, 0, 0, 0]
    given = scored(np.repeat(label, 10), np.repeat(score, 10), groups=np.repeat(np.arange(8), 10))
    ranks = score.argsort().argsort()
    sums = np.array([ranks[list(three)].sum() for three in itertools.combinations(range(8), 3)])
    exact = np.mean(sums >= ranks[np.array(label) == 1].sum())
    assert permutation_p(given, 0, 20000) == pytest.approx(exact, abs=0.01)


def test_labels_stay_in_their_fold_and_in_groups_that_have_several():
    """Scores that only tell folds, or groups of several labels, apart say nothing about the samples
    in them.
    """
    groups, fold = np.arange(80) // 10, np.arange(80) % 2
    truth = (np.arange(80) % 10 < groups + 1).astype(int)
    assert permutation_p(scored(truth, groups / 10, groups=groups), 0) == 1
    told = scored((np.arange(80) % 7 < 2 + 3 * fold).astype(int), fold * 0.5 + 0.2)
    assert permutation_p(told, 0) < 0.01
    assert permutation_p(replace(told, fold=fold), 0) == 1


def test_folds_count_for_less_few_groups_have_no_p_and_parts_draw_the_same(monkeypatch):
    given = two_classes(0.2)
    in_folds = replace(given, fold=np.arange(200) % 5)
    assert permutation_p(in_folds, 0) > 2 * permutation_p(given, 0)
    assert math.isnan(permutation_p(replace(given, groups=np.arange(200) % 5), 0))
    whole = permutation_p(given, 3)
    monkeypatch.setattr(hypothesis_tests, "WEIGHTS_AT_ONCE", 1000)
    assert permutation_p(given, 3) == whole


NULL = [(200, (100, 50, None)), *(pytest.param(2000, c, marks=SLOW) for c in CHANCE_STUDIES)]


@pytest.mark.parametrize(("studies", "cell"), NULL, ids=str)
def test_a_learner_of_noise_is_not_better_than_chance(studies: int, cell: tuple[int, int, int]):
    """Permuting beside cross-validated predictions taken as fixed, 10 to 13 % were."""
    assert called_better(studies, *cell) <= 0.06


POWER = dict(zip(CHANCE_STUDIES[:3], (0.8, 0.9, 0.9), strict=True))


@pytest.mark.parametrize(
    ("studies", "cell"),
    [(150, (300, 15, None)), *(pytest.param(2000, cell, marks=SLOW) for cell in POWER)],
    ids=str,
)
def test_fifteen_positives_are_enough_for_an_auroc_of_75(studies: int, cell: tuple[int, int, int]):
    """By swaps with a constant an AUROC of .889 of 300 samples, 15 of them positive, had p .08."""
    assert called_better(studies, *cell, AUROC_75) >= POWER[cell]


# --- comparisons -------------------------------------------------------------------------------


def outcomes(given: TargetPredictions, *rivals: np.ndarray, trivial: bool = True) -> list[str]:
    """Outcomes against the constant and against others."""
    constant = majority(given) if given.labels else median(given)
    others = [Baseline(f"rival {at}", predicted, trivial) for at, predicted in enumerate(rivals)]
    found = compare_with_baselines(given, [constant, *others], seed=0, repeats=200)
    return [outcome(one, found[0]) for one in found]


@pytest.mark.parametrize("constant", [False, True])
def test_limits_of_a_tested_difference_hold_0_where_none_is_shown(constant):
    """Also where resampled limits and the test, which swaps predictions, disagree."""
    draw = np.random.default_rng(0)
    for _ in range(500):
        value, below, above = draw.normal(), *draw.exponential(size=2)
        # Of the one-sided test a p above 0.5 means worse than the constant.
        p = draw.uniform() ** 3 / (2 if constant else 1)
        corrected = p if constant else min(1.0, p * draw.integers(1, 11))
        difference = Interval(value, value - below, value + above)
        one = Comparison("x", False, constant, 9, 9, "mae", {}, {}, difference, p, corrected)
        limits = one.tested_difference
        assert (limits.low <= 0 <= limits.high) == (corrected > SIGNIFICANT)
        assert limits.low < value < limits.high


def test_baselines_are_compared_on_the_samples_that_both_predict():
    given = numeric(0.5)
    half = np.where(np.arange(200) < 150, math.nan, given.predicted)
    rivals = [Baseline("half", half), Baseline("none", np.full(200, math.nan))]
    (only,) = compare_with_baselines(given, rivals, seed=0, repeats=20)
    assert (only.name, only.samples, only.difference.value) == ("half", 50, 0)
    assert only.model == metrics.regression_metrics(given.truth[150:], half[150:])


def test_a_constant_ranks_nothing_though_folds_differ_in_majority():
    given, fold = two_classes(1.0), np.arange(200) % 2
    truth = np.where(np.random.default_rng(0).random(200) < 0.3, 1 - fold, fold)
    given, flipped = replace(given, truth=truth, fold=fold), np.eye(2)[1 - fold]
    (found,) = compare_with_baselines(given, [Baseline(MAJORITY, flipped)], seed=0, repeats=20)
    assert sklearn.metrics.roc_auc_score(truth, flipped[:, 1]) < 0.4
    assert found.metrics["auroc"].value == 0.5
    assert math.isnan(found.metrics["auroc"].low)
    model = intervals.metrics_with_intervals(given, 0, 20)["auroc"]
    assert found.difference == Interval(model.value - 0.5, model.low - 0.5, model.high - 0.5)
    assert found.metrics["auprc"].value == pytest.approx(truth.mean())
    assert found.metrics["accuracy"].value == (truth != fold).mean()


def test_outcomes():
    given, weak, classes = numeric(0.5), numeric(1.0), two_classes(2.0)
    good, bad = (numeric(error, seed=5).predicted for error in (0.1, 0.9))
    assert outcomes(given, good, bad) == ["better", "worse", "better"]
    assert outcomes(weak, numeric(1.0, seed=5).predicted)[1] == "not shown"
    # Always a fiftieth further off: p is small, and still it has nearly all of the gain.
    close = given.truth + (given.predicted - given.truth) * 1.02
    assert outcomes(given, close) == ["better", "close"]
    assert outcomes(given, close, trivial=False) == ["better", "better"]
    assert outcomes(numeric(5.0)) == ["worse"]
    assert outcomes(replace(classes, predicted=classes.predicted[:, ::-1])) == ["worse"]


def test_the_test_against_the_constant_is_one_sided_and_not_corrected_with_the_others():
    """AUROC .889 with 15 positives in five folds "could not be told from chance": two-sided, and
    times two.
    """
    given, alike = numeric(1.0), Baseline("alike", numeric(1.0, seed=5).predicted)
    constant, other = compare_with_baselines(given, [median(given), alike], seed=0, repeats=20)
    two_sided = paired_p(given, median(given).predicted, "mae", 0)
    assert constant.p == constant.corrected_p == two_sided / 2
    assert other.corrected_p == other.p
    rare = replace(two_classes(2.0, 300), fold=np.arange(300) % 5)
    rare = replace(rare, truth=np.where(np.arange(300) % 20, 0, rare.truth))
    (constant,) = compare_with_baselines(rare, [majority(rare)], seed=0, repeats=20)
    assert constant.p == constant.corrected_p == permutation_p(rare, 0)
