"""Training on one split: build the network, new, resumed or from a pretrained encoder, fit it, and
save the models.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.data.rarefaction import EVALUATION
from aam.data.region import RegionProfile
from aam.data.splits import SUBSETS, Split, Subset, fold_folder, write_split
from aam.data.study import Study
from aam.data.targets import Targets
from aam.engine.checkpoint import State
from aam.engine.run import LAST, MODEL, RunDirectory, train_once
from aam.evaluate.predictions import write_predictions
from aam.evaluate.target_predictions import guess, truth_of
from aam.model.heads import HeadConfig
from aam.options import given
from aam.predict.blend import NETWORK, Blend, fit_blend, specs_in_order
from aam.predict.network import per_target, run_model
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel, load_model, save_model
from aam.training.finetune import fit_network
from aam.training.inputs import Prepared, supervise
from aam.training.network import Place

log = logging.getLogger("aam")

# Predictions of validation samples, where the saved model has learned from them too.
VALIDATION = "validation.tsv"


def split_folder(prepared: Prepared, path: Path, split: Split) -> Path:
    """Return the folder of a split in the run directory `path`, which is that itself without
    folds.
    """
    return path if prepared.config.data.cv is None else path / fold_folder(split.test_fold)


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
        place = Place(prepared.device, run, folder, title, split.test_fold, state, prepared.encoded)
        return lambda: save(prepared, place, split)

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


def save(prepared: Prepared, place: Place, split: Split) -> SavedModel:
    """Train a network on a split and save its last and its best weights as models, the best with
    the learners that predict together with it; return the best.
    """
    config, train_ids = prepared.config, split.ids("train")
    study, targets, covariates = supervise(prepared, train_ids)
    rows = study.rows(train_ids), study.rows(split.ids("validation"))
    fitted = fit_network(study, rows, targets, covariates, config, place)
    run = given(place.run)
    notes = _notes(prepared, run, targets, fitted.seen_samples, fitted.labelled_samples)
    saved = SavedModel(
        fitted.network,
        config.data,
        config.model,
        fitted.heads,
        study.depth,
        study.seed,
        targets,
        _profile(study, rows[0]),
        {**notes, "best_epoch": fitted.best_epoch},
        covariates,
        reference=study.reference,
    )
    blended, best = saved, {n: v.clone() for n, v in fitted.network.state_dict().items()}
    if run.world.is_main:
        blended = with_learners(saved, prepared, study, split)
        _write_validation(prepared, blended, study, split, place.folder)
    for name, weights in ((LAST, fitted.last_weights), (MODEL, best)):
        fitted.network.load_state_dict(weights)
        if run.world.is_main:
            save_model(place.folder / name, blended if name == MODEL else saved)
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
