"""Every option, its default and its help text: the one page that the command line and saved runs share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Metric = Literal["unifrac", "weighted", "weighted-normalized", "generalized", "faith_pd"]


def option(default: Any, help: str, *, rare: bool = False, metavar: str | None = None, positional: bool = False) -> Any:
    """A field of a configuration: its default, its help text and whether only ``--help-all`` shows it."""
    return field(default=default, metadata={"help": help, "rare": rare, "metavar": metavar, "positional": positional})


@dataclass(frozen=True)
class TreeConfig:
    """Table, tree and the distance between samples"""

    table: Path | None = option(None, "Feature table: .biom (HDF5 or JSON), .qza FeatureTable[Frequency] or .tsv.")
    tree: Path | None = option(None, "Rooted phylogeny of the ASVs (Newick or .qza); a model learns without it too.")
    unifrac_metric: Metric = option("unifrac", "UniFrac distance, or Faith PD (faith_pd).")
    alpha: float = option(0.5, "Exponent of generalized UniFrac, 0 to 1.")
    root_length: Literal["include", "exclude"] = option(
        "include", "Count the root's own branch, as scikit-bio does and ssu does not."
    )
    missing_tips: Literal["error", "drop"] = option(
        "error", "Features without a tip: refuse, or leave them out of UniFrac (they remain inputs of the model)."
    )
    midpoint_root: bool = option(False, "Root the tree at its midpoint first.")


@dataclass(frozen=True)
class StudyConfig(TreeConfig):
    """Table, tree, metadata and how samples are divided"""

    sequences: Path | None = option(None, "Sequences of the features (FASTA or .qza) when their ids are not DNA.")
    metadata: Path | None = option(None, "Sample metadata (QIIME 2 TSV).")
    unifrac_matrix: Path | None = option(
        None, "Precomputed distances with ids (.h5, .npy, .tsv, .csv, .qza) instead of a tree."
    )
    rarefy_depth: int | None = option(
        None, "Reads per sample; unset: the largest that keeps 90 % of the samples, overall and in every class."
    )
    missing: Literal["error", "drop"] = option(
        "error", "Samples without metadata or with a missing target: refuse or leave out."
    )
    split: Path | None = option(None, "A split.tsv of an earlier run (sample-id, side, fold) to use again.")
    split_column: str | None = option(None, "Metadata column that holds the folds.", metavar="COLUMN")
    test_fold: str | None = option(None, "Value of --split-column that is held out as the test side.", metavar="FOLD")
    cv: str | None = option(None, "Cross-validate: a number of folds, or the metadata column that holds them.")
    group_column: str | None = option(
        None, "Metadata column (subject, study) whose samples stay on one side of every split.", metavar="COLUMN"
    )
    batch_column: str | None = option(
        None, "Metadata column (study, run, plate) reported beside the pooled figures.", metavar="COLUMN"
    )
    stratify: str | None = option(
        None,
        "Metadata column whose classes (numbers: quintiles) are spread evenly over the sides and folds that are drawn.",
        rare=True,
        metavar="COLUMN",
    )
    test_size: float = option(0.0, "Share of the groups (samples without --group-column) held out as the test side.")
    validation_size: float = option(0.15, "Share of the training groups that early stopping looks at.")


@dataclass(frozen=True)
class DataConfig(StudyConfig):
    """Table, tree, metadata and how samples are drawn and divided"""

    trim: bool = option(False, "Cut ASVs to --max-bp and merge those that become identical.")
    token_limit: int = option(1024, "Most ASVs of a sample that the model reads.")
    asv_sampling: Literal["abundance", "random", "first"] = option(
        "abundance", "Which ASVs are read when a sample has more than --token-limit."
    )


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the network; everything else is derived from them"""

    asv_stem: Literal["patch", "nucleotide"] = option("patch", "One token per patch of bases, or per base.")
    patch_size: int = option(5, "Bases per token of the patch stem.")
    embedding_dim: int = option(96, "Width of every vector.")
    attention_layers: int = option(2, "Transformer layers of the ASV encoder, and again of the sample encoder.")
    attention_heads: int = option(4, "Attention heads per layer; divides --embedding-dim.")
    dropout: float = option(0.0, "Dropout after attention and feed-forward layers.", rare=True)
    max_bp: int = option(150, "Longest ASV in nucleotides; a longer one is an error unless --trim.")
    count_embedding: bool = option(True, "Read abundances; without it only presence is read.")
    count_embedding_method: Literal["add", "concat", "film"] = option(
        "add", "How the embedded count joins the ASV vector.", rare=True
    )

    @property
    def patch(self) -> int:
        """Bases per token: 1 for the nucleotide stem."""
        return self.patch_size if self.asv_stem == "patch" else 1


@dataclass(frozen=True)
class TrainConfig:
    """Objective and optimization"""

    epochs: int = option(40, "Passes over the training samples.")
    batch_size: int = option(64, "Samples per batch on each device; pairs are those of the batches of all devices.")
    lr: float = option(5e-4, "Peak learning rate.")
    weight_decay: float = option(0.01, "Decay of weight matrices per unit of learning rate.")
    warmup_steps: int | None = option(None, "Steps of linear warm-up; unset: a tenth of the run, at most 1,000.")
    optimizer: Literal["adamw", "adam", "sgd"] = option("adamw", "Optimizer.", rare=True)
    scheduler: Literal["warmup_cosine", "cosine", "cosine_restarts", "plateau", "onecycle", "constant"] = option(
        "warmup_cosine", "Course of the learning rate; all but cosine and onecycle begin with the warm-up.", rare=True
    )
    scheduler_t0: int = option(10, "Epochs of the first period of cosine_restarts.", rare=True)
    scheduler_t_mult: int = option(2, "Each period of cosine_restarts is so many times the one before.", rare=True)
    scheduler_eta_min: float = option(0.0, "Learning rate at the end of a cosine.", rare=True)
    scheduler_patience: int = option(3, "Validations without improvement before plateau lowers the rate.", rare=True)
    scheduler_factor: float = option(0.5, "By what plateau multiplies the learning rate.", rare=True)
    scheduler_min_lr: float = option(0.0, "Below this plateau does not lower the learning rate.", rare=True)
    gradient_accumulation_steps: int = option(
        1, "Batches per step of the optimizer; distances are learned within a batch, so it adds no pairs."
    )
    ema_decay: float = option(
        0.0,
        "Validate and save an average of the weights that keeps this share of itself each step; 0: none.",
        rare=True,
    )
    shallow_draws: float = option(
        0.5, "Share of the training draws of fewer reads than the depth, down to a quarter (needs a tree).", rare=True
    )
    max_grad_norm: float = option(1.0, "Gradients are clipped to this norm.")
    nonfinite: Literal["stop", "skip"] = option(
        "stop", "On a loss or gradient that is not finite: end the run, or leave out the step (10 in a row end it)."
    )
    patience: int = option(10, "Validations without improvement before the run stops; 0 never stops early.")
    penalty: float = option(1.0, "Weight of the UniFrac loss.")
    nuc_penalty: float = option(1.0, "Weight of the masked-nucleotide loss.")
    count_penalty: float = option(1.0, "Weight of the masked-count loss.")
    nuc_mask_ratio: float = option(0.15, "Share of an ASV's bases that are masked.")
    nuc_mask_strategy: Literal["random", "span", "patch"] = option("random", "Mask single bases, spans, or patches.")
    nuc_mask_asvs: float = option(
        0.25, "Share of a batch's ASVs of which a masked copy is read; the UniFrac loss reads whole sequences."
    )
    count_mask_ratio: float = option(0.15, "Share of a sample's ASVs whose count is withheld and predicted.", rare=True)


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
    target_transform: Literal["none", "minmax", "zscore", "zscore-category", "log-minmax", "log-zscore"] = option(
        "zscore", "Scale on which a numeric target is learned; outputs are in the column's own units."
    )
    normalize_by: str | None = option(
        None, "Metadata column whose categories have each their own zscore (with zscore-category).", metavar="COLUMN"
    )
    loss_type: Literal["huber", "mse", "mae", "asymmetric"] = option("huber", "Loss of numeric targets.")
    over_penalty: float = option(1.0, "Weight of what is predicted too high, by the asymmetric loss.", rare=True)
    under_penalty: float = option(1.0, "Weight of what is predicted too low, by the asymmetric loss.", rare=True)
    target_penalty: float = option(1.0, "Weight of the target loss.")
    pretrained_encoder: Path | None = option(
        None, "Model folder of `aam pretrain` (or the folder of its folds) to start from."
    )
    label_share: float = option(
        1.0, "Share of the training samples whose labels are used, to learn what more labels would bring."
    )
    freeze_base: bool = option(False, "Train only the new heads; ASV vectors are then computed once.")
    val_prediction_passes: int = option(4, "Rarefied draws averaged for each held-out prediction.")
    ensemble: bool = option(False, "With --cv: write OUTPUT-DIR/model too, which holds the models of all folds as one.")
    rf_baseline: bool = option(
        False, "Fit forests and nearest neighbours, as `aam rf-baseline`, on the same splits for the report."
    )
    best_metric: Literal["val_loss", "mae", "r2", "accuracy", "f1", "auroc"] = option(
        "val_loss", "What decides which epoch is best."
    )


@dataclass(frozen=True)
class RuntimeConfig:
    """Machine, precision and output"""

    output_dir: Path | None = option(None, "Folder of the run; must not hold one already.")
    overwrite: bool = option(False, "Replace what stands at the output.")
    seed: int = option(0, "Seed of every random draw.")
    device: str = option("auto", "auto, cpu, cuda, cuda:N, hip, hip:N or mps.")
    threads: int | None = option(None, "CPU threads; unset: all cores this process may use.", rare=True)
    num_workers: int = option(0, "Processes that prepare batches beside the main one.")
    mixed_precision: Literal["auto", "none", "bf16"] = option(
        "auto", "bf16 where the device has it in hardware (not on CPU), else float32."
    )
    tf32: bool = option(False, "Allow TF32 products of the network (never of UniFrac targets).", rare=True)
    asv_chunk_size: int | None = option(
        None, "ASVs encoded at a time to bound memory; unset: all of the batch at once."
    )
    gradient_checkpointing: bool = option(False, "Recompute activations in backward: less memory, more time.")
    deterministic: bool = option(False, "Only operations that give the same bits each time, also on a GPU; slower.")
    debug: bool = option(False, "Show the traceback of an error.", rare=True)


@dataclass(frozen=True)
class RunConfig(RuntimeConfig):
    """Machine, precision, output and checkpoints"""

    resume_from: str | None = option(
        None, "auto: go on from the newest checkpoint of --output-dir, if any; or the folder of one checkpoint."
    )
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
    checkpoint_minutes: float = option(10.0, "Minutes between checkpoints; SIGTERM and SIGUSR2 save one too.")
    keep_checkpoints: int = option(2, "How many of the newest checkpoints are kept while the run lasts.", rare=True)


@dataclass(frozen=True)
class PretrainConfig:
    """Pretrain an encoder on a table and a tree, without labels."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    runtime: RunConfig = RunConfig()


@dataclass(frozen=True)
class FineTuneConfig:
    """Fine-tune on metadata columns, from a pretrained encoder or from nothing."""

    data: DataConfig = DataConfig()
    targets: TargetConfig = TargetConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig(
        epochs=10, batch_size=32, lr=1e-5, shallow_draws=0.0, nuc_penalty=0.0, count_penalty=0.0
    )
    runtime: RunConfig = RunConfig()


@dataclass(frozen=True)
class UnifracConfig(TreeConfig):
    """Write the UniFrac matrix or Faith PD of a whole table."""

    output: Path | None = option(None, "Matrix to write: .h5, .npy, .tsv or .qza; Faith PD as .tsv or .qza.")
    rarefy_depth: int | None = option(None, "Rarefy to this many reads first; unset: use the counts as they are.")
    seed: int = option(0, "Seed of the rarefaction.")
    memory_limit: float = option(1.0, "Memory of the computation in GiB.")
    device: str = option("auto", "Where unweighted UniFrac is computed: auto, cpu, cuda, hip or mps.")
    threads: int | None = option(None, "CPU threads; unset: all cores this process may use.")
    overwrite: bool = option(False, "Replace the output if it exists.")
    debug: bool = option(False, "Show the traceback of an error.", rare=True)


@dataclass(frozen=True)
class ApplyConfig:
    """A trained model and the table it is applied to"""

    model: tuple[Path, ...] = option(
        (),
        "Model folder that `aam train` (or, for embed, `aam pretrain`) wrote; several predict together.",
        metavar="PATH ...",
    )
    table: Path | None = option(None, "Feature table of the samples; no tree is needed.")
    sequences: Path | None = option(None, "Sequences of the features when their ids are not DNA.")
    trim: bool = option(False, "Cut ASVs to the model's --max-bp and merge those that become identical.")
    runtime: RuntimeConfig = RuntimeConfig()


@dataclass(frozen=True)
class PredictConfig(ApplyConfig):
    """Predict samples of a new table in the target's own units."""

    output: Path | None = option(None, "Predictions to write (.tsv): one row per sample of the table.")
    prediction_passes: int = option(4, "Rarefied draws whose mean and standard deviation are written.")
    metadata: Path | None = option(None, "Sample metadata, for a model that was trained with --normalize-by.")


@dataclass(frozen=True)
class EmbedConfig(ApplyConfig):
    """Write the vectors of samples and ASVs."""

    format: Literal["tsv", "npy"] = option("tsv", "samples.tsv and asvs.tsv, or .npy with ids beside them.")


@dataclass(frozen=True)
class EvaluateConfig(ApplyConfig):
    """Compare predictions with the truth: figures, intervals, baselines, report."""

    prediction_passes: int = option(4, "Rarefied draws averaged for each prediction.")
    predictions: Path | None = option(None, "Predictions to evaluate instead of a model.")
    metadata: Path | None = option(None, "Sample metadata with the true values.")
    split: Path | None = option(
        None, "split.tsv of the run: only its test samples count, and baselines learn from the rest."
    )
    baselines: Path | None = option(None, "Predictions of `aam rf-baseline` on the same split, to compare with.")
    group_column: str | None = option(None, "Metadata column over which intervals are drawn.", metavar="COLUMN")
    batch_column: str | None = option(None, "Metadata column reported beside the pooled figures.", metavar="COLUMN")
    by_columns: tuple[str, ...] = option(
        (), "Metadata columns each category of which is reported.", metavar="COLUMN ..."
    )


@dataclass(frozen=True)
class ForestConfig:
    """Random forest and extra trees"""

    n_estimators: int = option(500, "Trees of a forest.")
    max_features: str | None = option(
        None,
        "ASVs tried at each branching: sqrt, log2, or a share of them; unset: chosen on the training side by groups.",
    )
    n_jobs: int = option(-1, "Threads that grow trees; -1: as many as there are cores.")


@dataclass(frozen=True)
class RfBaselineConfig:
    """Predict held-out samples with forests, nearest neighbours on UniFrac (with --tree) and trivial baselines."""

    data: StudyConfig = StudyConfig()
    metadata_column: tuple[str, ...] = option((), "Metadata column or columns to predict.", metavar="COLUMN ...")
    classifier: bool = option(False, "Treat a numeric column as classes.")
    train_samples: Path | None = option(None, "File of the samples to learn from, one id per line, instead of a split.")
    val_samples: Path | None = option(None, "File of the samples to predict, with --train-samples.")
    output: Path | None = option(
        None, "Predictions to write (.tsv), for `aam evaluate --baselines`; the figures stand beside them (.json)."
    )
    forest: ForestConfig = ForestConfig()
    seed: int = option(0, "Seed of the rarefaction, the split and the forests.")
    overwrite: bool = option(False, "Replace the output if it exists.")
    debug: bool = option(False, "Show the traceback of an error.", rare=True)


@dataclass(frozen=True)
class SimulateConfig:
    """A synthetic study"""

    output_dir: Path = option(
        Path("study"), "Folder to write: table.biom, tree.nwk, metadata.tsv, traits.tsv, truth.json."
    )
    samples: int = option(300, "Number of samples.")
    asvs: int | None = option(None, "Number of ASVs; unset: 1,000 at 300 samples, growing with their root.")
    subjects: int | None = option(None, "Number of subjects; unset: one for five samples.")
    length: int = option(150, "Nucleotides of each ASV.")
    depth: int = option(8_000, "Median reads of a sample.")
    asv_turnover: float = option(
        0.0, "Share of the ASVs that occur in one fold only, so that held-out samples hold relatives instead."
    )
    seed: int = option(0, "Seed of everything that is drawn.")
    overwrite: bool = option(False, "Replace the output folder if it exists.")


@dataclass(frozen=True)
class CompareConfig:
    """What differs between two runs (options, inputs, versions, machine), and where their losses first part."""

    first: Path | None = option(None, "Folder of a run.", metavar="RUN1", positional=True)
    second: Path | None = option(None, "Folder of another.", metavar="RUN2", positional=True)
    debug: bool = option(False, "Show the traceback of an error.", rare=True)


Case = Literal["pretrain", "dense", "nucleotide", "dense-nucleotide", "predict", "unifrac", "unlabelled"]


@dataclass(frozen=True)
class BenchConfig:
    """Measure speed and memory on this device."""

    table: Path | None = option(
        None, "Feature table; unset: oral-age in the folder that AAM_BENCH_DATA names, or else a simulated study."
    )
    tree: Path | None = option(None, "Its phylogeny; with --table alone nothing that needs a tree is run.")
    cases: tuple[Case, ...] = option(
        ("pretrain", "dense", "nucleotide", "dense-nucleotide", "predict", "unifrac"),
        "What is measured, each in a process of its own.",
    )
    all: bool = option(False, "Measure unlabelled of AAM_BENCH_DATA too, which is large.")
    repeats: int = option(10, "Steps timed for each case, after two that warm up.")
    output: Path | None = option(None, "JSON to write; unset: docs/benchmarks/DEVICE.json. An earlier one is replaced.")
    device: str = option("auto", "auto, cpu, cuda, cuda:N, hip, hip:N or mps.")
    threads: int | None = option(None, "CPU threads; unset: all cores this process may use.")
    debug: bool = option(False, "Show the traceback of an error.", rare=True)
