"""The directory of a run: created, locked, and resumed."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aam.device.distributed import SINGLE, World
from aam.engine.checkpoint import State, broadcast_state, load, load_latest, remove_later
from aam.engine.options import RunConfig
from aam.engine.run_record import CHECKPOINTS, Record, check_same, read_record
from aam.engine.signals import Signals
from aam.errors import InputError
from aam.files.atomic import remove, remove_partial, verify_manifest, write_text
from aam.files.output_folder import LIST, RUN, OutputFolder, check_unlocked, lock_folder
from aam.options import given

log = logging.getLogger("aam")


# What `aam explain` puts beside the report of a run; it explains that run and no later one.
EXPLANATION = "explanation"


def output_folder(folder: Path, about: Record, overwrite: bool, reserved: tuple[str, ...] = ()) -> OutputFolder:
    """Return the folder of what `about` describes, with the names that it lists as outputs and the files it reads."""
    inputs = [Path(entry["path"]) for entry in about["inputs"].values()]
    return OutputFolder(folder, about["command"], about.get(LIST, ()), inputs, overwrite, reserved)


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
                run.output.begin(about)
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
            run.output.check()
        return run

    @property
    def output(self) -> OutputFolder:
        """The folder, as what a new run may write to."""
        return output_folder(self.path, self.about, self.runtime.overwrite, (EXPLANATION,))

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
        if not (removed := self.output.check()):
            return "free" + after
        return f"the earlier run there ({len(removed)} files) would be replaced, all else there would stay{after}"

    def _resume(self) -> None:
        """Add this call to the run.json of the earlier run."""
        before = read_record(self.path / RUN)
        remove_partial(self.path)
        if not self._is_complete():
            earlier = before["resumed"] if isinstance(before.get("resumed"), list) else []
            resumed = [*earlier, {name: self.about[name] for name in ("started", "versions", "commit")}]
            listed = {LIST: self.about[LIST]} if LIST in self.about else {}
            write_text(self.path / RUN, json.dumps({**before, **listed, "resumed": resumed}, indent=1) + "\n")

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
