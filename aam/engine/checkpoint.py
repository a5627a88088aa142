"""Checkpoints: saved all or nothing (`files/atomic.py: put_folder`), verified when loaded, found,
removed when old.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from aam.device.distributed import SINGLE, World
from aam.engine.options import RunConfig
from aam.engine.signals import Signals
from aam.errors import InputError
from aam.files.atomic import atomic_folder, read_json, remove, verify_manifest, write_manifest
from aam.files.tensors import write_tensors

log = logging.getLogger("aam")

FORMAT = 2

# Files of a checkpoint.
FACTS = "state.json"
TENSORS = "state.safetensors"

# How many of the newest checkpoints are kept while a run lasts.
KEPT = 2

# Beginnings of the names of checkpoints.
STEP = "step-"
DAMAGED = "damaged-"


@dataclass(frozen=True, eq=False)
class State:
    """The state of a run: tensors by name, facts that JSON can hold, and texts that are written as
    separate files.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    texts: dict[str, str] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `prefix` and a dot, without it, sorted by
        name.
        """
        return {
            n[len(prefix) + 1 :]: self.tensors[n]
            for n in sorted(self.tensors)
            if n.startswith(f"{prefix}.")
        }


def save(path: Path, state: State, world: World = SINGLE) -> None:
    """Write a state to the folder `path`, all of it or nothing; an `OSError` on one rank is raised
    on all.

    The main rank writes what all ranks hold together.
    """
    # Imported here: it takes a second, and only what trains saves.
    from aam.device.sharding import full_tensor

    tensors = {name: full_tensor(value) for name, value in state.tensors.items()}
    failed = None
    if world.is_main:
        try:
            with atomic_folder(path) as folder:
                write_tensors(tensors, folder / TENSORS)
                _write_description(folder, state)
        except OSError as error:
            failed = error
    if world.any(failed is not None):
        raise failed or OSError(f"{path}: another rank could not write")


def _write_description(folder: Path, state: State) -> None:
    """Write everything but the tensors, the manifest last."""
    for name, text in state.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    facts = {"format": FORMAT, **state.facts, "texts": [*state.texts]}
    (folder / FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    write_manifest(folder)


def load(path: Path) -> State:
    """Read and verify what `save` wrote; `InputError` where it is damaged or of another format."""
    verify_manifest(path)
    facts: Any = read_json(path / FACTS)
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise InputError(f"{path}: not a checkpoint that this aam can read")
    try:
        texts = {name: (path / name).read_text(encoding="utf-8") for name in facts.pop("texts")}
        return State(safetensors.torch.load_file(path / TENSORS), facts, texts)
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        safetensors.SafetensorError,
    ) as error:
        raise InputError(f"{path}: not a checkpoint that this aam can read ({error})") from error


def broadcast_state(state: State | None, world: World) -> State | None:
    """Return the state that the main rank read on every rank; its texts stay on the main rank."""
    if world.size == 1:
        return state
    facts = world.broadcast(b"" if state is None else json.dumps(state.facts).encode())
    tensors = world.broadcast(b"" if state is None else safetensors.torch.save(state.tensors))
    if not facts:
        return None
    return State(
        safetensors.torch.load(tensors), json.loads(facts), {} if state is None else state.texts
    )


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints below `folder`, oldest first."""
    steps = {path: path.name.removeprefix(STEP) for path in folder.glob(f"{STEP}*")}
    return sorted(
        (path for path, step in steps.items() if step.isdigit()), key=lambda path: int(steps[path])
    )


def load_latest(folder: Path) -> State | None:
    """Return the newest undamaged checkpoint below `folder`; damaged ones are logged and
    renamed.
    """
    for path in reversed(find_checkpoints(folder)):
        if (state := _load_or_rename(path)) is not None:
            return state
    return None


def _load_or_rename(path: Path) -> State | None:
    try:
        return load(path)
    except InputError as error:
        log.warning("%s; the checkpoint before it is tried", "; ".join(error.problems))
        path.replace(path.with_name(f"{DAMAGED}{path.name}"))
        return None


def remove_later(path: Path) -> None:
    """Remove the checkpoints in the folder of `path` that are later."""
    checkpoints = find_checkpoints(path.parent)
    names = [checkpoint.name for checkpoint in checkpoints]
    for later in checkpoints[names.index(path.name) + 1 :] if path.name in names else ():
        log.warning("%s: removed, the run goes back before it", later)
        remove(later)


@dataclass(eq=False)
class CheckpointManager:
    """Writes ``folder/step-N`` every ``--checkpoint-minutes`` and when a signal came, and keeps the
    newest ones.

    After a signal `CallAgain` is raised, on all ranks together.
    """

    folder: Path
    runtime: RunConfig
    signals: Signals
    world: World = SINGLE
    last_save: float = field(default_factory=time.monotonic)

    def maybe_save(self, step: int, make_state: Callable[[], State]) -> None:
        """Save the state after `step` steps, if it is time.

        Raises
        ------
        CallAgain
            After a signal; the state is saved.
        OSError
            After a signal, when the state could not be saved; at other times that is logged and
            training goes on.
        """
        seconds = time.monotonic() - self.last_save
        is_due = self.world.is_main and seconds >= 60 * self.runtime.checkpoint_minutes
        urgency = self.world.all_reduce_max(2 if self.signals.caught else int(is_due))
        if not urgency:
            return
        path = self.folder / f"{STEP}{step}"
        state = make_state()
        try:
            save(path, state, self.world)
        except OSError as error:
            if urgency > 1:
                raise
            last = max(map(str, find_checkpoints(self.folder)[-1:]), default="none")
            log.warning(
                "%s: not saved (%s); training continues, the last complete checkpoint: %s",
                path,
                error,
                last,
            )
        else:
            self._remove_old(path)
        self.last_save = time.monotonic()
        if urgency > 1:
            self.signals.call_again(f", {path} is saved")

    def _remove_old(self, newest: Path) -> None:
        for old in find_checkpoints(self.folder)[:-KEPT] if self.world.is_main else ():
            if old != newest:
                remove(old)
