"""What predict, embed and evaluate share: models, the table, and the predictions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aam.config import DataConfig
from aam.config_commands import ApplyConfig, EmbedConfig, PredictConfig
from aam.data.study import MetadataColumns, Study, load_study
from aam.device.attention import decide_execution
from aam.device.options import RuntimeConfig
from aam.device.platform import prepare_device
from aam.errors import InputError, shown
from aam.evaluate.predictions import PredictionTable, combined
from aam.options import given
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel, load_models, samples_with_labels

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
        decide_execution(runtime, device, model.model.head_width)
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


def load_table(models: Sequence[SavedModel], config: ApplyConfig) -> tuple[Study, list[str]]:
    """Return the table of `config` rarefied as for the first of some models, and warnings about its ASVs and
    the covariates of its samples.

    Raises
    ------
    InputError
        A bad table, or no sample that reaches the model's depth.
    """
    saved = models[0]
    metadata = getattr(config, "metadata", None)
    # Sample and ASV vectors need neither; what predicts does, and says so where there is no metadata.
    predicts = not isinstance(config, EmbedConfig)
    specs = [spec for model in models for spec in model.targets.specs if predicts]
    required = {spec.normalize_by for spec in specs if spec.normalize_by is not None}
    optional = tuple(dict.fromkeys(name for model in models for name in model.covariates.columns if predicts))
    data = DataConfig(
        table=given(config.table),
        sequences=config.sequences,
        trim=config.trim,
        transpose=config.transpose,
        decimal=getattr(config, "decimal", "."),
        rarefy_depth=saved.depth,
        token_limit=saved.data.token_limit,
        asv_sampling=saved.data.asv_sampling,
        metadata=metadata if required or optional else None,
        missing=config.missing if isinstance(config, PredictConfig) else "drop",
    )
    columns = MetadataColumns(sorted(required), optional)
    study = load_study(data, saved.model.max_bp, saved.seed, columns, of_model=True)
    warnings = saved.profile.compare(study.table.sequences)
    for column, scales in {spec.normalize_by: spec.categories for spec in specs}.items():
        if column is None or study.metadata is None:
            continue
        categories = set(study.metadata.values(column, study.table.sample_ids))
        if unseen := sorted(str(value) for value in categories - scales.keys()):
            warnings.append(f"no scale is known for {shown(unseen)} of {column!r}; that of all is used")
    if predicts and study.metadata is not None:
        of_models = [model.covariates.warnings(study.metadata, study.table.sample_ids) for model in models]
        warnings += dict.fromkeys(message for messages in of_models for message in messages)
    for warning in warnings:
        log.warning("warning: %s", warning)
    return study, warnings


def predict_samples(models: Sequence[SavedModel], study: Study, passes: int, runtime: RuntimeConfig) -> PredictionTable:
    """Return one row per sample of the file, the mean of all models; one below the depth is empty and says why."""
    if not models[0].targets.specs:
        raise InputError("--model: a pretrained encoder predicts nothing; fine-tune it with `aam train` first")
    ids = study.table.sample_ids
    predictions = [predict_rows(m, replace(study, seed=m.seed), ids, runtime, passes) for m in models]
    table = combined(predictions)
    notes = dict.fromkeys(study.selection.of_file, "no metadata, which the model reads")
    notes |= dict(zip(ids, models[0].profile.compare_samples(study.table), strict=True))
    notes |= {
        name: f"{reads} reads, below the model's depth of {study.depth}"
        for name, reads in study.selection.dropped.items()
    }
    subsets = {name: "calibration" for saved in models for name in saved.notes.get("interval_samples", ())}
    subsets |= {name: "train" for saved in models for name in samples_with_labels(saved)}
    table = replace(table, subsets=tuple(subsets.get(name, "") for name in table.sample_ids))
    return table.with_rows(study.selection.of_file, notes)
