"""The options of all commands of HTFT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Le
from pydantic.dataclasses import dataclass

from aam.options import (
    STRICT,
    NonNegativeFloat,
    NonNegativeInt,
    ObservedConfig,
    PositiveFloat,
    PositiveInt,
    RunConfig,
    TrainingOptions,
    option,
    section,
)

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


@dataclass(frozen=True, config=STRICT)
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
    vocabulary: Annotated[int, Ge(4), Le(4096)] = option(48, "Tokens of the Markov language.")
    width: Annotated[int, Ge(4)] = option(64, "Width of the hidden states of a GRU or GPT.")
    length: Annotated[int, Ge(4)] = option(16, "Tokens of a window.")
    windows: Annotated[int, Ge(64)] = option(6000, "Training windows.")
    held_out_windows: Annotated[int, Ge(16)] = option(1200, "Held-out windows.")
    vocab_limit: Annotated[int, Ge(2)] = option(
        4096, "Most frequent tokens that the student tells apart; the rest is one."
    )


@dataclass(frozen=True, config=STRICT)
class TeachConfig:
    """Train or load a teacher, and write what it sees and predicts on windows of tokens."""

    teacher: TeacherOptions = section(TeacherOptions())
    train: TrainingOptions = section(
        TrainingOptions(epochs=3, batch_size=32, lr=5e-3, weight_decay=0.0)
    )
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OMITTED)


@dataclass(frozen=True, config=STRICT)
class StudentOptions:
    """The two stages"""

    units: tuple[PositiveInt, ...] = option((128, 256), "Units of the two stages.")
    active: tuple[NonNegativeInt, ...] = option(
        (0, 0), "Units of each stage that an input may use; 0: all of them."
    )
    temperature: tuple[PositiveFloat, ...] = option((1.0, 1.0), "Temperatures of the gates.")
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
    band: tuple[PositiveFloat, ...] = option(
        (1.0, 3.0), "Least and largest initial width of a band."
    )
    gain: PositiveFloat = option(8.0, "Initial factor of the output of the second stage.")
    unigram_bias: bool = option(True, "Start from the unigram probabilities.")
    embedding: Annotated[int, Ge(2)] = option(64, "Width of what the first stage gives the second.")
    tail: PositiveInt = option(4, "Last hidden states that the second stage sees.")
    bigrams: Annotated[int, Ge(2)] = option(
        256, "Buckets of the hashed bigrams that the first stage sees."
    )
    sketch: Annotated[int, Ge(64)] = option(1024, "Buckets of CountSketch.")
    projected: Annotated[int, Ge(64)] = option(
        512, "Inputs of a field, after the Hadamard transform."
    )
    block: PositiveInt = option(64, "Inputs of a field whose scale is divided out together.")
    geometry_factor: NonNegativeFloat = option(
        0.1, "Learning rate of planes and bands, as a share of --lr."
    )
    update_rule: Literal["gradient", "online"] = option(
        "gradient",
        "online: the published rule: detached gates, constant bands, normals set back to length 1.",
    )
    relocate_every: NonNegativeInt = option(
        0, "Steps after which an unused unit is moved to a bad sample; 0: never."
    )
    shard_units: bool = option(
        False, "With --distributed or --data-parallel: each process holds a share of the units."
    )


@dataclass(frozen=True, config=STRICT)
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


@dataclass(frozen=True, config=STRICT)
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


@dataclass(frozen=True, config=STRICT)
class BenchmarkConfig(ObservedConfig):
    """Measure steps of both stages, in one process and in two."""

    profile: Path = option(
        Path("profiles/latest.json"), "JSON to write; an earlier one is replaced."
    )
    units: tuple[PositiveInt, ...] = option((2048, 2048), "Units of the two stages.")
    steps: Annotated[int, Ge(20)] = option(100, "Steps of each measurement.")
    repeats: PositiveInt = option(3, "Measurements of each kind, in turn.")
    threads: PositiveInt = option(1, "CPU threads of a process.")


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


def train_problems(config: TrainConfig) -> Iterator[str]:
    """Yield the problems of the options of the student."""
    student, devices = config.student, device_names(config)
    for name in ("units", "active", "temperature", "band"):
        values = getattr(student, name)
        if len(values) != 2:
            yield f"--{name} is {' '.join(map(str, values))}, expected 2 numbers"
    if len(devices) not in (0, 2):
        found = ",".join(devices)
        yield f"--devices is {found}, expected one device for each of the two stages"
    if student.shard_units:
        if devices:
            yield "--devices and --shard-units: both given; take one of them"
        if student.update_rule == "online":
            yield "--shard-units and --update-rule online: it needs all units; take one of them"
        if any(student.active) or student.relocate_every:
            chosen = "units are chosen among all; leave them out"
            yield f"--shard-units with --active or --relocate-every: {chosen}"
    if student.locality == "anchor" and not all(student.active):
        all_used = "all units are used, wherever their anchors are; give two numbers"
        yield f"--locality anchor without --active: {all_used}"
    if student.projected % student.block:
        yield f"--projected {student.projected} is not a multiple of --block {student.block}"
    if student.projected > student.sketch:
        yield f"--projected {student.projected} is more than --sketch {student.sketch} holds"
