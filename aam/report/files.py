"""The files of a report, and what a terminal shows of it."""

from __future__ import annotations

import json
import logging
import re
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from aam.engine.run import read_record
from aam.files.atomic import write_text
from aam.files.output_folder import DOME, PAGE, RUN
from aam.report.audit import with_advice
from aam.report.charts import plain_lines, printable
from aam.report.page import ReportData, page_data, page_html
from aam.report.record import texts

log = logging.getLogger("aam")

# Maximum number of cautions on a terminal, which has so many columns; the report has all.
MOST_CAUTIONS, TERMINAL_WIDTH = 4, 80


def write_figures(folder: Path, results: ReportData) -> None:
    """Write each figure of a report as SVG and PNG; those of several targets each in a folder of
    its own.
    """
    placed = {folder: [*results.encoder_figures, *results.curves]}
    for at, result in enumerate(results.targets, 1):
        name = re.sub(r"[^\w.-]+", "-", result.names.target).strip(".-")
        place = folder / f"{at}-{name}" if len(results.targets) > 1 else folder
        placed[place] = [*placed.get(place, []), *results.figures_of_target[result.names.target]]
    for place, figures in placed.items():
        for figure in figures:
            place.mkdir(parents=True, exist_ok=True)
            figure.write(place)


def summary_lines(results: ReportData, page: Mapping[str, Any]) -> list[str]:
    """Lines of a run for the terminal: results and warnings, as its page shows them, and tables of
    a pretrained encoder.
    """
    pairs = zip(results.records, page["targets"], strict=True)
    targets = [{**record, **shown} for record, shown in pairs]
    template = texts().get_template("terminal.j2")
    text = template.render(page, targets=targets, most_cautions=MOST_CAUTIONS)
    wrap = textwrap.TextWrapper(
        TERMINAL_WIDTH, subsequent_indent="    ", break_on_hyphens=False
    ).wrap
    wrapped = [part for line in text.split("\n") for part in wrap(printable(line))]
    return [*wrapped, *(line for table in results.tables for line in plain_lines(table))]


def with_record(results: ReportData, folder: Path) -> ReportData:
    """Add the run.json of a folder, if there is one, and the time since its start."""
    if not (folder / RUN).is_file():
        return results
    record = read_record(folder / RUN)
    started = datetime.strptime(record["started"], "%Y-%m-%dT%H:%M:%S%z")
    return replace(results, record=record, seconds=max(time.time() - started.timestamp(), 0.0))


def write_results(folder: Path, results: ReportData) -> None:
    """Write report.html, figures/, dome.json and metrics.json, and log what matters.

    If `aam explain` may add importances to the page, what it shows is written to report.json.
    """
    results = with_record(results, folder)
    page = page_data(results)
    write_text(folder / "report.html", page_html(page))
    if results.explain_command:
        write_text(folder / PAGE, json.dumps(page, ensure_ascii=False) + "\n")
    write_figures(folder / "figures", results)
    if answers := results.described[1]:
        write_text(folder / DOME, json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
    targets = {record["target"]: dict(record) for record in results.records}
    for name, curve in results.learning_curves.items():
        targets[name]["learning_curve"] = curve.points.to_dict("records")
    for name, audit in results.audits.items():
        targets[name]["audit"] = with_advice(audit).to_dict("records")
    tables = {}
    for table in results.tables:
        tables[table.title] = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    text = to_json({"targets": targets, "tables": tables}, indent=1, inf_nan_mode="null").decode()
    write_text(folder / "metrics.json", f"{text}\n")
    for line in summary_lines(results, page):
        log.info("%s", line)
