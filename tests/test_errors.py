"""Errors that carry every problem."""

from __future__ import annotations

import pytest

from aam import errors
from aam.errors import InputError, Problems, shown


def test_an_error_shows_all_its_problems():
    error = InputError("a: is 1, expected 2", "b: missing")
    assert error.problems == ("a: is 1, expected 2", "b: missing")
    assert str(error) == "a: is 1, expected 2\nb: missing"
    assert isinstance(error, ValueError)


def test_problems_are_collected():
    problems = Problems()
    problems.raise_if_any()
    problems.add("one")
    problems.extend(InputError("two", "three"))
    with pytest.raises(InputError) as caught:
        problems.raise_if_any()
    assert caught.value.problems == ("one", "two", "three")


def test_listings_are_short():
    assert shown([]) == ""
    assert shown(["a", 7, None]) == "'a', '7', 'None'"
    assert shown(["a b"] * 7) == "'a b', 'a b', 'a b', 'a b', 'a b' and 2 more"
    assert shown((str(each) for each in range(5)), 2) == "'0', '1' and 3 more"
    assert shown({"x": 1}, 1) == "'x'"


def test_exit_statuses():
    statuses = (errors.FINISHED, errors.FAILED, errors.BAD_INPUT, errors.CALL_AGAIN)
    assert statuses == (0, 1, 2, 85)
