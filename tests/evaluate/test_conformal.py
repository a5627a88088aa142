"""Conformal intervals: their quantile, their scales, and the share of new samples that they
hold.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from aam.evaluate import conformal, metrics
from aam.evaluate.predictions import TargetPredictions
from tests.evaluate.simulated import predictions_of
from tests.evaluate.simulations import conformal_coverage


def spreading(seed: int, samples: int = 600) -> TargetPredictions:
    """Errors that grow with the prediction, three samples of a group."""
    draw = np.random.default_rng(seed)
    predicted = draw.uniform(1, 10, samples)
    return predictions_of(
        predicted + draw.normal(0, 0.3 * predicted), predicted, groups=np.arange(samples) // 3
    )


def test_one_width_of_single_samples_is_a_rank_of_the_residuals():
    given = dataclasses.replace(spreading(0, 99), groups=None)
    fit = conformal.Conformal.fit(given, scales=1)
    assert (fit.samples, fit.groups) == (99, 99)
    residual = np.sort(np.abs(given.truth - given.predicted))
    place = math.ceil(0.9 * 100) - 1
    assert fit.quantile * fit.scales[0] in (
        pytest.approx(residual[place]),
        pytest.approx(residual[place + 1]),
    )
    np.testing.assert_allclose(fit.limits(np.array([3.0])).mean(axis=1), 3)


@pytest.mark.parametrize("dominant", [False, True], ids=["unequal", "one holds most"])
@pytest.mark.slow
@pytest.mark.parametrize("groups", [20, 40, 80])
def test_point_12_intervals_hold_the_stated_share_of_new_groups(groups: int, dominant: bool):
    """200 studies each: within 2 points of 90 %, also when one group holds most samples."""
    assert conformal_coverage(200, groups, dominant) == pytest.approx(
        conformal.CONFORMAL_LEVEL, abs=0.02
    )


def test_point_12_the_level_held_by_groups_left_out_is_stated():
    fit = conformal.Conformal.fit(spreading(0))
    assert conformal.CONFORMAL_LEVEL <= fit.held < conformal.CONFORMAL_LEVEL + 0.02


def test_point_12_limits_stay_inside_the_bounds_of_a_bounded_model():
    fit = conformal.Conformal.fit(spreading(0), bounds=(0.0, 10.0))
    limits = fit.limits(np.array([0.1, 5.0, 9.9]))
    assert limits[0, 0] == 0.0
    assert limits[2, 1] == 10.0
    assert limits.min() >= 0.0
    assert limits.max() <= 10.0
    # An interval that would lie outside whole would have no width.
    assert (np.diff(fit.limits(np.array([-50.0, 70.0]))) > 0).all()
    assert (
        conformal.Conformal(**json.loads(json.dumps(dataclasses.asdict(fit))))
        .limits(fit.knots)
        .tolist()
        == fit.limits(fit.knots).tolist()
    )


def test_scaled_intervals_cover_every_part_of_the_predictions_and_are_narrower():
    fitted, new = spreading(0), spreading(1, 3000)
    scaled, same = conformal.Conformal.fit(fitted), conformal.Conformal.fit(fitted, scales=1)
    low, high = new.predicted < 3, new.predicted > 8
    weights = np.stack([low, high, low | True])
    values = {
        name: metrics.weighted_interval_metrics(new.truth, fit.limits(new.predicted), weights)
        for name, fit in (("scaled", scaled), ("same", same))
    }
    assert values["scaled"]["coverage"] == pytest.approx([0.9, 0.9, 0.9], abs=0.05)
    assert values["same"]["coverage"][0] > 0.99
    assert values["same"]["coverage"][1] < 0.85
    assert values["scaled"]["width"][2] < 0.95 * values["same"]["width"][2]


def test_many_groups_are_left_out_in_parts(monkeypatch):
    """1,200 groups: the interval is that of groups left out one by one, in as many fits as there
    are parts.
    """
    given, fits = spreading(0, 3600), []
    with_scales = conformal._with_scales
    monkeypatch.setattr(
        conformal, "_with_scales", lambda *given: fits.append(1) or with_scales(*given)
    )
    in_parts = conformal.Conformal.fit(given)
    assert len(fits) == conformal.LEFT_OUT_PARTS + 1
    monkeypatch.setattr(conformal, "LEFT_OUT_PARTS", 1200)
    one_by_one = conformal.Conformal.fit(given)
    assert in_parts.quantile == pytest.approx(one_by_one.quantile, rel=0.005)
    assert in_parts.held == pytest.approx(one_by_one.held, abs=0.002)
    assert in_parts.scales == one_by_one.scales


def test_few_groups_and_perfect_predictions():
    assert conformal.Conformal.fit(spreading(0, 57)) is None
    assert conformal.Conformal.fit(spreading(0, 60)) is not None
    perfect = dataclasses.replace(spreading(0, 60), truth=spreading(0, 60).predicted)
    assert conformal.Conformal.fit(perfect).half_width(np.array([1.0, 20.0])).tolist() == [0.0, 0.0]
