"""Saved models: the folders that `aam predict` reads, written, verified and loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

import aam
from aam.config import TrainConfig
from aam.data.region import RegionProfile
from aam.data.splits import fold_folder
from aam.data.study import Reference, Study
from aam.data.targets import TargetSpec, head_sizes
from aam.device.measure import stage
from aam.encoders import find_encoder, model_folder
from aam.engine.run import RESULTS
from aam.errors import InputError, reworded, shown
from aam.files.atomic import MANIFEST, atomic_folder, read_json, verify_manifest, write_manifest
from aam.files.output_folder import RUN
from aam.files.tensors import read_arrays, read_tensors, write_tensors
from aam.model.aam import Aam, HeadConfig
from aam.options import RuntimeConfig, not_none, to_dict
from aam.predict.blend import Blend, PerTarget, specs_in_order
from aam.predict.description import (
    MODEL_FORMAT,
    Description,
    ModelFacts,
    NetworkHeads,
    checked_description,
)
from aam.predict.estimator import Expected, Samples
from aam.predict.network import Network
from aam.training.inference import EncodedAsvs, Encoder, FittedNetwork
from aam.typing import Array, Floats, Rows

MODEL_FILE, WEIGHTS, PROFILE = "model.json", "weights.safetensors", "profile.safetensors"
REFERENCE, BLENDS = "reference.safetensors", "members.safetensors"

# No weight of a network is as large as this.
LARGEST_WEIGHT = 1e6

# Samples of early stopping may lie so many ranges outside that of training.
MOST_RANGES = 1e6

# What libraries raise of files that are no model.
DAMAGE_ERRORS = (OSError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)

RETRAIN = (
    " (a .pt or .ckpt file of the predecessor cannot be loaded: retrain with `aam pretrain` and "
    "`aam train`)"
)


@dataclass(frozen=True, kw_only=True)
class SavedModel(ModelFacts):
    """A blend, and what `aam predict` needs: options of its input, and its ASVs.

    ASVs are placed on the `reference` of a plugin, if any; a network reads them there too. `model`
    has the sizes of the network, and the longest sequence of all. An encoder is a blend of a
    network alone that predicts no target.
    """

    profile: RegionProfile
    blend: Blend = field(default_factory=Blend)
    reference: Reference | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members that read counts alone."""
        return tuple(name for name in self.blend.members if name != Network.name)

    def only(self, *names: str) -> SavedModel:
        """The model that predicts by some of its members."""
        return replace(self, blend=Blend({name: self.blend.members[name] for name in names}))

    def prepared(
        self, study: Study, rows: Rows, runtime: RuntimeConfig, encoded: EncodedAsvs | None = None
    ) -> SavedModel:
        """The model with what its network, if any, computes once for all rarefactions."""
        if self.estimator is None:
            return self
        network = self.estimator.prepared(study, rows, runtime, encoded)
        return replace(self, blend=self.blend.joined(network))

    def predicted(self, rarefied: Samples) -> list[Floats]:
        """Predictions of each target for rarefied samples, numbers first: [n, 1] in the units of
        the target, or probabilities [n, K].
        """
        means, numbers = self.blend.outputs(rarefied), len(self.targets.numeric)
        if not numbers:
            return means
        decoded = self.targets.decode(np.concatenate(means[:numbers], axis=1))
        return [*np.hsplit(decoded, numbers), *means[numbers:]]

    @property
    def estimator(self) -> Network | None:
        """The member that is a network, if there is one."""
        networks = (member for member in self.blend.members.values() if isinstance(member, Network))
        return next(networks, None)

    @property
    def network(self) -> Aam | None:
        """The network, if there is one."""
        return None if self.estimator is None else self.estimator.network

    @property
    def heads(self) -> HeadConfig | None:
        """The heads of the network, if there is one."""
        return None if self.estimator is None else self.estimator.fitted_.heads

    def with_network(self, network: Aam, heads: HeadConfig) -> SavedModel:
        """The model with another network."""
        estimator = Network.of(FittedNetwork(network, heads, {}, 0))
        return replace(self, blend=self.blend.joined(estimator))

    def require_network(self) -> Aam:
        """The network; `InputError` where the model has none."""
        if self.network is not None:
            return self.network
        problem = "it places ASVs on a reference and has no network"
        if self.members:
            problem = f"it has no network, only {shown(self.members)}"
            if self.notes.network is not None:
                problem += " (last/ of its run is the network that was left out)"
        raise InputError(
            f"--model: {problem}, and this needs one; pretrain one by `aam pretrain`, or train "
            "with deep among --members"
        )

    @property
    def only_places(self) -> bool:
        """Whether it is a reference and nothing else, which has no vectors of ASVs."""
        return self.network is None and not self.targets.specs

    @property
    def device(self) -> torch.device:
        """The device of the network; the CPU without one."""
        return torch.device("cpu") if self.estimator is None else self.estimator.computing_device

    def encoder(self, source: Path) -> Encoder:
        """The network as another one starts from it."""
        samples = self.notes.seen_samples, self.notes.labelled_samples
        network, heads = self.require_network(), not_none(self.heads)
        fitted = self.targets, self.covariates
        return Encoder(source, network, heads, *fitted, *map(frozenset, samples))


# --- writing ------------------------------------------------------------------------------------


def save_model(path: Path, saved: SavedModel) -> None:
    """Write `saved` to the folder `path`, all of it or nothing."""
    estimator, reference, heads = saved.estimator, saved.reference, saved.heads
    arrays = {PROFILE: saved.profile.to_arrays(), BLENDS: _member_arrays(saved)}
    arrays[REFERENCE] = {} if reference is None else reference.to_arrays()
    description = {"format": MODEL_FORMAT, "version": aam.__version__, "torch": torch.__version__}
    description |= {item.name: getattr(saved, item.name) for item in fields(ModelFacts)}
    description["members"] = saved.members
    description["heads"] = heads and {x.name: getattr(heads, x.name) for x in fields(NetworkHeads)}
    description["reference"] = None if reference is None else reference.encoder
    with atomic_folder(path) as folder:
        if estimator is not None:
            write_tensors(estimator.network.state_dict(), folder / WEIGHTS)
        for file, file_arrays in arrays.items():
            values = {n: torch.from_numpy(np.asarray(part)) for n, part in file_arrays.items()}
            if values:
                write_tensors(values, folder / file)
        _describe(folder, to_dict(description))


def _member_arrays(saved: SavedModel) -> dict[str, Array]:
    """What the members on counts have learned, by target, member and name."""
    return {
        f"{place}/{name}/{key}": values
        for name in saved.members
        for place, part in enumerate(saved.blend.members[name].estimators)
        for key, values in part.state().items()
    }


def save_notes(path: Path, notes: Mapping[str, Any]) -> None:
    """Add notes to the saved model at `path`, all of them or nothing."""
    description: Any = read_json(path / MODEL_FILE)
    with atomic_folder(path) as folder:
        shutil.copytree(path, folder, dirs_exist_ok=True)
        (folder / MANIFEST).unlink()
        _describe(folder, {**description, "notes": {**description["notes"], **to_dict(notes)}})


def _describe(folder: Path, description: dict[str, Any]) -> None:
    """Write the description of a model, and the manifest of its folder."""
    text = json.dumps(description, indent=1) + "\n"
    (folder / MODEL_FILE).write_text(text, encoding="utf-8")
    write_manifest(folder)


# --- reading ------------------------------------------------------------------------------------


def _limits(spec: TargetSpec) -> tuple[float, float]:
    """Smallest and largest value that a member may predict of a target, on its scale."""
    if spec.bounds is None:
        return 0.0, 1.0
    low, high = spec.encoded(np.array(spec.bounds)).tolist()
    margin = MOST_RANGES * (high - low)
    return low - margin, high + margin


def _read_members(
    path: Path, description: Description, profile: RegionProfile
) -> dict[str, PerTarget]:
    """The members on counts of a model folder, checked against its targets, covariates and
    features.
    """
    arrays, members = read_arrays(path / BLENDS), dict[str, PerTarget]()
    targets, covariates = description.targets, description.covariates
    for name in description.members:
        members[name] = PerTarget.of(name, targets, description.depth, description.seed)
        parts = zip(specs_in_order(targets), members[name].estimators, strict=True)
        for place, (spec, estimator) in enumerate(parts):
            begin = f"{place}/{name}/"
            keys = [key for key in arrays if key.startswith(begin)]
            learned = {key.removeprefix(begin): arrays.pop(key) for key in keys}
            columns, is_centred = covariates.width, description.data.study_column is not None
            expected = Expected(columns, len(spec.labels), _limits(spec), is_centred)
            with reworded((ValueError, LookupError), f"{BLENDS}: {begin[:-1]}"):
                estimator.restore(learned, expected)
                if (unseen := profile.unseen(estimator.names_)).any():
                    raise ValueError(f"{unseen.sum()} of its features are not those of training")
    if arrays:
        raise ValueError(f"{BLENDS}: arrays of no member: {shown(arrays)}")
    return members


def load_model(path: Path, device: torch.device) -> SavedModel:
    """Read and verify a model folder.

    Raises
    ------
    InputError
        `path` is no model folder, is damaged, or was written by another version of aam, which is
        named.
    """
    if not (path / MANIFEST).is_file():
        raise InputError(f"{path}: {_without_model(path)}")
    verify_manifest(path)
    description: Any = {}
    try:
        description = read_json(path / MODEL_FILE)
        return _read_model(path, checked_description(path / MODEL_FILE, description), device)
    except (*DAMAGE_ERRORS, SafetensorError) as error:
        problems = [f"not a model this aam can read ({error})"]
        if isinstance(error, InputError):
            problems = [*error.problems]
        version = description.get("version") if isinstance(description, dict) else None
        if version is not None:
            written = f"written by aam {version}, this is aam {aam.__version__}"
            problems.append(f"{written}; copy it again, install that version, or train again")
        raise InputError(
            *(p if p.startswith(str(path)) else f"{path}: {p}" for p in problems)
        ) from error


def _without_model(path: Path) -> str:
    """Why a folder holds no model, and what to do."""
    folds = sorted(path.glob(f"fold-*/model/{MANIFEST}"))
    of_fold = f"name the model of a fold or of several, such as {folds[0].parent}" if folds else ""
    has_begun = any(path.glob("split.tsv")) or any(path.glob("fold-*/split.tsv"))
    if has_begun and (path / RUN).is_file() and not (path / RESULTS).is_file():
        number = f" ({len(folds)} folds have a model)" if folds else ""
        remedies = filter(None, ("finish it with --resume-from auto", of_fold))
        return f"the run is unfinished{number}; {', or '.join(remedies)}"
    if folds:
        return f"a run of {len(folds)} folds without a model of all samples; {of_fold}"
    return f"no {MANIFEST}; expected a model folder, such as RUN/model{RETRAIN}"


def _read_model(path: Path, description: Description, device: torch.device) -> SavedModel:
    """The model that `description` describes, with the arrays in its folder."""
    reference = None
    if (name := description.reference) is not None:
        reference = find_encoder(name).read_reference(read_arrays(path / REFERENCE))
    profile = RegionProfile.from_arrays(read_arrays(path / PROFILE))
    saved = SavedModel(
        **{item.name: getattr(description, item.name) for item in fields(ModelFacts)},
        profile=profile,
        reference=reference,
        blend=Blend(_read_members(path, description, profile)),
    )
    if description.heads is None:
        return saved
    sizes = head_sizes(saved.targets, saved.covariates)
    heads, weights = HeadConfig(**vars(description.heads), **sizes), read_tensors(path / WEIGHTS)
    width = 0 if reference is None else reference.width
    if saved.model.attention_layers > len(weights):
        raise ValueError(f"{saved.model.attention_layers} layers, and {len(weights)} weights")
    # Weights of the device meta take no memory, whatever sizes a stranger describes.
    with stage("model creation"), torch.device("meta"):
        network = Aam(saved.model, saved.depth, heads, width)
    expected = network.state_dict()
    network.load_state_dict(weights, assign=True)
    _check_weights(weights, expected, in_half=not saved.targets.specs)
    return saved.with_network(network.float().eval().to(device), heads)


def _check_weights(
    weights: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], in_half: bool
) -> None:
    """Raise `ValueError` for weights that no training gives, or of another type.

    Plugins ship encoders of half precision.
    """
    for name, values in expected.items():
        tensor = weights[name]
        is_half = in_half and tensor.dtype == torch.float16 and values.is_floating_point()
        if tensor.dtype != values.dtype and not is_half:
            raise ValueError(f"{WEIGHTS}: {name} is {tensor.dtype}, expected {values.dtype}")
        if tensor.numel() and tensor.abs().max() > LARGEST_WEIGHT:
            raise ValueError(f"{WEIGHTS}: {name} has a weight above {LARGEST_WEIGHT:g}")


def load_models(paths: Sequence[Path], device: torch.device) -> list[SavedModel]:
    """Read model folders, or those of their runs.

    Raises
    ------
    InputError
        As `load_model`, or the models draw their input in different ways or predict different
        targets.
    """
    models, first = [], dict[str, Any]()
    for path in map(model_folder, paths):
        folder = path / "model" if (path / "model" / MANIFEST).is_file() else path
        saved = load_model(folder, device)
        now: dict[str, Any] = {"--rarefy-depth": saved.depth, "--max-bp": saved.model.max_bp}
        now["--token-limit"] = saved.data.token_limit
        now["targets"] = [(spec.name, spec.kind) for spec in saved.targets.specs]
        first = first or now
        if differing := [name for name in first if first[name] != now[name]]:
            raise InputError(
                f"--model: {folder} and {paths[0]} differ in {shown(differing)}; predict with "
                "each separately"
            )
        models.append(saved)
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
    raise InputError(f"--pretrained-encoder: {path}: {_without_model(path)}")


def load_encoder(train: TrainConfig, fold: str) -> Encoder | None:
    """The pretrained encoder of a fold, if one is named."""
    folder = encoder_folder(train, fold)
    return None if folder is None else load_model(folder, torch.device("cpu")).encoder(folder)
