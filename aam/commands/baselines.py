"""`aam baselines` (also `aam rf-baseline`): baselines on held-out samples."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aam.config_commands import RfBaselineConfig
from aam.data.splits import (
    Split,
    check_groups,
    complete_groups,
    duplicates_across_subsets,
    make_splits,
    read_subsets,
    restricted,
    split_columns,
)
from aam.data.study import MetadataColumns, Study, load_study
from aam.data.targets import TargetSpec, fit_targets
from aam.errors import InputError
from aam.evaluate.comparison import Baseline
from aam.evaluate.intervals import metrics_with_intervals, with_limits
from aam.evaluate.metrics import TITLES
from aam.evaluate.predictions import write_predictions
from aam.evaluate.target_predictions import TargetPredictions
from aam.files.atomic import file_digest, write_text
from aam.files.output_folder import check_output_file
from aam.options import files_read, given
from aam.predict.baselines import (
    Columns,
    Provenance,
    as_prediction_table,
    baselines_of,
    column_values,
    split_digest,
    truth_of,
)
from aam.report.results import plain_json
from aam.report.tables import Table, plain_lines

log = logging.getLogger("aam")


def _split_of_files(study: Study, files: tuple[Path, Path], group_column: str | None) -> Split:
    """Return the split that two files of sample ids make; groups may not be in both."""
    named = read_subsets(*files)
    present = sorted(set(named.sample_ids) & set(study.table.sample_ids))
    if absent := len(named.sample_ids) - len(present):
        log.warning(
            "%d of %d samples named are not in the table at this depth",
            absent,
            len(named.sample_ids),
        )
    split = restricted(named, present)
    if group_column is not None and study.metadata is not None:
        check_groups(
            split,
            dict(zip(present, complete_groups(study.metadata, group_column, present), strict=True)),
        )
    return split


def _splits(
    config: RfBaselineConfig, study: Study, files: tuple[Path, Path] | None
) -> tuple[Split, ...]:
    if files is None:
        splits = make_splits(study, config.data, config.seed)
    else:
        splits = (_split_of_files(study, files, config.data.group_column),)
    if not any(split.held_out for split in splits):
        raise InputError(
            "no sample is held out; pass --cv, --split, --split-column, or a --test-size above 0"
        )
    for split in splits:
        for warning in duplicates_across_subsets(study.table, split, config.data.group_column):
            log.warning("warning: %s", warning)
    return splits


def _metrics(
    study: Study,
    spec: TargetSpec,
    ids: Sequence[str],
    baselines: Sequence[Baseline],
    columns: Columns,
    fold: dict[str, str],
) -> dict[str, object]:
    """Log a table of the metrics of the baselines of one target, and return them for JSON."""
    if study.metadata is None:
        raise ValueError("a study of targets has metadata")
    folds = np.array([fold.get(name, "") for name in ids])
    truth = truth_of(study.metadata, spec, ids)
    groups = column_values(study.metadata, columns.group, ids)
    result: dict[str, object] = {}
    rows = []
    for baseline in baselines:
        predictions = TargetPredictions(
            tuple(ids), truth, baseline.predicted, spec.labels, fold=folds, groups=groups
        ).complete()
        metrics = metrics_with_intervals(predictions, study.seed)
        header = ("", "samples", *(TITLES[name] for name in metrics))
        rows.append(
            (baseline.name, str(len(predictions.truth)), *map(with_limits, metrics.values()))
        )
        result[baseline.name] = {
            name: dataclasses.asdict(metric) for name, metric in metrics.items()
        }
    for line in plain_lines(Table(spec.name, header, tuple(rows))):
        log.info("%s", line)
    return result


def rf_baseline(config: RfBaselineConfig) -> None:
    """Predict held-out samples with all baselines, write the predictions and, beside them, their
    metrics.

    Raises `InputError`: options, files, targets or splits that cannot be used, before any long
    work.
    """
    output, files = given(config.output), None
    check_output_file(output.with_suffix(".json"), config.overwrite, files_read(config).values())
    if config.train_samples is not None and config.val_samples is not None:
        files = config.train_samples, config.val_samples
    if files is None:
        config = dataclasses.replace(config, data=config.data.divided_by_study())
    data, names = config.data, config.metadata_column
    columns = _columns(config)
    study = load_study(
        data,
        sys.maxsize,
        config.seed,
        MetadataColumns(
            [*names, *split_columns(data)], columns.covariates, names, config.classifier
        ),
        training=None if files is None else read_subsets(*files).ids("train"),
    )
    metadata = given(study.metadata)
    splits = _splits(config, study, files)
    fitted = fit_targets(
        metadata, names, study.table.sample_ids, classifier=config.classifier, transform="none"
    )
    fold = {name: split.test_fold for split in splits for name in split.held_out}
    of_targets, metrics = [], {}
    for spec in fitted.specs:
        ids, baselines = baselines_of(study, splits, spec, metadata, columns, config.forest)
        of_targets.append((spec, baselines))
        metrics[spec.name] = _metrics(study, spec, ids, baselines, columns, fold)
    write_predictions(output, as_prediction_table(ids, of_targets, splits))
    made_from = Provenance(
        depth=study.depth,
        seed=study.seed,
        table=None if data.table is None else file_digest(data.table),
        splits=tuple(split_digest(split) for split in splits),
        covariates=columns.covariates,
    )
    content = plain_json({"baselines": metrics, "made_from": dataclasses.asdict(made_from)})
    write_text(output.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    log.info("%s: for `aam evaluate --baselines`", output)


def _columns(config: RfBaselineConfig) -> Columns:
    """Return the columns of groups, batches and covariates."""
    normalized = () if config.normalize_by is None else (config.normalize_by,)
    return Columns(
        config.data.group_column,
        config.data.batch_column,
        categorical=tuple(dict.fromkeys((*config.categorical_columns, *normalized))),
        numeric=config.numeric_columns,
        study=config.data.study_column,
    )
