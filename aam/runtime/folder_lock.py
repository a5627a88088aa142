"""Lock of a folder, so that one process at a time writes there."""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

from aam.errors import InputError

log = logging.getLogger("aam")

LOCK = ".lock"


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process; the system releases the lock when the process ends, however it ends.

    Raises
    ------
    InputError
        Another process holds the lock.
    """
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process is writing there; wait for it, or choose another") from None
        except OSError as error:
            log.warning("%s: this file system has no locks (%s); start one process there at a time", folder, error)
        yield
