"""What a machine is: vendor, architecture, memory and versions, from recorded facts; free of torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aam.errors import InputError
from aam.runtime.files import read_json

Facts = dict[str, Any]

# A recorded machine (tests/golden/platforms): shows what would be decided there, while this one computes.
RECORDED = "AAM_PLATFORM"

# Chips without hipBLASLt kernels, operations that a chip does badly, and chips with bf16 in hardware.
NO_HIPBLASLT = ("gfx1010",)

CPU_OPERATIONS = {"gfx1010": ("fft",)}

BF16 = re.compile(r"gfx(90a|908|94\w|95\w|11\w\w|12\w\w)|sm_([89]\d|1\d\d)")

# Share of memory that CPU and GPU have in common which torch may take; the page cache lives there too.
UNIFIED_SHARE = 0.8


@dataclass(frozen=True)
class Platform:
    """What computes: `memory` in bytes, `memory_share` the part of it that torch may take, `elsewhere` on the CPU."""

    vendor: Literal["AMD", "NVIDIA", "Apple", "CPU"]
    architecture: str
    name: str
    memory: int
    unified: bool
    bf16: bool
    fp16: bool
    versions: dict[str, str | None]
    memory_share: float | None
    elsewhere: tuple[str, ...]


def platform_of(facts: Facts) -> Platform:
    """The platform that these properties describe; decides from them alone.

    `facts` is what `aam.runtime.device.facts_of` reads or a recorded file: ``system``, ``torch`` (version, hip, cuda,
    triton, aotriton) and ``device`` (properties as torch names them; none for a CPU).
    """
    device, system, torch = facts["device"], facts["system"], facts["torch"]
    versions = {name: torch.get(name) for name in ("torch", "hip", "cuda", "triton", "aotriton")}
    if device is None or device["type"] == "mps":
        apple = device is not None
        memory = int(system["memory"])
        return Platform(
            "Apple" if apple else "CPU", system["machine"], system["name"], memory, True, False, apple, versions,
            UNIFIED_SHARE if apple else None, (),
        )  # fmt: skip
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
        elsewhere=CPU_OPERATIONS.get(architecture, ()),
    )


def recorded_platform() -> Facts | None:
    """The machine that the file named by ``AAM_PLATFORM`` records; `InputError` where it is none."""
    path = os.environ.get(RECORDED)
    if not path:
        return None
    facts = read_json(Path(path))
    named = ("system", "torch", "device", "environment", "gates")
    if not isinstance(facts, dict) or any(not isinstance(facts.get(name), dict) for name in named):
        raise InputError(f"{RECORDED}={path}: no recorded machine; expected system, torch, device, environment, gates")
    return facts
