"""`aam pretrain` and `aam train`."""

from __future__ import annotations

from aam.api.training import run
from aam.config import FineTuneConfig, PretrainConfig


def pretrain(config: PretrainConfig) -> int:
    """Run `aam pretrain`, which trains an encoder without labels; return the exit status."""
    return run(config.training(), "pretrain", config)


def train(config: FineTuneConfig) -> int:
    """Run `aam train`, which trains a model of metadata columns; return the exit status."""
    return run(config, "train", config)
