"""What the watch of a loop says, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from aam.runtime.memory import resident_memory
from aam.runtime.watchdog import Watch


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def watch(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(Watch, "PATIENCE", 0.2)
    with Watch(lambda text, *values: said.append(text % values)) as watch:
        yield watch


def test_what_stands_still_is_said_each_time_that_it_took_twice_as_long(watch, said):
    watch.beat("the next batch")
    time.sleep(0.55)
    assert len(said) == 2
    assert all(line.startswith("the next batch takes ") for line in said)
    watch.beat("a step")
    time.sleep(0.05)
    assert len(said) == 2


def test_a_step_that_took_far_longer_than_others_is_said(said, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("aam.runtime.watchdog.time.monotonic", lambda: now[0])
    watch = Watch(lambda text, *values: said.append(text % values))
    for epoch, longest in (("epoch 1", 30.0), ("epoch 2", 9.0), ("epoch 3", 30.0)):
        for taken in (0.5, 0.5, longest, 0.5):
            watch.beat("a step")
            now[0] += taken if epoch != "epoch 3" else 4 * taken if taken < 1 else taken
            watch.beat("the next batch")
        watch.rest(epoch)
    assert said == ["epoch 1: a step took 30 s once, 0.5 s is usual"]


def test_growing_memory_is_said_once_for_each_growth(said, monkeypatch):
    held = iter([1.0, 1.4, 1.6, 1.7, 2.5])
    monkeypatch.setattr("aam.runtime.watchdog.resident_memory", lambda: int(next(held) * 2**30))
    watch = Watch(lambda text, *values: said.append(text % values))
    for epoch in range(5):
        watch.rest(f"epoch {epoch}")
    assert said == ["epoch 2: memory has grown from 1.0 to 1.6 GiB", "epoch 4: memory has grown from 1.6 to 2.5 GiB"]


def test_memory_is_that_of_this_process():
    before = resident_memory()
    block = bytearray(b"x" * (100 << 20))
    assert resident_memory() - before > len(block) // 2
