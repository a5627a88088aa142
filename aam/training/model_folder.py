"""A saved model: a folder of data only, complete in itself, that appears whole and is verified on load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import aam
from aam.config import DataConfig, FineTuneConfig, ModelConfig
from aam.config_file import from_dict, to_dict
from aam.data.targets import Targets
from aam.data.tokens import RegionProfile
from aam.errors import InputError
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.runtime.files import file_digest, whole_folder

FORMAT = 1
MANIFEST, DESCRIPTION = "manifest.json", "model.json"
WEIGHTS, PROFILE = "weights.safetensors", "profile.safetensors"
MAX_JSON = 64 << 20


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


def write_manifest(folder: Path) -> None:
    """Record name, size and SHA-256 of every file in `folder`, last of all."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": file_digest(p)} for p in files}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": entries}, indent=1) + "\n")


def verify_manifest(folder: Path) -> None:
    """Check every file of `folder` against its manifest.

    Raises
    ------
    InputError
        Names every file that is missing or differs.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        found = manifest["format"]
        entries = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except OSError:
        hint = " (a .pt file of the predecessor cannot be loaded: retrain with `aam train`)"
        raise InputError(f"{folder}: no {MANIFEST}; expected a model folder{hint}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{folder}/{MANIFEST}: damaged; train again or take another model") from None
    if found != FORMAT:
        raise InputError(f"{folder}: model format {found}, this aam reads {FORMAT}")
    damaged = [
        name
        for name, (size, digest) in entries.items()
        if not (folder / name).is_file()
        or (folder / name).stat().st_size != size
        or file_digest(folder / name) != digest
    ]
    if damaged:
        raise InputError(*(f"{folder}/{name}: missing or damaged (its checksum differs)" for name in damaged))


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
        "notes": saved.notes,
    }
    weights = {name: value.detach().cpu().contiguous() for name, value in saved.network.state_dict().items()}
    with whole_folder(path) as folder:
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        safetensors.torch.save_file(weights, folder / WEIGHTS)
        safetensors.numpy.save_file(saved.profile.to_arrays(), folder / PROFILE)
        write_manifest(folder)


def load_model(path: Path, device: torch.device) -> SavedModel:
    """Read and verify a model folder.

    Raises
    ------
    InputError
        `path` is no model folder, is damaged, or was written by a newer aam.
    """
    verify_manifest(path)
    try:
        if (path / DESCRIPTION).stat().st_size > MAX_JSON:
            raise InputError(f"{path}/{DESCRIPTION}: larger than {MAX_JSON >> 20} MiB")
        description = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
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
        )
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a model this aam can read ({error})") from error
