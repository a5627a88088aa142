"""`aam pretrain` and `aam train`: a whole run, from options to saved models and a report."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.commands.start_message import dry_run_message, start_message
from aam.config import NO_TREE, FineTuneConfig, PretrainConfig
from aam.config_commands import ForestConfig
from aam.contradictions import check_command
from aam.data.splits import SUBSETS, Split, duplicates_across_subsets
from aam.device.attention import decide_execution
from aam.device.launch import launch, process_count
from aam.device.process_group import is_launched, process_group
from aam.encoders import model_folder
from aam.engine.run_directory import RunDirectory
from aam.engine.run_record import describe, earlier_decisions, training_outputs
from aam.engine.signals import Signals
from aam.errors import FINISHED, shown
from aam.evaluate.prediction_file import read_predictions, write_predictions
from aam.evaluate.predictions import PredictionTable, joined
from aam.evaluate.target_predictions import Subset
from aam.files.atomic import MANIFEST, seen_from_here
from aam.files.output_folder import LIST, MEMORY, RUN
from aam.options import to_dict
from aam.predict.baselines import Columns
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel, load_model, save_ensemble, save_model
from aam.report.encoder_quality import evaluate_encoder
from aam.report.figures.svg import Figure
from aam.report.figures.training import loss_figures, loss_names, read_epochs
from aam.report.report import ReportData, TargetResult
from aam.report.results import BaselineSource, evaluate_targets, with_intervals, write_results
from aam.report.tables import Table
from aam.training.compilation import compiler_for
from aam.training.fit import VALIDATION, train_one
from aam.training.inputs import Prepared, check_targets, labels_used, load_inputs
from aam.training.memory_budget import choose_batch_size, measure_budget

log = logging.getLogger("aam")


def pretrain(config: PretrainConfig) -> int:
    """Run `aam pretrain`, which trains an encoder without labels; return the exit status."""
    return run(config.training(), "pretrain", config)


def train(config: FineTuneConfig) -> int:
    """Run `aam train`, which trains a model of metadata columns; return the exit status."""
    return run(config, "train", config)


def options_and_files(command: str, config: FineTuneConfig) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the options of a command as plain data, and the files that it reads, by option."""
    encoder = config.train.pretrained_encoder
    values = {**vars(config.data), "pretrained_encoder": None if encoder is None else model_folder(encoder)}
    values |= {f"table {number}": path for number, path in enumerate(config.data.tables, 1)}
    values |= {f"tree {number}": Path(tree) for number, tree in enumerate(config.data.trees, 1) if tree != NO_TREE}
    options = to_dict(config)
    if command == "pretrain":
        options = {name: options[name] for name in to_dict(PretrainConfig())}
    return options, {name: path for name, path in values.items() if isinstance(path, Path)}


def _outputs(config: FineTuneConfig) -> list[str]:
    """Return the names of what a run may write, as run.json lists them."""
    folders = [""] if config.data.cv is None else ["", "fold-*/"]
    model = ("model.json", "members.json")
    ensemble = [f"model/fold-*/{file}" for file in (MANIFEST, "*.safetensors", *model)]
    return [
        RUN, "metrics.json", "predictions.tsv", "report.html", "figures/*.svg", "figures/[0-9]*-*/*.svg", *MEMORY,
        *(f"{folder}{name}" for folder in folders for name in ("split.tsv", VALIDATION)),
        *(name for folder in folders for name in training_outputs(folder, model)),
        *(ensemble if config.targets.ensemble else ()),
    ]  # fmt: skip


def _make_decisions(prepared: Prepared) -> tuple[Prepared, dict[str, Any]]:
    """Decide on attention, batch size and compiler by this machine or the run that is resumed.

    All ranks take the decisions of the main rank.
    """
    runtime = prepared.config.runtime
    model = prepared.config.model
    world = prepared.world
    earlier = earlier_decisions(runtime) if world.is_main else json.loads(world.broadcast(b""))
    decisions = decide_execution(runtime, prepared.device, model.head_width, earlier)
    config, decisions["batch"] = choose_batch_size(prepared.config, prepared.study, prepared.device, earlier)
    budget = measure_budget(config, prepared.study, prepared.device, earlier, world.size)
    decisions |= {} if budget is None else {"memory": budget._asdict()}
    if runtime.compile_model:
        decisions["compile"] = compiler_for(model, runtime, prepared.device, earlier)
    if world.is_main:
        world.broadcast(json.dumps(decisions).encode())
    return dataclasses.replace(prepared, config=config, budget=budget), decisions


def run(config: FineTuneConfig, command: str, given: PretrainConfig | FineTuneConfig, report: bool = True) -> int:
    """Train on every split of `config` and report on the held-out samples; `given` are the options of the command.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while it lasts, model/
    (best epoch) and last/, below fold-K/ when cross-validating, then, with `report`, predictions.tsv, report.html
    and metrics.json. Raises `CallAgain` after a signal, with the state saved. Returns the exit status.
    """
    if config.runtime.data_parallel and not is_launched(os.environ):
        check_command(given)
        return launch(process_count(config.runtime), sys.argv[1:])
    with Signals() as signals, process_group(config.runtime) as world:
        check_command(given)
        prepared = load_inputs(config, world)
        prepared, decisions = _make_decisions(prepared)
        study = prepared.study
        devices = {"device": str(prepared.device), "ranks": world.size}
        facts = {**devices, "depth": study.depth, "dropped_samples": study.dropped, "decisions": decisions}
        facts |= {LIST: _outputs(prepared.config)}
        about = describe(command, *options_and_files(command, prepared.config), facts)
        check_targets(prepared)
        for line in start_message(prepared, command) if world.is_main else ():
            log.info("%s", line)
        if config.runtime.dry_run:
            if world.is_main:
                _show_dry_run(prepared, RunDirectory.check(about, prepared.config.runtime, signals))
            return FINISHED
        world.barrier()
        with RunDirectory.open(about, prepared.config.runtime, signals, world) as directory:
            if directory.finished:
                log.info("%s: finished already", directory.path)
            else:
                _train_all(prepared, directory, command, report)
    return FINISHED


def _show_dry_run(prepared: Prepared, run: RunDirectory) -> None:
    """Print what would be trained, and to where."""
    for message in _leaks(prepared):
        log.warning("warning: %s", message)
    print("\n".join(dry_run_message(prepared, run.plan())))


def _leaks(prepared: Prepared) -> list[str]:
    """Return warnings of samples that stand in two subsets of a split under different names."""
    return [text for split in prepared.splits for text in duplicates_across_subsets(prepared.study.table, split)]


def _train_all(prepared: Prepared, run: RunDirectory, command: str, report: bool) -> None:
    """Train each split that is not trained yet, and write predictions and, with `report`, the report."""
    config, study = prepared.config, prepared.study
    held_out: list[PredictionTable] = []
    tables: list[Table] = []
    encoder_figures: list[Figure] = []
    models: dict[Path, SavedModel] = {}
    warnings = _leaks(prepared)
    for message in warnings:
        log.warning("warning: %s", message)
    transductive = False
    for split in prepared.splits:
        saved = _trained_model(prepared, run, split, command)
        if saved is None or not run.world.is_main or not report:
            continue
        models[_split_folder(prepared, run, split)] = saved
        ids = split.held_out
        transductive = transductive or bool(set(split.ids("test")) & set(saved.notes["seen_samples"]))
        if saved.targets.specs and ids:
            held_out.append(_predictions(prepared, saved, split, _split_folder(prepared, run, split)))
        elif ids:
            quality = evaluate_encoder(saved, study, split, config.runtime, prepared.device)
            tables += quality.tables
            encoder_figures += quality.plots
            warnings += quality.warnings
    if not run.world.is_main or not report:
        return
    targets = _results(prepared, run.path, held_out, models)
    if config.targets.ensemble:
        save_ensemble(run.path / "model", {folder.name: folder / "model" for folder in models})
    results = _report_data(prepared, command, targets)
    specs = [spec for table in held_out[:1] for spec in table.specs]
    names = loss_names(*([spec.name for spec in specs if spec.kind == kind] for kind in ("numeric", "class")))
    epochs = {_name(split): read_epochs(_split_folder(prepared, run, split)) for split in prepared.splits}
    curves = loss_figures(epochs, names)
    results = dataclasses.replace(
        results,
        tables=tuple(tables),
        encoder_figures=tuple(encoder_figures),
        curves=tuple(curves),
        warnings=tuple(warnings),
        transductive=transductive,
    )
    write_results(run.path, results)
    log.info("all tables: %s", seen_from_here(run.path / "report.html"))


def _predictions(prepared: Prepared, saved: SavedModel, split: Split, folder: Path) -> PredictionTable:
    """Return predictions of the reported samples, by a model that has not learned from them."""
    if (folder / VALIDATION).is_file():
        specs = saved.targets.specs
        table = read_predictions(folder / VALIDATION, [spec.name for spec in specs])
        return dataclasses.replace(table, specs=specs)
    config, passes, study = prepared.config, prepared.config.targets.val_prediction_passes, prepared.study
    asvs = prepared.frozen_asvs(saved.network, study)
    return predict_rows(saved, study, split.held_out, config.runtime, passes, split.test_fold, asvs)


def _name(split: Split) -> str:
    return f"fold {split.test_fold}" if split.test_fold else ""


def _split_folder(prepared: Prepared, run: RunDirectory, split: Split) -> Path:
    return run.path if prepared.config.data.cv is None else run.path / f"fold-{split.test_fold}"


def _trained_model(prepared: Prepared, run: RunDirectory, split: Split, command: str) -> SavedModel | None:
    """Return the model of a split, trained unless it was before; ranks but the main one may get None."""
    folder = _split_folder(prepared, run, split)
    is_trained = run.world.is_main and run.is_trained(folder)
    saved = load_model(folder / "model", prepared.device) if is_trained else None
    if run.world.any(saved is not None):
        return saved
    title = command if prepared.config.data.cv is None else f"{command} fold {split.test_fold}"
    return train_one(prepared, run, split, folder, title)


def _explain_command(config: FineTuneConfig) -> str:
    """Return the command that adds importances to the report, with paths as the run was given them."""
    files = {"model": config.runtime.output_dir, "table": config.data.table}
    files |= {"sequences": config.data.sequences, "metadata": config.data.metadata}
    words = [word for name, path in files.items() if path is not None for word in (f"--{name}", str(path))]
    return shlex.join(["aam", "explain", *words])


def _report_data(prepared: Prepared, command: str, targets: tuple[TargetResult, ...]) -> ReportData:
    """Return what the report says of the data, the split and the targets."""
    config, study = prepared.config, prepared.study
    sizes = {str(subset): len(prepared.splits[0].ids(subset)) for subset in SUBSETS}
    return ReportData(
        title=f"aam {command}",
        task={"command": command, "targets": ", ".join(config.targets.metadata_column) or "none"},
        data={
            "table": config.data.table or shown(config.data.tables, 20),
            "samples": len(study.table.sample_ids),
            "ASVs": len(study.table.sequences),
            "rarefaction depth": study.depth,
            "samples below the depth": len(study.dropped),
        },
        split={"splits": len(prepared.splits), "held out": "test" if sizes["test"] else "validation", **sizes},
        targets=targets,
        explain_command=_explain_command(config) if targets else "",
        configuration=to_dict(config),
    )


def _results(
    prepared: Prepared, output: Path, held_out: Sequence[PredictionTable], models: Mapping[Path, SavedModel]
) -> tuple[TargetResult, ...]:
    """Write predictions.tsv, save the models with fitted intervals, and return the comparison with baselines."""
    config, study = prepared.config, prepared.study
    if not held_out or study.metadata is None:
        return ()
    by = tuple(filter(None, [config.targets.normalize_by]))
    covariates = config.covariates
    columns = Columns(
        config.data.group_column,
        config.data.batch_column,
        by,
        tuple(dict.fromkeys((*covariates.categorical_columns, *by))),
        covariates.numeric_columns,
    )
    table = joined(held_out)
    tested = all(split.ids("test") for split in prepared.splits)
    table = dataclasses.replace(table, subsets=("test" if tested else "validation",) * len(table.sample_ids))
    # Without a test side early stopping has seen what is held out, which cannot vouch for new samples.
    if tested:
        bounded = config.regressor.bounded_targets
        table, fitted = with_intervals(table, study.metadata, columns, config.runtime.seed, bounded)
        intervals = {name: dataclasses.asdict(one) for name, one in fitted.items()}
        for folder, saved in models.items() if intervals else ():
            notes = {**saved.notes, "intervals": intervals, "interval_samples": sorted(table.sample_ids)}
            save_model(folder / "model", dataclasses.replace(saved, notes=notes))
    elif table.values:
        log.info("no intervals: early stopping has seen what is held out; --cv or --test-size hold out more")
    write_predictions(output / "predictions.tsv", table)
    passes = config.targets.val_prediction_passes
    forest = ForestConfig(n_jobs=config.runtime.threads or -1, val_prediction_passes=passes)
    splits = [labels_used(prepared, split) for split in prepared.splits]
    subset: Subset = "held-out" if tested else "validation"
    return evaluate_targets(
        table,
        study.metadata,
        columns,
        BaselineSource(study, splits, forest if config.targets.rf_baseline else None),
        subset,
    )
