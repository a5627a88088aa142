"""One function for each command: options in, files out."""

from __future__ import annotations

from collections.abc import Sequence

from aam.cli.options import parse
from aam.config import (
    EmbedConfig,
    EvaluateConfig,
    FineTuneConfig,
    PredictConfig,
    PretrainConfig,
    SimulateConfig,
    TargetConfig,
    UnifracConfig,
)
from aam.errors import InputError

Words = Sequence[str]


def simulate(words: Words) -> None:
    """Write a synthetic study."""
    config = parse("simulate", SimulateConfig(), words)
    from aam.data.simulate import simulate as run

    for name, value in run(config).items():
        print(f"{name}: {value}")


def unifrac(words: Words) -> None:
    """Write a UniFrac matrix or Faith PD."""
    config = parse("unifrac", UnifracConfig(), words)
    from aam.data.whole_table import write_unifrac

    write_unifrac(config)


def pretrain(words: Words) -> None:
    """Pretrain an encoder."""
    config = parse("pretrain", PretrainConfig(), words)
    from aam.training.run import run

    run(FineTuneConfig(config.data, TargetConfig(), config.model, config.train, config.runtime), "pretrain")


def train(words: Words) -> None:
    """Fine-tune on metadata columns."""
    config = parse("train", FineTuneConfig(), words)
    if not config.targets.metadata_column:
        raise InputError("--metadata-column: not given; name the column to predict (aam pretrain needs none)")
    from aam.training.run import run

    run(config, "train")


def predict(words: Words) -> None:
    """Predict new samples."""
    config = parse("predict", PredictConfig(), words)
    from aam.training.apply import predict_table

    predict_table(config)


def embed(words: Words) -> None:
    """Write vectors of samples and ASVs."""
    config = parse("embed", EmbedConfig(), words)
    from aam.training.apply import embed_table

    embed_table(config)


def evaluate(words: Words) -> None:
    """Compare predictions with the truth."""
    config = parse("evaluate", EvaluateConfig(), words)
    from aam.training.apply import evaluate_table

    evaluate_table(config)
