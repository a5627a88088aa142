"""A watchdog of a loop: tells a person when it stands still, slows down or grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from threading import Event, Thread

from aam.runtime.memory import resident_memory


class Watch:
    """Tells a person when a loop stands still, when a step took far longer than others, and when memory grows.

    The loop calls `beat` with what it does next; a thread says so through `say` when that takes over
    `PATIENCE` seconds, and again each time that it has taken twice as long.
    """

    PATIENCE = 60.0
    # A step this much longer than the median of its epoch, and than this many seconds, is said.
    SLOW, SECONDS = 20, 10.0
    # Growth since the first epoch that is said: as a factor, and in bytes.
    GROWTH, BYTES = 1.5, 1 << 29

    def __init__(self, say: Callable[..., object]) -> None:
        self.say = say
        self.doing, self.since, self.said = "start", time.monotonic(), 1.0
        self.taken: dict[str, list[float]] = {}
        self.memory = 0
        self._ended = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def beat(self, doing: str) -> None:
        """What went before is done, and `doing` begins."""
        now = time.monotonic()
        self.taken.setdefault(self.doing, []).append(now - self.since)
        self.doing, self.since, self.said = doing, now, 1.0

    def rest(self, name: str) -> None:
        """Say what was unusual since the last rest, here called `name`."""
        for kind, taken in self.taken.items():
            if len(taken) > 2 and max(taken) > max(self.SLOW * median(taken), self.SECONDS):
                usual = f"{median(taken):.3g} s is usual"
                self.say("%s: %s took %.0f s once, %s", name, kind, max(taken), usual)
        self.taken.clear()
        held = resident_memory()
        if self.memory and held > max(self.GROWTH * self.memory, self.memory + self.BYTES):
            self.say("%s: memory has grown from %.1f to %.1f GiB", name, self.memory / 2**30, held / 2**30)
            self.memory = held
        self.memory = self.memory or held
        self.beat("between epochs")

    def _look(self) -> None:
        while not self._ended.wait(self.PATIENCE / 20):
            waited = time.monotonic() - self.since
            if waited > self.PATIENCE * self.said:
                self.said *= 2
                self.say("%s takes %.0f s so far; is the file system slow, or a process stuck?", self.doing, waited)
