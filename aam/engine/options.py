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
    keep_checkpoints: int = rare(
        2,
        "How many of the newest checkpoints are kept while the run lasts.",
        ge=1,
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
    optimizer: Literal["adamw", "adam", "sgd"] = rare("adamw", "Optimizer.")
    momentum: float = rare(0.9, "Momentum of --optimizer sgd.", ge=0, lt=1)
    scheduler: Literal[
        "warmup_cosine", "cosine", "cosine_restarts", "plateau", "onecycle", "constant"
    ] = rare(
        "warmup_cosine",
        "Course of the learning rate; all but cosine and onecycle begin with the warm-up.",
    )
    scheduler_t0: int = rare(10, "Epochs of the first period of cosine_restarts.", ge=1)
    scheduler_t_mult: int = rare(
        2, "Each period of cosine_restarts is so many times the one before.", ge=1
    )
    scheduler_eta_min: float = rare(0.0, "Learning rate at the end of a cosine.", ge=0)
    scheduler_patience: int = rare(
        3, "Validations without improvement before plateau lowers the rate.", ge=0
    )
    scheduler_factor: float = rare(0.5, "By what plateau multiplies the learning rate.", gt=0, le=1)
    scheduler_min_lr: float = rare(
        0.0, "Below this plateau does not lower the learning rate.", ge=0
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
    max_memory_fraction: float | None = rare(
        None,
        "Share of the memory that a batch may take, else it is trained in parts; "
        "--auto-batch-size: unset 0.8.",
        gt=0,
        le=1,
    )
    target_effective_batch_size: int | None = rare(
        None, "Samples per step of the optimizer; unset: batch size times accumulation.", ge=1
    )
    ema_decay: float = rare(
        0.0,
        "Validate and save an average of the weights that keeps this share of itself each step; "
        "0: none.",
        ge=0,
        lt=1,
    )
    max_grad_norm: float = rare(1.0, "Gradients are clipped to this norm.", gt=0)
    nonfinite: Literal["stop", "skip"] = rare(
        "stop",
        "On a loss or gradient that is not finite: end the run, or leave out the step (10 in a "
        "row end it).",
    )
    patience: int = option(
        10, "Validations without improvement before the run stops; 0 never stops early.", ge=0
    )

    def problems(self) -> list[str]:
        """Return which options the schedule leaves without effect, or cannot take."""
        rules = {
            f"--warmup-steps is {self.warmup_steps}, and --scheduler {self.scheduler} has no "
            "warm-up of its own; leave "
            "it out or choose another scheduler": (
                self.warmup_steps is not None and self.scheduler in ("cosine", "onecycle")
            ),
            f"--scheduler-eta-min is {self.scheduler_eta_min}, expected at most --lr, {self.lr}": (
                self.scheduler_eta_min > self.lr
            ),
        }
        return broken(rules)
