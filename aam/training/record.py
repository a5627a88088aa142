"""What a run says of itself: its folder and run.json, whether it goes on, and how two runs differ."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import aam
from aam.config import CompareConfig, FineTuneConfig, RunConfig
from aam.config_file import to_dict
from aam.errors import FAILED, FINISHED, InputError
from aam.runtime.files import LOCK, MANIFEST, check_writable, file_digest, read_json, sweep, write_text
from aam.training.checkpoint import SavedModel, Signals, State, earlier_state, load_model, newest_state

log = logging.getLogger("aam")

Record = dict[str, Any]
# What two runs of one commit and one seed may say differently in metrics.jsonl.
TIMES = ("seconds", "samples_per_s")
# One of these stands in the folder of every run, evaluation and embedding.
RESULTS = ("run.json", "predictions.tsv", "metrics.json", "samples.tsv", "samples.npy")
# Options that change no result; others of `runtime` may change its last bits.
HARMLESS = ("output_dir", "overwrite", "num_workers", "debug", "resume_from", "checkpoint_minutes", "keep_checkpoints")
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


def describe(command: str, config: FineTuneConfig, facts: Record) -> Record:
    """What run.json holds: resolved options, versions, machine, checksums of the inputs, and `facts` of the data."""
    given = {**vars(config.data), "pretrained_encoder": config.targets.pretrained_encoder}
    files = {name: path for name, path in given.items() if isinstance(path, Path)}
    digests = {name: _digest(path) for name, path in files.items()}
    options = to_dict(config)
    if command == "pretrain":
        del options["targets"]
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
    left_out = {"started", "resumed", "config.runtime.output_dir", *(f"inputs.{name}.path" for name in inputs)}
    left_out |= {f"config.{part}.{name}" for name in inputs for part in ("data", "targets")}
    return {
        name: (a.get(name), b.get(name)) for name in {**a, **b} if name not in left_out and a.get(name) != b.get(name)
    }


def check_same(before: Record, now: Record) -> None:
    """Refuse to go on with a run where its meaning would change; log what may change its last bits.

    Raises
    ------
    InputError
        Names every option and input that is not as it was.
    """
    problems = []
    for name, (was, is_) in differences(before, now).items():
        where, _, option = name.rpartition(".")
        if where == "config.runtime" and option in HARMLESS:
            continue
        if (where.split(".")[0] in ("config", "inputs") and where != "config.runtime") or name in ("command", "depth"):
            problems.append(f"{name} was {was!r} and is {is_!r}; give what it was, or choose another --output-dir")
        else:
            log.warning("%s was %s and is %s: the rest of the run may differ in the last bits", name, was, is_)
    if problems:
        raise InputError(*problems)


def check_output(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds other files, or results of aam unless these are to be replaced."""
    check_writable(folder, overwrite=True)
    if folder.is_dir():
        sweep(folder)
    if not folder.exists() or (folder.is_dir() and all(path.name == LOCK for path in folder.iterdir())):
        return
    if not any((folder / name).is_file() for name in RESULTS):
        raise InputError(f"--output-dir: {folder} holds files, none of them of aam, and is left alone; choose another")
    if not overwrite:
        raise InputError(
            f"--output-dir: {folder} holds results already; choose another folder, pass --overwrite, or go on with "
            "a run that was ended by --resume-from auto"
        )


@dataclass(eq=False)
class RunFolder:
    """The directory of a run while it lasts: what its run.json says, and whether it goes on from an earlier call."""

    path: Path
    about: Record
    runtime: RunConfig
    signals: Signals
    resumed: bool

    @classmethod
    def opened(cls, about: Record, runtime: RunConfig, signals: Signals) -> RunFolder:
        """Make the directory or, with ``--resume-from``, take up the one that is there.

        Raises
        ------
        InputError
            It holds other results, or options or inputs are not those of the run.
        """
        path, chosen = runtime.output_dir, runtime.resume_from
        if path is None:
            raise InputError("--output-dir: not given")
        own = chosen == "auto" or (chosen is not None and Path(chosen).resolve().is_relative_to(path.resolve()))
        run = cls(path, about, runtime, signals, own and (path / RUN).is_file())
        if not run.resumed:
            check_output(path, runtime.overwrite)
            if path.exists():
                shutil.rmtree(path)
            write_text(path / RUN, json.dumps(about, indent=1) + "\n")
            return run
        before: Any = read_json(path / RUN)
        check_same(before, about)
        sweep(path)
        again = [*before.get("resumed", []), {name: about[name] for name in ("started", "versions", "commit")}]
        write_text(path / RUN, json.dumps({**before, "resumed": again}, indent=1) + "\n")
        return run

    @property
    def finished(self) -> bool:
        """Whether all that a run writes is there; metrics.json comes last."""
        return self.resumed and (self.path / "metrics.json").is_file()

    def state(self, folder: Path) -> State | None:
        """Where training in `folder`, the run's or that of a fold, stood, if it was begun."""
        chosen = self.runtime.resume_from
        if chosen == "auto":
            return newest_state(folder / CHECKPOINTS) if self.resumed else None
        if chosen is None:
            return None
        state = earlier_state(Path(chosen))
        check_same(state.facts["run"], self.about)
        return state

    def trained(self, folder: Path, device: torch.device) -> SavedModel | None:
        """The model of a fold that was done before the run was interrupted."""
        if not self.resumed or not (folder / "model").is_dir():
            return None
        try:
            return load_model(folder / "model", device)
        except InputError as error:
            log.warning("%s; trained again", "; ".join(error.problems))
            return None


# --- comparing ---------------------------------------------------------------------------------------------


def _history(path: Path) -> list[Record]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not the metrics of a run ({error})") from None


def _parting(one: Path, other: Path) -> str:
    """Where two metrics.jsonl first say different things, apart from times; empty where nowhere."""
    histories = [_history(path) for path in (one, other)]
    for a, b in zip(*histories, strict=False):
        differing = [name for name in {**a, **b} if name not in TIMES and a.get(name) != b.get(name)]
        if differing:
            said = ", ".join(f"{name} {a.get(name)} and {b.get(name)}" for name in differing)
            return f"the {a['event']} records part at step {a['step']}: {said}"
    lengths = [len(history) for history in histories]
    return "" if len(set(lengths)) == 1 else f"alike until one ends: {lengths[0]} and {lengths[1]} records"


def _files_apart(first: Path, second: Path) -> Iterator[str]:
    """What is said of metrics and weights that differ."""
    for pattern in ("metrics.jsonl", "weights.safetensors"):
        for name in sorted({path.relative_to(root) for root in (first, second) for path in root.rglob(pattern)}):
            one, other = first / name, second / name
            if not (one.is_file() and other.is_file()):
                yield f"{name}: only in {first if one.is_file() else second}"
            elif pattern != "metrics.jsonl" and file_digest(one) != file_digest(other):
                yield f"{name}: the weights differ"
            elif pattern == "metrics.jsonl" and (said := _parting(one, other)):
                yield f"{name}: {said}"


def compare(config: CompareConfig) -> int:
    """Print what two runs did differently and where their losses part; the exit status is 1 where anything differs.

    Raises
    ------
    InputError
        A folder that holds no run.
    """
    first, second = config.first, config.second
    if first is None or second is None:
        raise InputError("name the folders of two runs: aam compare RUN1 RUN2")
    one, other = (read_json(path / RUN) for path in (first, second))
    if not (isinstance(one, dict) and isinstance(other, dict) and "inputs" in one and "inputs" in other):
        raise InputError(f"{first} or {second}: {RUN} is not that of a run")
    table = Table("", str(first), str(second), title="What differs", title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    for name, (a, b) in differences(one, other).items():
        table.add_row(name, str(a), str(b))
    if table.row_count:
        Console().print(table)
    lines = list(_files_apart(first, second))
    alike = not (table.row_count or lines)
    print("\n".join(["The runs are alike: options, inputs, versions, losses and weights."] if alike else lines))
    return FINISHED if alike else FAILED
