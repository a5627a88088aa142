"""The options of pretraining, training and tuning, the rules beside each section, and how a file of
them is read.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from aam.encoders import why_no_encoder
from aam.engine.options import RunConfig, TrainingOptions
from aam.errors import Problems, shown
from aam.options import (
    IN_MEMORY,
    broken,
    from_dict,
    names,
    option,
    options_of,
    rare,
    read_toml,
    section,
    spelled,
)

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("aam")

Config = TypeVar("Config")

UnifracMetric = Literal["unifrac", "weighted", "weighted-normalized", "generalized"]
Metric = Literal[UnifracMetric, "faith_pd"]
RootLength = Literal["include", "exclude"]
Missing = Literal["error", "drop"]
Transform = Literal["none", "zscore", "log-zscore"]
Loss = Literal["huber", "mse", "mae"]
Member = Literal["deep", "presence", "forest"]

MATRIX_SUFFIXES = (".npy", ".h5", ".tsv", ".csv", ".qza")
FAITH_PD_SUFFIXES = (".tsv", ".qza")

# Columns of predictions.tsv that are no target.
RESERVED = ("sample-id", "fold", "subset", "note")

# In the place of a tree.
NO_TREE = "none"

# Options of targets and of covariates that serve the network alone.
NETWORK_SECTIONS = ("model", "train")
NETWORK_TARGETS = ("loss_type", "freeze_base", "best_metric")
NETWORK_COVARIATES = ("categorical_embed_dim", "categorical_fusion")

# Nucleotides of the most common reads, 2 x 150 trimmed to their forward half.
COMMON_LENGTH = 150

# Rarefactions that a prediction averages.
PREDICTION_PASSES = 4


@dataclass(frozen=True)
class MetadataFormat:
    """How metadata is written"""

    decimal: Literal[".", ","] = rare(".", "Decimal mark of numbers in the metadata.")
    missing_values: tuple[str, ...] = rare(
        (),
        "Further words that mean a missing value in the metadata, such as unknown or -9.",
        "TEXT ...",
    )


@dataclass(frozen=True)
class TreeConfig:
    """Table, tree and the distance between samples"""

    table: Path | None = option(
        None,
        "Feature table: .biom (HDF5 or JSON), .qza FeatureTable[Frequency] or .tsv.",
        reads=True,
        selects_samples=True,
        of="command",
    )
    tree: Path | None = option(
        None,
        "Rooted phylogeny of the ASVs (Newick or .qza); a model learns without it too.",
        reads=True,
        selects_samples=True,
        of="command",
    )
    unifrac_metric: Metric = option("unifrac", "UniFrac distance, or Faith PD (faith_pd).")
    alpha: float = rare(0.5, "Exponent of generalized UniFrac.", ge=0, le=1)
    root_length: RootLength = rare(
        "include", "Count the root's own branch, as scikit-bio does and ssu does not."
    )
    missing_tips: Missing = option(
        "error",
        "Features without a tip: refuse, or leave them out of UniFrac (they remain inputs of the "
        "model).",
    )
    midpoint_root: bool = rare(False, "Root the tree at its midpoint first.")


@dataclass(frozen=True)
class DataConfig(TreeConfig, MetadataFormat):
    """Table, tree, metadata, splits and the ASVs that are read"""

    unifrac_metric: UnifracMetric = option("unifrac", "UniFrac distance.")
    sequences: Path | None = option(
        None, "Sequences of the features (FASTA or .qza) when their ids are not DNA.", reads=True
    )
    metadata: Path | None = option(None, "Sample metadata (QIIME 2 TSV).", reads=True, of="command")
    unifrac_matrix: Path | None = rare(
        None,
        "Precomputed distances with ids (.h5, .npy, .tsv, .csv, .qza) instead of a tree.",
        reads=True,
    )
    rarefy_depth: int | None = option(
        None,
        "Reads per sample; unset: the largest, from 500 on, that keeps 90 % of all samples and "
        "of each class.",
        ge=1,
        aliases=("--rarefaction-depth", "--sampling-depth"),
    )
    missing: Missing = option(
        "error", "Samples without metadata or with a missing target: refuse or leave out."
    )
    split: Path | None = option(
        None, "The split.tsv of an earlier run, to use again.", reads=True, of="command"
    )
    split_column: str | None = option(
        None, "Metadata column that holds the folds.", "COLUMN", of="command"
    )
    test_fold: str | None = option(
        None, "Value of --split-column whose samples are the test subset.", "FOLD", of="command"
    )
    cv: str | None = option(
        None,
        "Cross-validate: a number of folds, or the metadata column that holds them.",
        selects_samples=True,
        of="command",
    )
    group_column: str | None = option(
        None,
        "Metadata column (subject, study); the samples of each of its groups stay in one subset "
        "of every split.",
        "COLUMN",
        of="command",
    )
    study_column: str | None = option(
        None,
        "Metadata column of studies, for a model that is to hold in a study never seen: whole "
        "studies are held out, "
        "and samples are read relative to the mean of their study; of several columns to predict "
        "a sample needs a "
        "value in one.",
        "COLUMN",
        of="command",
    )
    batch_column: str | None = option(
        None,
        "Metadata column (study, run, plate) whose metrics are reported beside the pooled ones.",
        "COLUMN",
        of="command",
    )
    stratify: str | None = rare(
        None,
        "Metadata column whose classes (numbers: quintiles) are spread evenly over the subsets "
        "and folds; unset: of "
        "folds that nobody asked for, the first column to predict.",
        "COLUMN",
        of="command",
    )
    test_size: float | None = option(
        None,
        "Share of the groups (samples without --group-column) held out as the test subset; "
        "unset: small studies are "
        "cross-validated, in others `aam train` takes 0.2 where there are at least 30 groups, "
        "else 0 (learn from all).",
        ge=0,
        lt=1,
    )
    validation_size: float = option(
        0.15, "Share of the training groups that early stopping looks at.", ge=0, le=1
    )

    tables: tuple[Path, ...] = option(
        (),
        "Feature table, or one for each of several studies: .biom, .qza or .tsv.",
        "TABLE ...",
        reads=True,
        aliases=("--table",),
        selects_samples=True,
        of="studies",
    )
    trees: tuple[str, ...] = option(
        (),
        "Rooted phylogeny (Newick or .qza) of each table in its order, or none; without any, no "
        "UniFrac is learned.",
        "TREE ...",
        aliases=("--tree",),
        selects_samples=True,
        of="studies",
    )
    trim: bool = option(
        False, "Cut ASVs to --max-bp, where it is given, and merge those of one sequence."
    )
    token_limit: int = rare(1024, "Maximum number of ASVs per sample.", ge=1, memory="lower")

    def problems(self) -> list[str]:
        """Return contradictions of the split, and columns that are asked for without metadata."""
        folds = None if self.cv is None or self.cv.isdigit() else self.cv
        columns = (
            self.split_column,
            folds,
            self.group_column,
            self.study_column,
            self.batch_column,
            self.stratify,
        )
        asked = shown(dict.fromkeys(column for column in columns if column is not None))
        chosen = {"--split": self.split, "--split-column": self.split_column, "--cv": self.cv}
        given = " and ".join(name for name, value in chosen.items() if value is not None)
        rules = {
            f"--cv is {self.cv}, expected 2 or more folds, or a metadata column": (
                self.cv is not None and self.cv.isdigit() and int(self.cv) < 2
            ),
            f"{given} all choose the split; give one of them": " and " in given,
            f"--test-size is {self.test_size}, and {given} chooses the test samples; leave it out": (  # noqa: E501
                given != "" and bool(self.test_size)
            ),
            "--split-column and --test-fold need each other": (self.split_column is None)
            != (self.test_fold is None),
            "--tree and --unifrac-matrix: both given; distances come from one of them": (
                self.has_tree and self.unifrac_matrix is not None
            ),
            f"--metadata: not given, but columns {asked} are asked for": self.metadata is None
            and asked != "",
        }
        return broken(rules)

    @property
    def has_tree(self) -> bool:
        """Whether a tree is named, of one table or of several."""
        return self.tree is not None or any(tree != NO_TREE for tree in self.trees)

    def divided_by_study(self) -> Self:
        """Return the options with what --study-column decides: groups and batches are the studies,
        and folds too.

        Each stays what it is where it is asked for, as does any other choice of the test samples.
        """
        study, chosen = self.study_column, (self.cv, self.split, self.split_column, self.test_size)
        if study is None:
            return self
        folds = study if all(option is None for option in chosen) else self.cv
        group, batch = self.group_column or study, self.batch_column or study
        return replace(self, cv=folds, group_column=group, batch_column=batch)


# Narrower networks train no faster in bf16 on a GPU that waits for the host (docs/decisions.md,
# "First runs on a GPU").
LEAST_BF16_WIDTH = 256


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the network; everything else is derived from them"""

    patch_size: int = rare(5, "Bases per token; 1 is one token per base.", ge=1, of="pretraining")
    embedding_dim: int = option(96, "Width of every vector.", ge=1)
    attention_layers: int = option(
        2, "Transformer layers of the ASV encoder, and again of the sample encoder.", ge=1
    )
    attention_heads: int = option(4, "Attention heads per layer; divides --embedding-dim.", ge=1)
    dropout: float = rare(0.0, "Dropout after attention and feed-forward layers.", ge=0, le=1)
    max_bp: int | None = option(
        None,
        "Longest ASV in nucleotides; a longer one is an error unless --trim; unset: that of the "
        "table.",
        ge=1,
    )

    @property
    def positions(self) -> int:
        """Nucleotides that the ASV encoder has positions for; before a table is known, those of
        common reads.
        """
        return COMMON_LENGTH if self.max_bp is None else self.max_bp

    @property
    def trains_in_bf16(self) -> bool:
        """Whether training in bf16 is worth its rounding on a GPU, which waits for the host with a
        narrow network.
        """
        return self.embedding_dim >= LEAST_BF16_WIDTH

    @property
    def attention_shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Batch, heads, length and width of usual attention calls: over the patches of distinct
        ASVs, and over the ASVs of samples.
        """
        heads, width = self.attention_heads, self.embedding_dim // self.attention_heads
        patches = -(-self.positions // self.patch_size)
        return (540, heads, patches, width), (16, heads, 139, width)

    def problems(self) -> list[str]:
        """Return why a network of this width cannot have so many attention heads, if it cannot."""
        return head_problems(self.embedding_dim, self.attention_heads)

    def encoder_problems(self, pretrained: ModelConfig) -> list[str]:
        """Return a problem for each size that contradicts the pretrained encoder.

        A network has the sizes of its encoder. A size at its default counts as not given.
        """
        rules = {}
        for item in dataclasses.fields(ModelConfig):
            value, has = getattr(self, item.name), getattr(pretrained, item.name)
            problem = (
                f"--{item.name.replace('_', '-')} {value} contradicts --pretrained-encoder, which "
                f"has {has}; leave it out, or pretrain with it"
            )
            rules[problem] = value not in (has, item.default)
        return broken(rules)


def head_problems(width: int, heads: int, option: str = "--attention-heads") -> list[str]:
    """Return why vectors of this width cannot be divided among attention heads, if they cannot."""
    return broken(
        {
            f"--embedding-dim {width} is not divisible by {option} {heads}": heads > 0
            and width % heads > 0
        }
    )


@dataclass(frozen=True)
class TrainConfig(TrainingOptions):
    """Objective and optimization"""

    pretrained_encoder: Path | None = option(
        None,
        "Encoder to start from: model folder of `aam pretrain`, the folder of its folds, or a "
        "name of an encoder such as 16s-v4.",
        reads=True,
        named=why_no_encoder,
    )
    penalty: float = rare(1.0, "Weight of the UniFrac loss.", ge=0)
    nuc_penalty: float = rare(1.0, "Weight of the masked-nucleotide loss.", ge=0)
    count_penalty: float = rare(1.0, "Weight of the masked-count loss.", ge=0)
    nuc_mask_ratio: float = rare(0.15, "Share of an ASV's bases that are masked.", ge=0, le=1)


@dataclass(frozen=True)
class TargetConfig:
    """What `aam train` predicts"""

    metadata_column: tuple[str, ...] = option(
        (),
        "Metadata column or columns to predict.",
        "COLUMN ...",
        aliases=("--target", "--target-column"),
        of="command",
    )
    classifier: bool = option(False, "Treat a numeric column as classes.", of="command")
    class_weights: tuple[str, ...] = rare(
        (),
        "Weights of the classes in the loss: balanced, or one for each in the order of their "
        "names.",
        "W ...",
    )
    target_transform: Transform = option(
        "zscore",
        "Scale on which a numeric target is learned; outputs are in the column's own units.",
    )
    loss_type: Loss = option("huber", "Loss of numeric targets.")
    freeze_base: bool = option(
        False, "Train only the new heads; ASV vectors are then computed once."
    )
    val_prediction_passes: int = rare(
        PREDICTION_PASSES, "Rarefactions averaged for each held-out prediction.", ge=1
    )
    members: tuple[Member, ...] = option(
        (),
        "Members of the blend: the network (deep), a linear model of which ASVs are present "
        "(presence), extra trees (forest); unset: the last two, with deep where an encoder or "
        "another option of the network is given, and deep alone where a loss or class weights "
        "ask for it.",
    )
    rf_baseline: bool | None = option(
        None,
        "Fit the baselines of `aam baselines` on the same splits, for the report, or do not; "
        "unset: of a small study "
        "where no network is trained (docs/howto/cross-validation.md says which are small).",
        of="command",
    )
    best_metric: Literal["val_loss", "mae", "r2", "accuracy", "f1", "auroc"] = rare(
        "val_loss", "What decides which epoch is best.", searched=False
    )

    def problems(self) -> list[str]:
        """Return which options of the targets others, or they themselves, leave without meaning."""
        reserved = set(RESERVED) & set(self.metadata_column)
        blended = bool(set(self.members) - {"deep"})
        rules = {
            (
                f"--metadata-column: {shown(sorted(reserved))} cannot be told from columns of "
                "predictions.tsv"
            ): (bool(reserved)),
            (
                f"--members is {shown(self.members)}, expected {', '.join(get_args(Member))}, each "
                "once at most"
            ): (len(set(self.members)) < len(self.members)),
            (
                "--members and --class-weights: the weights would count for the network only; take "
                "one of them"
            ): (blended and bool(self.class_weights)),
        }
        return broken(rules)

    def class_weight_problems(self, classes: int) -> list[str]:
        """Return why ``--class-weights`` have no effect on a model of so many `classes` columns, if
        they have none.
        """
        problem = (
            f"--class-weights is {' '.join(self.class_weights)}, and no column to predict has "
            "classes; leave it out, "
            "or pass --classifier to take numbers as classes"
        )
        return broken({problem: bool(self.class_weights) and not classes})


@dataclass(frozen=True)
class CovariateConfig:
    """Metadata columns that the model reads beside the ASVs"""

    categorical_columns: tuple[str, ...] = option(
        (),
        "Metadata columns of categories to read; empty or new ones are the category unknown.",
        "COLUMN ...",
        commas=True,
        of="command",
    )
    numeric_columns: tuple[str, ...] = option(
        (),
        "Metadata columns of numbers to read, standardized on training samples.",
        "COLUMN ...",
        of="command",
    )
    categorical_embed_dim: int = rare(16, "Width of the vector of each covariate.", ge=1)
    categorical_fusion: Literal["concat", "add"] = rare(
        "concat", "How covariates join the sample vector, just before the target heads."
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        return self.categorical_columns + self.numeric_columns

    def problems(self) -> list[str]:
        """Return columns that cannot be read as asked, and options without a column."""
        columns = self.columns
        rules = {
            f"--categorical-columns, --numeric-columns: {shown(columns)} names a column twice": (
                len(set(columns)) < len(columns)
            ),
            f"--categorical-fusion is {self.categorical_fusion}, and no covariate is named": (
                not columns and self != CovariateConfig()
            ),
        }
        return broken(rules)


def run_rules(
    data: DataConfig, model: ModelConfig, train: TrainConfig, runtime: RunConfig
) -> dict[str, bool]:
    """Return the rules between sections of any training, and whether each is broken."""
    return {
        f"--resume-from is {runtime.resume_from}, expected auto with --cv": (
            data.cv is not None and runtime.resume_from not in (None, "auto")
        )
    }


@dataclass(frozen=True)
class PretrainConfig:
    """Pretrain an encoder on one table or several and their trees, without labels."""

    data: DataConfig = section(
        DataConfig(), required=("tables",), omitted=("table", "tree", "study_column")
    )
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

    @property
    def inputs(self) -> DataConfig:
        """The options of the inputs, with the table and tree of a single study by these names."""
        data = self.data
        if len(data.tables) != 1 or len(data.trees) > 1:
            return data
        tree = Path(data.trees[0]) if data.trees not in ((), (NO_TREE,)) else None
        return replace(data, table=data.tables[0], tree=tree, tables=(), trees=())

    def problems(self) -> list[str]:
        """Return the contradictions between the studies and what an encoder is to learn from."""
        shared = run_rules(self.data, self.model, self.train, self.runtime)
        return [*broken(shared), *self._study_problems(), *self._loss_problems()]

    def _study_problems(self) -> list[str]:
        """Return why several tables cannot be pretrained on together, if they cannot."""
        data = self.data
        trees, tables, several = data.trees, data.tables, len(data.tables) > 1
        of_one = (
            "metadata",
            "sequences",
            "unifrac_matrix",
            "split",
            "split_column",
            "cv",
            "group_column",
        )
        unused = [spelled(name) for name in of_one if getattr(data, name) is not None]
        twice = [
            path for path, times in Counter(path.resolve() for path in tables).items() if times > 1
        ]
        not_files = (NO_TREE, str(IN_MEMORY))
        missing_trees = [
            tree for tree in trees if tree not in not_files and not Path(tree).is_file()
        ]
        rules = {
            f"--tree: {shown(missing_trees)}: no such file; leave it out to learn without UniFrac"
            + f", or write {NO_TREE} for a study without a tree" * several: missing_trees != [],
            (
                f"--trees: {len(trees)} for {len(tables)} tables; give one for each, or "
                f"{NO_TREE} in "
                "its place"
            ): (len(trees) not in (0, len(tables))),
            f"--tables: {shown(twice)} is there twice; name each table once": twice != [],
            f"{shown(unused)}: for one table only; samples of several have no common metadata": (
                several and unused != []
            ),
        }
        return broken(rules)

    def _loss_problems(self) -> list[str]:
        """Return that nothing is learned, where no loss has both a weight and what it needs."""
        data, train = self.data, self.train
        compared = data.unifrac_matrix is not None or data.has_tree
        learned = (
            train.nuc_penalty > 0 or train.count_penalty > 0 or (train.penalty > 0 and compared)
        )
        problem = (
            f"--nuc-penalty {train.nuc_penalty}, --count-penalty {train.count_penalty}, "
            f"--penalty {train.penalty} {'with' if compared else 'without'} a tree or distances: "
            "nothing is learned; give one of them a weight"
        )
        return broken({problem: not learned})


# What `aam train` leaves to `aam pretrain`.
DATA = (
    *names(DataConfig, of="studies"),
    *names(DataConfig, of="pretraining"),
    "alpha",
    "root_length",
)
TRAINING = (*names(TrainConfig, of="pretraining"), "ema_decay")


@dataclass(frozen=True)
class FineTuneConfig:
    """Learn to predict metadata columns, and report how well, beside baselines. Samples of a group
    stay together.
    """

    data: DataConfig = section(DataConfig(), required=("table", "metadata"), omitted=DATA)
    targets: TargetConfig = section(TargetConfig(), required=("metadata_column",))
    covariates: CovariateConfig = section(CovariateConfig())
    model: ModelConfig = section(ModelConfig(), omitted=names(ModelConfig, of="pretraining"))
    train: TrainConfig = section(
        TrainConfig(epochs=10, batch_size=32, lr=1e-5, nuc_penalty=0.0, count_penalty=0.0),
        omitted=TRAINING,
    )
    runtime: RunConfig = section(RunConfig(), required=("output_dir",))

    def problems(self) -> list[str]:
        """Return which options contradict options of another section."""
        data, targets, covariates, train, runtime = (
            self.data,
            self.targets,
            self.covariates,
            self.train,
            self.runtime,
        )
        predicted_too = shown({*covariates.columns} & set(targets.metadata_column))
        columns = {data.group_column, data.study_column, data.split_column, data.cv}
        dividing = shown(columns & set(targets.metadata_column))
        rules = {
            (
                f"--metadata-column {predicted_too} is a covariate too; a model that reads its "
                "target learns nothing"
            ): (predicted_too != ""),
            (
                f"--metadata-column {dividing} divides the samples too; a subset would hold none "
                "of "
                "its other values"
            ): (dividing != ""),
            **run_rules(data, self.model, train, runtime),
        }
        return broken(rules)

    @property
    def trains_network(self) -> bool:
        """Whether there is a network to train: an encoder, or one among the members that predict
        targets.
        """
        return not self.targets.metadata_column or "deep" in (
            self.targets.members or self.default_members
        )

    @property
    def of_network(self) -> dict[str, tuple[str, ...]]:
        """By section the options that serve the network alone."""
        whole = {
            part: [item.name for item in dataclasses.fields(getattr(self, part))]
            for part in NETWORK_SECTIONS
        }
        # Learners read sequences too, up to --max-bp.
        served = {
            part: tuple(name for name in names if name != "max_bp") for part, names in whole.items()
        }
        return {**served, "targets": NETWORK_TARGETS, "covariates": NETWORK_COVARIATES}

    @property
    def network_options(self) -> list[str]:
        """The options that are given and that serve the network alone; one that stands at its
        default is not given.
        """
        usual = FineTuneConfig()
        return [
            spelled(name)
            for part, names in self.of_network.items()
            for name in names
            if getattr(getattr(self, part), name) != getattr(getattr(usual, part), name)
        ]

    @property
    def default_members(self) -> tuple[Member, ...]:
        """What predicts together unless ``--members`` says it: without the network, with it, or it
        alone.

        The network is trained where an option asks for it, and alone where only it can learn what
        is asked.
        """
        targets = self.targets
        if targets.class_weights:
            return ("deep",)
        learners: tuple[Member, ...] = get_args(Member)[1:]
        return ("deep", *learners) if self.network_options else learners


# --- a file of options -------------------------------------------------------------------------


# Options of earlier versions that no command has any more, and what to do instead.
REMOVED = {
    "--allow-inexact-attention": (
        "--attn-implementation auto takes the fastest back end that is right"
    ),
    "--categorical-dropout": "a tenth of the covariates is hidden in training",
    "--label-share": "leave samples out of the metadata, and pass --missing drop",
    "--memory-snapshot": "--memory-profile writes the most memory of each stage",
    "--pipeline": "--data-parallel and --distributed share the work among processes",
    "--transpose": (
        "samples in rows are told by ASVs called by DNA, by --sequences, or by a "
        "first column sample-id"
    ),
    "--unfreeze-epochs": "--freeze-base trains the new heads alone",
}


def read_config(path: Path, default: Config) -> Config:
    """Return `default` overlaid with a TOML file or the ``config`` of a run.json.

    Options that the command does not take, or that no command takes any more, are left out and
    logged.

    Raises
    ------
    InputError
        The file cannot be read or parsed, holds unknown keys or wrong types, or names samples by an
        option that the command does not take.
    """
    sections, problems, where = read_toml(path), Problems(), str(path)
    sections, left_out = without_removed(sections, {each.name for each in options_of(default)})
    config = default
    with problems.collected():
        config = from_dict(default, sections, where)
    config, omitted = _without_omitted(config, default, where, problems)
    problems.raise_if_any()
    left_out += omitted
    if left_out:
        log.info("%s: %s not used, this command has no such options", path, shown(left_out, 20))
    return config


def without_removed(
    sections: dict[str, Any], of_command: Container[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return sections of options without those of earlier versions, and the names of the latter.

    Another program (examples.eeg) may have an option `of_command` of the same name.
    """
    kept, removed = dict(sections), []
    for part, options in sections.items():
        if isinstance(options, dict):
            gone = [
                name
                for name in options
                if spelled(name) in REMOVED and spelled(name) not in of_command
            ]
            kept[part] = {name: value for name, value in options.items() if name not in gone}
            removed += [f"[{part}] {name}" for name in gone]
    return kept, removed


def _without_omitted(
    config: Config, default: Config, where: str, problems: Problems
) -> tuple[Config, list[str]]:
    """Return the options with those that the command omits as in `default`, and the names of the
    ones that differed.

    One that selects samples is added to `problems`.
    """
    omitted = []
    for part in dataclasses.fields(config):  # type: ignore[arg-type]
        section, usual = getattr(config, part.name), getattr(default, part.name)
        for name in part.metadata.get("omitted", ()):
            value = getattr(section, name)
            if value == getattr(usual, name):
                continue
            omitted.append(f"[{part.name}] {name}")
            if type(section).__dataclass_fields__[name].metadata["selects_samples"]:
                text = shown(value) if isinstance(value, tuple) else value
                problems.add(
                    f"{where}: {omitted[-1]} is {text}, and this command has no such option; "
                    "leave it out"
                )
            section = dataclasses.replace(section, **{name: getattr(usual, name)})
        config = dataclasses.replace(config, **{part.name: section})  # type: ignore[type-var]
    return config, omitted
