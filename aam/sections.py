"""Sections of options that every model has: machine, processes, run, optimization."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from aam.errors import InputError
from aam.options import (
    STRICT,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    ShareBelowOne,
    option,
)

Precision = Literal["auto", "bf16", "fp16", "none"]
Attention = Literal["auto", "sdpa", "flash", "mem_efficient", "math"]
Tracker = Literal["mlflow", "wandb"]

# What another value changes in a run that is resumed.
NOTHING: dict[str, Any] = {"changes": "nothing"}
BITS: dict[str, Any] = {"changes": "last bits"}
PROCESSES: dict[str, Any] = {**BITS, "of": "run"}

# Help that is too long for the line of its option.
WORKERS = "Number of additional processes that prepare batches."
PRECISION = "Precision; auto: bf16 from width 256 on, if the GPU has it, else float32."
KERNEL = "Attention kernel; auto: the fastest correct one; sdpa: the choice of torch."
CHUNK = "Number of ASVs encoded at a time; unset: all of the batch."
COMPILED = "Compilation of the network by torch.compile, if it works here."
RECOMPUTED = "Recomputation of activations: less memory, more time."
SAME_BITS = "Operations with the same bits on each call, also on a GPU."
ONE_OF_SEVERAL = "This process is one of several of srun or torchrun."
ONE_PER_GPU = "One process per GPU of this node, or per --threads cores."
SHARDS = "Weights and optimizer in shards (FSDP2) instead of DDP."
CHECKED = "Check of all inputs and a summary of the run, without output."
RESUMED = "Checkpoint to resume from; auto: the newest, if there is one."
BATCH = "Number of samples per batch and device; auto: the largest that fits."
WARM_UP = "Number of warm-up steps; unset: a tenth of the run, at most 1,000."
PATIENCE = "Number of validations without improvement before the end; 0: no early stopping."
CORES = "Number of CPU threads; unset: all cores of this process."


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ObservedConfig:
    """Reports of every command"""

    memory_profile: bool = option(
        False, "Maximum memory of each stage, as memory.json.", **NOTHING, of="command"
    )
    debug: bool = option(False, "Traceback of an error.", **NOTHING, of="command")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OutputConfig(ObservedConfig):
    """Output of every command that writes"""

    overwrite: bool = option(False, "Replacement of an existing output.", **NOTHING)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeviceConfig:
    """Device and threads"""

    device: str = option("auto", "Device: auto, cpu, cuda[:N], hip[:N] or mps.", **BITS)
    threads: PositiveInt | None = option(None, CORES, **BITS)


@dataclass(frozen=True, config=STRICT)
class RuntimeConfig(DeviceConfig, OutputConfig):
    """Machine, precision and output"""

    output_dir: Path | None = option(None, "New folder of the run.", **NOTHING)
    seed: Seed = option(0, "Seed of all random draws.")
    num_workers: NonNegativeInt = option(0, WORKERS, **NOTHING)
    mixed_precision: Precision = option("auto", PRECISION)
    attn_implementation: Attention = option("auto", KERNEL, **BITS)
    asv_chunk_size: PositiveInt | None = option(None, CHUNK, **BITS, memory="set or lower")
    compile_model: bool = option(False, COMPILED, **BITS)
    gradient_checkpointing: bool = option(False, RECOMPUTED, **BITS, memory="pass")
    deterministic: bool = option(False, SAME_BITS, **BITS)


@dataclass(frozen=True, config=STRICT)
class ProcessConfig(RuntimeConfig):
    """Machine, precision, output and processes"""

    distributed: bool = option(False, ONE_OF_SEVERAL, **PROCESSES)
    data_parallel: bool = option(False, ONE_PER_GPU, **PROCESSES)
    fsdp: bool = option(False, SHARDS, **PROCESSES)


@dataclass(frozen=True, config=STRICT)
class RunConfig(ProcessConfig):
    """Machine, precision, output and checkpoints"""

    dry_run: bool = option(False, CHECKED, **NOTHING, of="command")
    resume_from: str | None = option(None, RESUMED, **NOTHING, of="command")
    checkpoint_minutes: NonNegativeFloat = option(
        10.0, "Minutes between checkpoints.", **NOTHING, of="run"
    )
    track: Tracker | None = option(
        None, "Experiment tracker that also gets the metrics.", **NOTHING, of="run"
    )

    def problems(self) -> Iterator[str]:
        """Name the library of ``--track`` if it is not installed."""
        if self.track is not None and importlib.util.find_spec(self.track) is None:
            remedy = f"pip install 'attention-all-microbes[{self.track}]'"
            yield f"--track {self.track}: the library is not installed: {remedy}"


@dataclass(frozen=True, config=STRICT)
class TrainingOptions:
    """Optimization"""

    epochs: PositiveInt = option(40, "Number of passes over the training samples.")
    batch_size: PositiveInt | Literal["auto"] = option(64, BATCH, memory="lower")
    lr: PositiveFloat = option(5e-4, "Peak learning rate.")
    weight_decay: NonNegativeFloat = option(0.01, "Weight decay per unit of learning rate.")
    warmup_steps: NonNegativeInt | None = option(None, WARM_UP)
    gradient_accumulation_steps: PositiveInt = option(1, "Number of batches per optimizer step.")
    ema_decay: ShareBelowOne = option(0.0, "Decay of the average of the weights; 0: no average.")
    max_grad_norm: PositiveFloat = option(1.0, "Maximum norm of the gradients.")
    patience: NonNegativeInt = option(10, PATIENCE)

    @property
    def samples_per_batch(self) -> int:
        """The batch size; `InputError` if it is still to be chosen."""
        if self.batch_size == "auto":
            raise InputError("--batch-size is auto, expected a number")
        return self.batch_size
