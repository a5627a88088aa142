"""`aam audit`: which metadata columns give a target away, before a model is trained."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from aam.api.memory import metadata_from, option_of, sample_table
from aam.config import AuditConfig
from aam.data.rarefaction import matrix_of, rarefied_row
from aam.data.study import Inputs, MetadataColumns, Study, make_study, read_inputs
from aam.data.table import select_samples
from aam.device.rng import generator
from aam.engine.terminal import write_line
from aam.errors import InputError
from aam.files.output_folder import check_output_file
from aam.options import configured
from aam.report.audit import MOST_SAMPLES, audit_samples, audit_table
from aam.report.tables import plain_lines

log = logging.getLogger("aam")


def _audited(config: AuditConfig, inputs: Inputs | None) -> tuple[pd.DataFrame, list[str], bool]:
    """The data frame of an audit, its notes, and whether the target has classes."""
    target, data = config.metadata_column or "", config.data
    columns = MetadataColumns((target,), (), (target,), config.classifier)
    study = make_study(inputs or read_inputs(data, columns), data, None, config.seed, columns)
    metadata = study.metadata
    if metadata is None:
        raise InputError("audit: no metadata is given; pass the table of metadata")
    rows = _rows(study)
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    values = set(metadata.values(target, ids))
    if len(values) < 2:
        raise InputError(f"--metadata-column: {target!r} has one value in all {len(ids)} samples")
    classes = config.classifier or metadata.kinds[target] != "numeric"
    if not classes:
        metadata.numbers(target, ids)
    group = data.study_column or data.group_column
    groups = None if group is None else metadata.groups(group, ids)
    drawn = [rarefied_row(study.table, row, study.depth, config.seed, 0) for row in rows.tolist()]
    counts = sparse.csr_matrix(matrix_of(drawn, study.table.counts.shape[1]))
    frame, notes = audit_samples(
        select_samples(study.table, ids), counts, metadata, target, classes, groups
    )
    return frame, notes, classes


def _rows(study: Study) -> Any:
    """Rows of the samples that are audited: all, or a random part of a large study."""
    rows = np.arange(len(study.table.sample_ids))
    if len(rows) <= MOST_SAMPLES:
        return rows
    log.info("audit: %d of %d samples are looked at", MOST_SAMPLES, len(rows))
    return np.sort(generator(0, "audit").choice(rows, MOST_SAMPLES, replace=False))


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
        One row per column, the most dangerous first; columns as
        `aam.report.audit.audit_samples` describes.

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
    return _audited(config, inputs)[0]


def audit_study(config: AuditConfig) -> None:
    """Run `aam audit`: print the table and what to do, and write the table with ``--output``."""
    output: Path | None = config.output
    if output is not None:
        check_output_file(
            output, config.overwrite, [p for p in (config.table, config.metadata) if p]
        )
    frame, notes, classes = _audited(config, None)
    target = config.metadata_column or ""
    lines = plain_lines(audit_table(frame, target, classes))
    advice = [str(text) for text in frame["advice"] if text]
    for line in [*lines, "", *(advice or ["No column gives the target away."]), *notes]:
        write_line(line)
    if output is not None:
        frame.to_csv(output, sep="\t", index=False, float_format="%.4g")
        write_line(f"all columns: {output}")
