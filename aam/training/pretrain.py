"""Pretraining: an encoder learns UniFrac, masked bases and masked counts, without labels."""

from __future__ import annotations

from aam.config import PretrainConfig
from aam.data.loader import Collation, Loader
from aam.data.study import Study
from aam.device.distributed import SINGLE, World
from aam.training.inference import Rows
from aam.training.task import (
    AmpliconTask,
    FittedNetwork,
    NetworkOptions,
    Place,
    create_network,
    encoder_heads,
    make_loaders,
    train,
)

# Share of the training draws of fewer reads than the depth, down to a quarter: more variety.
SHALLOW_DRAWS = 0.5


def pretraining_loaders(
    study: Study, rows: tuple[Rows, Rows], config: NetworkOptions, world: World = SINGLE
) -> tuple[Loader, Loader]:
    """The loaders of the training and of the validation samples."""
    # A precomputed distance would not be that of a shallow draw.
    shallow = SHALLOW_DRAWS if study.has_tree or len(study.parts) > 1 else 0.0
    how = Collation(distances=study.metric is not None and config.train.penalty > 0)
    return make_loaders(study, rows, config, how, world, shallow=shallow)


def fit_encoder(
    study: Study, rows: tuple[Rows, Rows], config: PretrainConfig, place: Place
) -> FittedNetwork:
    """Pretrain an encoder.

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
    heads = encoder_heads(study, config.train, rows[0])
    network = create_network(study, heads, config, place, rows[0])
    loaders = pretraining_loaders(study, rows, config, place.world)
    task = AmpliconTask(network, config, *loaders, place.device, world=place.world)
    return train(task, config, study, heads, place)
