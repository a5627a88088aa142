"""The lock of a folder."""

from __future__ import annotations

import fcntl

import pytest

from aam.device.folder_lock import LOCK, check_unlocked, lock_folder
from aam.errors import InputError


def test_one_process_at_a_time(tmp_path):
    with lock_folder(tmp_path), pytest.raises(InputError, match="another process is writing there"):
        lock_folder(tmp_path).__enter__()
    with lock_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_lock_is_looked_at_without_a_trace(tmp_path):
    check_unlocked(tmp_path)
    assert not list(tmp_path.iterdir())
    with lock_folder(tmp_path), pytest.raises(InputError, match="another process is writing there"):
        check_unlocked(tmp_path)
    check_unlocked(tmp_path)


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError("Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_folder(tmp_path):
        assert "this file system has no locks" in caplog.text
