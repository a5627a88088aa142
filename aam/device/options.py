"""Options of the machine: device, precision, threads, processes, output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.options import option, rare


@dataclass(frozen=True, kw_only=True)
class ObservedConfig:
    """What any command reports beside its result"""

    memory_profile: bool = rare(
        False,
        "Write memory.json to the output: maximum memory of each stage.",
        changes="nothing",
        of="command",
    )
    debug: bool = rare(False, "Show the traceback of an error.", changes="nothing", of="command")


@dataclass(frozen=True, kw_only=True)
class OutputConfig(ObservedConfig):
    """What any command that writes does with an earlier output"""

    overwrite: bool = option(False, "Replace the output if it exists.", changes="nothing")


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Device and threads"""

    device: str = option("auto", "auto, cpu, cuda, cuda:N, hip, hip:N or mps.", changes="last bits")
    threads: int | None = rare(
        None,
        "CPU threads; unset: all cores this process may use.",
        ge=1,
        changes="last bits",
        aliases=("--num-threads",),
    )


@dataclass(frozen=True)
class RuntimeConfig(DeviceConfig, OutputConfig):
    """Machine, precision and output"""

    output_dir: Path | None = option(
        None, "Folder of the run; must not hold one already.", changes="nothing", unless="dry_run"
    )
    seed: int = option(
        0, "Seed of every random draw.", ge=0, le=2**32 - 1, aliases=("--random-seed",)
    )
    num_workers: int = rare(
        0, "Processes that prepare batches beside the main one.", ge=0, changes="nothing"
    )
    mixed_precision: Literal["auto", "none", "bf16", "fp16"] = rare(
        "auto",
        "auto: networks of width 256 and more are trained in bf16 where the device has it in "
        "hardware (not on CPU), "
        "all else is float32; fp16 scales the loss.",
    )
    attn_implementation: Literal["auto", "math", "mem_efficient", "flash", "sdpa"] = rare(
        "auto",
        "Attention: auto takes the fastest that is right here; sdpa leaves it to torch; wrong "
        "ones are refused.",
        changes="last bits",
    )
    asv_chunk_size: int | None = rare(
        None,
        "ASVs encoded at a time to bound memory; unset: all of the batch at once.",
        ge=1,
        changes="last bits",
        memory="set or lower",
    )
    compile_model: bool = rare(
        False,
        "Compile the encoders by what works here: inductor, else aot_eager, else nothing; tried "
        "apart first.",
        changes="last bits",
    )
    gradient_checkpointing: bool = rare(
        False,
        "Recompute activations in backward: less memory, more time.",
        changes="last bits",
        memory="pass",
    )
    deterministic: bool = rare(
        False,
        "Only operations that give the same bits each time, also on a GPU; slower.",
        changes="last bits",
    )


@dataclass(frozen=True)
class ProcessConfig(RuntimeConfig):
    """Machine, precision, output and processes"""

    distributed: bool = option(
        False,
        "One of several processes, one per device, that srun or torchrun started; DDP makes them "
        "train as one.",
        changes="last bits",
        of="run",
    )
    data_parallel: bool = option(
        False,
        "Start one process per visible GPU of this node; on CPU one for every --threads cores.",
        changes="last bits",
        of="run",
    )
    fsdp: bool = rare(
        False,
        "Weights and optimizer in shards, one on each device (FSDP2), instead of DDP.",
        changes="last bits",
        of="run",
    )
