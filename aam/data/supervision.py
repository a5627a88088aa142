"""A study with targets, covariates and weights of samples, all fitted on the training samples only."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import numpy as np
import numpy.typing as npt

from aam.config import CovariateConfig, Loss, TargetConfig
from aam.data.covariates import Covariates, fit_covariates
from aam.data.study import Study
from aam.data.targets import Targets, fit_targets
from aam.errors import InputError, Problems, shown
from aam.io.metadata import Metadata
from aam.options import pairs

Weights = npt.NDArray[np.float32]
LOSSES = get_args(Loss)


def sample_weights(
    metadata: Metadata, column: str, asked: tuple[str, ...], train_ids: Sequence[str], ids: Sequence[str]
) -> Weights:
    """Return weights float32 ``[N]`` of the samples `ids` by their category; 1 where it is empty.

    `asked` is ``balanced``, training samples / (categories * samples of the category), or a weight for each category.
    Raises `InputError`: categories without a weight or unknown ones, weights that are no finite numbers of 0 or more.
    """
    counts = Counter(value for value in metadata.categories(column, train_ids) if value is not None)
    if asked in (("balanced",), ("auto",)):
        weights = {name: counts.total() / (len(counts) * count) for name, count in counts.items()}
    else:
        option = "--categorical-loss-weights"
        given, categories = pairs(asked, option), {*metadata.column(column)}
        try:
            weights = {name: float(weight) for name, weight in given.items()}
        except ValueError:
            weights = {"": math.nan}
        problems = Problems()
        learned = [weights.get(name, 1.0) for name in counts]
        if not all(0 <= weight < math.inf for weight in weights.values()) or (learned and not any(learned)):
            problems.add(
                f"{option} is {' '.join(asked)}, expected finite numbers of 0 or more, one of them above 0 for a "
                f"category of the training samples ({shown(sorted(counts))})"
            )
        if lacking := counts.keys() - given:
            problems.add(f"{option} has no weight for {shown(sorted(lacking))}, which {column!r} has")
        if odd := given.keys() - categories:
            problems.add(f"{option} names {shown(sorted(odd))}, which {column!r} has not; it has {shown(counts, 20)}")
        problems.raise_if_any()
    return np.array([weights.get(value or "", 1.0) for value in metadata.categories(column, ids)], np.float32)


def _with_losses(targets: Targets, config: TargetConfig) -> Targets:
    """Return the targets, each numeric one with its own loss, and quantiles where the loss predicts them."""
    names = [spec.name for spec in targets.numeric]
    # As the predecessor did, a column may be called by its place.
    losses = {
        names[int(name)] if name.isdigit() and int(name) < len(names) else name: loss
        for name, loss in pairs(config.loss_config, "--loss-config").items()
    }
    wrong = [f"{name}={loss}" for name, loss in losses.items() if name not in names or loss not in LOSSES]
    if wrong:
        expected = f"numeric columns ({shown(names)}) and their losses ({shown(LOSSES)})"
        raise InputError(f"--loss-config has {shown(wrong)}, expected {expected}")
    specs = []
    for spec in targets.specs:
        loss = losses.get(spec.name, config.loss_type)
        levels = config.quantiles if spec.kind == "numeric" and loss == "quantile" else ()
        specs.append(dataclasses.replace(spec, loss=loss, quantiles=levels))
    return Targets(tuple(specs))


def _check_fit(targets: Targets, config: TargetConfig, activation: str) -> None:
    """Refuse options of targets that do not go with what the columns hold."""
    problems = Problems()
    width = len(targets.numeric) + sum(len(spec.labels) for spec in targets.classes)
    if config.out_dim not in (None, width):
        problems.add(f"--out-dim is {config.out_dim}, expected {width} for these columns; leave it out, it is derived")
    kinds = {"mae": targets.numeric, "r2": targets.numeric, "val_loss": targets.specs}
    if not kinds.get(config.best_metric, targets.classes):
        problems.add(f"--best-metric {config.best_metric} is no metric of these columns; choose another")
    for spec in targets.numeric:
        if activation != "none" and spec.bounds is not None and spec.bounds[0] < 0:
            problems.add(f"--output-activation {activation} gives no numbers below 0, but {spec.name!r} has some")
    problems.raise_if_any()


def supervised(
    study: Study, targets: TargetConfig, covariates: CovariateConfig, activation: str, train_ids: Sequence[str]
) -> tuple[Study, Targets, Covariates]:
    """Return the study with targets, covariates and weights that were fitted on the samples `train_ids` alone.

    Raises `InputError`: columns or options from which nothing can be learned.
    """
    metadata, ids = study.metadata, study.table.sample_ids
    if not targets.metadata_column or metadata is None:
        return study, Targets(()), Covariates()
    fitted = fit_targets(
        metadata, targets.metadata_column, train_ids,
        classifier=targets.classifier, transform=targets.target_transform, normalize_by=targets.normalize_by,
    )  # fmt: skip
    fitted = _with_losses(fitted, targets)
    _check_fit(fitted, targets, activation)
    target, label = fitted.encode(metadata, ids)
    fitted_covariates = fit_covariates(metadata, covariates, train_ids)
    column = weight_column(targets, covariates)
    asked = targets.categorical_loss_weights
    weight = None if column is None else sample_weights(metadata, column, asked, train_ids, ids)
    encoded = fitted_covariates.encode(metadata, ids)
    labelled = dataclasses.replace(study, target=target, label=label, weight=weight, **encoded)
    return labelled, fitted, fitted_covariates


def weight_column(targets: TargetConfig, covariates: CovariateConfig) -> str | None:
    """Return the column whose categories weigh samples, if any; `InputError` where weights have none to go with."""
    if not targets.categorical_loss_weights:
        return None
    named = (targets.categorical_loss_weight_column, *covariates.categorical_columns)
    column = next((name for name in named if name is not None), None)
    if column is None:
        raise InputError("--categorical-loss-weights: name their column by --categorical-loss-weight-column")
    return column


def optional_columns(targets: TargetConfig, covariates: CovariateConfig) -> list[str]:
    """Return the metadata columns that may have gaps."""
    column = weight_column(targets, covariates)
    return [*covariates.categorical_columns, *covariates.numeric_columns, *(() if column is None else (column,))]
