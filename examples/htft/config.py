"""The options of all commands of HTFT."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from aam.device.options import ObservedConfig
from aam.engine.options import RunConfig, TrainingOptions
from aam.options import option, rare, section

# Options of a run that mean nothing here.
OMITTED = (
    "asv_chunk_size",
    "fsdp",
    "compile_model",
    "gradient_checkpointing",
    "mixed_precision",
    "attn_implementation",
    "num_workers",
    "dry_run",
)


class FieldConfig(NamedTuple):
    """The options of the field of one stage, under the names that `StudentOptions` has them by."""

    units: int
    active: int = 0
    temperature: float = 1.0
    interpolation: str = "hermite"
    metric: str = "planar"
    locality: str = "planar"
    band: tuple[float, ...] = (1.0, 3.0)
    gain: float = 1.0
    online: bool = False


@dataclass(frozen=True)
class TeacherOptions:
    """The teacher and its windows"""

    provider: Literal["gru", "gpt", "aam", "hf"] = option(
        "gru",
        "A GRU or GPT that is trained here on a Markov language, aam's nucleotide encoder, or a "
        "causal language "
        "model of transformers.",
    )
    source: Path | None = option(
        None, "Of aam: folder of a pretrained encoder; of hf: folder of a model.", reads=True
    )
    text: Path | None = option(
        None, "Of aam: feature table; of hf: text file; windows are cut from it.", reads=True
    )
    vocabulary: int = option(48, "Tokens of the Markov language.", ge=4, le=4096)
    width: int = option(64, "Width of the hidden states of a GRU or GPT.", ge=4)
    length: int = option(16, "Tokens of a window.", ge=4)
    windows: int = option(6000, "Training windows.", ge=64)
    held_out_windows: int = option(1200, "Held-out windows.", ge=16)
    vocab_limit: int = option(
        4096, "Most frequent tokens that the student tells apart; the rest is one.", ge=2
    )


@dataclass(frozen=True)
class TeachConfig:
    """Train or load a teacher, and write what it sees and predicts on windows of tokens."""

    teacher: TeacherOptions = section(TeacherOptions())
    train: TrainingOptions = section(
        TrainingOptions(epochs=3, batch_size=32, lr=5e-3, weight_decay=0.0)
    )
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OMITTED)


@dataclass(frozen=True)
class StudentOptions:
    """The two stages"""

    units: tuple[int, ...] = option((128, 256), "Units of the two stages.", ge=1)
    active: tuple[int, ...] = option(
        (0, 0), "Units of each stage that an input may use; 0: all of them.", ge=0
    )
    temperature: tuple[float, ...] = option((1.0, 1.0), "Temperatures of the gates.", gt=0)
    metric: Literal["planar", "euclid", "hybrid", "hybrid_exp"] = option(
        "planar", "What gates compare."
    )
    locality: Literal["planar", "anchor"] = option(
        "planar",
        "Active units: those of the nearest planes, or of the nearest anchors, which are "
        "training inputs.",
    )
    interpolation: Literal["linear", "quadratic", "hermite"] = option(
        "hermite", "Between the control vectors."
    )
    band: tuple[float, ...] = option((1.0, 3.0), "Least and largest initial width of a band.", gt=0)
    gain: float = option(8.0, "Initial factor of the output of the second stage.", gt=0)
    unigram_bias: bool = option(True, "Start from the unigram probabilities.")
    embedding: int = option(64, "Width of what the first stage gives the second.", ge=2)
    tail: int = option(4, "Last hidden states that the second stage sees.", ge=1)
    bigrams: int = option(256, "Buckets of the hashed bigrams that the first stage sees.", ge=2)
    sketch: int = option(1024, "Buckets of CountSketch.", ge=64)
    projected: int = option(512, "Inputs of a field, after the Hadamard transform.", ge=64)
    block: int = rare(64, "Inputs of a field whose scale is divided out together.", ge=1)
    geometry_factor: float = option(
        0.1, "Learning rate of planes and bands, as a share of --lr.", ge=0
    )
    update_rule: Literal["gradient", "online"] = option(
        "gradient",
        "online: the published rule: detached gates, constant bands, normals set back to length 1.",
    )
    relocate_every: int = option(
        0, "Steps after which an unused unit is moved to a bad sample; 0: never.", ge=0
    )
    shard_units: bool = option(
        False, "With --distributed or --data-parallel: each process holds a share of the units."
    )


@dataclass(frozen=True)
class TrainConfig:
    """Train the two stages on the windows of a teacher."""

    windows: Path | None = option(
        None, "Folder windows/ that `teach` wrote.", required=True, reads=True
    )
    devices: tuple[str, ...] = option(
        (), "Devices of the first and of the second stage: a process for each.", "FIRST SECOND"
    )
    variant: Literal["clean", "published"] = option(
        "clean",
        "published: rule, sizes of steps, gates and initial values as published, in place of "
        "these options.",
    )
    student: StudentOptions = section(StudentOptions())
    train: TrainingOptions = section(
        TrainingOptions(
            epochs=4, batch_size=32, lr=0.03, weight_decay=0.0, max_grad_norm=1e6, patience=0
        )
    )
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OMITTED)


@dataclass(frozen=True)
class EvaluateConfig(ObservedConfig):
    """Print the perplexities of students, teacher, linear read-out and unigrams on held-out
    windows.
    """

    windows: Path | None = option(
        None, "Folder windows/ that `teach` wrote.", required=True, reads=True
    )
    model: tuple[Path, ...] = option(
        (), "Folders model/ of students.", "PATH ...", required=True, reads=True
    )
    output: Path | None = option(None, "JSON to write.", writes=True)
    overwrite: bool = option(False, "Replace the output if it exists.")


@dataclass(frozen=True)
class BenchmarkConfig(ObservedConfig):
    """Measure steps of both stages, in one process and in two."""

    profile: Path = option(
        Path("profiles/latest.json"), "JSON to write; an earlier one is replaced."
    )
    units: tuple[int, ...] = option((2048, 2048), "Units of the two stages.", ge=1)
    steps: int = option(100, "Steps of each measurement.", ge=20)
    repeats: int = option(3, "Measurements of each kind, in turn.", ge=1)
    threads: int = option(1, "CPU threads of a process.", ge=1)


def field_config(options: StudentOptions, stage: int) -> FieldConfig:
    """Return the options of the field of a stage; the first has no gain."""
    return FieldConfig(
        options.units[stage],
        options.active[stage],
        options.temperature[stage],
        options.interpolation,
        options.metric,
        options.locality,
        options.band,
        (1.0, options.gain)[stage],
        options.update_rule == "online",
    )


def published(config: TrainConfig) -> TrainConfig:
    """Return the options with those of the published rule: one window a step, one pass, constant
    steps.
    """
    student = dataclasses.replace(
        config.student,
        active=(64, 32),
        temperature=(2.0, 0.8),
        metric="hybrid_exp",
        band=(0.1, 1.0),
        gain=1.0,
        unigram_bias=False,
        geometry_factor=0.1,
        update_rule="online",
    )
    train = dataclasses.replace(config.train, epochs=1, batch_size=1, lr=0.04, warmup_steps=0)
    return dataclasses.replace(config, student=student, train=train)


def device_names(config: TrainConfig) -> tuple[str, ...]:
    """Return the devices of the stages; commas may stand between them."""
    return tuple(name for word in config.devices for name in word.split(","))


def train_problems(config: TrainConfig) -> list[str]:
    """Return what is wrong with the options of the student together."""
    student, devices = config.student, device_names(config)
    pairs = {"units": 2, "active": 2, "temperature": 2, "band": 2}
    problems = [
        f"--{name} is {' '.join(map(str, values))}, expected {count} numbers"
        for name, count in pairs.items()
        if len(values := getattr(student, name)) != count
    ]
    checks = {
        f"--devices is {','.join(devices)}, expected one device for each of the two stages": len(
            devices
        )
        not in (0, 2),
        "--devices and --shard-units: both given; take one of them": bool(devices)
        and student.shard_units,
        "--shard-units and --update-rule online: the published rule needs all units; take one of them": (  # noqa: E501
            student.shard_units and student.update_rule == "online"
        ),
        (
            "--shard-units with --active or --relocate-every: units are chosen among all; leave "
            "them "
            "out"
        ): (student.shard_units and (any(student.active) or student.relocate_every > 0)),
        (
            "--locality anchor without --active: all units are used, wherever their anchors are; "
            "give two numbers"
        ): (student.locality == "anchor" and not all(student.active)),
        f"--projected {student.projected} is not a multiple of --block {student.block}": (
            student.projected % student.block > 0
        ),
        f"--projected {student.projected} is more than --sketch {student.sketch} holds": (
            student.projected > student.sketch
        ),
    }
    return problems + [problem for problem, holds in checks.items() if holds]
