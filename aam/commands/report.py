"""`aam report`: several runs side by side on one page, or one run as an RO-Crate."""

from __future__ import annotations

import logging
from pathlib import Path

from aam.config_commands import ReportConfig
from aam.engine.run import read_record
from aam.errors import InputError, shown
from aam.files.atomic import write_text
from aam.files.output_folder import RUN
from aam.io.metadata import Metadata, read_metadata
from aam.options import given
from aam.report.crate import write_crate
from aam.report.run_comparison import Run, compare_runs_html, read_runs

log = logging.getLogger("aam")


def _metadata(config: ReportConfig) -> Metadata | None:
    """Return the metadata that is given, or that the first run has read and that is still there."""
    path, record = config.metadata, config.runs[0] / RUN
    run = read_record(record) if record.is_file() else {"inputs": {}, "config": {}}
    read, data = run["inputs"].get("metadata"), run["config"].get("data")
    if path is None and isinstance(read, dict):
        named = read.get("path")
        path = Path(named) if isinstance(named, str) and Path(named).is_file() else None
    decimal = data.get("decimal") if isinstance(data, dict) else None
    return None if path is None else read_metadata(path, "," if decimal == "," else ".")


def _group_column(config: ReportConfig, first: Run, metadata: Metadata | None) -> str | None:
    """Return the column of the groups, if the metadata has it."""
    column = config.group_column or first.option("data", "group_column")
    if metadata is not None and column is not None:
        metadata.require([column])
    return column


def report_runs(config: ReportConfig) -> None:
    """Write a page that shows runs side by side, and log which of them are shown to do better; or a
    crate of one run.

    Raises
    ------
    InputError
        No run, a folder that is none, or a column or all samples that the metadata lack; no
        finished run for a crate.
    """
    if config.crate is not None:
        write_crate(config.runs[0], config.crate)
        log.info("%s", config.crate)
        return
    metadata = _metadata(config)
    runs = read_runs(config.runs, metadata)
    predicted = runs[0].predictions
    if (
        metadata is not None
        and predicted is not None
        and not any(name in metadata for name in predicted.sample_ids)
    ):
        raise InputError(
            f"--metadata: {metadata.source} has none of the {len(predicted.sample_ids)} samples "
            f"that {config.runs[0]} "
            f"predicted: {shown(predicted.sample_ids, 2)}; name the file that holds their true "
            "values"
        )
    text, sentences = compare_runs_html(runs, metadata, _group_column(config, runs[0], metadata))
    write_text(given(config.output), text)
    for sentence in sentences:
        log.info("%s", sentence)
    log.info("%s", config.output)
