"""`aam evaluate`: predictions that aam wrote, compared with the truth."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from aam.api.apply import load_table, output_of, prepare_models, saw_unlabelled, written
from aam.config import CovariateConfig, DataConfig, EvaluateConfig
from aam.data.checks import list_groups
from aam.data.donors import divided_donors
from aam.data.splits import Split, check_groups, read_split
from aam.data.study import Study
from aam.data.table import excluded_ids
from aam.errors import InputError, problem, shown
from aam.evaluate.comparison import MAJORITY, MEDIAN, Baseline
from aam.evaluate.evaluation import evaluate
from aam.evaluate.metrics import has_prediction
from aam.evaluate.predictions import PredictionTable, read_predictions, write_predictions
from aam.files.output_folder import DOME, FIGURES
from aam.io.metadata import Metadata, align, read_metadata
from aam.options import not_none
from aam.predict.baselines import alone_in_blend, baselines_by_target, has_strong_baselines
from aam.predict.description import InputOptions
from aam.predict.prediction import NO_INTERVAL, predict_samples, without_limits
from aam.predict.saved_model import SavedModel
from aam.report.files import write_results
from aam.report.page import ReportData
from aam.report.training import TRANSDUCTIVE, dropped_by_class

log = logging.getLogger("aam")

OUTPUTS = ("predictions.tsv", "metrics.json", "report.html", DOME, *FIGURES)


def _judged_rows(
    table: PredictionTable, metadata: Metadata, split: Split | None, excluded: Collection[str]
) -> tuple[PredictionTable, list[str]]:
    """The rows of the samples, held out by a split if there is one and not `excluded`, that have a
    value of every target, and sentences about the others.

    Samples that no model has seen are what the split says they are.
    """
    targets, warnings = [spec.name for spec in table.specs], list[str]()
    asked = table.sample_ids if split is None else split.held_out
    asked = tuple(name for name in asked if name not in {*excluded})
    known = set(table.sample_ids)
    predicted = [name for name in asked if name in known]
    ids = align(metadata, predicted, targets, "drop")
    table = table.with_rows(ids, table.frame["note"])
    if split is not None:
        side = dict(zip(split.sample_ids, split.subsets, strict=True))
        subset = table.frame["subset"]
        sides = [side[name] for name in ids]
        table = table.with_columns({"subset": subset.mask(subset == "new", sides)})
    if unjudged := sorted({*predicted} - {*ids}):
        number = f"{len(unjudged)} of {len(predicted)} predicted samples"
        reason = f"has no row, or no value of {shown(targets)}, for {shown(unjudged, 3)}"
        warnings.append(f"{number} are in no metric: {metadata.source} {reason}")
    if unpredicted := sorted({*asked} - {*predicted}):
        number = f"{len(unpredicted)} held-out samples of --split"
        warnings.append(f"{number} have no prediction, such as {shown(unpredicted, 3)}")
    return table, warnings


def _check_truth(table: PredictionTable, metadata: Metadata) -> list[str]:
    """Sentences about classes of the metadata that no model predicts.

    Raises `InputError`: no sample has a prediction, or no class of a target is predicted.
    """
    problems, warnings = list[str](), list[str]()
    if not any(has_prediction(table.predicted(spec.name)).any() for spec in table.specs):
        notes = Counter(filter(None, table.texts("note"))).most_common(1)
        fault = f"no prediction of {len(table.sample_ids)} samples with a value of every target"
        fault += f" (note of {notes[0][1]}: {notes[0][0]})" if notes else ""
        raise InputError(problem("--predictions", fault, remedy="give the file that predicts them"))
    for spec in (spec for spec in table.specs if spec.labels):
        values = {*filter(None, metadata.values(spec.name, table.sample_ids))}
        unknown = sorted(values.difference(spec.labels))
        text = f"{metadata.source} has {shown(unknown)} in {spec.name!r}, predicted are "
        text += shown(spec.labels)
        if len(unknown) == len(values):
            remedy = "spell the classes as the model does, or name the column that it predicts"
            problems.append(problem("--metadata", text, remedy=remedy))
        elif unknown:
            warnings.append(f"{text}; samples of other classes are in no metric")
    if problems:
        raise InputError(*problems)
    return warnings


def _about_groups(
    table: PredictionTable, metadata: Metadata, column: str, split: Split | None
) -> list[str]:
    """A sentence about groups in several folds, whose other samples the model of each fold has
    learned from.

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


def _with_seen_groups(
    table: PredictionTable, models: Sequence[SavedModel], metadata: Metadata, column: str | None
) -> PredictionTable:
    """The table with the subset of new samples of groups that the models have learned from."""
    if column is None or any(saved.data.group_column != column for saved in models):
        return table
    seen = {name for saved in models for name in saved.notes.labelled_groups}
    is_seen = np.isin(metadata.groups(column, table.sample_ids), sorted(seen))
    subset = table.frame["subset"]
    return table.with_columns({"subset": subset.mask((subset == "new") & is_seen, "seen-group")})


def _with_scored_intervals(table: PredictionTable) -> tuple[PredictionTable, list[str]]:
    """The table without the intervals of samples that fitted them or trained the model, and a
    sentence about samples without an interval.
    """
    if all(table.limits(spec.name) is None for spec in table.specs):
        return table, []
    learned = table.frame["subset"].isin(["calibration", "train", "validation"])
    unscored = (learned | table.frame["note"].str.contains(NO_INTERVAL, regex=False)).sum()
    text = (
        f"no interval is scored on {unscored} of {len(learned)} samples, which fitted the "
        "intervals, trained the model or are unlike its training table"
    )
    return without_limits(table, set(learned.index[learned])), [text] * bool(unscored)


def _guesses(
    models: Sequence[SavedModel], table: PredictionTable
) -> dict[str, tuple[Baseline, ...]]:
    """The guess of each target, from the notes of the models about their training."""
    guesses: dict[str, tuple[Baseline, ...]] = {}
    for spec in table.specs if models else ():
        specs = [other for saved in models for other in saved.targets.specs]
        have_labels = all(x.labels == spec.labels for x in specs if x.name == spec.name)
        values = [saved.notes.guesses.get(spec.name) for saved in models]
        if have_labels and None not in values:
            mean = np.mean(np.asarray(values), axis=0)
            rows = np.broadcast_to(mean, (len(table.sample_ids), *mean.shape))
            guesses[spec.name] = (Baseline(MAJORITY if spec.labels else MEDIAN, rows),)
    return guesses


def _with_columns(
    data: DataConfig, config: EvaluateConfig, models: Sequence[SavedModel], metadata: Metadata
) -> DataConfig:
    """The options `data` with the columns by which predictions are judged: those that are asked
    for, else those of the training, as far as the metadata have them.
    """
    known = models[0].data if models else InputOptions()
    trained = (known.group_column, known.batch_column, known.study_column)
    group, batch, study = (name if name in metadata.columns else None for name in trained)
    if group is not None and config.group_column is None:
        text = "groups are those of %r, as in training; --group-column names another column"
        log.info(text, group)
    return replace(
        data,
        group_column=config.group_column or group,
        batch_column=config.batch_column or batch,
        study_column=study,
    )


def _covariates(models: Sequence[SavedModel]) -> CovariateConfig:
    """The covariates of all models."""
    inputs = [saved.covariates for saved in models]
    categorical = dict.fromkeys(name for covariates in inputs for name in covariates.categorical)
    numeric = dict.fromkeys(name for covariates in inputs for name in covariates.numeric)
    return CovariateConfig(tuple(categorical), tuple(numeric))


def _baselines(
    config: EvaluateConfig,
    models: Sequence[SavedModel],
    table: PredictionTable,
    study: Study | None,
    split: Split | None,
) -> Mapping[str, Sequence[Baseline]]:
    """The baselines of `aam train` on a split of the table, or what guessing is in training."""
    if study is None or split is None:
        return _guesses(models, table)
    strong, in_blend = has_strong_baselines(study, len(table.specs), 1), {}
    if strong:
        passes, runtime = config.prediction_passes, config.runtime
        in_blend = alone_in_blend(models, study, table.sample_ids, runtime, passes)
    return baselines_by_target(table, study, [split], strong, in_blend)


def _of_split(study: Study, split: Split | None) -> Study:
    """The samples of a split, or all if there is none.

    Raises `InputError`: the table has no sample of the split.
    """
    if split is None:
        return study
    divided = set(split.sample_ids)
    if ids := [name for name in study.table.sample_ids if name in divided]:
        return study.at(ids)
    fault = f"none of its {len(split.sample_ids)} samples is in the table"
    raise InputError(problem("--split", fault, remedy="give the split.tsv of this table"))


def _studies(models: Sequence[SavedModel], study: Study, split: Split | None) -> list[str] | None:
    """The study of each sample, relative to whose mean a model of studies predicts the samples of
    its split, as training did.
    """
    column, metadata = models[0].data.study_column, not_none(study.metadata)
    is_known = split is not None and column in metadata.columns
    return study.column(column, study.table.sample_ids) if is_known else None


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
    if config.predictions is not None:
        table = read_predictions(config.predictions)
        excluded = excluded_ids(config.exclude, table.sample_ids)
        log.info("predictions have no reads, so columns that may name donors are not looked for")
    else:
        models = prepare_models(config.model, config.runtime)
        study, warnings = load_table(models, config, config.table, metadata)
        excluded = study.in_state("excluded")
        study = replace(_of_split(study, split), metadata=metadata)
        studies = _studies(models, study, split)
        passes = config.prediction_passes, config.runtime
        table = predict_samples(models, study, *passes, predict_unlike=True, studies=studies)
    table, about_rows = _judged_rows(table, metadata, split, excluded)
    about_rows += _check_truth(table, metadata)
    data = DataConfig() if study is None else study.config
    data = _with_columns(data, config, models, metadata)
    metadata = metadata.nested(data.group_column, data.study_column)
    if (group := data.group_column) is not None:
        list_groups(metadata, group, table.sample_ids)
        warnings += _about_groups(table, metadata, group, split)
        table = _with_seen_groups(table, models, metadata, group)
    if study is not None and split is not None:
        names = [spec.name for spec in table.specs]
        columns = replace(study.columns, covariates=_covariates(models))
        study = replace(study, config=data, columns=columns)
        warnings += divided_donors(study.table, metadata, [split], data, names)
    warnings += about_rows
    if saw_unlabelled(models, table.sample_ids):
        warnings += TRANSDUCTIVE
    table, about_intervals = _with_scored_intervals(table)
    baselines = _baselines(config, models, table, study, split)
    targets = evaluate(table, metadata, data, baselines)
    results = ReportData(
        title="aam evaluate",
        task={"targets": ", ".join(spec.name for spec in table.specs)},
        data={"table": config.table, "predictions": config.predictions},
        split={"split": config.split or "none", "samples": targets[0].subset},
        targets=targets,
        dropped={} if study is None else dropped_by_class(study, targets),
        warnings=(*warnings, *about_intervals),
    )
    with written(output, config) as new:
        write_predictions(new / "predictions.tsv", table)
        write_results(new, results)
    log.info("report: %s", output.folder / "report.html")
