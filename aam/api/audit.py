"""`aam audit`: which metadata columns give a target away, before a model is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from aam.api.memory import metadata_from, option_of, sample_table
from aam.config import AuditConfig
from aam.data.study import Inputs, MetadataColumns, make_study, read_inputs
from aam.engine.terminal import write_line
from aam.errors import InputError
from aam.files.output_folder import check_output_file
from aam.options import configured
from aam.report.audit import Audit, make_audit
from aam.report.tables import plain_lines


def _audited(config: AuditConfig, inputs: Inputs | None) -> Audit:
    """The audit of the samples that have a value of the target."""
    target, data = config.metadata_column or "", config.data
    columns = MetadataColumns((target,), (), (target,), config.classifier)
    study = make_study(inputs or read_inputs(data, columns), data, None, config.seed, columns)
    metadata, ids = study.metadata, study.table.sample_ids
    if metadata is None:
        raise InputError("audit: no metadata is given; pass the table of metadata")
    if len(set(metadata.values(target, ids))) < 2:
        raise InputError(f"--metadata-column: {target!r} has one value in all {len(ids)} samples")
    if not config.classifier and metadata.kinds[target] == "numeric":
        metadata.numbers(target, ids)
    return make_audit(study, target, config.classifier, data.study_column or data.group_column)


def audit(
    table: Any,
    metadata: Any,
    metadata_column: str,
    *,
    group_column: str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Show which metadata columns give a target away.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
    metadata : DataFrame by sample id, or path
    metadata_column : str
        The target.
    group_column : str, optional
        Column whose values stay on one side of the split.
    **options
        Of `aam audit`, such as ``classifier``, ``study_column`` or ``rarefy_depth``.

    Returns
    -------
    DataFrame
        One row per column, the most dangerous first; columns as `aam.report.audit.Audit` describes.

    Raises
    ------
    InputError
        Files or columns that cannot be read, a target of one value.
    """
    named: dict[str, Any] = {"table": option_of(table), "metadata": option_of(metadata)}
    named |= {"metadata_column": metadata_column, "group_column": group_column}
    config = configured(AuditConfig(), {**named, **options}, "aam.audit")
    described = metadata_from(metadata)
    inputs = Inputs((sample_table(table, need_sequences=False),), metadata=described)
    described.require([metadata_column])
    return _audited(config, inputs).frame


def audit_study(config: AuditConfig) -> None:
    """Run `aam audit`: print the table and what to do, and write the table with ``--output``."""
    output: Path | None = config.output
    if output is not None:
        check_output_file(
            output, config.overwrite, [p for p in (config.table, config.metadata) if p]
        )
    found = _audited(config, None)
    advice = found.advice or ["No column gives the target away."]
    for line in [*plain_lines(found.table(with_advice=False)), "", *advice, *found.notes]:
        write_line(line)
    if output is not None:
        found.frame.to_csv(output, sep="\t", index=False, float_format="%.4g")
        write_line(f"all columns: {output}")
