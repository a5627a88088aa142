"""Options of the machine: device, precision, threads, processes, output."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from aam.options import STRICT, NonNegativeInt, PositiveInt, Seed, option

Precision = Literal["auto", "bf16", "fp16", "none"]
Attention = Literal["auto", "sdpa", "flash", "mem_efficient", "math"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ObservedConfig:
    """Reports of every command"""

    memory_profile: bool = option(
        False, "Maximum memory of each stage, as memory.json.", changes="nothing", of="command"
    )
    debug: bool = option(False, "Traceback of an error.", changes="nothing", of="command")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OutputConfig(ObservedConfig):
    """Output of every command that writes"""

    overwrite: bool = option(False, "Replacement of an existing output.", changes="nothing")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeviceConfig:
    """Device and threads"""

    device: str = option(
        "auto", "Device: auto, cpu, cuda[:N], hip[:N] or mps.", changes="last bits"
    )
    threads: PositiveInt | None = option(
        None, "Number of CPU threads; unset: all cores of this process.", changes="last bits"
    )


@dataclass(frozen=True, config=STRICT)
class RuntimeConfig(DeviceConfig, OutputConfig):
    """Machine, precision and output"""

    output_dir: Path | None = option(None, "New folder of the run.", changes="nothing")
    seed: Seed = option(0, "Seed of all random draws.")
    num_workers: NonNegativeInt = option(
        0, "Number of additional processes that prepare batches.", changes="nothing"
    )
    mixed_precision: Precision = option(
        "auto", "Precision; auto: bf16 from width 256 on, if the GPU has it, else float32."
    )
    attn_implementation: Attention = option(
        "auto",
        "Attention kernel; auto: the fastest correct one; sdpa: the choice of torch.",
        changes="last bits",
    )
    asv_chunk_size: PositiveInt | None = option(
        None,
        "Number of ASVs encoded at a time; unset: all of the batch.",
        changes="last bits",
        memory="set or lower",
    )
    compile_model: bool = option(
        False, "Compilation of the network by torch.compile, if it works here.", changes="last bits"
    )
    gradient_checkpointing: bool = option(
        False,
        "Recomputation of activations: less memory, more time.",
        changes="last bits",
        memory="pass",
    )
    deterministic: bool = option(
        False, "Operations with the same bits on each call, also on a GPU.", changes="last bits"
    )


@dataclass(frozen=True, config=STRICT)
class ProcessConfig(RuntimeConfig):
    """Machine, precision, output and processes"""

    distributed: bool = option(
        False, "This process is one of several of srun or torchrun.", changes="last bits", of="run"
    )
    data_parallel: bool = option(
        False,
        "One process per GPU of this node, or per --threads cores.",
        changes="last bits",
        of="run",
    )
    fsdp: bool = option(
        False,
        "Weights and optimizer in shards (FSDP2) instead of DDP.",
        changes="last bits",
        of="run",
    )
