"""Learning curves: the law that is fitted, the groups that are drawn, and what is said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import aam
from aam.errors import InputError
from aam.predict.baselines import TargetData
from aam.predict.learning_curve import LearningCurve, _drawn_groups, fit_power_laws
from aam.predict.out_of_fold import Fold
from tests.refusals import refusal

SIZES = np.array([8.0, 14, 20, 28, 40])


def test_a_power_law_is_found_again():
    errors = np.stack([0.2 + 3 * SIZES**-0.5, 0.9 * SIZES**-0.3, np.full(5, 0.4)])
    start, slope, exponent = fit_power_laws(SIZES, errors).T
    assert start == pytest.approx([0.2, 0.0, 0.4], abs=1e-9)
    assert slope == pytest.approx([3, 0.9, 0], abs=1e-6)
    assert exponent[:2] == pytest.approx([0.5, 0.3])


def test_an_error_that_rises_with_the_subjects_is_expected_to_stay():
    (law,) = fit_power_laws(SIZES, np.linspace(0.3, 0.5, 5)[None])
    assert law[1] == 0
    assert 0.3 < law[0] < 0.5


def curve(groups: int, metric: str = "mae") -> LearningCurve:
    draw = np.random.default_rng(0)
    errors = 0.2 + 3 * SIZES**-0.5 + np.r_[np.zeros((1, 5)), draw.normal(0, 0.02, (200, 5))]
    limits = {"low": errors[0] - 0.1, "high": errors[0] + 0.1}
    points = pd.DataFrame({"groups": SIZES, "value": errors[0], **limits})
    return LearningCurve(metric, points, errors, groups, 1.0)


def test_twice_as_many_subjects_have_a_sentence_from_twenty_on():
    expected = curve(40).expected(80)
    assert expected.low < 0.2 + 3 * 80**-0.5 < expected.high
    (sentence,) = curve(40).sentences("child")
    assert sentence.startswith("With twice as many groups (child) we expect MAE 0.53")
    assert curve(19).sentences("child") == []
    assert curve(40, "auroc").expected(80).value == pytest.approx(1 - expected.value)


def test_no_limit_is_beyond_what_a_metric_can_be():
    draw = np.random.default_rng(0)
    errors = 0.04 * (SIZES / 8) ** -0.3 + np.r_[np.zeros((1, 5)), draw.normal(0, 0.04, (200, 5))]
    points = pd.DataFrame({"groups": SIZES})
    expected = LearningCurve("auroc", points, np.clip(errors, 0, 1), 40, 2**0.5).expected(80)
    assert 0.9 < expected.low < expected.value < expected.high == 1


def test_groups_are_drawn_whole_nested_and_with_their_classes():
    groups = np.repeat(np.arange(30), 4)
    everyone = np.arange(120)
    task = TargetData(
        (groups % 3 == 0).astype(np.int64), ("a", "b"), [Fold(everyone, everyone)], *[groups] * 2
    )
    task = TargetData(task.truth, task.labels, task.folds, groups, groups, groups=groups)
    small, large = (_drawn_groups(task, np.arange(120), share, 0, 0) for share in (0.35, 0.7))
    assert set(small) < set(large)
    assert len(small) == 4 * (round(0.35 * 20) + round(0.35 * 10))
    assert np.bincount(groups[large])[np.unique(groups[large])].tolist() == [4] * 21
    assert _drawn_groups(task, np.arange(120), 0.1, 0, 0) is None


def study(samples: int = 60) -> tuple[pd.DataFrame, pd.DataFrame]:
    draw = np.random.default_rng(0)
    ids = [f"s{row}" for row in range(samples)]
    age = draw.uniform(0, 10, samples)
    shares = np.exp(np.outer(age - 5, draw.normal(0, 0.3, 30)))
    counts = np.array([draw.multinomial(900, row / row.sum()) for row in shares])
    table = pd.DataFrame(counts, ids, [f"OTU{column}" for column in range(30)])
    return table, pd.DataFrame(
        {"age": age, "subject": [f"p{row // 2}" for row in range(samples)]}, ids
    )


def test_the_api_gives_points_and_what_twice_as_many_would_give():
    few = {"group_column": "subject", "cv": "3", "rarefy_depth": 500, "members": ("presence",)}
    frame = aam.learning_curve(*study(), "age", **few)
    assert frame["groups"].tolist() == [7, 10, 14, 20, 40]
    assert frame["draws"].tolist() == [4, 3, 2, 1, 0]
    assert frame["value"].iloc[-2] < frame["value"].iloc[0]
    assert (frame["low"] < frame["value"]).all()
    assert "too few groups" in refusal(aam.learning_curve, *study(12), "age", **few)
    with pytest.raises(InputError):
        aam.learning_curve(*study(), "weight")
