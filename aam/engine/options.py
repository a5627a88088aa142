"""Options of training that any model has."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from aam.device.options import ProcessConfig
from aam.options import broken, option, rare


@dataclass(frozen=True)
class RunConfig(ProcessConfig):
    """Machine, precision, output and checkpoints"""

    dry_run: bool = option(
        False,
        "Read and check all inputs, show what would be done with which samples, and leave the "
        "output as it is.",
        changes="nothing",
        of="command",
    )
    resume_from: str | None = option(
        None,
        "auto: go on from the newest checkpoint of --output-dir, if any; or the folder of one "
        "checkpoint.",
        changes="nothing",
        of="command",
    )
    checkpoint_minutes: float = rare(
        10.0,
        "Minutes between checkpoints; SIGTERM and SIGUSR2 save one too.",
        ge=0,
        changes="nothing",
        of="run",
    )
    track: Literal["mlflow", "wandb"] | None = rare(
        None,
        "Give the metrics to MLflow or Weights & Biases too, in the folder of the run unless "
        "their variables say.",
        changes="nothing",
        of="run",
    )

    def problems(self) -> list[str]:
        """Return that the library of ``--track`` is not installed, if it is not."""
        absent = self.track is not None and importlib.util.find_spec(self.track) is None
        problem = (
            f"--track {self.track}: the library is not installed: pip install "
            f"'attention-all-microbes[{self.track}]'"
        )
        return broken({problem: absent})


@dataclass(frozen=True)
class TrainingOptions:
    """Optimization"""

    epochs: int = option(
        40, "Passes over the training samples.", ge=1, aliases=("--num-epochs", "--max-epochs")
    )
    batch_size: int = option(
        64,
        "Samples per batch on each device; pairs are those of the batches of all devices.",
        ge=1,
        memory="lower",
    )
    lr: float = option(5e-4, "Peak learning rate.", gt=0, aliases=("--learning-rate",))
    weight_decay: float = rare(0.01, "Decay of weight matrices per unit of learning rate.", ge=0)
    warmup_steps: int | None = rare(
        None, "Steps of linear warm-up; unset: a tenth of the run, at most 1,000.", ge=0
    )
    gradient_accumulation_steps: int = rare(
        1, "Batches per step of the optimizer; pairs are those within a batch.", ge=1
    )
    auto_batch_size: bool = rare(
        False,
        "Take the largest batch that fits in memory; accumulation keeps the samples of a step "
        "what they were.",
        memory="pass",
    )
    ema_decay: float = rare(
        0.0,
        "Validate and save an average of the weights that keeps this share of itself each step; "
        "0: none.",
        ge=0,
        lt=1,
    )
    max_grad_norm: float = rare(1.0, "Gradients are clipped to this norm.", gt=0)
    patience: int = option(
        10, "Validations without improvement before the run stops; 0 never stops early.", ge=0
    )
