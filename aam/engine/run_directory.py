"""The directory of a run: created, locked, and resumed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aam.device.distributed import SINGLE, World
from aam.device.files import PARTIAL, REPLACED, check_writable, remove, remove_partial, write_text
from aam.device.folder_lock import LOCK, check_unlocked, lock_folder
from aam.device.manifest import verify_manifest
from aam.engine.checkpoint import State, broadcast_state, load, load_latest, remove_later
from aam.engine.options import RunConfig
from aam.engine.run_record import CHECKPOINTS, RUN, Record, check_same, read_record
from aam.engine.signals import Signals
from aam.errors import InputError, shown
from aam.options import given

log = logging.getLogger("aam")


# Each folder of results of aam has at least one of these.
RESULTS = ("metrics.jsonl", "predictions.tsv", "metrics.json", "samples.tsv", "samples.npy", "run.json")

HIDDEN = (LOCK, PARTIAL, REPLACED)


def _entries(folder: Path) -> list[Path]:
    """Return what a folder holds, without what `aam` keeps for itself; nothing where there is no folder."""
    return [path for path in folder.iterdir() if not path.name.startswith(HIDDEN)] if folder.exists() else []


def check_output(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds other files, or results of aam unless these are to be replaced."""
    check_writable(folder, overwrite=True)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output-dir: {folder} is a file, expected a folder")
    if folder.is_dir() and not os.access(folder, os.W_OK):
        raise InputError(f"--output-dir: no permission to write in {folder}")
    if not _entries(folder):
        return
    if not any((folder / name).exists() for name in (*RESULTS, CHECKPOINTS)):
        raise InputError(f"--output-dir: {folder} holds files, none of them of aam, and is left alone; choose another")
    if not overwrite:
        raise InputError(
            f"--output-dir: {folder} holds results already; choose another folder, pass --overwrite, or go on with "
            "a run that was ended by --resume-from auto"
        )


def check_inputs_outside(folder: Path, inputs: Record) -> None:
    """Raise `InputError` where inputs of a run would be removed with the earlier run in `folder`."""
    inside = [entry["path"] for entry in inputs.values() if Path(entry["path"]).resolve().is_relative_to(folder)]
    if inside:
        raise InputError(f"--overwrite would delete what the run reads: {shown(inside)}; choose another --output-dir")


def remove_earlier_run(folder: Path, inputs: Record) -> None:
    """Remove an earlier run, its results last; raise `InputError` where an input would be removed too."""
    check_inputs_outside(folder, inputs)
    for path in sorted(folder.iterdir(), key=lambda path: path.name in RESULTS):
        if path.name != LOCK:
            remove(path)


@dataclass(eq=False)
class RunDirectory:
    """The directory of a run while it lasts, with the content of its run.json, and whether the run is resumed."""

    path: Path
    about: Record
    runtime: RunConfig
    signals: Signals
    resumed: bool
    world: World = SINGLE
    checkpoint: State | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, about: Record, runtime: RunConfig, signals: Signals, world: World = SINGLE) -> Iterator[RunDirectory]:
        """Create the directory or, with ``--resume-from``, open the existing one, and lock it.

        The main rank does; the other ranks only learn whether the run is resumed.

        Raises
        ------
        InputError
            It holds other results, another process writes there, or options or inputs are not those of the run.
        """
        if not world.is_main:
            yield cls(given(runtime.output_dir).resolve(), about, runtime, signals, bool(world.broadcast(b"")), world)
            return
        run = cls.check(about, runtime, signals, world)
        run.path.mkdir(parents=True, exist_ok=True)
        with lock_folder(run.path):
            if run.resumed:
                run._resume()
            else:
                remove_earlier_run(run.path, about["inputs"])
                write_text(run.path / RUN, json.dumps(about, indent=1) + "\n")
            world.broadcast(b"resumed" if run.resumed else b"")
            yield run

    @classmethod
    def check(cls, about: Record, runtime: RunConfig, signals: Signals, world: World = SINGLE) -> RunDirectory:
        """Return the directory as `open` finds it, with nothing written; `InputError` as there."""
        if runtime.output_dir is None:
            raise InputError("--output-dir: not given")
        path = runtime.output_dir.resolve()
        chosen = runtime.resume_from
        resumes_here = chosen == "auto" or (chosen is not None and Path(chosen).resolve().is_relative_to(path))
        run = cls(path, about, runtime, signals, resumes_here and (path / RUN).is_file(), world)
        if chosen not in (None, "auto"):
            run.checkpoint = run._load_checkpoint(Path(str(chosen)))
        if run.resumed:
            check_same(read_record(path / RUN), about)
        else:
            check_output(path, runtime.overwrite)
            check_inputs_outside(path, about["inputs"])
        return run

    def plan(self) -> str:
        """Return what a run would do to the directory, for ``--dry-run``.

        Raises
        ------
        InputError
            Another process writes there.
        """
        check_unlocked(self.path)
        if self.resumed:
            return "the run there is finished" if self._is_complete() else "the run there would go on"
        after = "" if self.checkpoint is None else f", the run would go on from {self.runtime.resume_from}"
        return ("everything there would be replaced" if _entries(self.path) else "free") + after

    def _resume(self) -> None:
        """Add this call to the run.json of the earlier run."""
        before = read_record(self.path / RUN)
        remove_partial(self.path)
        if not self._is_complete():
            earlier = before["resumed"] if isinstance(before.get("resumed"), list) else []
            resumed = [*earlier, {name: self.about[name] for name in ("started", "versions", "commit")}]
            write_text(self.path / RUN, json.dumps({**before, "resumed": resumed}, indent=1) + "\n")

    def _load_checkpoint(self, path: Path) -> State:
        """Return the checkpoint `path`; raise `InputError` where it is not of a run like this."""
        try:
            state = load(path)
        except InputError as error:
            expected = "expected auto, or the folder of a checkpoint, RUN/checkpoints/step-N"
            raise InputError(*(f"--resume-from: {problem}; {expected}" for problem in error.problems)) from None
        if not {"run", "logger", "progress"} <= state.facts.keys():
            raise InputError(f"--resume-from: {path} is no checkpoint of a run; expected RUN/checkpoints/step-N")
        check_same(state.facts["run"], self.about)
        return state

    @property
    def finished(self) -> bool:
        """Whether all files of a run exist and are undamaged, as the main rank sees it; metrics.json comes last."""
        return self.world.any(self.world.is_main and self._is_complete())

    def _is_complete(self) -> bool:
        folders = {path.parent for name in ("split.tsv", "last") for path in self.path.rglob(name)}
        trained = folders and all(self._has_models(folder) for folder in folders)
        return bool(self.resumed and (self.path / "metrics.json").is_file() and trained)

    def _has_models(self, folder: Path) -> bool:
        """Return whether the models of a fold exist and are undamaged: without a network there are no last weights."""
        try:
            verify_manifest(folder / "model")
            if (folder / "last").exists():
                verify_manifest(folder / "last")
        except InputError as error:
            if (folder / "model").exists():
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
        """Return whether a fold was trained before the run was interrupted; its checkpoints are then removed."""
        if not self.resumed or not self._has_models(folder):
            return False
        remove(folder / CHECKPOINTS)
        return True
