"""`aam rf-baseline`: baselines on held-out samples."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from pathlib import Path

from aam.config import DataConfig
from aam.config_commands import RfBaselineConfig
from aam.contradictions import baseline_problems
from aam.data.division import divided, division_columns
from aam.data.split import Split, read_sides, restricted, twins_apart
from aam.data.study import Study, load_study
from aam.data.targets import fit_targets
from aam.errors import InputError, Problems
from aam.evaluation.bootstrap import Predictions
from aam.evaluation.learned_baselines import features_tried
from aam.evaluation.metrics import TITLES
from aam.evaluation.predictions import write_predictions
from aam.evaluation.report import Table, plain_json, plain_lines, with_limits
from aam.evaluation.study_baselines import Columns, as_prediction_table, baselines_of, levels, truth_of
from aam.evaluation.verdict import compare_with_baselines
from aam.options import out_of_range
from aam.runtime.files import check_writable, write_text

log = logging.getLogger("aam")


def _checked(config: RfBaselineConfig) -> tuple[Path, tuple[Path, Path] | None]:
    """Output and files of sample ids; `InputError` with every option that is missing or contradicts another."""
    given, problems = (config.train_samples, config.val_samples), Problems()
    problems.messages += out_of_range(config) + baseline_problems(config)
    if not config.metadata_column:
        problems.add("--metadata-column: not given; name the column to predict")
    if config.output is None:
        problems.add("--output: not given; name the .tsv of the predictions")
    try:
        features_tried(config.forest.max_features)
    except InputError as error:
        problems.extend(error)
    problems.raise_if_any()
    output = Path(config.output or "")
    for path in (output, output.with_suffix(".json")):
        check_writable(path, config.overwrite)
    return output, None if given[0] is None or given[1] is None else (given[0], given[1])


def _splits(config: RfBaselineConfig, study: Study, files: tuple[Path, Path] | None) -> tuple[Split, ...]:
    if files is None:
        splits = divided(study, config.data, config.seed)
    else:
        named = read_sides(*files)
        present = sorted(set(named.sample_ids) & set(study.table.sample_ids))
        if lost := len(named.sample_ids) - len(present):
            log.warning("%d of %d samples named are not in the table at this depth", lost, len(named.sample_ids))
        splits = (restricted(named, present),)
    if not any(split.held_out for split in splits):
        raise InputError("no sample is held out; pass --cv, --split, --split-column, or a --test-size above 0")
    for split in splits:
        for said in twins_apart(study.table, split):
            log.warning("warning: %s", said)
    return splits


def rf_baseline(config: RfBaselineConfig) -> None:
    """Predict held-out samples with every baseline, write the predictions and, beside them, the figures.

    Raises `InputError`: options, files, targets or splits that cannot be used, before any long work.
    """
    output, files = _checked(config)
    data = DataConfig(**{item.name: getattr(config.data, item.name) for item in dataclasses.fields(config.data)})
    names = config.metadata_column
    wanted = [*names, *division_columns(data)]
    study = load_study(data, sys.maxsize, config.seed, wanted, names, config.classifier)
    if study.metadata is None:
        raise InputError("--metadata: not given; name the sample metadata")
    splits = _splits(config, study, files)
    metadata, columns = study.metadata, Columns(data.group_column, data.batch_column)
    specs = fit_targets(metadata, names, study.table.sample_ids, classifier=config.classifier, transform="none").specs
    every, figures = [], {}
    for spec in specs:
        ids, found = baselines_of(study, splits, spec, metadata, columns, config.forest)
        every.append((spec, found))
        group = levels(metadata, columns.group, ids)
        constant = Predictions(ids, truth_of(metadata, spec, ids), found[0].predicted, spec.labels, groups=group)
        rows = compare_with_baselines(constant, found, config.seed)
        keys = list(rows[0].figures)
        cells = ((one.name, str(one.samples), *(with_limits(one.figures[key]) for key in keys)) for one in rows)
        for line in plain_lines(Table(spec.name, ("", "samples", *(TITLES[key] for key in keys)), tuple(cells))):
            log.info("%s", line)
        figures[spec.name] = {one.name: {key: dataclasses.asdict(one.figures[key]) for key in keys} for one in rows}
    write_predictions(output, as_prediction_table(ids, every, splits))
    write_text(output.with_suffix(".json"), json.dumps(plain_json({"baselines": figures}), indent=1) + "\n")
    log.info("%s: for `aam evaluate --baselines`", output)
