"""The heads that the options and the training samples ask for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aam.config import FineTuneConfig
from aam.data.covariates import Covariates
from aam.data.draw import draw_batch
from aam.data.study import Study
from aam.data.targets import Targets
from aam.model.heads import HeadConfig

SCALE_SAMPLES = 256


def scale_samples(study: Study, train_ids: Sequence[str]) -> Sequence[str]:
    """Return the training samples that vectors and losses are scaled by: the first ones, or some of every study."""
    if study.origin is None:
        return train_ids[:SCALE_SAMPLES]
    ordered = sorted(study.rows(train_ids).tolist(), key=study.origin.__getitem__)
    return [study.table.sample_ids[row] for row in ordered[:: max(1, len(ordered) // SCALE_SAMPLES)]]


def _scale(study: Study, train_ids: Sequence[str]) -> tuple[float, float]:
    """Return mean and standard deviation of the distance, or of Faith PD, in one rarefaction of training samples."""
    batch = draw_batch(study, study.rows(scale_samples(study, train_ids)), 0, tokens=False)
    values = batch.faith_pd
    if batch.distance is not None:
        rows, columns = torch.triu_indices(len(batch.distance), len(batch.distance), 1)
        values = batch.distance[rows, columns]
        values = values[torch.isfinite(values)]
    if values is None or len(values) < 2 or not values.std() > 0:
        return 0.0, 1.0
    return float(values.double().mean()), float(values.double().std())


def head_config(
    config: FineTuneConfig, study: Study, targets: Targets, covariates: Covariates, train_ids: Sequence[str]
) -> HeadConfig:
    """Return the heads that `config` asks for, scaled by the distances and targets of the training samples."""
    metric = study.metric if config.train.penalty > 0 else None
    names = config.covariates.categorical_columns
    return HeadConfig(
        metric=metric,
        scale=(0.0, 1.0) if metric is None else _scale(study, train_ids),
        counts=config.train.count_penalty > 0,
        n_targets=len(targets.numeric),
        n_classes=tuple(len(spec.labels) for spec in targets.classes),
        losses=tuple(spec.loss for spec in targets.numeric),
        quantiles=config.targets.quantiles,
        **{
            name: tuple(spec.encoded(edge[at]) for spec in targets.numeric if (edge := (*(spec.bounds or ()), 0.0)))
            for at, name in enumerate(("low", "high", "zero"))
        },
        levels=tuple(1 + len(levels) for levels in covariates.categorical.values()),
        numbers=len(covariates.numeric),
        scaled_by=tuple(names.index(name) for name in config.covariates.conditional_output_scaling),
        regressor=config.regressor,
        covariates=config.covariates,
    )
