"""The options of the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic.dataclasses import dataclass

from aam.config import DataConfig, ModelConfig, TrainConfig
from aam.options import (
    STRICT,
    DeviceConfig,
    ObservedConfig,
    PositiveInt,
    RuntimeConfig,
    names,
    option,
    section,
)

Case = Literal["dense", "dense-nucleotide", "unifrac", "processes", "unlabelled", "report"]


@dataclass(frozen=True, config=STRICT)
class SpeedConfig(DeviceConfig, ObservedConfig):
    """Compare the speed of aam with others: the plain implementation, scikit-bio, ssu, several
    processes.
    """

    table: Path | None = option(
        None,
        "Feature table; unset: oral-age in the folder that AAM_BENCH_DATA names, or else a "
        "simulated study.",
        reads=True,
    )
    tree: Path | None = option(
        None, "Its phylogeny; with --table alone nothing that needs a tree is run.", reads=True
    )
    cases: tuple[Case, ...] = option(
        ("dense", "dense-nucleotide", "unifrac"),
        "What is measured, each in a process of its own; processes (two and four compared with "
        "one) and unlabelled (of AAM_BENCH_DATA) take long; report is the time from predictions "
        "to their page.",
    )
    repeats: PositiveInt = option(10, "Steps timed for each case, after two that warm up.")
    output: Path | None = option(
        None, "JSON to write; unset: docs/benchmarks/DEVICE.json. An earlier one is replaced."
    )


@dataclass(frozen=True, config=STRICT)
class StepConfig:
    """Count what a step of pretraining costs the host, and its share of the speed of a product."""

    steps: PositiveInt = option(20, "Number of measured steps.")
    constant_shapes: bool = option(False, "Batches of constant shape, as on a GPU.")
    ranks: PositiveInt = option(1, "Number of processes whose step is counted too.")
    output: Path | None = option(None, "JSON to write. An earlier one is replaced.")
    data: DataConfig = section(DataConfig(), ("table",), names(DataConfig, of="studies"))
    model: ModelConfig = section(ModelConfig())
    train: TrainConfig = section(TrainConfig(), (), ("pretrained_encoder",))
    runtime: RuntimeConfig = section(RuntimeConfig(), (), ("output_dir",))


Program = Literal["LASSO of log shares, as SIAMCAT", "GeneICL", "DEBIAS-M", "TabPFN", "TabICL"]


@dataclass(frozen=True, config=STRICT)
class RivalsConfig(ObservedConfig):
    """Compare the predictions of finished runs with those of other programs on the same folds."""

    runs: tuple[Path, ...] = option(
        (), "Runs of aam train with held-out samples.", "RUN ...", name="--run", required=True
    )
    programs: tuple[Program, ...] = option(get_args(Program), "Programs to compare with.")
    environments: Path = option(
        Path("demo/rivals"), "Folder of the virtual environments, which are made if missing."
    )
    output: Path = option(
        Path("docs/benchmarks/rivals.json"), "JSON to write. An earlier one is replaced."
    )


@dataclass(frozen=True, config=STRICT)
class NetworkConfig(ObservedConfig):
    """Compare settings of the network, alone and as a third member of finished runs."""

    runs: tuple[Path, ...] = option(
        (), "Runs of aam train with held-out samples.", "RUN ...", name="--run", required=True
    )
    settings: tuple[str, ...] = option(
        (),
        "Options of aam train without the first dashes, such as 'lr=1e-3 epochs=20' or "
        "'pretrained-encoder=16s-v4 freeze-base'.",
        "SETTING ...",
        name="--setting",
        required=True,
    )
    folds: tuple[str, ...] = option((), "Folds that are predicted; unset: all.")
    output: Path = option(
        Path("docs/benchmarks/network.json"), "JSON to write. An earlier one is replaced."
    )
