"""A watchdog of a training loop: warns when it stands still, slows down or when memory grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from threading import Event, Thread

from aam.device.memory import resident_memory


class Watchdog:
    """Warn when a loop stands still, when a step took far longer than others, and when memory grows.

    The loop calls `heartbeat` with what it does next. A thread calls `warn` when that takes over `PATIENCE` seconds,
    and again each time that it has taken twice as long.
    """

    PATIENCE = 60.0
    # A step is slow that took this many times the median of its epoch, and at least this many seconds.
    SLOW_FACTOR = 20
    SLOW_SECONDS = 10.0
    # Memory has grown that exceeds that of the first epoch by this factor and by this many bytes.
    GROWTH_FACTOR = 1.5
    GROWTH_BYTES = 1 << 29

    def __init__(self, warn: Callable[..., object]) -> None:
        self.warn = warn
        self.activity = "start"
        self.since = time.monotonic()
        self.patience_factor = 1.0
        self.durations: dict[str, list[float]] = {}
        self.memory = 0
        self._stopped = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def heartbeat(self, activity: str) -> None:
        """Note that the loop has finished what it did, and now begins `activity`."""
        now = time.monotonic()
        self.durations.setdefault(self.activity, []).append(now - self.since)
        self.activity = activity
        self.since = now
        self.patience_factor = 1.0

    def end_epoch(self, name: str) -> None:
        """Warn of slow steps and growing memory in the epoch `name`, which ends here."""
        for activity, durations in self.durations.items():
            usual, longest = median(durations), max(durations)
            if len(durations) > 2 and longest > max(self.SLOW_FACTOR * usual, self.SLOW_SECONDS):
                self.warn("%s: %s took %.0f s once, %.3g s is usual", name, activity, longest, usual)
        self.durations.clear()
        memory = resident_memory()
        if self.memory and memory > max(self.GROWTH_FACTOR * self.memory, self.memory + self.GROWTH_BYTES):
            self.warn("%s: memory has grown from %.1f to %.1f GiB", name, self.memory / 2**30, memory / 2**30)
            self.memory = memory
        self.memory = self.memory or memory
        self.heartbeat("between epochs")

    def _watch(self) -> None:
        while not self._stopped.wait(self.PATIENCE / 20):
            elapsed = time.monotonic() - self.since
            if elapsed > self.PATIENCE * self.patience_factor:
                self.patience_factor *= 2
                text = "%s takes %.0f s so far; is the file system slow, or a process stuck?"
                self.warn(text, self.activity, elapsed)
