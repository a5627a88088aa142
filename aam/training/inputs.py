"""Inputs of a run: read, checked, split, and given to loaders."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from aam.config import FineTuneConfig
from aam.data.splits import Split, make_splits, split_columns
from aam.data.study import Inputs, MetadataColumns, Study, make_study, read_inputs
from aam.data.targets import Covariates, Targets, fit_labels, optional_columns
from aam.device.distributed import SINGLE, World
from aam.device.platform import prepare_device
from aam.errors import InputError, Problems, shown
from aam.evaluate.predictions import name_problems
from aam.io.metadata import Metadata
from aam.model.aam import Aam
from aam.predict.network import AsvVectors, EncodedAsvs
from aam.predict.saved_model import SavedModel, load_model, samples_with_labels
from aam.training.losses import class_weights
from aam.training.network import encoder_folder

log = logging.getLogger("aam")

SubsetRows = dict[str, npt.NDArray[np.int64]]

# Number of folds by default, and the largest study that is cross-validated (docs/prepare-data.md).
DEFAULT_FOLDS, LEAST_GROUPS_FOR_FOLDS = 5, 10

# Folds of a study of few groups leave a class of two groups only one to learn from.
FEW_GROUPS, LEAST_GROUPS_OF_CLASS = 30, 3
MOST_ROWS, MOST_CELLS = 1_500, 20_000_000

# Samples up to which a report compares the model with strong baselines.
MOST_BASELINE_ROWS = MOST_ROWS


@dataclass(frozen=True, eq=False)
class Prepared:
    """Inputs of a run, read and checked."""

    config: FineTuneConfig
    study: Study
    splits: tuple[Split, ...]
    device: torch.device
    world: World = SINGLE
    # Whether the report compares the model with strong baselines too.
    strong_baselines: bool = False
    encoded: EncodedAsvs = field(default_factory=EncodedAsvs)

    def frozen_asvs(self, network: Aam | None, study: Study) -> AsvVectors | None:
        """Return the vectors of all ASVs where their encoder is frozen, computed once for all folds
        that share it.

        None without a network.
        """
        if network is None or not self.config.targets.freeze_base:
            return None
        return self.encoded.encode(network, study, self.device, self.config.runtime)


def resolved(config: FineTuneConfig) -> FineTuneConfig:
    """Return the options of a training with those that others decide."""
    targets = config.targets
    members = targets.members or config.default_members
    config = dataclasses.replace(config, targets=dataclasses.replace(targets, members=members))
    data = config.data
    if not config.trains_network:
        # Only a network needs validation samples; other members choose by inner folds.
        data = dataclasses.replace(data, validation_size=0.0)
    return dataclasses.replace(config, data=data.divided_by_study())


def metadata_columns(config: FineTuneConfig) -> MetadataColumns:
    """Return the metadata columns that a run reads."""
    targets = config.targets
    required = [*targets.metadata_column, *split_columns(config.data)]
    optional = optional_columns(config.covariates)
    optional += filter(None, [config.data.group_column])
    return MetadataColumns(
        required,
        optional,
        targets.metadata_column,
        targets.classifier,
        numeric=config.covariates.numeric_columns,
    )


def load_inputs(
    config: FineTuneConfig, world: World = SINGLE, folds: bool = False, inputs: Inputs | None = None
) -> Prepared:
    """Read every input of a run from its files, unless there are `inputs` already, and split the
    samples.

    With `folds` a study that is small enough is cross-validated where nothing else is asked for,
    and, where it comes from files, compared with learned baselines, which its report shows.

    Raises
    ------
    InputError
        Problems of the encoder, the inputs or splits, before any long work.
    """
    device = prepare_device(config.runtime)
    asked, chosen = shown(config.network_options), config.targets.members
    config = resolved(config)
    if asked and not chosen and len(config.targets.members) > 1 and world.is_main:
        log.info("a network is trained too: %s asked for it; --members leaves it out", asked)
    config, pretrained = _with_encoder(config, device)
    columns = metadata_columns(config)
    in_memory, inputs = inputs is not None, inputs or read_inputs(config.data, columns)
    learns_alone = folds and not config.trains_network
    # Before the depth is chosen, which keeps most training samples of each class: with folds those
    # are all.
    config, why_folds = _with_folds(config, inputs, columns) if learns_alone else (config, "")
    data = config.data
    study = make_study(inputs, data, config.model.max_bp, config.runtime.seed, columns)
    if config.trains_network:
        study.require_sequences()
    if config.model.max_bp is None:
        config = dataclasses.replace(
            config, model=dataclasses.replace(config.model, max_bp=study.longest)
        )
    study = study.placed_on(None if pretrained is None else pretrained.reference)
    _check_studies(study, data.study_column)
    table = study.table
    for sentence in () if pretrained is None else pretrained.profile.compare(table):
        log.warning("warning: --pretrained-encoder: %s", sentence)
    splits = make_splits(study, config.data, config.runtime.seed)
    if why_folds:
        log.info("%s", why_folds)
    quick = _is_quick(config, len(table.sample_ids), len(table.feature_ids), len(splits))
    small = len(table.sample_ids) <= MOST_BASELINE_ROWS
    held_out = any(split.held_out for split in splits)
    strong = quick and small and held_out and not in_memory
    return Prepared(config, study, splits, device, world, strong)


def _is_quick(config: FineTuneConfig, samples: int, asvs: int, folds: int) -> bool:
    """Return whether so many folds, learned baselines among them, take about two minutes on two
    cores, or less.

    That is up to five folds of `MOST_ROWS` samples for each column to predict and `MOST_CELLS`
    samples times ASVs, or more folds of fewer samples.
    """
    rows = samples * len(config.targets.metadata_column) * max(1.0, folds / DEFAULT_FOLDS)
    return rows <= MOST_ROWS and rows * asvs <= MOST_CELLS


def _with_folds(
    config: FineTuneConfig, inputs: Inputs, columns: MetadataColumns
) -> tuple[FineTuneConfig, str]:
    """Return the options with a cross-validation, where no split is asked for, it is quick, and
    there are groups.

    And why there is one, for the log; nothing where there is none. Samples that have the metadata
    count, whatever their reads.
    """
    data, metadata = config.data, inputs.metadata
    asked = (data.cv, data.split, data.split_column, data.test_size)
    if metadata is None or any(option is not None for option in asked):
        return config, ""
    ids = [name for table in inputs.tables for name in table.sample_ids if name in metadata]
    for column in columns.required:
        ids = [
            name
            for name, value in zip(ids, metadata.values(column, ids), strict=True)
            if value is not None
        ]
    named = None if data.group_column is None else metadata.groups(data.group_column, ids)
    groups, asvs = len(set(named or ids)), sum(len(table.feature_ids) for table in inputs.tables)
    if groups < LEAST_GROUPS_FOR_FOLDS or not _is_quick(config, len(ids), asvs, DEFAULT_FOLDS):
        return config, ""
    if rare := _rare_class(config, metadata, ids, named or ids):
        log.info("no folds: class %s; all samples are learned from", rare)
        return config, ""
    whole = "samples" if data.group_column is None else f"{data.group_column} (whole groups)"
    own = (
        "; --cv fold takes the folds of the metadata column fold"
        if "fold" in metadata.kinds
        else ""
    )
    why = (
        f"every sample is predicted by a model that has not seen it: {DEFAULT_FOLDS} folds of "
        f"the {groups} {whole}, as {len(ids)} samples and {asvs} ASVs are few enough; "
        f"--test-size holds out one subset instead{own}"
    )
    data = dataclasses.replace(data, cv=str(DEFAULT_FOLDS))
    return dataclasses.replace(config, data=data), why


def _rare_class(
    config: FineTuneConfig, metadata: Metadata, ids: Sequence[str], groups: Sequence[str]
) -> str:
    """Name a class in too few groups for folds of a study of few groups; empty if there is none."""
    if len(set(groups)) >= FEW_GROUPS:
        return ""
    for column in config.targets.metadata_column:
        if metadata.kinds[column] == "numeric" and not config.targets.classifier:
            continue
        groups_of = dict[str, set[str]]()
        for value, group in zip(metadata.values(column, ids), groups, strict=True):
            groups_of.setdefault(str(value), set()).add(group)
        rare = min(groups_of, key=lambda label: len(groups_of[label]))
        if len(groups_of[rare]) < LEAST_GROUPS_OF_CLASS:
            return f"{rare!r} of {column!r} has {len(groups_of[rare])}"
    return ""


def _check_studies(study: Study, column: str | None) -> None:
    """Refuse to learn of studies what one study cannot tell."""
    names = set(study.column(column, study.table.sample_ids) or ())
    if len(names) == 1:
        raise InputError(
            f"--study-column {column}: all samples are of {shown(names)}, expected two studies "
            "or more; leave it out, "
            "or pass --batch-column for runs and plates of one study"
        )


def _with_encoder(
    config: FineTuneConfig, device: torch.device
) -> tuple[FineTuneConfig, SavedModel | None]:
    """Return the options with the sizes of the pretrained encoder, and the encoder; None where
    there is none.

    `InputError` for sizes that contradict it.
    """
    folder = encoder_folder(config.train, "*")
    if folder is None:
        return config, None
    encoder = load_model(folder, device)
    _ = encoder.required_network  # an encoder without a network is refused
    problems = config.model.encoder_problems(encoder.model)
    if problems:
        raise InputError(*problems)
    data = dataclasses.replace(config.data, rarefy_depth=config.data.rarefy_depth or encoder.depth)
    return dataclasses.replace(config, model=encoder.model, data=data), encoder


def supervise(prepared: Prepared, train_ids: Sequence[str]) -> tuple[Study, Targets, Covariates]:
    """Return the study with all its targets and covariates, fitted on the training samples
    `train_ids`.
    """
    config = prepared.config
    study = prepared.study
    if study.metadata is None:
        return study, Targets(()), Covariates()
    labels, targets, covariates = fit_labels(
        study.metadata, study.table.sample_ids, train_ids, config.targets, config.covariates
    )
    return dataclasses.replace(study, labels=labels), targets, covariates


def check_targets(prepared: Prepared) -> None:
    """Raise `InputError` for targets, subsets and encoders that cannot be learned from, before
    anything is written.

    Covariates that some samples lack, whose categories a training subset lacks, or that tell a
    target, are logged, each message once.
    """
    problems = Problems()
    ranks = prepared.world.size
    unknown: dict[str, None] = {}
    for split in prepared.splits:
        problems.messages += [
            (
                f"the {subset} subset has {len(split.ids(subset))} samples for {ranks} devices; "
                "take "
                "fewer devices"
            )
            for subset in ("train", "validation")
            if 0 < len(split.ids(subset)) < ranks
        ]
        problems.messages += _labels_seen(prepared, split)
        train_ids = split.ids("train")
        study, targets, covariates = supervise(prepared, train_ids)
        if study.metadata is not None:
            unknown |= dict.fromkeys(
                covariates.unknown_values(study.metadata, study.table.sample_ids)
            )
            unknown |= dict.fromkeys(
                covariates.leaks(targets, study.metadata, study.table.sample_ids)
            )
        refused = prepared.config.targets.class_weight_problems(len(targets.classes))
        refused += [
            *name_problems(targets.specs),
            *_undefined_metric(prepared.config, study, targets, split),
        ]
        problems.messages += [problem for problem in refused if problem not in problems.messages]
        if targets.specs:
            sizes = [len(spec.labels) for spec in targets.classes]
            class_weights(
                prepared.config.targets.class_weights,
                study.labels.label[study.rows(train_ids)],
                sizes,
            )
    problems.raise_if_any()
    for message in unknown if prepared.world.is_main else ():
        log.warning("%s", message)


def _undefined_metric(
    config: FineTuneConfig, study: Study, targets: Targets, split: Split
) -> list[str]:
    """Return why ``--best-metric`` cannot choose an epoch: of one value alone there is neither
    AUROC nor R2.
    """
    metric, rows = config.targets.best_metric, study.rows(split.ids("validation"))
    if metric not in ("auroc", "r2") or not len(rows):
        return []
    classes = metric == "auroc"
    values, specs = (
        (study.labels.label, targets.classes) if classes else (study.labels.target, targets.numeric)
    )
    of_fold = f" of fold {split.test_fold}" if split.test_fold else ""
    return [
        f"--best-metric {metric}: the validation subset{of_fold} holds one value of "
        f"{spec.name!r} only, so that no "
        "epoch is the best; take another metric or a larger --validation-size"
        for spec, column in zip(specs, values[rows].T, strict=True)
        if len(np.unique(column)) < 2
    ]


def _labels_seen(prepared: Prepared, split: Split) -> list[str]:
    """Return the problem of an encoder that was trained on labels of held-out samples, if it
    was.
    """
    folder = encoder_folder(prepared.config.train, split.test_fold)
    encoder = None if folder is None else load_model(folder, torch.device("cpu"))
    if encoder is None or not encoder.targets.specs:
        return []
    seen = sorted(set(split.held_out) & samples_with_labels(encoder))
    if not seen:
        return []
    columns = shown(spec.name for spec in encoder.targets.specs)
    return [
        f"--pretrained-encoder {folder} learned {columns} from {len(seen)} of the held-out "
        f"samples ({shown(seen, 3)}); "
        "no result on them would mean anything: take an encoder of `aam pretrain`, or the same "
        "split"
    ]
