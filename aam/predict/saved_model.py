"""Saved models: ensembles of learners, and the folders that `aam predict` reads, written, verified
and loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

import aam
from aam.config import DataConfig, FineTuneConfig, ModelConfig
from aam.data.reference import Reference, read_reference
from aam.data.region import RegionProfile
from aam.data.targets import Covariates, Targets
from aam.device.timing import stage
from aam.encoders import model_folder
from aam.errors import InputError, shown
from aam.files.atomic import MANIFEST, atomic_folder, read_json, verify_manifest, write_manifest
from aam.files.tensors import (
    AllocationLimit,
    count_numbers,
    read_arrays,
    read_tensors,
    write_tensors,
)
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.options import from_dict, to_dict
from aam.predict.blend import Blend, blend_from_arrays, blend_to_arrays, network_alone

# Format 1 has a network in every model. Other learners stood in two files of their own, which are
# no longer read.
FORMAT, LEARNERS_1 = 2, "members.json"

DESCRIPTION, WEIGHTS, PROFILE = "model.json", "weights.safetensors", "profile.safetensors"
REFERENCE = "reference.safetensors"

LEARNERS = "learners.safetensors"

# Numbers that a network may hold whatever its weights are: 4 MB.
SMALL_NETWORK = 1_000_000

# What libraries raise of files that are no model.
UNREADABLE = (
    OSError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
    safetensors.SafetensorError,
)

RETRAIN = (
    " (a .pt file of the predecessor, or .ckpt, cannot be loaded: retrain with `aam pretrain "
    "--table TABLE --tree TREE "
    "--output-dir PRE`, then `aam train --metadata-column COLUMN --pretrained-encoder PRE`)"
)


@dataclass(frozen=True)
class SavedModel:
    """An ensemble of learners for each target, with what `aam predict` needs: options of its input,
    and its ASVs.

    ASVs are placed on the `reference` of a plugin, if any; a network reads them there too.
    The network is one of the learners, and there in a model without targets, an encoder; `model`
    and `heads` are its sizes, and `model` holds the longest sequence for all.
    """

    network: Aam | None
    data: DataConfig
    model: ModelConfig
    heads: HeadConfig
    depth: int
    seed: int
    targets: Targets
    profile: RegionProfile
    notes: dict[str, Any]
    covariates: Covariates = field(default_factory=Covariates)
    blend: Blend = field(default_factory=Blend)
    reference: Reference | None = None

    def __post_init__(self) -> None:
        """Let the network predict every target alone where no blend is fitted."""
        if not self.blend.fitted:
            object.__setattr__(self, "blend", network_alone(self.targets))

    @property
    def required_network(self) -> Aam:
        """The network; `InputError` where the model has none."""
        if self.only_places:
            raise InputError(
                "--model: it places ASVs on a reference and has no network; use aam embed, or "
                "name an encoder with a network, such as 16s-v4"
            )
        if self.network is None:
            names = shown(self.blend.learners)
            raise InputError(
                f"--model: it has no network, only {names}, and this needs one; name an encoder "
                "such as 16s-v4, or "
                "train with --pretrained-encoder 16s-v4 or deep among --members"
            )
        return self.network

    @property
    def only_places(self) -> bool:
        """Whether it is a reference and nothing else, which has no vectors of ASVs."""
        return self.network is None and not self.targets.specs

    @property
    def device(self) -> torch.device:
        """The device of the network; the CPU without one."""
        return (
            torch.device("cpu") if self.network is None else next(self.network.parameters()).device
        )


def save_model(path: Path, saved: SavedModel) -> None:
    """Write `saved` to the folder `path`, all of it or nothing."""
    arrays, learners = blend_to_arrays(saved.blend)
    description = {
        "format": FORMAT,
        "version": aam.__version__,
        "torch": torch.__version__,
        "data": to_dict(saved.data),
        "model": to_dict(saved.model),
        "heads": None if saved.network is None else to_dict(saved.heads),
        "depth": saved.depth,
        "seed": saved.seed,
        "targets": saved.targets.to_json(),
        "covariates": saved.covariates.to_json(),
        "notes": saved.notes,
        "reference": None if saved.reference is None else saved.reference.encoder,
        "learners": learners,
    }
    with atomic_folder(path) as folder:
        (folder / DESCRIPTION).write_text(
            json.dumps(description, indent=1) + "\n", encoding="utf-8"
        )
        if saved.network is not None:
            write_tensors(saved.network.state_dict(), folder / WEIGHTS)
        _write_arrays(saved.profile.to_arrays(), folder / PROFILE)
        if saved.reference is not None:
            _write_arrays(saved.reference.to_arrays(), folder / REFERENCE)
        if arrays:
            _write_arrays(arrays, folder / LEARNERS)
        write_manifest(folder)


def _write_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], path: Path) -> None:
    write_tensors({name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays}, path)


def _read_network(
    path: Path, depth: int, model: ModelConfig, heads: HeadConfig, reference: Reference | None
) -> Aam:
    limit = 2 * count_numbers(path / WEIGHTS) + SMALL_NETWORK
    with stage("model creation"), AllocationLimit(limit):
        network = Aam(model, depth, heads, 0 if reference is None else reference.width)
    network.load_state_dict(read_tensors(path / WEIGHTS))
    return network.eval()


def _read_blend(path: Path, description: Any, targets: Targets, network: bool) -> Blend:
    """Return what predicts; the network alone where nothing else was fitted."""
    blend = Blend()
    if "learners" in description:
        blend = blend_from_arrays(read_arrays(path / LEARNERS), description["learners"])
    if not blend.fitted:
        blend = network_alone(targets)
    if blend.fitted:
        blend.check(targets, network)
    return blend


def _check_description(description: Any) -> None:
    """Raise `ValueError` or `TypeError` where what a network does not need to be built is of
    another kind.
    """
    # JSON of Python knows NaN and Infinity.
    json.dumps(
        {name: value for name, value in description.items() if name != "notes"}, allow_nan=False
    )
    depth, seen = description["depth"], description["notes"]["seen_samples"]
    if not isinstance(depth, int) or depth < 1 or not isinstance(seen, list):
        raise ValueError(f"depth {depth}, expected an integer above 0, and a list of seen samples")


def _check_is_one_model(path: Path) -> None:
    """Raise `InputError` for a folder that holds no model or several."""
    if not (path / MANIFEST).is_file():
        if folds := sorted(path.glob(f"fold-*/model/{MANIFEST}")):
            raise InputError(
                f"{path}: a run of {len(folds)} folds without a model of all samples; name the "
                "model of a fold or of "
                f"several, such as {folds[0].parent}"
            )
        raise InputError(
            f"{path}: no {MANIFEST}; expected a model folder, such as RUN/model{RETRAIN}"
        )
    if not (path / DESCRIPTION).is_file() and (models := _models_of(path)):
        raise InputError(
            f"{path}: holds {len(models)} models, expected one; name one of them, such as "
            f"{models[0]}"
        )


def load_model(path: Path, device: torch.device) -> SavedModel:
    """Read and verify a model folder.

    Raises
    ------
    InputError
        `path` is no model folder, is damaged, or was written by another version of aam, which is
        named.
    """
    _check_is_one_model(path)
    verify_manifest(path)
    description: Any = {}
    try:
        description = read_json(path / DESCRIPTION)
        if description["format"] not in (1, FORMAT):
            raise InputError(
                f"{path}: model format {description['format']}, this aam reads 1 to {FORMAT}"
            )
        if (path / LEARNERS_1).is_file():
            raise InputError(
                f"{path}: learners of model format 1, this aam reads those of {FORMAT}"
            )
        _check_description(description)
        model = from_dict(FineTuneConfig().model, description["model"], str(path))
        targets = Targets.from_json(description["targets"])
        covariates = Covariates.from_json(description.get("covariates", {}))
        heads, network = HeadConfig(), None
        reference = None
        if description.get("reference") is not None:
            reference = read_reference(description["reference"], read_arrays(path / REFERENCE))
        if description["heads"] is not None:
            heads = from_dict(HeadConfig(), description["heads"], str(path))
            network = _read_network(path, description["depth"], model, heads, reference).to(device)
        blend = _read_blend(path, description, targets, network is not None)
        sizes, expected = (
            (heads.n_targets, *heads.n_classes),
            [len(spec.labels) for spec in targets.classes],
        )
        if (
            network is not None
            and blend.network_weight > 0
            and sizes != (len(targets.numeric), *expected)
        ):
            raise ValueError("the heads of the network are not those of its targets")
        return SavedModel(
            network=network,
            data=from_dict(DataConfig(), description["data"], str(path)),
            model=model,
            heads=heads,
            depth=description["depth"],
            seed=description["seed"],
            targets=targets,
            profile=RegionProfile.from_arrays(read_arrays(path / PROFILE)),
            notes=description["notes"],
            covariates=covariates,
            blend=blend,
            reference=reference,
        )
    except UNREADABLE as error:
        if isinstance(error, InputError):
            problems = [p if p.startswith(str(path)) else f"{path}: {p}" for p in error.problems]
            raise InputError(*problems, *_written_by(description, path)) from None
        raise InputError(
            f"{path}: not a model this aam can read ({error})", *_written_by(description, path)
        ) from error


def _written_by(description: Any, path: Path) -> list[str]:
    """Return which aam wrote a model that this one cannot read, where its description says so, and
    what to do.
    """
    if not isinstance(description, dict) or "version" not in description:
        return []
    version = description["version"]
    this = (
        f"this is aam {aam.__version__}"
        if version != aam.__version__
        else "this is another commit of that version"
    )
    return [
        (
            f"{path}: written by aam {version}, {this}; install the one that wrote it (see "
            "run.json), or train again"
        )
    ]


def _models_of(path: Path) -> list[Path]:
    """Return the model folders that an ensemble holds, in the order of their names."""
    return sorted(file.parent for file in path.glob(f"*/{DESCRIPTION}"))


def load_models(paths: Sequence[Path], device: torch.device) -> list[SavedModel]:
    """Read model folders, or those of their runs, and all models of those that are ensembles.

    Raises
    ------
    InputError
        As `load_model`, or the models draw their input in different ways or predict different
        targets.
    """
    folders: list[Path] = []
    for folder in map(model_folder, paths):
        path = folder / "model" if (folder / "model" / MANIFEST).is_file() else folder
        if models_of := _models_of(path):
            verify_manifest(path)
        folders += models_of or [path]
    models = [load_model(folder, device) for folder in folders]

    def input_and_targets(saved: SavedModel) -> tuple[object, ...]:
        targets = [(spec.name, spec.kind) for spec in saved.targets.specs]
        return (saved.depth, saved.model.max_bp, saved.data.token_limit, targets)

    first = input_and_targets(models[0])
    names = ("--rarefy-depth", "--max-bp", "--token-limit", "targets")
    for folder, saved in zip(folders, models, strict=True):
        values = zip(names, first, input_and_targets(saved), strict=True)
        if differing := [name for name, expected, value in values if expected != value]:
            raise InputError(
                f"--model: {folder} and {folders[0]} differ in {shown(differing)}; predict with "
                "each alone"
            )
    return models


def samples_with_labels(saved: SavedModel) -> set[str]:
    """Return the ids of samples whose labels a model, or the model that it started from, has seen.

    Those of pretraining without labels are in its notes as seen, and not here.
    """
    return set(
        saved.notes.get(
            "labelled_samples", saved.notes["seen_samples"] if saved.targets.specs else ()
        )
    )
