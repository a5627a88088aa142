"""When a network joins the mean of other members."""

from __future__ import annotations

import numpy as np
import pytest

from aam.predict.membership import change_of_error


def simulated(change: float, spread: float, groups: int, seed: int = 0) -> tuple:
    """Errors of 8 samples of each group with a relative change that differs between groups."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), 8)
    old = random.uniform(1, 2, len(group))
    of_group = change + spread * random.standard_normal(groups)
    return (old + of_group[group] * old.mean())[:, None], old[:, None], group


def test_the_change_is_relative_and_its_error_is_that_of_groups():
    """The spread of the estimates over many studies is the standard error of each."""
    estimates, errors = zip(
        *(change_of_error(*simulated(-0.1, 0.2, 12, seed)) for seed in range(400)), strict=True
    )
    assert np.mean(estimates) == pytest.approx(-0.1, abs=0.01)
    assert np.std(estimates) == pytest.approx(0.2 / np.sqrt(12), rel=0.1)
    assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.1)


def test_units_of_targets_do_not_matter_and_missing_values_are_left_out():
    new, old, group = simulated(-0.1, 0.2, 6)
    expected = change_of_error(new, old, group)
    both = [np.concatenate([part, 1000 * part], axis=1) for part in (new, old)]
    assert change_of_error(*both, group) == pytest.approx(expected)
    lacking = [np.concatenate([part, np.full_like(part, np.nan)]) for part in (new, old)]
    more = np.concatenate([group, group + 100])
    assert change_of_error(*lacking, more) == pytest.approx(expected)


def test_one_group_vouches_for_nothing():
    new, old, group = simulated(-0.5, 0.0, 1)
    change, error = change_of_error(new, old, group)
    assert change == pytest.approx(-0.5)
    assert not change < -error


def test_a_network_that_changes_nothing_has_no_place():
    _, old, group = simulated(0.0, 0.0, 5)
    assert change_of_error(old, old, group) == (0.0, 0.0)
    perfect = np.zeros_like(old)
    assert change_of_error(perfect, perfect, group) == (0.0, 0.0)
