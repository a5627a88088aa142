"""The device that computes: its choice, its properties, its threads."""

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

from aam.device.environment import APPLIED, watched_variables
from aam.device.options import RuntimeConfig
from aam.device.platform import Facts, Platform, platform_of
from aam.device.processors import available_cores
from aam.errors import InputError

log = logging.getLogger("aam")


def choose_device(name: str) -> torch.device:
    """Return the torch device meant by `name`; ``hip`` is another name of ``cuda`` and ``auto`` takes the best.

    Raises
    ------
    InputError
        The device is unknown or not available.
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


def read_facts(device: torch.device) -> Facts:
    """Read what `platform_of` decides from: properties as torch names them, versions, the environment."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts: Facts = {
        "system": {"machine": platform.machine(), "name": device_name(torch.device("cpu")), "memory": memory},
        "torch": {"torch": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda},
        "device": None,
        "environment": watched_variables(os.environ),
        "mended": APPLIED,
    }
    for name in ("triton", "pytorch-triton-rocm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts["torch"]["triton"] = metadata.version(name)
    for path in Path(torch.__file__).parent.glob("lib/libaotriton*.so.*"):
        facts["torch"]["aotriton"] = path.name.partition(".so.")[2]
    if device.type == "mps":
        facts["device"] = {"type": "mps"}
    elif device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        names = ("name", "gcnArchName", "major", "minor", "total_memory", "is_integrated", "multi_processor_count")
        facts["device"] = {"type": "cuda", **{name: getattr(properties, name, None) for name in names}}
    return facts


@functools.cache
def platform_here(device: torch.device) -> Platform:
    """Return the platform of this machine."""
    return platform_of(read_facts(device))


def prepare_device(config: RuntimeConfig) -> torch.device:
    """Choose the device and set threads and product precision for this process."""
    device = choose_device(config.device)
    if config.deterministic:
        # cuBLAS reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    # The call imports torch's compiler: a second of processor time.
    if config.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(config.deterministic)
    torch.set_num_threads(config.threads or available_cores())
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    share = platform_here(device).memory_share
    if share is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device


def device_name(device: torch.device) -> str:
    """Return a readable name of what computes: the GPU's name, or processor and threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        processor = match[1] if match else processor
    kind = "CPU" if device.type == "cpu" else device.type.upper()
    return f"{kind} {processor}, {torch.get_num_threads()} threads"


def slug(name: str) -> str:
    """Return `name` as part of a file name: in lower case, letters and digits joined by hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))
