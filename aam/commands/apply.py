"""What predict, embed and evaluate share: models, the table, and the predictions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aam.config import DataConfig
from aam.config_commands import ApplyConfig, EmbedConfig, PredictConfig
from aam.data.study import Study
from aam.data.study_inputs import load_study
from aam.errors import InputError, shown
from aam.evaluation.predictions import PredictionTable, combined
from aam.options import out_of_range
from aam.runtime.decisions import decide_execution
from aam.runtime.device import prepare_device
from aam.runtime.options import RuntimeConfig
from aam.training.inference import predict_rows
from aam.training.saved_model import SavedModel, load_models

log = logging.getLogger("aam")


def check_paths(config: ApplyConfig, **options: Path | tuple[Path, ...] | None) -> tuple[Path, ...]:
    """The paths given; `InputError` names every option that was not, and every number out of range."""
    missing = [f"--{name.replace('_', '-')}: not given" for name, path in options.items() if not path]
    if problems := missing + out_of_range(config):
        raise InputError(*problems)
    return tuple(path for path in options.values() if isinstance(path, Path))


def load_models_and_table(config: ApplyConfig) -> tuple[list[SavedModel], Study, list[str]]:
    """The models, the table drawn as the first was trained, and warnings about its ASVs.

    Raises `InputError` where no sample reaches the model's depth: there is nothing to apply it to.
    """
    (table,) = check_paths(config, model=config.model, table=config.table)
    device = prepare_device(config.runtime)
    models = load_models(config.model, device)
    for one in models:
        decide_execution(config.runtime, device, one.model.head_width)
    saved, metadata = models[0], getattr(config, "metadata", None)
    # Sample and ASV vectors need neither; what predicts does, and says so where there is no metadata.
    predicts = not isinstance(config, EmbedConfig)
    specs = [spec for one in models for spec in one.targets.specs if predicts]
    wanted = {spec.normalize_by for spec in specs if spec.normalize_by is not None}
    optional = tuple(dict.fromkeys(name for one in models for name in one.covariates.columns if predicts))
    data = DataConfig(
        table=table,
        sequences=config.sequences,
        trim=config.trim,
        rarefy_depth=saved.depth,
        token_limit=saved.data.token_limit,
        asv_sampling=saved.data.asv_sampling,
        metadata=metadata if wanted or optional else None,
        missing=config.missing if isinstance(config, PredictConfig) else "drop",
    )
    study = load_study(data, saved.model.max_bp, saved.seed, sorted(wanted), optional=optional)
    warnings = saved.profile.compare(study.table.sequences)
    labels = None if study.metadata is None else study.metadata.values
    for column, known in {spec.normalize_by: spec.categories for spec in specs}.items():
        found = set() if column is None or labels is None else set(labels(column, study.table.sample_ids))
        if unseen := sorted(str(value) for value in found - known.keys()):
            warnings.append(f"no scale is known for {shown(unseen)} of {column!r}; that of all is used")
    for warning in warnings:
        log.warning("warning: %s", warning)
    return models, study, warnings


def predict_samples(models: Sequence[SavedModel], study: Study, passes: int, runtime: RuntimeConfig) -> PredictionTable:
    """One row per sample of the file, the mean of all models; those below the depth are empty and say why."""
    if not models[0].targets.specs:
        raise InputError("--model: a pretrained encoder predicts nothing; fine-tune it with `aam train` first")
    device = next(models[0].network.parameters()).device
    ids, draws = study.table.sample_ids, [(saved, replace(study, seed=saved.seed)) for saved in models]
    table = combined([predict_rows(saved, own, ids, runtime, device, passes) for saved, own in draws])
    notes = dict.fromkeys(study.all_sample_ids, "no metadata, which the model reads") | dict.fromkeys(ids, "")
    notes |= {name: f"{reads} reads, below the model's depth of {study.depth}" for name, reads in study.dropped.items()}
    subsets = {name: "calibration" for saved in models for name in saved.notes.get("interval_samples", ())}
    subsets |= {name: "train" for saved in models for name in saved.notes["seen_samples"]}
    table = replace(table, subsets=tuple(subsets.get(name, "") for name in table.sample_ids))
    return table.with_rows(study.all_sample_ids, notes)
