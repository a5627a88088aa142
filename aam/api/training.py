"""A whole run of `aam train`, from options to saved models and a report."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aam.config import FineTuneConfig
from aam.data.loader import Loader
from aam.data.splits import Split, duplicates_across_subsets
from aam.data.study import Inputs
from aam.device.distributed import World
from aam.device.environment import is_rank
from aam.device.platform import device_name
from aam.encoders import model_folder
from aam.engine.run import RESULTS, RunDirectory, RunPlan, run_command, training_outputs
from aam.files.output_folder import FIGURES, claim
from aam.options import IN_MEMORY, check, to_dict
from aam.predict.blend import in_words
from aam.predict.saved_model import SavedModel
from aam.report.training import TrainingReport
from aam.training.decisions import decide
from aam.training.fit import fit_all, fit_split, split_folder, split_name, split_sizes
from aam.training.inputs import Prepared, check_targets, load_inputs

log = logging.getLogger("aam")

# Seconds between looks at the folds of other processes.
WAIT = 1.0


def run(config: FineTuneConfig, report: bool = True, inputs: Inputs | None = None) -> int:
    """Run `aam train`: train on every split and report on the held-out samples.

    `inputs` are there where they are no files: the options then name them as `IN_MEMORY`.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while
    it lasts, model/ (best epoch) and last/, below fold-K/ when cross-validating, beside a model/ of
    all samples where no network is trained, then, with `report`, predictions.tsv, report.html and
    metrics.json. Raises `CallAgain` after a signal, with the state saved. Returns the exit status.
    """

    def prepare(world: World) -> RunPlan:
        if is_rank(config.runtime):
            check(config)
        prepared, decisions = load_inputs(config, world, True, inputs), dict[str, Any]()
        if prepared.config.trains_network:
            decided, decisions = decide(prepared.config, prepared.study, prepared.device, world)
            prepared = dataclasses.replace(prepared, config=decided)
        check_targets(prepared)
        for line in start_message(prepared) if world.is_main else ():
            log.info("%s", line)
        study = prepared.study
        facts = {
            "device": str(prepared.device),
            "ranks": world.size,
            "depth": study.depth,
            "dropped_samples": study.selection.dropped,
            "decisions": decisions,
        }

        options, files = options_and_files(prepared.config)
        in_memory = {} if inputs is None else inputs.checksums(config.data)
        outputs = _outputs(prepared.config)
        return RunPlan(
            options=options,
            files=files,
            facts=facts,
            outputs=outputs,
            work=partial(train_splits, prepared, report),
            describe=partial(dry_run_message, prepared),
            in_memory=in_memory,
        )

    return run_command("train", config.runtime, prepare)


def options_and_files(config: FineTuneConfig) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the options of a run as plain data, and the files that it reads, by option."""
    encoder = config.train.pretrained_encoder
    values = {
        **vars(config.data),
        "pretrained_encoder": None if encoder is None else model_folder(encoder),
    }
    options = to_dict(config)
    return options, {
        name: path for name, path in values.items() if isinstance(path, Path) and path != IN_MEMORY
    }


def _outputs(config: FineTuneConfig) -> list[str]:
    """Return the names of what a run may write, beside those of every run."""
    folders = [""] if config.data.cv is None else ["", "fold-*/"]
    return [
        "predictions.tsv",
        "report.html",
        *FIGURES,
        *(f"{folder}split.tsv" for folder in folders),
        *(f"{folder}model/*.skops" for folder in folders),
        *(name for folder in folders for name in training_outputs(folder, ("model.json",))),
    ]


def train_splits(prepared: Prepared, report: bool, run: RunDirectory) -> None:
    """Fit each split, the model of all samples after a cross-validation, and write the report.

    Several processes that share the run fit different folds; the first that finds all of them
    fitted does the rest.
    """
    warnings = _leaks(prepared)
    models = _fit_splits(prepared, run)
    if not run.is_shared:
        _finish(prepared, run, models, warnings, report)
        return
    with claim(run.path, "report", wait=True):
        if not (run.path / RESULTS).is_file():
            _finish(prepared, run, models, warnings, report)


def _fit_splits(prepared: Prepared, run: RunDirectory) -> dict[Split, SavedModel | None]:
    """The models of all splits; another process may have fitted some of them."""
    models = dict[Split, SavedModel | None]()
    while len(models) < len(prepared.splits):
        before = len(models)
        for split in prepared.splits:
            if split in models:
                continue
            folder = split_folder(prepared, run.path, split)
            title = "train" if prepared.config.data.cv is None else f"train fold {split.test_fold}"
            if not run.is_shared:
                models[split] = fit_split(prepared, run, split, folder, title)
                continue
            with claim(folder, "fold") as is_ours:
                if is_ours:
                    models[split] = fit_split(prepared, run, split, folder, title)
        if len(models) == before:
            run.signals.raise_if_requested(run.world)
            time.sleep(WAIT)
    return models


def _finish(
    prepared: Prepared,
    run: RunDirectory,
    models: Mapping[Split, SavedModel | None],
    warnings: list[str],
    report: bool,
) -> None:
    """Fit the model of all samples after a cross-validation, predict and report."""
    saved = fit_all(prepared, run) if prepared.config.data.cv is not None else None
    if not report or not run.world.is_main:
        return
    collected = TrainingReport(prepared, "train", run.path, warnings)
    for split in prepared.splits:
        if (model := models[split]) is not None:
            collected.add(split, model)
    if saved is not None:
        collected.models[run.path] = saved
    collected.write()


def _leaks(prepared: Prepared) -> list[str]:
    """Return and log warnings of samples that stand in two subsets of a split under different
    names.
    """
    table, column = prepared.study.table, prepared.config.data.group_column
    warnings = [
        text
        for split in prepared.splits
        for text in duplicates_across_subsets(table, split, column)
    ]
    for message in warnings:
        log.warning("warning: %s", message)
    return warnings


def loss_names(prepared: Prepared) -> list[str]:
    """Return the losses of the network that have a weight above 0, in words."""
    config, study = prepared.config, prepared.study
    # A frozen encoder reads vectors that are computed once: nothing of the encoder is learned.
    frozen = config.targets.freeze_base
    names: dict[str, bool] = {
        str(study.metric): study.metric is not None and config.train.penalty > 0 and not frozen,
        "masked nucleotides": config.train.nuc_penalty > 0 and not frozen,
        "masked counts": config.train.count_penalty > 0 and not frozen,
        ", ".join(config.targets.metadata_column): True,
    }
    return [name for name, weighs in names.items() if weighs]


def start_message(prepared: Prepared) -> list[str]:
    """Return lines on device, samples, ASVs and depth, and on what predicts."""
    study = prepared.study
    ranks = f" x {prepared.world.size}" if prepared.world.size > 1 else ""
    inputs = (
        f"train: {device_name(prepared.device)}{ranks}; {len(study.table.sample_ids)} samples, "
        f"{len(study.table.feature_ids)} ASVs, rarefied to {study.depth} reads"
    )
    models = f"members: {in_words(prepared.config.targets.members)}"
    if not prepared.config.trains_network:
        return [inputs, models]
    lines = [f"{inputs}; losses: {', '.join(loss_names(prepared)) or 'none'}", models]
    if study.metric is None and not prepared.config.targets.freeze_base:
        lines.append(
            "without --tree or --unifrac-matrix no UniFrac term is learned with the targets"
        )
    return lines


def dry_run_message(prepared: Prepared) -> list[str]:
    """Return what ``--dry-run`` shows below the start message: the samples of each split, and the
    steps.
    """
    _leaks(prepared)
    study, config, train = prepared.study, prepared.config, prepared.config.train
    lines = []
    for split in prepared.splits:
        line = f"{split_name(prepared, split)}: {split_sizes(prepared, split)}"
        if train.epochs and config.trains_network:
            loader = Loader(
                study,
                study.rows(split.ids("train")),
                train.samples_per_batch,
                shuffle=True,
                world=prepared.world,
            )
            steps = math.ceil(len(loader) / train.gradient_accumulation_steps)
            line += f"; at most {train.epochs} epochs of {steps} step{'s' if steps > 1 else ''}"
        lines.append(line)
    return lines
