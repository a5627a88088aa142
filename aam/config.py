"""The options of all commands: one line each, and the rules between them next to their section."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic.dataclasses import dataclass

from aam.encoders import why_no_encoder
from aam.errors import shown
from aam.options import (
    IN_MEMORY,
    STRICT,
    DeviceConfig,
    NonNegativeFloat,
    ObservedConfig,
    OutputConfig,
    PositiveInt,
    RunConfig,
    RuntimeConfig,
    Seed,
    Share,
    ShareBelowOne,
    TrainingOptions,
    names,
    option,
    path,
    section,
    spelled,
    wrong_ending,
)

UnifracMetric = Literal["unifrac", "weighted", "weighted-normalized", "generalized"]
Metric = Literal[UnifracMetric, "faith_pd"]
RootLength = Literal["include", "exclude"]
Missing = Literal["error", "drop"]
Transform = Literal["none", "zscore", "log-zscore"]
Loss = Literal["huber", "mse", "mae"]
Member = Literal["deep", "presence", "forest"]
BestMetric = Literal["val_loss", "mae", "r2", "accuracy", "f1", "auroc"]

MATRIX_SUFFIXES = (".h5", ".tsv")
# Columns of predictions.tsv that are not of a target: the ids, and the columns of text at the end.
RESERVED = ("sample-id", "fold", "subset", "note")
# In the place of a tree.
NO_TREE = "none"
# Digits that --cv takes as a number of folds; other text is a metadata column.
NUMBER_OF_FOLDS = re.compile("[0-9]{1,9}")
# Rarefactions that a prediction averages.
PREDICTION_PASSES = 4

# Help of options that several commands have.
TABLE = "Feature table (.biom, .qza, .tsv)."
TREE = "Rooted phylogeny of the ASVs (Newick, .qza)."
SEQUENCES = "Sequences of the features (FASTA, .qza) if their ids are not DNA."
DEPTH_HELP = "Reads per sample; unset: the largest depth that keeps 90 % of the samples."
DEPTH_OF_MODEL = "Reads per sample; unset: the depth of the model."
GROUPS = "Metadata column of groups; unset: that of the model."
BATCHES_HELP = "Metadata column of batches, for metrics within each."
PASSES_HELP = "Number of averaged rarefactions."
ENCODER = "Run or model of `aam pretrain`, or an encoder by name."
WEIGHTS_HELP = "Weights of the classes in the order of their names, or balanced."
MEMBERS_HELP = "Members of the blend; unset: presence and forest, and deep with network options."
DISTANCES = "Matrix (.h5, .tsv) or Faith PD (.tsv)."
ON_TREE = "UniFrac between samples on the reference tree of 16s-v4."
EXCLUDED = "Samples to leave out: one id a line."
TRUTH = "Sample metadata with the true values."
# Of a file whose option may be left out before its value.
REQUIRED_FILE = {"positional": True, "required": True}
MODELS = "Runs or models of `aam train`, which predict together."


def number_of_folds(cv: str | None) -> int | None:
    """The number of folds that ``--cv`` gives; None for a metadata column."""
    return int(cv) if cv is not None and NUMBER_OF_FOLDS.fullmatch(cv) else None


# --- sections ------------------------------------------------------------------------------------


@dataclass(frozen=True, config=STRICT)
class MetadataFormat:
    """Format of the metadata"""

    decimal: Literal[".", ","] = option(".", "Decimal mark of numbers in the metadata.")
    missing_values: tuple[str, ...] = option((), "Further words for a missing value.")


@dataclass(frozen=True, config=STRICT)
class TreeConfig:
    """Table, tree and distance between samples"""

    table: Path | None = path(TABLE, of="command")
    tree: Path | None = path(TREE, of="command")
    unifrac_metric: Metric = option("unifrac", "UniFrac metric.")
    alpha: Share = option(0.5, "Exponent of generalized UniFrac.")
    root_length: RootLength = option("include", "Branch of the root: include or exclude.")
    missing_tips: Missing = option("error", "ASVs without a tip: error, or drop from UniFrac.")
    midpoint_root: bool = option(False, "Midpoint rooting of the tree.")


@dataclass(frozen=True, config=STRICT)
class DataConfig(TreeConfig, MetadataFormat):
    """Table, tree, metadata and splits"""

    unifrac_metric: UnifracMetric = option("unifrac", "UniFrac metric.")
    sequences: Path | None = path(SEQUENCES)
    metadata: Path | None = path("Sample metadata (QIIME 2 TSV).", of="command")
    unifrac_matrix: Path | None = path("Precomputed distances with ids, instead of a tree.")
    exclude: Path | None = path(EXCLUDED, of="command")
    rarefy_depth: PositiveInt | None = option(None, DEPTH_HELP)
    missing: Missing = option("error", "Samples without metadata or target: error or drop.")
    split: Path | None = path("split.tsv of an earlier run.", of="command")
    split_column: str | None = option(None, "Metadata column of subsets or folds.", of="command")
    test_fold: str | None = option(None, "Value of --split-column to test on.", of="command")
    cv: str | None = option(None, "Cross-validation: number or column of folds.", of="command")
    group_column: str | None = option(None, "Groups (subjects) that stay together.", of="command")
    study_column: str | None = option(None, "Studies, to predict in a new study.", of="command")
    batch_column: str | None = option(None, BATCHES_HELP, of="command")
    test_size: ShareBelowOne | None = option(None, "Share of groups to test; unset: by study size.")
    validation_size: Share = option(0.15, "Share of the training groups for early stopping.")
    tables: tuple[Path, ...] = path(TABLE, "TABLE ...", (), name="--table", of="studies")
    trees: tuple[str, ...] = option((), TREE, "TREE ...", name="--tree", of="studies")
    trim: bool = option(False, "Trimming of ASVs to --max-bp, and merging of identical ones.")
    token_limit: PositiveInt = option(1024, "Maximum number of ASVs per sample.", memory="lower")

    def problems(self) -> Iterator[str]:
        """Contradictions of the split, and columns that are asked for without metadata."""
        folds = number_of_folds(self.cv)
        columns = [self.split_column, self.group_column, self.study_column, self.batch_column]
        columns += [self.cv] * (folds is None)
        chosen = {"--split": self.split, "--split-column": self.split_column, "--cv": self.cv}
        splits = " and ".join(name for name, value in chosen.items() if value is not None)
        if folds is not None and folds < 2:
            yield f"--cv is {self.cv}, expected 2 or more folds, or a metadata column"
        if " and " in splits:
            yield f"{splits} all choose the split; give one of them"
        if splits and self.test_size:
            yield f"--test-size: {splits} chooses the test samples; leave --test-size out"
        if self.split_column is None and self.test_fold is not None:
            yield "--test-fold: names a value of --split-column, which is not given"
        if self.has_tree and self.unifrac_matrix is not None:
            yield "--tree and --unifrac-matrix: both given; distances come from one of them"
        if self.metadata is None and any(columns):
            names = shown(dict.fromkeys(filter(None, columns)))
            yield f"--metadata: not given, but columns {names} are asked for"

    @property
    def has_tree(self) -> bool:
        """Whether a tree is named, of one table or of several."""
        return self.tree is not None or any(tree != NO_TREE for tree in self.trees)

    @property
    def column_of_class_groups(self) -> str | None:
        """The column of the groups that a class needs; two studies, divided whole, are enough."""
        return None if self.group_column == self.study_column else self.group_column

    def divided_by_study(self) -> DataConfig:
        """The options with groups, batches and folds by study, where no others are chosen."""
        study, chosen = self.study_column, (self.cv, self.split, self.split_column, self.test_size)
        if study is None:
            return self
        folds = study if all(option is None for option in chosen) else self.cv
        group, batch = self.group_column or study, self.batch_column or study
        return replace(self, cv=folds, group_column=group, batch_column=batch)


@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    """Sizes of the network"""

    patch_size: PositiveInt = option(5, "Number of nucleotides per token.", of="pretraining")
    embedding_dim: PositiveInt = option(96, "Width of all vectors.")
    attention_layers: PositiveInt = option(2, "Number of layers of each of the two encoders.")
    attention_heads: PositiveInt = option(4, "Number of attention heads per layer.")
    dropout: Share = option(0.0, "Dropout rate.")
    max_bp: PositiveInt | None = option(None, "Maximum length of an ASV; unset: that of the table.")

    @property
    def positions(self) -> int:
        """Number of nucleotides that the ASV encoder has positions for; unset: those of the most
        common reads, the forward half of 2 x 150.
        """
        return 150 if self.max_bp is None else self.max_bp

    @property
    def trains_in_bf16(self) -> bool:
        """Whether the network is wide enough to train faster in bf16 on a GPU: 256, measured."""
        return self.embedding_dim >= 256

    @property
    def attention_shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Batch, heads, length and width of usual attention calls: over the patches of distinct
        ASVs, and over the ASVs of samples.
        """
        heads, width = self.attention_heads, self.embedding_dim // self.attention_heads
        patches = -(-self.positions // self.patch_size)
        return (540, heads, patches, width), (16, heads, 139, width)

    def encoder_problems(self, pretrained: ModelConfig) -> list[str]:
        """Sizes that contradict the pretrained encoder; one at its default counts as not given."""
        problems = []
        for item in dataclasses.fields(ModelConfig):
            value, has = getattr(self, item.name), getattr(pretrained, item.name)
            if value not in (has, item.default):
                problem = f"{spelled(item.name)} {value} contradicts --pretrained-encoder"
                problems.append(f"{problem}, which has {has}; leave it out, or pretrain with it")
        return problems

    def problems(self) -> Iterator[str]:
        """Say that a network of this width cannot have this number of heads."""
        width, heads = self.embedding_dim, self.attention_heads
        if width % heads:
            yield f"--embedding-dim {width} is not divisible by --attention-heads {heads}"


@dataclass(frozen=True, config=STRICT)
class TrainConfig(TrainingOptions):
    """Objective and optimization"""

    pretrained_encoder: Path | None = path(ENCODER, named=why_no_encoder)
    penalty: NonNegativeFloat = option(1.0, "Weight of the UniFrac loss.")
    nuc_penalty: NonNegativeFloat = option(1.0, "Weight of the masked-nucleotide loss.")
    count_penalty: NonNegativeFloat = option(1.0, "Weight of the masked-count loss.")
    nuc_mask_ratio: Share = option(0.15, "Share of masked nucleotides.")


@dataclass(frozen=True, config=STRICT)
class TargetConfig:
    """Targets"""

    metadata_column: tuple[str, ...] = option((), "Metadata columns to predict.", of="command")
    classifier: bool = option(False, "Classification of a numeric column.", of="command")
    class_weights: tuple[str, ...] = option((), WEIGHTS_HELP, "W ...")
    target_transform: Transform = option("zscore", "Scale on which numbers are learned.")
    loss_type: Loss = option("huber", "Loss of numeric targets.")
    freeze_base: bool = option(False, "Training of the heads only.")
    members: tuple[Member, ...] = option((), MEMBERS_HELP)
    best_metric: BestMetric = option("val_loss", "Metric that selects the best epoch.")
    learning_curve: bool = option(False, "Metric by the number of training groups.", of="command")

    def problems(self) -> Iterator[str]:
        """Names of targets that are reserved, and options that exclude each other."""
        members = set(self.members)
        if reserved := sorted(set(RESERVED) & set(self.metadata_column)):
            yield f"--metadata-column: {shown(reserved)} is also a column of predictions.tsv"
        if len(members) < len(self.members):
            yield f"--members is {shown(self.members)}, expected each member at most once"

    @property
    def class_weight(self) -> str | dict[int, float] | None:
        """The weights of classes as scikit-learn takes them: by code, in the order of names."""
        words = self.class_weights
        if words in ((), ("balanced",)):
            return words[0] if words else None
        return {code: float(word) for code, word in enumerate(words)}

    def kind_problems(self, numeric: int, classes: int) -> list[str]:
        """Name the options that have no effect: those of numbers without a column of numbers, and
        those of classes without a column of classes.
        """
        default, problems = TargetConfig(), []
        kinds = {"class_weights": ("classes", classes), "loss_type": ("numbers", numeric)}
        for name, (kind, columns) in {**kinds, "target_transform": ("numbers", numeric)}.items():
            if getattr(self, name) != getattr(default, name) and not columns:
                problem = f"{spelled(name)}: no column to predict has {kind}"
                problems.append(f"{problem}; leave it out, or change --classifier")
        return problems


@dataclass(frozen=True, config=STRICT)
class CovariateConfig:
    """Covariates"""

    categorical_columns: tuple[str, ...] = option((), "Categories as inputs.", of="command")
    numeric_columns: tuple[str, ...] = option((), "Numbers as inputs.", of="command")
    categorical_embed_dim: PositiveInt = option(16, "Width of the vector of a covariate.")
    categorical_fusion: Literal["concat", "add"] = option("concat", "Fusion with sample vectors.")

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        return self.categorical_columns + self.numeric_columns

    def problems(self) -> Iterator[str]:
        """Columns that are named twice, and options without a column."""
        named = self.columns
        if len(set(named)) < len(named):
            yield f"--categorical-columns, --numeric-columns: {shown(named)} repeats a column"
        if not named and self != CovariateConfig():
            fusion = f"--categorical-fusion is {self.categorical_fusion}"
            yield f"{fusion}, and no covariate is named"


# --- training ------------------------------------------------------------------------------------


def _resume_problems(data: DataConfig, runtime: RunConfig) -> Iterator[str]:
    if data.cv is not None and runtime.resume_from not in (None, "auto"):
        yield f"--resume-from is {runtime.resume_from}, expected auto with --cv"


@dataclass(frozen=True, config=STRICT)
class PretrainConfig:
    """Pretrain an encoder on tables and their trees, without labels."""

    data: DataConfig = section(DataConfig(), ("tables",), ("table", "tree", "study_column"))
    model: ModelConfig = section(ModelConfig())
    train: TrainConfig = section(TrainConfig())
    runtime: RunConfig = section(RunConfig(), ("output_dir",))

    def __post_init__(self) -> None:
        """Take the table and tree of a file that names one of each."""
        data = self.data
        if data.table is not None and not data.tables:
            data = replace(data, table=None, tables=(data.table,))
        if data.tree is not None and not data.trees:
            data = replace(data, tree=None, trees=(str(data.tree),))
        object.__setattr__(self, "data", data)

    @property
    def inputs(self) -> DataConfig:
        """Options of the inputs, with the table and tree of a single study by these names."""
        data = self.data
        if len(data.tables) != 1 or len(data.trees) > 1:
            return data
        tree = Path(data.trees[0]) if data.trees not in ((), (NO_TREE,)) else None
        return replace(data, table=data.tables[0], tree=tree, tables=(), trees=())

    def problems(self) -> Iterator[str]:
        """Contradictions between the studies and what an encoder is to learn from."""
        data, train = self.data, self.train
        compares = data.unifrac_matrix is not None or data.has_tree
        yield from _resume_problems(data, self.runtime)
        if train.nuc_penalty == train.count_penalty == 0 and not (train.penalty > 0 and compares):
            weights = f"--nuc-penalty {train.nuc_penalty}, --count-penalty {train.count_penalty}"
            distances = f"{'with' if compares else 'without'} a tree or distances"
            problem = f"{weights}, --penalty {train.penalty} {distances}"
            yield f"{problem}: nothing is learned; give one of them a weight"
        yield from self._study_problems()

    def _study_problems(self) -> Iterator[str]:
        """Say why several tables cannot be pretrained on together."""
        data, several = self.data, len(self.data.tables) > 1
        one_table = ("metadata", "sequences", "unifrac_matrix", "split", "split_column", "cv")
        unused = [spelled(name) for name in (*one_table, "group_column") if getattr(data, name)]
        paths = [path.resolve() for path in data.tables]
        files = [Path(tree) for tree in data.trees if tree != NO_TREE]
        if absent := [tree for tree in files if tree != IN_MEMORY and not tree.is_file()]:
            remedy = f", or write {NO_TREE} for a study without a tree" * several
            yield f"--tree: {shown(absent)}: no such file; leave it out{remedy}"
        if len(data.trees) not in (0, len(data.tables)):
            counts = f"{len(data.trees)} for {len(data.tables)} tables"
            yield f"--tree: {counts}; give one for each, or {NO_TREE} in its place"
        if twice := [path for path, times in Counter(paths).items() if times > 1]:
            yield f"--table: {shown(twice)} is given twice; name each table once"
        if several and unused:
            yield f"{shown(unused)}: for one table only; several tables share no metadata"


# What `aam train` leaves to `aam pretrain`.
DATA = (*names(DataConfig, of="studies"), "alpha", "root_length")
# By section the options that serve the network alone; the other members read --max-bp too.
OF_NETWORK = {
    "model": tuple(name for name in names(ModelConfig) if name != "max_bp"),
    "train": names(TrainConfig),
    "targets": ("loss_type", "freeze_base", "best_metric"),
    "covariates": ("categorical_embed_dim", "categorical_fusion"),
}
FINE = TrainConfig(epochs=10, batch_size=32, lr=1e-5, nuc_penalty=0.0, count_penalty=0.0)


@dataclass(frozen=True, config=STRICT)
class FineTuneConfig:
    """Predict metadata columns, and report how good the predictions are."""

    data: DataConfig = section(DataConfig(), ("table", "metadata"), DATA)
    targets: TargetConfig = section(TargetConfig(), ("metadata_column",))
    covariates: CovariateConfig = section(CovariateConfig())
    model: ModelConfig = section(ModelConfig(), (), names(ModelConfig, of="pretraining"))
    train: TrainConfig = section(FINE, (), ("ema_decay",))
    runtime: RunConfig = section(RunConfig(), ("output_dir",))

    def problems(self) -> Iterator[str]:
        """Options that contradict options of another section."""
        data, targets = self.data, set(self.targets.metadata_column)
        if twice := set(self.covariates.columns) & targets:
            yield f"--metadata-column {shown(twice)} is a covariate too; leave one of them out"
        if dividing := {data.group_column, data.study_column, data.split_column, data.cv} & targets:
            divides = "also divides the samples; leave one of them out"
            yield f"--metadata-column {shown(dividing)} {divides}"
        yield from _resume_problems(data, self.runtime)

    @property
    def network_options(self) -> list[str]:
        """Options of the network alone that are not at their defaults."""
        default, changed = FineTuneConfig(), []
        for part, options in OF_NETWORK.items():
            now, before = getattr(self, part), getattr(default, part)
            changed += [name for name in options if getattr(now, name) != getattr(before, name)]
        return list(map(spelled, changed))

    @property
    def default_members(self) -> tuple[Member, ...]:
        """Members without ``--members``: the network only where an option asks for it."""
        members: tuple[Member, ...] = ("presence", "forest")
        return ("deep", *members) if self.network_options else members


# --- other commands ------------------------------------------------------------------------------


@dataclass(frozen=True, config=STRICT)
class UnifracConfig(TreeConfig, DeviceConfig, OutputConfig):
    """Write the UniFrac matrix or Faith PD of a whole table."""

    table: Path | None = path(TABLE, required=True)
    tree: Path | None = path(TREE, required=True)
    exclude: Path | None = path(EXCLUDED)
    output: Path | None = option(None, DISTANCES, required=True, writes=True)
    rarefy_depth: PositiveInt | None = option(None, "Reads per sample; unset: no rarefaction.")
    seed: Seed = option(0, "Seed of the rarefaction.")

    def problems(self) -> Iterator[str]:
        """Say that the output has a suffix of another kind of result."""
        is_matrix = self.unifrac_metric != "faith_pd"
        suffixes = MATRIX_SUFFIXES if is_matrix else (".tsv",)
        yield from wrong_ending("--output", self.output, suffixes)


@dataclass(frozen=True, config=STRICT)
class ApplyConfig:
    """Model and table"""

    model: tuple[Path, ...] = path(MODELS, default=(), required=True, named=why_no_encoder)
    table: Path | None = path("Feature table.", required=True)
    sequences: Path | None = path(SEQUENCES)
    exclude: Path | None = path(EXCLUDED)
    trim: bool = option(False, "Trimming of ASVs to --max-bp of the model.")
    trim_primers: bool = option(False, "Trimming of common 16S primers.")
    runtime: RuntimeConfig = section(RuntimeConfig(), ("output_dir",))


@dataclass(frozen=True, config=STRICT)
class PredictConfig(ApplyConfig, MetadataFormat):
    """Predict samples of a new table in the units of the target."""

    output: Path | None = option(None, "Predictions (.tsv, .txt).", required=True, writes=True)
    prediction_passes: PositiveInt = option(PREDICTION_PASSES, PASSES_HELP)
    new_study: bool = option(False, "Centring on the mean of the samples, all of one new study.")
    predict_unlike: bool = option(False, "Prediction of samples with over 90 % unknown reads.")
    metadata: Path | None = path("Sample metadata, for covariates.")
    missing: Missing = option("error", "Samples without metadata: error, or drop (empty values).")
    runtime: RuntimeConfig = section(RuntimeConfig(), (), ("output_dir",))

    def problems(self) -> Iterator[str]:
        """Say that the output has the suffix of another format."""
        yield from wrong_ending("--output", self.output, (".tsv", ".txt"))


@dataclass(frozen=True, config=STRICT)
class EmbedConfig(ApplyConfig):
    """Write vectors of samples and ASVs, and UniFrac between samples without a tree of ASVs."""

    format: Literal["tsv", "npy"] = option("tsv", "Format of the vectors.")
    distances: tuple[Literal["unifrac", "weighted-normalized"], ...] = option((), ON_TREE)
    rarefy_depth: PositiveInt | None = option(None, DEPTH_OF_MODEL)


@dataclass(frozen=True, config=STRICT)
class ExplainConfig(ApplyConfig, MetadataFormat):
    """Show which ASVs and taxa drive the predictions of a model."""

    metadata: Path | None = path(TRUTH)
    taxonomy: Path | None = path("Taxonomy of the features (.qza, .tsv).")
    split: Path | None = path("split.tsv of the run, to explain test samples.")
    group_column: str | None = option(None, GROUPS)
    prediction_passes: PositiveInt = option(2, PASSES_HELP)
    top: Annotated[int, Ge(1), Le(100)] = option(20, "Number of ASVs in figures.")
    runtime: RuntimeConfig = section(RuntimeConfig())


@dataclass(frozen=True, config=STRICT)
class ExportConfig(OutputConfig):
    """Write a trained model for programs without aam."""

    model: Path | None = path("Run or model.", required=True, named=why_no_encoder)
    output: Path | None = option(None, "New folder.", required=True)
    format: Literal["onnx", "torch"] = option("onnx", "ONNX, or a program of torch.export.")


@dataclass(frozen=True, config=STRICT)
class EvaluateConfig(ApplyConfig, MetadataFormat):
    """Compare predictions, or those of --model for --table, with the truth."""

    model: tuple[Path, ...] = path(MODELS, default=(), named=why_no_encoder)
    table: Path | None = path("Feature table, with --model.")
    prediction_passes: PositiveInt = option(PREDICTION_PASSES, PASSES_HELP)
    predictions: Path | None = path("Predictions, instead of --model.")
    metadata: Path | None = path(TRUTH, required=True)
    split: Path | None = path("split.tsv of the run, to evaluate test samples.")
    group_column: str | None = option(None, GROUPS)
    batch_column: str | None = option(None, BATCHES_HELP)

    def problems(self) -> Iterator[str]:
        """Contradictions between what is to be evaluated."""
        if bool(self.model) == (self.predictions is not None):
            yield "give --model and --table, or --predictions; one of the two"
        elif self.model and self.table is None:
            yield "--table: not given; --model needs the table that it is applied to"


@dataclass(frozen=True, config=STRICT)
class AuditConfig(MetadataFormat, OutputConfig):
    """Show how well each metadata column predicts a target. Exit status 0: it informs."""

    table: Path | None = path(TABLE, "TABLE", name="--table", **REQUIRED_FILE)
    metadata: Path | None = path("Sample metadata.", "METADATA", name="--metadata", **REQUIRED_FILE)
    metadata_column: str | None = option(None, "Target; unset: what the columns are.")
    classifier: bool = option(False, "Numbers of the target are codes of classes.")
    group_column: str | None = option(None, "Metadata column of groups (subjects).")
    study_column: str | None = option(None, "Metadata column of studies.")
    time_column: str | None = option(None, "Metadata column of times, shown with each sample.")
    exclude: Path | None = path(EXCLUDED)
    rarefy_depth: PositiveInt | None = option(None, DEPTH_HELP)
    missing: Missing = option("drop", "Samples without metadata or target: error or drop.")
    seed: Seed = option(0, "Seed of the rarefaction.")
    output: Path | None = option(None, "New folder of tables of columns and samples.")

    def problems(self) -> Iterator[str]:
        """A file as output, and a target that also divides the samples."""
        if self.output is not None and self.output.suffix == ".tsv":
            remedy = "columns.tsv in that folder is the table of columns"
            yield f"--output is {self.output}, expected a folder: {remedy}"
        if self.metadata_column in {self.group_column, self.study_column} - {None}:
            divides = "also divides the samples; leave one of them out"
            yield f"--metadata-column {shown([self.metadata_column])} {divides}"

    @property
    def data(self) -> DataConfig:
        """Options of the inputs."""
        shared = vars(self).keys() & {item.name for item in dataclasses.fields(DataConfig)}
        return DataConfig(**{name: getattr(self, name) for name in shared})


@dataclass(frozen=True, config=STRICT)
class DoctorConfig(DeviceConfig, ObservedConfig):
    """Check this machine. Exit status 1 if something is wrong."""

    output: Path | None = option(None, "JSON of the findings; an earlier one is replaced.")
    attention: bool = option(False, "Check of the attention kernels alone, in seconds.")
    ranks: bool = option(False, "Check of the processes that srun or torchrun started.")
    baseline: Path | None = path("Earlier JSON to compare with.")


@dataclass(frozen=True, config=STRICT)
class ProfileConfig:
    """Measure steps of pretraining on this device. --memory-profile adds the memory of each stage,
    and --batch-size auto the largest batch that fits.
    """

    baseline: Path | None = path("Earlier profile.json to compare with.")
    data: DataConfig = section(DataConfig(), ("table",), names(DataConfig, of="studies"))
    model: ModelConfig = section(ModelConfig())
    train: TrainConfig = section(TrainConfig(), (), ("pretrained_encoder",))
    runtime: RuntimeConfig = section(RuntimeConfig(), ("output_dir",))
