"""Errors that carry every problem."""

from __future__ import annotations

import errno
import os

import pytest

import aam.cli
from aam import errors
from aam.errors import InputError, Problems, problem, shown
from aam.files.atomic import atomic_file


def test_an_error_shows_all_its_problems():
    error = InputError("a: is 1, expected 2", "b: missing")
    assert error.problems == ("a: is 1, expected 2", "b: missing")
    assert str(error) == "a: is 1, expected 2\nb: missing"
    assert isinstance(error, ValueError)
    assert InputError("a", "b", "a").problems == ("a", "b")


def test_problems_are_collected():
    problems = Problems()
    problems.raise_if_any()
    problems.add("one")
    with problems.collected():
        raise InputError("two", "three")
    with pytest.raises(InputError) as caught:
        problems.raise_if_any()
    assert caught.value.problems == ("one", "two", "three")


def test_listings_are_short():
    assert shown([]) == ""
    assert shown(["a", 7, None]) == "'a', '7', 'None'"
    assert shown(["a b"] * 7) == "'a b', 'a b', 'a b', 'a b', 'a b' and 2 more"
    assert shown((str(each) for each in range(5)), 2) == "'0', '1' and 3 more"
    assert shown({"x": 1}, 1) == "'x'"
    assert shown(["é" * 200, "é" * 201]) == f"'{'é' * 200}', '{'é' * 200}…'"


@pytest.mark.parametrize(
    ("code", "is_new", "status"),
    [
        (errno.EACCES, False, errors.BAD_INPUT),
        (errno.EROFS, True, errors.BAD_INPUT),
        (errno.ENOENT, True, errors.BAD_INPUT),
        (errno.ENOENT, False, errors.FAILED),
        (errno.ENOSPC, True, errors.FAILED),
        (errno.EIO, True, errors.FAILED),
    ],
)
def test_an_output_that_a_file_system_refuses_is_bad_input_and_a_broken_disk_a_failure(
    tmp_path, monkeypatch, capsys, code, is_new, status
):
    output = tmp_path / "d.tsv"

    def run(*_: object) -> None:
        with atomic_file(output) as temporary:
            raise OSError(code, os.strerror(code), str(temporary if is_new else output))

    monkeypatch.setattr(aam.cli, "_run", run)
    assert aam.cli.main(["unifrac"]) == status
    assert f"{output}: {os.strerror(code)}" in capsys.readouterr().err


def test_a_killed_worker_is_named_wherever_torch_says_so(monkeypatch, capsys):
    def run(config: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    monkeypatch.setattr(aam.cli.Command, "load", lambda command: run)
    assert aam.cli.main(["doctor"]) == errors.FAILED
    expected = f"aam doctor: {errors.KILLED} (DataLoader worker (pid 7) is killed by signal: Killed"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (("a.tsv", "has 3 rows"), "a.tsv: has 3 rows"),
        (("a.tsv", "has 3 rows", "4"), "a.tsv: has 3 rows, expected 4"),
        (("a.tsv", "has 3 rows", "4", "add one"), "a.tsv: has 3 rows, expected 4; add one"),
        (("--cv", "is 1", "", "pass 5"), "--cv: is 1; pass 5"),
    ],
)
def test_a_problem_is_one_sentence(parts: tuple[str, ...], sentence: str):
    assert problem(*parts) == sentence
