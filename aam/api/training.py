"""`aam train` and `aam pretrain`: read the inputs, fit a model on each fold, and report on it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aam.config import DataConfig, FineTuneConfig, PretrainConfig
from aam.data.inputs import (
    Inputs,
    MetadataLike,
    TableLike,
    TreeLike,
    options_with,
    path_of,
    read_inputs,
)
from aam.data.splits import Split, Subset, classes_not_learned, make_splits, split_columns
from aam.data.study import MetadataColumns, Study
from aam.data.targets import Covariates, Targets, classes_of_few_groups, fit_labels
from aam.device.distributed import SINGLE, World, launch, process_count
from aam.device.environment import is_launcher
from aam.device.platform import Facts, prepare_device
from aam.engine.run import MODEL, TrainingFolder, open_run
from aam.engine.signals import interrupts_as_in_python
from aam.errors import FINISHED, InputError, short, shown
from aam.evaluate.predictions import guess, name_problems
from aam.files.atomic import relative_to_cwd
from aam.io.metadata import Metadata
from aam.options import command_line, configured, not_none
from aam.predict.baselines import DEFAULT_FOLDS, has_strong_baselines, is_quick
from aam.predict.blend import Blend, columns_of, in_words
from aam.predict.description import Notes
from aam.predict.estimator import Samples
from aam.predict.folds import Folds, losses_in_words, save_models, study_for, with_encoder
from aam.predict.held_out import HeldOut
from aam.predict.membership import LEFT_OUT, judge_network, untrusted_because, varies
from aam.predict.network import Network
from aam.predict.saved_model import SavedModel, encoder_folder, load_encoder, load_model
from aam.report.encoder_quality import evaluate_encoder
from aam.report.figures import loss_figures, read_epochs
from aam.report.files import write_results
from aam.report.page import ReportData
from aam.report.training import write_report
from aam.training.decisions import decide
from aam.training.losses import class_weights
from aam.training.pretrain import fit_encoder
from aam.typing import Array, OptionValue, PathLike

if TYPE_CHECKING:
    from aam.api.models import Model

log = logging.getLogger("aam")

Training = Folds[FineTuneConfig]
Pretraining = Folds[PretrainConfig]

# Least number of groups of a study that is cross-validated by default (docs/prepare-data.md).
LEAST_GROUPS_FOR_FOLDS = 10


def run_training(config: FineTuneConfig, report: bool = True) -> int:
    """Run `aam train`; return the exit status.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while
    it lasts, model/ (best epoch) and last/, below fold-K/ when cross-validating, next to a model/
    of all samples; then, with `report`, predictions.tsv, report.html and metrics.json. Raises
    `CallAgain` after a signal, with the state saved.
    """
    if is_launcher(config.runtime):
        return launch(process_count(config.runtime), sys.argv[1:])
    with open_run(config) as run:
        folds = load_folds(config, run.world)
        check_targets(folds)
        _log_start(folds)
        record = folds.record("train")
        if config.runtime.dry_run:
            run.print_plan(record, folds.describe())
            return FINISHED
        run.begin(record)
        if run.is_finished():
            return FINISHED
        warnings, splits = folds.warn_of_leaks(), splits_by_folder(folds, run.path)
        for path, split in run.unfinished(splits):
            with run.training(path, folds.title("train", split)) as folder:
                folds.write_split(split, path)
                fit_model(folds, split, folder)
        if report and run.reports():
            held_out = HeldOut(folds, run.path)
            for path, split in splits.items():
                held_out.add(split, load_model(path / MODEL, folds.device))
            write_report(held_out, warnings, _unjudged(folds))
    return FINISHED


def splits_by_folder(folds: Training, path: Path) -> dict[Path, Split]:
    """The split of each folder in the run directory `path`.

    A cross-validation ends with a model of all samples, whose results are those of the folds,
    unless each fold has a pretrained encoder of its own.
    """
    splits = folds.by_folder(path)
    if folds.data.cv is None:
        return splits
    try:
        encoder_folder(folds.config.train, "")
    except InputError:
        log.info("no model of all samples: each fold has a pretrained encoder of its own")
        return splits
    return {**splits, path: split_of_all(folds)}


def fit_model(
    folds: Training,
    split: Split,
    folder: TrainingFolder | None = None,
    weights: Mapping[str, float] | None = None,
) -> SavedModel:
    """Fit the members of the blend on a split, and save them in the `folder` of a run, if there is
    one; `weights` are those of samples by id.

    All ranks must call it; the main rank alone fits what has no epochs.
    """
    config, members = folds.config, folds.config.targets.members
    encoder, train_ids = load_encoder(config.train, split.test_fold), split.ids("train")
    seen_ids = (*train_ids, *split.ids("validation"))
    # Held-out samples of a fold must not be learned from.
    ids = split.not_held_out if split in folds.splits else seen_ids
    scaled_ids = train_ids
    if Network.name not in members:
        seen_ids = scaled_ids = ids
    study, targets, covariates = supervise(folds, scaled_ids)
    network = Network(config, targets, covariates, folds.device, encoder, folds.encoded)
    blend = Blend.of(members, targets, study.depth, study.seed, network)
    # The members that read counts share the rarefactions of their samples.
    counts_sets = _training_set(study, ids, covariates)
    # The network comes first, because it continues from checkpoints.
    for name in sorted(blend.members, key=lambda name: name != Network.name):
        member: Any = blend.members[name]
        if name == Network.name:
            is_validated = np.arange(len(seen_ids)) >= len(train_ids)
            sets = _training_set(study, seen_ids, covariates)
            member.fit(*sets, validation=is_validated, checkpoint=folder)
        elif folds.world.is_main:
            sample_weight = None if weights is None else [weights[name] for name in ids]
            class_weight = config.targets.class_weight
            member.fit(*counts_sets, sample_weight=sample_weight, class_weight=class_weight)
    groups = study.column(config.data.group_column, seen_ids)
    labelled_groups = () if groups is None else tuple(sorted({*groups}))
    notes = Notes(guesses=_guesses(study, targets, seen_ids), labelled_groups=labelled_groups)
    saved = trained = folds.model(seen_ids, blend, encoder, targets, covariates, notes)
    if trained.network is not None and folds.world.is_main:
        saved = with_judged_network(folds, split, trained, study, weights)
    if folder is not None and folds.world.is_main:
        save_models(folder.path, saved, trained)
    return saved


def with_judged_network(
    folds: Training,
    split: Split,
    saved: SavedModel,
    study: Study,
    weights: Mapping[str, float] | None = None,
) -> SavedModel:
    """The model of a split without its network if that does not earn its place, with a note why.

    The other members are fitted once more, to the training samples alone, and compared with and
    without the network on its validation samples. A network alone stays, with a warning.
    """
    network, others = not_none(saved.estimator), saved.members
    train_ids, ids = split.ids("train"), split.ids("validation")
    title = folds.title("train", split)
    reason = untrusted_because(network, study, ids)
    if not others:
        if reason:
            log.warning("warning: %s: the network predicts alone, although %s", title, reason)
        return saved
    joins, sentence = False, f"{LEFT_OUT}: {reason}"
    if not reason:
        blend = Blend.of((*saved.blend.members,), saved.targets, saved.depth, saved.seed, network)
        sample_weight = None if weights is None else [weights[name] for name in train_ids]
        training_set = _training_set(study, train_ids, saved.covariates)
        given = {"sample_weight": sample_weight, "class_weight": folds.config.targets.class_weight}
        for name in others:
            member: Any = blend.members[name]
            member.fit(*training_set, **given)
        inner = replace(saved, blend=blend)
        encoded = folds.encoded if folds.config.targets.freeze_base else None
        joins, sentence = judge_network(inner, study, ids, folds.config.runtime, encoded)
    log.info("%s: %s", title, sentence)
    saved = replace(saved, notes=replace(saved.notes, network=sentence))
    return saved if joins else replace(saved.only(*others), reference=None)


def _training_set(
    study: Study, ids: Sequence[str], covariates: Covariates
) -> tuple[Samples, list[Array], list[str] | None, list[str] | None]:
    """Samples, targets, groups and studies that a member learns from."""
    rows, data = study.rows(ids), study.config
    groups, studies = (study.column(x, ids) for x in (data.group_column, data.study_column))
    samples = Samples.of_study(study, rows, covariates.levels)
    return samples, columns_of(study, rows), groups, studies


def _guesses(study: Study, targets: Targets, ids: Sequence[str]) -> dict[str, Any]:
    """The median, or the most frequent class as probabilities, of each target."""
    metadata = not_none(study.metadata)
    truths = {spec: spec.truth(metadata, ids) for spec in targets.specs}
    return {spec.name: guess(truth, len(spec.labels)).tolist() for spec, truth in truths.items()}


def _unjudged(folds: Training) -> str:
    """That no sample is held out, and the option that holds some out; empty text if one is."""
    if any(split.held_out for split in folds.splits):
        return ""
    data, ids = folds.config.data, folds.study.table.sample_ids
    groups = _groups(data, not_none(folds.study.metadata), ids)
    unit = f"groups of {data.group_column}" if data.group_column else "samples"
    remedy = f"; --cv {min(groups, DEFAULT_FOLDS)} tests each sample once" if groups > 1 else ""
    return f"No held-out evaluation of {groups} {unit}{remedy}"


def split_of_all(folds: Training) -> Split:
    """All samples as training samples; members with epochs keep some for early stopping."""
    if Network.name in folds.config.targets.members:
        data = replace(folds.data, cv=None, test_size=0.0)
        return make_splits(folds.study, data, folds.config.runtime.seed)[0]
    ids = tuple(sorted(folds.study.table.sample_ids))
    subsets: tuple[Subset, ...] = tuple("train" for _ in ids)
    return Split(ids, subsets, ("",) * len(ids))


# --- inputs --------------------------------------------------------------------------------------


def load_folds(
    config: FineTuneConfig, world: World = SINGLE, inputs: Inputs | None = None
) -> Training:
    """Read every input of a run from its files, unless there are `inputs`, and split the samples.

    A study that is small enough is cross-validated where nothing else is asked for and, if it
    comes from files, compared with strong baselines.

    Raises
    ------
    InputError
        Problems of the encoder, the inputs or splits, before any long work.
    """
    device, in_memory = prepare_device(config.runtime), inputs is not None
    network_options = shown(config.network_options)
    members, data = config.targets.members, config.data.divided_by_study()
    if not members:
        members = config.default_members
        if network_options and len(members) > 1:
            text = "a network is also trained, because of %s; --members leaves it out"
            log.info(text, network_options)
    has_network = Network.name in members
    if not has_network:
        # Other members need no validation samples: they choose by inner folds.
        data = replace(data, validation_size=0.0)
    config = replace(config, data=data, targets=replace(config.targets, members=members))
    config, encoder = with_encoder(config)
    targets, covariates = config.targets.metadata_column, config.covariates
    required = [*targets, *split_columns(config.data)]
    columns = MetadataColumns(
        required,
        [*covariates.columns, *filter(None, [config.data.group_column])],
        targets,
        config.targets.classifier,
        covariates,
        learned=True,
    )
    inputs = inputs or read_inputs(config, columns.names)
    if not has_network:
        # Before the depth is chosen, which keeps most training samples of each class.
        config = choose_folds(config, inputs, required)
    config, study = study_for(config, config.data, inputs, columns, encoder)
    studies = set(study.column(config.data.study_column, study.table.sample_ids) or ())
    if len(studies) == 1:
        problem = f"all samples are of {shown(studies)}, expected two studies or more"
        remedy = "leave it out, or pass --batch-column for runs and plates of one study"
        raise InputError(f"--study-column {config.data.study_column}: {problem}; {remedy}")
    if has_network:
        study.require_sequences()
    study, splits = _learnable_splits(study, config.data, config.runtime.seed)
    strong = has_strong_baselines(study, len(targets), len(splits))
    strong &= not in_memory and any(split.held_out for split in splits)
    decisions: Facts = {}
    if has_network:
        config, decisions = decide(config, study, device, world)
    epochs = config.train.epochs if has_network else 0
    return Folds(config, config.data, study, splits, device, world, decisions, epochs, strong)


def choose_folds(config: FineTuneConfig, inputs: Inputs, required: Sequence[str]) -> FineTuneConfig:
    """The options with a cross-validation, if no split is asked for and the study is small.

    Samples that have the metadata count, whatever their reads.
    """
    data, metadata = config.data, inputs.metadata
    split_options = (data.cv, data.split, data.split_column, data.test_size)
    if metadata is None or any(option is not None for option in split_options):
        return config
    known = metadata.at(name for table in inputs.tables for name in table.sample_ids).text
    ids = known.index[known[[*required]].notna().all(axis=1)].tolist()
    total, asvs = _groups(data, metadata, ids), sum(len(x.feature_ids) for x in inputs.tables)
    groups = _groups(data, metadata, _learnable(config, metadata, ids))
    if not is_quick(len(ids), asvs, len(config.targets.metadata_column), DEFAULT_FOLDS):
        return config
    if total < LEAST_GROUPS_FOR_FOLDS or groups < DEFAULT_FOLDS:
        return config
    unit = "samples" if data.group_column is None else f"{data.group_column} (whole groups)"
    text = "cross-validation in %d folds of %d %s; --test-size holds out one subset instead"
    log.info(text, DEFAULT_FOLDS, groups, unit)
    return replace(config, data=replace(data, cv=str(DEFAULT_FOLDS)))


def _groups(data: DataConfig, metadata: Metadata, ids: Sequence[str]) -> int:
    """Number of groups of samples."""
    return len(set(ids if data.group_column is None else metadata.groups(data.group_column, ids)))


def _learnable(config: FineTuneConfig, metadata: Metadata, ids: Sequence[str]) -> list[str]:
    """Samples with a number to predict, or a class of enough groups."""
    columns, known = config.targets.metadata_column, metadata.at(ids)
    if not config.targets.classifier:
        columns = tuple(name for name in columns if metadata.kinds[name] != "numeric")
    if len(columns) < len(config.targets.metadata_column):
        return list(ids)
    few = classes_of_few_groups(known, columns, config.data.column_of_class_groups)
    return [*known.without(few).text[[*columns]].dropna(how="all").index]


def _learnable_splits(study: Study, data: DataConfig, seed: int) -> tuple[Study, tuple[Split, ...]]:
    """The splits of a study, without the classes that one of them cannot learn."""
    splits = make_splits(study, data, seed)
    while left_out := classes_not_learned(splits, study.classes):
        study = study.without_classes(left_out)
        splits = make_splits(study, data, seed)
    return study, splits


# --- targets -------------------------------------------------------------------------------------


def supervise(folds: Training, train_ids: Sequence[str]) -> tuple[Study, Targets, Covariates]:
    """The study with its targets and covariates, fitted on training samples."""
    config, study = folds.config, folds.study
    options = (study.sample_metadata, train_ids, config.targets, config.covariates)
    labels, targets, covariates = fit_labels(*options)
    return replace(study, labels=labels), targets, covariates


def check_targets(folds: Training) -> None:
    """Raise `InputError` for targets, subsets and encoders that cannot be learned from.

    Covariates that some samples lack, whose categories a training subset lacks, or that tell a
    target, are logged, each message once.
    """
    config, logged = folds.config, dict[str, None]()
    problems = dict.fromkeys(folds.rank_problems())
    for split in folds.splits:
        train_ids = split.ids("train")
        study, targets, covariates = supervise(folds, train_ids)
        logged |= dict.fromkeys(covariates.unknown_values(study.sample_metadata))
        refused = [*_labels_seen(folds, split), *_undefined_metric(folds, study, targets, split)]
        refused += config.targets.kind_problems(len(targets.numeric), len(targets.classes))
        problems |= dict.fromkeys([*refused, *name_problems(targets.specs)])
        sizes = [len(spec.labels) for spec in targets.classes]
        problems |= dict.fromkeys(_equal_weights(config, sizes))
        labels = study.labels.label[study.rows(train_ids)]
        class_weights(config.targets.class_weights, labels, sizes)
    if problems:
        raise InputError(*problems)
    for message in logged if folds.world.is_main else ():
        log.warning("%s", message)


def _equal_weights(config: FineTuneConfig, sizes: Sequence[int]) -> list[str]:
    """Say that members on counts weigh the two classes of each study the same already."""
    members, weights = config.targets.members, config.targets.class_weights
    on_counts = set(members) - {Network.name}
    if not weights or config.data.study_column is None or 2 not in sizes or not on_counts:
        return []
    reason = "with --study-column the two classes of each study weigh the same in"
    return [f"--class-weights: {reason} {' and '.join(sorted(on_counts))}; leave it out"]


def _undefined_metric(folds: Training, study: Study, targets: Targets, split: Split) -> list[str]:
    """Say why ``--best-metric`` cannot choose an epoch: one value has neither AUROC nor R2."""
    metric, ids = folds.config.targets.best_metric, split.ids("validation")
    if metric not in ("auroc", "r2") or not ids:
        return []
    specs = targets.classes if metric == "auroc" else targets.numeric
    fold = f" of fold {short(split.test_fold)}" if split.test_fold else ""
    subset = f"--best-metric {metric}: the validation subset{fold} holds one value of"
    why = "so that no epoch is the best; take another metric or a larger --validation-size"
    truths = {spec.name: spec.truth(not_none(study.metadata), ids) for spec in specs}
    return [f"{subset} {name!r} only, {why}" for name in truths if not varies(truths[name])]


def _labels_seen(folds: Training, split: Split) -> list[str]:
    """The problem of an encoder that was trained on labels of held-out samples, if it was."""
    encoder = load_encoder(folds.config.train, split.test_fold)
    seen = sorted(encoder.labelled.intersection(split.held_out)) if encoder is not None else []
    if encoder is None or not seen or not encoder.targets.specs:
        return []
    learned = shown(spec.name for spec in encoder.targets.specs)
    what = f"learned {learned} from {len(seen)} of the held-out samples ({shown(seen, 3)})"
    remedy = "take an encoder of `aam pretrain`, or the same split"
    why = f"no result on them would mean anything: {remedy}"
    return [f"--pretrained-encoder {encoder.source} {what}; {why}"]


def _log_start(folds: Training) -> None:
    """Log device, samples, ASVs and depth, the members and the losses."""
    config, study, targets = folds.config, folds.study, folds.config.targets
    log.info("train: %s", folds.inputs_in_words)
    log.info("members: %s", in_words(targets.members))
    if Network.name not in targets.members:
        return
    # A frozen encoder reads vectors that are computed once: nothing of the encoder is learned.
    losses = [] if targets.freeze_base else losses_in_words(study, config.train)
    log.info("losses: %s", ", ".join([*losses, *targets.metadata_column]))
    if study.metric is None and not targets.freeze_base:
        without = "without --tree or --unifrac-matrix"
        log.info("%s no UniFrac term is learned with the targets", without)


# --- `aam pretrain` ------------------------------------------------------------------------------


def run_pretraining(
    config: PretrainConfig, report: bool = True, inputs: Inputs | None = None
) -> int:
    """Run `aam pretrain`; return the exit status.

    Writes run.json, and for each split split.tsv, metrics.jsonl, tensorboard/, checkpoints/ while
    it lasts, model/ (best epoch) and last/, below fold-K/ when cross-validating; then, with
    `report`, report.html and metrics.json. `inputs` are those of memory. Raises `CallAgain` after
    a signal, with the state saved.
    """

    if is_launcher(config.runtime):
        return launch(process_count(config.runtime), sys.argv[1:])
    with open_run(config) as run:
        folds = _load_pretraining(config, run.world, inputs)
        _log_losses(folds)
        record = folds.record("pretrain", inputs)
        if config.runtime.dry_run:
            run.print_plan(record, folds.describe())
            return FINISHED
        run.begin(record)
        if run.is_finished():
            return FINISHED
        warnings, splits = folds.warn_of_leaks(), folds.by_folder(run.path)
        for path, split in run.unfinished(splits):
            with run.training(path, folds.title("pretrain", split)) as folder:
                folds.write_split(split, path)
                _fit_encoder(folds, split, folder)
        if report and run.reports():
            encoders = {
                split: load_model(path / MODEL, folds.device) for path, split in splits.items()
            }
            _report_on_encoders(folds, encoders, run.path, warnings)
    return FINISHED


def _log_losses(folds: Pretraining) -> None:
    """Log device, samples, ASVs, depth and the losses."""
    losses = losses_in_words(folds.study, folds.config.train)
    log.info("pretrain: %s; losses: %s", folds.inputs_in_words, ", ".join(losses))
    if folds.study.metric is None:
        without = "without --tree or --unifrac-matrix no UniFrac term is learned"
        log.info("%s: the encoder learns from %s only", without, " and ".join(losses))


def _load_pretraining(config: PretrainConfig, world: World, inputs: Inputs | None) -> Pretraining:
    """Read the inputs of a run, split the samples, and decide what this machine decides.

    Raises
    ------
    InputError
        Problems of the encoder, the inputs or the splits, before any long work.
    """
    device = prepare_device(config.runtime)
    config, encoder = with_encoder(config)
    # Without labels there is nothing to hold out for, unless it is asked for.
    config = replace(config, data=replace(config.data, test_size=config.data.test_size or 0.0))
    data = config.inputs
    columns = MetadataColumns(split_columns(data))
    inputs = inputs or read_inputs(data, columns.names)
    config, study = study_for(config, data, inputs, columns, encoder)
    study.require_sequences()
    splits = make_splits(study, data, config.runtime.seed)
    _check_sizes(study, splits)
    config, decisions = decide(config, study, device, world)
    folds = Folds(config, data, study, splits, device, world, decisions, config.train.epochs)
    if problems := folds.rank_problems():
        raise InputError(*problems)
    return folds


def _check_sizes(study: Study, splits: Sequence[Split]) -> None:
    """Refuse subsets from which nothing can be learned."""
    train = min((split.ids("train") for split in splits), key=len)
    asvs = study.table.columns_of(study.rows(train))
    remedy = "give a larger table, or lower --test-size and --validation-size"
    for unit, number in (("samples", len(train)), ("ASVs", len(asvs))):
        if number < 2:
            problem = f"--table: {number} of its {unit} to train on, expected 2 or more"
            raise InputError(f"{problem}; {remedy}")


def _fit_encoder(folds: Pretraining, split: Split, folder: TrainingFolder) -> None:
    """Pretrain an encoder on a split, and save its best and its last weights."""
    study, ids = folds.study, (*split.ids("train"), *split.ids("validation"))
    rows = study.rows(split.ids("train")), study.rows(split.ids("validation"))
    encoder = load_encoder(folds.config.train, split.test_fold)
    fitted = fit_encoder(study, rows, folds.config, folds.device, encoder, folder)
    if folds.world.is_main:
        blend = Blend().joined(Network.of(fitted))
        saved = folds.model(ids, blend, encoder)
        save_models(folder.path, saved, saved)


def _report_on_encoders(
    folds: Pretraining, encoders: Mapping[Split, SavedModel], path: Path, warnings: list[str]
) -> None:
    """Write report.html, figures and metrics.json."""
    config, study, tables, figures = folds.config, folds.study, [], []
    # What ASVs another encoder has seen is not known.
    bases, machine = config.train.pretrained_encoder is None, (config.runtime, folds.device)
    for split, saved in encoders.items():
        if split.held_out:
            found, drawn, advice = evaluate_encoder(saved, study, split, *machine, bases)
            tables += found
            figures += drawn
            warnings = [*warnings, *advice]
    epochs = {name: read_epochs(folder) for name, folder in folds.folders(path).items()}
    data = ReportData(
        title="aam pretrain",
        task={"command": "pretrain", "losses": ", ".join(losses_in_words(study, config.train))},
        data=folds.inputs_by_name,
        split=folds.sizes_by_name,
        tables=tuple(tables),
        encoder_figures=tuple(figures),
        curves=tuple(loss_figures(epochs)),
        warnings=tuple(warnings),
    )
    write_results(path, data)
    shown_path = relative_to_cwd(path)
    labels = {"metadata": "METADATA", "metadata_column": "COLUMN", "output_dir": "RUN"}
    command = command_line("train", pretrained_encoder=shown_path, table="TABLE", **labels)
    log.info("report: %s", shown_path / "report.html")
    log.info("next: %s", command)


def pretrain(
    table: TableLike,
    tree: TreeLike | None = None,
    *,
    output_dir: PathLike,
    metadata: MetadataLike | None = None,
    **options: OptionValue,
) -> Model:
    """Pretrain an encoder without labels, as `aam pretrain` does, and return it.

    Parameters
    ----------
    table : biom.Table, DataFrame, AmpliconTable or path
    tree : skbio.TreeNode or path, optional
        Rooted phylogeny of the ASVs.
    output_dir : path
        Folder of the run: model, metrics, report.
    metadata : DataFrame or path, optional
        Columns that options such as ``group_column`` name.
    **options
        Of `aam pretrain`, such as ``epochs``, ``embedding_dim`` or ``rarefy_depth``.

    Returns
    -------
    Model
        The encoder, which has no targets.

    Raises
    ------
    InputError
        Bad options or inputs, or a folder that holds other files.

    Examples
    --------
    >>> options = {"rarefy_depth": 300, "embedding_dim": 16, "attention_heads": 2, "epochs": 1}
    >>> encoder = aam.pretrain("table.biom", "tree.nwk", output_dir="encoder", **options)
    >>> encoder.embed("table.biom").shape
    (60, 16)
    """
    from aam.api.models import load

    given = configured(PretrainConfig(), options, "aam.pretrain").data
    if given.tables or given.trees or given.metadata:
        takes = "takes table, tree and metadata as parameters; `aam pretrain` takes several tables"
        raise InputError(f"aam.pretrain: {takes}")
    options |= {"output_dir": Path(output_dir), "tables": (path_of(table),)}
    options["trees"] = () if tree is None else (str(path_of(tree)),)
    config = options_with(PretrainConfig(), options, "aam.pretrain", metadata=metadata)
    with interrupts_as_in_python():
        run_pretraining(config, inputs=read_inputs(config, (), table, metadata, tree))
    machine = {name: getattr(config.runtime, name) for name in ("device", "threads")}
    machine["mixed_precision"] = config.runtime.mixed_precision
    return load(Path(output_dir) / "model", **machine)
