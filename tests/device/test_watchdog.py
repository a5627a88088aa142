"""The warnings of the watchdog of a loop, and when they come."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from aam.engine.trainer import Watchdog


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def watchdog(warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    monkeypatch.setattr(Watchdog, "PATIENCE", 0.2)
    with Watchdog(lambda text, *values: warnings.append(text % values)) as watchdog:
        yield watchdog


def test_a_loop_that_stands_still_is_warned_of_each_time_that_it_took_twice_as_long(watchdog, warnings):
    watchdog.heartbeat("the next batch")
    time.sleep(0.55)
    assert len(warnings) == 2
    assert all(line.startswith("the next batch takes ") for line in warnings)
    watchdog.heartbeat("a step")
    time.sleep(0.05)
    assert len(warnings) == 2


def test_a_step_that_took_far_longer_than_others_is_warned_of(warnings, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("aam.engine.trainer.time.monotonic", lambda: now[0])
    watchdog = Watchdog(lambda text, *values: warnings.append(text % values))
    for epoch, longest in (("epoch 1", 30.0), ("epoch 2", 9.0), ("epoch 3", 30.0)):
        for taken in (0.5, 0.5, longest, 0.5):
            watchdog.heartbeat("a step")
            now[0] += taken if epoch != "epoch 3" else 4 * taken if taken < 1 else taken
            watchdog.heartbeat("the next batch")
        watchdog.end_epoch(epoch)
    assert warnings == ["epoch 1: a step took 30 s once, 0.5 s is usual"]


def test_growing_memory_is_warned_of_once_for_each_growth(warnings, monkeypatch):
    memory = iter([1.0, 1.4, 1.6, 1.7, 2.5])
    monkeypatch.setattr("aam.engine.trainer.resident_memory", lambda: int(next(memory) * 2**30))
    watchdog = Watchdog(lambda text, *values: warnings.append(text % values))
    for epoch in range(5):
        watchdog.end_epoch(f"epoch {epoch}")
    assert warnings == [
        "epoch 2: memory has grown from 1.0 to 1.6 GiB",
        "epoch 4: memory has grown from 1.6 to 2.5 GiB",
    ]
