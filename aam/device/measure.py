"""Measurements of a computation: seconds, named stages, rates, memory; ``--memory-profile``."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from pathlib import Path
from statistics import median
from typing import Any

import torch

from aam.device.environment import amd_gpus, numa_cpus
from aam.device.platform import choose_device, platform_here
from aam.errors import InputError
from aam.files.atomic import check_writable, write_text

log = logging.getLogger("aam")

# Rows of the matrices whose product is timed: a GPU is not busy with fewer.
PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192, "mps": 2048}


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done all work that was queued on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of `work` in seconds, the device's part included."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


# --- stages ------------------------------------------------------------------------------------


class StageRecorder:
    """Base of what measures stages: follows which of the stages `names` is the innermost open one.

    A stage inside another pauses it, so measurements of different stages do not overlap. Stages of
    other names are ignored: what runs in them belongs to the stage around them. A context manager
    that gives what is measured of the stages that this thread enters inside, by name.
    """

    def __init__(self, device: torch.device, names: Collection[str]) -> None:
        self.device, self.names = device, names
        self.measured: dict[str, Any] = {}
        # The innermost stage is the last; None is what runs in no stage.
        self.entered: list[str | None] = [None]

    def __enter__(self) -> dict[str, Any]:
        self._token = _recorders.set((*_recorders.get(), self))
        return self.measured

    def __exit__(self, *_: object) -> None:
        self.measure(None)
        _recorders.reset(self._token)

    def measure(self, name: str | None) -> None:
        """Attribute what happened since the last call to the stage `name`, or to none."""
        raise NotImplementedError


# The recorders of this thread; none while nothing is measured.
_recorders: ContextVar[tuple[StageRecorder, ...]] = ContextVar("recorders", default=())


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark what runs inside as the stage `name`, for recorders and for torch's profiler, if one is
    active.

    Also a decorator. Other threads and processes are not recorded.
    """
    recorders = [recorder for recorder in _recorders.get() if name in recorder.names]
    profiling = torch.autograd.profiler._is_profiler_enabled
    with torch.profiler.record_function(name) if profiling else contextlib.nullcontext():
        for recorder in recorders:
            recorder.measure(recorder.entered[-1])
            recorder.entered.append(name)
        try:
            yield
        finally:
            for recorder in recorders:
                recorder.measure(recorder.entered.pop())


class StageTimer(StageRecorder):
    """Exclusive seconds of each stage; each stage ends when the device has done its work."""

    def __init__(self, device: torch.device, names: Collection[str]) -> None:
        super().__init__(device, names)
        self._since = 0.0

    def measure(self, name: str | None) -> None:
        """Add the time since the last call to the stage `name`."""
        synchronize(self.device)
        now = time.perf_counter()
        if name is not None:
            self.measured[name] = self.measured.get(name, 0.0) + now - self._since
        self._since = now


# --- rates -------------------------------------------------------------------------------------


def product_rate(
    device: torch.device, repeats: int = 7, dtype: torch.dtype = torch.float32
) -> float:
    """Return operations per second of torch's product of two square matrices in `dtype` (median of
    `repeats`).
    """
    size = PRODUCT_SIZE[device.type]
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    torch.mm(left, right)
    runs = [seconds(lambda: torch.mm(left, right), device) for _ in range(repeats)]
    return 2 * float(size) ** 3 / median(runs)


# --- memory of this process: what it holds now, held at most, and may hold ------------------------

# Share of the memory of a machine that a run may take by default.
DEFAULT_SHARE = 0.8

# Parameters of mallopt, as malloc.h of glibc numbers them.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4

# The stages of ``--memory-profile``, and that of all that runs in no stage.
MEMORY_STAGES = ("model creation", "transfer", "forward", "backward", "step")
BETWEEN = "between"


def _kernel_bytes(name: str, path: str | Path) -> int | None:
    """Return the bytes of a line ``name: N kB`` of a file of the kernel; None without that line."""
    with contextlib.suppress(OSError):
        match = re.search(rf"^{name}:\s+(\d+) kB$", Path(path).read_text(), re.MULTILINE)
        return 1024 * int(match[1]) if match else None
    return None


def resident_memory() -> int:
    """Return the bytes of memory that this process holds now; 0 where the system does not say."""
    return _kernel_bytes("VmRSS", "/proc/self/status") or 0


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process held: of the device where it has memory of its own,
    else resident.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # The kernel passes ru_maxrss of a parent on to its child; VmHWM starts anew in each process.
    peak = _kernel_bytes("VmHWM", "/proc/self/status")
    unit = 1 if sys.platform == "darwin" else 1024
    return peak or unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def held_memory(device: torch.device) -> int:
    """Return the bytes that this process holds on a device, those of graphs and those that torch
    keeps for reuse included.
    """
    return int(torch.cuda.memory_reserved(device)) if device.type == "cuda" else resident_memory()


def reset_peak(device: torch.device) -> None:
    """Let `peak_memory` start anew; where the system does not allow that, it continues."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # glibc keeps freed memory until it is asked to return it; other systems have no such call.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")


def keep_freed_memory() -> None:
    """Let the C library keep memory that is freed instead of handing it back to the system.

    Else each step of a large table takes the pages of its activations anew: a quarter of its
    processor time. Variables MALLOC_* of the environment win; a system without glibc is left as it
    is.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    parameters = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 1 << 26))
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in parameters:
            library.mallopt(parameter, value)


def memory_limit(device: torch.device, share: float = DEFAULT_SHARE) -> int:
    """Return `share` of the bytes that this process could hold.

    On a GPU of all its memory, and not more than the share of it that torch may take; else, and on
    a GPU that shares the memory of the host, of what is free or already held by this process.
    """
    if device.type == "cuda":
        here = platform_here(device)
        share = min(share, here.memory_share or 1.0)
        limit = share * torch.cuda.get_device_properties(device).total_memory
        free = near_free_memory(max(len(amd_gpus()), 1)) if here.unified else None
        return int(limit if free is None else min(limit, share * (free + held_memory(device))))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _kernel_bytes("MemAvailable", "/proc/meminfo") or physical
    return int(share * (free + resident_memory()))


def near_free_memory(gpus: int, system: Path = Path("/sys")) -> int | None:
    """Return a GPU's part of the free memory next to the CPUs of this process, in bytes.

    Pages of files count as taken: a GPU of an APU gets its pages elsewhere before they are dropped
    (ROCm/amdgpu #186). None where the system does not say.

    Parameters
    ----------
    gpus : int
        Number of GPUs of the machine, which are spread evenly over its NUMA nodes.
    system : Path
    """
    cpus = numa_cpus(system)
    near = [node for node in cpus if cpus[node] & os.sched_getaffinity(0)]
    files = (system / f"devices/system/node/node{node}/meminfo" for node in near)
    free = [
        size for path in files if (size := _kernel_bytes(r"Node \d+ MemFree", path)) is not None
    ]
    return sum(free) * len(cpus) // (len(near) * gpus) if len(free) == len(near) > 0 else None


class StageMemory(StageRecorder):
    """Peak memory of each stage, and of the time between them, in bytes (`peak_memory`)."""

    def __init__(self, device: torch.device, names: Collection[str]) -> None:
        super().__init__(device, names)
        reset_peak(device)

    def measure(self, name: str | None) -> None:
        """Attribute the peak since the last call to the stage `name`."""
        name = name or BETWEEN
        self.measured[name] = max(peak_memory(self.device), self.measured.get(name, 0))
        reset_peak(self.device)


def memory_profiled(run: Callable[[Any], Any], config: Any) -> Any:
    """Run a command, then write memory.json to its output folder, also when memory was too
    little.
    """
    runtime = getattr(config, "runtime", config)
    device, folder = (getattr(runtime, name, None) for name in ("device", "output_dir"))
    device = choose_device(device or "cpu")
    if folder is None:
        output = getattr(config, "output", None) or Path("memory")
        folder = output if output.suffix == "" else output.with_suffix(".memory")
        check_writable(folder, getattr(runtime, "overwrite", False))
    peaks: dict[str, int] = {}
    try:
        with StageMemory(device, MEMORY_STAGES) as peaks:
            return run(config)
    except InputError:
        # Nothing was computed, and the folder may be another's.
        peaks.clear()
        raise
    finally:
        if peaks:
            limit, path = memory_limit(device, 1.0), folder / "memory.json"
            write_text(path, json.dumps({"stages": peaks, "limit_bytes": limit}, indent=1) + "\n")
            log.info("memory: %.2f of %.2f GB, %s", max(peaks.values()) / 1e9, limit / 1e9, path)
