"""`aam predict`, and what embed, explain, evaluate and export share with it: models, the table
that they read, and the folder that they write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aam.config import ApplyConfig, DataConfig, EmbedConfig, PredictConfig
from aam.data.checks import warn_of_primers, without_primers
from aam.data.study import Inputs, MetadataColumns, Study, make_study, read_inputs
from aam.device.attention import decide_execution
from aam.device.options import RuntimeConfig
from aam.device.platform import prepare_device
from aam.engine.run import describe
from aam.errors import InputError
from aam.evaluate.predictions import write_predictions
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.options import files_read, not_none, to_dict
from aam.predict.prediction import predict_samples
from aam.predict.saved_model import SavedModel, load_models, samples_with_labels

log = logging.getLogger("aam")


def output_of(
    command: str, config: Any, outputs: Sequence[str], folder: Path | None = None
) -> OutputFolder:
    """Return the folder of the results of a command: run.json and `outputs`.

    Raises
    ------
    InputError
        Results may not be written there.
    """
    runtime = getattr(config, "runtime", config)
    place = runtime.output_dir if folder is None else folder
    inputs = [*files_read(config).values()]
    names = [RUN, *outputs, *MEMORY]
    output = OutputFolder(not_none(place), command, names, inputs, runtime.overwrite)
    output.check()
    return output


def written(
    output: OutputFolder,
    config: Any,
    facts: Mapping[str, Any] | None = None,
    in_memory: Mapping[str, str] | None = None,
) -> AbstractContextManager[Path]:
    """Yield a new folder with run.json, which takes the place of `output` once it is complete."""
    about = describe(
        output.command, to_dict(config), files_read(config), dict(facts or {}), in_memory
    )
    return output.replaced(about)


def prepare_models(paths: Sequence[Path], runtime: RuntimeConfig) -> list[SavedModel]:
    """Return the models of some folders, ready to compute on the device that `runtime` asks for.

    Raises
    ------
    InputError
        A folder that holds no model, a damaged model, or models that cannot predict together.
    """
    device = prepare_device(runtime)
    models = load_models(paths, device)
    for model in models:
        if model.network is not None:
            decide_execution(runtime, device, model.model.attention_shapes, in_bf16=False)
    return models


def load_models_and_table(config: ApplyConfig) -> tuple[list[SavedModel], Study, list[str]]:
    """Return the models, the table rarefied as for the first of them, and warnings about its ASVs.

    Raises
    ------
    InputError
        Bad options, a damaged model or table, or no sample that reaches the model's depth.
    """
    models = prepare_models(config.model, config.runtime)
    return models, *load_table(models, config)


def load_table(
    models: Sequence[SavedModel], config: ApplyConfig, inputs: Inputs | None = None
) -> tuple[Study, list[str]]:
    """Return a table rarefied as for the first of some models, and warnings about its ASVs and
    covariates.

    The table and its metadata are `inputs`, or the files that `config` names.

    Raises
    ------
    InputError
        A bad table, or no sample that reaches the model's depth.
    """
    saved, metadata = models[0], getattr(config, "metadata", None)
    # Sample and ASV vectors need no covariates; predictions do, and say so without metadata.
    predicts = not isinstance(config, EmbedConfig)
    names = (name for model in models for name in model.covariates.columns if predicts)
    columns = MetadataColumns((), tuple(dict.fromkeys(names)))
    data = DataConfig(
        table=config.table,
        sequences=config.sequences,
        trim=config.trim,
        decimal=getattr(config, "decimal", "."),
        missing_values=getattr(config, "missing_values", ()),
        rarefy_depth=getattr(config, "rarefy_depth", None) or saved.depth,
        token_limit=saved.data.token_limit,
        metadata=metadata if columns.optional else None,
        missing=config.missing if isinstance(config, PredictConfig) else "drop",
    )
    if inputs is None:
        inputs = read_inputs(data, columns)
    elif data.metadata is None:
        inputs = replace(inputs, metadata=None)
    if config.trim_primers:
        if saved.profile.holds_primer:
            raise InputError(
                "--trim-primers: the model was trained on reads with primers and does not know "
                "reads without them; leave --trim-primers out"
            )
        inputs = replace(inputs, tables=tuple(map(without_primers, inputs.tables)))
    study = make_study(inputs, data, saved.model.max_bp, saved.seed, columns, of_model=True)
    if not saved.profile.holds_primer:
        warn_of_primers(study.table, of_model=True)
    warnings = [] if saved.only_places else saved.profile.compare(study.table)
    if predicts and study.metadata is not None:
        ids, values = study.table.sample_ids, study.metadata
        known = [model.covariates.warnings(values, ids) for model in models]
        warnings += dict.fromkeys(message for messages in known for message in messages)
    for warning in warnings:
        log.warning("warning: %s", warning)
    return study, warnings


def saw_unlabelled(models: Sequence[SavedModel], ids: Sequence[str]) -> bool:
    """Return whether pretraining saw some of these samples, from whose labels no model has
    learned.
    """
    labelled = {name for saved in models for name in samples_with_labels(saved)}
    seen = {name for saved in models for name in saved.notes["seen_samples"]}
    return bool((seen - labelled) & set(ids))


def _counted(study: Study) -> str:
    """Say how many samples of a file are predicted, and why others are not."""
    selection = study.selection
    reasons = {
        "below the depth": len(selection.dropped),
        "without metadata, which the model reads": len(selection.of_file) - len(selection.aligned),
    }
    left_out = "".join(f", {count} {why}" for why, count in reasons.items() if count)
    predicted = len(study.table.sample_ids)
    return f"{len(selection.of_file)} samples, {predicted} of them predicted{left_out}"


def predict_table(config: PredictConfig) -> None:
    """Predict every sample of a table and write the predictions.

    Raises
    ------
    InputError
        Missing options, a damaged model, a bad table, an output that exists.
    """
    models, study, _ = load_models_and_table(config)
    table = predict_samples(
        models, study, config.prediction_passes, config.runtime, config.new_study
    )
    write_predictions(not_none(config.output), table)
    log.info("%s: %s", config.output, _counted(study))
    if learned := table.texts("subset").count("train"):
        log.info(
            "%d of them were in training (subset train); the report of the run says how good the "
            "model is",
            learned,
        )
