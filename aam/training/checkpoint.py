"""What training saves: models to use and checkpoints to go on from, folders of data only, whole and verified."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

import aam
from aam.config import DataConfig, FineTuneConfig, ModelConfig, RunConfig
from aam.config_file import from_dict, to_dict
from aam.data.batch import RegionProfile
from aam.data.supervision import Covariates
from aam.data.targets import Targets
from aam.errors import FAILED, WARNINGS, CallAgain, InputError, shown
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.runtime.distributed import ALONE, World, own_parts, whole
from aam.runtime.files import MANIFEST, read_json, remove, verify_manifest, whole_folder, write_manifest

log = logging.getLogger("aam")

FORMAT = 1
DESCRIPTION, WEIGHTS, PROFILE = "model.json", "weights.safetensors", "profile.safetensors"
FACTS, TENSORS, SHARD = "state.json", "state.safetensors", "shard-{}.safetensors"
STEP, DAMAGED = "step-", "damaged-"
# All records of the losses are in a state; two million steps write 64 MiB of them.
MOST_FACTS = 1 << 30
RETRAIN = (
    " (a .pt file of the predecessor, or .ckpt, cannot be loaded: retrain with `aam pretrain --table TABLE --tree TREE "
    "--output-dir PRE`, then `aam train --metadata-column COLUMN --pretrained-encoder PRE`)"
)
ELSEWHERE = "a signal to another rank"


@dataclass(frozen=True)
class SavedModel:
    """What `aam predict` needs: the network, how its input is drawn, its targets and its training ASVs."""

    network: Aam
    data: DataConfig
    model: ModelConfig
    heads: HeadConfig
    depth: int
    seed: int
    targets: Targets
    profile: RegionProfile
    notes: dict[str, Any]
    covariates: Covariates = field(default_factory=Covariates)


def _write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors on the host; a disk that refuses is an `OSError`, as for every other file."""
    try:
        # Clones: safetensors refuses tensors that share memory.
        safetensors.torch.save_file({n: t.detach().cpu().clone().contiguous() for n, t in tensors.items()}, path)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    # It writes for its owner alone; who may read the folder may read what is in it.
    path.chmod(path.parent.stat().st_mode & 0o666)


def save_model(path: Path, saved: SavedModel) -> None:
    """Write `saved` to the folder `path`, whole or not at all."""
    description = {
        "format": FORMAT,
        "version": aam.__version__,
        "torch": torch.__version__,
        "data": to_dict(saved.data),
        "model": to_dict(saved.model),
        "heads": to_dict(saved.heads),
        "depth": saved.depth,
        "seed": saved.seed,
        "targets": saved.targets.to_json(),
        "covariates": saved.covariates.to_json(),
        "notes": saved.notes,
    }
    with whole_folder(path) as folder:
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        _write_tensors(saved.network.state_dict(), folder / WEIGHTS)
        profile = {name: torch.from_numpy(np.asarray(value)) for name, value in saved.profile.to_arrays().items()}
        _write_tensors(profile, folder / PROFILE)
        write_manifest(folder)


def load_model(path: Path, device: torch.device) -> SavedModel:
    """Read and verify a model folder.

    Raises
    ------
    InputError
        `path` is no model folder, is damaged, or was written by a newer aam.
    """
    if not (path / MANIFEST).is_file():
        raise InputError(f"{path}: no {MANIFEST}; expected a model folder, such as RUN/model{RETRAIN}")
    if not (path / DESCRIPTION).is_file() and (members := _members(path)):
        raise InputError(f"{path}: holds {len(members)} models, expected one; name one of them, such as {members[0]}")
    verify_manifest(path)
    try:
        description: Any = read_json(path / DESCRIPTION)
        if description["format"] != FORMAT:
            raise InputError(f"{path}: model format {description['format']}, this aam reads {FORMAT}")
        model = from_dict(FineTuneConfig().model, description["model"], str(path))
        heads = from_dict(HeadConfig(), description["heads"], str(path))
        network = Aam(model, description["depth"], heads)
        network.load_state_dict(safetensors.torch.load_file(path / WEIGHTS))
        profile = safetensors.numpy.load_file(path / PROFILE)
        return SavedModel(
            network=network.to(device).eval(),
            data=from_dict(DataConfig(), description["data"], str(path)),
            model=model,
            heads=heads,
            depth=description["depth"],
            seed=description["seed"],
            targets=Targets.from_json(description["targets"]),
            profile=RegionProfile.from_arrays(profile),
            notes=description["notes"],
            covariates=Covariates.from_json(description.get("covariates", Covariates().to_json())),
        )
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        if isinstance(error, InputError):
            raise InputError(*(p if p.startswith(str(path)) else f"{path}: {p}" for p in error.problems)) from None
        raise InputError(f"{path}: not a model this aam can read ({error})") from error


def save_ensemble(path: Path, members: Mapping[str, Path]) -> None:
    """Write copies of model folders, by name, into the folder `path`, whole or not at all."""
    with whole_folder(path) as folder:
        for name, source in members.items():
            shutil.copytree(source, folder / name)
        write_manifest(folder)


def _members(path: Path) -> list[Path]:
    """The model folders that an ensemble holds, in the order of their names."""
    return sorted(found.parent for found in path.glob(f"*/{DESCRIPTION}"))


def load_models(paths: Sequence[Path], device: torch.device) -> list[SavedModel]:
    """Read model folders, or those of their runs, and all members of those that are ensembles.

    Raises
    ------
    InputError
        As `load_model`, or the models draw their input in different ways or predict different targets.
    """
    folders: list[Path] = []
    for given in paths:
        path = given / "model" if (given / "model" / MANIFEST).is_file() else given
        if members := _members(path):
            verify_manifest(path)
        folders += members or [path]
    models = [load_model(folder, device) for folder in folders]

    def meant(saved: SavedModel) -> tuple[object, ...]:
        targets = [(spec.name, spec.kind) for spec in saved.targets.specs]
        return saved.depth, saved.model.max_bp, saved.data.token_limit, saved.data.asv_sampling, targets

    first, names = meant(models[0]), ("--rarefy-depth", "--max-bp", "--token-limit", "--asv-sampling", "targets")
    for folder, saved in zip(folders, models, strict=True):
        if apart := [name for name, one, other in zip(names, first, meant(saved), strict=True) if one != other]:
            raise InputError(f"--model: {folder} and {folders[0]} differ in {shown(apart)}; predict with each alone")
    return models


# --- checkpoints -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class State:
    """One moment of training: tensors by name, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, by the rest of their names, which are sorted."""
        return {n[len(prefix) + 1 :]: self.tensors[n] for n in sorted(self.tensors) if n.startswith(f"{prefix}.")}


def write_state(path: Path, state: State, world: World = ALONE, sharded: bool = False) -> None:
    """Write a state to the folder `path`, whole or not at all; an `OSError` on one rank is one on all.

    The leading rank writes, or with `sharded` each rank its own part of the tensors.
    """
    failed = None
    tensors = state.tensors if sharded else {name: whole(value) for name, value in state.tensors.items()}
    try:
        if sharded:
            _write_shards(path, state, world)
        elif world.lead:
            with whole_folder(path) as folder:
                _write_tensors(tensors, folder / TENSORS)
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
    own, folder, failed = own_parts(state.tensors, world), b"", None
    with contextlib.ExitStack() as stack:
        if world.lead:
            try:
                folder = os.fsencode(stack.enter_context(whole_folder(path)))
            except OSError as error:
                failed = error
        folder = world.told(folder)
        try:
            if folder:
                _write_tensors(own, Path(os.fsdecode(folder)) / SHARD.format(world.rank))
        except OSError as error:
            failed = error
        if world.any(failed is not None):
            raise failed or OSError(f"{path}: another rank could not write")
        if world.lead:
            shapes = {name: list(value.shape) for name, value in state.tensors.items()}
            _seal(Path(os.fsdecode(folder)), {**state.facts, "shards": {"ranks": world.size, "shapes": shapes}})


def read_state(path: Path) -> State:
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


def state_of_all(state: State | None, world: World) -> State | None:
    """The state that the leading rank read, on every rank."""
    if world.size == 1:
        return state
    facts = world.told(b"" if state is None else json.dumps(state.facts).encode())
    tensors = world.told(b"" if state is None else safetensors.torch.save(state.tensors))
    return State(safetensors.torch.load(tensors), json.loads(facts)) if facts else None


def newest_state(folder: Path) -> State | None:
    """The newest whole checkpoint below `folder`; damaged ones are named, passed over, and no longer counted."""
    for path in reversed(_steps(folder)):
        if (state := _read_or_set_aside(path)) is not None:
            return state
    return None


def _read_or_set_aside(path: Path) -> State | None:
    try:
        return read_state(path)
    except InputError as error:
        log.warning("%s; the checkpoint before it is tried", "; ".join(error.problems))
        path.replace(path.with_name(f"{DAMAGED}{path.name}"))
        return None


def forget_later(path: Path) -> None:
    """Remove the checkpoints beside `path` that are later: the run goes back."""
    later = False
    for other in _steps(path.parent):
        if later:
            log.warning("%s: removed, the run goes back before it", other)
            remove(other)
        later = later or other.name == path.name


def _steps(folder: Path) -> list[Path]:
    """Checkpoints below `folder`, oldest first."""
    numbers = {path: path.name.removeprefix(STEP) for path in folder.glob(f"{STEP}*")}
    return sorted((path for path, number in numbers.items() if number.isdigit()), key=lambda path: int(numbers[path]))


class Signals:
    """Turns the first warning of a scheduler or a person into an orderly end; the second ends the process at once.

    What comes within `GRACE` seconds of the first is part of it: schedulers warn a process and its group.

    Entered once it is heard, and `CallAgain` is raised where the process is; entered again, by the training loop,
    the signal only leaves its name in `caught`, to be seen at the end of the step. Child processes ignore it.
    """

    GRACE = 2.0

    def __init__(self) -> None:
        self.caught = ""
        self.depth = 0
        self.since = 0.0

    def __enter__(self) -> Signals:
        self.depth += 1
        if self.depth == 1:
            self._process = os.getpid()
            self._before = {one: signal.signal(one, self._catch) for one in WARNINGS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        if self.depth == 0:
            for one, before in self._before.items():
                signal.signal(one, before)

    def pause(self, world: World = ALONE) -> None:
        """Raise `CallAgain` where a signal came, to any rank, during training that ended by itself."""
        if world.any(bool(self.caught)):
            raise CallAgain(f"{self.caught or ELSEWHERE} came, what is trained is saved")

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return
        if self.caught:
            if time.monotonic() - self.since > self.GRACE:
                os._exit(FAILED)
            return
        self.caught, self.since = signal.Signals(number).name, time.monotonic()
        if self.depth == 1:
            raise CallAgain(f"{self.caught} came where there is nothing to save")


@dataclass(eq=False)
class Keeper:
    """Decides at each safe moment of the loop whether to save, and keeps the newest checkpoints.

    One is written to ``folder/step-N`` every `minutes`, and when a signal came; then `CallAgain` is raised, on all
    ranks together.
    """

    folder: Path
    runtime: RunConfig
    signals: Signals
    world: World = ALONE
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
        asked = self.world.most(
            2 if caught else int(self.world.lead and waited >= 60 * self.runtime.checkpoint_minutes)
        )
        if not asked:
            return
        if asked > 1:
            caught = caught or ELSEWHERE
        path, now = self.folder / f"{STEP}{step}", state()
        try:
            write_state(path, now, self.world, self.runtime.fsdp_sharded_checkpoint)
        except OSError as error:
            if caught:
                raise
            last = max(map(str, _steps(self.folder)[-1:]), default="none")
            log.warning("%s: not saved (%s); training goes on, the last whole checkpoint: %s", path, error, last)
        else:
            for old in _steps(self.folder)[: -self.runtime.keep_checkpoints] if self.world.lead else ():
                if old != path:
                    remove(old)
        self.saved = time.monotonic()
        if caught:
            raise CallAgain(f"{caught} came, {path} is saved")
