"""What a run says of itself: its folder and run.json, whether it goes on, and how two runs differ."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import aam
from aam.config import FineTuneConfig, PretrainConfig, RunConfig
from aam.config_commands import CompareConfig
from aam.config_file import to_dict
from aam.errors import FAILED, FINISHED, InputError, shown
from aam.runtime.distributed import ALONE, World
from aam.runtime.files import (
    LOCK,
    MANIFEST,
    PARTIAL,
    REPLACED,
    check_writable,
    file_digest,
    only_writer,
    read_json,
    remove,
    sweep,
    verify_manifest,
    write_text,
)
from aam.training.checkpoint import (
    FACTS,
    MOST_FACTS,
    SavedModel,
    Signals,
    State,
    forget_later,
    load_model,
    newest_state,
    read_state,
    state_of_all,
)

log = logging.getLogger("aam")

Record = dict[str, Any]
# What two runs of one commit and one seed may say differently in metrics.jsonl.
TIMES = ("seconds", "samples_per_s")
# One of these stands in the folder of every run, evaluation and embedding.
RESULTS = ("metrics.jsonl", "predictions.tsv", "metrics.json", "samples.tsv", "samples.npy", "run.json")
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
HIDDEN = (LOCK, PARTIAL, REPLACED)


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
        options = {name: options[name] for name in to_dict(PretrainConfig())}
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
        found = read_json(runtime.output_dir / RUN if chosen == "auto" else Path(chosen) / FACTS, MOST_FACTS)
    except InputError:
        return {}
    record = found if chosen == "auto" else found.get("run") if isinstance(found, dict) else None
    decisions = record.get("decisions") if isinstance(record, dict) else None
    return decisions if isinstance(decisions, dict) else {}


def check_output(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds other files, or results of aam unless these are to be replaced."""
    check_writable(folder, overwrite=True)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output-dir: {folder} is a file, expected a folder")
    if folder.is_dir() and not os.access(folder, os.W_OK):
        raise InputError(f"--output-dir: no permission to write in {folder}")
    if not folder.exists() or all(path.name.startswith(HIDDEN) for path in folder.iterdir()):
        return
    if not any((folder / name).exists() for name in (*RESULTS, CHECKPOINTS)):
        raise InputError(f"--output-dir: {folder} holds files, none of them of aam, and is left alone; choose another")
    if not overwrite:
        raise InputError(
            f"--output-dir: {folder} holds results already; choose another folder, pass --overwrite, or go on with "
            "a run that was ended by --resume-from auto"
        )


def _emptied(folder: Path, inputs: Record) -> None:
    """Remove an earlier run, what shows that it is one last; `InputError` where an input would go with it."""
    inside = [entry["path"] for entry in inputs.values() if Path(entry["path"]).resolve().is_relative_to(folder)]
    if inside:
        raise InputError(f"--overwrite would delete what the run reads: {shown(inside)}; choose another --output-dir")
    for path in sorted(folder.iterdir(), key=lambda path: path.name in RESULTS):
        if path.name != LOCK:
            remove(path)


@dataclass(eq=False)
class RunFolder:
    """The directory of a run while it lasts: what its run.json says, and whether it goes on from an earlier call."""

    path: Path
    about: Record
    runtime: RunConfig
    signals: Signals
    resumed: bool
    world: World = ALONE
    named: State | None = None

    @classmethod
    @contextlib.contextmanager
    def opened(cls, about: Record, runtime: RunConfig, signals: Signals, world: World = ALONE) -> Iterator[RunFolder]:
        """Make the directory or, with ``--resume-from``, take up the one that is there, and hold it.

        The leading rank does; the others learn what it found.

        Raises
        ------
        InputError
            It holds other results, another process writes there, or options or inputs are not those of the run.
        """
        if runtime.output_dir is None:
            raise InputError("--output-dir: not given")
        path, chosen = runtime.output_dir.resolve(), runtime.resume_from
        own = chosen == "auto" or (chosen is not None and Path(chosen).resolve().is_relative_to(path))
        if not world.lead:
            yield cls(path, about, runtime, signals, bool(world.told(b"")), world)
            return
        run = cls(path, about, runtime, signals, own and (path / RUN).is_file(), world)
        if chosen not in (None, "auto"):
            run.named = run._checked(Path(str(chosen)))
        if not run.resumed:
            check_output(path, runtime.overwrite)
        path.mkdir(parents=True, exist_ok=True)
        with only_writer(path):
            if run.resumed:
                run._take_up()
            else:
                _emptied(path, about["inputs"])
                write_text(path / RUN, json.dumps(about, indent=1) + "\n")
            world.told(b"resumed" if run.resumed else b"")
            yield run

    def _take_up(self) -> None:
        before = read_record(self.path / RUN)
        check_same(before, self.about)
        sweep(self.path)
        if not self._all_there():
            earlier = before["resumed"] if isinstance(before.get("resumed"), list) else []
            again = [*earlier, {name: self.about[name] for name in ("started", "versions", "commit")}]
            write_text(self.path / RUN, json.dumps({**before, "resumed": again}, indent=1) + "\n")

    def _checked(self, path: Path) -> State:
        """The checkpoint `path`, if it is of a run like this."""
        try:
            state = read_state(path)
        except InputError as error:
            expected = "expected auto, or the folder of a checkpoint, RUN/checkpoints/step-N"
            raise InputError(*(f"--resume-from: {problem}; {expected}" for problem in error.problems)) from None
        if not {"run", "journal", "progress"} <= state.facts.keys():
            raise InputError(f"--resume-from: {path} is no checkpoint of a run; expected RUN/checkpoints/step-N")
        check_same(state.facts["run"], self.about)
        return state

    @property
    def finished(self) -> bool:
        """Whether all that a run writes is there and whole, as the leading rank sees it; metrics.json comes last."""
        return self.world.any(self.world.lead and self._all_there())

    def _all_there(self) -> bool:
        folders = [path.parent for path in self.path.rglob("split.tsv")]
        whole = folders and all(self._whole(folder) for folder in folders)
        return bool(self.resumed and (self.path / "metrics.json").is_file() and whole)

    def _whole(self, folder: Path) -> bool:
        """Whether both models of a fold are there and undamaged."""
        try:
            for name in ("last", "model"):
                verify_manifest(folder / name)
        except InputError as error:
            if (folder / "model").exists():
                log.warning("%s; trained again", "; ".join(error.problems))
            return False
        return True

    def state(self, folder: Path) -> State | None:
        """Where training in `folder`, the run's or that of a fold, stood, if it was begun; every rank must ask."""
        return state_of_all(self._state(folder) if self.world.lead else None, self.world)

    def _state(self, folder: Path) -> State | None:
        if self.named is not None:
            if self.resumed:
                forget_later(Path(str(self.runtime.resume_from)))
            return self.named
        return newest_state(folder / CHECKPOINTS) if self.resumed else None

    def trained(self, folder: Path, device: torch.device) -> SavedModel | None:
        """The model of a fold that was done before the run was interrupted."""
        if not self.resumed or not self._whole(folder):
            return None
        remove(folder / CHECKPOINTS)
        return load_model(folder / "model", device)


# --- comparing ---------------------------------------------------------------------------------------------


def _history(path: Path) -> list[Record]:
    """The records of a metrics.jsonl; a last line that a killed run left unfinished is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not the metrics of a run ({error})") from None
    if not all(isinstance(record, dict) and {"event", "step"} <= record.keys() for record in records):
        raise InputError(f"{path}: not the metrics of a run; expected records with event and step")
    return records


def _parting(one: Path, other: Path) -> str:
    """Where two metrics.jsonl first say different things, apart from times; empty where nowhere."""
    histories = [_history(path) for path in (one, other)]
    for a, b in zip(*histories, strict=False):
        differing = [name for name in {**a, **b} if name not in TIMES and repr(a.get(name)) != repr(b.get(name))]
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


def compare_runs(config: CompareConfig) -> int:
    """Print what two runs did differently and where their losses part; the exit status is 1 where anything differs.

    Raises
    ------
    InputError
        A folder that holds no run.
    """
    first, second = config.first, config.second
    if first is None or second is None:
        raise InputError("name the folders of two runs: aam compare RUN1 RUN2")
    one, other = (read_record(path / RUN) for path in (first, second))
    table = Table("", escape(str(first)), escape(str(second)), title="What differs", title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    for name, (a, b) in differences(one, other).items():
        table.add_row(*map(Text, (name, str(a), str(b))))
    if table.row_count:
        Console().print(table)
    lines = list(_files_apart(first, second))
    alike = not (table.row_count or lines)
    print("\n".join(["The runs are alike: options, inputs, versions, losses and weights."] if alike else lines))
    return FINISHED if alike else FAILED
