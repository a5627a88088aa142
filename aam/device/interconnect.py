"""What joins the ranks of a run: transport, and bandwidth of an all-reduce beside the line rate of the network."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from aam.device.distributed import World

# Variables that name the interfaces of each back end; gloo takes the first of its list.
INTERFACES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
NETWORK = Path("/sys/class/net")
# Below this share of the line rate something else than the network limits the ranks.
EXPECTED_SHARE = 0.5
WARM_UP = 2


def record_transport(file: Path) -> None:
    """Let NCCL or RCCL, which start with the process group, write their choices to `file`, unless they log already."""
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(file))


def transport_of(backend: str) -> str:
    """Return what carries tensors between nodes: of gloo TCP; of NCCL and RCCL what their log says, such as Socket."""
    if backend != "nccl":
        return "TCP"
    path = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    lines = re.findall(r"Using network (.+)", path.read_text(errors="replace")) if path.is_file() else []
    return lines[-1].strip() if lines else "unknown: NCCL's log names no network"


def line_rates(backend: str) -> dict[str, float]:
    """Return the bytes per second of each interface that the back end is told to use, where the system says them."""
    names = [name.lstrip("=") for name in os.environ.get(INTERFACES[backend], "").split(",") if name]
    rates: dict[str, float] = {}
    for name in names[:1] if backend == "gloo" else names:
        path = NETWORK / name / "speed"
        # A link that is down has the speed -1, or cannot be read.
        try:
            megabits = int(path.read_text())
        except (OSError, ValueError):
            continue
        rates |= {name: megabits * 1e6 / 8} if megabits > 0 else {}
    return rates


def bus_bandwidth(world: World, device: torch.device, size: int, repeats: int) -> float:
    """Return the bytes per second that each rank sends and receives in an all-reduce, as nccl-tests report it.

    An all-reduce of `size` bytes among n ranks moves 2 (n - 1) / n times as many over the slowest link of a ring
    (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    values = torch.ones(size // 4, device=device)
    seconds = 0.0
    for i in range(WARM_UP + repeats):
        world.barrier()
        begin = time.perf_counter()
        dist.all_reduce(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds += time.perf_counter() - begin if i >= WARM_UP else 0
        values.fill_(1)
    slowest = float(world.largest_values(torch.tensor([seconds / repeats], dtype=torch.float64)))
    return 2 * (world.size - 1) / world.size * values.nbytes / slowest


def examine_ranks(world: World, device: torch.device, size: int, repeats: int = 5) -> dict[str, Any]:
    """Return how many ranks and nodes there are, what joins them, and the bandwidth of an all-reduce.

    `expected` is the sum of the line rates of the interfaces that are used, which no all-reduce between nodes exceeds;
    None on one node, and where no variable names the interfaces.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, socket.gethostname())
    nodes = len(set(hosts))
    measured = bus_bandwidth(world, device, size, repeats)
    rates = line_rates(backend)
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
    names = ", ".join(f"{name} {rate / 1e9:.3g} GB/s" for name, rate in report["interfaces"].items())
    joined = f"{report['ranks']} ranks on {report['nodes']} nodes, {report['backend']}"
    lines = [f"{joined}, between nodes {report['transport']}"]
    beside = f"expected at most {expected / 1e9:.3g} ({names})" if expected else "nothing to expect: "
    if not expected:
        unset = f"{INTERFACES[report['backend']]} names no interface with a known speed"
        beside += "one node uses no network" if report["nodes"] == 1 else unset
    lines += [f"all-reduce of {report['bytes'] / 1e6:.0f} MB: {report['all_reduce'] / 1e9:.3g} GB/s; {beside}"]
    if expected and report["all_reduce"] < EXPECTED_SHARE * expected:
        share = f"note: less than {EXPECTED_SHARE:.0%} of the line rate"
        lines += [f"{share}; docs/rocm.md says how to bind the host's libfabric and its plugin"]
    return lines
