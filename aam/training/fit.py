"""Fitting the models of a run: one for each split, and one of all samples after the folds."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from aam.data.region import RegionProfile
from aam.data.splits import SUBSETS, Split, Subset, fold_folder, make_splits, write_split
from aam.data.study import Study
from aam.data.targets import Targets
from aam.engine.checkpoint import State
from aam.engine.run import LAST, MODEL, RunDirectory, train_once
from aam.errors import InputError
from aam.evaluate.target_predictions import guess, truth_of
from aam.model.heads import HeadConfig
from aam.options import given
from aam.predict.blend import NETWORK, Blend, fit_blends
from aam.predict.samples import Samples
from aam.predict.saved_model import SavedModel, load_model, save_model
from aam.training.finetune import fit_network
from aam.training.inputs import Prepared, supervise
from aam.training.network import Place, encoder_folder

log = logging.getLogger("aam")


def split_folder(prepared: Prepared, path: Path, split: Split) -> Path:
    """The folder of a split in the run directory `path`, which is that itself without folds."""
    return path if prepared.config.data.cv is None else path / fold_folder(split.test_fold)


def split_name(prepared: Prepared, split: Split) -> str:
    """Which split of how many it is."""
    at, count = prepared.splits.index(split) + 1, len(prepared.splits)
    return f"fold {split.test_fold} ({at} of {count})" if split.test_fold else "samples"


def split_sizes(prepared: Prepared, split: Split) -> str:
    """Numbers of samples and groups of a split that are learned from, validated on and predicted.

    A model without a network learns from validation samples too.
    """
    study, column = prepared.study, prepared.config.data.group_column
    train, validation, test = (split.ids(subset) for subset in SUBSETS)
    if not prepared.config.trains_network:
        train, validation = (*train, *validation), ()
    parts = []
    for does, ids in (("learns from", train), ("is validated on", validation), ("predicts", test)):
        groups = study.column(column, ids)
        of_groups = "" if groups is None else f" of {len(set(groups))} {column}"
        parts += [f"{does} {len(ids)} samples{of_groups}"] if ids else []
    return ", ".join(parts)


def fit_split(
    prepared: Prepared, run: RunDirectory, split: Split, folder: Path, title: str
) -> SavedModel | None:
    """The model of a split, fitted in `folder` unless it was before; None on ranks but the main
    one.
    """

    def start(state: State | None) -> Callable[[], SavedModel]:
        if run.world.is_main and split in prepared.splits:
            write_split(folder / "split.tsv", split)
            if prepared.config.data.cv is not None:
                log.info("%s: %s", split_name(prepared, split), split_sizes(prepared, split))
        place = Place(prepared.device, run, folder, title, split.test_fold, state, prepared.encoded)
        fit = fit_with_network if prepared.config.trains_network else fit_members
        return lambda: fit(prepared, place, split)

    def load() -> SavedModel | None:
        return load_model(folder / MODEL, prepared.device) if run.world.is_main else None

    return train_once(run, folder, start, load)


def fit_all(prepared: Prepared, run: RunDirectory) -> SavedModel | None:
    """The model of all samples, after a cross-validation; its figures are those of the folds.

    There is none where each fold has a pretrained encoder of its own.
    """
    ids = tuple(sorted(prepared.study.table.sample_ids))
    subsets: tuple[Subset, ...] = tuple("train" for _ in ids)
    split = Split(ids, subsets, ("",) * len(ids))
    if prepared.config.trains_network:
        try:
            encoder_folder(prepared.config.train, "")
        except InputError:
            log.info("no model of all samples: each fold has a pretrained encoder of its own")
            return None
        data = dataclasses.replace(prepared.config.data, cv=None, test_size=0.0)
        (split,) = make_splits(prepared.study, data, prepared.config.runtime.seed)
    if run.world.is_main:
        log.info("model/ learns from all %d samples; the folds tell how good it is", len(ids))
    return fit_split(prepared, run, split, run.path, "train on all samples")


def _notes(
    prepared: Prepared,
    run: RunDirectory,
    targets: Targets,
    seen: Iterable[str],
    labelled: Iterable[str],
) -> dict[str, Any]:
    """What is known of a training: its samples, and the constants that predict others like them."""
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


def _profile(study: Study, train_ids: Sequence[str]) -> RegionProfile:
    columns = study.table.columns_of(study.rows(train_ids))
    return RegionProfile.fit([study.table.names[column] for column in columns])


def fit_members(prepared: Prepared, place: Place, split: Split) -> SavedModel:
    """Fit and save a model without a network."""
    config, run = prepared.config, given(place.run)
    ids = (*split.ids("train"), *split.ids("validation"))
    study, targets, covariates = supervise(prepared, ids)
    saved = SavedModel(
        network=None,
        data=config.data,
        model=config.model,
        heads=HeadConfig(),
        depth=study.depth,
        seed=study.seed,
        targets=targets,
        profile=_profile(study, ids),
        notes=_notes(prepared, run, targets, ids, ids),
        covariates=covariates,
    )
    if run.world.is_main:
        saved = dataclasses.replace(saved, blends=_fit_blends(saved, prepared, study, ids))
        save_model(place.folder / MODEL, saved)
    return saved


def fit_with_network(prepared: Prepared, place: Place, split: Split) -> SavedModel:
    """Fit a network and the other members, and save its last and its best weights as models.

    The best ones are saved with the members that predict together with the network. These learn
    from validation samples too, unless the validation samples are what is reported.
    """
    config, run, train_ids = prepared.config, given(place.run), split.ids("train")
    study, targets, covariates = supervise(prepared, train_ids)
    rows = study.rows(train_ids), study.rows(split.ids("validation"))
    fitted = fit_network(study, rows, targets, covariates, config, place)
    notes = _notes(prepared, run, targets, fitted.seen_samples, fitted.labelled_samples)
    saved = SavedModel(
        network=fitted.network,
        data=config.data,
        model=config.model,
        heads=fitted.heads,
        depth=study.depth,
        seed=study.seed,
        targets=targets,
        profile=_profile(study, train_ids),
        notes={**notes, "best_epoch": fitted.best_epoch},
        covariates=covariates,
        reference=study.reference,
    )
    best = {name: value.clone() for name, value in fitted.network.state_dict().items()}
    blended = saved
    if run.world.is_main:
        reported = split in prepared.splits and not split.ids("test")
        ids = train_ids if reported else (*train_ids, *split.ids("validation"))
        blended = dataclasses.replace(saved, blends=_fit_blends(saved, prepared, study, ids))
    for name, weights in ((LAST, fitted.last_weights), (MODEL, best)):
        fitted.network.load_state_dict(weights)
        if run.world.is_main:
            save_model(place.folder / name, blended if name == MODEL else saved)
    return blended


def _fit_blends(
    saved: SavedModel, prepared: Prepared, study: Study, ids: Sequence[str]
) -> tuple[Blend, ...]:
    """The members of each target but the network; none if the network predicts alone."""
    data, asked = prepared.config.data, prepared.config.targets.members
    members = tuple(name for name in asked if name != NETWORK)
    if asked and not members:
        return ()
    groups, studies = (study.column(name, ids) for name in (data.group_column, data.study_column))
    samples = Samples.of_study(study, study.rows(ids), saved.levels)
    return fit_blends(study, saved.targets, samples, members, groups, studies)
