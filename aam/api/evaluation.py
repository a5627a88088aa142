"""`aam evaluate`: predictions compared with the truth, and how many more samples would help."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam.api.apply import load_table, output_of, prepare_models, saw_unlabelled, written
from aam.api.memory import inputs_of, options_with
from aam.api.training import load_folds
from aam.config import EvaluateConfig, FineTuneConfig
from aam.data.checks import warn_of_single_samples, warn_of_values
from aam.data.memory import MetadataLike, TableLike
from aam.data.splits import Split, check_groups, read_split
from aam.data.study import Study
from aam.data.table import excluded_ids
from aam.engine.run import read_record
from aam.errors import InputError, problem, shown
from aam.evaluate.comparison import MAJORITY, MEDIAN, Baseline
from aam.evaluate.evaluation import evaluate
from aam.evaluate.intervals import number
from aam.evaluate.metrics import has_prediction
from aam.evaluate.predictions import (
    Columns,
    EvaluatedSubset,
    PredictionTable,
    check_targets,
    read_predictions,
    truth_of,
    write_predictions,
)
from aam.files.output_folder import DOME, FIGURES, RUN
from aam.io.metadata import Metadata, align, read_metadata, spelling_key
from aam.options import not_none
from aam.predict.baselines import baselines_by_target
from aam.predict.prediction import NO_INTERVAL, predict_samples, unlike_training, without_limits
from aam.predict.saved_model import SavedModel
from aam.report.figures import surroundings
from aam.report.files import write_results
from aam.report.page import ReportData
from aam.report.training import TRANSDUCTIVE, dropped_by_class, learning_curves
from aam.typing import OptionValue

log = logging.getLogger("aam")

OUTPUTS = ("predictions.tsv", "metrics.json", "report.html", DOME, *FIGURES)

# Maximum number of pairs of spellings in a message.
MOST_ALIKE = 5


def _with_truth(
    table: PredictionTable, metadata: Metadata, split: Split | None, excluded: Collection[str]
) -> tuple[PredictionTable, list[str]]:
    """Return the rows of the samples, held out by a split if there is one and not `excluded`, that
    have a value of every target, and warnings about the others.
    """
    targets = [spec.name for spec in table.specs]
    held_out = set(table.sample_ids if split is None else split.held_out).difference(excluded)
    predicted = [name for name in table.sample_ids if name in held_out]
    ids, warnings = align(metadata, predicted, targets, "drop"), []
    table = table.with_rows(ids, table.frame["note"])
    if not any(has_prediction(table.predicted(target)).any() for target in targets):
        fault = f"none of {len(ids)} samples with a value of {shown(targets)} has a prediction: "
        remedy = "give the file that predicts these samples"
        notes = Counter(filter(None, table.texts("note"))).most_common(1)
        remedy += f" (note of {notes[0][1]}: {notes[0][0]})" if notes else ""
        fault += "all are empty or nan"
        raise InputError(problem("--predictions", fault, remedy=remedy))
    warnings += _other_classes(table, metadata)
    if unjudged := sorted({*predicted} - {*ids}):
        number = f"{len(unjudged)} of {len(predicted)} predicted samples"
        reason = f"has no row, or no value of {shown(targets)}, for {shown(unjudged, 3)}"
        warnings.append(f"{number} are in no metric: {metadata.source} {reason}")
    if unpredicted := sorted(held_out - {*predicted}):
        number = f"{len(unpredicted)} held-out samples of --split"
        warnings.append(f"{number} have no prediction, such as {shown(unpredicted, 3)}")
    if learned := table.texts("subset").count("train"):
        remedy = "--test-size or --cv of aam train holds samples out"
        if split is None:
            remedy = "RUN/predictions.tsv of a cross-validation is of held-out samples; for a run "
            remedy += "without folds, --split RUN/split.tsv leaves only the test samples"
        number = f"{learned} of {len(ids)} samples"
        warnings.append(
            f"{number} were seen in training, so these are not held-out metrics: {remedy}"
        )
    return table, warnings


def _other_classes(table: PredictionTable, metadata: Metadata) -> list[str]:
    """Warnings about classes of the metadata that the predictions lack.

    Raises `InputError`: no class of a target is in both, because of their spelling or in any
    target.
    """
    warnings, problems, judged = list[str](), list[str](), 0
    for spec in table.specs:
        values = {*filter(None, metadata.values(spec.name, table.sample_ids))}
        unknown = sorted(values.difference(spec.labels))
        if not unknown or not spec.labels:
            judged += 1
            continue
        label_of = {spelling_key(label): label for label in spec.labels}
        pairs = ((value, label_of.get(spelling_key(value))) for value in unknown)
        guesses = [
            f"{value!r} is probably {label!r}" for value, label in pairs if label is not None
        ]
        predicted = f"{spec.name!r} is predicted as {shown(spec.labels)}"
        text = f"{predicted}, and {metadata.source} has {shown(unknown)}"
        text += f"; {', '.join(guesses[:MOST_ALIKE])}: spell them alike" if guesses else ""
        if len(unknown) < len(values):
            judged += 1
            warnings += [f"{text}; these samples are in no metric"] if guesses else []
        elif guesses:
            problems.append(f"--metadata: {text}")
        else:
            warnings.append(f"{text}; no class is in both: is it the same column?")
    if problems or not judged:
        raise InputError(*(problems or [f"--metadata: {text}" for text in warnings]))
    return warnings


def _check_groups(
    table: PredictionTable, metadata: Metadata, column: str, split: Split | None
) -> list[str]:
    """Return a warning about groups in several folds, whose other samples the model of each fold
    has learned from.

    Raises `InputError`: groups in two subsets of the split.
    """
    if split is not None:
        values = metadata.values(column, metadata.ids)
        check_groups(split, dict(zip(metadata.ids, values, strict=True)))
    folds = pd.Series(table.texts("fold"), metadata.groups(column, table.sample_ids))
    number = folds[folds != ""].groupby(level=0).nunique()
    if not len(crossing := number.index[number > 1]):
        return []
    return [
        f"{len(crossing)} of {folds.index.nunique()} groups of {column} lie in several folds "
        f"({shown(crossing, 3)}): the models learned from other samples of the groups that they "
        f"predicted, and the metrics are too good for a new {column}; train with --group-column "
        f"{column}"
    ]


def _of_seen_groups(
    models: Sequence[SavedModel], table: PredictionTable, metadata: Metadata, column: str | None
) -> str:
    """A warning about samples of groups that the models have learned from; empty without any."""
    seen = {name for saved in models for name in saved.notes.get("labelled_groups", ())}
    if column is None or any(saved.data.group_column != column for saved in models):
        return ""
    groups = np.array(metadata.groups(column, table.sample_ids))
    is_seen = np.isin(groups, sorted(seen))
    if not is_seen.any():
        return ""
    few = shown(sorted({*groups[is_seen]}), 3)
    return (
        f"{is_seen.sum()} of {len(groups)} samples are of {len({*groups[is_seen]})} values of "
        f"{column} that training has seen ({few}): the metrics are too good for a new {column}; "
        "--exclude leaves samples out"
    )


def _subset(table: PredictionTable, split: Split | None, with_model: bool) -> EvaluatedSubset:
    """Subset of the samples in training, as far as the model's notes, the file and the split say.

    The members of a model learn from validation samples too, so that these are samples of training
    to it.
    """
    kinds = set(table.texts("subset"))
    if "train" in kinds:
        return "training"
    if "validation" in kinds or (split is not None and not split.ids("test")):
        return "validation"
    tested = kinds == {"test"} or all(table.texts("fold"))
    return "held-out" if with_model or split is not None or tested else "unknown"


def _of_unknown_folds(table: PredictionTable, config: EvaluateConfig) -> list[str]:
    """A warning about held-out samples whose fold a file does not say, unless a split is given or
    the file lies in the folder of a run with a single test subset; empty without any.
    """
    tested = table.frame["subset"] == "test"
    number = int((tested & (table.frame["fold"] == "")).sum())
    options = _options_of_run(config.predictions)
    if not number or config.split is not None or options.get("cv", "unknown") is None:
        return []
    return [
        f"{number} of {tested.sum()} held-out samples have no value in the column fold: if several "
        "models predicted them, AUROC and correlations compare values of different models, and the "
        "intervals are too narrow; copy the column from predictions.tsv of the run"
    ]


def _without_fitted_limits(table: PredictionTable) -> tuple[PredictionTable, list[str]]:
    """Return the table without the intervals of samples that fitted them or trained the model, and
    what was left out.

    Intervals of samples whose ``subset`` is test were fitted on other folds.
    """
    learned = table.frame["subset"].isin(["calibration", "train", "validation"])
    has_limits = any(table.limits(spec.name) is not None for spec in table.specs)
    if not learned.any() or not has_limits:
        return table, []
    number = f"no interval is scored on {learned.sum()} of {len(learned)} samples"
    warning = f"{number}, which fitted the intervals or trained the model"
    return without_limits(table, set(learned.index[learned])), [warning]


def _without_unlike(
    table: PredictionTable, metadata: Metadata, unlike: Mapping[str, str]
) -> tuple[PredictionTable, list[str]]:
    """The table without the intervals of samples that are `unlike` training, whose notes say why,
    and what share of the true values these intervals would have held.
    """
    ids, warnings = table.sample_ids, []
    for spec in table.specs:
        limits = table.limits(spec.name)
        withheld = np.array([name in unlike for name in ids])
        if limits is None or not (withheld := withheld & np.isfinite(limits[:, 0])).any():
            continue
        truth, (low, high) = truth_of(metadata, spec, ids), limits.T
        held = ((low <= truth) & (truth <= high))[withheld].mean()
        reason = unlike[ids[np.flatnonzero(withheld)[0]]]
        warnings.append(
            f"{spec.name}: {withheld.sum()} of {len(ids)} samples get no interval, for example "
            f"because {reason}; their intervals would have held {number(held)} of the true values"
        )
    if not warnings:
        return table, []
    reasons = [f"{NO_INTERVAL}{unlike[name]}" if name in unlike else "" for name in ids]
    pairs = zip(table.texts("note"), reasons, strict=True)
    notes = ["; ".join(filter(None, pair)) for pair in pairs]
    return without_limits(table, unlike).with_columns({"note": notes}), warnings


def _guesses(
    models: Sequence[SavedModel], table: PredictionTable
) -> dict[str, tuple[Baseline, ...]]:
    """The guess of each target, from the notes of the models about their training."""
    guesses: dict[str, tuple[Baseline, ...]] = {}
    for spec in table.specs:
        specs = [other for saved in models for other in saved.targets.specs]
        have_labels = all(x.labels == spec.labels for x in specs if x.name == spec.name)
        values = [saved.notes.get("guesses", {}).get(spec.name) for saved in models]
        if models and have_labels and None not in values:
            mean = np.mean(values, axis=0)
            rows = np.broadcast_to(mean, (len(table.sample_ids), *mean.shape))
            guesses[spec.name] = (Baseline(MAJORITY if spec.labels else MEDIAN, rows),)
    return guesses


def _group_column(
    config: EvaluateConfig, models: Sequence[SavedModel], metadata: Metadata, ids: Sequence[str]
) -> str | None:
    """Return the column of groups: what is asked for, else that of the training. Warn of samples
    without a group, each of which is its own.
    """
    column = config.group_column
    if column is None:
        options = {} if models else _options_of_run(config.predictions)
        column = models[0].data.group_column if models else options.get("group_column")
        if not isinstance(column, str) or column not in metadata.columns:
            return None
        text = "groups are those of %r, as in training; --group-column names another column"
        log.info(text, column)
    warn_of_single_samples(metadata, column, ids)
    return column


def _options_of_run(predictions: Path | None) -> dict[str, Any]:
    """Return the options of the run in whose folder a file of predictions lies, those of its data
    by their names; empty where it lies in none.
    """
    try:
        options = dict(read_record(not_none(predictions).parent / RUN)["config"])
    except (InputError, OSError):
        return {}
    return options | options["data"] if isinstance(options.get("data"), dict) else options


def _columns(models: Sequence[SavedModel], group: str | None, batch: str | None) -> Columns:
    """The columns of the report, with the covariates of the models."""
    inputs = [saved.covariates for saved in models]
    categorical = dict.fromkeys(name for covariates in inputs for name in covariates.categorical)
    numeric = dict.fromkeys(name for covariates in inputs for name in covariates.numeric)
    return Columns(group, batch, tuple(categorical), tuple(numeric))


def evaluate_table(config: EvaluateConfig) -> None:
    """Compare predictions with metadata and write run.json, metrics.json, report.html and
    predictions.tsv.
    """
    output = output_of("evaluate", config, OUTPUTS)
    metadata = read_metadata(not_none(config.metadata), config.decimal, config.missing_values)
    metadata.require(filter(None, [config.group_column, config.batch_column]))
    split = None if config.split is None else read_split(config.split)
    if split is not None and not split.held_out:
        raise InputError(f"--split: {config.split} holds no sample out; leave the option out")
    study: Study | None = None
    models, warnings = list[SavedModel](), list[str]()
    unlike: Mapping[str, str] = {}
    if config.predictions is not None:
        table = read_predictions(config.predictions, config.decimal)
        check_targets(config.predictions, table, metadata)
        excluded = excluded_ids(config.exclude, table.sample_ids)
    else:
        models = prepare_models(config.model, config.runtime)
        study, warnings = load_table(models, config, config.table, metadata)
        unlike = unlike_training(models[0], study)
        passes = config.prediction_passes, config.runtime
        table = predict_samples(models, study, *passes, unlike={}, predict_unlike=True)
        study, excluded = replace(study, metadata=metadata), study.selection.excluded
    table, about_samples = _with_truth(table, metadata, split, excluded)
    group = _group_column(config, models, metadata, table.sample_ids)
    warn_of_values(metadata, (), (), group, None)
    if group is not None:
        warnings += _check_groups(table, metadata, group, split)
    warnings += about_samples
    if saw_unlabelled(models, table.sample_ids):
        warnings += TRANSDUCTIVE
    columns = _columns(models, group, config.batch_column)
    subset = _subset(table, split, bool(models))
    if subset == "held-out" and (about_groups := _of_seen_groups(models, table, metadata, group)):
        subset = "seen-group"
        warnings.append(about_groups)
    warnings += _of_unknown_folds(table, config)
    table, about_intervals = _without_fitted_limits(table)
    table, about_unlike = _without_unlike(table, metadata, unlike)
    baselines: Mapping[str, Sequence[Baseline]] = _guesses(models, table)
    if split is not None and study is not None:
        baselines = baselines_by_target(table, study, [split], columns)
    targets = evaluate(table, metadata, columns, baselines, subset=subset, new_cohort=True)
    predictions = [target.predictions for target in targets]
    results = ReportData(
        title="aam evaluate",
        task={"targets": ", ".join(spec.name for spec in table.specs)},
        data={"table": config.table, "predictions": config.predictions},
        split={"split": config.split or "none", "samples": subset},
        targets=targets,
        around=None if study is None else surroundings(study.table, predictions),
        dropped={} if study is None else dropped_by_class(study, targets),
        warnings=(*warnings, *about_intervals, *about_unlike),
    )
    with written(output, config) as new:
        write_predictions(new / "predictions.tsv", table)
        write_results(new, results)
    log.info("report: %s", output.folder / "report.html")


def learning_curve(
    table: TableLike,
    metadata: MetadataLike,
    metadata_column: str,
    *,
    group_column: str | None = None,
    **options: OptionValue,
) -> pd.DataFrame:
    """Score the default model at shares of the training groups, as `aam train --learning-curve`.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
    metadata : DataFrame by sample id, or path
    metadata_column : str
        The target.
    group_column : str, optional
        Column of the groups (subjects) that are drawn; unset: single samples.
    **options
        Of `aam train`, such as ``cv``, ``classifier`` or ``rarefy_depth``.

    Returns
    -------
    DataFrame
        ``metric``, ``groups`` (mean number in training), ``draws``, and the metric as ``value``
        with its 95 % limits ``low`` and ``high``. A last row of 0 draws is what twice as many
        groups are expected to give, where `aam train` has a sentence about it.

    Raises
    ------
    InputError
        Bad options or inputs, no sample that is held out, or too few groups.

    Examples
    --------
    >>> options = {"group_column": "subject", "rarefy_depth": 300, "members": ["presence"]}
    >>> curve = aam.learning_curve("table.biom", "metadata.tsv", "ph", **options)
    >>> curve["metric"].unique().tolist()
    ['mae']
    """
    options |= {"metadata_column": (metadata_column,), "group_column": group_column}
    where = "aam.learning_curve"
    config = options_with(FineTuneConfig(), options, where, table=table, metadata=metadata)
    folds = load_folds(config, inputs=inputs_of(config, table, metadata, (metadata_column,)))
    curve = learning_curves(folds, [metadata_column])[metadata_column]
    if curve is None:
        raise InputError("aam.learning_curve: too few groups to draw shares of them")
    rows = curve.points.assign(metric=curve.metric)
    if curve.sentences(""):
        groups = 2 * float(rows["groups"].iloc[-1])
        expected = {"metric": curve.metric, "groups": groups, "draws": 0}
        rows.loc[len(rows)] = {**expected, **vars(curve.expected(groups))}
    return rows[["metric", "groups", "draws", "value", "low", "high"]]
