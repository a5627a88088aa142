"""What is found out about this machine by running the network on it: `aam doctor`, and which compiler works."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import aam
from aam.config import ModelConfig, RuntimeConfig
from aam.config_commands import DoctorConfig
from aam.config_file import from_dict, out_of_range, to_dict
from aam.data.batch import Batch
from aam.errors import FAILED, FINISHED, InputError
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.runtime.attention import Results, choose, gates, wrong
from aam.runtime.device import OPERATIONS, autocast, elsewhere, facts_of, judge_operation, precision, prepare
from aam.runtime.doctor import (
    RECORDED,
    Facts,
    environment_of,
    findings_of,
    platform_of,
    recorded,
    remembered,
    show,
    surroundings,
)
from aam.runtime.files import check_writable, write_text
from aam.runtime.timing import copy_rate, device_name, product_rate

log = logging.getLogger("aam")

# From the most to the least that torch.compile does; the last is none.
COMPILERS = ("inductor", "aot_eager")
EAGER = "eager"
COMPILE_SECONDS = 240.0
# In bf16 the order of sums shows.
COMPILE_TOLERANCE = 5e-2
DEPTH = 1000


# --- a fixed network on a fixed batch ------------------------------------------------------------------------


def fixed_network(config: ModelConfig) -> Aam:
    """A network whose weights come from numpy, so that they are the same with every torch."""
    network = Aam(config, DEPTH, HeadConfig(metric="unifrac", counts=True, n_targets=1))
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in network.parameters():
            scale = 1 / np.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 0.1
            parameter.copy_(torch.from_numpy(rng.normal(0, scale, parameter.shape)))
    return network


def fixed_batch() -> Batch:
    """Six samples of up to 40 out of 64 ASVs of 90 to 100 nucleotides."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 5, (64, 100)).astype(np.uint8)
    tokens[::3, 90:] = 0
    sizes = (40, 33, 21, 20, 8, 3)
    asv, counts = np.zeros((6, 40), np.int64), np.zeros((6, 40), np.float32)
    for row, size in enumerate(sizes):
        asv[row, :size] = rng.permutation(64)[:size]
        counts[row, :size] = rng.integers(1, 100, size)
    named = tuple(f"sample {row}" for row in range(6))
    return Batch(
        torch.from_numpy(tokens), torch.from_numpy(asv), torch.from_numpy(counts), sizes=sizes, padded=True,
        sample_ids=named,
    )  # fmt: skip


def _outputs(network: Aam, batch: Batch) -> dict[str, Tensor]:
    """What every layer gives for `batch`, by its name and call, on the CPU in float64."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, given: Any, out: Any) -> None:
            for at, each in enumerate(out if isinstance(out, tuple) else (out,)):
                found[f"{name}.{at}.{sum(key.startswith(f'{name}.{at}.') for key in found)}"] = each.double().cpu()

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in network.named_modules() if name]
    try:
        with torch.no_grad():
            found["distance"] = network(batch).distance.double().cpu()
    finally:
        for handle in handles:
            handle.remove()
    return found


def activations(device: torch.device) -> Facts:
    """Statistics of every layer of the fixed network in float32 on `device`, and how far each is from float64."""
    config, batch = ModelConfig(), fixed_batch()
    exact = _outputs(fixed_network(config).double().eval(), batch)
    found = _outputs(fixed_network(config).to(device).eval(), batch.to(device))
    return {
        name: {
            "mean": float(value.mean()),
            "std": float(value.std()),
            "largest": float(value.abs().max()),
            "error": float((value - exact[name]).abs().max() / exact[name].abs().max().clamp_min(1e-12)),
        }
        for name, value in found.items()
    }


# --- torch.compile -------------------------------------------------------------------------------------------


def try_compiler() -> None:
    """Run in a process of its own: compile the network that standard input describes, forward and backward."""
    asked = json.load(sys.stdin)
    model, runtime = from_dict(ModelConfig(), asked["model"], ""), from_dict(RuntimeConfig(), asked["runtime"], "")
    device = prepare(runtime)
    network, batch = fixed_network(model).to(device).train(), fixed_batch().to(device)
    with autocast(runtime, device):
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
    command = [sys.executable, "-c", "from aam.training.doctor import try_compiler; try_compiler()"]
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
        "precision": str(precision(runtime, device)),
    }
    of["model"] = to_dict(model)
    return remembered("compile", of, make, _is_verdict, anew)


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


# --- the doctor ----------------------------------------------------------------------------------------------


def _attention(results: Results, timed: bool) -> Facts:
    judged = {
        kind: {name: {**result, "wrong": wrong(kind, result)} for name, result in found.items()}
        for kind, found in results.items()
    }
    try:
        chosen = choose(results, "auto", False, timed)
    except InputError as error:
        # Nothing is right: the findings say it, one by one.
        log.warning("%s", error)
        chosen = {}
    return {"results": judged, "chosen": chosen}


def _examined(config: DoctorConfig) -> tuple[Facts, Facts]:
    """The facts of this machine and what was measured on it."""
    runtime = RuntimeConfig(device=config.device, threads=config.threads)
    device = prepare(runtime)
    facts, gpu = facts_of(device), device.type == "cuda"
    model = ModelConfig(embedding_dim=config.embedding_dim, attention_heads=config.attention_heads)
    dtypes = tuple(dict.fromkeys((torch.float32, precision(runtime, device))))
    there = Path("/dev/kfd").exists() or Path("/dev/nvidiactl").exists()
    rates = {"product": product_rate(device, 3), "copy": copy_rate(device, device)}
    return facts, {
        "devices": torch.cuda.device_count(),
        "unseen": config.device == "auto" and device.type == "cpu" and there,
        "attention": _attention(gates(device, dtypes, model.head_width, anew=True), gpu),
        "rates": {**rates, "to device": copy_rate(torch.device("cpu"), device)} if gpu else rates,
        "memory": {"free": torch.cuda.mem_get_info(device)[0] if gpu else None},
        "operations": {name: judge_operation(name, device) for name in OPERATIONS},
        "elsewhere": elsewhere(device),
        "compile": compile_verdict(model, runtime, device, anew=True) if config.compile_model else {},
        "activations": activations(device) if config.activations else {},
    }


def _recorded(facts: Facts) -> Facts:
    """What was measured on a recorded machine, and what follows there."""
    unknown: Facts = {"devices": 0, "unseen": False, "rates": {}, "memory": {}, "operations": {}, "compile": {}}
    measured = {name: facts.get(name, value) for name, value in unknown.items()}
    timed = platform_of(facts).vendor in ("AMD", "NVIDIA")
    measured |= {"attention": _attention(facts["gates"], timed), "elsewhere": elsewhere(torch.device("cpu"))}
    return {**measured, "activations": {}}


def doctor(config: DoctorConfig) -> int:
    """Examine this machine, or the recorded one that ``AAM_PLATFORM`` names; exit status 1 where something is wrong.

    Raises
    ------
    InputError
        Options out of range, a device that is not there, or no attention that is right.
    """
    problems = out_of_range(config)
    if config.attention_heads < 1 or config.embedding_dim % config.attention_heads:
        problems.append(f"--embedding-dim {config.embedding_dim} is not divisible by {config.attention_heads} heads")
    if problems:
        raise InputError(*problems)
    if config.output is not None:
        check_writable(config.output, overwrite=True)
    facts = recorded()
    if facts is None:
        facts, measured = _examined(config)
    else:
        measured = _recorded(facts)
    platform = platform_of(facts)
    report = {
        "format": 1,
        "aam": aam.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "recorded": os.environ.get(RECORDED),
        "platform": dataclasses.asdict(platform),
        **measured,
        "environment": environment_of(facts["environment"]),
        **surroundings(),
        "findings": [finding._asdict() for finding in findings_of(platform, facts, measured)],
    }
    report["status"] = FAILED if any(each["level"] == "wrong" for each in report["findings"]) else FINISHED
    show(report)
    if config.output is not None:
        write_text(config.output, json.dumps(report, indent=1) + "\n")
        print(config.output)
    return int(report["status"])
