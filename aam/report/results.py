"""Write the results of a run: report.html, figures/ and metrics.json."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from pathlib import Path

from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import Interval
from aam.files.atomic import write_text
from aam.report import report, report_html
from aam.report.report import ReportData
from aam.report.target_figures import figures_of

log = logging.getLogger("aam")


def plain_json(value: object) -> object:
    """Convert nested dicts of numbers for JSON: NaN and infinity become null."""
    if isinstance(value, dict):
        return {name: plain_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _values(metrics: dict[str, Interval]) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items()}


def _with_limits(metrics: dict[str, Interval]) -> dict[str, object]:
    return {name: dataclasses.asdict(metric) for name, metric in metrics.items()}


def _target_json(result: Evaluation) -> dict[str, object]:
    """Entry of one target in metrics.json."""
    columns = {result.names.batch: result.batches}
    tests = {
        comparison.name: {
            "difference": dataclasses.asdict(comparison.difference),
            "p": comparison.p,
            "corrected_p": comparison.corrected_p,
        }
        for comparison in result.comparisons
    }
    return {
        "subset": result.subset,
        "metrics": _with_limits(result.metrics),
        "folds": {fold: _values(values) for fold, (_, values) in result.folds.items()},
        "parts": {
            column: {
                level: {"samples": count, **_values(values)}
                for level, (count, values) in part.items()
            }
            for column, part in columns.items()
            if part
        },
        "intervals": _with_limits(result.coverage),
        "baselines": {
            comparison.name: _values(comparison.metrics) for comparison in result.comparisons
        },
        "tests": tests,
        "verdict": list(result.verdict.sentences),
    }


def write_figures(folder: Path, results: ReportData) -> None:
    """Write each figure of a report as SVG and PNG; those of several targets each in a folder of
    its own.
    """
    several = len(results.targets) > 1
    placed = [(folder, figure) for figure in (*results.encoder_figures, *results.curves)]
    for number, result in enumerate(results.targets, 1):
        name = re.sub(r"[^\w.-]+", "-", result.names.target).strip(".-")
        place = folder / f"{number}-{name}" if several else folder
        placed += [(place, figure) for figure in figures_of(results, result)]
    for place, figure in placed:
        place.mkdir(parents=True, exist_ok=True)
        figure.write(place)


def write_results(folder: Path, results: ReportData) -> None:
    """Write report.html, figures/ and metrics.json, and log what matters."""
    write_text(folder / "report.html", report_html.report_html(results))
    write_figures(folder / "figures", results)
    targets = {result.names.target: _target_json(result) for result in results.targets}
    tables = {
        t.title: [dict(zip(t.header, row, strict=True)) for row in t.rows] for t in results.tables
    }
    for name, curve in results.learning_curves.items():
        targets[name]["learning_curve"] = curve.points.to_dict("records")
    for name, audit in results.audits.items():
        targets[name]["audit"] = audit.frame.to_dict("records")
    text = json.dumps(plain_json({"targets": targets, "tables": tables}), indent=1) + "\n"
    write_text(folder / "metrics.json", text)
    for line in report.summary_lines(results):
        log.info("%s", line)
