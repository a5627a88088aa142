"""A run of a command that trains: its run.json, its folder, its ranks, its signals, and how it is
resumed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

import aam
from aam.device.distributed import SINGLE, World, process_group
from aam.device.environment import is_rank
from aam.device.probe import check_alike
from aam.engine.checkpoint import FACTS, State, broadcast_state, load, load_latest, remove_later
from aam.engine.logger import METRICS, Record, flatten
from aam.engine.signals import Signals
from aam.errors import InputError
from aam.files.atomic import (
    MANIFEST,
    bytes_of,
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
from aam.options import IN_MEMORY, RunConfig, check, names, spelled, to_dict

log = logging.getLogger("aam")

FoldValue = TypeVar("FoldValue")

# Seconds between looks at the folds of other processes.
WAIT = 1.0

# Environment variables: the container image, and that processes share the folds of one run.
IMAGE, SHARE_VARIABLE = "AAM_IMAGE", "AAM_SHARE_FOLDS"
# In the directory of a run: its checkpoints, and its results, which are written last.
CHECKPOINTS, RESULTS = "checkpoints", "metrics.json"
# Folders of the best and of the last weights of a task.
MODEL, LAST = "model", "last"


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


def describe(
    command: str,
    options: Record,
    files: Mapping[str, Path],
    facts: Record,
    outputs: Sequence[str] | None = None,
    in_memory: Mapping[str, str] | None = None,
) -> Record:
    """Content of run.json: the command, resolved options, versions, machine, checksums and sizes
    of the inputs, and `facts`.

    Inputs are `files`, and those `in_memory`, whose checksums are given, by option. A command that
    trains has the names of `outputs` that it may write, next to those of every run.
    """
    inputs: dict[str, Record] = {
        name: {"path": str(path), "bytes": bytes_of(path), "sha256": _digest(path)}
        for name, path in files.items()
    }
    for name, digest in (in_memory or {}).items():
        inputs[name] = {"path": str(IN_MEMORY), "sha256": digest}
    versions = {"aam": aam.__version__, "torch": torch.__version__, "numpy": np.__version__}
    versions["scikit-learn"] = metadata.version("scikit-learn")
    listed = {} if outputs is None else {LIST: [RUN, RESULTS, *MEMORY_FILES, *outputs]}
    return {
        "command": command,
        "config": options,
        "inputs": inputs,
        "versions": {**versions, "python": platform.python_version()},
        "commit": code_commit(),
        "image": os.environ.get(IMAGE),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        **to_dict(facts),
        **listed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def differences(first: Record, second: Record) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ between two run.json, by dotted name.

    Times, paths and sizes of inputs with the same content, and paths of output are left out.
    """
    old, new = flatten(first), flatten(second)
    left_out = {"started", "resumed", LIST}
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
        if f"config.runtime.{name}" in changes:
            # A fact such as the number of threads follows from its option.
            continue
        section = name.split(".")[0]
        shown = spelled(name.rpartition(".")[2]) if section == "config" else name
        has_meaning = section in ("config", "inputs") or name in ("command", "depth")
        if has_meaning and name not in last_bits:
            advice = "give what it was, or choose another --output-dir"
            values = ("unset" if value is None else repr(value) for value in (old, new))
            problems.append(f"{shown} was {' and is '.join(values)}; {advice}")
        else:
            text = "%s was %s and is %s: the rest of the run may differ in the last bits"
            log.warning(text, shown, *("unset" if value is None else value for value in (old, new)))
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


# --- the run -------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_run(config: Any) -> Iterator[Run]:
    """Join the ranks of a run with the options `config`, and handle its signals, while the context
    lasts. A command that trains takes these steps::

        with open_run(config) as run:
            ...                                        # read and check the inputs
            run.begin(record)                          # create or resume the folder, and lock it
            for folder, fold in run.unfinished(folds):
                with run.training(folder, title) as training:
                    ...                                # from training.state on; save the model
            ...                                        # evaluate; write metrics.json at the end

    A run is resumed in two places: `unfinished` leaves out the folds whose models exist, and
    `training` gives the newest checkpoint of a fold that was interrupted.

    Raises
    ------
    CallAgain
        A signal arrived; the state is saved.
    """
    runtime = config.runtime
    with Signals() as signals, process_group(runtime) as world, contextlib.ExitStack() as stack:
        if is_rank(runtime):
            check(config)
        check_alike(runtime.device, world)
        yield Run(runtime, signals, world, stack)


@dataclass(frozen=True, eq=False)
class TrainingFolder:
    """The folder of one training of a run: of the only one, or of a fold.

    Attributes
    ----------
    run : Run
    path : Path
        Holds the metrics, the checkpoints and the models.
    title : str
        Name of the training in the log.
    state : State, optional
        The checkpoint from which the training continues.
    """

    run: Run
    path: Path
    title: str
    state: State | None = None


@dataclass(eq=False)
class Run:
    """A run while it lasts; `open_run` makes it.

    Attributes
    ----------
    runtime : RunConfig
    signals : Signals
    world : World
        The ranks that train together.
    stack : ExitStack
        Releases the locks of the run at its end.
    record : dict
        Content of its run.json, from `begin` on.
    resumed : bool
        Whether the folder held this run before.
    checkpoint : State, optional
        That of ``--resume-from``, if a folder is named there.
    """

    runtime: RunConfig
    signals: Signals
    world: World = SINGLE
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    record: Record = field(default_factory=dict)
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
        return bool(os.environ.get(SHARE_VARIABLE))

    # --- the steps of a run, in their order ---

    def print_plan(self, record: Record, lines: Sequence[str] = ()) -> None:
        """Print what the run would do, for ``--dry-run``: `lines`, and what becomes of its folder.

        Raises
        ------
        InputError
            Another process writes there, or as in `begin`.
        """
        if not self.world.is_main:
            return
        self.record, folder = record, self.runtime.output_dir
        plan = "not named" if folder is None else self._plan()
        place = f"output folder {folder or '(--output-dir)'}: {plan}"
        print("\n".join([*lines, f"{place}; --dry-run has changed nothing"]))

    def begin(self, record: Record) -> None:
        """Create the folder with this run.json or, with ``--resume-from``, open the existing one;
        lock it to the end of the run.

        The main rank does; the other ranks only learn whether the run is resumed. Of processes that
        share the folds of a run one begins it, and the others go on in it.

        Raises
        ------
        InputError
            It holds other results, another process writes there, or options or inputs are not those
            of the run.
        """
        self.record = record
        self.world.barrier()
        if not self.world.is_main:
            self.resumed = self.world.broadcast(None)
            return
        path, shared = self.path, self.is_shared
        if not shared:
            self._check()
        path.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(lock_folder(path, shared))
        with claim(path, "begin", wait=True) if shared else contextlib.nullcontext():
            if shared:
                self._check()
            if not self.resumed:
                self.output.begin(self.record)
            elif not shared:
                self._resume()
        self.resumed |= shared
        self.world.broadcast(self.resumed)

    def is_finished(self) -> bool:
        """Whether nothing is left to do, which is logged; all ranks must call it."""
        finished = self.world.any(self.world.is_main and self.is_complete())
        if finished:
            log.info("%s: finished already", self.path)
        return finished

    def unfinished(self, folds: Mapping[Path, FoldValue]) -> Iterator[tuple[Path, FoldValue]]:
        """Yield the folds, by folder, whose models do not exist yet; the caller fits them.

        Processes that share the run fit different folds, and wait for those of the others.
        """
        waiting = dict(folds)
        while waiting:
            before = len(waiting)
            for folder, fold in list(waiting.items()):
                shared = claim(folder, "fold") if self.is_shared else contextlib.nullcontext(True)
                with shared as is_claimed:
                    if not is_claimed:
                        continue
                    del waiting[folder]
                    if not self._is_trained(folder):
                        yield folder, fold
            if len(waiting) == before:
                self.signals.raise_if_requested(self.world)
                time.sleep(WAIT)

    @contextlib.contextmanager
    def training(self, folder: Path, title: str) -> Iterator[TrainingFolder]:
        """Train in `folder`, which gets the models while the context lasts; from its newest
        checkpoint if there is one. Checkpoints are removed at the end.

        A signal ends the training after its step, with its state saved.
        """
        training = TrainingFolder(self, folder, title, self._state(folder))
        with self.signals:
            yield training
            self._remove_checkpoints(folder)
        self.signals.raise_if_requested(self.world)

    def reports(self) -> bool:
        """Whether this process writes the results: the main rank and, of processes that share the
        run, the first one. The others wait for it.
        """
        if self.world.is_main and self.is_shared:
            self.stack.enter_context(claim(self.path, "report", wait=True))
            return not (self.path / RESULTS).is_file()
        return self.world.is_main

    def write_results(self, results: Record) -> None:
        """Write metrics.json, which says that the run is finished."""
        if self.world.is_main:
            write_text(self.path / RESULTS, json.dumps(results, indent=1) + "\n")

    # --- the folder ---

    def _check(self) -> None:
        """Find out whether the run is resumed, with nothing written; `InputError` as in `begin`."""
        path, chosen = self.path, self.runtime.resume_from
        source = None if chosen in (None, "auto") else Path(str(chosen))
        is_here = chosen == "auto" or (source is not None and source.resolve().is_relative_to(path))
        self.resumed = is_here and (path / RUN).is_file()
        if source is not None:
            self.checkpoint = self._load_checkpoint(source)
        if self.resumed:
            check_same(read_record(path / RUN), self.record)
        else:
            self.output.check()

    @property
    def output(self) -> OutputFolder:
        """The folder, as what a new run may write to."""
        inputs = [Path(entry["path"]) for entry in self.record["inputs"].values()]
        outputs, replaces = self.record.get(LIST, ()), self.runtime.overwrite
        return OutputFolder(self.path, self.record["command"], outputs, inputs, replaces, True)

    def _plan(self) -> str:
        """What the run would do to the folder."""
        self._check()
        check_unlocked(self.path)
        if self.resumed:
            return f"the run there {'is finished' if self.is_complete() else 'would continue'}"
        removed = self.output.check()
        plan = "free"
        if removed:
            plan = f"the earlier run there ({len(removed)} files) would be replaced"
        if self.checkpoint is not None:
            plan += f", the run would continue from {self.runtime.resume_from}"
        return plan

    def _resume(self) -> None:
        """Add this call to the run.json of the earlier run."""
        before = read_record(self.path / RUN)
        remove_partial(self.path)
        if self.is_complete():
            return
        earlier = before["resumed"] if isinstance(before.get("resumed"), list) else []
        call = {name: self.record[name] for name in ("started", "versions", "commit")}
        listed = {LIST: self.record[LIST]} if LIST in self.record else {}
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
        check_same(state.facts["run"], self.record)
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

    def _is_trained(self, folder: Path) -> bool:
        """Whether the models of a fold exist, whose checkpoints are then removed; all ranks must
        call it.
        """
        trained = self.world.any(self.world.is_main and self.resumed and self.has_models(folder))
        if trained:
            self._remove_checkpoints(folder)
        return trained

    def _remove_checkpoints(self, folder: Path) -> None:
        if self.world.is_main:
            remove(folder / CHECKPOINTS)

    def _state(self, folder: Path) -> State | None:
        """The state to resume training in `folder` from, if any; all ranks must call it."""
        state = self.checkpoint
        if self.world.is_main and self.resumed:
            if state is None:
                state = load_latest(folder / CHECKPOINTS)
            else:
                remove_later(Path(str(self.runtime.resume_from)))
        return broadcast_state(state, self.world)
