"""`aam predict`, and what embed and evaluate share with it: models, the table, and the predictions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aam.config import DataConfig
from aam.config_commands import ApplyConfig, EmbedConfig, PredictConfig
from aam.data.placement import shipped_reference
from aam.data.primers import without_primers
from aam.data.study import Inputs, MetadataColumns, Study, make_study, read_inputs
from aam.device.attention import decide_execution
from aam.device.options import RuntimeConfig
from aam.device.platform import prepare_device
from aam.errors import InputError, shown
from aam.evaluate.predictions import PredictionTable, combined, write_predictions
from aam.io.metadata import Metadata, read_metadata
from aam.options import given
from aam.predict.adaptation import adapt_table, checked_labels
from aam.predict.linear import LEAST_TO_CENTRE
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel, load_models, samples_with_labels

log = logging.getLogger("aam")

# Share of the reads in ASVs of training below which these ASVs say too little (docs/decisions.md).
LEAST_KNOWN = 0.1


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


def load_table(
    models: Sequence[SavedModel], config: ApplyConfig, inputs: Inputs | None = None
) -> tuple[Study, list[str]]:
    """Return a table rarefied as for the first of some models, and warnings about its ASVs and covariates.

    The table and its metadata are `inputs`, or the files that `config` names.

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
    if inputs is None:
        inputs = read_inputs(data, columns)
    elif data.metadata is None:
        inputs = replace(inputs, metadata=None)
    if config.trim_primers:
        inputs = replace(inputs, tables=tuple(map(without_primers, inputs.tables)))
    study = make_study(inputs, data, saved.model.max_bp, saved.seed, columns, of_model=True)
    warnings = [] if saved.only_places else saved.profile.compare(study.table.sequences)
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


def _check_new_study(models: Sequence[SavedModel], study: Study, new_study: bool) -> None:
    """Say what centres the samples of a new study; `InputError` for a model that learned nothing about studies."""
    ids, column = study.table.sample_ids, models[0].data.study_column
    relative = any(model.blend.is_relative for model in models)
    if new_study and column is None:
        raise InputError(
            "--new-study: the model was not trained to hold in other studies; train it with --study-column"
        )
    seen = set(ids).intersection(*(samples_with_labels(model) for model in models))
    if new_study and seen:
        log.warning(
            "warning: --new-study: %d samples are of a study of training: %s", len(seen), shown(sorted(seen), 3)
        )
    if relative and not new_study and len(seen) < len(ids):
        log.warning(
            "warning: the model learned from several values of %r; for one it has not seen: --new-study", column
        )
    if relative and new_study and len(ids) < LEAST_TO_CENTRE:
        log.warning(
            "warning: --new-study: %d samples are too few to know the mean of their study, %d are needed; they are "
            "read relative to the mean of training", len(ids), LEAST_TO_CENTRE,
        )  # fmt: skip
    elif relative and new_study:
        log.info("--new-study: read relative to the mean of its %d samples, whose labels nobody needs", len(ids))


def _bridged(model: SavedModel, study: Study) -> SavedModel:
    """Return what predicts a table: the model, or its learners of reference branches where it knows few of the reads.

    These say nothing of how far they err: no intervals were fitted to them. `InputError` where the reads are no 16S.
    """
    if not model.elsewhere.fitted:
        return model
    known = float(np.median(1 - model.profile.shares_of_samples(study.table)["unseen"]))
    if known >= LEAST_KNOWN:
        return model
    log.warning(
        "warning: training had the ASVs of %.0f %% of the reads (median of samples): predicted by where reads stand on "
        "a reference tree, which holds across regions of 16S, less exactly and without intervals", 100 * known,
    )  # fmt: skip
    shipped_reference().place_softly(study.tokens.numpy()).check_16s(study.table.counts, "--table")
    notes = {name: value for name, value in model.notes.items() if name != "intervals"}
    return replace(model, network=None, blend=model.elsewhere, notes=notes)


def predict_samples(
    models: Sequence[SavedModel],
    study: Study,
    passes: int,
    runtime: RuntimeConfig,
    new_study: bool = False,
    labels: Metadata | None = None,
) -> PredictionTable:
    """Return one row per sample of the file, the mean of all models; one below the depth is empty and says why.

    With `new_study` the samples are read relative to their own mean, and adapted to the `labels` of a few of them.
    """
    if not models[0].targets.specs:
        raise InputError("--model: a pretrained encoder predicts nothing; fine-tune it with `aam train` first")
    models = [_bridged(model, study) for model in models]
    _check_new_study(models, study, new_study)
    few = {} if labels is None else checked_labels(labels, models, study)
    ids = study.table.sample_ids
    studies = ["new"] * len(ids) if new_study else None
    predictions = [
        predict_rows(model, replace(study, seed=model.seed), ids, runtime, passes, studies=studies) for model in models
    ]
    table = combined(predictions)
    if few:
        table = adapt_table(table, replace(study, seed=models[0].seed), few, passes)
    notes = dict.fromkeys(study.selection.of_file, "no metadata, which the model reads")
    notes |= dict(zip(ids, models[0].profile.compare_samples(study.table), strict=True))
    notes |= {
        name: f"{reads} reads, below the model's depth of {study.depth}"
        for name, reads in study.selection.dropped.items()
    }
    subsets = {name: "calibration" for saved in models for name in saved.notes.get("interval_samples", ())}
    subsets |= {name: "train" for saved in models for name in samples_with_labels(saved)}
    subsets |= {name: "train" for classes in few.values() for name in classes}
    table = replace(table, subsets=tuple(subsets.get(name, "") for name in table.sample_ids))
    return table.with_rows(study.selection.of_file, notes)


def predict_table(config: PredictConfig) -> None:
    """Predict every sample of a table and write the predictions.

    Raises
    ------
    InputError
        Missing options, a damaged model, a bad table, an output that exists.
    """
    output = given(config.output)
    models, study, _ = load_models_and_table(config)
    labels = None if config.labels is None else read_metadata(config.labels, config.decimal)
    table = predict_samples(models, study, config.prediction_passes, config.runtime, config.new_study, labels)
    write_predictions(output, table)
    log.info("%s: %d samples, %d of them below the depth", output, len(table.sample_ids), len(study.selection.dropped))
    if learned := table.subsets.count("train"):
        log.info(
            "the model has learned from %d of them (subset train): how good it is the predictions of its run say, "
            "not these", learned,
        )  # fmt: skip
