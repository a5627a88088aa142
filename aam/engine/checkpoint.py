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
from safetensors import SafetensorError
from torch import Tensor

from aam.device.distributed import SINGLE, World
from aam.engine.signals import Signals
from aam.errors import InputError
from aam.files.atomic import atomic_folder, read_json, remove, verify_manifest, write_manifest
from aam.files.tensors import write_tensors
from aam.options import RunConfig

log = logging.getLogger("aam")

CHECKPOINT_FORMAT = 2

# Files of a checkpoint.
FACTS, TENSORS = "state.json", "state.safetensors"
# How many of the newest checkpoints are kept while a run lasts.
KEPT = 2
# Beginnings of the names of checkpoints.
STEP_PREFIX, DAMAGED_PREFIX = "step-", "damaged-"


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
        start = f"{prefix}."
        names = sorted(name for name in self.tensors if name.startswith(start))
        return {name.removeprefix(start): self.tensors[name] for name in names}


def save(path: Path, state: State, world: World = SINGLE) -> None:
    """Write a state to the folder `path`, all of it or nothing; an `OSError` on one rank is raised
    on all.

    The main rank writes what all ranks hold together; the manifest comes last.
    """
    # Imported here: it takes a second, and only what trains saves.
    from aam.device.sharding import full_tensor

    tensors = {name: full_tensor(value) for name, value in state.tensors.items()}
    facts = {"format": CHECKPOINT_FORMAT, **state.facts, "texts": [*state.texts]}
    failed = None
    if world.is_main:
        try:
            with atomic_folder(path) as folder:
                write_tensors(tensors, folder / TENSORS)
                for name, text in {**state.texts, FACTS: json.dumps(facts) + "\n"}.items():
                    (folder / name).write_text(text, encoding="utf-8")
                write_manifest(folder)
        except OSError as error:
            failed = error
    if world.any(failed is not None):
        raise failed or OSError(f"{path}: another rank could not write")


def load(path: Path) -> State:
    """Read and verify what `save` wrote; `InputError` where it is damaged or of another format."""
    verify_manifest(path)
    facts: Any = read_json(path / FACTS)
    unreadable = f"{path}: not a checkpoint that this aam can read"
    if not isinstance(facts, dict) or facts.get("format") != CHECKPOINT_FORMAT:
        raise InputError(unreadable)
    try:
        texts = {name: (path / name).read_text(encoding="utf-8") for name in facts.pop("texts")}
        return State(safetensors.torch.load_file(path / TENSORS), facts, texts)
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{unreadable} ({error})") from error


def broadcast_state(state: State | None, world: World) -> State | None:
    """Return the state of the main rank on every rank; its texts stay on the main rank."""
    facts = None if world.size == 1 else world.broadcast(state and state.facts)
    if facts is None:
        return state
    data = world.broadcast_bytes(safetensors.torch.save(state.tensors) if state else b"")
    return state or State(safetensors.torch.load(data), facts)


def find_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints below `folder`, oldest first."""
    steps = {path: path.name.removeprefix(STEP_PREFIX) for path in folder.glob(f"{STEP_PREFIX}*")}
    return sorted((path for path in steps if steps[path].isdecimal()), key=lambda p: int(steps[p]))


def load_latest(folder: Path) -> State | None:
    """Return the newest undamaged checkpoint below `folder`; damaged ones are logged and
    renamed.
    """
    for path in reversed(find_checkpoints(folder)):
        try:
            return load(path)
        except InputError as error:  # noqa: PERF203
            log.warning("%s; the checkpoint before it is tried", "; ".join(error.problems))
            path.replace(path.with_name(f"{DAMAGED_PREFIX}{path.name}"))
    return None


def remove_later(path: Path) -> None:
    """Remove the checkpoints in the folder of `path` that are later."""
    checkpoints = find_checkpoints(path.parent)
    names = [checkpoint.name for checkpoint in checkpoints]
    for later in checkpoints[names.index(path.name) + 1 :] if path.name in names else ():
        log.warning("%s: removed, the run goes back before it", later)
        remove(later)


# What a rank wishes that caught a signal; 1 is that of a rank for which it is time to save.
URGENT = 2


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

    def maybe_save(
        self, step: int, make_state: Callable[[], State], agree: Callable[[int], int] | None = None
    ) -> None:
        """Save the state after `step` steps, if it is time.

        `agree` returns the largest of the ranks' numbers, now or some steps later
        (`Trainer.agree`).

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
        agree = agree or self.world.all_reduce_max
        urgency = agree(URGENT if self.signals.caught else int(is_due))
        if not urgency:
            return
        path, state = self.folder / f"{STEP_PREFIX}{step}", make_state()
        try:
            save(path, state, self.world)
        except OSError as error:
            if urgency == URGENT:
                raise
            newest = max(map(str, find_checkpoints(self.folder)[-1:]), default="none")
            text = "%s: not saved (%s); training continues, the last complete checkpoint: %s"
            log.warning(text, path, error, newest)
        else:
            for checkpoint in find_checkpoints(self.folder)[:-KEPT] if self.world.is_main else ():
                if checkpoint != path:
                    remove(checkpoint)
        self.last_save = time.monotonic()
        if urgency == URGENT:
            self.signals.call_again(f", {path} is saved")
