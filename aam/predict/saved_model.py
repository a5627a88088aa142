"""Saved models: the folders that `aam predict` reads, written, verified and loaded."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import skops.io
import torch
from sklearn.ensemble._forest import BaseForest

import aam
from aam.config import DataConfig, FineTuneConfig, ModelConfig, TrainConfig
from aam.data.checks import RegionProfile
from aam.data.splits import fold_folder
from aam.data.study import Reference
from aam.data.targets import Covariates, Targets
from aam.device.measure import stage
from aam.encoders import find_encoder, model_folder
from aam.errors import InputError, shown
from aam.files.atomic import MANIFEST, atomic_folder, read_json, verify_manifest, write_manifest
from aam.files.tensors import AllocationLimit, read_arrays, read_tensors, write_tensors
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.options import from_dict, to_dict, typed
from aam.predict.blend import Blend, BlendClassifier, BlendRegressor, specs_in_order
from aam.predict.estimator import Arrays, restore_state, save_state, shallow_copy
from aam.predict.linear import LinearClassifier, LinearRegressor
from aam.predict.samples import Floats, Samples
from aam.predict.trees import Trees, TreesClassifier, TreesRegressor
from aam.training.inference import Encoder

# Encoders of earlier formats are read, models with targets are not.
FORMAT, LAST_OTHER = 3, "aam v0.1.0-complete"

# What skops calls the description in its archive, and addresses of objects in it.
SCHEMA, ADDRESS = "schema.json", re.compile(r'(?<="__id__": )\d+|(?<="file": ")\d+')

# The one type of a forest that skops does not trust by itself.
TREE = "sklearn.tree._tree.Tree"

# Estimators that are saved and read.
ESTIMATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (LinearClassifier, LinearRegressor, TreesClassifier, TreesRegressor)
}

DESCRIPTION, WEIGHTS, PROFILE = "model.json", "weights.safetensors", "profile.safetensors"
REFERENCE, MEMBERS, FOREST = "reference.safetensors", "members.safetensors", ".skops"

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
    """A blend of estimators for each target, and what `aam predict` needs: options of its input,
    and its ASVs.

    ASVs are placed on the `reference` of a plugin, if any; a network reads them there too.
    The network predicts all targets, or none as an encoder; `model` and `heads` are its sizes, and
    `model` has the longest sequence of all. `blends` predict a target each, numbers first.
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
    blends: tuple[Blend, ...] = ()
    reference: Reference | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members, without the network."""
        return tuple(dict.fromkeys(name for blend in self.blends for name in blend.members_))

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of categories of each covariate."""
        return tuple(len(values) for values in self.covariates.categorical.values())

    def only(self, member: str) -> SavedModel:
        """The model that predicts by one member alone."""
        blends = tuple(
            shallow_copy(blend, members_={member: blend.members_[member]}) for blend in self.blends
        )
        return replace(self, network=None, blends=blends)

    def predicted(self, rarefied: Samples, network: Sequence[Floats] = ()) -> list[Floats]:
        """Predictions of each target, numbers first: [n, 1] in own units, or probabilities [n, K].

        The blend of a target is the equal mean of its members; those of the network are known.
        """
        members: list[list[Floats]] = [[] for _ in self.targets.specs]
        for scores, blend in zip(members, self.blends, strict=False):
            scores += blend.scores(rarefied).values()
        for scores, values in zip(members, network, strict=False):
            scores.append(values)
        means = [np.asarray(sum(scores) / len(scores)) for scores in members]
        numbers = len(self.targets.numeric)
        if numbers:
            decoded = self.targets.decode(np.concatenate(means[:numbers], axis=1))
            means[:numbers] = [decoded[:, [column]] for column in range(numbers)]
        return means

    @property
    def required_network(self) -> Aam:
        """The network; `InputError` where the model has none."""
        if self.only_places:
            raise InputError(
                "--model: it places ASVs on a reference and has no network; use aam embed, or "
                "name an encoder with a network, such as 16s-v4"
            )
        if self.network is None:
            raise InputError(
                f"--model: it has no network, only {shown(self.members)}, and this needs one; "
                "name an encoder such as 16s-v4, or train with --pretrained-encoder 16s-v4 or "
                "deep among --members"
            )
        return self.network

    @property
    def only_places(self) -> bool:
        """Whether it is a reference and nothing else, which has no vectors of ASVs."""
        return self.network is None and not self.targets.specs

    @property
    def device(self) -> torch.device:
        """The device of the network; the CPU without one."""
        if self.network is None:
            return torch.device("cpu")
        return next(self.network.parameters()).device

    def encoder(self, source: Path) -> Encoder:
        """The network as another one starts from it."""
        return Encoder(
            source,
            self.required_network,
            self.heads,
            self.targets,
            self.covariates,
            frozenset(self.notes["seen_samples"]),
            frozenset(samples_with_labels(self)),
        )


def save_model(path: Path, saved: SavedModel) -> None:
    """Write `saved` to the folder `path`, all of it or nothing."""
    arrays: Arrays = {}
    blends = [_described(blend, f"{place}", arrays) for place, blend in enumerate(saved.blends)]
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
        "blends": blends,
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
            _write_arrays(arrays, folder / MEMBERS)
        for place, blend in enumerate(saved.blends):
            for name, member in blend.members_.items():
                if isinstance(member, Trees):
                    _write_forest(member.forest_, folder / f"{place}-{name}{FOREST}")
        write_manifest(folder)


def _write_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], path: Path) -> None:
    write_tensors({name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays}, path)


def _read_network(
    path: Path, depth: int, model: ModelConfig, heads: HeadConfig, reference: Reference | None
) -> Aam:
    tensors = read_tensors(path / WEIGHTS)
    limit = 2 * sum(tensor.numel() for tensor in tensors.values()) + SMALL_NETWORK
    with stage("model creation"), AllocationLimit(limit):
        network = Aam(model, depth, heads, 0 if reference is None else reference.width)
    network.load_state_dict(tensors)
    return network.eval()


def _described(blend: Blend, place: str, arrays: Arrays) -> dict[str, Any]:
    """A blend as JSON; its arrays are added to `arrays`."""
    members = {
        name: {
            "class": type(member).__name__,
            "parameters": member.get_params(),
            "fitted": save_state(member, f"{place}/{name}", arrays),
        }
        for name, member in blend.members_.items()
    }
    return {"parameters": blend.get_params(), "members": members}


def _write_forest(forest: BaseForest, path: Path) -> None:
    """Write a forest; equal forests give equal bytes.

    skops names objects by their address in memory and dates its files: both become counters.
    """
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], str(len(numbers)))

    blob, archive = io.BytesIO(skops.io.dumps(forest)), io.BytesIO()
    with zipfile.ZipFile(blob) as dumped, zipfile.ZipFile(archive, "w") as written:
        schema = ADDRESS.sub(number, dumped.read(SCHEMA).decode("utf-8"))
        written.writestr(zipfile.ZipInfo(SCHEMA), schema)
        for address, counter in numbers.items():
            if f"{address}.npy" in dumped.NameToInfo:
                written.writestr(zipfile.ZipInfo(f"{counter}.npy"), dumped.read(f"{address}.npy"))
    path.write_bytes(archive.getbuffer())


def _read_forest(path: Path) -> Any:
    """A forest of scikit-learn, if the file holds no types but those of a forest."""
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    try:
        types = set(skops.io.get_untrusted_types(file=path)) - {TREE}
        forest = None if types else skops.io.load(path, trusted=[TREE])
    # A wrong archive may raise anything.
    except Exception as error:
        raise ValueError(f"{path.name} is not a forest ({error})") from error
    if types:
        raise ValueError(f"{path.name} holds {shown(sorted(types))}")
    if not isinstance(forest, BaseForest):
        raise ValueError(f"{path.name} holds {type(forest).__name__}, expected a forest")
    return forest


def _read_blends(path: Path, description: Any, targets: Targets) -> tuple[Blend, ...]:
    """The blends of a model folder, checked against its targets."""
    blends, arrays = [], read_arrays(path / MEMBERS)
    if len(description) not in (0, len(targets.specs)):
        raise ValueError(f"{len(description)} blends for {len(targets.specs)} targets")
    for place, (spec, entry) in enumerate(zip(specs_in_order(targets), description, strict=False)):
        classes = np.arange(len(spec.labels))
        blend = (BlendClassifier if spec.labels else BlendRegressor)(**entry["parameters"])
        blend.classes_, blend.members_ = classes, {}
        for name, facts in entry["members"].items():
            member = ESTIMATORS[facts["class"]](**facts["parameters"])
            restore_state(member, f"{place}/{name}", arrays, facts["fitted"])
            if isinstance(member, Trees):
                member.forest_ = _read_forest(path / f"{place}-{name}{FOREST}")
            blend.members_[name] = member
        if not blend.members_:
            raise ValueError(f"no members predict {spec.name!r}")
        blend.check()
        blends.append(blend)
    return tuple(blends)


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


def _check_is_model(path: Path) -> None:
    """Raise `InputError` for a folder that holds no model."""
    if (path / MANIFEST).is_file():
        return
    if folds := sorted(path.glob(f"fold-*/model/{MANIFEST}")):
        raise InputError(
            f"{path}: a run of {len(folds)} folds without a model of all samples; name the "
            f"model of a fold or of several, such as {folds[0].parent}"
        )
    raise InputError(f"{path}: no {MANIFEST}; expected a model folder, such as RUN/model{RETRAIN}")


def load_model(path: Path, device: torch.device) -> SavedModel:
    """Read and verify a model folder.

    Raises
    ------
    InputError
        `path` is no model folder, is damaged, or was written by another version of aam, which is
        named.
    """
    _check_is_model(path)
    verify_manifest(path)
    description: Any = {}
    try:
        description = read_json(path / DESCRIPTION)
        if description["format"] != FORMAT and description["targets"]:
            raise InputError(
                f"{path}: a model of format {description['format']}, expected {FORMAT}: "
                f"{LAST_OTHER} reads it; install that version, or train again"
            )
        return _read_model(path, description, device)
    except UNREADABLE as error:
        if isinstance(error, InputError):
            problems = [p if p.startswith(str(path)) else f"{path}: {p}" for p in error.problems]
            raise InputError(*problems, *_written_by(description, path)) from None
        raise InputError(
            f"{path}: not a model this aam can read ({error})", *_written_by(description, path)
        ) from error


def _read_model(path: Path, description: Any, device: torch.device) -> SavedModel:
    """The model that `description` describes, with the arrays in its folder."""
    _check_description(description)
    model = from_dict(FineTuneConfig().model, description["model"], str(path))
    targets = Targets.from_json(description["targets"])
    reference = None
    if description.get("reference") is not None:
        arrays = read_arrays(path / REFERENCE)
        reference = find_encoder(description["reference"]).read_reference(arrays)
    heads, network = HeadConfig(), None
    if description["heads"] is not None:
        heads = typed(description["heads"], HeadConfig)
        network = _read_network(path, description["depth"], model, heads, reference).to(device)
        classes = tuple(len(spec.labels) for spec in targets.classes)
        if targets.specs and (heads.n_targets, heads.n_classes) != (len(targets.numeric), classes):
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
        covariates=Covariates.from_json(description.get("covariates", {})),
        blends=_read_blends(path, description.get("blends", []), targets),
        reference=reference,
    )


def _written_by(description: Any, path: Path) -> list[str]:
    """Name the version of aam that wrote a model that this version cannot read, if it is known."""
    if not isinstance(description, dict) or "version" not in description:
        return []
    this = f"this is aam {aam.__version__}"
    if (version := description["version"]) == aam.__version__:
        this = "this is another commit of that version"
    return [
        f"{path}: written by aam {version}, {this}; install the one that wrote it (see "
        "run.json), or train again"
    ]


def load_models(paths: Sequence[Path], device: torch.device) -> list[SavedModel]:
    """Read model folders, or those of their runs.

    Raises
    ------
    InputError
        As `load_model`, or the models draw their input in different ways or predict different
        targets.
    """
    folders = [
        path / "model" if (path / "model" / MANIFEST).is_file() else path
        for path in map(model_folder, paths)
    ]
    models = [load_model(folder, device) for folder in folders]

    def input_and_targets(saved: SavedModel) -> dict[str, object]:
        return {
            "--rarefy-depth": saved.depth,
            "--max-bp": saved.model.max_bp,
            "--token-limit": saved.data.token_limit,
            "targets": [(spec.name, spec.kind) for spec in saved.targets.specs],
        }

    first = input_and_targets(models[0])
    for folder, saved in zip(folders, models, strict=True):
        values = input_and_targets(saved)
        if differing := [name for name in first if first[name] != values[name]]:
            raise InputError(
                f"--model: {folder} and {folders[0]} differ in {shown(differing)}; predict with "
                "each separately"
            )
    return models


def encoder_folder(train: TrainConfig, fold: str) -> Path | None:
    """The folder of the encoder: itself, its ``model``, or that of a fold (``*``: any)."""
    if train.pretrained_encoder is None:
        return None
    path = model_folder(train.pretrained_encoder)
    folder = "fold-*" if fold == "*" else fold_folder(fold)
    for candidate in (path, *sorted(path.glob(f"{folder}/model")), path / "model"):
        if (candidate / MANIFEST).is_file():
            return candidate
    expected = f"{MANIFEST}, model/ or {folder}/model/"
    raise InputError(
        f"--pretrained-encoder: {path} holds no model ({expected}); run `aam pretrain` "
        f"first{RETRAIN}"
    )


def load_encoder(train: TrainConfig, fold: str) -> Encoder | None:
    """The pretrained encoder of a fold, if one is named."""
    folder = encoder_folder(train, fold)
    return None if folder is None else load_model(folder, torch.device("cpu")).encoder(folder)


def samples_with_labels(saved: SavedModel) -> set[str]:
    """Ids of samples whose labels a model, or the model that it started from, has seen."""
    seen = saved.notes["seen_samples"] if saved.targets.specs else ()
    return set(saved.notes.get("labelled_samples", seen))
