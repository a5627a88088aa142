"""What training saves: models to use and checkpoints to go on from, folders of data only, whole and verified."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable
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
from aam.config import DataConfig, FineTuneConfig, ModelConfig
from aam.config_file import from_dict, to_dict
from aam.data.batch import RegionProfile
from aam.data.supervision import Covariates
from aam.data.targets import Targets
from aam.errors import FAILED, CallAgain, InputError
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.runtime.files import MANIFEST, read_json, remove, verify_manifest, whole_folder, write_manifest

log = logging.getLogger("aam")

FORMAT = 1
DESCRIPTION, WEIGHTS, PROFILE = "model.json", "weights.safetensors", "profile.safetensors"
FACTS, TENSORS = "state.json", "state.safetensors"
STEP, DAMAGED = "step-", "damaged-"
# All records of the losses are in a state; two million steps write 64 MiB of them.
MOST_FACTS = 1 << 30
RETRAIN = (
    " (a .pt file of the predecessor, or .ckpt, cannot be loaded: retrain with `aam pretrain --table TABLE --tree TREE "
    "--output-dir PRE`, then `aam train --metadata-column COLUMN --pretrained-encoder PRE`)"
)
WARNINGS = ("SIGTERM", "SIGUSR2", "SIGINT")


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
        raise InputError(f"{path}: no {MANIFEST}; expected a model folder{RETRAIN}")
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


# --- checkpoints -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class State:
    """One moment of training: tensors by name, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, by the rest of their names."""
        return {name[len(prefix) + 1 :]: value for name, value in self.tensors.items() if name.startswith(f"{prefix}.")}


def write_state(path: Path, state: State) -> None:
    """Write a state to the folder `path`, whole or not at all."""
    with whole_folder(path) as folder:
        _write_tensors(state.tensors, folder / TENSORS)
        (folder / FACTS).write_text(json.dumps({"format": FORMAT, **state.facts}) + "\n", encoding="utf-8")
        write_manifest(folder)


def read_state(path: Path) -> State:
    """Read and verify what `write_state` wrote; `InputError` where it is damaged or of another format."""
    verify_manifest(path)
    facts: Any = read_json(path / FACTS, MOST_FACTS)
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise InputError(f"{path}: not a checkpoint that this aam can read")
    try:
        return State(safetensors.torch.load_file(path / TENSORS), facts)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: not a checkpoint that this aam can read ({error})") from error


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
            self._before = {name: signal.signal(getattr(signal, name), self._catch) for name in WARNINGS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        if self.depth == 0:
            for name, before in self._before.items():
                signal.signal(getattr(signal, name), before)

    def pause(self) -> None:
        """Raise `CallAgain` where a signal came during training that ended by itself."""
        if self.caught:
            raise CallAgain(f"{self.caught} came, what is trained is saved")

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

    One is written to ``folder/step-N`` every `minutes`, and when a signal came; then `CallAgain` is raised.
    """

    folder: Path
    minutes: float
    kept: int
    signals: Signals
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
        caught = self.signals.caught
        if not caught and time.monotonic() - self.saved < 60 * self.minutes:
            return
        path, now = self.folder / f"{STEP}{step}", state()
        try:
            write_state(path, now)
        except OSError as error:
            if caught:
                raise
            last = max(map(str, _steps(self.folder)[-1:]), default="none")
            log.warning("%s: not saved (%s); training goes on, the last whole checkpoint: %s", path, error, last)
        else:
            for old in _steps(self.folder)[: -self.kept]:
                if old != path:
                    remove(old)
        self.saved = time.monotonic()
        if caught:
            raise CallAgain(f"{caught} came, {path} is saved")
