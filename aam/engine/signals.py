"""Signals of a scheduler or a user: training saves its state after the step and ends with exit
status 85.

A command that ends in this way raises `CallAgain`, and `cli.py` turns it into the status.
Torch is not imported, because a signal may arrive before it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from aam.errors import FAILED, WARNINGS, CallAgain

if TYPE_CHECKING:
    from aam.device.distributed import World


class Signals:
    """Handles the signals that warn a process; the first one ends it in an orderly way, the second
    one at once.

    A second signal within `GRACE` seconds is ignored: schedulers signal a process and its group.

    A context manager that can be entered twice. Entered once, a signal raises `CallAgain` where the
    process is. Entered again, by the training loop, a signal only sets `caught` to its name, which
    is read at the end of the step. Child processes ignore it.
    """

    GRACE = 2.0

    def __init__(self) -> None:
        self.caught = ""
        self.depth = 0
        self.since = 0.0

    def __enter__(self) -> Signals:
        self.depth += 1
        if self.depth == 1:
            self._process = os.getpid()
            # Only the main thread may handle signals; a run in another one leaves them to its
            # program.
            handled = WARNINGS if threading.current_thread() is threading.main_thread() else ()
            self._handlers = {number: signal.signal(number, self._catch) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def raise_if_requested(self, world: World) -> None:
        """Raise `CallAgain` on all ranks where any rank caught a signal, when what is trained is
        saved.
        """
        if world.any(bool(self.caught)):
            self.call_again(", what is trained is saved")

    def call_again(self, consequence: str) -> NoReturn:
        """Raise `CallAgain`, on each rank where any caught a signal, and say what came of it."""
        raise CallAgain(f"{self.caught or 'a signal to another rank'} came{consequence}")

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return
        if self.caught:
            if time.monotonic() - self.since > self.GRACE:
                os._exit(FAILED)
            return
        self.caught, self.since = signal.Signals(number).name, time.monotonic()
        if self.depth == 1:
            self.call_again(" while there is nothing to save")


@contextlib.contextmanager
def interrupts_as_in_python() -> Iterator[None]:
    """Turn the signal that ends a run, whose state is saved, into a KeyboardInterrupt."""
    try:
        yield
    except CallAgain as error:
        raise KeyboardInterrupt(str(error)) from error
