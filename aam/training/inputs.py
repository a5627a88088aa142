"""Inputs of a run: read, checked and divided."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from aam.config import FineTuneConfig
from aam.contradictions import class_weight_problems, option_problems
from aam.data.batch import Budget
from aam.data.division import divided, division_columns
from aam.data.draw import Withheld
from aam.data.loader import Loader
from aam.data.split import Split, restricted
from aam.data.study import Study, load_study
from aam.data.supervision import Covariates, optional_columns, supervised
from aam.data.targets import Targets
from aam.errors import InputError, Problems
from aam.runtime.device import prepare_device
from aam.runtime.distributed import SINGLE, World
from aam.runtime.files import MANIFEST
from aam.runtime.rng import generator
from aam.training.losses import class_weights
from aam.training.saved_model import RETRAIN, load_model

Sides = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Inputs of a run, read and checked."""

    config: FineTuneConfig
    study: Study
    splits: tuple[Split, ...]
    device: torch.device
    world: World = SINGLE
    budget: Budget | None = None


def encoder_folder(config: FineTuneConfig, fold: str) -> Path | None:
    """Model folder of the pretrained encoder: itself, its ``model``, or that of the same fold (``*``: of any)."""
    path = config.targets.pretrained_encoder
    if path is None:
        return None
    for candidate in (path, *sorted(path.glob(f"fold-{fold}/model")), path / "model"):
        if (candidate / MANIFEST).is_file():
            return candidate
    expected = f"{MANIFEST}, model/ or fold-{fold}/model/"
    raise InputError(f"--pretrained-encoder: {path} holds no model ({expected}); run `aam pretrain` first{RETRAIN}")


def load_inputs(config: FineTuneConfig, world: World = SINGLE) -> Prepared:
    """Read every input of a run and divide the samples.

    Raises
    ------
    InputError
        Problems of options, files or splits, before any long work.
    """
    if problems := option_problems(config, world.size):
        raise InputError(*problems)
    device = prepare_device(config.runtime)
    data, targets = config.data, config.targets
    if targets.metadata_column and not targets.count_prediction:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, count_penalty=0.0))
    first = encoder_folder(config, "*")
    if targets.pretrained_encoder is not None and first is not None:
        start = load_model(first, device)
        depth = data.rarefy_depth or start.depth
        config = dataclasses.replace(config, model=start.model, data=dataclasses.replace(data, rarefy_depth=depth))
        data = config.data
    columns = [*targets.metadata_column, *filter(None, [targets.normalize_by]), *division_columns(data)]
    study = load_study(
        data, config.model.max_bp, config.runtime.seed, columns, list(targets.metadata_column), targets.classifier,
        optional_columns(targets, config.covariates),
    )  # fmt: skip
    return Prepared(config, study, divided(study, data, config.runtime.seed), device, world)


def labelled(train_ids: Sequence[str], config: FineTuneConfig) -> tuple[str, ...]:
    """The training samples whose labels are used, in sorted order."""
    order = generator(config.runtime.seed, "labels").permutation(len(train_ids))
    return tuple(train_ids[at] for at in sorted(order[: max(2, round(config.targets.label_share * len(order)))]))


def supervise(prepared: Prepared, train_ids: Sequence[str]) -> tuple[Study, Targets, Covariates]:
    """Return the study with its targets and covariates, fitted on the training samples `train_ids`."""
    config = prepared.config
    activation = config.regressor.output_activation
    return supervised(prepared.study, config.targets, config.covariates, activation, train_ids)


def check_targets(prepared: Prepared) -> None:
    """Raise `InputError` for targets and sides that cannot be learned from, before anything is written."""
    problems, ranks = Problems(), prepared.world.size
    for split in prepared.splits:
        few = {side: len(split.ids(side)) for side in ("train", "validation") if 0 < len(split.ids(side)) < ranks}
        problems.messages += [
            f"the {side} side has {n} samples for {ranks} devices; take fewer" for side, n in few.items()
        ]
        train_ids = labelled(split.ids("train"), prepared.config)
        study, targets, _ = supervise(prepared, train_ids)
        unused = class_weight_problems(prepared.config.targets.class_weights, len(targets.classes))
        problems.messages += [problem for problem in unused if problem not in problems.messages]
        if study.label is not None:
            sizes = [len(spec.labels) for spec in targets.classes]
            class_weights(prepared.config.targets.class_weights, study.label[study.rows(train_ids)], sizes)
    problems.raise_if_any()


def make_loaders(
    prepared: Prepared, study: Study, sides: Sides, tokens: bool, distances: bool
) -> tuple[Loader, Loader]:
    """Return the loaders of training and validation samples."""
    config = prepared.config
    train = Loader(
        study, sides["train"], config.train.batch_size, True, config.runtime.num_workers,
        tokens=tokens, distances=distances,
        # Fewer reads, more variety; a precomputed distance would no longer be that of the draw.
        shallow=0.0 if study.tree is None else config.train.shallow_draws,
        withheld=Withheld(config.train.asv_dropout, config.covariates.categorical_dropout),
        world=prepared.world, budget=prepared.budget,
    )  # fmt: skip
    held_out = dataclasses.replace(train, rows=sides["validation"], shuffle=False, budget=None)
    return train, dataclasses.replace(held_out, shallow=0.0, withheld=Withheld())


def labels_used(prepared: Prepared, split: Split) -> Split:
    """The split without the samples whose labels were not used, from which baselines may not learn either."""
    used = labelled(split.ids("train"), prepared.config)
    return restricted(split, [*used, *split.ids("validation"), *split.ids("test")])
