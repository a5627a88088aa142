"""The first tensor on each GPU of a node, before a job starts.

Some installations of torch list a GPU and die at its first tensor, so each tensor is made in a
process of its own.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

PROGRAM = "import torch; x = torch.ones(1024, device={!r}); assert float((x + x).sum()) == 2048"
# A cold read of torch from a busy shared disk takes a minute or two.
SECONDS = 600
HIP_HINT = (
    "without --rocm the image's own ROCm is used; see Known failures in docs/rocm.md "
    "(apptainer #3261)"
)
CUDA_HINT = (
    "nvidia-smi says which CUDA the driver knows, aam doctor which one this torch was built for"
)
# The likely reasons on the first day of a site.
NO_DEVICE = {
    "hip": "are /dev/kfd and /dev/dri there, and are you in their group (ls -l /dev/kfd)",
    "cuda": "does the job ask for GPUs (gres), and does the image get the driver (--nv)",
}


def first_tensor(device: str, program: str = PROGRAM, seconds: float = SECONDS) -> str:
    """Allocate and add a small tensor on `device` in a child process; return how it failed, or an
    empty text.
    """
    command = [sys.executable, "-c", program.format(device)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"took longer than {seconds:g} s"
    status = done.returncode
    if status < 0:
        return f"ended with {signal.Signals(-status).name}"
    lines = done.stderr.strip().splitlines() or [f"ended with status {status}"]
    return lines[-1] if status else ""


def device_problem(kind: str, expected: int, built: str | None, count: int) -> str:
    """Describe how the devices of a node differ from those of the job's site; empty if they do not.

    Parameters
    ----------
    kind
        ``hip`` or ``cuda``.
    expected
        The number of devices of a node.
    built
        What torch is built for.
    count
        The number of devices that torch sees.
    """
    if built != kind:
        return f"torch is built for {built or 'the CPU'}, the site has {kind} devices: IMAGE=PATH"
    if count == 0:
        return f"torch sees no GPU on this node: {NO_DEVICE[kind]}? ALLOW_CPU=1 computes on the CPU"
    if count != expected:
        return (
            f"torch sees {count} devices on this node, the site has {expected}: "
            "AAM_SITE_DEVICES_PER_NODE names their number"
        )
    return ""


def main(words: Sequence[str] | None = None) -> int:
    """Check every GPU of this node, all at the same time; return 1 when one is missing or fails."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m aam.device.allocation", description=__doc__)
    parser.add_argument("--device", choices=tuple(NO_DEVICE), required=True)
    parser.add_argument("--devices", type=int, required=True, help="number that a node has")
    options = parser.parse_args(words)
    built = "hip" if torch.version.hip else "cuda" if torch.version.cuda else None
    count = torch.cuda.device_count()
    problem = device_problem(options.device, options.devices, built, count)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    names = [f"cuda:{index}" for index in range(count)]
    with ThreadPoolExecutor() as pool:
        results = [*pool.map(first_tensor, names)]
    hint = HIP_HINT if built == "hip" else CUDA_HINT
    for name, failure in zip(names, results, strict=True):
        if failure:
            print(f"{name}: the first tensor {failure}; {hint}", file=sys.stderr)
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
