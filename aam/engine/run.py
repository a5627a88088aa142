"""A run: its folder and run.json, described, compared, locked, resumed; a command that trains,
start to results.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

import aam
from aam.device.distributed import SINGLE, World, launch, process_count, process_group
from aam.device.environment import rank_of
from aam.engine.checkpoint import FACTS, State, broadcast_state, load, load_latest, remove_later
from aam.engine.options import RunConfig
from aam.engine.signals import Signals
from aam.errors import FINISHED, InputError
from aam.files.atomic import (
    MANIFEST,
    file_digest,
    read_json,
    remove,
    remove_partial,
    verify_manifest,
    write_text,
)
from aam.files.output_folder import (
    LIST,
    MEMORY,
    RUN,
    OutputFolder,
    check_unlocked,
    claim,
    lock_folder,
)
from aam.options import IN_MEMORY, names, not_none, spelled

log = logging.getLogger("aam")


Record = dict[str, Any]
Saved = TypeVar("Saved")

# Environment variable that names the container image.
IMAGE = "AAM_IMAGE"

# Environment variable of processes that share the folds of one run.
SHARE = "AAM_SHARE_FOLDS"

# Name in the directory of a run.
CHECKPOINTS = "checkpoints"

# What is logged of each step and epoch.
METRICS = "metrics.jsonl"

# The results of a run, which are written last.
RESULTS = "metrics.json"

# Folders of the best and of the last weights of a task.
MODEL, LAST = "model", "last"

# Folder of `aam explain` in a run directory; it explains that run and no later one.
EXPLANATION = "explanation"


def training_outputs(folder: str = "", model: tuple[str, ...] = ("state.json",)) -> list[str]:
    """Return the names that training writes below `folder`; `model` are files of a model without
    its tensors.
    """
    files = (MANIFEST, "*.safetensors", *model)
    return [
        f"{folder}{METRICS}",
        f"{folder}tensorboard/events.out.tfevents.*",
        f"{folder}{CHECKPOINTS}/*step-*/*",
        *(f"{folder}{name}/{file}" for name in (MODEL, LAST) for file in files),
    ]


def _commit() -> str | None:
    """Return the git commit of the code, with ``+`` where files differ from it; None outside a
    checkout.
    """
    root = Path(aam.__file__).parents[1]
    if not (root / ".git").exists():
        return os.environ.get("AAM_REVISION")
    words = ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return done.stdout.strip() or "unknown"
    except (OSError, subprocess.SubprocessError):
        return None


def describe(
    command: str,
    options: Record,
    files: Mapping[str, Path],
    facts: Record,
    in_memory: Mapping[str, str] | None = None,
) -> Record:
    """Content of run.json: resolved options, versions, machine, checksums of the inputs, and
    `facts`.

    Inputs are `files`, and those `in_memory`, whose checksums are given, by option.
    """
    inputs = {name: (path, _digest(path)) for name, path in files.items()}
    inputs |= {name: (IN_MEMORY, digest) for name, digest in (in_memory or {}).items()}
    versions = {"aam": aam.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "command": command,
        "config": options,
        "inputs": {
            name: {"path": str(path), "sha256": digest} for name, (path, digest) in inputs.items()
        },
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
    return {
        k: v
        for key, inner in value.items()
        for k, v in flatten(inner, f"{name}.{key}" if name else key).items()
    }


def differences(first: Record, second: Record) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ between two run.json, by dotted name.

    Times, paths of inputs with the same content, and paths of output are left out.
    """
    old, new = flatten(first), flatten(second)
    inputs = {**first["inputs"], **second["inputs"]}
    left_out = {"started", "resumed", LIST, *(f"inputs.{name}.path" for name in inputs)}
    left_out |= {f"config.runtime.{name}" for name in names(RunConfig, changes="nothing")}
    options = {option for name in inputs for option in (name, f"{name.split(' ')[0]}s")}
    left_out |= {f"config.{part}.{name}" for name in options for part in ("data", "targets")}
    # Compared as text, in which NaN equals NaN.
    return {
        name: (old.get(name), new.get(name))
        for name in {**old, **new}
        if name not in left_out and repr(old.get(name)) != repr(new.get(name))
    }


def check_same(before: Record, now: Record) -> None:
    """Refuse to resume a run whose meaning would change; log changes that may alter its last bits.

    Raises
    ------
    InputError
        Options or inputs differ; the message lists them all.
    """
    problems = []
    changes = differences(before, now)
    (old_size, old_devices), (size, devices) = (
        (run["config"]["train"]["batch_size"], run.get("ranks", 1)) for run in (before, now)
    )
    if old_devices != devices:
        changes.pop("config.train.batch_size", None)
        if old_size * old_devices != size * devices:
            problems.append(
                f"--batch-size was {old_size} on each of {old_devices} devices and is {size} on "
                f"each of {devices}; give {old_size * old_devices / devices:g}, so that all "
                "together take as many samples"
            )
    last_bits = {f"config.runtime.{name}" for name in names(RunConfig, changes="last bits")}
    for name, (old, new) in changes.items():
        section = name.split(".")[0]
        shown = spelled(name.rpartition(".")[2]) if section == "config" else name
        has_meaning = section in ("config", "inputs") or name in ("command", "depth")
        if has_meaning and name not in last_bits:
            problems.append(
                f"{shown} was {old!r} and is {new!r}; give what it was, or choose another "
                "--output-dir"
            )
        else:
            text = "%s was %s and is %s: the rest of the run may differ in the last bits"
            log.warning(text, shown, old, new)
    if problems:
        raise InputError(*problems)


def read_record(path: Path) -> Record:
    """Read a run.json; raise `InputError` where it is not one."""
    record = read_json(path)
    if not (
        isinstance(record, dict)
        and isinstance(record.get("inputs"), dict)
        and isinstance(record.get("config"), dict)
    ):
        raise InputError(f"{path}: not the {RUN} of a run; expected its config and inputs")
    return record


def earlier_decisions(runtime: RunConfig) -> Record:
    """Return the decisions of the run that is resumed; empty without a run, or if they cannot be
    read.
    """
    chosen = runtime.resume_from
    if chosen is None or runtime.output_dir is None:
        return {}
    path = runtime.output_dir / RUN if chosen == "auto" else Path(chosen) / FACTS
    try:
        content: Any = read_json(path)
        return dict((content if chosen == "auto" else content["run"])["decisions"])
    except (InputError, KeyError, TypeError, ValueError):
        return {}


@dataclass(eq=False)
class RunDirectory:
    """The directory of a run while it lasts, with the content of its run.json, and whether the run
    is resumed.
    """

    path: Path
    about: Record
    runtime: RunConfig
    signals: Signals
    resumed: bool
    world: World = SINGLE
    checkpoint: State | None = None

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, about: Record, runtime: RunConfig, signals: Signals, world: World = SINGLE
    ) -> Iterator[RunDirectory]:
        """Create the directory or, with ``--resume-from``, open the existing one, and lock it.

        The main rank does; the other ranks only learn whether the run is resumed.

        Raises
        ------
        InputError
            It holds other results, another process writes there, or options or inputs are not those
            of the run.
        """
        if not world.is_main:
            yield cls(
                not_none(runtime.output_dir).resolve(),
                about,
                runtime,
                signals,
                bool(world.broadcast(b"")),
                world,
            )
            return
        if os.environ.get(SHARE):
            with cls._open_shared(about, runtime, signals) as run:
                yield run
            return
        run = cls.check(about, runtime, signals, world)
        run.path.mkdir(parents=True, exist_ok=True)
        with lock_folder(run.path):
            if run.resumed:
                run._resume()
            else:
                run.output.begin(about)
            world.broadcast(b"resumed" if run.resumed else b"")
            yield run

    @classmethod
    @contextlib.contextmanager
    def _open_shared(
        cls, about: Record, runtime: RunConfig, signals: Signals
    ) -> Iterator[RunDirectory]:
        """The directory that several processes share; each fits other folds.

        One of them begins it, and the others go on in it.
        """
        folder = not_none(runtime.output_dir).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder, shared=True):
            with claim(folder, "begin", wait=True):
                run = cls.check(about, runtime, signals)
                if not run.resumed:
                    run.output.begin(about)
            run.resumed = True
            yield run

    @classmethod
    def check(
        cls, about: Record, runtime: RunConfig, signals: Signals, world: World = SINGLE
    ) -> RunDirectory:
        """Return the directory as `open` finds it, with nothing written; `InputError` as there."""
        if runtime.output_dir is None:
            raise InputError("--output-dir: not given")
        path = runtime.output_dir.resolve()
        chosen = runtime.resume_from
        resumes_here = chosen == "auto" or (
            chosen is not None and Path(chosen).resolve().is_relative_to(path)
        )
        run = cls(path, about, runtime, signals, resumes_here and (path / RUN).is_file(), world)
        if chosen not in (None, "auto"):
            run.checkpoint = run._load_checkpoint(Path(str(chosen)))
        if run.resumed:
            check_same(read_record(path / RUN), about)
        else:
            run.output.check()
        return run

    @property
    def output(self) -> OutputFolder:
        """The folder, as what a new run may write to."""
        return OutputFolder(
            self.path,
            self.about["command"],
            self.about.get(LIST, ()),
            [Path(entry["path"]) for entry in self.about["inputs"].values()],
            self.runtime.overwrite,
            (EXPLANATION,),
            resumable=True,
        )

    @property
    def is_shared(self) -> bool:
        """Whether several processes fit the folds of this run."""
        return bool(os.environ.get(SHARE))

    def plan(self) -> str:
        """Description of what a run would do to the directory, for ``--dry-run``.

        Raises
        ------
        InputError
            Another process writes there.
        """
        check_unlocked(self.path)
        if self.resumed:
            return f"the run there {'is finished' if self._is_complete() else 'would continue'}"
        replaced = self.output.check()
        plan = "free"
        if replaced:
            plan = (
                f"the earlier run there ({len(replaced)} files) would be replaced, all else there "
                "would stay"
            )
        named = f", the run would continue from {self.runtime.resume_from}"
        return plan + (named if self.checkpoint is not None else "")

    def _resume(self) -> None:
        """Add this call to the run.json of the earlier run."""
        before = read_record(self.path / RUN)
        remove_partial(self.path)
        if self._is_complete():
            return
        earlier = before["resumed"] if isinstance(before.get("resumed"), list) else []
        call = {name: self.about[name] for name in ("started", "versions", "commit")}
        listed = {LIST: self.about[LIST]} if LIST in self.about else {}
        record = {**before, **listed, "resumed": [*earlier, call]}
        write_text(self.path / RUN, json.dumps(record, indent=1) + "\n")

    def _load_checkpoint(self, path: Path) -> State:
        """Return the checkpoint `path`; raise `InputError` where it is not of a run like this."""
        try:
            state = load(path)
        except InputError as error:
            expected = "expected auto, or the folder of a checkpoint, RUN/checkpoints/step-N"
            raise InputError(
                *(f"--resume-from: {problem}; {expected}" for problem in error.problems)
            ) from None
        if not {"run", "logger", "progress"} <= state.facts.keys():
            raise InputError(
                f"--resume-from: {path} is not a checkpoint of a run; expected "
                "RUN/checkpoints/step-N"
            )
        check_same(state.facts["run"], self.about)
        return state

    @property
    def finished(self) -> bool:
        """Whether all files of a run exist and are undamaged, as the main rank sees it;
        metrics.json comes last.
        """
        return self.world.any(self.world.is_main and self._is_complete())

    def _is_complete(self) -> bool:
        folders = {path.parent for name in ("split.tsv", LAST) for path in self.path.rglob(name)}
        trained = folders and all(self._has_models(folder) for folder in folders)
        return bool(self.resumed and (self.path / RESULTS).is_file() and trained)

    def _has_models(self, folder: Path) -> bool:
        """Return whether the models of a fold exist and are undamaged; what took no steps has no
        last weights.
        """
        try:
            for name in (LAST, MODEL) if (folder / METRICS).exists() else (MODEL,):
                verify_manifest(folder / name)
        except InputError as error:
            if (folder / MODEL).exists():
                log.warning("%s; trained again", "; ".join(error.problems))
            return False
        return True

    def state(self, folder: Path) -> State | None:
        """Return the state to resume training in `folder` from, if any; all ranks must call it."""
        return broadcast_state(self._find_state(folder) if self.world.is_main else None, self.world)

    def _find_state(self, folder: Path) -> State | None:
        if self.checkpoint is not None:
            if self.resumed:
                remove_later(Path(str(self.runtime.resume_from)))
            return self.checkpoint
        return load_latest(folder / CHECKPOINTS) if self.resumed else None

    def is_trained(self, folder: Path) -> bool:
        """Return whether a fold was trained before the run was interrupted; its checkpoints are
        then removed.
        """
        if not self.resumed or not self._has_models(folder):
            return False
        remove(folder / CHECKPOINTS)
        return True


# --- the run machine ---------------------------------------------------------------------------


class RunPlan(NamedTuple):
    """Plan of a command that trains: all inputs are read and checked, nothing is written yet.

    Attributes
    ----------
    options : dict
        The options as values of JSON, for run.json.
    files : mapping of str to Path
        The files that the command reads, by option.
    facts : dict
        What else run.json holds.
    outputs : sequence of str
        Names that the command may write next to run.json and metrics.json.
    work : callable
        Trains in the run directory, and returns what metrics.json holds; None where it has written
        that itself.
    describe : callable
        Returns what ``--dry-run`` prints.
    in_memory : mapping of str to str, optional
        Checksums of the inputs that are no files, by option.
    """

    options: dict[str, Any]
    files: Mapping[str, Path]
    facts: dict[str, Any]
    outputs: Sequence[str]
    work: Callable[[RunDirectory], dict[str, Any] | None]
    describe: Callable[[], Sequence[str]] = tuple
    in_memory: Mapping[str, str] | None = None


def run_command(
    name: str,
    runtime: RunConfig,
    prepare: Callable[[World], RunPlan],
    program: str = "aam",
    processes: int | None = None,
) -> int:
    """Run a command that trains, on one or several processes, in its run directory; return the exit
    status.

    A finished run is not changed.

    Parameters
    ----------
    name : str
        The command, as run.json names it.
    runtime : RunConfig
    prepare : callable
        Reads and checks what the command needs, on each rank.
    program : str
        The module that ``python -m`` runs, where ``--data-parallel`` starts processes.
    processes : int, optional
        How many ``--data-parallel`` starts; unset: as many as this machine has room for.

    Raises
    ------
    CallAgain
        A signal came; what is trained is saved.
    """
    if runtime.data_parallel and rank_of(os.environ) is None:
        return launch(processes or process_count(runtime), sys.argv[1:], program)
    with Signals() as signals, process_group(runtime) as world:
        plan = prepare(world)
        facts = {**plan.facts, LIST: [RUN, RESULTS, *MEMORY, *plan.outputs]}
        about = describe(name, plan.options, plan.files, facts, plan.in_memory)
        if runtime.dry_run:
            if world.is_main:
                folder, state = runtime.output_dir, "not named"
                if folder is not None:
                    state = RunDirectory.check(about, runtime, signals).plan()
                place = f"output folder {folder or '(--output-dir)'}: {state}"
                print("\n".join([*plan.describe(), f"{place}; --dry-run has changed nothing"]))
            return FINISHED
        world.barrier()
        with RunDirectory.open(about, runtime, signals, world) as run:
            if run.finished:
                log.info("%s: finished already", run.path)
                return FINISHED
            results = plan.work(run)
            if results is not None and world.is_main:
                write_text(run.path / RESULTS, json.dumps(results, indent=1) + "\n")
    return FINISHED


def train_once(
    run: RunDirectory,
    folder: Path,
    start: Callable[[State | None], Callable[[], Saved]],
    load_saved: Callable[[], Saved],
) -> Saved:
    """Train in `folder`, from its newest checkpoint if there is any, and save the result.

    Where that was done before the run was interrupted, it is loaded.

    Parameters
    ----------
    run : RunDirectory
    folder : Path
        The run directory, or a fold below it.
    start : callable
        Prepares, from a state if given, and returns the trainer, which saves ``model`` and
        ``last``.
    load_saved : callable
        Loads what was saved before.
    """
    if run.world.any(run.world.is_main and run.is_trained(folder)):
        return load_saved()
    train = start(run.state(folder))
    with run.signals:
        saved = train()
        if run.world.is_main:
            remove(folder / CHECKPOINTS)
    run.signals.raise_if_requested(run.world)
    return saved
