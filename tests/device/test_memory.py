"""Memory of the process: what it holds now, at most, by stage, and may hold."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys

import pytest
import torch

from aam.device.measure import (
    StageMemory,
    memory_limit,
    peak_memory,
    reset_peak,
    resident_memory,
    stage,
)

CPU = torch.device("cpu")
MIB = 1 << 20


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_kept_for_what_comes_next():
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
    for variables, kept in (({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)):
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
        }
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env={**inherited, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        returned = int(done.stdout)
        assert returned < 10 * MIB if kept else returned > 90 * MIB, returned
