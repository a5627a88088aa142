"""Which compiler of torch works on this machine."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import aam
from aam.config import ModelConfig
from aam.model.reference import fixed_batch, fixed_network
from aam.options import from_dict, to_dict
from aam.runtime.device import device_name, prepare_device
from aam.runtime.options import RuntimeConfig
from aam.runtime.platform import Facts
from aam.runtime.precision import autocast, resolve_precision
from aam.runtime.routing import routed
from aam.runtime.verdicts import cached_verdict

log = logging.getLogger("aam")


# From the most to the least that torch.compile does; the last is none.
COMPILERS = ("inductor", "aot_eager")

EAGER = "eager"

COMPILE_SECONDS = 240.0

# In bf16 the order of sums shows.
COMPILE_TOLERANCE = 5e-2


def try_compiler() -> None:
    """Run in a process of its own: compile the network that standard input describes, forward and backward."""
    asked = json.load(sys.stdin)
    model, runtime = from_dict(ModelConfig(), asked["model"], ""), from_dict(RuntimeConfig(), asked["runtime"], "")
    device = prepare_device(runtime)
    network, batch = fixed_network(model).to(device).train(), fixed_batch().to(device)
    with autocast(runtime, device), routed(device):
        expected = network(batch).samples.double()
        network.bound_memory(runtime.asv_chunk_size, runtime.gradient_checkpointing)
        network.compile_encoders(asked["compiler"])
        found = network(batch).samples.double()
    found.sum().backward()
    error = float((found - expected).abs().max() / expected.abs().max())
    if not error < COMPILE_TOLERANCE:
        sys.exit(f"off by {error:.3g} against eager")


def _tried(compiler: str, model: ModelConfig, runtime: RuntimeConfig) -> str:
    names = [item.name for item in dataclasses.fields(RuntimeConfig)]
    plain = RuntimeConfig(**{name: getattr(runtime, name) for name in names})
    asked = {"model": to_dict(model), "runtime": to_dict(plain), "compiler": compiler}
    command = [sys.executable, "-c", "from aam.training.compilation import try_compiler; try_compiler()"]
    path = os.pathsep.join(filter(None, (str(Path(aam.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=COMPILE_SECONDS,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done within {COMPILE_SECONDS:.0f} s"
    if done.returncode == 0:
        return "right"
    said = [line.strip() for line in done.stderr.splitlines() if "rror" in line or "off by" in line]
    return (said or [f"its process ended with status {done.returncode}"])[-1][:300]


def compile_verdict(model: ModelConfig, runtime: RuntimeConfig, device: torch.device, anew: bool = False) -> Facts:
    """Which compiler of torch works here for such a network: ``backend``, and what each that was ``tried`` said.

    Each is tried in a process of its own, for at most `COMPILE_SECONDS`, so that neither a crash nor one that hangs
    costs the run. Unless `anew`, what this machine found out earlier is taken over.
    """

    def make() -> Facts:
        tried: dict[str, str] = {}
        for compiler in COMPILERS:
            tried[compiler] = _tried(compiler, model, runtime)
            if tried[compiler] == "right":
                return {"backend": compiler, "tried": tried}
        return {"backend": EAGER, "tried": tried}

    of: Facts = {
        "device": device_name(device),
        "torch": torch.__version__,
        "precision": str(resolve_precision(runtime, device)),
    }
    of["model"] = to_dict(model)
    return cached_verdict("compile", of, make, _is_verdict, anew)


def _is_verdict(found: Any) -> bool:
    """Whether this, read from a file, is one."""
    named = isinstance(found, dict) and found.get("backend") in (*COMPILERS, EAGER)
    return named and isinstance(found.get("tried"), dict)


def compiler_for(model: ModelConfig, runtime: RuntimeConfig, device: torch.device, before: Facts) -> Facts:
    """The verdict for a run with ``--compile-model``, as `before` where the run goes on; says what failed."""
    verdict: Facts = before.get("compile", {})
    if not _is_verdict(verdict):
        verdict = compile_verdict(model, runtime, device)
    for name, said in verdict["tried"].items():
        if said != "right":
            log.warning("torch.compile with %s fails here (%s)", name, said)
    log.info("torch.compile: %s", verdict["backend"])
    # Should a shape fail later all the same, its frame runs as it is.
    torch._dynamo.config.suppress_errors = True
    return verdict
