"""Named stages, their seconds and peaks of memory, and memory of the process."""

from __future__ import annotations

import mmap
import os
import platform
import time
from types import SimpleNamespace

import pytest
import torch

from aam.device import measure
from aam.device.measure import (
    StageMemory,
    StageTimer,
    memory_limit,
    peak_memory,
    reset_peak,
    resident_memory,
    seconds,
    stage,
)

CPU = torch.device("cpu")
MIB = 1 << 20


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A clock that shows the number in the list."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_an_inner_stage_pauses_the_outer_one(clock):
    with StageTimer(CPU, ("outer", "inner")) as taken:
        clock[0] += 100
        with stage("outer"):
            clock[0] += 1
            with stage("inner"):
                clock[0] += 2
            clock[0] += 4
        clock[0] += 100
        with stage("inner"):
            clock[0] += 8
    assert taken == {"outer": 5.0, "inner": 10.0}


def test_a_stage_ends_with_an_error_and_nothing_is_recorded_afterwards(clock):
    def fail() -> None:
        clock[0] += 1
        raise KeyError("x")

    with StageTimer(CPU, ("a", "b")) as taken:
        with pytest.raises(KeyError), stage("a"):
            fail()
        with stage("b"):
            clock[0] += 2
    with stage("b"):
        clock[0] += 4
    assert taken == {"a": 1.0, "b": 2.0}


def test_a_decorated_function_is_a_stage_at_each_call(clock):
    @stage("a")
    def work(amount: float) -> float:
        clock[0] += amount
        return 2 * amount

    assert work(1.0) == 2.0
    with StageTimer(CPU, ("a",)) as taken:
        assert work(2.0) == 4.0
        assert work(4.0) == 8.0
    assert taken == {"a": 6.0}


def test_the_profiler_of_torch_shows_stages():
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.profiler.profile(activities=kinds, acc_events=True) as profiler,
        stage("ASV encoder"),
    ):
        torch.ones(3).sum()
    assert "ASV encoder" in {event.key for event in profiler.key_averages()}


def test_seconds_of_a_product():
    left, right = torch.ones(8, 16), torch.ones(16, 32)
    assert seconds(lambda: left @ right, CPU) > 0


# --- memory --------------------------------------------------------------------------------------


def take(size: int) -> mmap.mmap:
    """Return `size` bytes of new pages, each written to: memory that the C library kept from
    earlier is not used.
    """
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, size, mmap.PAGESIZE):
        block[start] = 1
    return block


def test_the_peak_outlives_what_caused_it_until_it_is_reset():
    reset_peak(CPU)
    before = peak_memory(CPU)
    take(200 * MIB).close()
    assert peak_memory(CPU) - before > 150 * MIB
    reset_peak(CPU)
    assert peak_memory(CPU) - before < 100 * MIB


def test_peaks_belong_to_the_stage_that_caused_them():
    with StageMemory(CPU, ("large", "small", "never")) as peaks:
        with stage("large"):
            block = take(200 * MIB)
            with stage("unlisted"):
                block.close()
        with stage("small"):
            torch.ones(3).sum()
    assert peaks.keys() == {"between", "large", "small"}
    assert peaks["large"] - peaks["small"] > 150 * MIB
    assert min(peaks.values()) > 0


def test_the_limit_is_a_share_of_what_the_process_could_hold():
    half, default = memory_limit(CPU, 0.5), memory_limit(CPU)
    assert half > resident_memory() / 2
    assert 1.2 < default / half < 2.0


@pytest.mark.parametrize(
    ("unified", "free", "limit"),
    [(False, 10, 80), (True, 1000, 80), (True, 30, 28), (True, None, 80), (True, 0, 4)],
)
def test_memory_of_an_apu_is_that_of_the_host(monkeypatch, unified, free, limit):
    """What host, workers and page cache hold is not free; what this process holds counts."""
    here = SimpleNamespace(unified=unified, memory_share=None)
    monkeypatch.setattr(measure, "platform_here", lambda device: here)
    monkeypatch.setattr(measure, "near_free_memory", lambda gpus: free)
    monkeypatch.setattr(measure, "held_memory", lambda device: 5)
    properties = SimpleNamespace(total_memory=100)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    assert memory_limit(torch.device("cuda"), 0.8) == limit


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_kept_for_what_comes_next(plain_python, monkeypatch):
    """Pages of freed memory stay with the process; a variable of the user's own wins."""
    code = """if True:
        import torch
        from aam.device.measure import keep_freed_memory, resident_memory
        keep_freed_memory()
        block = torch.ones(25 << 20)
        held = resident_memory()
        del block
        print(held - resident_memory())
    """
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    assert int(plain_python(code)) < 10 * MIB
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert int(plain_python(code)) > 90 * MIB
