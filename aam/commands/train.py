"""`aam pretrain` and `aam train`: a whole run, from options to saved models and a report."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.commands.start_message import start_message
from aam.config import FineTuneConfig, PretrainConfig
from aam.config_commands import ForestConfig
from aam.contradictions import check_command
from aam.data.split import SIDES, twins_apart
from aam.engine.run_directory import RunDirectory
from aam.engine.run_record import decided_before, describe
from aam.engine.signals import Signals
from aam.errors import FINISHED
from aam.evaluation.predictions import PredictionTable, joined, write_predictions
from aam.evaluation.report import ReportData, Table, TargetResult
from aam.evaluation.results import BaselineSource, evaluate_targets, with_intervals, write_results
from aam.evaluation.study_baselines import Columns
from aam.options import to_dict
from aam.runtime.decisions import decide
from aam.runtime.launch import is_launched, launch, process_count, process_group
from aam.training.compilation import compiler_for
from aam.training.encoder_quality import evaluate_encoder
from aam.training.fit import train_one
from aam.training.inference import predict_rows
from aam.training.inputs import Prepared, check_targets, labels_used, load_inputs
from aam.training.memory_budget import budget_of, sized
from aam.training.saved_model import SavedModel, load_model, save_ensemble, save_model

log = logging.getLogger("aam")


def pretrain(config: PretrainConfig) -> int:
    """Run `aam pretrain`: an encoder from a table and a tree, without labels; the exit status."""
    check_command(config)
    own = FineTuneConfig(data=config.data, model=config.model, train=config.train, runtime=config.runtime)
    return run(own, "pretrain")


def train(config: FineTuneConfig) -> int:
    """Run `aam train`: a model of metadata columns; `InputError` where none is named. Returns the exit status."""
    check_command(config)
    return run(config, "train")


def _options_and_files(command: str, config: FineTuneConfig) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the options of a command as plain data, and the files that it reads, by option."""
    values = {**vars(config.data), "pretrained_encoder": config.targets.pretrained_encoder}
    options = to_dict(config)
    if command == "pretrain":
        options = {name: options[name] for name in to_dict(PretrainConfig())}
    return options, {name: path for name, path in values.items() if isinstance(path, Path)}


def _decided(prepared: Prepared) -> tuple[Prepared, dict[str, Any]]:
    """Attention, batch size and compiler as this machine, or the run before, settles them; all take the lead's."""
    runtime, model, world = prepared.config.runtime, prepared.config.model, prepared.world
    before = decided_before(runtime) if world.is_main else json.loads(world.broadcast(b""))
    decisions = decide(runtime, prepared.device, model.head_width, before)
    config, decisions["batch"] = sized(prepared.config, prepared.study, prepared.device, before)
    budget = budget_of(config, prepared.study, prepared.device, before, world.size)
    decisions |= {} if budget is None else {"memory": budget._asdict()}
    if runtime.compile_model:
        decisions["compile"] = compiler_for(model, runtime, prepared.device, before)
    if world.is_main:
        world.broadcast(json.dumps(decisions).encode())
    return dataclasses.replace(prepared, config=config, budget=budget), decisions


def run(config: FineTuneConfig, command: str) -> int:
    """Train on every split of `config` and report on the held-out samples.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while it lasts, model/
    (best epoch) and last/, below fold-K/ when cross-validating, then predictions.tsv, report.html and metrics.json.
    Raises `CallAgain` after a signal, with the state saved. Returns the exit status.
    """
    if config.runtime.data_parallel and not is_launched(os.environ):
        return launch(process_count(config.runtime), sys.argv[1:])
    with Signals() as signals, process_group(config.runtime) as world:
        prepared = load_inputs(config, world)
        prepared, decisions = _decided(prepared)
        study, ranks = prepared.study, 1 if config.runtime.pipeline else world.size
        where = {"device": str(prepared.device), "ranks": ranks}
        facts = {**where, "depth": study.depth, "dropped_samples": study.dropped, "decisions": decisions}
        about = describe(command, *_options_and_files(command, prepared.config), facts)
        check_targets(prepared)
        for line in start_message(prepared, command) if world.is_main else ():
            log.info("%s", line)
        world.barrier()
        with RunDirectory.opened(about, prepared.config.runtime, signals, world) as folder:
            if folder.finished:
                log.info("%s: finished already", folder.path)
            else:
                _train_all(prepared, folder, command)
    return FINISHED


def _train_all(prepared: Prepared, run: RunDirectory, command: str) -> None:
    config, study, device, lead = prepared.config, prepared.study, prepared.device, run.world.is_main
    held_out: list[PredictionTable] = []
    tables: list[Table] = []
    models: dict[Path, SavedModel] = {}
    warnings = [said for split in prepared.splits for said in twins_apart(study.table, split)]
    for said in warnings:
        log.warning("warning: %s", said)
    transductive, many = False, config.data.cv is not None
    for split in prepared.splits:
        folder = run.path / f"fold-{split.test_fold}" if many else run.path
        title = f"{command} fold {split.test_fold}" if many else command
        saved = load_model(folder / "model", device) if lead and run.is_trained(folder) else None
        if not run.world.any(saved is not None):
            saved = train_one(prepared, run, split, folder, title)
        if saved is None or not lead:
            continue
        models[folder] = saved
        ids = split.held_out
        transductive = transductive or bool(set(split.ids("test")) & set(saved.notes["seen_samples"]))
        if saved.targets.specs and ids:
            passes, fold = config.targets.val_prediction_passes, split.test_fold
            held_out.append(predict_rows(saved, study, ids, config.runtime, device, passes, fold))
        elif ids:
            tables.extend(evaluate_encoder(saved, study, split, config.runtime, device))
    if not lead:
        return
    targets = _results(prepared, run.path, held_out, models)
    if config.targets.ensemble:
        save_ensemble(run.path / "model", {folder.name: folder / "model" for folder in models})
    sides = {str(side): len(prepared.splits[0].ids(side)) for side in SIDES}
    results = ReportData(
        title=f"aam {command}",
        task={"command": command, "targets": ", ".join(config.targets.metadata_column) or "none"},
        data={
            "table": config.data.table,
            "samples": len(study.table.sample_ids),
            "ASVs": len(study.table.sequences),
            "rarefaction depth": study.depth,
            "samples below the depth": len(study.dropped),
        },
        split={"splits": len(prepared.splits), "held out": "test" if sides["test"] else "validation", **sides},
        targets=targets,
        tables=tuple(tables),
        warnings=tuple(warnings),
        transductive=transductive,
        configuration=to_dict(config),
    )
    write_results(run.path, results)
    log.info("all tables: %s", run.path / "report.html")


def _results(
    prepared: Prepared, output: Path, held_out: Sequence[PredictionTable], models: Mapping[Path, SavedModel]
) -> tuple[TargetResult, ...]:
    """Write predictions.tsv, give the models what makes intervals, and compare with baselines."""
    config, study = prepared.config, prepared.study
    if not held_out or study.metadata is None:
        return ()
    by = tuple(filter(None, [config.targets.normalize_by]))
    columns = Columns(config.data.group_column, config.data.batch_column, by)
    table = joined(held_out)
    # Without a test side early stopping has seen what is held out, which cannot vouch for new samples.
    if all(split.ids("test") for split in prepared.splits):
        table, fitted = with_intervals(table, study.metadata, columns, config.runtime.seed)
        intervals = {name: dataclasses.asdict(one) for name, one in fitted.items()}
        for folder, saved in models.items() if intervals else ():
            save_model(folder / "model", dataclasses.replace(saved, notes={**saved.notes, "intervals": intervals}))
    elif table.values:
        log.info("no intervals: early stopping has seen what is held out; --cv or --test-size hold out more")
    write_predictions(output / "predictions.tsv", table)
    forest = ForestConfig(n_jobs=config.runtime.threads or -1) if config.targets.rf_baseline else None
    splits = [labels_used(prepared, split) for split in prepared.splits]
    return evaluate_targets(table, study.metadata, columns, BaselineSource(study, splits, forest))
