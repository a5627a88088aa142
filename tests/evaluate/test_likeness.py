"""Samples unlike training are told by their ASVs, and get no interval."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import sparse

from aam.evaluate.conformal import Likeness

ASVS = [f"ASV{at}" for at in range(200)]


def presence(seed: int, samples: int, common: np.ndarray) -> sparse.csr_matrix:
    drawn = np.random.default_rng(seed).random((samples, len(common))) < common
    return sparse.csr_matrix(drawn.astype(np.int64))


def prevalences(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.02, 0.9, len(ASVS))


@pytest.fixture(scope="module")
def likeness() -> Likeness:
    rows = np.arange(100)
    folds = [(rows[rows % 5 != k], rows[rows % 5 == k]) for k in range(5)]
    unseen = np.linspace(0, 0.06, 100)
    fitted = Likeness.fit(presence(1, 100, prevalences(0)), ASVS, folds, unseen)
    return Likeness(**json.loads(json.dumps(dataclasses.asdict(fitted))))


def test_samples_of_the_same_population_are_alike(likeness: Likeness):
    assert 1.5 <= likeness.most_shift < 2
    new = presence(2, 40, prevalences(0))
    assert likeness.reasons(new, ASVS, np.full(40, 0.05)) == [""] * 40


def test_a_table_of_other_prevalences_is_unlike_as_a_whole(likeness: Likeness):
    moved = np.clip(prevalences(0) + np.random.default_rng(3).normal(0, 0.2, 200), 0, 1)
    reasons = likeness.reasons(presence(4, 40, moved), ASVS, np.zeros(40))
    assert len(set(reasons)) == 1
    assert reasons[0].startswith("the table is unlike the training table")


def test_a_small_difference_of_a_large_table_is_none(likeness: Likeness):
    """Another batch of one laboratory: 5,000 samples show the smallest difference."""
    moved = np.clip(prevalences(0) + np.random.default_rng(3).normal(0, 0.02, 200), 0, 1)
    large = Likeness(
        likeness.asvs,
        tuple(prevalences(0)[[int(name[3:]) for name in likeness.asvs]]),
        5000,
        1.5,
        0.06,
    )
    new = presence(8, 5000, moved)
    assert large.shift(new, ASVS) > 1.5
    assert set(large.reasons(new, ASVS, np.zeros(5000))) == {""}


def test_names_of_asvs_and_not_their_order_are_compared(likeness: Likeness):
    order = np.random.default_rng(5).permutation(200)
    new = presence(2, 40, prevalences(0))
    expected = likeness.shift(new, ASVS)
    assert likeness.shift(new[:, order], [ASVS[at] for at in order]) == pytest.approx(expected)
    # An ASV that the new table lacks has a prevalence of 0 there.
    assert likeness.shift(new[:, :20], ASVS[:20]) > 10 * expected


def test_a_single_sample_is_judged_by_the_reads_that_training_lacks(likeness: Likeness):
    few, many = likeness.reasons(presence(6, 2, prevalences(0)), ASVS, np.array([0.05, 0.4]))
    assert few == ""
    assert many == (
        "40% of its reads are of ASVs that training lacks, at most 6% in samples like those of "
        "training"
    )


def test_folds_of_grouped_samples_that_differ_raise_the_limit():
    """Samples of one group repeat each other: held-out groups differ more than chance says."""
    groups = presence(7, 20, prevalences(0))
    samples = sparse.vstack([groups] * 10).tocsr()
    group = np.tile(np.arange(20), 10)
    folds = [(np.flatnonzero(group % 5 != k), np.flatnonzero(group % 5 == k)) for k in range(5)]
    fitted = Likeness.fit(samples, ASVS, folds, np.zeros(200))
    assert fitted.most_shift > 5
