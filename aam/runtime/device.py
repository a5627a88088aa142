"""Which device computes, with how many threads."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import re
from importlib import metadata
from pathlib import Path

import torch

from aam.errors import InputError
from aam.runtime.environment import MENDED, environment_of
from aam.runtime.options import RuntimeConfig
from aam.runtime.platform import Facts, Platform, platform_of

log = logging.getLogger("aam")


def choose_device(name: str) -> torch.device:
    """The torch device meant by `name`; ``hip`` is another name of ``cuda`` and ``auto`` takes the best.

    Raises
    ------
    InputError
        The device is unknown or not there.
    """
    kind, _, index = name.partition(":")
    kind = {"hip": "cuda"}.get(kind, kind)
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto" and not index:
        return torch.device(next(k for k in ("cuda", "mps", "cpu") if present[k]))
    if kind not in present or (index and not index.isdigit()):
        raise InputError(f"--device: {name!r} is unknown, expected auto, cpu, cuda[:N], hip[:N] or mps")
    if not present[kind]:
        raise InputError(f"--device: {name!r} is not available here; --device auto takes what is")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise InputError(f"--device: {name!r} does not exist, {torch.cuda.device_count()} device(s) are visible")
    return torch.device(f"{kind}:{index}" if index else kind)


def facts_of(device: torch.device) -> Facts:
    """What `platform_of` decides from, read here: properties as torch names them, versions, the environment."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts: Facts = {
        "system": {"machine": platform.machine(), "name": device_name(torch.device("cpu")), "memory": memory},
        "torch": {"torch": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda},
        "device": None,
        "environment": environment_of(os.environ),
        "mended": MENDED,
    }
    for name in ("triton", "pytorch-triton-rocm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts["torch"]["triton"] = metadata.version(name)
    for path in Path(torch.__file__).parent.glob("lib/libaotriton*.so.*"):
        facts["torch"]["aotriton"] = path.name.partition(".so.")[2]
    if device.type == "mps":
        facts["device"] = {"type": "mps"}
    elif device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        names = ("name", "gcnArchName", "major", "minor", "total_memory", "is_integrated", "multi_processor_count")
        facts["device"] = {"type": "cuda", **{name: getattr(found, name, None) for name in names}}
    return facts


@functools.cache
def platform_here(device: torch.device) -> Platform:
    """What computes here."""
    return platform_of(facts_of(device))


def _cores() -> int:
    """Cores that this process may use; macOS does not say which, so there it is all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare_device(config: RuntimeConfig) -> torch.device:
    """Choose the device and set threads and product precision for this process."""
    device = choose_device(config.device)
    if config.deterministic:
        # Read by cuBLAS when it starts, hence here and not later.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(config.deterministic)
    torch.set_num_threads(config.threads or _cores())
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    share = platform_here(device).memory_share
    if share is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device


def device_name(device: torch.device) -> str:
    """What computes, for people and for file names: the GPU's name, or processor and threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processor = platform.processor() or platform.machine()
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", listed.read_text(), re.MULTILINE)
        processor = found[1] if found else processor
    kind = "CPU" if device.type == "cpu" else device.type.upper()
    return f"{kind} {processor}, {torch.get_num_threads()} threads"


def slug(name: str) -> str:
    """`name` in lower case, letters and digits joined by hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))
