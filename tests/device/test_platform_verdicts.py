"""The cache of verdicts on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.device.environment import cache_folder
from aam.device.platform import cached_verdict

QUESTION = {"device": "CPU", "width": 8}


class Measurement:
    """Counts how often it was taken."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> dict[str, int]:
        self.count += 1
        return {"number": self.count}


def is_valid(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("number"), int)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_follows_the_environment(cache, monkeypatch, tmp_path):
    assert cache_folder() == cache
    monkeypatch.delenv("AAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "aam"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "aam"


def test_a_verdict_is_measured_once_for_each_question(cache):
    measure = Measurement()
    assert cached_verdict("test", QUESTION, measure, is_valid) == {"number": 1}
    assert cached_verdict("test", QUESTION, measure, is_valid) == {"number": 1}
    assert cached_verdict("test", {**QUESTION, "width": 9}, measure, is_valid) == {"number": 2}
    assert cached_verdict("test", QUESTION, measure, is_valid, refresh=True) == {"number": 3}
    assert cached_verdict("test", QUESTION, measure, is_valid) == {"number": 3}
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_logged(cache, caplog):
    cache.write_text("a file")
    with caplog.at_level("INFO", "aam"):
        assert cached_verdict("test", QUESTION, Measurement(), is_valid) == {"number": 1}
    assert "not kept" in caplog.text
