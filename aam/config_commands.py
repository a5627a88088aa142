"""The options of all commands but those that train, and their rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.config import (
    FAITH_PD_SUFFIXES,
    MATRIX_SUFFIXES,
    PREDICTION_PASSES,
    DataConfig,
    MetadataFormat,
    Missing,
    ModelConfig,
    TrainConfig,
    TreeConfig,
)
from aam.device.options import DeviceConfig, ObservedConfig, OutputConfig, RuntimeConfig
from aam.encoders import why_no_encoder
from aam.options import broken, names, option, rare, section

# How the name of a file of predictions ends; its columns are separated by tabs.
PREDICTIONS = (".tsv", ".txt")


@dataclass(frozen=True)
class UnifracConfig(TreeConfig, DeviceConfig, OutputConfig):
    """Write the UniFrac matrix or Faith PD of a whole table."""

    table: Path | None = option(
        None, "Feature table: .biom (HDF5 or JSON), .qza or .tsv.", required=True, reads=True
    )
    tree: Path | None = option(
        None, "Rooted phylogeny of the ASVs (Newick or .qza).", required=True, reads=True
    )
    output: Path | None = option(
        None,
        "Matrix to write: .h5, .npy, .tsv, .csv or .qza; Faith PD as .tsv or .qza.",
        required=True,
        writes=True,
    )
    rarefy_depth: int | None = option(
        None,
        "Rarefy to this many reads first; unset: use the counts as they are.",
        ge=1,
        aliases=("--rarefaction-depth", "--sampling-depth"),
    )
    seed: int = option(
        0, "Seed of the rarefaction.", ge=0, le=2**32 - 1, aliases=("--random-seed",)
    )
    empty_samples: Literal["keep", "nan", "drop"] = option(
        "keep",
        "Samples without reads on the tree, which have no distances: keep those of scikit-bio (0 "
        "between two of them), "
        "write NaN, or leave the samples out. Faith PD is 0.",
    )
    memory_limit: float = option(1.0, "Memory of the computation in GiB.", gt=0, memory="lower")

    def problems(self) -> list[str]:
        """Return that the output has a suffix of another kind of result."""
        diversity, output = self.unifrac_metric == "faith_pd", self.output
        suffixes = FAITH_PD_SUFFIXES if diversity else MATRIX_SUFFIXES
        if output is None or output.suffix in suffixes:
            return []
        return [f"--output: {output} ends in {output.suffix!r}, expected {', '.join(suffixes)}"]


@dataclass(frozen=True)
class ApplyConfig:
    """A trained model and the table it is applied to"""

    model: tuple[Path, ...] = option(
        (),
        "Model folder that `aam train` (or, for embed, `aam pretrain`) wrote; several predict "
        "together. For embed also "
        "the name of an encoder such as 16s.",
        "PATH ...",
        required=True,
        reads=True,
        named=why_no_encoder,
    )
    table: Path | None = option(
        None, "Feature table of the samples; no tree is needed.", required=True, reads=True
    )
    sequences: Path | None = option(
        None, "Sequences of the features when their ids are not DNA.", reads=True
    )
    trim: bool = option(
        False, "Cut ASVs to the model's --max-bp and merge those that become identical."
    )
    trim_primers: bool = option(
        False, "Cut common 16S primers from the ends of ASVs and merge what becomes identical."
    )
    runtime: RuntimeConfig = section(RuntimeConfig(), required=("output_dir",))


@dataclass(frozen=True)
class PredictConfig(ApplyConfig, MetadataFormat):
    """Predict samples of a new table in the target's own units."""

    output: Path | None = option(
        None,
        "Predictions to write: one row per sample of the table.",
        required=True,
        writes=True,
        suffixes=PREDICTIONS,
    )
    prediction_passes: int = option(
        PREDICTION_PASSES, "Rarefactions whose mean and standard deviation are written.", ge=1
    )
    new_study: bool = option(
        False,
        "The samples are of one study that training had not: read them relative to their own "
        "mean, for a model trained "
        "with --study-column.",
    )
    metadata: Path | None = option(
        None, "Sample metadata, for a model with covariates.", reads=True
    )
    missing: Missing = option(
        "error", "Samples that need --metadata and lack it: refuse, or leave empty."
    )
    runtime: RuntimeConfig = section(RuntimeConfig(), omitted=("output_dir",))


@dataclass(frozen=True)
class EmbedConfig(ApplyConfig):
    """Write vectors of samples and ASVs, and UniFrac between samples without a tree of ASVs."""

    format: Literal["tsv", "npy", "qza"] = option(
        "tsv",
        "samples.tsv and asvs.tsv, or .npy with ids beside them; distances alike, or as QIIME 2 "
        "artifact (.qza).",
    )
    distances: tuple[Literal["unifrac", "weighted-normalized"], ...] = option(
        (), "UniFrac to write, from ASVs placed on the reference tree of 16s or 16s-v4."
    )
    rarefy_depth: int | None = option(
        None,
        "Reads per sample; unset: the depth of the model.",
        ge=1,
        aliases=("--rarefaction-depth", "--sampling-depth"),
    )


@dataclass(frozen=True)
class ExplainConfig(ApplyConfig, MetadataFormat):
    """Show which ASVs and taxa drive the predictions of a model, in samples that it has not learned
    from.
    """

    model: tuple[Path, ...] = option(
        (),
        "Run of `aam train`, each of whose samples is explained by the models that have not seen "
        "it, or model "
        "folders. With one run and no --output-dir, the explanation goes to RUN/explanation and "
        "into RUN/report.html.",
        "PATH ...",
        required=True,
        reads=True,
    )
    metadata: Path | None = option(
        None,
        "Sample metadata with the true values; without it no importance, only effects on "
        "predictions.",
        reads=True,
    )
    taxonomy: Path | None = option(
        None,
        "Taxonomy of the features: .qza FeatureData[Taxonomy] or TSV (Feature ID, Taxon).",
        reads=True,
    )
    split: Path | None = option(
        None, "split.tsv of the run: only its test samples are explained.", reads=True
    )
    group_column: str | None = option(
        None,
        "Metadata column whose groups intervals and tests resample; unset: that of the model.",
        "COLUMN",
    )
    prediction_passes: int = option(2, "Rarefied draws whose effects are averaged.", ge=1)
    top: int = option(20, "ASVs in figures and on the page.", ge=1, le=100)
    runtime: RuntimeConfig = section(RuntimeConfig())


@dataclass(frozen=True)
class ExportConfig(OutputConfig):
    """Write a trained model for programs without aam: ONNX, or a program of torch.export."""

    model: Path | None = option(
        None,
        "Model folder that `aam train` or `aam pretrain` wrote, or its run.",
        required=True,
        reads=True,
    )
    output: Path | None = option(
        None, "Folder to write: model.onnx or model.pt2, and description.json.", required=True
    )
    format: Literal["onnx", "torch"] = option(
        "onnx",
        "ONNX (pip install 'attention-all-microbes[onnx]'), or a program of torch.export (.pt2).",
    )
    part: Literal["model", "encoder"] | None = option(
        None,
        "Predictions of the targets, or vectors of samples and ASVs; unset: predictions where "
        "there are targets.",
    )


@dataclass(frozen=True)
class EvaluateConfig(ApplyConfig, MetadataFormat):
    """Compare predictions with the truth: metrics, intervals, baselines, report."""

    model: tuple[Path, ...] = option(
        (), "Model folder that `aam train` wrote; several predict together.", "PATH ...", reads=True
    )
    table: Path | None = option(None, "Feature table that the model is applied to.", reads=True)
    prediction_passes: int = option(
        PREDICTION_PASSES, "Rarefactions averaged for each prediction.", ge=1
    )
    predictions: Path | None = option(
        None, "Predictions to evaluate instead of a model.", reads=True
    )
    metadata: Path | None = option(
        None, "Sample metadata with the true values.", required=True, reads=True
    )
    split: Path | None = option(
        None,
        "split.tsv of the run: only its test samples count, and baselines learn from the rest.",
        reads=True,
    )
    group_column: str | None = option(
        None,
        "Metadata column whose groups the intervals resample; unset: that of the model.",
        "COLUMN",
    )
    batch_column: str | None = option(
        None, "Metadata column whose metrics are reported beside the pooled ones.", "COLUMN"
    )

    def problems(self) -> list[str]:
        """Return contradictions between what is to be evaluated."""
        rules = {
            "give --model and --table, or --predictions; one of the two": (
                bool(self.model) == (self.predictions is not None)
            ),
            "--table: not given; --model needs the table that it is applied to": (
                bool(self.model) and self.predictions is None and self.table is None
            ),
        }
        return broken(rules)


@dataclass(frozen=True)
class ForestConfig:
    """Learned baselines"""

    n_estimators: int = option(500, "Trees of a forest.", ge=1)
    max_features: str | None = option(
        None,
        "ASVs tried at each branching: sqrt, log2, or a share of them; unset: chosen on the "
        "training subset by groups.",
    )
    n_jobs: int = option(-1, "Threads that grow trees; -1: as many as there are cores.", ge=-1)
    val_prediction_passes: int = option(
        PREDICTION_PASSES, "Rarefactions averaged for each prediction, as by `aam train`.", ge=1
    )

    def problems(self) -> list[str]:
        """Return that the share of ASVs is none, if it is none."""
        share = self.max_features
        valid = share in (None, "sqrt", "log2") or _is_share(str(share))
        return broken(
            {
                f"--max-features is {share}, expected sqrt, log2, or a share above 0 and at most 1": not valid  # noqa: E501
            }
        )


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


@dataclass(frozen=True)
class DoctorConfig(DeviceConfig, ObservedConfig):
    """Is this machine right and fast, and what mends it? Exit status 1 where something is wrong."""

    output: Path | None = option(
        None, "JSON to write beside the screen; an earlier one is replaced."
    )
    ranks: bool = option(
        False,
        "Of several processes that srun or torchrun started: measure what joins them, and "
        "nothing else.",
    )
    baseline: Path | None = option(
        None, "Earlier JSON of --output; its differences are printed.", reads=True
    )


@dataclass(frozen=True)
class ProfileConfig:
    """Steps of pretraining on this device: where their time goes, their memory, the largest
    batch.
    """

    what: Literal["step", "memory", "batch-size"] = option(
        "step",
        "Time by stage and operation; memory by stage; the largest batch that fits.",
        "{step,memory,batch-size}",
        positional=True,
    )
    steps: int = option(20, "Steps that are measured.", ge=1)
    rocprof: Path | None = rare(
        None, "CSV file of rocprofv3, or its folder: the kernels that cost most.", reads=True
    )
    baseline: Path | None = rare(
        None, "Earlier profile.json; ratios to it are printed.", reads=True
    )
    data: DataConfig = section(
        DataConfig(), required=("table",), omitted=names(DataConfig, of="studies")
    )
    model: ModelConfig = section(ModelConfig())
    train: TrainConfig = section(TrainConfig(), omitted=("pretrained_encoder",))
    runtime: RuntimeConfig = section(RuntimeConfig(), required=("output_dir",))
