"""Links between the ranks of a run: the transport, and the bandwidth of an all-reduce."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from aam.device.distributed import World
from aam.device.timing import seconds

# As large as the gradients of a large network.
ALL_REDUCE_BYTES = 2**26
WARM_UP_CALLS, REPEATS = 2, 5


def record_transport(file: Path) -> None:
    """Let NCCL or RCCL, which start with the process group, write their choices to `file`, unless
    they log already.
    """
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(file))


def transport_of(backend: str) -> str:
    """Transport of tensors between nodes: TCP for gloo; for NCCL and RCCL what their log says, such
    as Socket.
    """
    if backend != "nccl":
        return "TCP"
    path = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    text = path.read_text(errors="replace") if path.is_file() else ""
    lines = re.findall(r"Using network (.+)", text)
    return lines[-1].strip() if lines else "unknown: NCCL's log names no network"


def bus_bandwidth(world: World, device: torch.device, size: int, repeats: int) -> float:
    """Return the bytes per second that each rank sends and receives in an all-reduce, as nccl-tests
    report it.

    An all-reduce of `size` bytes among n ranks moves 2 (n - 1) / n times as many over the slowest
    link of a ring (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    values = torch.ones(size // 4, device=device)
    taken = []
    for _ in range(WARM_UP_CALLS + repeats):
        world.barrier()
        taken.append(seconds(lambda: dist.all_reduce(values), device))
        values.fill_(1)
    mean = torch.tensor([sum(taken[WARM_UP_CALLS:]) / repeats], dtype=torch.float64)
    slowest = float(world.largest_values(mean))
    return 2 * (world.size - 1) / world.size * values.nbytes / slowest


def examine_ranks(
    world: World, device: torch.device, size: int = ALL_REDUCE_BYTES, repeats: int = REPEATS
) -> dict[str, Any]:
    """Number of ranks and nodes, their transport, and the bandwidth of an all-reduce."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, socket.gethostname())
    measured = bus_bandwidth(world, device, size, repeats)
    return {
        "ranks": world.size,
        "nodes": len(set(hosts)),
        "backend": backend,
        "transport": transport_of(backend),
        "bytes": size,
        "all_reduce": measured,
    }


def describe_ranks(report: dict[str, Any]) -> list[str]:
    """Return the lines that `aam doctor --ranks` prints."""
    return [
        f"{report['ranks']} ranks on {report['nodes']} nodes, {report['backend']}, between nodes "
        f"{report['transport']}",
        f"all-reduce of {report['bytes'] / 1e6:.0f} MB: {report['all_reduce'] / 1e9:.3g} GB/s",
    ]
