"""Training on one split: build the network, fit it, and save the models."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.region import RegionProfile
from aam.data.splits import Split, Subset, write_split
from aam.data.study import EVALUATION, Study
from aam.device.memory import keep_freed_memory
from aam.engine.checkpoint import State
from aam.engine.fit import LAST, MODEL, train_once
from aam.engine.run import RunDirectory
from aam.engine.task import Task
from aam.engine.trainer import Trainer
from aam.evaluate.predictions import write_predictions
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.predict.blend import NETWORK, Blend, fit_blend, specs_in_order
from aam.predict.network import per_target, run_model
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel, load_model, save_model
from aam.training.build import Built, build, make_task
from aam.training.inputs import Prepared, supervise

log = logging.getLogger("aam")

# Predictions of validation samples, where the saved model has learned from them too.
VALIDATION = "validation.tsv"


def split_folder(prepared: Prepared, path: Path, split: Split) -> Path:
    """Return the folder of a split in the run directory `path`, which is that itself without folds."""
    return path if prepared.config.data.cv is None else path / f"fold-{split.test_fold}"


def train_split(prepared: Prepared, run: RunDirectory, split: Split, folder: Path, title: str) -> SavedModel | None:
    """Return the model of a split, trained in `folder` unless it was before; ranks but the main one may get None."""

    def start(state: State | None) -> tuple[Task, Callable[[Trainer], SavedModel | None]]:
        if prepared.budget is None and prepared.device.type == "cpu":
            # A budget is fitted to what the process holds at the least.
            keep_freed_memory()
        built = build(prepared, split, state, run.about["decisions"].get("compile", {}).get("backend"))
        if run.world.is_main:
            write_split(folder / "split.tsv", split)
        return make_task(prepared, built), lambda trainer: save(prepared, run, built, trainer, folder, split)

    def load_saved() -> SavedModel | None:
        return load_model(folder / MODEL, prepared.device) if run.world.is_main else None

    if prepared.config.trains_network:
        return train_once(run, folder, title, prepared.config.train, start, load_saved)
    if run.world.any(run.world.is_main and run.is_trained(folder)):
        return load_saved()
    if run.world.is_main:
        write_split(folder / "split.tsv", split)
    return _fit_and_save(prepared, run, split, folder)


def train_on_all(prepared: Prepared, run: RunDirectory) -> SavedModel | None:
    """Return the learners of all samples, after a cross-validation, saved in the run directory unless they were before.

    Its figures are those of the folds. Ranks but the main one may get None.
    """
    if run.world.any(run.world.is_main and run.is_trained(run.path)):
        return load_model(run.path / MODEL, prepared.device) if run.world.is_main else None
    ids = tuple(sorted(prepared.study.table.sample_ids))
    subsets: tuple[Subset, ...] = tuple("train" for _ in ids)
    if run.world.is_main:
        log.info("model/ learns from all %d samples; how good it is, the folds say", len(ids))
    return _fit_and_save(prepared, run, Split(ids, subsets, ("",) * len(ids)), run.path)


def _fit_and_save(prepared: Prepared, run: RunDirectory, split: Split, folder: Path) -> SavedModel:
    with run.signals:
        saved = _fit_learners(prepared, run, split, folder)
    run.signals.raise_if_requested(run.world)
    return saved


def _notes(prepared: Prepared, run: RunDirectory, seen: Iterable[str], labelled: Iterable[str]) -> dict[str, Any]:
    return {"seen_samples": sorted(seen), "labelled_samples": sorted(labelled), "command": run.about["command"]}


def _profile(study: Study, train_rows: npt.NDArray[np.int64]) -> RegionProfile:
    return RegionProfile.fit([study.table.sequences[column] for column in study.table.columns_of(train_rows)])


def _fit_learners(prepared: Prepared, run: RunDirectory, split: Split, folder: Path) -> SavedModel:
    """Fit and save a model without a network."""
    config, train, validation = prepared.config, split.ids("train"), split.ids("validation")
    study, targets, covariates = supervise(prepared, train)
    seen = {*train, *validation}
    saved = SavedModel(
        None, config.data, config.model, HeadConfig(), study.depth, study.seed, targets,
        _profile(study, study.rows(train)), _notes(prepared, run, seen, seen), covariates,
    )  # fmt: skip
    if run.world.is_main:
        saved = with_learners(saved, prepared, study, split)
        _write_validation(prepared, saved, study, split, folder)
        save_model(folder / MODEL, saved)
    return saved


def save(
    prepared: Prepared, run: RunDirectory, built: Built, trainer: Trainer, folder: Path, split: Split
) -> SavedModel:
    """Write the last and the best weights as models, with the learners that predict beside them; return the best.

    `split` holds the samples whose labels are used.
    """
    config, study = prepared.config, built.study
    notes = _notes(prepared, run, built.seen_samples, built.labelled_samples)
    # A new network: the trained one may be sharded.
    network = Aam(config.model, study.depth, built.heads, study.reference).to(prepared.device)
    saved = SavedModel(
        network, config.data, config.model, built.heads, study.depth, study.seed, built.targets,
        _profile(study, built.rows["train"]), {**notes, "best_epoch": trainer.progress.best_epoch}, built.covariates,
    )  # fmt: skip
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


def _write_validation(prepared: Prepared, model: SavedModel, study: Study, split: Split, folder: Path) -> None:
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

    They learn from the training and the validation samples of the split; the weight of the network is fitted on the
    latter, from which it has not learned. Nothing of a test subset is read.
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
                run_model(saved.network, study, rows, device, prepared.config.runtime, EVALUATION, asvs)
            )
        blend = blend.with_network(rows, of_network)
    for spec, fitted in zip(specs_in_order(saved.targets), blend.fitted, strict=True):
        log.info("%s: %s", spec.name, ", ".join(f"{name} {weight:.2f}" for name, weight in fitted.weights.items()))
    return dataclasses.replace(saved, blend=blend)


def _fit_blend(saved: SavedModel, prepared: Prepared, study: Study, ids: Sequence[str]) -> Blend:
    data = prepared.config.data
    groups, studies = (study.column(name, ids) for name in (data.group_column, data.study_column))
    names = [name for name in prepared.config.targets.members if name != NETWORK]
    return fit_blend(study, saved.targets, study.rows(ids), groups, prepared.config.runtime.seed, names, studies)
