"""A run: its folder and run.json, described, compared, locked, resumed; a command that trains,
start to results.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

import aam
from aam.device.distributed import SINGLE, World, launch, process_count, process_group
from aam.device.environment import rank_of
from aam.engine.checkpoint import FACTS, State, broadcast_state, load, load_latest, remove_later
from aam.engine.logger import METRICS, Record, flatten
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
    MEMORY_FILES,
    RUN,
    OutputFolder,
    check_unlocked,
    claim,
    lock_folder,
)
from aam.files.revision import code_commit
from aam.options import IN_MEMORY, RunConfig, names, spelled

log = logging.getLogger("aam")

Saved = TypeVar("Saved")

# Environment variables: the container image, and that processes share the folds of one run.
IMAGE, SHARE = "AAM_IMAGE", "AAM_SHARE_FOLDS"
# In the directory of a run: its checkpoints, and its results, which are written last.
CHECKPOINTS, RESULTS = "checkpoints", "metrics.json"
# Folders of the best and of the last weights of a task.
MODEL, LAST = "model", "last"
# Folder of `aam explain` in a run directory; it explains that run and no later one.
EXPLANATION = "explanation"


def training_outputs(folder: str = "", model: tuple[str, ...] = ("state.json",)) -> list[str]:
    """Return the names that training writes below `folder`; `model` are files of a model without
    its tensors.
    """
    files = (MANIFEST, "*.safetensors", *model)
    listed = [METRICS, "tensorboard/events.out.tfevents.*", f"{CHECKPOINTS}/*step-*/*"]
    listed += [f"{name}/{file}" for name in (MODEL, LAST) for file in files]
    return [f"{folder}{name}" for name in listed]


# --- run.json ------------------------------------------------------------------------------------


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the manifests of the models in a folder."""
    if path.is_file():
        return file_digest(path)
    manifests = sorted(path.glob(MANIFEST)) or sorted(path.glob(f"**/model/{MANIFEST}"))
    return ",".join(file_digest(manifest) for manifest in manifests)


def _size(path: Path) -> int:
    """Return the number of bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _typed(command: str) -> str | None:
    """Return the command line of this process; None unless it is that of `command`."""
    program, *words = sys.argv or [""]
    if words[:1] != [command]:
        return None
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.name
    return shlex.join([name, *words])


def describe(
    command: str,
    options: Record,
    files: Mapping[str, Path],
    facts: Record,
    in_memory: Mapping[str, str] | None = None,
) -> Record:
    """Content of run.json: the command, resolved options, versions, machine, checksums and sizes
    of the inputs, and `facts`.

    Inputs are `files`, and those `in_memory`, whose checksums are given, by option.
    """
    inputs: dict[str, Record] = {
        name: {"path": str(path), "bytes": _size(path), "sha256": _digest(path)}
        for name, path in files.items()
    }
    for name, digest in (in_memory or {}).items():
        inputs[name] = {"path": str(IN_MEMORY), "sha256": digest}
    versions = {"aam": aam.__version__, "torch": torch.__version__, "numpy": np.__version__}
    versions["scikit-learn"] = metadata.version("scikit-learn")
    return {
        "command": command,
        "typed": _typed(command),
        "config": options,
        "inputs": inputs,
        "versions": {**versions, "python": platform.python_version()},
        "commit": code_commit(),
        "image": os.environ.get(IMAGE),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        **facts,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def differences(first: Record, second: Record) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ between two run.json, by dotted name.

    Times, spellings of the command, paths and sizes of inputs with the same content, and paths of
    output are left out.
    """
    old, new = flatten(first), flatten(second)
    left_out = {"started", "resumed", "typed", LIST}
    left_out |= {f"config.runtime.{name}" for name in names(RunConfig, changes="nothing")}
    for name in {**first["inputs"], **second["inputs"]}:
        left_out |= {f"inputs.{name}.path", f"inputs.{name}.bytes"}
        for option in (name, f"{name.split(' ')[0]}s"):
            left_out |= {f"config.data.{option}", f"config.targets.{option}"}
    pairs = {name: (old.get(name), new.get(name)) for name in old | new if name not in left_out}
    # Compared as text, in which NaN equals NaN.
    return {name: pair for name, pair in pairs.items() if repr(pair[0]) != repr(pair[1])}


def check_same(before: Record, now: Record) -> None:
    """Refuse to resume a run whose meaning would change; log changes that may alter its last bits.

    Raises
    ------
    InputError
        Options or inputs differ; the message lists them all.
    """
    problems, changes = [], differences(before, now)
    sizes = [run["config"]["train"]["batch_size"] for run in (before, now)]
    devices = [run.get("ranks", 1) for run in (before, now)]
    if devices[0] != devices[1]:
        changes.pop("config.train.batch_size", None)
        if (samples := sizes[0] * devices[0]) != sizes[1] * devices[1]:
            was = f"--batch-size was {sizes[0]} on each of {devices[0]} devices and is {sizes[1]} "
            advice = f"give {samples / devices[1]:g}, so that all together take as many samples"
            problems.append(f"{was}on each of {devices[1]}; {advice}")
    last_bits = {f"config.runtime.{name}" for name in names(RunConfig, changes="last bits")}
    for name, (old, new) in changes.items():
        section = name.split(".")[0]
        shown = spelled(name.rpartition(".")[2]) if section == "config" else name
        has_meaning = section in ("config", "inputs") or name in ("command", "depth")
        if has_meaning and name not in last_bits:
            advice = "give what it was, or choose another --output-dir"
            problems.append(f"{shown} was {old!r} and is {new!r}; {advice}")
        else:
            text = "%s was %s and is %s: the rest of the run may differ in the last bits"
            log.warning(text, shown, old, new)
    if problems:
        raise InputError(*problems)


def read_record(path: Path) -> Record:
    """Read a run.json; raise `InputError` where it is not one."""
    record = read_json(path)
    parts = [record.get(name) for name in ("inputs", "config")] if isinstance(record, dict) else []
    if not parts or not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{path}: not the {RUN} of a run; expected its config and inputs")
    return record  # type: ignore[return-value]


def earlier_decisions(runtime: RunConfig) -> Record:
    """Return the decisions of the run that is resumed; empty without a run, or if they cannot be
    read.
    """
    chosen = runtime.resume_from
    if chosen is None or runtime.output_dir is None:
        return {}
    try:
        if chosen == "auto":
            content: Any = read_json(runtime.output_dir / RUN)
        else:
            content = read_json(Path(chosen) / FACTS)["run"]  # type: ignore[index]
        return dict(content["decisions"])
    except (InputError, KeyError, TypeError, ValueError):
        return {}


# --- the directory -------------------------------------------------------------------------------


@dataclass(eq=False)
class RunDirectory:
    """The directory of a run while it lasts, with the content of its run.json, and whether the run
    is resumed.
    """

    about: Record
    runtime: RunConfig
    signals: Signals
    world: World = SINGLE
    resumed: bool = False
    checkpoint: State | None = None

    @functools.cached_property
    def path(self) -> Path:
        """The directory; `InputError` without one."""
        if self.runtime.output_dir is None:
            raise InputError("--output-dir: not given")
        return self.runtime.output_dir.resolve()

    @property
    def is_shared(self) -> bool:
        """Whether several processes fit the folds of this run."""
        return bool(os.environ.get(SHARE))

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Create the directory or, with ``--resume-from``, open the existing one, and lock it.

        The main rank does; the other ranks only learn whether the run is resumed. Of processes that
        share the folds of a run one begins it, and the others go on in it.

        Raises
        ------
        InputError
            It holds other results, another process writes there, or options or inputs are not those
            of the run.
        """
        path, shared = self.path, self.is_shared
        if not self.world.is_main:
            self.resumed = self.world.broadcast(None)
            yield
            return
        if not shared:
            self.check()
        path.mkdir(parents=True, exist_ok=True)
        with lock_folder(path, shared):
            with claim(path, "begin", wait=True) if shared else contextlib.nullcontext():
                if shared:
                    self.check()
                if not self.resumed:
                    self.output.begin(self.about)
                elif not shared:
                    self._resume()
            self.resumed |= shared
            self.world.broadcast(self.resumed)
            yield

    def check(self) -> None:
        """Find out whether the run is resumed, with nothing written; `InputError` as in `open`."""
        path, chosen = self.path, self.runtime.resume_from
        named = None if chosen in (None, "auto") else Path(str(chosen))
        is_here = chosen == "auto" or (named is not None and named.resolve().is_relative_to(path))
        self.resumed = is_here and (path / RUN).is_file()
        if named is not None:
            self.checkpoint = self._load_checkpoint(named)
        if self.resumed:
            check_same(read_record(path / RUN), self.about)
        else:
            self.output.check()

    @property
    def output(self) -> OutputFolder:
        """The folder, as what a new run may write to."""
        inputs = [Path(entry["path"]) for entry in self.about["inputs"].values()]
        outputs, replaces = self.about.get(LIST, ()), self.runtime.overwrite
        about_run = {EXPLANATION: "explain"}
        return OutputFolder(
            self.path, self.about["command"], outputs, inputs, replaces, about_run, True
        )

    def plan(self) -> str:
        """Description of what a run would do to the directory, for ``--dry-run``.

        Raises
        ------
        InputError
            Another process writes there, or as in `open`.
        """
        self.check()
        check_unlocked(self.path)
        if self.resumed:
            return f"the run there {'is finished' if self.is_complete() else 'would continue'}"
        removed = self.output.check()
        files, explained = len(removed), any(path.parts[0] == EXPLANATION for path in removed)
        replaced = f"the earlier run there ({files} files) would be replaced"
        replaced += f", {EXPLANATION}/ removed" if explained else ""
        state = f"{replaced}, all else there would stay" if files else "free"
        named = f", the run would continue from {self.runtime.resume_from}"
        return state + ("" if self.checkpoint is None else named)

    def _resume(self) -> None:
        """Add this call to the run.json of the earlier run."""
        before = read_record(self.path / RUN)
        remove_partial(self.path)
        if self.is_complete():
            return
        earlier = before["resumed"] if isinstance(before.get("resumed"), list) else []
        call = {name: self.about[name] for name in ("started", "versions", "commit")}
        listed = {LIST: self.about[LIST]} if LIST in self.about else {}
        record = {**before, **listed, "resumed": [*earlier, call]}
        write_text(self.path / RUN, json.dumps(record, indent=1) + "\n")

    def _load_checkpoint(self, path: Path) -> State:
        """Return the checkpoint `path`; raise `InputError` where it is not of a run like this."""
        expected = "expected auto, or the folder of a checkpoint, RUN/checkpoints/step-N"
        try:
            state = load(path)
        except InputError as error:
            problems = (f"--resume-from: {problem}; {expected}" for problem in error.problems)
            raise InputError(*problems) from None
        if not {"run", "logger", "progress"} <= state.facts.keys():
            raise InputError(f"--resume-from: {path} is not a checkpoint of a run; {expected}")
        check_same(state.facts["run"], self.about)
        return state

    def is_complete(self) -> bool:
        """Whether metrics.json, which comes last, exists and all models are undamaged."""
        folders = {path.parent for name in ("split.tsv", LAST) for path in self.path.rglob(name)}
        trained = bool(folders) and all(self.has_models(folder) for folder in folders)
        return self.resumed and (self.path / RESULTS).is_file() and trained

    def has_models(self, folder: Path) -> bool:
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
        state = self.checkpoint
        if self.world.is_main and self.resumed:
            if state is None:
                state = load_latest(folder / CHECKPOINTS)
            else:
                remove_later(Path(str(self.runtime.resume_from)))
        return broadcast_state(state, self.world)


# --- a command that trains -----------------------------------------------------------------------


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
        facts = {**plan.facts, LIST: [RUN, RESULTS, *MEMORY_FILES, *plan.outputs]}
        about = describe(name, plan.options, plan.files, facts, plan.in_memory)
        run = RunDirectory(about, runtime, signals, world)
        if runtime.dry_run:
            if world.is_main:
                folder = runtime.output_dir
                state = "not named" if folder is None else run.plan()
                place = f"output folder {folder or '(--output-dir)'}: {state}"
                print("\n".join([*plan.describe(), f"{place}; --dry-run has changed nothing"]))
            return FINISHED
        world.barrier()
        with run.open():
            if world.any(world.is_main and run.is_complete()):
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
        Prepares, from a state if given, and returns a function that trains, saves ``model`` and
        ``last``, and returns the saved model.
    load_saved : callable
        Loads what was saved before.
    """
    world = run.world
    is_trained = world.any(world.is_main and run.resumed and run.has_models(folder))
    finish = load_saved if is_trained else start(run.state(folder))
    with run.signals:
        saved = finish()
        if world.is_main:
            remove(folder / CHECKPOINTS)
    run.signals.raise_if_requested(world)
    return saved
