"""The GPUs of a node before a job starts: torch sees all of them, they are next to the CPUs of
their tasks, and each adds a small tensor.

`lib.sh` gives this program to the Python of an image, on its standard input, with the devices of
the site (hip or cuda), their number on a node, and the CPU masks of the tasks in hexadecimal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from aam.device.environment import CUDA_HINT, HIP_HINT, first_tensor, numa_cpus, numa_nodes

HINTS = {"hip": HIP_HINT, "cuda": CUDA_HINT}
# The likely reasons on the first day of a site.
NO_DEVICE = {
    "hip": "are /dev/kfd and /dev/dri there (if only outside the container, bind them by the key "
    "enter of the site, --bind /dev/kfd), and are you in their group (ls -l /dev/kfd)",
    "cuda": "does the job ask for GPUs (gres), and does the image get the driver (--nv)",
}


def device_problem(kind: str, expected: int, built: str | None, count: int) -> str:
    """Describe how the devices of a node differ from those of the site: torch is `built` for a
    kind, and sees a `count` of them; empty if they do not.
    """
    if built != kind:
        return f"torch is built for {built or 'the CPU'}, the site has {kind} devices: IMAGE=PATH"
    if count == 0:
        return f"torch sees no GPU on this node: {NO_DEVICE[kind]}? ALLOW_CPU=1 computes on the CPU"
    if count != expected:
        counts = f"torch sees {count} devices on this node, the site has {expected}"
        return f"{counts}: AAM_SITE_DEVICES_PER_NODE names their number"
    return ""


def masks_line(masks: Sequence[int], nodes: Sequence[int], cpus: Mapping[int, set[int]]) -> str:
    """Say whether device i, at NUMA node `nodes[i]` (-1: unknown), is next to all CPUs of mask i;
    `cpus` are those of each NUMA node.
    """
    if len(nodes) != len(masks) or not set(nodes) <= cpus.keys():
        return f"the system does not say next to which CPUs the devices are (NUMA nodes {nodes})"
    near = [sum(1 << cpu for cpu in cpus[node]) for node in nodes]
    far = [f"{i} (NUMA node {nodes[i]})" for i, mask in enumerate(masks) if mask & ~near[i]]
    if not far:
        return f"device i is next to CPU mask i (NUMA nodes {', '.join(map(str, nodes))})"
    order = "mend cpu_sets of the site, else their tasks compute far from their memory"
    return f"warning: devices not next to the CPU mask of their number: {', '.join(far)}; {order}"


def main(kind: str, expected: str, masks: str) -> int:
    """Check all GPUs of this node at the same time; return 1 when one is missing or fails, 2 for a
    torch that is not built for them.
    """
    built = "hip" if torch.version.hip else "cuda" if torch.version.cuda else None
    count = torch.cuda.device_count()
    if problem := device_problem(kind, int(expected), built, count):
        print(problem, file=sys.stderr)
        return 1 if built == kind else 2
    if masks:
        line = masks_line([int(mask, 16) for mask in masks.split(",")], numa_nodes(), numa_cpus())
        print(f"{os.uname().nodename}: {line}", flush=True)
    names = [f"cuda:{index}" for index in range(count)]
    with ThreadPoolExecutor() as pool:
        failures = [*pool.map(first_tensor, names)]
    for name, failure in zip(names, failures, strict=True):
        if failure:
            print(f"{name}: the first tensor {failure}; {HINTS[kind]}", file=sys.stderr)
    return int(any(failures))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
