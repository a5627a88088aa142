"""What pretraining and supervised training share: how a network starts, where it trains, and what
comes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.config import ModelConfig, TrainConfig
from aam.data.batch import Batch
from aam.data.collate import Collation, rarefied_batch
from aam.data.splits import fold_folder
from aam.data.study import Study
from aam.device.distributed import SINGLE, World
from aam.device.memory import keep_freed_memory
from aam.encoders import model_folder
from aam.engine.checkpoint import State
from aam.engine.options import RunConfig
from aam.engine.run import RunDirectory
from aam.engine.trainer import Trainer, fit
from aam.errors import InputError
from aam.files.atomic import MANIFEST
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.predict.network import EncodedAsvs
from aam.predict.saved_model import RETRAIN
from aam.training.task import AmpliconTask

log = logging.getLogger("aam")

Rows = npt.NDArray[np.int64]

# Samples that vectors and losses are scaled by.
SCALE_SAMPLES = 256


@dataclass(frozen=True, eq=False)
class Place:
    """Where a network trains.

    Attributes
    ----------
    device : torch.device
    run : RunDirectory, optional
        Its metrics, checkpoints and signals; without a run the network trains in memory.
    folder : Path
        The run directory, or a fold below it.
    title : str
        Name of the training in the log.
    fold : str
        Fold whose encoder is taken where an encoder has several.
    state : State, optional
        The checkpoint from which the training goes on.
    encoded : EncodedAsvs
        Vectors of ASVs that folds with the same frozen encoder share.
    """

    device: torch.device
    run: RunDirectory | None = None
    folder: Path = Path()
    title: str = "network"
    fold: str = ""
    state: State | None = None
    encoded: EncodedAsvs = field(default_factory=EncodedAsvs)

    @property
    def world(self) -> World:
        """The ranks that train together."""
        return SINGLE if self.run is None else self.run.world

    def train(
        self, task: AmpliconTask, train: TrainConfig, machine: RunConfig, model: Aam
    ) -> Trainer:
        """Train a task to its end, from the checkpoint if there is one."""
        model.bound_memory(machine.asv_chunk_size, machine.gradient_checkpointing)
        if self.device.type == "cpu":
            keep_freed_memory()
        if self.run is None:
            trainer = Trainer(task, train, machine)
            trainer.fit()
            return trainer
        compiler = self.run.about["decisions"].get("compile", {}).get("backend", "eager")
        if compiler != "eager":
            task.compile_losses(compiler)
        return fit(task, train, self.run, self.folder, self.state, self.title)


@dataclass(frozen=True, eq=False)
class FittedNetwork:
    """A network that has been trained.

    Attributes
    ----------
    network : Aam
        With its best weights, in evaluation mode.
    heads : HeadConfig
    last_weights : dict of str to tensor
        The weights of the last step.
    best_epoch : int
    seen_samples, labelled_samples : frozenset of str
        Samples that the network, or the encoder it started from, has learned from, and those whose
        labels took part.
    """

    network: Aam
    heads: HeadConfig
    last_weights: Mapping[str, Tensor]
    best_epoch: int
    seen_samples: frozenset[str]
    labelled_samples: frozenset[str] = frozenset()


def best_network(model: ModelConfig, study: Study, heads: HeadConfig, trainer: Trainer) -> Aam:
    """Return a new network with the best weights: the trained one may be sharded."""
    network = Aam(model, study.depth, heads, study.reference_width).to(trainer.device)
    network.load_state_dict(trainer.best_weights)
    return network.eval()


def _scale_rows(study: Study, train_rows: Rows) -> Rows:
    """Return the training samples that vectors and losses are scaled by: the first ones, or some of
    each study.
    """
    if len(study.parts) == 1:
        return train_rows[:SCALE_SAMPLES]
    ordered = sorted(train_rows.tolist(), key=study.origin.__getitem__)
    return np.array(ordered[:: max(1, len(ordered) // SCALE_SAMPLES)], np.int64)


def first_batch(study: Study, train_rows: Rows) -> Batch:
    """Return the batch by which a new network is standardized."""
    return rarefied_batch(study, _scale_rows(study, train_rows), 0, Collation(distances=False))


def _scale(distance: Tensor | None) -> tuple[float, float]:
    """Return mean and standard deviation of distances [B, B], each pair once, without NaN."""
    if distance is None:
        return 0.0, 1.0
    rows, columns = torch.triu_indices(len(distance), len(distance), 1)
    values = distance[rows, columns]
    values = values[torch.isfinite(values)]
    if len(values) < 2 or not values.std() > 0:
        return 0.0, 1.0
    return float(values.double().mean()), float(values.double().std())


def encoder_heads(study: Study, train: TrainConfig, train_rows: Rows) -> HeadConfig:
    """Return the heads of an encoder, scaled by the distances of the training samples."""
    counts = train.count_penalty > 0
    if study.metric is None or train.penalty <= 0:
        return HeadConfig(counts=counts)
    batch = rarefied_batch(study, _scale_rows(study, train_rows), 0, Collation(tokens=False))
    return HeadConfig(metric=study.metric, scale=_scale(batch.distance), counts=counts)


def encoder_folder(train: TrainConfig, fold: str) -> Path | None:
    """Return the folder of the pretrained encoder: itself, its ``model``, or that of the same fold
    (``*``: any).
    """
    if train.pretrained_encoder is None:
        return None
    path = model_folder(train.pretrained_encoder)
    folder = "fold-*" if fold == "*" else fold_folder(fold)
    of_fold = path.glob("fold-*/model") if fold == "*" else [path / folder / "model"]
    for candidate in (path, *sorted(of_fold), path / "model"):
        if (candidate / MANIFEST).is_file():
            return candidate
    expected = f"{MANIFEST}, model/ or {folder}/model/"
    raise InputError(
        f"--pretrained-encoder: {path} holds no model ({expected}); run `aam pretrain` "
        f"first{RETRAIN}"
    )


def load_matching_weights(
    network: Aam, encoder: Aam, source: Path, left_out: tuple[str, ...] = ()
) -> None:
    """Copy the weights of `encoder` that match in name and shape, and log which ones.

    Parameters
    ----------
    network, encoder : Aam
    source : Path
        Folder of the encoder, for messages.
    left_out : tuple of str
        Parts whose weights stay as they are.

    Raises
    ------
    InputError
        No weight matches.
    """
    encoder_weights, weights = encoder.state_dict(), network.state_dict()
    usable = {n: value for n, value in encoder_weights.items() if not n.startswith(left_out)}
    loaded = [
        name for name in weights if name in usable and weights[name].shape == usable[name].shape
    ]
    if not loaded:
        raise InputError(
            f"{source}: no weight of it fits this model; pretrain again with the same sizes"
        )
    network.load_state_dict({**weights, **{name: usable[name] for name in loaded}})
    parts = {
        "loaded": loaded,
        "new": weights.keys() - set(loaded),
        "ignored": encoder_weights.keys() - set(loaded),
    }
    for title, names in parts.items():
        heads = sorted({name.split(".")[0] for name in names})
        named = f" ({', '.join(heads)})" if heads else ""
        log.info("%s: %d tensors %s%s", source, len(names), title, named)
