"""Trials for the probe, most of which fail in a way of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import torch

from aam.device.distributed import process_group
from aam.errors import RunError
from aam.options import RunConfig


def add(device: torch.device, numbers: list[float]) -> dict[str, object]:
    """Print much, start nothing, and answer."""
    print("garbage that a library prints")
    os.write(1, b"\x00\xff and more of it\n")
    total = float(torch.tensor(numbers, device=device).sum())
    return {"reason": f"the sum is {total:g}", "sum": total, "rank": os.environ.get("RANK")}


# What torch and compilers raise.
ERRORS = {
    "refusal": RuntimeError(
        "Cannot copy between CPU and CUDA tensors during CUDA graph capture\nat"
    ),
    "wrong": RunError("off by 0.25 against eager"),
    "full": torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"),
    "busy": RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    "compiler": RuntimeError("backend='inductor' raised:\nCompilationError: at 3:1 int1\nmore"),
    "C++": RuntimeError("C++ compile error\nCommand:\ng++ -x\nerror: no type int1\n"),
    "CUDA": RuntimeError("CUDA error: bad address\nCUDA kernel errors might be reported late"),
}


def fail(device: torch.device, how: str) -> dict[str, object]:
    """End in the named way."""
    if how in ERRORS:
        raise ERRORS[how]
    if how == "exit":
        sys.exit("AssertionError: the driver is too old")
    if how == "no JSON":
        return {"device": device}
    if how == "children":
        # As the workers of a compiler do, it holds the standard streams open.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if how in ("hang", "children"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if how == "nonsense":
        os._exit(0)
    os.kill(os.getpid(), {"crash": signal.SIGSEGV, "killed": signal.SIGKILL}[how])
    return {}


def meet(device: torch.device, how: str) -> dict[str, object]:
    """Add up with the other ranks, unless rank 1 ends in the named way before."""
    with process_group(RunConfig(device="cpu", distributed=True)) as world:
        if world.rank == 1 and how != "right":
            fail(device, how)
        total = world.all_reduce_sum(torch.ones(3, device=device))
        return {"reason": f"{total[0]:g} ranks met"}
