"""Checkpoints: written whole, verified when read, the newest found."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from aam.engine.options import RunConfig
from aam.engine.signals import ELSEWHERE, Signals
from aam.errors import CallAgain, InputError
from aam.runtime.distributed import SINGLE, World, full_tensor, local_shards
from aam.runtime.files import read_json, remove, verify_manifest, whole_folder, write_manifest

log = logging.getLogger("aam")

FORMAT = 1


FACTS, TENSORS, SHARD = "state.json", "state.safetensors", "shard-{}.safetensors"

STEP, DAMAGED = "step-", "damaged-"

# All records of the losses are in a state; two million steps write 64 MiB of them.
MOST_FACTS = 1 << 30


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors on the host; a disk that refuses is an `OSError`, as for every other file."""
    try:
        # Clones: safetensors refuses tensors that share memory.
        safetensors.torch.save_file({n: t.detach().cpu().clone().contiguous() for n, t in tensors.items()}, path)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    # It writes for its owner alone; who may read the folder may read what is in it.
    path.chmod(path.parent.stat().st_mode & 0o666)


@dataclass(frozen=True, eq=False)
class State:
    """One moment of training: tensors by name, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, by the rest of their names, which are sorted."""
        return {n[len(prefix) + 1 :]: self.tensors[n] for n in sorted(self.tensors) if n.startswith(f"{prefix}.")}


def save(path: Path, state: State, world: World = SINGLE, sharded: bool = False) -> None:
    """Write a state to the folder `path`, whole or not at all; an `OSError` on one rank is one on all.

    The leading rank writes, or with `sharded` each rank its own part of the tensors.
    """
    failed = None
    tensors = state.tensors if sharded else {name: full_tensor(value) for name, value in state.tensors.items()}
    try:
        if sharded:
            _write_shards(path, state, world)
        elif world.is_main:
            with whole_folder(path) as folder:
                write_tensors(tensors, folder / TENSORS)
                _seal(folder, state.facts)
    except OSError as error:
        failed = error
    if world.any(failed is not None):
        raise failed or OSError(f"{path}: another rank could not write")


def _seal(folder: Path, facts: dict[str, Any]) -> None:
    (folder / FACTS).write_text(json.dumps({"format": FORMAT, **facts}) + "\n", encoding="utf-8")
    write_manifest(folder)


def _write_shards(path: Path, state: State, world: World) -> None:
    """One file of each rank in a folder that the leading rank makes, and renames when all are written."""
    own, folder, failed = local_shards(state.tensors, world), b"", None
    with contextlib.ExitStack() as stack:
        if world.is_main:
            try:
                folder = os.fsencode(stack.enter_context(whole_folder(path)))
            except OSError as error:
                failed = error
        folder = world.broadcast(folder)
        try:
            if folder:
                write_tensors(own, Path(os.fsdecode(folder)) / SHARD.format(world.rank))
        except OSError as error:
            failed = error
        if world.any(failed is not None):
            raise failed or OSError(f"{path}: another rank could not write")
        if world.is_main:
            shapes = {name: list(value.shape) for name, value in state.tensors.items()}
            _seal(Path(os.fsdecode(folder)), {**state.facts, "shards": {"ranks": world.size, "shapes": shapes}})


def load(path: Path) -> State:
    """Read and verify what `write_state` wrote; `InputError` where it is damaged or of another format."""
    verify_manifest(path)
    facts: Any = read_json(path / FACTS, MOST_FACTS)
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise InputError(f"{path}: not a checkpoint that this aam can read")
    try:
        if "shards" not in facts:
            return State(safetensors.torch.load_file(path / TENSORS), facts)
        layout = facts.pop("shards")
        files = [safetensors.torch.load_file(path / SHARD.format(rank)) for rank in range(layout["ranks"])]
        tensors = {
            name: torch.cat([file[name] for file in files if name in file]) if shape else files[0][name]
            for name, shape in layout["shapes"].items()
        }
        return State(tensors, facts)
    except (OSError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: not a checkpoint that this aam can read ({error})") from error


def broadcast_state(state: State | None, world: World) -> State | None:
    """The state that the leading rank read, on every rank."""
    if world.size == 1:
        return state
    facts = world.broadcast(b"" if state is None else json.dumps(state.facts).encode())
    tensors = world.broadcast(b"" if state is None else safetensors.torch.save(state.tensors))
    return State(safetensors.torch.load(tensors), json.loads(facts)) if facts else None


def latest_checkpoint(folder: Path) -> State | None:
    """The newest whole checkpoint below `folder`; damaged ones are named, passed over, and no longer counted."""
    for path in reversed(find_checkpoints(folder)):
        if (state := _read_or_set_aside(path)) is not None:
            return state
    return None


def _read_or_set_aside(path: Path) -> State | None:
    try:
        return load(path)
    except InputError as error:
        log.warning("%s; the checkpoint before it is tried", "; ".join(error.problems))
        path.replace(path.with_name(f"{DAMAGED}{path.name}"))
        return None


def remove_later(path: Path) -> None:
    """Remove the checkpoints beside `path` that are later: the run goes back."""
    later = False
    for other in find_checkpoints(path.parent):
        if later:
            log.warning("%s: removed, the run goes back before it", other)
            remove(other)
        later = later or other.name == path.name


def find_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints below `folder`, oldest first."""
    numbers = {path: path.name.removeprefix(STEP) for path in folder.glob(f"{STEP}*")}
    return sorted((path for path, number in numbers.items() if number.isdigit()), key=lambda path: int(numbers[path]))


@dataclass(eq=False)
class CheckpointManager:
    """Decides at each safe moment of the loop whether to save, and keeps the newest checkpoints.

    One is written to ``folder/step-N`` every `minutes`, and when a signal came; then `CallAgain` is raised, on all
    ranks together.
    """

    folder: Path
    runtime: RunConfig
    signals: Signals
    world: World = SINGLE
    saved: float = field(default_factory=time.monotonic)

    def offer(self, step: int, state: Callable[[], State]) -> None:
        """Take the state after `step` steps, if it is time.

        Raises
        ------
        CallAgain
            After a signal; the state is saved.
        OSError
            After a signal, when the state could not be saved; at other times that is logged and training goes on.
        """
        caught, waited = self.signals.caught, time.monotonic() - self.saved
        asked = self.world.all_reduce_max(
            2 if caught else int(self.world.is_main and waited >= 60 * self.runtime.checkpoint_minutes)
        )
        if not asked:
            return
        if asked > 1:
            caught = caught or ELSEWHERE
        path, now = self.folder / f"{STEP}{step}", state()
        try:
            save(path, now, self.world, self.runtime.fsdp_sharded_checkpoint)
        except OSError as error:
            if caught:
                raise
            last = max(map(str, find_checkpoints(self.folder)[-1:]), default="none")
            log.warning("%s: not saved (%s); training goes on, the last whole checkpoint: %s", path, error, last)
        else:
            for old in find_checkpoints(self.folder)[: -self.runtime.keep_checkpoints] if self.world.is_main else ():
                if old != path:
                    remove(old)
        self.saved = time.monotonic()
        if caught:
            raise CallAgain(f"{caught} came, {path} is saved")
