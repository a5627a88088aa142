"""How a run writes: its folder, run.json, metrics.jsonl, TensorBoard, and progress to look at."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

import aam
from aam.config import FineTuneConfig, RunConfig
from aam.config_file import to_dict
from aam.errors import InputError
from aam.runtime.files import LOCK, MANIFEST, file_digest, read_json, sweep, write_text
from aam.training.checkpoint import SavedModel, Signals, State, earlier_state, load_model, newest_state

log = logging.getLogger("aam")

Record = dict[str, Any]
# One of these stands in the folder of every run, evaluation and embedding.
RESULTS = ("run.json", "predictions.tsv", "metrics.json", "samples.tsv", "samples.npy")
SHOWN = ("train_loss", "val_loss", "val_mae", "val_r2", "val_accuracy", "samples_per_s")


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


def open_output(folder: Path, overwrite: bool) -> None:
    """Make the folder of a command's results; with `overwrite` an earlier one, and no other, is removed first."""
    if folder.is_dir():
        sweep(folder)
    if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
        if not any((folder / name).is_file() for name in RESULTS):
            raise InputError(
                f"--output-dir: {folder} holds files, none of them of aam, and is left alone; choose another"
            )
        if not overwrite:
            raise InputError(
                f"--output-dir: {folder} holds results already; choose another folder, pass "
                "--overwrite, or go on with a run that was ended by --resume-from auto"
            )
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output-dir: {folder} cannot be made ({error.strerror})") from None


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
            open_output(path, runtime.overwrite)
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


class Board:
    """TensorBoard's event file, written without a thread of its own, so that a full disk is an error here.

    The format is that of ``tensorboard.compat.proto.event_pb2``; TensorBoard leaves out what files before say of
    steps after `step`, where this one begins.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        self.file = (folder / name).open("ab")
        self.records = RecordWriter(self.file)
        self._add(file_version="brain.Event:2")
        if step:
            self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def _add(self, **content: Any) -> None:
        self.records.write(Event(wall_time=time.time(), **content).SerializeToString())

    def add(self, figures: dict[str, float], step: int) -> None:
        """Write the figures of a step."""
        for name, value in figures.items():
            self._add(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
        self.file.flush()


class Journal:
    """Takes the records of a training loop; a context manager that closes its files.

    What cannot be written, on a full disk, is kept, said once, and written when there is room again.

    Parameters
    ----------
    folder : Path
        Run directory; gets ``metrics.jsonl`` and ``tensorboard/``.
    title : str
        What is trained, for the progress line.
    steps, epochs : int
        Length of the run.
    before : Record
        What `facts` gave when the run was interrupted; nothing for a new run.
    """

    def __init__(self, folder: Path, title: str, steps: int, epochs: int, before: Record | None = None) -> None:
        before = before or {"lines": [], "seconds": 0.0, "step": 0}
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.lines, self.failed = folder / "metrics.jsonl", list(before["lines"]), False
        self.title, self.epochs, self.steps = title, epochs, before["step"]
        self.started = time.perf_counter() - before["seconds"]
        write_text(self.path, "".join(self.lines))
        self.board: Board | None = Board(folder / "tensorboard", self.steps)
        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, {task.fields[rate]} samples/s,"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task(title, total=steps, rate="-")

    def __enter__(self) -> Journal:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        if self.failed:
            self._write("")
        if self.board is not None:
            self.board.file.close()

    def facts(self) -> Record:
        """What a checkpoint keeps of it."""
        return {"lines": self.lines, "seconds": time.perf_counter() - self.started, "step": self.steps}

    def report(self, record: Record) -> None:
        """Take one record of the loop: ``event`` is ``step`` or ``epoch``; steps without figures only move the bar."""
        if record["event"] == "step":
            self.steps = record["step"]
            self.progress.update(self.bar, completed=self.steps)
            if "train_loss" not in record:
                return
        record = {**record, "step": self.steps, "seconds": round(time.perf_counter() - self.started, 3)}
        self._write(json.dumps(record) + "\n")
        self._show({f"{record['event']}/{n}": value for n, value in record.items() if isinstance(value, float)})
        if record["event"] == "step":
            return
        if "samples_per_s" in record:
            self.progress.update(self.bar, rate=f"{record['samples_per_s']:.0f}")
        figures = ", ".join(f"{name} {record[name]:.4g}" for name in SHOWN if name in record)
        epoch, left = record["epoch"], self.epochs - record["epoch"]
        rest = f", {record['seconds'] / epoch * left:.0f} s left at most" if epoch and left else ""
        log.info("%s epoch %d/%d: %s%s", self.title, epoch, self.epochs, figures, rest)

    def _write(self, line: str) -> None:
        self.lines += [line] if line else []
        try:
            if self.failed:
                write_text(self.path, "".join(self.lines))
            else:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(line)
            self.failed = False
        except OSError as error:
            if not self.failed:
                log.warning("%s: not written (%s); training goes on, and it is tried again", self.path, error)
            self.failed = True

    def _show(self, figures: dict[str, float]) -> None:
        try:
            if self.board is not None:
                self.board.add(figures, self.steps)
        except OSError as error:
            log.warning("%s: TensorBoard's files are not written any more (%s)", self.path.parent, error)
            self.board = None
