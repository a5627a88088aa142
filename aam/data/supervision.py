"""What a model is taught with: targets, covariates and weights of samples, fitted on the training samples only."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from aam.config import CovariateConfig, Loss, TargetConfig
from aam.data.metadata import Metadata
from aam.data.study import Study
from aam.data.targets import Scale, Targets, fit_targets
from aam.errors import InputError, Problems, shown
from aam.options import pairs

log = logging.getLogger("aam")

Weights = npt.NDArray[np.float32]
LOSSES = get_args(Loss)


@dataclass(frozen=True)
class Covariates:
    """Columns that a model reads beside the ASVs: the categories of some, the scale of others."""

    categorical: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numeric: dict[str, Scale] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.categorical, *self.numeric)

    def encode(self, metadata: Metadata | None, ids: Sequence[str]) -> dict[str, Any]:
        """`category` int64 [N, C], 0 where empty or new, and `covariate` float32 [N, M], NaN where missing.

        Without metadata all is unknown; nothing is returned where there are no columns. Raises `InputError` for text
        among numbers.
        """
        if not self.columns:
            return {}
        category = np.zeros((len(ids), len(self.categorical)), np.int64)
        covariate = np.full((len(ids), len(self.numeric)), math.nan, np.float32)
        if metadata is None:
            return {"category": category, "covariate": covariate}
        for column, (name, levels) in enumerate(self.categorical.items()):
            values = metadata.values(name, ids)
            place = {level: index for index, level in enumerate(levels, start=1)}
            category[:, column] = [place.get(value or "", 0) for value in values]
            if new := Counter(value for value in values if value is not None and value not in place):
                log.warning(
                    "%s: column %r: %d samples are in categories that no training sample has (%s); read as unknown",
                    metadata.source, name, new.total(), shown(sorted(new)),
                )  # fmt: skip
        for column, (name, scale) in enumerate(self.numeric.items()):
            covariate[:, column] = (metadata.numbers(name, ids) - scale.center) / scale.spread
        return {"category": category, "covariate": covariate}

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Covariates:
        """Covariates from the parsed JSON that `to_json` gave."""
        levels = {name: tuple(map(str, levels)) for name, levels in value["categorical"].items()}
        return cls(levels, {name: Scale(**scale) for name, scale in value["numeric"].items()})


def fit_covariates(metadata: Metadata, config: CovariateConfig, train_ids: Sequence[str]) -> Covariates:
    """Categories and scales of the training samples; `InputError` for columns that are constant or empty there."""
    found, problems = Covariates(), Problems()
    metadata.require([*config.categorical_columns, *config.numeric_columns])
    for name in (*config.categorical_columns, *config.numeric_columns):
        levels = sorted({value for value in metadata.values(name, train_ids) if value is not None})
        if len(levels) < 2:
            problems.add(
                f"{metadata.source}: covariate {name!r} is {shown(levels) or 'missing'} for all {len(train_ids)} "
                "training samples and tells nothing; leave it out"
            )
        elif name in config.categorical_columns:
            found.categorical[name] = tuple(levels)
        else:
            values = np.sort(metadata.numbers(name, train_ids))
            spread = float(np.nanstd(values))
            found.numeric[name] = Scale(float(np.nanmean(values)), spread if spread > 0 else 1.0)
    problems.raise_if_any()
    return found


def sample_weights(
    metadata: Metadata, column: str, asked: tuple[str, ...], train_ids: Sequence[str], ids: Sequence[str]
) -> Weights:
    """Weights float32 ``[N]`` of the samples `ids` by their category; 1 where it is empty.

    `asked` is ``balanced``, training samples / (categories * samples of the category), or a weight for each category.
    Raises `InputError`: categories without a weight or unknown ones, weights that are no finite numbers of 0 or more.
    """
    counts = Counter(value for value in metadata.values(column, train_ids) if value is not None)
    if asked in (("balanced",), ("auto",)):
        weights = {name: counts.total() / (len(counts) * count) for name, count in counts.items()}
    else:
        option = "--categorical-loss-weights"
        given, known = pairs(asked, option), {*metadata.column(column)}
        try:
            weights = {name: float(weight) for name, weight in given.items()}
        except ValueError:
            weights = {"": math.nan}
        problems = Problems()
        if not all(0 <= weight < math.inf for weight in weights.values()) or not any(weights.values()):
            problems.add(f"{option} is {' '.join(asked)}, expected finite numbers of 0 or more, one of them above 0")
        if lacking := counts.keys() - given:
            problems.add(f"{option} has no weight for {shown(sorted(lacking))}, which {column!r} has")
        if odd := given.keys() - known:
            problems.add(f"{option} names {shown(sorted(odd))}, which {column!r} has not; it has {shown(counts, 20)}")
        problems.raise_if_any()
    return np.array([weights.get(value or "", 1.0) for value in metadata.values(column, ids)], np.float32)


def _with_losses(targets: Targets, config: TargetConfig) -> Targets:
    """Every numeric target with its own loss, and quantiles where that predicts them."""
    own, names = pairs(config.loss_config, "--loss-config"), [spec.name for spec in targets.numeric]
    # As the predecessor did, a column may be called by its place.
    own = {names[int(name)] if name.isdigit() and int(name) < len(names) else name: loss for name, loss in own.items()}
    wrong = [f"{name}={loss}" for name, loss in own.items() if name not in names or loss not in LOSSES]
    if wrong:
        expected = f"numeric columns ({shown(names)}) and their losses ({shown(LOSSES)})"
        raise InputError(f"--loss-config has {shown(wrong)}, expected {expected}")
    specs = []
    for spec in targets.specs:
        loss = own.get(spec.name, config.loss_type)
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
        problems.add(f"--best-metric {config.best_metric} is no figure of these columns; choose another")
    for spec in targets.numeric:
        if activation != "none" and spec.bounds is not None and spec.bounds[0] < 0:
            problems.add(f"--output-activation {activation} gives no numbers below 0, but {spec.name!r} has some")
    problems.raise_if_any()


def supervised(
    study: Study, targets: TargetConfig, covariates: CovariateConfig, activation: str, train_ids: Sequence[str]
) -> tuple[Study, Targets, Covariates]:
    """The study with all that it is learned from and with, which know the training samples `train_ids` only.

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
    read = fit_covariates(metadata, covariates, train_ids)
    column = weight_column(targets, covariates)
    asked = targets.categorical_loss_weights
    weight = None if column is None else sample_weights(metadata, column, asked, train_ids, ids)
    known = dataclasses.replace(study, target=target, label=label, weight=weight, **read.encode(metadata, ids))
    return known, fitted, read


def weight_column(targets: TargetConfig, covariates: CovariateConfig) -> str | None:
    """The column whose categories weigh samples, if any; `InputError` where weights have none to go with."""
    if not targets.categorical_loss_weights:
        return None
    named = (targets.categorical_loss_weight_column, *covariates.categorical_columns)
    column = next((name for name in named if name is not None), None)
    if column is None:
        raise InputError("--categorical-loss-weights: name their column by --categorical-loss-weight-column")
    return column


def optional_columns(targets: TargetConfig, covariates: CovariateConfig) -> list[str]:
    """Metadata columns that may have gaps."""
    column = weight_column(targets, covariates)
    return [*covariates.categorical_columns, *covariates.numeric_columns, *(() if column is None else (column,))]
