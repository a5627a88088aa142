"""What joins the ranks of a run: transport, interfaces, and the bandwidth of an all-reduce."""

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

# Variables that name the interfaces of each back end; gloo takes the first of its list.
INTERFACES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
NETWORK = Path("/sys/class/net")

# Below this share of the line rate something else than the network limits the ranks.
EXPECTED_SHARE = 0.5


def record_transport(file: Path) -> None:
    """Let NCCL or RCCL, which start with the process group, write their choices to `file`, unless
    they log already.
    """
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(file))


def transport_of(backend: str) -> str:
    """Return what carries tensors between nodes: of gloo TCP; of NCCL and RCCL what their log says,
    such as Socket.
    """
    if backend != "nccl":
        return "TCP"
    path = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    text = path.read_text(errors="replace") if path.is_file() else ""
    lines = re.findall(r"Using network (.+)", text)
    return lines[-1].strip() if lines else "unknown: NCCL's log names no network"


def line_rates(backend: str) -> dict[str, float]:
    """Return the bytes per second of each interface that the back end is told to use, where the
    system says them.
    """
    listed = os.environ.get(INTERFACES[backend], "").split(",")
    names = [name.lstrip("=") for name in listed if name]
    rates: dict[str, float] = {}
    for name in names[:1] if backend == "gloo" else names:
        # A link that is down has the speed -1, or cannot be read.
        try:
            megabits = int((NETWORK / name / "speed").read_text())
        except (OSError, ValueError):
            continue
        rates |= {name: megabits * 1e6 / 8} if megabits > 0 else {}
    return rates


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
    """Return how many ranks and nodes there are, what joins them, and the bandwidth of an
    all-reduce.

    `expected` is the sum of the line rates of the interfaces that are used, which no all-reduce
    between nodes exceeds; None on one node, and where no variable names the interfaces.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, socket.gethostname())
    nodes, rates = len(set(hosts)), line_rates(backend)
    measured = bus_bandwidth(world, device, size, repeats)
    return {
        "ranks": world.size,
        "nodes": nodes,
        "backend": backend,
        "transport": transport_of(backend),
        "interfaces": rates,
        "bytes": size,
        "all_reduce": measured,
        "expected": sum(rates.values()) if rates and nodes > 1 else None,
    }


def describe_ranks(report: dict[str, Any]) -> list[str]:
    """Return the lines that `aam doctor --ranks` prints."""
    expected = report["expected"]
    rates = [f"{name} {rate / 1e9:.3g} GB/s" for name, rate in report["interfaces"].items()]
    if expected:
        limit = f"expected at most {expected / 1e9:.3g} ({', '.join(rates)})"
    elif report["nodes"] == 1:
        limit = "one node uses no network"
    else:
        limit = f"{INTERFACES[report['backend']]} names no interface with a known speed"
    measured = report["all_reduce"]
    lines = [
        f"{report['ranks']} ranks on {report['nodes']} nodes, {report['backend']}, between nodes "
        f"{report['transport']}",
        f"all-reduce of {report['bytes'] / 1e6:.0f} MB: {measured / 1e9:.3g} GB/s; {limit}",
    ]
    if expected and measured < EXPECTED_SHARE * expected:
        share = f"note: less than {EXPECTED_SHARE:.0%} of the line rate"
        lines.append(f"{share}; docs/rocm.md says how to bind the host's libfabric and its plugin")
    return lines
