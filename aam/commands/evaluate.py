"""`aam evaluate`: predictions compared with the truth."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from aam.commands.apply import check_paths, load_models_and_table, predict_samples
from aam.config_commands import EvaluateConfig
from aam.data.metadata import Metadata, align, read_metadata
from aam.data.split import Split, check_groups
from aam.data.split_file import read_split
from aam.data.study import Study
from aam.engine.run_directory import check_output
from aam.errors import InputError, shown
from aam.evaluation.predictions import PredictionTable, read_predictions, write_predictions
from aam.evaluation.report import ReportData
from aam.evaluation.results import BaselineSource, evaluate_targets, write_results
from aam.evaluation.study_baselines import Columns
from aam.runtime.files import atomic_folder

log = logging.getLogger("aam")


def _with_truth(table: PredictionTable, metadata: Metadata, wanted: Sequence[str]) -> PredictionTable:
    names = [spec.name for spec in table.specs]
    known = set(wanted)
    ids = align(metadata, [name for name in table.sample_ids if name in known], names, "drop")
    return table.with_rows(ids, dict(zip(table.sample_ids, table.notes, strict=True)))


def evaluate_table(config: EvaluateConfig) -> None:
    """Compare predictions with metadata and write metrics.json, report.html and predictions.tsv."""
    metadata_path, folder = check_paths(config, metadata=config.metadata, output_dir=config.runtime.output_dir)
    if (not config.model) == (config.predictions is None):
        raise InputError("give --model and --table, or --predictions; one of the two")
    check_output(folder, config.runtime.overwrite)
    metadata = read_metadata(metadata_path)
    split: Split | None = None if config.split is None else read_split(config.split)
    study: Study | None = None
    warnings: list[str] = []
    seen: set[str] = set()
    if config.predictions is not None:
        table = read_predictions(config.predictions)
    else:
        models, study, warnings = load_models_and_table(config)
        table = predict_samples(models, study, config.prediction_passes, config.runtime)
        study = replace(study, metadata=metadata)
        seen = {name for saved in models for name in saved.notes["seen_samples"]}
    columns = Columns(config.group_column, config.batch_column, config.by_columns)
    metadata.require([n for n in (columns.group, columns.batch, *columns.categories) if n is not None])
    if split is not None and columns.group is not None:
        check_groups(split, {name: metadata.values(columns.group, [name])[0] for name in metadata.ids})
    lost = set() if split is None else set(split.held_out) - set(table.sample_ids)
    if lost:
        warnings.append(
            f"{len(lost)} held-out samples of {config.split} have no prediction, such as {shown(sorted(lost), 3)}"
        )
    table = _with_truth(table, metadata, table.sample_ids if split is None else split.held_out)
    if known := seen.intersection(table.sample_ids):
        warnings.append(
            f"{len(known)} of {len(table.sample_ids)} samples were seen in training, labelled or not; figures "
            "are too good: --split RUN/split.tsv leaves the test side only"
        )
    given = None if config.baselines is None else read_predictions(config.baselines)
    rivals = BaselineSource(study, () if split is None or study is None else (split,), given=given)
    results = ReportData(
        title="aam evaluate",
        task={"targets": ", ".join(spec.name for spec in table.specs)},
        data={"samples with truth": len(table.sample_ids), "table": config.table, "predictions": config.predictions},
        split={"split": config.split or "none: every sample counts, those of training too"},
        targets=evaluate_targets(table, metadata, columns, rivals),
        warnings=tuple(warnings),
    )
    with atomic_folder(folder) as new:
        write_predictions(new / "predictions.tsv", table)
        write_results(new, results)
    log.info("all tables: %s", folder / "report.html")
