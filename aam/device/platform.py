"""The platform of a machine: vendor, architecture, memory and versions, from recorded facts; free of torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aam.device.files import read_json
from aam.errors import InputError

Facts = dict[str, Any]

# Names the file of a recorded machine (tests/golden/platforms): decisions for it are shown, this machine computes.
RECORDED = "AAM_PLATFORM"

# Chips without hipBLASLt kernels.
NO_HIPBLASLT = ("gfx1010",)

# Operations that a chip computes wrong.
CPU_OPERATIONS = {"gfx1010": ("fft",)}

# Chips with bf16 in hardware.
BF16 = re.compile(r"gfx(90a|908|94\w|95\w|11\w\w|12\w\w)|sm_([89]\d|1\d\d)")

# Share of unified memory that torch may take; the page cache lives there too.
UNIFIED_SHARE = 0.8


@dataclass(frozen=True)
class Platform:
    """The properties of a device that decisions depend on.

    Attributes
    ----------
    vendor, architecture, name : str
    memory : int
        In bytes.
    unified : bool
        Whether CPU and GPU share it.
    bf16, fp16 : bool
        Precisions in hardware.
    versions : dict
        Of torch and what it was built with.
    memory_share : float or None
        Share of the memory that torch may take, if limited.
    cpu_operations : tuple of str
        Operations that run on the CPU because the device computes them wrong.
    """

    vendor: Literal["AMD", "NVIDIA", "Apple", "CPU"]
    architecture: str
    name: str
    memory: int
    unified: bool
    bf16: bool
    fp16: bool
    versions: dict[str, str | None]
    memory_share: float | None
    cpu_operations: tuple[str, ...]


def platform_of(facts: Facts) -> Platform:
    """Return the platform that these properties describe; decides from them alone.

    `facts` is what `aam.device.device.read_facts` returns or a recorded file holds: ``system``, ``torch`` (version,
    hip, cuda, triton, aotriton) and ``device`` (properties as torch names them; none for a CPU).
    """
    device, system, torch = facts["device"], facts["system"], facts["torch"]
    versions = {name: torch.get(name) for name in ("torch", "hip", "cuda", "triton", "aotriton")}
    if device is None or device["type"] == "mps":
        apple = device is not None
        return Platform(
            vendor="Apple" if apple else "CPU",
            architecture=system["machine"],
            name=system["name"],
            memory=int(system["memory"]),
            unified=True,
            bf16=False,
            fp16=apple,
            versions=versions,
            memory_share=UNIFIED_SHARE if apple else None,
            cpu_operations=(),
        )
    amd = torch.get("hip") is not None
    architecture = device["gcnArchName"].split(":")[0] if amd else f"sm_{device['major']}{device['minor']}"
    unified = bool(device.get("is_integrated")) or "MI300A" in device["name"]
    return Platform(
        vendor="AMD" if amd else "NVIDIA",
        architecture=architecture,
        name=device["name"],
        memory=int(device["total_memory"]),
        unified=unified,
        bf16=BF16.fullmatch(architecture) is not None,
        fp16=True,
        versions=versions,
        memory_share=UNIFIED_SHARE if unified else None,
        cpu_operations=CPU_OPERATIONS.get(architecture, ()),
    )


def recorded_platform() -> Facts | None:
    """Return the facts of the machine that the file named by ``AAM_PLATFORM`` records; None where it is unset.

    Raises
    ------
    InputError
        The file cannot be read or records no machine.
    """
    path = os.environ.get(RECORDED)
    if not path:
        return None
    facts = read_json(Path(path))
    required = ("system", "torch", "device", "environment", "gates")
    if not isinstance(facts, dict) or any(not isinstance(facts.get(name), dict) for name in required):
        raise InputError(f"{RECORDED}={path}: no recorded machine; expected system, torch, device, environment, gates")
    return facts
