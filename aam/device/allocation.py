"""The first tensor on a GPU, made in a process of its own: some installations of torch list a GPU
and die at it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

PROGRAM = "import torch; x = torch.ones(1024, device={!r}); assert float((x + x).sum()) == 2048"
# A cold read of torch from a busy shared disk takes a minute or two.
SECONDS = 600
ON_AMD = (
    "without --rocm the image's own ROCm is used; see Known failures in docs/rocm.md "
    "(apptainer #3261)"
)
ELSEWHERE = (
    "nvidia-smi says which CUDA the driver knows, aam doctor which one this torch was built for"
)


def first_tensor(device: str, program: str = PROGRAM, seconds: float = SECONDS) -> str:
    """Allocate and add a small tensor on `device` in a child process; return how it failed, or an
    empty text.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", program.format(device)],
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {seconds:g} s"
    if done.returncode < 0:
        return f"ended with {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines()
    return (
        (lines[-1] if lines else f"ended with status {done.returncode}") if done.returncode else ""
    )


def main() -> int:
    """Check every visible GPU, all at the same time; return 1 when the first tensor of one
    fails.
    """
    import torch

    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if not names:
        print(
            "this node has a GPU, and torch sees none: the job computes on the CPU", file=sys.stderr
        )
        return 0
    with ThreadPoolExecutor() as pool:
        failures = {
            name: failure
            for name, failure in zip(names, pool.map(first_tensor, names), strict=True)
            if failure
        }
    remedy = ON_AMD if torch.version.hip else ELSEWHERE
    for name, failure in failures.items():
        print(f"{name}: the first tensor {failure}; {remedy}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
