"""`aam audit`: what gives a target away, and which samples do not fit."""

from __future__ import annotations

import logging
from dataclasses import replace

import pandas as pd

from aam.api.apply import output_of, written
from aam.api.samples import CHECK_FILES, check_study, write_check
from aam.api.training import choose_folds
from aam.config import AuditConfig, FineTuneConfig, TargetConfig
from aam.data.checks import list_shallow_samples, log_largest_features
from aam.data.inputs import Inputs, MetadataLike, TableLike, options_with, read_inputs
from aam.data.study import MetadataColumns, make_study
from aam.engine.logger import write_line
from aam.errors import InputError
from aam.files.atomic import write_text
from aam.options import command_line, not_none
from aam.predict.audit import Audit, make_audit
from aam.report.audit import MOST_ROWS, audit_table, sentences_of, with_advice
from aam.report.charts import plain_lines
from aam.report.samples import sample_lines
from aam.typing import OptionValue

log = logging.getLogger("aam")

COLUMN_TABLE = "columns.tsv"
AUDIT_OUTPUTS = (COLUMN_TABLE, *CHECK_FILES)


def _read(config: AuditConfig, table: TableLike, metadata: MetadataLike) -> Inputs:
    """The table and the metadata, with the columns that are named."""
    divisions = config.group_column, config.study_column, config.time_column
    columns = filter(None, (config.metadata_column, *divisions))
    return read_inputs(config, [*columns], table, metadata)


def _audited(config: AuditConfig, inputs: Inputs) -> Audit:
    """The audit of the samples that have a value of the target, or of the columns of all."""
    target, data = config.metadata_column, config.data
    targets = () if target is None else (target,)
    divisions = tuple(filter(None, (data.group_column, data.study_column)))
    # `aam train` chooses its depth by its folds, and the audit uses the same depth.
    members = TargetConfig(targets, classifier=config.classifier, members=("presence", "forest"))
    required = [*targets, *filter(None, [data.study_column])]
    training = replace(data.divided_by_study(), validation_size=0.0)
    training = choose_folds(FineTuneConfig(training, members), inputs, required).data
    columns = MetadataColumns(required, divisions, targets, config.classifier)
    # With folds every sample is a training sample of some fold.
    by_folds = training.cv is not None or target is None
    samples = {name for part in inputs.tables for name in part.sample_ids} if by_folds else None
    study = make_study(inputs, training, None, config.seed, columns, samples)
    metadata, ids = not_none(study.metadata), study.table.sample_ids
    options = {"--metadata-column": target, "--group-column": data.group_column}
    for option, name in {**options, "--study-column": data.study_column}.items():
        if name is not None and len(set(metadata.values(name, ids))) < 2:
            raise InputError(f"{option}: {name!r} has one value in all {len(ids)} samples")
    for text in metadata.read_as_text(metadata.columns):
        log.warning("warning: %s", text)
    columns_of_groups = data.group_column, data.study_column, config.time_column
    return make_audit(study, target, config.classifier, *columns_of_groups)


def audit(
    table: TableLike,
    metadata: MetadataLike,
    metadata_column: str | None = None,
    *,
    group_column: str | None = None,
    **options: OptionValue,
) -> pd.DataFrame:
    """Show how well each metadata column predicts a target.

    Parameters
    ----------
    table : biom.Table, DataFrame, AmpliconTable or path
    metadata : DataFrame by sample id, or path
    metadata_column : str, optional
        The target; without one it is said which columns may name donors.
    group_column : str, optional
        Column whose values stay on one side of the split.
    **options
        Of `aam audit`, such as ``classifier``, ``study_column`` or ``rarefy_depth``.

    Returns
    -------
    DataFrame
        One row per column, the most dangerous first; columns as `aam.predict.audit.Audit`
        describes, and ``advice``.

    Raises
    ------
    InputError
        Files or columns that cannot be read, a target of one value.

    Examples
    --------
    >>> columns = aam.audit("table.biom", "metadata.tsv", "biome", group_column="subject")
    >>> "advice" in columns
    True
    """
    options |= {"metadata_column": metadata_column, "group_column": group_column}
    config = options_with(AuditConfig(), options, "aam.audit", table=table, metadata=metadata)
    return with_advice(_audited(config, _read(config, table, metadata)))


def next_lines(config: AuditConfig, audit: Audit) -> list[str]:
    """The command that comes next, under a line that says whether its groups are recommended."""
    files = {"table": config.table, "metadata": config.metadata}
    if audit.target is None:
        return ["Next:", f"    {command_line('audit', **files, metadata_column='COLUMN')}"]
    recommended = audit.recommended_group
    group = recommended or config.group_column or ("COLUMN" if audit.donors else None)
    command = command_line(
        "train",
        **files,
        metadata_column=audit.target,
        classifier=config.classifier,
        decimal=None if config.decimal == "." else config.decimal,
        missing_values=config.missing_values,
        rarefy_depth=config.rarefy_depth,
        missing="drop" if audit.has_gaps else None,
        group_column=group,
        study_column=config.study_column,
        exclude=config.exclude,
        output_dir="run",
    )
    return ["Next:" if recommended is None else "Recommended:", f"    {command}"]


def audit_study(config: AuditConfig) -> None:
    """Run `aam audit`: print the tables and what to do, and write them with ``--output``."""
    output = None if config.output is None else output_of("audit", config, AUDIT_OUTPUTS)
    inputs = _read(config, config.table, config.metadata)
    table, metadata = inputs.tables[0], not_none(inputs.metadata)
    list_shallow_samples(table)
    if config.metadata_column is None:
        log_largest_features(table)
    result = _audited(config, inputs)
    subjects = config.group_column or result.recommended_group
    check = check_study(table, metadata, subjects, config.time_column)
    rows = audit_table(result, most=MOST_ROWS)
    lines = [*plain_lines(rows), "", *sentences_of(result), "", *sample_lines(check, subjects)]
    for line in [*lines, ""]:
        write_line(line)
    if output is not None:
        text = with_advice(result).to_csv(sep="\t", index=False, float_format="%.4g")
        with written(output, config) as folder:
            write_text(folder / COLUMN_TABLE, text)
            write_check(folder, check)
        write_line(f"all columns and samples: {output.folder}")
    for line in next_lines(config, result):
        write_line(line)
