"""Memory that this process holds, held at most, or may take."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import sys
from pathlib import Path

import torch

from aam.runtime.timing import Stages

# Of the memory there is, that a run may fill unless told otherwise.
SHARE = 0.8


class MemoryStages(Stages):
    """Most memory of each stage: bytes at its peak and reserved by torch (both of the device), and resident."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.most: dict[str, dict[str, int]] = {}
        reset_peak(device)

    def _turn(self) -> None:
        name = self._open[-1] if self._open else "between"
        super()._turn()
        reserved = torch.cuda.max_memory_reserved(self.device) if self.device.type == "cuda" else 0
        now = {"peak_bytes": peak_memory(self.device), "reserved_bytes": reserved, "resident_bytes": resident_memory()}
        before = self.most.get(name, now)
        self.most[name] = {kind: max(value, before[kind]) for kind, value in now.items()}
        reset_peak(self.device)


def peak_memory(device: torch.device) -> int:
    """Most bytes that this process held: of the device where it has memory of its own, else resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.exists():
        # The kernel hands ru_maxrss on from whoever started the process; VmHWM begins anew with it.
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if found:
            return 1024 * int(found[1])
    return _most_resident(resource.RUSAGE_SELF)


def _most_resident(who: int) -> int:
    peak = resource.getrusage(who).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def largest_child() -> int:
    """Most bytes that one of the processes which this one started, and which have ended, held."""
    return _most_resident(resource.RUSAGE_CHILDREN)


def reset_peak(device: torch.device) -> None:
    """Let `peak_memory` begin anew; where the system does not allow that, it goes on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # What was freed would be counted until glibc hands it back; other systems have no such call.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")


def memory_limit(device: torch.device, share: float | None) -> int:
    """`share` of the bytes that this process could hold: of the device's, else of what is free or already its own."""
    share = SHARE if share is None else share
    if device.type == "cuda":
        return int(share * torch.cuda.get_device_properties(device).total_memory)
    listed = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", listed.read_text(), re.MULTILINE) if listed.exists() else None
    free = 1024 * int(found[1]) if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(share * (free + resident_memory()))


def resident_memory() -> int:
    """Bytes of memory that this process holds now; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0
