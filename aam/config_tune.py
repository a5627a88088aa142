"""The options of `aam tune`: those of `aam train` and of the search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aam.config import OF_PRETRAINING, TRAINED_BEFORE, DataConfig, FineTuneConfig, TargetConfig, TrainConfig
from aam.engine.options import RunConfig
from aam.options import option, section


@dataclass(frozen=True)
class SearchConfig:
    """The search"""

    trials: int = option(30, "Trials in all: those of earlier calls and of other processes count.", ge=1)
    inner_folds: int = option(
        3, "Parts of the training samples, whole groups each; a trial predicts each by a model of the others.", ge=2
    )
    search_space: Path | None = option(
        None, "TOML of the options that are searched, with their values; unset: those that --dry-run shows.", reads=True
    )
    prune: bool = option(True, "End a trial that is worse than the median of the earlier ones after as many parts.")


# What a search has no use for: several models, processes, and state of a single training.
OF_ONE_RUN = (
    "checkpoint_minutes", "keep_checkpoints", "track", "distributed", "data_parallel", "fsdp",
    "fsdp_sharded_checkpoint", "memory_snapshot",
)  # fmt: skip


@dataclass(frozen=True)
class TuneConfig(FineTuneConfig):
    """Search for the options of `aam train` that predict best, on training samples alone."""

    data: DataConfig = section(DataConfig(), required=("table", "metadata"), omitted=(*OF_PRETRAINING, "cv"))
    targets: TargetConfig = section(
        TargetConfig(), required=("metadata_column",), omitted=("ensemble", "rf_baseline", "best_metric")
    )
    train: TrainConfig = section(
        FineTuneConfig().train,
        omitted=("auto_batch_size", "max_memory_fraction", "target_effective_batch_size", *TRAINED_BEFORE),
    )
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OF_ONE_RUN)
    search: SearchConfig = section(SearchConfig())

    def training(self) -> FineTuneConfig:
        """Return the options of `aam train`."""
        return FineTuneConfig(
            self.data, self.targets, self.regressor, self.covariates, self.model, self.train, self.runtime
        )
