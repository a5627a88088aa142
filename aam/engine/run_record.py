"""run.json: what a run was, and how two runs differ."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aam
from aam.engine.checkpoint import FACTS
from aam.engine.options import RunConfig
from aam.errors import InputError
from aam.runtime.files import file_digest, read_json
from aam.runtime.manifest import MANIFEST

log = logging.getLogger("aam")


Record = dict[str, Any]

# Options of `runtime` that change no result, and those that may change its last bits.
HARMLESS = (
    "output_dir", "overwrite", "num_workers", "debug", "resume_from", "checkpoint_minutes", "keep_checkpoints",
    "memory_profile", "memory_snapshot", "use_expandable_segments",
)  # fmt: skip

LAST_BITS = (
    "device", "threads", "asv_chunk_size", "gradient_checkpointing", "deterministic", "attn_implementation",
    "allow_inexact_attention", "compile_model", "distributed", "data_parallel", "fsdp", "fsdp_sharded_checkpoint",
    "pipeline",
)  # fmt: skip

IMAGE = "AAM_IMAGE"

RUN, CHECKPOINTS = "run.json", "checkpoints"


def _commit() -> str | None:
    """The git commit of the code, with ``+`` where files differ from it; none outside a checkout."""
    root = Path(aam.__file__).parents[1]
    if not (root / ".git").exists():
        return os.environ.get("AAM_REVISION")

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return (git("rev-parse", "HEAD") or "unknown") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def describe(command: str, options: Record, files: Mapping[str, Path], facts: Record) -> Record:
    """Return what run.json holds: resolved options, versions, machine, checksums of the input `files`, and `facts`."""
    digests = {name: _digest(path) for name, path in files.items()}
    versions = {"aam": aam.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "command": command,
        "config": options,
        "inputs": {name: {"path": str(files[name]), "sha256": digest} for name, digest in digests.items()},
        "versions": {**versions, "python": platform.python_version()},
        "commit": _commit(),
        "image": os.environ.get(IMAGE),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        **facts,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, of the manifests of the models in it."""
    if path.is_file():
        return file_digest(path)
    manifests = sorted(path.glob(MANIFEST)) or sorted(path.glob(f"**/model/{MANIFEST}"))
    return ",".join(file_digest(manifest) for manifest in manifests)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, inner in value.items() for k, v in flat(inner, f"{name}.{key}" if name else key).items()}


def differences(one: Record, other: Record) -> dict[str, tuple[Any, Any]]:
    """What two run.json say differently, but for times, places of inputs with the same content, and of output."""
    a, b = flat(one), flat(other)
    inputs = {**one["inputs"], **other["inputs"]}
    left_out = {"started", "resumed", *(f"config.runtime.{name}" for name in HARMLESS)}
    left_out |= {f"inputs.{name}.path" for name in inputs}
    left_out |= {f"config.{part}.{name}" for name in inputs for part in ("data", "targets")}
    names = [name for name in {**a, **b} if name not in left_out]
    # As text, in which NaN is NaN.
    return {name: (a.get(name), b.get(name)) for name in names if repr(a.get(name)) != repr(b.get(name))}


def _batches(run: Record) -> tuple[int, int]:
    """Samples of a batch on each device, and devices."""
    return run["config"]["train"]["batch_size"], run.get("ranks", 1)


def check_same(before: Record, now: Record) -> None:
    """Refuse to go on with a run where its meaning would change; log what may change its last bits.

    Raises
    ------
    InputError
        Names every option and input that is not as it was.
    """
    problems = []
    found = differences(before, now)
    (was, had), (is_, has) = _batches(before), _batches(now)
    if had != has:
        found.pop("config.train.batch_size", None)
    if had != has and was * had != is_ * has:
        same = f"give {was * had / has:g}, so that all together take as many samples"
        problems.append(f"--batch-size was {was} on each of {had} devices and is {is_} on each of {has}; {same}")
    for name, (was, is_) in found.items():
        where, _, option = name.rpartition(".")
        meant = where.split(".")[0] in ("config", "inputs") or name in ("command", "depth")
        if meant and not (where == "config.runtime" and option in LAST_BITS):
            problems.append(f"{name} was {was!r} and is {is_!r}; give what it was, or choose another --output-dir")
        else:
            log.warning("%s was %s and is %s: the rest of the run may differ in the last bits", name, was, is_)
    if problems:
        raise InputError(*problems)


def read_record(path: Path) -> Record:
    """A run.json; `InputError` where it is not one."""
    found = read_json(path)
    if not (
        isinstance(found, dict) and isinstance(found.get("inputs"), dict) and isinstance(found.get("config"), dict)
    ):
        raise InputError(f"{path}: not the {RUN} of a run; expected its config and inputs")
    return found


def decided_before(runtime: RunConfig) -> Record:
    """What the run that is gone on with decided of its machine; empty where there is none, or none that can be read."""
    chosen = runtime.resume_from
    if chosen is None or runtime.output_dir is None:
        return {}
    try:
        found = read_json(runtime.output_dir / RUN if chosen == "auto" else Path(chosen) / FACTS)
    except InputError:
        return {}
    record = found if chosen == "auto" else found.get("run") if isinstance(found, dict) else None
    decisions = record.get("decisions") if isinstance(record, dict) else None
    return decisions if isinstance(decisions, dict) else {}
