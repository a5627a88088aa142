"""Saved models: the folders that `aam predict` reads, written, verified and loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

import aam
from aam.config import DataConfig, FineTuneConfig, ModelConfig
from aam.data.placement import ReferenceTree
from aam.data.region import RegionProfile
from aam.data.targets import Covariates, Targets
from aam.device.timing import stage
from aam.encoders import CARD, model_folder
from aam.errors import InputError, shown
from aam.files.atomic import MANIFEST, atomic_folder, read_json, verify_manifest, write_manifest
from aam.files.tensors import read_tensors, write_shards, write_tensors
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.options import from_dict, to_dict
from aam.predict.members import Members
from aam.predict.saving import from_tensors, to_tensors

FORMAT = 1

DESCRIPTION, WEIGHTS, PROFILE = "model.json", "weights.safetensors", "profile.safetensors"

REFERENCE = "reference.safetensors"

MEMBERS, MEMBER_WEIGHTS = "members.json", "members.safetensors"

# Bytes of a file of weights that comes with the package.
SHARD_LIMIT = 900_000

RETRAIN = (
    " (a .pt file of the predecessor, or .ckpt, cannot be loaded: retrain with `aam pretrain --table TABLE --tree TREE "
    "--output-dir PRE`, then `aam train --metadata-column COLUMN --pretrained-encoder PRE`)"
)


@dataclass(frozen=True)
class SavedModel:
    """A trained network with what `aam predict` needs: options of its input, its targets and its training ASVs."""

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
    members: Members | None = None


def save_model(path: Path, saved: SavedModel, card: str | None = None) -> None:
    """Write `saved` to the folder `path`, all of it or nothing; with a `card` weights in half precision, in shards."""
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
    with atomic_folder(path) as folder:
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        weights = saved.network.state_dict()
        if card is not None:
            (folder / CARD).write_text(card, encoding="utf-8")
            write_shards({name: tensor.half() for name, tensor in weights.items()}, folder / WEIGHTS, SHARD_LIMIT)
        else:
            write_tensors(weights, folder / WEIGHTS)
        _write_arrays(saved.profile.to_arrays(), folder / PROFILE)
        if saved.network.reference is not None:
            _write_arrays(saved.network.reference.to_arrays(), folder / REFERENCE)
        if saved.members is not None:
            arrays, described = to_tensors(saved.members)
            (folder / MEMBERS).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
            _write_arrays(arrays, folder / MEMBER_WEIGHTS)
        write_manifest(folder)


def _write_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], path: Path) -> None:
    write_tensors({name: torch.from_numpy(np.asarray(values)) for name, values in arrays.items()}, path)


def load_model(path: Path, device: torch.device) -> SavedModel:
    """Read and verify a model folder.

    Raises
    ------
    InputError
        `path` is no model folder, is damaged, or was written by another version of aam, which is named.
    """
    if not (path / MANIFEST).is_file():
        raise InputError(f"{path}: no {MANIFEST}; expected a model folder, such as RUN/model{RETRAIN}")
    if not (path / DESCRIPTION).is_file() and (members := _members(path)):
        raise InputError(f"{path}: holds {len(members)} models, expected one; name one of them, such as {members[0]}")
    verify_manifest(path)
    description: Any = {}
    try:
        description = read_json(path / DESCRIPTION)
        if description["format"] != FORMAT:
            raise InputError(f"{path}: model format {description['format']}, this aam reads {FORMAT}")
        model = from_dict(FineTuneConfig().model, description["model"], str(path))
        heads = from_dict(HeadConfig(), description["heads"], str(path))
        reference = None
        if (path / REFERENCE).is_file():
            reference = ReferenceTree.from_arrays(safetensors.numpy.load_file(path / REFERENCE))
        with stage("model creation"):
            network = Aam(model, description["depth"], heads, reference)
        network.load_state_dict(read_tensors(path / WEIGHTS))
        profile = safetensors.numpy.load_file(path / PROFILE)
        targets, fitted = Targets.from_json(description["targets"]), None
        if (path / MEMBERS).is_file():
            arrays = safetensors.numpy.load_file(path / MEMBER_WEIGHTS)
            described: Any = read_json(path / MEMBERS)
            fitted = from_tensors(arrays, described, targets)
        return SavedModel(
            network=network.to(device).eval(),
            data=from_dict(DataConfig(), description["data"], str(path)),
            model=model,
            heads=heads,
            depth=description["depth"],
            seed=description["seed"],
            targets=targets,
            profile=RegionProfile.from_arrays(profile),
            notes=description["notes"],
            covariates=Covariates.from_json(description.get("covariates", Covariates().to_json())),
            members=fitted,
        )
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        if isinstance(error, InputError):
            problems = [p if p.startswith(str(path)) else f"{path}: {p}" for p in error.problems]
            raise InputError(*problems, *_written_by(description, path)) from None
        raise InputError(f"{path}: not a model this aam can read ({error})", *_written_by(description, path)) from error


def _written_by(description: Any, path: Path) -> list[str]:
    """Return which aam wrote a model that this one cannot read, where its description says so, and what to do."""
    if not isinstance(description, dict) or "version" not in description:
        return []
    version = description["version"]
    this = f"this is aam {aam.__version__}" if version != aam.__version__ else "this is another commit of that version"
    return [f"{path}: written by aam {version}, {this}; install the one that wrote it (see run.json), or train again"]


def save_ensemble(path: Path, members: Mapping[str, Path]) -> None:
    """Write copies of model folders, by name, into the folder `path`, all of them or none."""
    with atomic_folder(path) as folder:
        for name, source in members.items():
            shutil.copytree(source, folder / name)
        write_manifest(folder)


def _members(path: Path) -> list[Path]:
    """Return the model folders that an ensemble holds, in the order of their names."""
    return sorted(file.parent for file in path.glob(f"*/{DESCRIPTION}"))


def load_models(paths: Sequence[Path], device: torch.device) -> list[SavedModel]:
    """Read model folders, or those of their runs, and all members of those that are ensembles.

    Raises
    ------
    InputError
        As `load_model`, or the models draw their input in different ways or predict different targets.
    """
    folders: list[Path] = []
    for folder in map(model_folder, paths):
        path = folder / "model" if (folder / "model" / MANIFEST).is_file() else folder
        if members := _members(path):
            verify_manifest(path)
        folders += members or [path]
    models = [load_model(folder, device) for folder in folders]

    def input_and_targets(saved: SavedModel) -> tuple[object, ...]:
        targets = [(spec.name, spec.kind) for spec in saved.targets.specs]
        return saved.depth, saved.model.max_bp, saved.data.token_limit, saved.data.asv_sampling, targets

    first = input_and_targets(models[0])
    names = ("--rarefy-depth", "--max-bp", "--token-limit", "--asv-sampling", "targets")
    for folder, saved in zip(folders, models, strict=True):
        values = zip(names, first, input_and_targets(saved), strict=True)
        if differing := [name for name, expected, value in values if expected != value]:
            raise InputError(
                f"--model: {folder} and {folders[0]} differ in {shown(differing)}; predict with each alone"
            )
    return models


def samples_with_labels(saved: SavedModel) -> set[str]:
    """Return the ids of samples whose labels a model, or the model that it started from, has seen.

    Those of pretraining without labels are in its notes as seen, and not here.
    """
    return set(saved.notes.get("labelled_samples", saved.notes["seen_samples"] if saved.targets.specs else ()))
