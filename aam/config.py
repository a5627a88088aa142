"""Every option of pretraining and training, its default and its help text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from aam.engine.options import RunConfig, TrainingOptions
from aam.options import option, rare, section

UnifracMetric = Literal["unifrac", "weighted", "weighted-normalized", "generalized"]
Metric = Literal[UnifracMetric, "faith_pd"]
RootLength = Literal["include", "exclude"]
Missing = Literal["error", "drop"]
Transform = Literal["none", "minmax", "zscore", "zscore-category", "log-minmax", "log-zscore"]
Loss = Literal["huber", "mse", "mae", "quantile", "asymmetric"]
Member = Literal["deep", "presence", "kernel", "forest"]
FurtherTarget = Literal["bray-curtis", "jaccard", "faith-pd", "taxonomy"]

MATRIX_SUFFIXES = (".npy", ".h5", ".tsv", ".csv", ".qza")
FAITH_PD_SUFFIXES = (".tsv", ".qza")

# Spellings of other programs and of earlier versions, and the options that they mean.
ALIASES = {
    "--random-seed": "--seed",
    "--learning-rate": "--lr",
    "--target": "--metadata-column",
    "--target-column": "--metadata-column",
    "--num-epochs": "--epochs",
    "--max-epochs": "--epochs",
    "--rarefaction-depth": "--rarefy-depth",
    "--sampling-depth": "--rarefy-depth",
    "--num-threads": "--threads",
}

# Options of commands that read one file, and what they are called where a command takes several.
PLURALS = {"--table": "--tables", "--tree": "--trees"}


# Columns of predictions.tsv that are no target.
RESERVED = ("sample-id", "fold", "subset", "note")

# In the place of a tree.
NO_TREE = "none"

# Nucleotides of the most common reads, 2 x 150 trimmed to their forward half.
COMMON_LENGTH = 150

# Rarefactions that a prediction averages.
PREDICTION_PASSES = 4


@dataclass(frozen=True)
class TableFormat:
    """How a table is written"""

    transpose: bool = option(False, "Samples are the rows of the table, as DADA2 writes it.", rare=True)


@dataclass(frozen=True)
class MetadataFormat:
    """How metadata is written"""

    decimal: Literal[".", ","] = option(".", "Decimal mark of numbers in the metadata.", rare=True)


@dataclass(frozen=True)
class TreeConfig(TableFormat):
    """Table, tree and the distance between samples"""

    table: Path | None = option(
        None, "Feature table: .biom (HDF5 or JSON), .qza FeatureTable[Frequency] or .tsv.", reads=True
    )
    tree: Path | None = option(
        None, "Rooted phylogeny of the ASVs (Newick or .qza); a model learns without it too.", reads=True
    )
    unifrac_metric: Metric = option("unifrac", "UniFrac distance, or Faith PD (faith_pd).")
    alpha: float = option(0.5, "Exponent of generalized UniFrac.", rare=True, ge=0, le=1)
    root_length: RootLength = option(
        "include", "Count the root's own branch, as scikit-bio does and ssu does not.", rare=True
    )
    missing_tips: Missing = option(
        "error", "Features without a tip: refuse, or leave them out of UniFrac (they remain inputs of the model)."
    )
    midpoint_root: bool = option(False, "Root the tree at its midpoint first.")


@dataclass(frozen=True)
class StudyConfig(TreeConfig, MetadataFormat):
    """Table, tree, metadata and splits"""

    sequences: Path | None = option(
        None, "Sequences of the features (FASTA or .qza) when their ids are not DNA.", reads=True
    )
    metadata: Path | None = option(None, "Sample metadata (QIIME 2 TSV).", reads=True)
    unifrac_matrix: Path | None = option(
        None, "Precomputed distances with ids (.h5, .npy, .tsv, .csv, .qza) instead of a tree.", reads=True
    )
    rarefy_depth: int | None = option(
        None,
        "Reads per sample; unset: the largest, from 500 on, that keeps 90 % of all samples and of each class.",
        ge=1,
    )
    missing: Missing = option("error", "Samples without metadata or with a missing target: refuse or leave out.")
    split: Path | None = option(None, "A split.tsv of an earlier run (sample-id, side, fold) to use again.", reads=True)
    split_column: str | None = option(None, "Metadata column that holds the folds.", metavar="COLUMN")
    test_fold: str | None = option(None, "Value of --split-column whose samples are the test subset.", metavar="FOLD")
    cv: str | None = option(None, "Cross-validate: a number of folds, or the metadata column that holds them.")
    group_column: str | None = option(
        None,
        "Metadata column (subject, study); the samples of each of its groups stay in one subset of every split.",
        metavar="COLUMN",
    )
    batch_column: str | None = option(
        None, "Metadata column (study, run, plate) whose metrics are reported beside the pooled ones.", metavar="COLUMN"
    )
    stratify: str | None = option(
        None,
        "Metadata column whose classes (numbers: quintiles) are spread evenly over the subsets and folds.",
        rare=True,
        metavar="COLUMN",
    )
    test_size: float | None = option(
        None,
        "Share of the groups (samples without --group-column) held out as the test subset; unset: 0.2 where "
        "`aam train` has at least 30 groups, else 0, which learns from all.",
        ge=0,
        lt=1,
    )
    validation_size: float = option(0.15, "Share of the training groups that early stopping looks at.", ge=0, le=1)


@dataclass(frozen=True)
class DataConfig(StudyConfig):
    """Table, tree, metadata, splits and the ASVs that are read"""

    tables: tuple[Path, ...] = option(
        (), "Feature table, or one for each of several studies: .biom, .qza or .tsv.", metavar="TABLE ...", reads=True
    )
    trees: tuple[str, ...] = option(
        (),
        "Rooted phylogeny (Newick or .qza) of each table in its order, or none; without any, no UniFrac is learned.",
        metavar="TREE ...",
    )
    hold_out_study: tuple[str, ...] = option(
        (),
        "Of several studies, those held out as the test subset: their --study-names, or names of files or folders.",
        metavar="NAME ...",
    )
    study_names: tuple[str, ...] = option(
        (), "Name of each of several studies; unset: that of its table or folder.", rare=True, metavar="NAME ..."
    )
    targets: tuple[FurtherTarget, ...] = option(
        (),
        "What is learned beside UniFrac (--penalty 0: instead of it): distances of shares or presence of ASVs, Faith "
        "PD of a sample on its tree, taxa of ASVs.",
    )
    taxonomy: tuple[Path, ...] = option(
        (),
        "Taxonomy of the ASVs for --targets taxonomy: .qza, or TSV with Feature ID and Taxon; one file or several.",
        metavar="PATH ...",
        reads=True,
    )
    reference_tree: Path | None = option(
        None,
        "Tree whose tips are sequences: samples are read by their branches on it, and by their 8-mers, too.",
        rare=True,
        metavar="TREE",
        reads=True,
    )
    trim: bool = option(False, "Cut ASVs to --max-bp and merge those that become identical.")
    token_limit: int = option(1024, "Most ASVs of a sample that the model reads.", ge=1)
    asv_sampling: Literal["abundance", "random", "first"] = option(
        "abundance", "Which ASVs are read when a sample has more than --token-limit."
    )


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the network; everything else is derived from them"""

    asv_stem: Literal["patch", "nucleotide"] = option("patch", "One token per patch of bases, or per base.")
    patch_size: int = option(5, "Bases per token of the patch stem.", rare=True, ge=1)
    embedding_dim: int = option(96, "Width of every vector.", ge=1)
    attention_layers: int = option(2, "Transformer layers of the ASV encoder, and again of the sample encoder.", ge=1)
    attention_heads: int = option(4, "Attention heads per layer; divides --embedding-dim.", ge=1)
    dropout: float = option(0.0, "Dropout after attention and feed-forward layers.", rare=True, ge=0, le=1)
    max_bp: int | None = option(
        None, "Longest ASV in nucleotides; a longer one is an error unless --trim; unset: that of the table.", ge=1
    )
    count_embedding: bool = option(True, "Read abundances; without it only presence is read.")
    count_embedding_method: Literal["add", "concat", "film"] = option(
        "add", "How the embedded count joins the ASV vector.", rare=True
    )

    @property
    def patch(self) -> int:
        """Bases per token: 1 for the nucleotide stem."""
        return self.patch_size if self.asv_stem == "patch" else 1

    @property
    def positions(self) -> int:
        """Nucleotides that the ASV encoder has positions for; before a table is known, those of common reads."""
        return COMMON_LENGTH if self.max_bp is None else self.max_bp

    @property
    def head_width(self) -> int:
        """Width of each attention head."""
        return self.embedding_dim // self.attention_heads


@dataclass(frozen=True)
class TrainConfig(TrainingOptions):
    """Objective and optimization"""

    pretrained_encoder: Path | None = option(
        None,
        "Encoder to start from: model folder of `aam pretrain`, the folder of its folds, or a name of `aam models`.",
        reads=True,
        shipped=True,
    )
    freeze_asvs: bool = rare(
        False, "Do not train the ASV encoder: the vectors of all ASVs are computed once, at the start."
    )
    shallow_draws: float = option(
        0.5,
        "Share of the training draws of fewer reads than the depth, down to a quarter (needs a tree).",
        rare=True,
        ge=0,
        le=1,
    )
    asv_dropout: float = rare(
        0.0, "Share of a sample's ASVs that training leaves out of its input (not of UniFrac).", ge=0, lt=1
    )
    penalty: float = option(1.0, "Weight of the UniFrac loss.", ge=0)
    targets_penalty: float = option(1.0, "Weight of the loss of each of --targets.", ge=0)
    nuc_penalty: float = option(1.0, "Weight of the masked-nucleotide loss.", ge=0)
    count_penalty: float = option(1.0, "Weight of the masked-count loss.", ge=0)
    nuc_mask_ratio: float = option(0.15, "Share of an ASV's bases that are masked.", ge=0, le=1)
    nuc_mask_strategy: Literal["random", "span", "patch"] = option("random", "Mask single bases, spans, or patches.")
    nuc_mask_asvs: float = rare(
        0.25,
        "Share of a batch's ASVs of which a masked copy is read; the UniFrac loss reads whole sequences.",
        ge=0,
        le=1,
    )
    count_mask_ratio: float = option(
        0.15, "Share of a sample's ASVs whose count is withheld and predicted.", rare=True, ge=0, le=1
    )


@dataclass(frozen=True)
class TargetConfig:
    """What `aam train` predicts"""

    metadata_column: tuple[str, ...] = option((), "Metadata column or columns to predict.", metavar="COLUMN ...")
    classifier: bool = option(False, "Treat a numeric column as classes.")
    class_weights: tuple[str, ...] = option(
        (),
        "Weights of the classes in the loss: balanced, or one for each in the order of their names.",
        metavar="W ...",
    )
    target_transform: Transform = option(
        "zscore", "Scale on which a numeric target is learned; outputs are in the column's own units."
    )
    normalize_by: str | None = option(
        None, "Metadata column whose categories have each their own zscore (with zscore-category).", metavar="COLUMN"
    )
    loss_type: Loss = option("huber", "Loss of numeric targets.")
    loss_config: tuple[str, ...] = rare((), "Losses of single numeric columns; or as JSON.", "COLUMN=TYPE ...")
    quantiles: tuple[float, ...] = rare(
        (0.05, 0.5, 0.95), "Levels of the quantile loss, ascending; 0.5, the median, is the prediction.", "Q ..."
    )
    over_penalty: float = option(1.0, "Weight of what is predicted too high, by the asymmetric loss.", rare=True, ge=0)
    under_penalty: float = option(1.0, "Weight of what is predicted too low, by the asymmetric loss.", rare=True, ge=0)
    target_penalty: float = option(1.0, "Weight of the target loss.", ge=0)
    categorical_loss_weights: tuple[str, ...] = rare(
        (), "Weights of samples in the target loss: balanced, or one for each category; or as JSON.", "CATEGORY=W ..."
    )
    categorical_loss_weight_column: str | None = rare(
        None, "Metadata column of these categories; unset: the first of --categorical-columns.", "COLUMN"
    )
    out_dim: int | None = rare(None, "Numbers that the target heads give: derived, and checked where given.", ge=1)
    count_prediction: bool = rare(False, "Predict withheld counts too, with the weight --count-penalty.")
    label_share: float = rare(
        1.0, "Share of the training samples whose labels are used, to learn what more labels would bring.", gt=0, le=1
    )
    freeze_base: bool = option(False, "Train only the new heads; ASV vectors are then computed once.")
    unfreeze_epochs: int = rare(
        0, "Epochs of the new heads alone, then as many with the sample encoder; 0: none.", ge=0
    )
    val_prediction_passes: int = option(PREDICTION_PASSES, "Rarefactions averaged for each held-out prediction.", ge=1)
    members: tuple[Member, ...] = option(
        (),
        "What predicts together: the network (deep), linear models of which ASVs are present (presence) and of their "
        "sequences too (kernel), extra trees (forest); unset: all, or deep where a loss or class weights ask for it.",
    )
    ensemble: bool = option(False, "With --cv: write OUTPUT-DIR/model too, which holds the models of all folds as one.")
    rf_baseline: bool = option(False, "Fit the baselines of `aam baselines` on the same splits for the report.")
    best_metric: Literal["val_loss", "mae", "r2", "accuracy", "f1", "auroc"] = option(
        "val_loss", "What decides which epoch is best."
    )

    @property
    def network_predicts(self) -> bool:
        """Whether the network is one of the members; where it is not, it is neither trained nor run."""
        return not self.members or "deep" in self.members


@dataclass(frozen=True)
class RegressorConfig:
    """Shape of the target heads"""

    regressor_hidden_dims: tuple[int, ...] = rare((), "Widths of hidden layers; unset: --embedding-dim.", "D ...", ge=1)
    regressor_dropout: float = rare(0.0, "Dropout after the hidden layers.", ge=0, lt=1)
    residual_regression_head: bool = rare(True, "Hidden layers correct a linear model; without it, they feed it.")
    target_layer_norm: bool = rare(False, "LayerNorm of what the linear model reads.")
    bounded_targets: bool = rare(False, "Numeric predictions inside the training range, by a sigmoid.")
    output_activation: Literal["none", "relu", "softplus", "exp"] = rare(
        "none", "Numeric predictions of 0 or more in the column's own units, by this function."
    )
    learnable_output_scale: bool = rare(False, "A learned factor and offset of each numeric output, from 1 and 0.")


@dataclass(frozen=True)
class CovariateConfig:
    """Metadata columns that the model reads beside the ASVs"""

    categorical_columns: tuple[str, ...] = option(
        (), "Metadata columns of categories to read; empty or new ones are the category unknown.", metavar="COLUMN ..."
    )
    numeric_columns: tuple[str, ...] = option(
        (), "Metadata columns of numbers to read, standardized on training samples.", metavar="COLUMN ..."
    )
    categorical_embed_dim: int = rare(16, "Width of the vector of each covariate.", ge=1)
    categorical_fusion: Literal["concat", "add", "gmu", "cross-attention", "perceiver"] = rare(
        "concat", "How covariates join the sample vector, just before the target heads."
    )
    cross_attn_heads: int = rare(4, "Heads of cross-attention and perceiver; divides --embedding-dim.", ge=1)
    perceiver_num_latents: int = rare(8, "Latent vectors of the perceiver.", ge=1)
    perceiver_num_layers: int = rare(2, "Layers of the perceiver.", ge=1)
    conditional_output_scaling: tuple[str, ...] = rare(
        (), "Of --categorical-columns, those that have a factor and an offset of outputs by category.", "COLUMN ..."
    )
    categorical_dropout: float = rare(
        0.1, "Share of covariates that training hides, so that unknown is learned.", ge=0, lt=1
    )
    categorical_lr: float | None = rare(None, "Peak learning rate of what reads covariates; unset: --lr.", gt=0)


# Options of tables, and of their training, that pretraining alone takes.
OF_PRETRAINING = ("tables", "trees", "hold_out_study", "study_names", "targets", "taxonomy")
TRAINED_BEFORE = ("targets_penalty",)


@dataclass(frozen=True)
class PretrainConfig:
    """Pretrain an encoder on one table or several and their trees, without labels."""

    data: DataConfig = section(DataConfig(), required=("tables",), omitted=("table", "tree"))
    model: ModelConfig = section(ModelConfig())
    train: TrainConfig = section(TrainConfig())
    runtime: RunConfig = section(RunConfig(), required=("output_dir",))

    def __post_init__(self) -> None:
        """Take the table and tree of a saved run or of a file that names one of each."""
        data = self.data
        if data.table is not None and not data.tables:
            data = replace(data, table=None, tables=(data.table,))
        if data.tree is not None and not data.trees:
            data = replace(data, tree=None, trees=(str(data.tree),))
        object.__setattr__(self, "data", data)

    def training(self) -> FineTuneConfig:
        """Return the options of the run that pretrains: those of `aam train` without targets."""
        data = self.data
        if len(data.tables) == 1 and len(data.trees) < 2:
            tree = Path(data.trees[0]) if data.trees not in ((), (NO_TREE,)) else None
            data = replace(data, table=data.tables[0], tree=tree, tables=(), trees=(), study_names=())
        return FineTuneConfig(data=data, model=self.model, train=self.train, runtime=self.runtime)


@dataclass(frozen=True)
class FineTuneConfig:
    """Fine-tune on metadata columns, from a pretrained encoder or from nothing."""

    data: DataConfig = section(DataConfig(), required=("table", "metadata"), omitted=OF_PRETRAINING)
    targets: TargetConfig = section(TargetConfig(), required=("metadata_column",))
    regressor: RegressorConfig = section(RegressorConfig())
    covariates: CovariateConfig = section(CovariateConfig())
    model: ModelConfig = section(ModelConfig())
    train: TrainConfig = section(
        TrainConfig(epochs=10, batch_size=32, lr=1e-5, shallow_draws=0.0, nuc_penalty=0.0), omitted=TRAINED_BEFORE
    )
    runtime: RunConfig = section(RunConfig(), required=("output_dir",))
