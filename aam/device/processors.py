"""Processors and GPUs of this machine, found without torch."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """Return the number of cores that this process may use; macOS does not say, so there it is all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_have_gpu() -> bool:
    """Return whether the system lists an NVIDIA or AMD GPU, which torch may still be unable to use."""
    return Path("/dev/kfd").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
