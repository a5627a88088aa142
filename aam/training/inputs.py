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
from aam.contradictions import contradictions
from aam.data.batch import Budget
from aam.data.covariates import Covariates
from aam.data.draw import Withheld
from aam.data.loader import Loader
from aam.data.split import Split, restricted
from aam.data.study import Study
from aam.data.study_inputs import load_study
from aam.data.study_splits import make_splits, split_columns, split_option_problems
from aam.data.supervision import optional_columns, supervised
from aam.data.targets import Targets
from aam.errors import InputError, Problems, shown
from aam.options import out_of_range
from aam.runtime.device import prepare_device
from aam.runtime.distributed import SINGLE, World
from aam.runtime.files import MANIFEST
from aam.runtime.rng import generator
from aam.training.losses import class_weights
from aam.training.pipeline import stage_problems
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


def _check_options(config: FineTuneConfig, world: World) -> None:
    """Refuse, together, options that contradict each other or lie outside their range."""
    data, model, problems = config.data, config.model, Problems()
    problems.found += [*out_of_range(config), *contradictions(config), *split_option_problems(data)]
    problems.found += stage_problems(config, world)
    for name, value in {**vars(data), **vars(config.targets)}.items():
        if isinstance(value, Path) and not value.exists():
            problems.add(f"--{name.replace('_', '-')}: {value}: no such file or folder")
    reserved = {"sample-id", "fold", "note"} & set(config.targets.metadata_column)
    if reserved:
        problems.add(f"--metadata-column: {shown(sorted(reserved))} cannot be told from columns of predictions.tsv")
    if config.targets.ensemble and data.cv is None:
        problems.add("--ensemble needs --cv, whose folds are its members; other models: aam predict --model A B")
    if config.runtime.output_dir is None:
        problems.add("--output-dir: not given; name the folder of the run")
    if data.cv is not None and config.runtime.resume_from not in (None, "auto"):
        problems.add(f"--resume-from is {config.runtime.resume_from}, expected auto with --cv")
    if model.attention_heads < 1 or model.embedding_dim % model.attention_heads:
        width, heads = model.embedding_dim, model.attention_heads
        problems.add(f"--embedding-dim {width} is not divisible by --attention-heads {heads}")
    problems.raise_if_any()


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
    _check_options(config, world)
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
    columns = [*targets.metadata_column, *filter(None, [targets.normalize_by]), *split_columns(data)]
    study = load_study(
        data, config.model.max_bp, config.runtime.seed, columns, list(targets.metadata_column), targets.classifier,
        optional_columns(targets, config.covariates),
    )  # fmt: skip
    return Prepared(config, study, make_splits(study, data, config.runtime.seed), device, world)


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
        problems.found += [
            f"the {side} side has {n} samples for {ranks} devices; take fewer" for side, n in few.items()
        ]
        train_ids = labelled(split.ids("train"), prepared.config)
        study, targets, _ = supervise(prepared, train_ids)
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
