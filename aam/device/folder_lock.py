"""Lock of a folder: one process at a time writes there, or several that agree to share it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from aam.errors import InputError

log = logging.getLogger("aam")

LOCK = ".lock"


def _lock(file: IO[str], folder: Path, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{folder}: another process is writing there; wait for it, or choose another") from None
    except OSError as error:
        log.warning("%s: this file system has no locks (%s); start one process there at a time", folder, error)


def check_unlocked(folder: Path) -> None:
    """Raise `InputError` where another process has locked `folder`; writes nothing, not even a new lock."""
    if (folder / LOCK).exists():
        with (folder / LOCK).open() as file:
            _lock(file, folder, fcntl.LOCK_SH)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process; the system releases the lock when the process ends, however it ends.

    Raises
    ------
    InputError
        Another process holds the lock.
    """
    with (folder / LOCK).open("a") as file:
        _lock(file, folder, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def share_folder(folder: Path, prepare: Callable[[], object]) -> Iterator[None]:
    """Share `folder` with other processes; the system ends the share when the process ends, however it ends.

    `prepare` is called where no other process shares the folder; those that come meanwhile wait for its end.
    """
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError as error:
            log.warning("%s: this file system has no locks (%s); start one process there at a time", folder, error)
            prepare()
            yield
            return
        else:
            prepare()
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
