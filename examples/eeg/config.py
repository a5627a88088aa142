"""The options of all commands of the EEG example."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic.dataclasses import dataclass

from aam.options import (
    STRICT,
    NonNegativeFloat,
    NonNegativeInt,
    ObservedConfig,
    PositiveFloat,
    PositiveInt,
    RunConfig,
    Seed,
    ShareBelowOne,
    TrainingOptions,
    option,
    section,
    wrong_ending,
)

# Options of a run that mean nothing here.
OMITTED = ("asv_chunk_size", "compile_model", "gradient_checkpointing", "num_workers", "dry_run")


@dataclass(frozen=True, config=STRICT)
class SimulateConfig(ObservedConfig):
    """Write a simulated cohort: FIF files in a BIDS layout, and participants.tsv with age and
    sex.
    """

    output_dir: Path | None = option(None, "Folder to write.", required=True)
    subjects: Annotated[int, Ge(4)] = option(240, "Subjects.")
    windows: PositiveInt = option(6, "Windows of two seconds in a recording.")
    channels: Annotated[int, Ge(8)] = option(129, "Channels.")
    seed: Seed = option(0, "Seed of everything that is drawn.")
    overwrite: bool = option(False, "Replace the output folder if it exists.")


@dataclass(frozen=True, config=STRICT)
class RecordingOptions:
    """Recordings and how they are cut"""

    cohort: Path | None = option(
        None,
        "Folder in BIDS layout: participants.tsv, and files that MNE reads (FIF, EDF, BDF, SET, "
        "VHDR).",
        required=True,
        reads=True,
    )
    sampling_rate: Annotated[float, Gt(1)] = option(
        100.0, "Samples per second that recordings are brought to."
    )
    window_seconds: PositiveFloat = option(2.0, "Length of a window.")
    stride_seconds: PositiveFloat = option(2.0, "Distance of the beginnings of two windows.")
    low_hz: PositiveFloat | None = option(None, "Lower edge of a band-pass filter; unset: none.")
    high_hz: PositiveFloat | None = option(None, "Upper edge of a band-pass filter; unset: none.")
    max_microvolts: PositiveFloat | None = option(
        None, "Windows that go beyond plus or minus this are left out."
    )
    bad_channels: bool = option(
        False,
        "Set channels to 0 whose variance is 3 standard deviations above the others, or that are "
        "flat.",
    )


@dataclass(frozen=True, config=STRICT)
class LabelOptions:
    """Labels and subsets; subjects are never divided"""

    targets: tuple[str, ...] = option(
        ("age", "sex"),
        "Columns of participants.tsv: numbers are predicted as numbers, text as classes.",
        "COLUMN ...",
    )
    test_size: Annotated[float, Gt(0), Lt(1)] = option(
        0.25, "Share of the subjects that are held out."
    )
    validation_size: Annotated[float, Gt(0), Lt(1)] = option(
        0.15, "Share of the other subjects that choose the epoch."
    )
    cv: Annotated[int, Ge(2)] | None = option(
        None, "Hold out each of so many folds of the subjects in turn."
    )
    label_share: Annotated[float, Gt(0), Le(1)] = option(
        1.0, "Share of the training subjects whose labels are used."
    )
    shuffle_labels: bool = option(False, "Shuffle the labels of the subjects, as a control.")


@dataclass(frozen=True, config=STRICT)
class ModelOptions:
    """The network"""

    network: Literal["transformer", "cnn", "eegnet"] = option(
        "transformer", "Patch tokens with a spectral branch; three convolutions; EEGNet."
    )
    width: Annotated[int, Ge(8)] = option(64, "Width of the tokens.")
    layers: PositiveInt = option(2, "Attention layers.")
    heads: PositiveInt = option(4, "Attention heads.")
    patch: Annotated[int, Ge(2)] = option(20, "Samples that a token sees; half of them are new.")
    spatial: PositiveInt = option(8, "Mixtures of channels whose spectrum is seen.")
    spectrum: Literal["bins", "bands", "none"] = option(
        "bins", "Power in bins of the window, in five bands, or none."
    )
    dropout: ShareBelowOne = option(0.1, "Dropout.")
    shift: NonNegativeInt = option(5, "Augmentation: largest circular shift in samples.")
    scale: ShareBelowOne = option(0.05, "Augmentation: largest change of the amplitude.")
    noise: NonNegativeFloat = option(
        0.02, "Augmentation: noise, as a share of the standard deviation."
    )
    channel_dropout: ShareBelowOne = option(0.05, "Augmentation: share of channels set to 0.")


TRAINING = TrainingOptions(
    epochs=12, batch_size=32, lr=1e-3, weight_decay=0.01, ema_decay=0.9, patience=4
)


@dataclass(frozen=True, config=STRICT)
class PretrainConfig:
    """Pretrain an encoder without labels: masked time, and contrast of subjects."""

    recordings: RecordingOptions = section(RecordingOptions(), required=("cohort",))
    labels: LabelOptions = section(
        LabelOptions(), omitted=("cv", "label_share", "shuffle_labels", "targets")
    )
    model: ModelOptions = section(ModelOptions(), omitted=("network",))
    mask_share: Annotated[float, Gt(0), Lt(1)] = option(0.4, "Share of the tokens that are masked.")
    temperature: PositiveFloat = option(0.1, "Temperature of the contrast.")
    train: TrainingOptions = section(dataclasses.replace(TRAINING, epochs=10, patience=0))
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OMITTED)


@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """Train on columns of participants.tsv and judge held-out subjects."""

    recordings: RecordingOptions = section(RecordingOptions(), required=("cohort",))
    labels: LabelOptions = section(LabelOptions())
    model: ModelOptions = section(ModelOptions())
    pretrained: Path | None = option(None, "Folder model/ of `pretrain`.", reads=True)
    unfreeze_epochs: NonNegativeInt = option(
        0,
        "Train the heads alone for so many epochs, then the last layers too for as many, then "
        "everything.",
    )
    seeds: PositiveInt = option(1, "Networks with other random numbers that predict together.")
    card: Literal["6gb", "12gb", "24gb"] | None = option(
        None,
        "Sizes for a card of this memory; the batch size is the largest that was measured to fit.",
    )
    baselines: bool = option(True, "Compare with ridge regression on band power.")
    train: TrainingOptions = section(TRAINING)
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OMITTED)


@dataclass(frozen=True, config=STRICT)
class FindConfig:
    """Measure the best learning rate or the largest batch on this device."""

    what: Literal["lr", "batch-size"] = option(
        "lr", "Which of them.", "{lr,batch-size}", positional=True
    )
    recordings: RecordingOptions = section(RecordingOptions(), required=("cohort",))
    labels: LabelOptions = section(LabelOptions(), omitted=("cv",))
    model: ModelOptions = section(ModelOptions())
    max_size: PositiveInt = option(256, "Largest batch to try.")
    steps: Annotated[int, Ge(5)] = option(60, "Steps of the learning-rate test.")
    train: TrainingOptions = section(TRAINING)
    runtime: RunConfig = section(RunConfig(), omitted=OMITTED)


@dataclass(frozen=True, config=STRICT)
class ChallengeConfig(ObservedConfig):
    """Check a file of predictions as a challenge does, or write one from the predictions of
    `train`.
    """

    predictions: Path | None = option(
        None, "predictions.tsv of `train`.", "FILE", required=True, reads=True
    )
    output: Path | None = option(None, "Challenge file to write (.csv).", writes=True)
    check: Path | None = option(
        None, "Challenge file to check against the subjects of the predictions.", reads=True
    )
    overwrite: bool = option(False, "Replace the output if it exists.")

    def problems(self) -> Iterator[str]:
        """Say that the output has the suffix of another format."""
        yield from wrong_ending("--output", self.output, (".csv",))


@dataclass(frozen=True, config=STRICT)
class Card:
    """What a card gets: width, heads, samples per step, and bytes."""

    width: int
    heads: int
    effective_batch: int
    gigabytes: int


CARDS = {"6gb": Card(96, 6, 32, 6), "12gb": Card(128, 8, 32, 12), "24gb": Card(256, 8, 32, 24)}

# Rare: what a card leaves free.
CARD_SHARE = 0.8


def band_problems(recordings: RecordingOptions) -> list[str]:
    """List the problems of the edges of the filter together: MNE would stop the band between
    them.
    """
    low, high = recordings.low_hz, recordings.high_hz
    if low is None or high is None or low < high:
        return []
    return [f"--low-hz {low:g} is not below --high-hz {high:g}"]


def model_problems(model: ModelOptions) -> list[str]:
    """List the problems of the options of the network together."""
    problems = []
    if model.width % model.heads:
        problems.append(f"--width {model.width} is not divisible by --heads {model.heads}")
    if model.patch % 2:
        problems.append(f"--patch {model.patch} is odd; half of a patch is new")
    return problems
