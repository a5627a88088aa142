"""Numbers as distributions, classes as indicators, and inner folds of whole groups."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from aam.predict.learner import (
    INNER_FOLDS,
    THRESHOLDS,
    error_of,
    inner_folds,
    make_thresholds,
    make_truth,
)


def test_the_median_of_a_known_distribution():
    values = np.arange(101.0)
    thresholds = make_thresholds(values)
    assert len(thresholds.at) <= THRESHOLDS
    for middle in (10.0, 50.0, 83.0):
        distribution = 1 / (1 + np.exp(-(thresholds.at[None] - middle) / 3))
        assert thresholds.quantile(distribution)[0] == pytest.approx(middle, abs=1.5)
        low, high = (thresholds.quantile(distribution, level)[0] for level in (0.1, 0.9))
        assert high - low == pytest.approx(2 * 3 * np.log(9), abs=2)


def test_a_distribution_that_falls_is_made_to_rise():
    thresholds = make_thresholds(np.arange(11.0))
    wild = np.random.default_rng(0).normal(0.5, 0.4, (50, len(thresholds.at)))
    levels = np.stack([thresholds.quantile(wild, level) for level in (0.05, 0.25, 0.5, 0.75, 0.95)])
    assert (np.diff(levels, axis=0) >= 0).all()
    assert ((levels >= 0) & (levels <= 10)).all()


def test_two_values_have_one_threshold():
    thresholds = make_thresholds(np.array([3.0, 3.0, 7.0]))
    np.testing.assert_array_equal(thresholds.at, [3.0])
    low, high = thresholds.quantile(np.array([[1.0], [0.0]]))
    assert (low, high) == (pytest.approx(3.5), pytest.approx(6, abs=1e-6))


def test_two_classes_weigh_the_same_and_more_do_not():
    two = make_truth(np.array([0.0] * 8 + [1.0] * 2), 2)
    assert two.weights[:8].sum() == pytest.approx(two.weights[8:].sum())
    assert two.weights.mean() == pytest.approx(1)
    np.testing.assert_array_equal(make_truth(np.array([0.0, 0.0, 1.0, 2.0]), 3).weights, np.ones(4))
    np.testing.assert_array_equal(two.sample_weights, np.ones(10))
    inner = two.rows(np.array([0, 1, 8]))
    assert inner.weights[2] == pytest.approx(inner.weights[:2].sum())


@pytest.mark.parametrize("classes", [0, 3])
def test_no_group_straddles_inner_folds(classes):
    rng = np.random.default_rng(1)
    groups = [f"g{number}" for number in rng.integers(0, 13, 90)]
    values = rng.integers(0, 3, 90).astype(float)
    folds = inner_folds(make_truth(values, classes), [f"s{i}" for i in range(90)], groups, 0)
    assert len(folds) == INNER_FOLDS
    for learn, predict in folds:
        assert not {groups[i] for i in learn} & {groups[i] for i in predict}
        assert sorted([*learn, *predict]) == list(range(90))
    assert sorted(np.concatenate([predict for _, predict in folds])) == list(range(90))


def test_one_group_cannot_be_divided():
    assert inner_folds(make_truth(np.arange(5.0), 0), list("abcde"), ["x"] * 5, 0) == []


def test_errors_of_numbers_of_two_classes_and_of_more():
    assert error_of(make_truth(np.array([1.0, 3.0]), 0), np.array([[2.0], [5.0]])) == pytest.approx(
        1.5
    )
    two = make_truth(np.array([0.0, 1.0, 1.0]), 2)
    assert error_of(two, np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])) == pytest.approx(0)
    three = make_truth(np.array([0.0, 1.0, 2.0]), 3)
    assert error_of(three, np.eye(3)[[0, 1, 1]]) == pytest.approx(1 / 3)


def test_studies_weigh_by_the_root_of_their_samples_and_their_classes_alike():
    studies = np.repeat(["a", "b", "c"], [4, 16, 36])
    values = (np.arange(56) % 4 == 0).astype(float)
    truth = make_truth(values, 2, studies=studies)
    assert truth.weights.mean() == pytest.approx(1)
    sums = [truth.weights[studies == study].sum() for study in "abc"]
    np.testing.assert_allclose(sums, np.array([2, 4, 6]) * sums[0] / 2)
    for study in "abc":
        cases = truth.weights[(studies == study) & (values == 1)].sum()
        assert cases == pytest.approx(truth.weights[(studies == study) & (values == 0)].sum())
    some = truth.rows(np.arange(20))
    np.testing.assert_array_equal(
        some.weights, make_truth(values[:20], 2, studies=studies[:20]).weights
    )


def test_inner_folds_hold_out_whole_studies_where_there_are_several():
    studies = np.repeat(["a", "b", "c"], 10)
    names = [f"s{number}" for number in range(30)]
    folds = inner_folds(
        make_truth(np.arange(30.0), 0, studies=studies), names, [f"g{n % 7}" for n in range(30)], 0
    )
    assert [sorted(set(studies[predict])) for _, predict in folds] in [
        [[a], [b], [c]] for a, b, c in permutations("abc")
    ]
    one = inner_folds(make_truth(np.arange(30.0), 0, studies=["a"] * 30), names, None, 0)
    assert len(one) == 4
