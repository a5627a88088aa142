"""run.json: the description of a run, and the differences between two runs."""

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
from aam.files.atomic import MANIFEST, file_digest, read_json
from aam.files.output_folder import LIST, RUN

log = logging.getLogger("aam")


Record = dict[str, Any]

# Options of `runtime` that change no result, and those that may change its last bits.
HARMLESS = (
    "output_dir", "overwrite", "num_workers", "debug", "resume_from", "checkpoint_minutes", "keep_checkpoints",
    "memory_profile", "memory_snapshot", "use_expandable_segments", "track", "dry_run",
)  # fmt: skip

LAST_BITS = (
    "device", "threads", "asv_chunk_size", "gradient_checkpointing", "deterministic", "attn_implementation",
    "allow_inexact_attention", "compile_model", "distributed", "data_parallel", "fsdp", "fsdp_sharded_checkpoint",
)  # fmt: skip

# Environment variable that names the container image.
IMAGE = "AAM_IMAGE"

# Name in the directory of a run.
CHECKPOINTS = "checkpoints"


def training_outputs(folder: str = "", model: tuple[str, ...] = ("state.json",)) -> list[str]:
    """Return the names that training writes below `folder`; `model` are files of a model beside its tensors."""
    files = (MANIFEST, "*.safetensors", *model)
    return [
        f"{folder}metrics.jsonl",
        f"{folder}tensorboard/events.out.tfevents.*",
        f"{folder}{CHECKPOINTS}/*step-*/*",
        *(f"{folder}{name}/{file}" for name in ("model", "last") for file in files),
    ]


def _commit() -> str | None:
    """Return the git commit of the code, with ``+`` where files differ from it; None outside a checkout."""
    root = Path(aam.__file__).parents[1]
    if not (root / ".git").exists():
        return os.environ.get("AAM_REVISION")

    def git(*words: str) -> str:
        process = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30)
        return process.stdout.strip()

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
    """Return the SHA-256 of a file, or of the manifests of the models in a folder."""
    if path.is_file():
        return file_digest(path)
    manifests = sorted(path.glob(MANIFEST)) or sorted(path.glob(f"**/model/{MANIFEST}"))
    return ",".join(file_digest(manifest) for manifest in manifests)


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Return nested dicts as one dict with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, inner in value.items() for k, v in flatten(inner, f"{name}.{key}" if name else key).items()}


def differences(first: Record, second: Record) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ between two run.json, by dotted name.

    Times, paths of inputs with the same content, and paths of output are left out.
    """
    first_values, second_values = flatten(first), flatten(second)
    inputs = {**first["inputs"], **second["inputs"]}
    left_out = {"started", "resumed", LIST, *(f"config.runtime.{name}" for name in HARMLESS)}
    left_out |= {f"inputs.{name}.path" for name in inputs}
    left_out |= {f"config.{part}.{name}" for name in inputs for part in ("data", "targets")}
    pairs = {
        name: (first_values.get(name), second_values.get(name))
        for name in {**first_values, **second_values}
        if name not in left_out
    }
    # Compared as text, in which NaN equals NaN.
    return {name: (value, other) for name, (value, other) in pairs.items() if repr(value) != repr(other)}


def _batch_sizes(run: Record) -> tuple[int, int]:
    """Return the samples of a batch on each device, and the number of devices."""
    return run["config"]["train"]["batch_size"], run.get("ranks", 1)


def check_same(before: Record, now: Record) -> None:
    """Refuse to resume a run whose meaning would change; log changes that may alter its last bits.

    Raises
    ------
    InputError
        Options or inputs differ; the message lists them all.
    """
    problems = []
    changes = differences(before, now)
    old_size, old_devices = _batch_sizes(before)
    size, devices = _batch_sizes(now)
    if old_devices != devices:
        changes.pop("config.train.batch_size", None)
    if old_devices != devices and old_size * old_devices != size * devices:
        advice = f"give {old_size * old_devices / devices:g}, so that all together take as many samples"
        problems.append(
            f"--batch-size was {old_size} on each of {old_devices} devices and is {size} on each of {devices}; {advice}"
        )
    for name, (old, new) in changes.items():
        section, _, option = name.rpartition(".")
        changes_meaning = section.split(".")[0] in ("config", "inputs") or name in ("command", "depth")
        if changes_meaning and not (section == "config.runtime" and option in LAST_BITS):
            problems.append(f"{name} was {old!r} and is {new!r}; give what it was, or choose another --output-dir")
        else:
            log.warning("%s was %s and is %s: the rest of the run may differ in the last bits", name, old, new)
    if problems:
        raise InputError(*problems)


def read_record(path: Path) -> Record:
    """Read a run.json; raise `InputError` where it is not one."""
    record = read_json(path)
    if not (
        isinstance(record, dict) and isinstance(record.get("inputs"), dict) and isinstance(record.get("config"), dict)
    ):
        raise InputError(f"{path}: not the {RUN} of a run; expected its config and inputs")
    return record


def earlier_decisions(runtime: RunConfig) -> Record:
    """Return the decisions of the run that is resumed; empty where there is none, or none that can be read."""
    chosen = runtime.resume_from
    if chosen is None or runtime.output_dir is None:
        return {}
    try:
        content = read_json(runtime.output_dir / RUN if chosen == "auto" else Path(chosen) / FACTS)
    except InputError:
        return {}
    record = content if chosen == "auto" else content.get("run") if isinstance(content, dict) else None
    decisions = record.get("decisions") if isinstance(record, dict) else None
    return decisions if isinstance(decisions, dict) else {}
