"""`aam predict`, and what embed, explain and evaluate share with it: models, and the table that
they read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aam.config import ApplyConfig, DataConfig, EmbedConfig, PredictConfig
from aam.data.region import warn_of_primers, without_primers
from aam.data.study import Inputs, MetadataColumns, Study, make_study, read_inputs
from aam.device.attention import decide_execution
from aam.device.options import RuntimeConfig
from aam.device.platform import prepare_device
from aam.errors import InputError
from aam.evaluate.predictions import write_predictions
from aam.options import given
from aam.predict.prediction import predict_samples
from aam.predict.saved_model import SavedModel, load_models

log = logging.getLogger("aam")


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
    saved = models[0]
    metadata = getattr(config, "metadata", None)
    # Sample and ASV vectors need neither; what predicts does, and says so where there is no
    # metadata.
    predicts = not isinstance(config, EmbedConfig)
    optional = tuple(
        dict.fromkeys(name for model in models for name in model.covariates.columns if predicts)
    )
    data = DataConfig(
        table=config.table,
        sequences=config.sequences,
        trim=config.trim,
        decimal=getattr(config, "decimal", "."),
        missing_values=getattr(config, "missing_values", ()),
        rarefy_depth=getattr(config, "rarefy_depth", None) or saved.depth,
        token_limit=saved.data.token_limit,
        metadata=metadata if optional else None,
        missing=config.missing if isinstance(config, PredictConfig) else "drop",
    )
    columns = MetadataColumns((), optional)
    if inputs is None:
        inputs = read_inputs(data, columns)
    elif data.metadata is None:
        inputs = replace(inputs, metadata=None)
    if config.trim_primers and saved.profile.holds_primer:
        raise InputError(
            "--trim-primers: the model was trained on reads that hold primers, so reads without "
            "them would be unknown to it; leave --trim-primers out"
        )
    if config.trim_primers:
        inputs = replace(inputs, tables=tuple(map(without_primers, inputs.tables)))
    study = make_study(inputs, data, saved.model.max_bp, saved.seed, columns, of_model=True)
    if not saved.profile.holds_primer:
        warn_of_primers(study.table, of_model=True)
    warnings = [] if saved.only_places else saved.profile.compare(study.table)
    if predicts and study.metadata is not None:
        of_models = [
            model.covariates.warnings(study.metadata, study.table.sample_ids) for model in models
        ]
        warnings += dict.fromkeys(message for messages in of_models for message in messages)
    for warning in warnings:
        log.warning("warning: %s", warning)
    return study, warnings


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
    write_predictions(given(config.output), table)
    log.info("%s: %s", config.output, _counted(study))
    if learned := table.texts("subset").count("train"):
        log.info(
            "%d of them were in training (subset train); the report of the run says how good the "
            "model is",
            learned,
        )
