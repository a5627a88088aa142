"""Options of the machine: device, precision, threads, processes, output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.options import option, rare


@dataclass(frozen=True, kw_only=True)
class ObservedConfig:
    """What any command reports beside its result"""

    memory_profile: bool = rare(False, "Write memory.json and memory.png to the output: most memory of each stage.")
    debug: bool = rare(False, "Show the traceback of an error.")


@dataclass(frozen=True)
class RuntimeConfig(ObservedConfig):
    """Machine, precision and output"""

    output_dir: Path | None = option(None, "Folder of the run; must not hold one already.")
    overwrite: bool = option(False, "Replace what stands at the output.")
    seed: int = option(0, "Seed of every random draw.", ge=0, le=2**32 - 1)
    device: str = option("auto", "auto, cpu, cuda, cuda:N, hip, hip:N or mps.")
    threads: int | None = option(None, "CPU threads; unset: all cores this process may use.", rare=True, ge=1)
    num_workers: int = option(0, "Processes that prepare batches beside the main one.", ge=0)
    mixed_precision: Literal["auto", "none", "bf16", "fp16"] = option(
        "auto", "auto: bf16 where the device has it in hardware (not on CPU), else float32; fp16 scales the loss."
    )
    attn_implementation: Literal["auto", "math", "mem_efficient", "flash", "sdpa"] = option(
        "auto", "Attention: auto takes the fastest that is right here; sdpa leaves it to torch; wrong ones are refused."
    )
    allow_inexact_attention: bool = option(
        False, "Take what --attn-implementation names although it computes wrong here.", rare=True
    )
    tf32: bool = option(False, "Allow TF32 products of the network (never of UniFrac targets).", rare=True)
    asv_chunk_size: int | None = option(
        None, "ASVs encoded at a time to bound memory; unset: all of the batch at once.", ge=1
    )
    compile_model: bool = option(
        False,
        "Compile the encoders by what works here: inductor, else aot_eager, else nothing; tried apart first.",
        rare=True,
    )
    gradient_checkpointing: bool = option(False, "Recompute activations in backward: less memory, more time.")
    memory_snapshot: bool = option(
        False, "With --memory-profile on a GPU, write every allocation too, for torch's memory viewer.", rare=True
    )
    use_expandable_segments: bool = option(
        False, "Let torch's allocator grow its blocks (CUDA, ROCm 7 and newer): less fragmentation.", rare=True
    )
    deterministic: bool = option(False, "Only operations that give the same bits each time, also on a GPU; slower.")


@dataclass(frozen=True)
class ProcessConfig(RuntimeConfig):
    """Machine, precision, output and processes"""

    distributed: bool = option(
        False, "One of several processes, one per device, that srun or torchrun started; DDP makes them train as one."
    )
    data_parallel: bool = option(
        False, "Start one process per visible GPU of this node; on CPU one for every --threads cores."
    )
    fsdp: bool = option(
        False, "Weights and optimizer in shards, one on each device (FSDP2), instead of DDP.", rare=True
    )
    fsdp_sharded_checkpoint: bool = option(
        False, "With --fsdp each rank writes its own shard of a checkpoint, to a folder that all ranks see.", rare=True
    )
