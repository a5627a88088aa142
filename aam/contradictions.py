"""Options that contradict each other, or are left without meaning by others."""

from __future__ import annotations

from aam.config import CovariateConfig, FineTuneConfig, TargetConfig
from aam.errors import shown


def contradictions(config: FineTuneConfig) -> list[str]:
    """A problem for each option of targets and covariates that others, or itself, leave without meaning."""
    targets, shape, covariates = config.targets, config.regressor, config.covariates
    levels, width, heads = targets.quantiles, config.model.embedding_dim, covariates.cross_attn_heads
    columns = covariates.categorical_columns + covariates.numeric_columns
    odd = [name for name in covariates.conditional_output_scaling if name not in covariates.categorical_columns]
    links = (shape.output_activation != "none") + shape.bounded_targets
    own = shown(set(columns) & set(targets.metadata_column))
    train, named, scales = config.train, targets.categorical_loss_weight_column, targets.target_transform
    attends = columns and covariates.categorical_fusion in ("cross-attention", "perceiver")
    found = {
        f"--quantiles is {shown(levels, 20)}, expected two or more ascending numbers inside (0, 1), one of them 0.5": (
            list(levels) != sorted(set(levels))
            or len(levels) < 2
            or 0.5 not in levels
            or not 0 < levels[0] <= levels[-1] < 1
        ),
        f"--regressor-hidden-dims is {shown(shape.regressor_hidden_dims)}, expected 1 or more": (
            any(size < 1 for size in shape.regressor_hidden_dims)
        ),
        "--bounded-targets and --output-activation: both given; choose one": links > 1,
        "--target-transform zscore-category has no one scale for --bounded-targets and --output-activation": (
            links > 0 and scales == "zscore-category"
        ),
        f"--categorical-columns, --numeric-columns: {shown(columns)} names a column twice": (
            len(set(columns)) < len(columns)
        ),
        f"--metadata-column {own} is a covariate too; a model that reads its target learns nothing": own != "",
        f"--conditional-output-scaling names {shown(odd)}, expected some of --categorical-columns": odd != [],
        f"--embedding-dim {width} is not divisible by --cross-attn-heads {heads}": (
            attends and heads > 0 and width % heads > 0
        ),
        f"--scheduler-eta-min is {train.scheduler_eta_min}, expected at most --lr, {train.lr}": (
            train.scheduler_eta_min > train.lr
        ),
        f"--unfreeze-epochs is {targets.unfreeze_epochs}, expected fewer than --epochs, {train.epochs}": (
            0 < train.epochs <= targets.unfreeze_epochs
        ),
        f"--quantiles is {shown(levels, 20)}, and no column has the loss quantile": (
            levels != TargetConfig().quantiles and "quantile" not in " ".join((targets.loss_type, *targets.loss_config))
        ),
        f"--categorical-fusion is {covariates.categorical_fusion}, and no covariate is named": (
            not columns and covariates != CovariateConfig()
        ),
        f"--members is {shown(targets.members)}, expected deep, presence, kernel, forest, each once at most": (
            not targets.members or len(set(targets.members)) < len(targets.members)
        ),
        "--members: the loss quantile has no blend with others than deep": (
            set(targets.members) != {"deep"} and "quantile" in " ".join((targets.loss_type, *targets.loss_config))
        ),
        "--unfreeze-epochs and --freeze-base: both given; choose one": (
            targets.freeze_base and targets.unfreeze_epochs > 0
        ),
        "--categorical-loss-weight-column: no --categorical-loss-weights to go with it": (
            named is not None and not targets.categorical_loss_weights
        ),
    }
    return [problem for problem, holds in found.items() if holds]
