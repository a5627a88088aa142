"""The machine: its properties, the device and threads that compute."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from aam.device import environment
from aam.device.environment import available_cores, limit_threads
from aam.errors import InputError
from aam.options import RuntimeConfig

# --- properties --------------------------------------------------------------------------------

Facts = dict[str, Any]

# Properties of a GPU, as torch names them.
PROPERTIES: tuple[str, ...] = ("name", "gcnArchName", "major", "minor", "total_memory")
PROPERTIES += ("is_integrated", "multi_processor_count")

# Chips with bf16 in hardware.
BF16 = re.compile(r"gfx(90a|908|94\w|95\w|11\w\w|12\w\w)|sm_([89]\d|1\d\d)")

# Share of unified memory that torch may take; the page cache lives there too.
UNIFIED_SHARE = 0.8


@dataclass(frozen=True)
class Platform:
    """The properties of a device that decisions depend on.

    Attributes
    ----------
    vendor : str
        AMD, NVIDIA, Apple or CPU.
    architecture, name : str
    memory : int
        In bytes.
    unified : bool
        Whether CPU and GPU share it, as the driver says (``is_integrated``).
    bf16 : bool
        Whether the hardware has it.
    versions : dict
        Of torch and what it was built with.
    memory_share : float or None
        Share of the memory that torch may take, if limited.
    """

    vendor: str
    architecture: str
    name: str
    memory: int
    unified: bool
    bf16: bool
    versions: dict[str, str | None]
    memory_share: float | None


def _unified_share(system: Facts, device: Facts) -> float:
    """Return the share of unified memory that torch may take.

    All GPUs of a node share the memory of the host. A driver may report the memory of a whole APU
    for each of the devices into which it is divided.
    """
    part = system["memory"] / max(system.get("gpus") or 1, 1)
    return float(UNIFIED_SHARE * min(1.0, part / device["total_memory"]))


def platform_of(facts: Facts) -> Platform:
    """Return the platform that these properties describe; decides from them alone.

    `facts` is what `read_facts` returns, or a file of tests/golden/platforms holds: ``system``,
    ``torch`` (version, hip, cuda, triton, aotriton) and ``device`` (properties as torch names them;
    none for a CPU).
    """
    device, system, torch = facts["device"], facts["system"], facts["torch"]
    versions = {name: torch.get(name) for name in ("torch", "hip", "cuda", "triton", "aotriton")}
    if device is None or device["type"] == "mps":
        vendor, machine, memory = "Apple" if device else "CPU", system["machine"], system["memory"]
        return Platform(vendor, machine, system["name"], int(memory), True, False, versions, None)
    is_amd, name, memory = torch.get("hip") is not None, device["name"], int(device["total_memory"])
    capability = f"sm_{device['major']}{device['minor']}"
    architecture = device["gcnArchName"].split(":")[0] if is_amd else capability
    vendor = "AMD" if is_amd else "NVIDIA"
    # ROCm from 6.2 says so of an APU whatever its name: MI300A and MI300X are both gfx942.
    unified = bool(device.get("is_integrated"))
    share, bf16 = _unified_share(system, device) if unified else None, BF16.fullmatch(architecture)
    return Platform(vendor, architecture, name, memory, unified, bf16 is not None, versions, share)


# --- this machine ------------------------------------------------------------------------------


def choose_device(name: str) -> torch.device:
    """Return the torch device meant by `name`; ``hip`` is another name of ``cuda`` and ``auto``
    takes the best.

    Raises
    ------
    InputError
        The device is unknown or not available.
    """
    kind, _, index = name.partition(":")
    kind, count = "cuda" if kind == "hip" else kind, torch.cuda.device_count()
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    present["cpu"] = True
    if name == "auto":
        return torch.device(next(kind for kind in present if present[kind]))
    problem = ""
    if kind not in present or (index and not re.fullmatch("[0-9]{1,9}", index)):
        problem = "is unknown, expected auto, cpu, cuda[:N], hip[:N] or mps"
    elif not present[kind]:
        problem = "is not available here; pass --device auto"
    elif kind == "cuda" and index and int(index) >= count:
        problem = f"does not exist, {count} device(s) are visible"
    if problem:
        raise InputError(f"--device: {name!r} {problem}")
    return torch.device(f"{kind}:{index}" if index else kind)


def read_facts(device: torch.device) -> Facts:
    """Read what `platform_of` decides from: properties as torch names them, versions, the
    environment.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    name = device_name(torch.device("cpu"))
    versions = {"torch": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda}
    system = {"machine": platform.machine(), "name": name, "memory": memory}
    system["gpus"] = len(environment.amd_gpus())
    facts: Facts = {"system": system, "torch": versions, "device": None}
    facts |= {"environment": environment.watched_variables(), "mended": environment.APPLIED}
    for name in ("triton", "pytorch-triton-rocm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts["torch"]["triton"] = metadata.version(name)
    for path in Path(torch.__file__).parent.glob("lib/libaotriton*.so.*"):
        facts["torch"]["aotriton"] = path.name.partition(".so.")[2]
    if device.type == "mps":
        facts["device"] = {"type": "mps"}
    elif device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["device"] = {"type": "cuda"}
        facts["device"] |= {name: getattr(properties, name, None) for name in PROPERTIES}
    return facts


@functools.cache
def platform_here(device: torch.device) -> Platform:
    """Return the platform of this machine."""
    return platform_of(read_facts(device))


def prepare_device(config: RuntimeConfig) -> torch.device:
    """Choose the device and set threads and product precision for this process.

    Without ``--threads`` torch has all cores, and other libraries what their environment variables
    say.
    """
    device = choose_device(config.device)
    if config.deterministic:
        # cuBLAS reads it when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    # The call imports torch's compiler: a second of processor time.
    if config.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(config.deterministic)
    if config.threads is not None:
        limit_threads(config.threads)
    torch.set_num_threads(config.threads or available_cores())
    torch.set_float32_matmul_precision("highest")
    if device.type == "cuda" and (share := platform_here(device).memory_share) is not None:
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
    threads = torch.get_num_threads()
    return f"{kind} {processor}, {threads} thread{'s' if threads > 1 else ''}"
