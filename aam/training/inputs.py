"""Inputs of a run: read, checked, split, and given to loaders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from aam.config import FineTuneConfig
from aam.contradictions import class_weight_problems, encoder_problems, option_problems
from aam.data.batch import Budget
from aam.data.covariates import Covariates
from aam.data.draw import Withheld
from aam.data.loader import Loader
from aam.data.split import Split, restricted
from aam.data.study import Study
from aam.data.study_inputs import load_study
from aam.data.study_splits import make_splits, split_columns
from aam.data.supervision import optional_columns, supervised
from aam.data.targets import Targets
from aam.errors import InputError, Problems, shown
from aam.runtime.device import prepare_device
from aam.runtime.distributed import SINGLE, World
from aam.runtime.manifest import MANIFEST
from aam.runtime.rng import generator
from aam.training.losses import class_weights
from aam.training.saved_model import RETRAIN, SavedModel, load_model, samples_with_labels

SubsetRows = dict[str, npt.NDArray[np.int64]]


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
    """Return the folder of the pretrained encoder: itself, its ``model``, or that of the same fold (``*``: any)."""
    path = config.targets.pretrained_encoder
    if path is None:
        return None
    for candidate in (path, *sorted(path.glob(f"fold-{fold}/model")), path / "model"):
        if (candidate / MANIFEST).is_file():
            return candidate
    expected = f"{MANIFEST}, model/ or fold-{fold}/model/"
    raise InputError(f"--pretrained-encoder: {path} holds no model ({expected}); run `aam pretrain` first{RETRAIN}")


def load_inputs(config: FineTuneConfig, world: World = SINGLE) -> Prepared:
    """Read every input of a run and split the samples.

    Raises
    ------
    InputError
        Problems of options, files or splits, before any long work.
    """
    if problems := option_problems(config, world.size):
        raise InputError(*problems)
    device = prepare_device(config.runtime)
    targets = config.targets
    if targets.metadata_column and not targets.count_prediction:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, count_penalty=0.0))
    if not targets.metadata_column and config.data.test_size is None:
        # Without labels there is nothing to hold out for, unless it is asked for.
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, test_size=0.0))
    encoder = encoder_folder(config, "*")
    if encoder is not None:
        config = _with_encoder(config, load_model(encoder, device), encoder)
    data = config.data
    columns = [*targets.metadata_column, *filter(None, [targets.normalize_by]), *split_columns(data)]
    study = load_study(
        data, config.model.max_bp, config.runtime.seed, columns, list(targets.metadata_column), targets.classifier,
        optional_columns(targets, config.covariates),
    )  # fmt: skip
    if config.model.max_bp is None:
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, max_bp=study.longest))
    return Prepared(config, study, make_splits(study, data, config.runtime.seed), device, world)


def _with_encoder(config: FineTuneConfig, encoder: SavedModel, folder: Path) -> FineTuneConfig:
    """Return the options with the sizes of a pretrained encoder; `InputError` for sizes that contradict them."""
    problems = encoder_problems(config.model, encoder.model)
    if problems:
        raise InputError(*problems)
    data = dataclasses.replace(config.data, rarefy_depth=config.data.rarefy_depth or encoder.depth)
    return dataclasses.replace(config, model=encoder.model, data=data)


def labelled(sample_ids: Sequence[str], config: FineTuneConfig) -> tuple[str, ...]:
    """Return those of some samples whose labels are used by ``--label-share``, in sorted order."""
    order = generator(config.runtime.seed, "labels").permutation(len(sample_ids))
    size = max(min(2, len(order)), round(config.targets.label_share * len(order)))
    return tuple(sample_ids[position] for position in sorted(order[:size]))


def labels_used(prepared: Prepared, split: Split) -> Split:
    """Return the split without the samples whose labels are not used: nothing that touches labels may see them."""
    if not prepared.config.targets.metadata_column:
        return split
    used = [name for subset in ("train", "validation") for name in labelled(split.ids(subset), prepared.config)]
    return restricted(split, [*used, *split.ids("test")])


def supervise(prepared: Prepared, train_ids: Sequence[str]) -> tuple[Study, Targets, Covariates]:
    """Return the study with its targets and covariates, fitted on the training samples `train_ids`."""
    config = prepared.config
    activation = config.regressor.output_activation
    return supervised(prepared.study, config.targets, config.covariates, activation, train_ids)


def check_targets(prepared: Prepared) -> None:
    """Raise `InputError` for targets, subsets and encoders that cannot be learned from, before anything is written."""
    problems = Problems()
    ranks = prepared.world.size
    for split in prepared.splits:
        used = labels_used(prepared, split)
        problems.messages += [
            f"the {subset} subset has {len(used.ids(subset))} samples for {ranks} devices; take fewer devices"
            for subset in ("train", "validation")
            if 0 < len(used.ids(subset)) < ranks
        ]
        problems.messages += _labels_seen(prepared, split)
        train_ids = used.ids("train")
        study, targets, _ = supervise(prepared, train_ids)
        unused = class_weight_problems(prepared.config.targets.class_weights, len(targets.classes))
        problems.messages += [problem for problem in unused if problem not in problems.messages]
        if study.label is not None:
            sizes = [len(spec.labels) for spec in targets.classes]
            class_weights(prepared.config.targets.class_weights, study.label[study.rows(train_ids)], sizes)
    problems.raise_if_any()


def _labels_seen(prepared: Prepared, split: Split) -> list[str]:
    """Return the problem of an encoder that was trained on labels of held-out samples, if it was."""
    folder = encoder_folder(prepared.config, split.test_fold)
    encoder = None if folder is None else load_model(folder, torch.device("cpu"))
    if encoder is None or not encoder.targets.specs:
        return []
    seen = sorted(set(split.held_out) & samples_with_labels(encoder))
    if not seen:
        return []
    columns = shown(spec.name for spec in encoder.targets.specs)
    return [
        f"--pretrained-encoder {folder} learned {columns} from {len(seen)} of the held-out samples ({shown(seen, 3)}); "
        "no result on them would mean anything: take an encoder of `aam pretrain`, or the same split"
    ]


def make_loaders(
    prepared: Prepared, study: Study, rows: SubsetRows, tokens: bool, distances: bool
) -> tuple[Loader, Loader]:
    """Return the loaders of training and validation samples."""
    config = prepared.config
    train = Loader(
        study, rows["train"], config.train.batch_size, True, config.runtime.num_workers,
        tokens=tokens, distances=distances,
        # Fewer reads, more variety; a precomputed distance would no longer be that of the rarefaction.
        shallow=0.0 if study.tree is None else config.train.shallow_draws,
        withheld=Withheld(config.train.asv_dropout, config.covariates.categorical_dropout),
        world=prepared.world, budget=prepared.budget,
    )  # fmt: skip
    validation = dataclasses.replace(train, rows=rows["validation"], shuffle=False, budget=None)
    return train, dataclasses.replace(validation, shallow=0.0, withheld=Withheld())
