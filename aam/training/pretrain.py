"""Pretraining: an encoder learns UniFrac, masked bases and masked counts, without labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from aam.config import PretrainConfig
from aam.data.collate import Collation
from aam.data.loader import Loader
from aam.data.study import Study
from aam.device.distributed import SINGLE, World
from aam.device.timing import stage
from aam.model.aam import Aam
from aam.predict.saved_model import load_model, samples_with_labels
from aam.training.network import (
    FittedNetwork,
    Place,
    Rows,
    best_network,
    encoder_folder,
    encoder_heads,
    first_batch,
    load_matching_weights,
)
from aam.training.task import AmpliconTask, NetworkOptions

# Share of the training draws of fewer reads than the depth, down to a quarter: more variety.
SHALLOW_DRAWS = 0.5


def pretraining_loaders(
    study: Study, rows: tuple[Rows, Rows], config: NetworkOptions, world: World = SINGLE
) -> tuple[Loader, Loader]:
    """Return the loaders of the training and of the validation samples."""
    # A precomputed distance would not be that of a shallow draw.
    shallow = SHALLOW_DRAWS if study.has_tree or len(study.parts) > 1 else 0.0
    how = Collation(distances=study.metric is not None and config.train.penalty > 0)
    train = Loader(
        study,
        rows[0],
        config.train.samples_per_batch,
        shuffle=True,
        workers=config.runtime.num_workers,
        how=replace(how, shallow=shallow),
        world=world,
    )
    return train, replace(train, rows=rows[1], shuffle=False, how=how)


def fit_encoder(
    study: Study, rows: tuple[Rows, Rows], config: PretrainConfig, place: Place
) -> FittedNetwork:
    """Pretrain an encoder, from the checkpoint of `place` if there is one.

    Parameters
    ----------
    study : Study
    rows : pair of int64 [n]
        Rows of the training and of the validation samples; the latter choose the best epoch.
    config : PretrainConfig
        `model.max_bp` is set.
    place : Place

    Raises
    ------
    InputError
        The pretrained encoder fits no weight.
    """
    state, train_rows = place.state, rows[0]
    heads = encoder_heads(study, config.train, train_rows)
    seen = {study.table.sample_ids[row] for row in np.concatenate(rows).tolist()}
    labelled: set[str] = set()
    torch.manual_seed(config.runtime.seed)
    with stage("model creation"):
        network = Aam(config.model, study.depth, heads, study.reference_width)
    source, encoder = encoder_folder(config.train, place.fold), None
    if source is not None:
        encoder = load_model(source, torch.device("cpu"))
        load_matching_weights(network, encoder.required_network, source)
        seen |= set(encoder.notes["seen_samples"])
        labelled |= samples_with_labels(encoder)
    if state is None and (encoder is None or not encoder.required_network.reads_samples):
        network.standardize(first_batch(study, train_rows))
    elif state is None and encoder is not None and encoder.required_network.distance is None:
        network.standardize_distance(first_batch(study, train_rows))
    network.to(place.device)
    loaders = pretraining_loaders(study, rows, config, place.world)
    task = AmpliconTask(network, config, *loaders, place.device, world=place.world)
    trainer = place.train(task, config.train, config.runtime, network)
    return FittedNetwork(
        best_network(config.model, study, heads, trainer),
        heads,
        trainer.last_weights,
        trainer.progress.best_epoch,
        frozenset(seen),
        frozenset(labelled),
    )
