"""The options of all commands of the EEG example."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.device.options import ObservedConfig
from aam.engine.options import RunConfig, TrainingOptions
from aam.options import option, section

# Options of a run that mean nothing here.
OMITTED = ("asv_chunk_size", "compile_model", "gradient_checkpointing", "num_workers", "dry_run")


@dataclass(frozen=True)
class SimulateConfig(ObservedConfig):
    """Write a simulated cohort: FIF files in a BIDS layout, and participants.tsv with age and
    sex.
    """

    output_dir: Path | None = option(None, "Folder to write.", required=True)
    subjects: int = option(240, "Subjects.", ge=4)
    windows: int = option(6, "Windows of two seconds in a recording.", ge=1)
    channels: int = option(129, "Channels.", ge=8)
    seed: int = option(0, "Seed of everything that is drawn.", ge=0, le=2**32 - 1)
    overwrite: bool = option(False, "Replace the output folder if it exists.")


@dataclass(frozen=True)
class RecordingOptions:
    """Recordings and how they are cut"""

    cohort: Path | None = option(
        None,
        "Folder in BIDS layout: participants.tsv, and files that MNE reads (FIF, EDF, BDF, SET, "
        "VHDR).",
        required=True,
        reads=True,
    )
    sampling_rate: float = option(100.0, "Samples per second that recordings are brought to.", gt=1)
    window_seconds: float = option(2.0, "Length of a window.", gt=0)
    stride_seconds: float = option(2.0, "Distance of the beginnings of two windows.", gt=0)
    low_hz: float | None = option(None, "Lower edge of a band-pass filter; unset: none.", gt=0)
    high_hz: float | None = option(None, "Upper edge of a band-pass filter; unset: none.", gt=0)
    max_microvolts: float | None = option(
        None, "Windows that go beyond plus or minus this are left out.", gt=0
    )
    bad_channels: bool = option(
        False,
        "Set channels to 0 whose variance is 3 standard deviations above the others, or that are "
        "flat.",
    )


@dataclass(frozen=True)
class LabelOptions:
    """Labels and subsets; subjects are never divided"""

    targets: tuple[str, ...] = option(
        ("age", "sex"),
        "Columns of participants.tsv: numbers are predicted as numbers, text as classes.",
        "COLUMN ...",
    )
    test_size: float = option(0.25, "Share of the subjects that are held out.", gt=0, lt=1)
    validation_size: float = option(
        0.15, "Share of the other subjects that choose the epoch.", gt=0, lt=1
    )
    cv: int | None = option(None, "Hold out each of so many folds of the subjects in turn.", ge=2)
    label_share: float = option(
        1.0, "Share of the training subjects whose labels are used.", gt=0, le=1
    )
    shuffle_labels: bool = option(False, "Shuffle the labels of the subjects, as a control.")


@dataclass(frozen=True)
class ModelOptions:
    """The network"""

    network: Literal["transformer", "cnn", "eegnet"] = option(
        "transformer", "Patch tokens with a spectral branch; three convolutions; EEGNet."
    )
    width: int = option(64, "Width of the tokens.", ge=8)
    layers: int = option(2, "Attention layers.", ge=1)
    heads: int = option(4, "Attention heads.", ge=1)
    patch: int = option(20, "Samples that a token sees; half of them are new.", ge=2)
    spatial: int = option(8, "Mixtures of channels whose spectrum is seen.", ge=1)
    spectrum: Literal["bins", "bands", "none"] = option(
        "bins", "Power in bins of the window, in five bands, or none."
    )
    dropout: float = option(0.1, "Dropout.", ge=0, lt=1)
    shift: int = option(5, "Augmentation: largest circular shift in samples.", ge=0)
    scale: float = option(0.05, "Augmentation: largest change of the amplitude.", ge=0, lt=1)
    noise: float = option(0.02, "Augmentation: noise, as a share of the standard deviation.", ge=0)
    channel_dropout: float = option(0.05, "Augmentation: share of channels set to 0.", ge=0, lt=1)


TRAINING = TrainingOptions(
    epochs=12, batch_size=32, lr=1e-3, weight_decay=0.01, ema_decay=0.9, patience=4
)


@dataclass(frozen=True)
class PretrainConfig:
    """Pretrain an encoder without labels: masked time, and contrast of subjects."""

    recordings: RecordingOptions = section(RecordingOptions(), required=("cohort",))
    labels: LabelOptions = section(
        LabelOptions(), omitted=("cv", "label_share", "shuffle_labels", "targets")
    )
    model: ModelOptions = section(ModelOptions(), omitted=("network",))
    mask_share: float = option(0.4, "Share of the tokens that are masked.", gt=0, lt=1)
    temperature: float = option(0.1, "Temperature of the contrast.", gt=0)
    train: TrainingOptions = section(dataclasses.replace(TRAINING, epochs=10, patience=0))
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OMITTED)


@dataclass(frozen=True)
class TrainConfig:
    """Train on columns of participants.tsv and judge held-out subjects."""

    recordings: RecordingOptions = section(RecordingOptions(), required=("cohort",))
    labels: LabelOptions = section(LabelOptions())
    model: ModelOptions = section(ModelOptions())
    pretrained: Path | None = option(None, "Folder model/ of `pretrain`.", reads=True)
    unfreeze_epochs: int = option(
        0,
        "Train the heads alone for so many epochs, then the last layers too for as many, then "
        "everything.",
        ge=0,
    )
    seeds: int = option(1, "Networks with other random numbers that predict together.", ge=1)
    card: Literal["6gb", "12gb", "24gb"] | None = option(
        None,
        "Sizes for a card of this memory; the batch size is the largest that was measured to fit.",
    )
    baselines: bool = option(True, "Compare with ridge regression on band power.")
    train: TrainingOptions = section(TRAINING)
    runtime: RunConfig = section(RunConfig(), required=("output_dir",), omitted=OMITTED)


@dataclass(frozen=True)
class FindConfig:
    """Measure the best learning rate or the largest batch on this device."""

    what: Literal["lr", "batch-size"] = option(
        "lr", "Which of them.", "{lr,batch-size}", positional=True
    )
    recordings: RecordingOptions = section(RecordingOptions(), required=("cohort",))
    labels: LabelOptions = section(LabelOptions(), omitted=("cv",))
    model: ModelOptions = section(ModelOptions())
    max_size: int = option(256, "Largest batch to try.", ge=1)
    steps: int = option(60, "Steps of the learning-rate test.", ge=5)
    train: TrainingOptions = section(TRAINING)
    runtime: RunConfig = section(RunConfig(), omitted=OMITTED)


@dataclass(frozen=True)
class ChallengeConfig(ObservedConfig):
    """Check a file of predictions as a challenge does, or write one from the predictions of
    `train`.
    """

    predictions: Path | None = option(
        None, "predictions.tsv of `train`.", "FILE", required=True, reads=True
    )
    output: Path | None = option(
        None, "Challenge file to write (.csv).", writes=True, suffixes=(".csv",)
    )
    check: Path | None = option(
        None, "Challenge file to check against the subjects of the predictions.", reads=True
    )
    overwrite: bool = option(False, "Replace the output if it exists.")


@dataclass(frozen=True)
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
    """Return what is wrong with the edges of the filter together: MNE would stop the band between
    them.
    """
    low, high = recordings.low_hz, recordings.high_hz
    if low is None or high is None or low < high:
        return []
    return [f"--low-hz {low:g} is not below --high-hz {high:g}"]


def model_problems(model: ModelOptions) -> list[str]:
    """Return what is wrong with the options of the network together."""
    problems = []
    if model.width % model.heads:
        problems.append(f"--width {model.width} is not divisible by --heads {model.heads}")
    if model.patch % 2:
        problems.append(f"--patch {model.patch} is odd; half of a patch is new")
    return problems
