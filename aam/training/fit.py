"""Training on one split: build the network, fit it, and save the models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aam.data.region import RegionProfile
from aam.data.splits import Split, write_split
from aam.data.study import Study
from aam.device.memory import keep_freed_memory
from aam.engine.checkpoint import State
from aam.engine.fit import LAST, MODEL, train_once
from aam.engine.run import RunDirectory
from aam.engine.task import Task
from aam.engine.trainer import Trainer
from aam.evaluate.prediction_file import write_predictions
from aam.model.aam import Aam
from aam.predict.member_fit import with_members, without_validation
from aam.predict.saved_model import SavedModel, load_model, save_model
from aam.training.build import Built, build, make_task
from aam.training.inference import predict_rows
from aam.training.inputs import Prepared

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

    return train_once(run, folder, title, prepared.config.train, start, load_saved)


def save(
    prepared: Prepared, run: RunDirectory, built: Built, trainer: Trainer, folder: Path, split: Split
) -> SavedModel:
    """Write the last and the best weights as models, with the members that predict beside them; return the best.

    `split` holds the samples whose labels are used.
    """
    config, study = prepared.config, built.study
    seen = study.table.columns_of(built.rows["train"])
    profile = RegionProfile.fit([study.table.sequences[column] for column in seen])
    notes = {
        "seen_samples": sorted(built.seen_samples),
        "labelled_samples": sorted(built.labelled_samples),
        "command": run.about["command"],
        "best_epoch": trainer.progress.best_epoch,
    }
    # A new network: the trained one may be sharded.
    network = Aam(config.model, study.depth, built.heads, study.reference).to(prepared.device)
    saved = SavedModel(
        network, config.data, config.model, built.heads, study.depth, study.seed, built.targets, profile, notes,
        built.covariates,
    )  # fmt: skip
    blended = saved
    if run.world.is_main:
        network.load_state_dict(trainer.best_weights)
        blended = with_members(saved, prepared, study, split)
        if blended.members is not None and not split.ids("test") and split.ids("validation"):
            _write_validation(prepared, without_validation(blended, prepared, study, split), study, split, folder)
    for name, weights in ((LAST, trainer.last_weights), (MODEL, trainer.best_weights)):
        network.load_state_dict(weights)
        if run.world.is_main:
            save_model(folder / name, blended if name == MODEL or not config.targets.network_predicts else saved)
    return blended


def _write_validation(prepared: Prepared, model: SavedModel, study: Study, split: Split, folder: Path) -> None:
    """Write what a model that has not learned from the validation samples predicts of them."""
    passes, runtime = prepared.config.targets.val_prediction_passes, prepared.config.runtime
    asvs = prepared.frozen_asvs(model.network, study)
    table = predict_rows(model, study, split.ids("validation"), runtime, prepared.device, passes, split.test_fold, asvs)
    write_predictions(folder / VALIDATION, table)
