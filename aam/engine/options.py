"""Options of training that every model has."""

from __future__ import annotations

import importlib.util
from typing import Literal

from pydantic.dataclasses import dataclass

from aam.device.options import ProcessConfig
from aam.errors import InputError
from aam.options import (
    STRICT,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ShareBelowOne,
    broken,
    option,
)


@dataclass(frozen=True, config=STRICT)
class RunConfig(ProcessConfig):
    """Machine, precision, output and checkpoints"""

    dry_run: bool = option(
        False,
        "Check of all inputs and a summary of the run, without output.",
        changes="nothing",
        of="command",
    )
    resume_from: str | None = option(
        None,
        "Checkpoint to resume from; auto: the newest, if there is one.",
        changes="nothing",
        of="command",
    )
    checkpoint_minutes: NonNegativeFloat = option(
        10.0, "Minutes between checkpoints.", changes="nothing", of="run"
    )
    track: Literal["mlflow", "wandb"] | None = option(
        None, "Experiment tracker that also gets the metrics.", changes="nothing", of="run"
    )

    def problems(self) -> list[str]:
        """Name the library of ``--track`` if it is not installed."""
        absent = self.track is not None and importlib.util.find_spec(self.track) is None
        problem = (
            f"--track {self.track}: the library is not installed: pip install "
            f"'attention-all-microbes[{self.track}]'"
        )
        return broken({problem: absent})


@dataclass(frozen=True, config=STRICT)
class TrainingOptions:
    """Optimization"""

    epochs: PositiveInt = option(40, "Number of passes over the training samples.")
    batch_size: PositiveInt | Literal["auto"] = option(
        64, "Number of samples per batch and device; auto: the largest that fits.", memory="lower"
    )
    lr: PositiveFloat = option(5e-4, "Peak learning rate.")
    weight_decay: NonNegativeFloat = option(0.01, "Weight decay per unit of learning rate.")
    warmup_steps: NonNegativeInt | None = option(
        None, "Number of warm-up steps; unset: a tenth of the run, at most 1,000."
    )
    gradient_accumulation_steps: PositiveInt = option(1, "Number of batches per optimizer step.")
    ema_decay: ShareBelowOne = option(0.0, "Decay of the average of the weights; 0: no average.")
    max_grad_norm: PositiveFloat = option(1.0, "Maximum norm of the gradients.")
    patience: NonNegativeInt = option(
        10, "Number of validations without improvement before the end; 0: no early stopping."
    )

    @property
    def samples_per_batch(self) -> int:
        """The batch size; `InputError` if it is still to be chosen."""
        if self.batch_size == "auto":
            raise InputError("--batch-size is auto, expected a number")
        return self.batch_size
