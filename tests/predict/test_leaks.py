"""Each threshold of the judgement of columns, by a case on both sides of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from aam.data.columns import Column, column_of_numbers, is_constant_within
from aam.data.donors import can_be_donors
from aam.evaluate.intervals import FOLD_INFLATION
from aam.predict.leaks import Score, is_confounded, is_copy_of_number, score


def levels(values):
    """A column of text."""
    codes = pd.factorize(np.asarray(values))[0].astype(np.int64)
    return Column("c", codes, np.full(len(codes), np.nan))


@pytest.mark.parametrize(
    ("gain", "low", "alarms"), [(0.2, 0.01, True), (0.19, 0.01, False), (0.2, 0.0, False)]
)
def test_an_alarm_needs_a_gain_and_a_limit_above_chance(gain, low, alarms):
    assert Score(0.0, gain, low).alarms == alarms


@pytest.mark.parametrize(("tests", "z"), [(1, 1.644854), (10, 2.575829)])
def test_limits_hold_for_all_columns_together_at_five_percent(tests, z):
    classes = np.repeat([0.0, 1.0], 20)
    truth = np.stack([1 - classes, classes], axis=1)
    found = score(truth, truth, np.arange(40), tests)
    deviation = (41 / (12 * 20 * 20)) ** 0.5
    assert (found.value, found.gain) == (1, 1)
    assert found.low == pytest.approx(1 - 2 * FOLD_INFLATION * z * deviation, abs=1e-5)
    numbers, units = np.arange(40.0)[:, None], np.arange(40)
    found = score(numbers, numbers, units, tests)
    away = np.abs(numbers[:, 0] - np.median(numbers))
    spread = away.std(ddof=1) / 40**0.5 / away.mean()
    assert found.low == pytest.approx(1 - FOLD_INFLATION * z * spread, abs=1e-5)


@pytest.mark.parametrize(("samples", "is_scored"), [(5, True), (4, False)])
def test_classes_of_five_samples_are_scored(samples, is_scored):
    classes = (np.arange(30) < samples).astype(float)
    truth = np.stack([1 - classes, classes], axis=1)
    assert np.isfinite(score(truth, truth, np.arange(30), 1).value) == is_scored


@pytest.mark.parametrize(("block", "is_copy"), [(21, True), (22, False)])
def test_numbers_of_a_rank_correlation_of_98_percent_are_copies(block, is_copy):
    # A block of 21 of 100 ranks in the other direction leaves 0.9815, one of 22 leaves 0.9787.
    values = np.arange(100.0)
    values[:block] = values[:block][::-1]
    assert is_copy_of_number(column_of_numbers("c", values), np.arange(100.0)) == is_copy


@pytest.mark.parametrize(("samples", "is_copy"), [(8, True), (7, False)])
def test_a_copy_needs_eight_samples(samples, is_copy):
    numbers = np.where(np.arange(20) < samples, np.arange(20.0), np.nan)
    assert is_copy_of_number(column_of_numbers("c", numbers), np.arange(20.0)) == is_copy


@pytest.mark.parametrize(("higher", "is_copy"), [(12, True), (13, False)])
def test_parts_of_a_number_may_have_half_a_percent_of_pairs_in_the_other_order(higher, is_copy):
    # 50 samples of each part are 2,500 pairs; a sample of the lower part is above some of the other
    # part.
    values = np.arange(100.0)
    values[0] = 49.5 + higher
    assert is_copy_of_number(levels(np.arange(100) >= 50), values) == is_copy


@pytest.mark.parametrize(("samples", "is_copy"), [(5, True), (4, False)])
def test_a_part_of_a_number_needs_five_samples(samples, is_copy):
    assert is_copy_of_number(levels(np.arange(30) < samples), np.arange(30.0)) == is_copy


@pytest.mark.parametrize(("wrong", "same"), [(3, True), (5, False)])
def test_two_percent_of_a_class_may_have_another_value(wrong, same):
    goal = np.arange(200) < 100
    value = goal | (np.arange(200) >= 200 - wrong)
    assert is_confounded(levels(value), levels(goal)) == same


@pytest.mark.parametrize(("villages", "same"), [(2, True), (3, False)])
def test_classes_of_three_values_each_can_be_told_from_them(villages, same):
    rows = np.arange(60)
    village = np.where(rows < 30, rows % 3, 10 + rows % villages)
    assert is_confounded(levels(village), levels(rows < 30)) == same


@pytest.mark.parametrize(("missing", "same"), [(30, True), (31, False)])
def test_half_of_the_samples_must_have_a_value(missing, same):
    goal = levels(np.arange(60) % 2)
    codes = np.where(np.arange(60) < missing, -1, goal.codes)
    assert is_confounded(goal._replace(codes=codes), goal) == same


@pytest.mark.parametrize(("values", "same"), [(30, True), (31, False)])
def test_values_of_one_sample_each_are_no_class(values, same):
    goal = levels(np.arange(60) % 2)
    codes = np.where(goal.codes == 1, 0, 1 + np.arange(60) // 2 % (values - 1))
    assert is_confounded(goal._replace(codes=codes), goal) == same


@pytest.mark.parametrize(
    ("donors", "samples", "can_be"),
    [(6, 2, True), (5, 4, False), (6, 30, True), (6, 31, False), (12, 1, False)],
)
def test_donors_are_at_least_six_of_at_most_thirty_samples(donors, samples, can_be):
    assert can_be_donors(levels(np.repeat(np.arange(donors), samples))) == can_be


@pytest.mark.parametrize(("wrong", "is_constant"), [(2, True), (3, False)])
def test_two_percent_of_the_samples_may_lie_in_another_coarser_level(wrong, is_constant):
    finer = np.arange(100) // 10
    coarser = np.where(np.arange(100) < wrong, 1, 0)
    assert is_constant_within(levels(coarser), levels(finer)) == is_constant
