"""Start, training and end of a network, for pretraining and supervised training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aam.config import TrainConfig
from aam.data.batch import Batch
from aam.data.loader import Collation, Loader, rarefied_batch
from aam.data.study import Study
from aam.device.distributed import SINGLE, World
from aam.device.measure import keep_freed_memory, stage
from aam.engine.checkpoint import State
from aam.engine.run import RunDirectory
from aam.engine.trainer import Trainer, fit
from aam.errors import InputError
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.training.inference import EncodedAsvs, Encoder, Rows
from aam.training.task import AmpliconTask, NetworkOptions

log = logging.getLogger("aam")

# Samples that vectors and losses are scaled by.
SCALE_SAMPLES = 256


@dataclass(frozen=True, eq=False)
class Place:
    """Place where a network trains: device, run and folder.

    Attributes
    ----------
    device : torch.device
    run : RunDirectory, optional
        Its metrics, checkpoints and signals; without a run the network trains in memory.
    folder : Path
        The run directory, or a fold below it.
    title : str
        Name of the training in the log.
    state : State, optional
        The checkpoint from which the training goes on.
    encoder : Encoder, optional
        The pretrained network that it starts from.
    encoded : EncodedAsvs
        Vectors of ASVs that folds with the same frozen encoder share.
    """

    device: torch.device
    run: RunDirectory | None = None
    folder: Path = Path()
    title: str = "network"
    state: State | None = None
    encoder: Encoder | None = None
    encoded: EncodedAsvs = field(default_factory=EncodedAsvs)

    @property
    def world(self) -> World:
        """The ranks that train together."""
        return SINGLE if self.run is None else self.run.world


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
    """

    network: Aam
    heads: HeadConfig
    last_weights: Mapping[str, Tensor]
    best_epoch: int


def create_network(
    study: Study,
    heads: HeadConfig,
    config: NetworkOptions,
    encoder: Encoder | None,
    new_parts: tuple[str, ...] = (),
) -> Aam:
    """A network with the weights of an encoder, except for its `new_parts`."""
    torch.manual_seed(config.runtime.seed)
    with stage("model creation"):
        network = Aam(config.model, study.depth, heads, study.reference_width)
    if encoder is not None:
        load_matching_weights(network, encoder, new_parts)
    return network


def make_loaders(
    study: Study,
    rows: tuple[Rows, Rows],
    config: NetworkOptions,
    how: Collation,
    world: World = SINGLE,
    **of_training: float,
) -> tuple[Loader, Loader]:
    """The loaders of the training and of the validation samples; the former draws otherwise too."""
    learned = Loader(
        study,
        rows[0],
        config.train.samples_per_batch,
        shuffle=True,
        workers=config.runtime.num_workers,
        how=replace(how, **of_training),  # type: ignore[arg-type]
        world=world,
    )
    return learned, replace(learned, rows=rows[1], shuffle=False, how=how)


def standardize(
    network: Aam, encoder: Encoder | None, study: Study, train_rows: Rows, reads_anew: bool = False
) -> None:
    """Scale what is new of a network on a first batch, before any training.

    With `reads_anew` the numbers on a reference are read by their variation in this study.
    """
    batch = scale_batch(study, train_rows, Collation(distances=False))
    if encoder is None or not encoder.network.reads_samples:
        # An encoder of masked bases has learned nothing of samples.
        network.standardize(batch)
        return
    if reads_anew:
        network.standardize_reference(batch)
    if encoder.network.distance is None:
        network.standardize_distance(batch)


def train(
    task: AmpliconTask, config: NetworkOptions, study: Study, heads: HeadConfig, place: Place
) -> FittedNetwork:
    """Train the network of a task to its end, from the checkpoint of `place` if there is one."""
    model, machine, run = task.model, config.runtime, place.run
    model.bound_memory(machine.asv_chunk_size, machine.gradient_checkpointing)
    if place.device.type == "cpu":
        keep_freed_memory()
    if run is None:
        trainer = Trainer(task, config.train, machine)
        trainer.fit()
    else:
        compiler = run.about["decisions"].get("compile", {}).get("backend", "eager")
        if compiler != "eager":
            task.compile_losses(compiler)
        trainer = fit(task, config.train, run, place.folder, place.state, place.title)
    # The trained network may be sharded.
    best = Aam(config.model, study.depth, heads, study.reference_width).to(place.device)
    best.load_state_dict(trainer.best_weights)
    return FittedNetwork(best.eval(), heads, trainer.last_weights, trainer.progress.best_epoch)


def scale_batch(study: Study, train_rows: Rows, how: Collation) -> Batch:
    """The batch that vectors and losses are scaled by: of the first samples, or from each study."""
    rows = train_rows[:SCALE_SAMPLES]
    if len(study.parts) > 1:
        ordered = sorted(train_rows.tolist(), key=study.origin.__getitem__)
        rows = np.array(ordered[:: max(1, len(ordered) // SCALE_SAMPLES)], np.int64)
    return rarefied_batch(study, rows, 0, how)


def _scale(distance: Tensor | None) -> tuple[float, float]:
    """Mean and standard deviation of distances [B, B], each pair once, without NaN."""
    if distance is None:
        return 0.0, 1.0
    rows, columns = torch.triu_indices(len(distance), len(distance), 1)
    values = distance[rows, columns]
    values = values[torch.isfinite(values)].double()
    if len(values) < 2 or not values.std() > 0:
        return 0.0, 1.0
    return float(values.mean()), float(values.std())


def encoder_heads(study: Study, options: TrainConfig, train_rows: Rows) -> HeadConfig:
    """The heads of an encoder, scaled by the distances of the training samples."""
    counts = options.count_penalty > 0
    if study.metric is None or options.penalty <= 0:
        return HeadConfig(counts=counts)
    batch = scale_batch(study, train_rows, Collation(tokens=False))
    return HeadConfig(metric=study.metric, scale=_scale(batch.distance), counts=counts)


def load_matching_weights(network: Aam, encoder: Encoder, new_parts: tuple[str, ...] = ()) -> None:
    """Copy the weights of an encoder that match in name and shape, except for `new_parts`.

    Raises
    ------
    InputError
        No weight matches.
    """
    known, weights = encoder.network.state_dict(), network.state_dict()
    loaded = {
        name: value
        for name, value in known.items()
        if name in weights and weights[name].shape == value.shape and not name.startswith(new_parts)
    }
    if not loaded:
        raise InputError(
            f"{encoder.source}: no weight of it fits this model; pretrain again with the same sizes"
        )
    network.load_state_dict({**weights, **loaded})
    parts = {
        "loaded": loaded.keys(),
        "new": weights.keys() - loaded,
        "ignored": known.keys() - loaded,
    }
    for title, names in parts.items():
        heads = sorted({name.split(".")[0] for name in names})
        named = f" ({', '.join(heads)})" if heads else ""
        log.info("%s: %d tensors %s%s", encoder.source, len(names), title, named)
