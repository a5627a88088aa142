"""Training on one split: build the network, new, resumed or from a pretrained encoder, fit it, and
save the models.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.config import FineTuneConfig
from aam.data.batch import Batch
from aam.data.collate import Collation, rarefied_batch
from aam.data.rarefaction import EVALUATION
from aam.data.region import RegionProfile
from aam.data.splits import SUBSETS, Split, Subset, write_split
from aam.data.study import Study
from aam.data.targets import Covariates, Targets
from aam.device.memory import keep_freed_memory
from aam.device.timing import stage
from aam.engine.checkpoint import State
from aam.engine.run import LAST, MODEL, RunDirectory, train_once
from aam.engine.trainer import Trainer, fit
from aam.errors import InputError
from aam.evaluate.predictions import write_predictions
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.predict.baselines import guess, truth_of
from aam.predict.blend import NETWORK, Blend, fit_blend, specs_in_order
from aam.predict.network import AsvVectors, encode_table, per_target, run_model
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel, load_model, samples_with_labels, save_model
from aam.training.inputs import Prepared, SubsetRows, encoder_folder, make_loaders, supervise
from aam.training.linear_start import fit_heads
from aam.training.task import AmpliconTask

log = logging.getLogger("aam")

# Parts of a network that an encoder does not have.
NEW_PARTS = ("target", "labels", "covariates")


@dataclass(frozen=True, eq=False)
class Built:
    """A network that is ready to train, with what it was made from.

    `rows` are those of the training and validation samples; `seen_samples` the ids that it, or the
    encoder it started from, has learned from or was chosen by; `labelled_samples` those whose
    labels took part.
    """

    network: Aam
    heads: HeadConfig
    study: Study
    targets: Targets
    covariates: Covariates
    rows: SubsetRows
    seen_samples: frozenset[str]
    labelled_samples: frozenset[str]
    asvs: AsvVectors | None


def build(prepared: Prepared, split: Split, state: State | None, compiler: str | None) -> Built:
    """Return the network for one split, from `state` where a run is resumed."""
    config = prepared.config
    device = prepared.device
    train_ids = split.ids("train")
    validation_ids = split.ids("validation")
    study, targets, covariates = supervise(prepared, train_ids)
    heads = head_config(config, study, targets, covariates, train_ids)
    torch.manual_seed(config.runtime.seed)
    with stage("model creation"):
        network = Aam(config.model, study.depth, heads, study.reference_width)
    rows = {"train": study.rows(train_ids), "validation": study.rows(validation_ids)}
    seen_samples = {*train_ids, *validation_ids}
    labelled_samples = set(seen_samples) if targets.specs else set()
    continues = False
    source = encoder_folder(config, split.test_fold)
    if source is not None:
        encoder = load_model(source, torch.device("cpu"))
        pretrained = encoder.required_network
        same_targets = (encoder.targets.specs, encoder.covariates) == (targets.specs, covariates)
        same_heads = same_targets and dataclasses.replace(encoder.heads, scale=heads.scale) == heads
        load_matching_weights(network, pretrained, source, same_heads)
        if state is None and not pretrained.reads_samples:
            # It has learned masked bases alone, and nothing of samples yet.
            network.standardize(_first_batch(study, train_ids))
        elif state is None and _is_new_study(prepared, encoder, seen_samples):
            # What varies among the encoder's samples may vary little in this study
            # (docs/decisions.md).
            network.standardize_reference(_first_batch(study, train_ids))
        if state is None and pretrained.reads_samples and pretrained.distance is None:
            network.standardize_distance(_first_batch(study, train_ids))
        seen_samples |= set(encoder.notes["seen_samples"])
        labelled_samples |= samples_with_labels(encoder)
        # Trained heads go on as they are: a linear model beside their own correction would count
        # twice.
        continues = same_heads and bool(targets.specs)
    elif state is None:
        network.standardize(_first_batch(study, train_ids))
    network.to(device)
    if state is not None:
        network.load_state_dict(state.part("model"))
    frozen_asvs = prepared.frozen_asvs(network, study)
    if state is None and targets.specs and not continues:
        every = np.concatenate([rows["train"], rows["validation"]])
        asvs = (
            encode_table(network, study, device, config.runtime, every)
            if frozen_asvs is None
            else frozen_asvs
        )
        fit_heads(network, study, (rows["train"], rows["validation"]), asvs, device, config)
    if config.targets.freeze_base:
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.startswith(NEW_PARTS))
    network.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    network.compile_encoders(compiler)
    return Built(
        network,
        heads,
        study,
        targets,
        covariates,
        rows,
        frozenset(seen_samples),
        frozenset(labelled_samples),
        frozen_asvs,
    )


def load_matching_weights(network: Aam, encoder: Aam, source: Path, same_targets: bool) -> None:
    """Copy the weights of `encoder` that match in name and shape, and log which were loaded, new
    and ignored.

    Parameters
    ----------
    network : Aam
        Gets the weights.
    encoder : Aam
    source : Path
        Folder of the encoder, for messages.
    same_targets : bool
        Whether both have the same targets and covariates; only then the parts that read those are
        copied too.

    Raises
    ------
    InputError
        No weight matches.
    """
    encoder_weights = encoder.state_dict()
    weights = network.state_dict()
    left_out = () if same_targets else NEW_PARTS
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
        log.info(
            "%s: %d tensors %s%s",
            source,
            len(names),
            title,
            f" ({', '.join(heads)})" if heads else "",
        )


def _is_new_study(prepared: Prepared, encoder: SavedModel, sample_ids: Set[str]) -> bool:
    """Return whether targets are learned, and the encoder too, on a study of which it has seen no
    sample.
    """
    targets = prepared.config.targets
    learned = bool(targets.metadata_column) and not targets.freeze_base
    return learned and sample_ids.isdisjoint(encoder.notes["seen_samples"])


def _first_batch(study: Study, train_ids: Sequence[str]) -> Batch:
    return rarefied_batch(
        study, study.rows(scale_samples(study, train_ids)), 0, Collation(distances=False)
    )


def make_task(prepared: Prepared, built: Built) -> AmpliconTask:
    """Return the task that trains a network on its split."""
    config = prepared.config
    # Masked counts are chosen by the sequences of the ASVs, also where their vectors are computed
    # beforehand.
    tokens = built.asvs is None or config.train.count_penalty > 0
    loaders = make_loaders(
        prepared, built.study, built.rows, tokens, built.heads.metric is not None
    )
    return AmpliconTask(
        built.network, config, *loaders, prepared.device, asvs=built.asvs, world=prepared.world
    )


SCALE_SAMPLES = 256


def scale_samples(study: Study, train_ids: Sequence[str]) -> Sequence[str]:
    """Return the training samples that vectors and losses are scaled by: the first ones, or some of
    every study.
    """
    if len(study.parts) == 1:
        return train_ids[:SCALE_SAMPLES]
    ordered = sorted(study.rows(train_ids).tolist(), key=study.origin.__getitem__)
    return [
        study.table.sample_ids[row] for row in ordered[:: max(1, len(ordered) // SCALE_SAMPLES)]
    ]


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


def head_config(
    config: FineTuneConfig,
    study: Study,
    targets: Targets,
    covariates: Covariates,
    train_ids: Sequence[str],
) -> HeadConfig:
    """Return the heads that `config` asks for, scaled by the distances of the training samples."""
    metric, scale = study.metric if config.train.penalty > 0 else None, (0.0, 1.0)
    if metric is not None:
        rows = study.rows(scale_samples(study, train_ids))
        scale = _scale(rarefied_batch(study, rows, 0, Collation(tokens=False)).distance)
    return HeadConfig(
        metric=metric,
        scale=scale,
        counts=config.train.count_penalty > 0,
        n_targets=len(targets.numeric),
        n_classes=tuple(len(spec.labels) for spec in targets.classes),
        levels=tuple(1 + len(levels) for levels in covariates.categorical.values()),
        numbers=len(covariates.numeric),
        covariates=config.covariates,
    )


# Predictions of validation samples, where the saved model has learned from them too.
VALIDATION = "validation.tsv"


def split_folder(prepared: Prepared, path: Path, split: Split) -> Path:
    """Return the folder of a split in the run directory `path`, which is that itself without
    folds.
    """
    return path if prepared.config.data.cv is None else path / f"fold-{split.test_fold}"


def train_split(
    prepared: Prepared, run: RunDirectory, split: Split, folder: Path, title: str
) -> SavedModel | None:
    """Return the model of a split, trained in `folder` unless it was before; ranks but the main one
    may get None.
    """

    def start(state: State | None) -> Callable[[], SavedModel]:
        if run.world.is_main:
            write_split(folder / "split.tsv", split)
            if prepared.config.data.cv is not None:
                log.info("%s: %s", split_name(prepared, split), split_sizes(prepared, split))
        if not prepared.config.trains_network:
            return lambda: _fit_learners(prepared, run, split, folder)
        if prepared.device.type == "cpu":
            keep_freed_memory()
        built = build(
            prepared, split, state, run.about["decisions"].get("compile", {}).get("backend")
        )
        task, options = make_task(prepared, built), prepared.config.train
        return lambda: save(
            prepared, run, built, fit(task, options, run, folder, state, title), folder, split
        )

    return train_once(run, folder, start, lambda: _load(prepared, run, folder))


def split_name(prepared: Prepared, split: Split) -> str:
    """Return which split of how many it is."""
    at, count = prepared.splits.index(split) + 1, len(prepared.splits)
    return f"fold {split.test_fold} ({at} of {count})" if split.test_fold else "samples"


def split_sizes(prepared: Prepared, split: Split) -> str:
    """Return from how many samples and groups of a split the model learns, and how many others it
    predicts.

    Learners alone learn from validation samples too, where others are held out for a test.
    """
    study, column = prepared.study, prepared.config.data.group_column
    train, validation, test = (split.ids(subset) for subset in SUBSETS)
    if test and not prepared.config.trains_network:
        train, validation = (*train, *validation), ()
    parts = []
    for does, ids in (("learns from", train), ("is validated on", validation), ("predicts", test)):
        groups = (
            study.metadata.values(column, ids)
            if study.metadata is not None and column is not None
            else ()
        )
        parts += (
            [f"{does} {len(ids)} samples" + (f" of {len(set(groups))} {column}" if groups else "")]
            if ids
            else []
        )
    return ", ".join(parts)


def train_on_all(prepared: Prepared, run: RunDirectory) -> SavedModel | None:
    """Return the learners of all samples, after a cross-validation, saved in the run directory
    unless they were before.

    Its figures are those of the folds. Ranks but the main one may get None.
    """
    ids = tuple(sorted(prepared.study.table.sample_ids))
    subsets: tuple[Subset, ...] = tuple("train" for _ in ids)
    split = Split(ids, subsets, ("",) * len(ids))

    def start(state: State | None) -> Callable[[], SavedModel]:
        if run.world.is_main:
            log.info("model/ learns from all %d samples; how good it is, the folds say", len(ids))
        return lambda: _fit_learners(prepared, run, split, run.path)

    return train_once(run, run.path, start, lambda: _load(prepared, run, run.path))


def _load(prepared: Prepared, run: RunDirectory, folder: Path) -> SavedModel | None:
    return load_model(folder / MODEL, prepared.device) if run.world.is_main else None


def _notes(
    prepared: Prepared,
    run: RunDirectory,
    targets: Targets,
    seen: Iterable[str],
    labelled: Iterable[str],
) -> dict[str, Any]:
    """Return what is known of the training: its samples, and what guessing would say of others like
    them.
    """
    notes = {
        "seen_samples": sorted(seen),
        "labelled_samples": sorted(labelled),
        "command": run.about["command"],
    }
    metadata, table = prepared.study.metadata, prepared.study.table
    if metadata is not None and targets.specs:
        known = [name for name in notes["labelled_samples"] if name in table.row_of]
        truth = {spec.name: truth_of(metadata, spec, known) for spec in targets.specs}
        notes["guesses"] = {
            spec.name: guess(truth[spec.name], len(spec.labels)).tolist() for spec in targets.specs
        }
    return notes


def _profile(study: Study, train_rows: npt.NDArray[np.int64]) -> RegionProfile:
    return RegionProfile.fit(
        [study.table.sequences[column] for column in study.table.columns_of(train_rows)]
    )


def _fit_learners(prepared: Prepared, run: RunDirectory, split: Split, folder: Path) -> SavedModel:
    """Fit and save a model without a network."""
    config, train, validation = prepared.config, split.ids("train"), split.ids("validation")
    study, targets, covariates = supervise(prepared, train)
    seen = {*train, *validation}
    saved = SavedModel(
        None,
        config.data,
        config.model,
        HeadConfig(),
        study.depth,
        study.seed,
        targets,
        _profile(study, study.rows(train)),
        _notes(prepared, run, targets, seen, seen),
        covariates,
    )
    if run.world.is_main:
        saved = with_learners(saved, prepared, study, split)
        _write_validation(prepared, saved, study, split, folder)
        save_model(folder / MODEL, saved)
    return saved


def save(
    prepared: Prepared,
    run: RunDirectory,
    built: Built,
    trainer: Trainer,
    folder: Path,
    split: Split,
) -> SavedModel:
    """Write the last and the best weights as models, with the learners that predict beside them;
    return the best.

    `split` holds the samples whose labels are used.
    """
    config, study = prepared.config, built.study
    notes = _notes(prepared, run, built.targets, built.seen_samples, built.labelled_samples)
    # A new network: the trained one may be sharded.
    network = Aam(config.model, study.depth, built.heads, study.reference_width)
    network.to(prepared.device)
    saved = SavedModel(
        network,
        config.data,
        config.model,
        built.heads,
        study.depth,
        study.seed,
        built.targets,
        _profile(study, built.rows["train"]),
        {**notes, "best_epoch": trainer.progress.best_epoch},
        built.covariates,
        reference=study.reference,
    )
    blended = saved
    if run.world.is_main:
        network.load_state_dict(trainer.best_weights)
        blended = with_learners(saved, prepared, study, split)
        _write_validation(prepared, blended, study, split, folder)
    for name, weights in ((LAST, trainer.last_weights), (MODEL, trainer.best_weights)):
        network.load_state_dict(weights)
        if run.world.is_main:
            save_model(folder / name, blended if name == MODEL else saved)
    return blended


def _write_validation(
    prepared: Prepared, model: SavedModel, study: Study, split: Split, folder: Path
) -> None:
    """Write what a model that has not learned from the validation samples predicts of them.

    That is where there is no test subset, and learners that have learned from them too.
    """
    validation = split.ids("validation")
    if not model.blend.learners or split.ids("test") or not validation:
        return
    alone = _fit_blend(model, prepared, study, split.ids("train"))
    fitted = [
        dataclasses.replace(one, weights=final.weights, power=final.power)
        for one, final in zip(alone.fitted, model.blend.fitted, strict=True)
    ]
    model = dataclasses.replace(model, blend=dataclasses.replace(alone, fitted=tuple(fitted)))
    passes, runtime = prepared.config.targets.val_prediction_passes, prepared.config.runtime
    asvs = prepared.frozen_asvs(model.network, study)
    studies = study.column(prepared.config.data.study_column, validation)
    table = predict_rows(model, study, validation, runtime, passes, split.test_fold, asvs, studies)
    write_predictions(folder / VALIDATION, table)


def with_learners(saved: SavedModel, prepared: Prepared, study: Study, split: Split) -> SavedModel:
    """Return the model with the learners that were asked for beside the network, and their weights.

    They learn from the training and the validation samples of the split; the weight of the network
    is fitted on the latter, from which it has not learned. Nothing of a test subset is read.
    """
    if set(prepared.config.targets.members) <= {NETWORK} or not saved.targets.specs:
        return saved
    validation = split.ids("validation")
    blend = _fit_blend(saved, prepared, study, (*split.ids("train"), *validation))
    if saved.network is not None:
        rows, device = study.rows(validation), prepared.device
        of_network = [np.zeros((0, 1)) for _ in blend.fitted]
        if len(rows):
            asvs = prepared.frozen_asvs(saved.network, study)
            of_network = per_target(
                run_model(
                    saved.network, study, rows, device, prepared.config.runtime, EVALUATION, asvs
                )
            )
        blend = blend.with_network(rows, of_network)
    for spec, fitted in zip(specs_in_order(saved.targets), blend.fitted, strict=True):
        weights = ", ".join(f"{name} {weight:.2f}" for name, weight in fitted.weights.items())
        log.info("%s: shares of the models that predict together: %s", spec.name, weights)
    return dataclasses.replace(saved, blend=blend)


def _fit_blend(saved: SavedModel, prepared: Prepared, study: Study, ids: Sequence[str]) -> Blend:
    data = prepared.config.data
    groups, studies = (study.column(name, ids) for name in (data.group_column, data.study_column))
    names = [name for name in prepared.config.targets.members if name != NETWORK]
    return fit_blend(
        study, saved.targets, study.rows(ids), groups, prepared.config.runtime.seed, names, studies
    )
