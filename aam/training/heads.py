"""The heads that the options and the training samples ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aam.config import FineTuneConfig
from aam.data.collate import Collation, rarefied_batch
from aam.data.study import Study
from aam.data.targets import Covariates, Targets
from aam.model.heads import FurtherConfig, HeadConfig

SCALE_SAMPLES = 256


def scale_samples(study: Study, train_ids: Sequence[str]) -> Sequence[str]:
    """Return the training samples that vectors and losses are scaled by: the first ones, or some of every study."""
    if len(study.parts) == 1:
        return train_ids[:SCALE_SAMPLES]
    ordered = sorted(study.rows(train_ids).tolist(), key=study.origin.__getitem__)
    return [study.table.sample_ids[row] for row in ordered[:: max(1, len(ordered) // SCALE_SAMPLES)]]


def _scale(values: Tensor | None) -> tuple[float, float]:
    """Return mean and standard deviation of distances [B, B], each pair once, or of values [B]; NaN are left out."""
    if values is not None and values.ndim > 1:
        rows, columns = torch.triu_indices(len(values), len(values), 1)
        values = values[rows, columns]
    if values is not None:
        values = values[torch.isfinite(values)]
    if values is None or len(values) < 2 or not values.std() > 0:
        return 0.0, 1.0
    return float(values.double().mean()), float(values.double().std())


def further_config(study: Study, values: Mapping[str, Tensor]) -> FurtherConfig:
    """Return the heads of the further targets of a study, scaled by their `values` in training samples."""
    scales = tuple((0.0, 1.0) if name == "taxonomy" else _scale(values.get(name)) for name in study.auxiliary.names)
    taxa = study.auxiliary.taxa
    return FurtherConfig(study.auxiliary.names, scales, taxa.ranks, taxa.names, taxa.entropies)


def head_config(
    config: FineTuneConfig, study: Study, targets: Targets, covariates: Covariates, train_ids: Sequence[str]
) -> HeadConfig:
    """Return the heads that `config` asks for, scaled by the distances and targets of the training samples."""
    metric = study.metric if config.train.penalty > 0 else None
    names = config.covariates.categorical_columns
    scale, further = (0.0, 1.0), FurtherConfig()
    if metric is not None or study.auxiliary.names:
        rows = study.rows(scale_samples(study, train_ids))
        batch = rarefied_batch(study, rows, 0, Collation(tokens=False, distances=metric is not None))
        scale = _scale(batch.faith_pd if batch.distance is None else batch.distance)
        further = further_config(study, batch.auxiliary)
    return HeadConfig(
        metric=metric,
        scale=scale,
        further=further,
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
