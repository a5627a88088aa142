"""A file that raises the first error of a write when it is closed."""

from __future__ import annotations

import contextlib
import os

import pytest

from aam.files.atomic import DeferredErrorFile


def test_the_first_error_is_raised_when_the_file_is_closed(tmp_path):
    with contextlib.closing(DeferredErrorFile(tmp_path / "good")) as file:
        assert file.write(b"abc") == 3
        file.truncate(2)
    assert (tmp_path / "good").read_bytes() == b"ab"
    file = DeferredErrorFile(tmp_path / "bad")
    os.close(file.fileno())
    os.open(os.devnull, os.O_RDONLY)
    assert file.write(b"abc") == 3
    assert file.truncate(9) == 9
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.close()
