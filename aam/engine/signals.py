"""Signals of a scheduler or a person, turned into an orderly end."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType

from aam.errors import FAILED, WARNINGS, CallAgain
from aam.runtime.distributed import SINGLE, World

ON_ANOTHER_RANK = "a signal to another rank"


class Signals:
    """Turns the first warning of a scheduler or a person into an orderly end; the second ends the process at once.

    What comes within `GRACE` seconds of the first is part of it: schedulers warn a process and its group.

    Entered once it is heard, and `CallAgain` is raised where the process is; entered again, by the training loop,
    the signal only leaves its name in `caught`, to be seen at the end of the step. Child processes ignore it.
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
            self._before = {one: signal.signal(one, self._catch) for one in WARNINGS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        if self.depth == 0:
            for one, before in self._before.items():
                signal.signal(one, before)

    def raise_if_requested(self, world: World = SINGLE) -> None:
        """Raise `CallAgain` where a signal came, to any rank, during training that ended by itself."""
        if world.any(bool(self.caught)):
            raise CallAgain(f"{self.caught or ON_ANOTHER_RANK} came, what is trained is saved")

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return
        if self.caught:
            if time.monotonic() - self.since > self.GRACE:
                os._exit(FAILED)
            return
        self.caught, self.since = signal.Signals(number).name, time.monotonic()
        if self.depth == 1:
            raise CallAgain(f"{self.caught} came where there is nothing to save")
