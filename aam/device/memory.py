"""Memory of this process: what it holds now, held at most in each stage, and may hold;
``--memory-profile``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import re
import resource
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from aam.device.measure import StageRecorder
from aam.device.platform import choose_device
from aam.errors import InputError
from aam.files.atomic import check_writable, write_text

log = logging.getLogger("aam")

# Share of the memory of a machine that a run may take by default.
DEFAULT_SHARE = 0.8

# Parameters of mallopt, as malloc.h of glibc numbers them.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4

# The stages of ``--memory-profile``, and that of all that runs in no stage.
PROFILED = ("model creation", "transfer", "forward", "backward", "step")
BETWEEN = "between"


def _kilobytes(name: str, path: str) -> int | None:
    """Return the bytes of a line ``name: N kB`` of a file of the kernel; None without that line."""
    with contextlib.suppress(OSError):
        match = re.search(rf"^{name}:\s+(\d+) kB$", Path(path).read_text(), re.MULTILINE)
        return 1024 * int(match[1]) if match else None
    return None


def resident_memory() -> int:
    """Return the bytes of memory that this process holds now; 0 where the system does not say."""
    return _kilobytes("VmRSS", "/proc/self/status") or 0


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process held: of the device where it has memory of its own,
    else resident.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # The kernel passes ru_maxrss of a parent on to its child; VmHWM starts anew in each process.
    peak = _kilobytes("VmHWM", "/proc/self/status")
    unit = 1 if sys.platform == "darwin" else 1024
    return peak or unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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

    On a GPU of all its memory, else of what is free or already held by this process.
    """
    if device.type == "cuda":
        return int(share * torch.cuda.get_device_properties(device).total_memory)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _kilobytes("MemAvailable", "/proc/meminfo") or physical
    return int(share * (free + resident_memory()))


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
        with StageMemory(device, PROFILED) as peaks:
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
