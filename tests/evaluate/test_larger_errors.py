"""Levels where errors are larger: found where they are, seldom where they are not, whatever the
sizes of groups.
"""

from __future__ import annotations

import numpy as np
import pytest

from aam.evaluate.larger_errors import larger_errors
from aam.evaluate.target_predictions import TargetPredictions
from tests.evaluate.simulated import predictions_of, scored

REPEATS = 200


def predictions(errors, groups, labels=()) -> TargetPredictions:
    if not labels:
        return predictions_of(np.zeros(len(errors)), errors, groups=groups)
    return scored(np.zeros(len(errors), int), 1 - np.exp(-errors), labels, groups=groups)


@pytest.mark.parametrize("labels", [(), ("gut", "skin")])
@pytest.mark.parametrize("groups", [16, 200])
@pytest.mark.parametrize("within", [False, True])
def test_equal_errors_are_seldom_listed(groups, within, labels):
    """Groups of ten samples in one level and of one in the other, or ten and one of each group;
    errors are skewed.
    """
    random, listed = np.random.default_rng(0), 0
    sizes = np.full(groups, 11) if within else np.where(np.arange(groups) % 2, 10, 1)
    group = np.repeat(np.arange(groups), sizes)
    rare = np.arange(len(group)) % 11 == 0 if within else group % 2 == 0
    for _ in range(REPEATS):
        errors = random.exponential(1, groups)[group] * random.exponential(1, len(group))
        tested, worse = larger_errors(
            predictions(errors, group, labels), {"level": np.where(rare, "a", "b")}
        )
        assert tested == 2
        listed += len(worse)
    # Two levels of one column say one thing: each is listed in 5 % of the cases, so that one is in
    # 10 %.
    assert listed <= (0.1 + 3 * np.sqrt(0.1 * 0.9 / REPEATS)) * REPEATS


def test_five_groups_say_nothing_of_a_level_and_twenty_do():
    for groups, found in ((5, 0), (20, 1)):
        group = np.arange(10 * 2 * groups) // 10
        diet = np.where(group < groups, "breast", "formula")
        errors = np.where(diet == "breast", 2.0, 1.0) + group / 1000
        tested, worse = larger_errors(predictions(errors, group), {"diet": diet})
        assert tested == 2 * found
        assert [(one.level, one.samples, one.right) for one in worse] == [
            ("breast", 10 * groups, None)
        ] * found


def test_what_is_no_level_is_not_tested():
    """A group, the fold, nothing, and a copy of a column that was tested."""
    group = np.repeat(np.arange(40), 5)
    errors, fold = np.random.default_rng(0).exponential(1, 200), np.arange(200) % 4
    given = predictions(errors, group)
    half = np.where(group < 20, "a", "")
    assert (
        larger_errors(
            given,
            {"subject": group.astype(str), "half": half, "copy": np.where(half == "", "", "x")},
        )[0]
        == 1
    )
    folds = TargetPredictions(
        given.sample_ids, given.truth, given.predicted, fold=fold, groups=group
    )
    assert larger_errors(folds, {"fold": fold.astype(str)}) == (0, [])
    assert larger_errors(given, {}) == (0, [])
    assert larger_errors(given.at(np.zeros(200, bool)), {"half": half[:0]}) == (0, [])


def test_a_level_where_all_are_right_is_not_listed():
    errors, group = np.where(np.arange(200) < 100, 0.3, 0.1), np.arange(200)
    given = predictions(errors, group, ("gut", "skin"))
    tested, worse = larger_errors(given, {"half": np.where(group < 100, "a", "b")})
    assert (tested, worse) == (2, [])
