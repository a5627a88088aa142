"""Whether the options of a command can be used, alone and together: every check that needs no data and no torch."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable
from typing import Any, get_args

from aam.config import (
    FAITH_PD_SUFFIXES,
    MATRIX_SUFFIXES,
    RESERVED,
    CovariateConfig,
    DataConfig,
    FineTuneConfig,
    Member,
    ModelConfig,
    PretrainConfig,
    StudyConfig,
    TargetConfig,
)
from aam.config_commands import (
    BenchConfig,
    CompareConfig,
    DoctorConfig,
    EvaluateConfig,
    ProfileConfig,
    RfBaselineConfig,
    UnifracConfig,
)
from aam.contradictions_pretrain import pretraining_problems
from aam.encoders import shipped_encoders
from aam.errors import InputError, shown
from aam.files.output_folder import check_output_file
from aam.options import files_read, missing, missing_files, options_of, out_of_range, pairs, wrong_suffixes

# Losses by which only the network learns.
UNBLENDED_LOSSES = {"quantile", "asymmetric"}


def check_command(config: Any) -> None:
    """Refuse, in one message, everything that is wrong with the options of a command before any work.

    Raises
    ------
    InputError
        Required options that are not given, files that do not exist, an output that does, numbers out of range,
        and options that contradict each other.
    """
    problems = [*missing_options(config), *option_problems(config), *wrong_suffixes(config)]
    runtime, inputs = getattr(config, "runtime", config), files_read(config).values()
    for each in options_of(config):
        if each.field.metadata["writes"] and each.value is not None:
            try:
                check_output_file(each.value, runtime.overwrite, inputs)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(*problems)


def missing_options(config: Any) -> list[str]:
    """Return a problem for each required option that is not given; ``aam unifrac --merge`` needs an output only."""
    problems = missing(config)
    if not (isinstance(config, UnifracConfig) and config.merge):
        return problems
    return [problem for problem in problems if not problem.startswith(("--table", "--tree"))]


def option_problems(config: Any) -> list[str]:
    """Return what is wrong with the values of options, given or not."""
    problems = [*out_of_range(config), *missing_files(config, shipped_encoders())]
    match config:
        case PretrainConfig():
            problems += [*pretraining_problems(config), *training_problems(config.training())]
        case FineTuneConfig():
            problems += training_problems(config)
        case ProfileConfig():
            problems += [*split_problems(config.data)]
            problems += size_problems(config.model.embedding_dim, config.model.attention_heads)
        case UnifracConfig():
            problems += unifrac_problems(config)
        case EvaluateConfig():
            problems += evaluation_problems(config)
        case RfBaselineConfig():
            problems += baseline_problems(config)
        case CompareConfig() if config.first is None or config.second is None:
            problems.append("name two runs, or two reports: aam compare ONE OTHER")
        case DoctorConfig():
            problems += size_problems(config.embedding_dim, config.attention_heads)
        case BenchConfig() if config.tree is not None and config.table is None:
            problems.append(f"--tree is {config.tree} but --table is not given; name the table it belongs to")
    return problems


def training_problems(config: FineTuneConfig) -> list[str]:
    """Return the contradictions between all options of `aam pretrain` or `aam train`."""
    data, targets = config.data, config.targets
    checks = {
        f"--metadata-column: {shown(sorted(set(RESERVED) & set(targets.metadata_column)))} cannot be told from columns "
        "of predictions.tsv": bool(set(RESERVED) & set(targets.metadata_column)),
        "--ensemble needs --cv, whose folds are its members; other models: aam predict --model A B": (
            targets.ensemble and data.cv is None
        ),
        f"--track {config.runtime.track}: the library is not installed: "
        f"pip install 'attention-all-microbes[{config.runtime.track}]'": (
            config.runtime.track is not None and importlib.util.find_spec(config.runtime.track) is None
        ),
        f"--resume-from is {config.runtime.resume_from}, expected auto with --cv": (
            data.cv is not None and config.runtime.resume_from not in (None, "auto")
        ),
    }
    return [
        *contradictions(config),
        *split_problems(data),
        *size_problems(config.model.embedding_dim, config.model.attention_heads),
        *unused_problems(config),
        *_holding(checks),
    ]


def _holding(checks: dict[str, bool]) -> Iterable[str]:
    return [problem for problem, holds in checks.items() if holds]


def size_problems(width: int, heads: int) -> list[str]:
    """Return why a network of this width cannot have so many attention heads, if it cannot."""
    if heads < 1 or width % heads == 0:
        return []
    return [f"--embedding-dim {width} is not divisible by --attention-heads {heads}"]


def unused_problems(config: FineTuneConfig) -> list[str]:
    """Return a problem for each option of training that others leave without effect."""
    train, usual = config.train, FineTuneConfig().train
    checks = {
        f"--count-penalty is {train.count_penalty}, and nothing predicts counts; pass --count-prediction or leave it "
        "out": (
            bool(config.targets.metadata_column)
            and not config.targets.count_prediction
            and train.count_penalty not in (0, usual.count_penalty)
        ),
        f"--warmup-steps is {train.warmup_steps}, and --scheduler {train.scheduler} has no warm-up of its own; leave "
        "it out or choose another scheduler": (
            train.warmup_steps is not None and train.scheduler in ("cosine", "onecycle")
        ),
    }
    return list(_holding(checks))


def class_weight_problems(weights: tuple[str, ...], classes: int) -> list[str]:
    """Return why ``--class-weights`` have no effect on a model of so many columns of `classes`, if they have none."""
    if not weights or classes:
        return []
    return [
        f"--class-weights is {' '.join(weights)}, and no column to predict has classes; leave it out, or pass "
        "--classifier to take numbers as classes"
    ]


def encoder_problems(config: FineTuneConfig, pretrained: ModelConfig, has_reference: bool) -> list[str]:
    """Return a problem for each option of the network that contradicts the pretrained encoder.

    A fine-tuned network has the shape of its encoder, so that an option of the network that is given must agree with
    it. One that stands at its default counts as not given.
    """
    problems = []
    if has_reference and config.data.reference_tree is not None:
        problems.append(
            f"--reference-tree {config.data.reference_tree} contradicts --pretrained-encoder, which has "
            "a reference tree of its own; leave it out"
        )
    for item in dataclasses.fields(ModelConfig):
        value, has = getattr(config.model, item.name), getattr(pretrained, item.name)
        if value not in (has, item.default):
            name = item.name.replace("_", "-")
            option = f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name} {value}"
            problems.append(
                f"{option} contradicts --pretrained-encoder, which has {has}; leave it out, or pretrain with it"
            )
    return problems


def split_problems(data: StudyConfig) -> list[str]:
    """Return the options that cannot choose the split together, and columns asked for without metadata."""
    chosen = {"--split": data.split, "--split-column": data.split_column, "--cv": data.cv}
    given = [name for name, value in chosen.items() if value is not None]
    folds = None if data.cv is None or data.cv.isdigit() else data.cv
    columns = [data.split_column, folds, data.group_column, data.batch_column, data.stratify]
    asked = shown(dict.fromkeys(column for column in columns if column is not None))
    checks = {
        f"--cv is {data.cv}, expected 2 or more folds, or a metadata column": (
            data.cv is not None and data.cv.isdigit() and int(data.cv) < 2
        ),
        f"{' and '.join(given)} all choose the split; give one of them": len(given) > 1,
        f"--test-size is {data.test_size}, and {' and '.join(given)} chooses the test samples; leave it out": (
            bool(given) and bool(data.test_size)
        ),
        "--split-column and --test-fold need each other": (data.split_column is None) != (data.test_fold is None),
        "--tree and --unifrac-matrix: both given; distances come from one of them": (
            data.tree is not None and data.unifrac_matrix is not None
        ),
        f"--metadata: not given, but columns {asked} are asked for": (
            data.metadata is None and asked != "" and isinstance(data, DataConfig)
        ),
    }
    return list(_holding(checks))


def unifrac_problems(config: UnifracConfig) -> list[str]:
    """Return contradictions between the options of `aam unifrac`."""
    diversity = config.unifrac_metric == "faith_pd"
    suffixes = FAITH_PD_SUFFIXES if diversity else (".h5",) if config.stripe else MATRIX_SUFFIXES
    output, merging = config.output, bool(config.merge)
    checks = {
        f"--output: {output} ends in {output and output.suffix!r}, expected {', '.join(suffixes)}": (
            output is not None and output.suffix not in suffixes
        ),
        "--stripe and --merge: both given; --merge joins what --stripe has computed": config.stripe is not None
        and merging,
        "--merge joins what was computed already; leave out --table and --tree": (
            merging and (config.table is not None or config.tree is not None)
        ),
        "--unifrac-metric faith_pd: no matrix, so neither --stripe, --merge nor --variance-adjusted": (
            diversity and (merging or config.stripe is not None or config.variance_adjusted)
        ),
    }
    return list(_holding(checks))


def evaluation_problems(config: EvaluateConfig) -> list[str]:
    """Return contradictions between what `aam evaluate` is asked to evaluate."""
    if bool(config.model) == (config.predictions is not None):
        return ["give --model and --table, or --predictions; one of the two"]
    if config.model and config.table is None:
        return ["--table: not given; --model needs the table that it is applied to"]
    return []


def baseline_problems(config: RfBaselineConfig) -> list[str]:
    """Return contradictions between the options that divide the samples of `aam baselines`."""
    data, files = config.data, (config.train_samples, config.val_samples)
    problems = split_problems(data)
    if (files[0] is None) != (files[1] is None):
        problems.append("--train-samples and --val-samples need each other")
    if files[0] is not None and (data.split or data.split_column or data.cv):
        problems.append("--train-samples divides the samples already; leave out --split, --split-column and --cv")
    columns = {*config.categorical_columns, *config.numeric_columns, config.normalize_by}
    if predicted_too := shown(columns & set(config.metadata_column)):
        problems.append(f"--metadata-column {predicted_too} is a covariate too; it would be predicted from itself")
    share = config.forest.max_features
    if share not in (None, "sqrt", "log2") and not _is_share(str(share)):
        problems.append(f"--max-features is {share}, expected sqrt, log2, or a share above 0 and at most 1")
    return problems


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def contradictions(config: FineTuneConfig) -> list[str]:
    """Return a problem for each option of targets and covariates that others, or itself, leave without meaning."""
    targets, regressor, covariates, train = config.targets, config.regressor, config.covariates, config.train
    quantiles, weight_column = targets.quantiles, targets.categorical_loss_weight_column
    columns = covariates.categorical_columns + covariates.numeric_columns
    predicted_too = shown({*columns, targets.normalize_by} & set(targets.metadata_column))
    unread = [name for name in covariates.conditional_output_scaling if name not in covariates.categorical_columns]
    links = (regressor.output_activation != "none") + regressor.bounded_targets
    width, heads = config.model.embedding_dim, covariates.cross_attn_heads
    blended = bool(set(targets.members) - {"deep"})
    attends = len(columns) > 0 and covariates.categorical_fusion in ("cross-attention", "perceiver")
    losses = (targets.loss_type, *targets.loss_config)
    checks = {
        f"--quantiles is {shown(quantiles, 20)}, expected two or more ascending numbers inside (0, 1), one of them 0.5":
            not _are_levels(quantiles),
        "--bounded-targets and --output-activation: both given; choose one": links > 1,
        "--target-transform zscore-category has no one scale for --bounded-targets and --output-activation": (
            links > 0 and targets.target_transform == "zscore-category"
        ),
        f"--categorical-columns, --numeric-columns: {shown(columns)} names a column twice": (
            len(set(columns)) < len(columns)
        ),
        f"--metadata-column {predicted_too} is a covariate too; a model that reads its target learns nothing": (
            predicted_too != ""
        ),
        f"--conditional-output-scaling names {shown(unread)}, expected some of --categorical-columns": unread != [],
        f"--embedding-dim {width} is not divisible by --cross-attn-heads {heads}": (
            attends and heads > 0 and width % heads > 0
        ),
        f"--scheduler-eta-min is {train.scheduler_eta_min}, expected at most --lr, {train.lr}": (
            train.scheduler_eta_min > train.lr
        ),
        f"--unfreeze-epochs is {targets.unfreeze_epochs}, expected fewer than --epochs, {train.epochs}": (
            0 < train.epochs <= targets.unfreeze_epochs
        ),
        f"--quantiles is {shown(quantiles, 20)}, and no column has the loss quantile": (
            quantiles != TargetConfig().quantiles and "quantile" not in " ".join(losses)
        ),
        f"--categorical-fusion is {covariates.categorical_fusion}, and no covariate is named": (
            not columns and covariates != CovariateConfig()
        ),
        f"--members is {shown(targets.members)}, expected deep, presence, kernel, forest, each once at most": (
            len(set(targets.members)) < len(targets.members)
        ),
        "--members: the losses quantile and asymmetric have no blend with others than deep": (
            blended and bool(UNBLENDED_LOSSES & _losses(targets))
        ),
        "--members and --class-weights: the weights would count for the network only; take one of them": (
            blended and bool(targets.class_weights)
        ),
        "--unfreeze-epochs and --freeze-base: both given; choose one": (
            targets.freeze_base and targets.unfreeze_epochs > 0
        ),
        "--categorical-loss-weight-column: no --categorical-loss-weights to go with it": (
            weight_column is not None and not targets.categorical_loss_weights
        ),
    }  # fmt: skip
    return list(_holding(checks))


def default_members(targets: TargetConfig) -> tuple[Member, ...]:
    """Return what predicts together unless ``--members`` says it: all, or the network alone where only it can."""
    alone = bool(UNBLENDED_LOSSES & _losses(targets)) or bool(targets.class_weights)
    return ("deep",) if alone else get_args(Member)


def _losses(targets: TargetConfig) -> set[str]:
    """Return the losses that the numeric columns are asked to have."""
    try:
        return {targets.loss_type, *pairs(targets.loss_config, "--loss-config").values()}
    except InputError:
        return {targets.loss_type}


def _are_levels(quantiles: tuple[float, ...]) -> bool:
    """Whether the quantiles are two or more, ascending inside (0, 1), with the median."""
    ascending = len(quantiles) > 1 and list(quantiles) == sorted(set(quantiles))
    return ascending and 0.5 in quantiles and quantiles[0] > 0 and quantiles[-1] < 1
