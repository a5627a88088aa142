"""Conformal intervals: their quantile, their scales, the share of new samples that they hold, and
the samples unlike training, which get none.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import sparse

from aam.evaluate import conformal, metrics
from aam.evaluate.conformal import CONFORMAL_LEVEL, Conformal
from aam.evaluate.likeness import TableLikeness
from aam.evaluate.predictions import TargetPredictions
from tests.evaluate.simulated import predictions_of
from tests.evaluate.simulations import conformal_coverage


def spreading(seed: int, samples: int = 600) -> TargetPredictions:
    """Errors that grow with the prediction, three samples of a group."""
    draw = np.random.default_rng(seed)
    predicted = draw.uniform(1, 10, samples)
    truth = predicted + draw.normal(0, 0.3 * predicted)
    return predictions_of(truth, predicted, groups=np.arange(samples) // 3)


def read_again(fitted):
    """A fit as JSON keeps it."""
    return type(fitted)(**json.loads(json.dumps(dataclasses.asdict(fitted))))


def test_one_width_of_single_samples_is_a_rank_of_the_residuals(monkeypatch):
    monkeypatch.setattr(conformal, "SCALES", 1)
    given = dataclasses.replace(spreading(0, 99), groups=None)
    fit = Conformal.fit(given)
    residual, place = np.sort(given.errors), math.ceil(0.9 * 100) - 1
    assert np.isclose(fit.quantile * fit.scales[0], residual[place : place + 2]).any()
    np.testing.assert_allclose(fit.limits(np.array([3.0])).mean(axis=1), 3)


@pytest.mark.parametrize("dominant", [False, True], ids=["unequal", "one holds most"])
@pytest.mark.slow
@pytest.mark.parametrize("groups", [20, 40, 80])
def test_intervals_hold_the_stated_share_of_new_groups(groups: int, dominant: bool):
    """200 studies each: within 2 points of 90 %, also when one group holds most samples."""
    held = conformal_coverage(200, groups, dominant)
    assert held == pytest.approx(CONFORMAL_LEVEL, abs=0.02)


def test_limits_are_not_below_the_floor():
    fit = Conformal.fit(spreading(0), floor=0.0)
    new = np.array([0.1, 5.0, 9.9])
    limits = fit.limits(new)
    assert limits[0, 0] == limits.min() == 0.0
    # An interval that would lie outside whole would have no width.
    assert (np.diff(fit.limits(np.array([-50.0, 0.5]))) > 0).all()
    np.testing.assert_array_equal(read_again(fit).limits(new), limits)


def test_scaled_intervals_cover_every_part_of_the_predictions_and_are_narrower(monkeypatch):
    new, fits = spreading(1, 3000), [Conformal.fit(spreading(0))]
    monkeypatch.setattr(conformal, "SCALES", 1)
    fits.append(Conformal.fit(spreading(0)))
    low, high = new.predicted < 3, new.predicted > 8
    weights = np.stack([low, high, low | True])
    scaled, same = (
        metrics.weighted_interval_metrics(new.truth, fit.limits(new.predicted), weights)
        for fit in fits
    )
    assert scaled["coverage"] == pytest.approx([0.9, 0.9, 0.9], abs=0.05)
    assert same["coverage"][0] > 0.99
    assert same["coverage"][1] < 0.85
    assert scaled["width"][2] < 0.95 * same["width"][2]


def test_many_groups_are_left_out_in_parts(monkeypatch):
    """400 groups in 100 parts: the interval is that of groups left out one by one."""
    given, fits = spreading(0, 1200), []
    with_scales = conformal._with_scales
    monkeypatch.setattr(conformal, "LEFT_OUT_PARTS", 100)
    monkeypatch.setattr(conformal, "_with_scales", lambda *of: fits.append(1) or with_scales(*of))
    in_parts = Conformal.fit(given)
    assert len(fits) == 100 + 1
    monkeypatch.setattr(conformal, "LEFT_OUT_PARTS", 400)
    one_by_one = Conformal.fit(given)
    assert in_parts.quantile == pytest.approx(one_by_one.quantile, rel=0.01)
    assert in_parts.scales == one_by_one.scales


def test_few_groups_and_perfect_predictions():
    assert Conformal.fit(spreading(0, 57)) is None
    assert Conformal.fit(spreading(0, 60)) is not None
    perfect = dataclasses.replace(spreading(0, 60), truth=spreading(0, 60).predicted)
    assert Conformal.fit(perfect).half_width(np.array([1.0, 20.0])).tolist() == [0.0, 0.0]


# --- samples unlike training -------------------------------------------------------------------

ASVS = [f"ASV{at}" for at in range(200)]
COMMON = np.random.default_rng(0).uniform(0.02, 0.9, len(ASVS))


def presence(seed: int, samples: int, common: np.ndarray = COMMON) -> sparse.csr_matrix:
    drawn = np.random.default_rng(seed).random((samples, len(common))) < common
    return sparse.csr_matrix(drawn.astype(np.int64))


def moved(by: float) -> np.ndarray:
    return np.clip(COMMON + np.random.default_rng(3).normal(0, by, 200), 0, 1)


def fitted_on(samples: sparse.csr_matrix, fold: np.ndarray, unseen: np.ndarray) -> TableLikeness:
    folds = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(5)]
    return read_again(TableLikeness.fit(samples, ASVS, folds, unseen))


@pytest.fixture(scope="module")
def likeness() -> TableLikeness:
    return fitted_on(presence(1, 100), np.arange(100) % 5, np.linspace(0, 0.06, 100))


def test_a_table_is_unlike_as_a_whole_if_its_prevalences_are_others(likeness: TableLikeness):
    assert 1.5 <= likeness.most_shift < 2
    assert likeness.reasons(presence(2, 40), ASVS, np.full(40, 0.05)) == [""] * 40
    (reason,) = set(likeness.reasons(presence(4, 40, moved(0.2)), ASVS, np.zeros(40)))
    assert reason.startswith("the table is unlike the training table")


def test_a_small_difference_of_a_large_table_is_none(likeness: TableLikeness):
    """Another batch of one laboratory: 5,000 samples show the smallest difference."""
    exact = COMMON[[int(name[3:]) for name in likeness.asvs]]
    large = TableLikeness(likeness.asvs, tuple(exact), 5000, 1.5, 0.06)
    new = presence(8, 5000, moved(0.02))
    assert large.shift(new, ASVS) > 1.5
    assert set(large.reasons(new, ASVS, np.zeros(5000))) == {""}


def test_names_of_asvs_and_not_their_order_are_compared(likeness: TableLikeness):
    order, new = np.random.default_rng(5).permutation(200), presence(2, 40)
    expected = likeness.shift(new, ASVS)
    assert likeness.shift(new[:, order], [ASVS[at] for at in order]) == pytest.approx(expected)
    # An ASV that the new table lacks has a prevalence of 0 there.
    assert likeness.shift(new[:, :20], ASVS[:20]) > 10 * expected


def test_a_single_sample_is_judged_by_the_reads_that_training_lacks(likeness: TableLikeness):
    assert likeness.reasons(presence(6, 2), ASVS, np.array([0.05, 0.4])) == [
        "",
        "40% of its reads are of ASVs that training lacks, at most 6% in samples like those of "
        "training",
    ]


def test_folds_of_grouped_samples_that_differ_raise_the_limit():
    """Samples of one group repeat each other: held-out groups differ more than chance says."""
    samples = sparse.vstack([presence(7, 20)] * 10).tocsr()
    assert fitted_on(samples, np.tile(np.arange(20) % 5, 10), np.zeros(200)).most_shift > 5
