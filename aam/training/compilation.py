"""The compiler of torch that works on this machine."""

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
from aam.device.options import RuntimeConfig
from aam.device.platform import Facts, cached_verdict, device_name, prepare_device, routed
from aam.device.precision import autocast, resolve_precision
from aam.model.reference import fixed_batch, fixed_network
from aam.options import from_dict, to_dict

log = logging.getLogger("aam")


# From the most to the least that torch.compile does.
COMPILERS = ("inductor", "aot_eager")

EAGER = "eager"

COMPILE_SECONDS = 240.0

# Largest relative difference from eager: in bf16 the order of sums shows.
COMPILE_TOLERANCE = 5e-2


def try_compiler() -> None:
    """Compile the network that standard input describes, and run it forward and backward.

    Runs in a separate process, which it ends with a message where the result differs from eager execution.
    """
    request = json.load(sys.stdin)
    model = from_dict(ModelConfig(), request["model"], "")
    runtime = from_dict(RuntimeConfig(), request["runtime"], "")
    device = prepare_device(runtime)
    network = fixed_network(model).to(device).train()
    batch = fixed_batch(model.positions).to(device)
    with autocast(runtime, device), routed(device):
        expected = network(batch).samples.double()
        network.bound_memory(runtime.asv_chunk_size, runtime.gradient_checkpointing)
        network.compile_encoders(request["compiler"])
        compiled = network(batch).samples.double()
    compiled.sum().backward()
    error = float((compiled - expected).abs().max() / expected.abs().max())
    if not error < COMPILE_TOLERANCE:
        sys.exit(f"off by {error:.3g} against eager")


def try_in_subprocess(compiler: str, model: ModelConfig, runtime: RuntimeConfig) -> str:
    """Return ``right`` where a compiler works for such a network, else what went wrong.

    It runs in a separate process for at most `COMPILE_SECONDS`, so that neither a crash nor a hang ends this one.
    """
    names = [item.name for item in dataclasses.fields(RuntimeConfig)]
    plain = RuntimeConfig(**{name: getattr(runtime, name) for name in names})
    request = {"model": to_dict(model), "runtime": to_dict(plain), "compiler": compiler}
    command = [sys.executable, "-c", "from aam.training.compilation import try_compiler; try_compiler()"]
    path = os.pathsep.join(filter(None, (str(Path(aam.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    try:
        process = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=COMPILE_SECONDS,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done within {COMPILE_SECONDS:.0f} s"
    if process.returncode == 0:
        return "right"
    messages = [line.strip() for line in process.stderr.splitlines() if "rror" in line or "off by" in line]
    return (messages or [f"its process ended with status {process.returncode}"])[-1][:300]


def compile_verdict(model: ModelConfig, runtime: RuntimeConfig, device: torch.device, anew: bool = False) -> Facts:
    """Return the compiler that works here for such a network as ``backend``, and the outcome of each as ``tried``.

    A verdict that this machine reached earlier is used again, unless `anew`.
    """

    def try_all() -> Facts:
        tried: dict[str, str] = {}
        for compiler in COMPILERS:
            tried[compiler] = try_in_subprocess(compiler, model, runtime)
            if tried[compiler] == "right":
                return {"backend": compiler, "tried": tried}
        return {"backend": EAGER, "tried": tried}

    key: Facts = {
        "device": device_name(device),
        "torch": torch.__version__,
        "precision": str(resolve_precision(runtime, device)),
    }
    key["model"] = to_dict(model)
    return cached_verdict("compile", key, try_all, _is_verdict, anew)


def _is_verdict(value: Any) -> bool:
    """Return whether a value that was read from a file is a verdict."""
    has_backend = isinstance(value, dict) and value.get("backend") in (*COMPILERS, EAGER)
    return has_backend and isinstance(value.get("tried"), dict)


def compiler_for(model: ModelConfig, runtime: RuntimeConfig, device: torch.device, earlier: Facts) -> Facts:
    """Return the verdict for a run with ``--compile-model``, and log the compilers that fail.

    `earlier` are the decisions of the run that is resumed; a verdict among them is used again.
    """
    verdict: Facts = earlier.get("compile", {})
    if not _is_verdict(verdict):
        verdict = compile_verdict(model, runtime, device)
    for name, outcome in verdict["tried"].items():
        if outcome != "right":
            log.warning("torch.compile with %s fails here (%s)", name, outcome)
    log.info("torch.compile: %s", verdict["backend"])
    # Where a shape fails later all the same, its frame runs uncompiled.
    torch._dynamo.config.suppress_errors = True
    return verdict
