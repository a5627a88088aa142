"""`aam explain`: which ASVs, taxa and clades drive the predictions of a model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aam.api.explanation import explained, explanation_folder, write_explained
from aam.config_commands import ExplainConfig
from aam.engine.run import EXPLANATION
from aam.errors import InputError, shown
from aam.explain.page import features_html, importances_html
from aam.files.atomic import write_text
from aam.options import given
from aam.report.report_html import IMPORTANCES, with_importances

log = logging.getLogger("aam")


def _report_of_run(models: Sequence[Path]) -> Path:
    """Return the report of the run that is explained; the explanation goes beside it where --output-dir is not given.

    Raises
    ------
    InputError
        Several models, or a folder without a report that has a place for importances.
    """
    report = models[0] / "report.html"
    if len(models) > 1 or not report.is_file() or IMPORTANCES[0] not in report.read_text(encoding="utf-8"):
        raise InputError(
            f"--output-dir: not given, and --model is {shown([str(path) for path in models])}, expected one run of "
            "`aam train`, whose report.html takes the importances; name another folder with --output-dir"
        )
    return report


def _model_folders(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the model folders; of a cross-validation those of its folds, each of which has not seen some samples."""
    return tuple(folder for path in paths for folder in sorted(path.glob("fold-*/model")) or [path])


def explain_model(config: ExplainConfig) -> None:
    """Explain the predictions of models and write tables, an artifact, figures and a page for each target.

    Raises
    ------
    InputError
        Bad options or inputs, or models that predict nothing.
    """
    report = _report_of_run(config.model) if config.runtime.output_dir is None else None
    folder = given(config.runtime.output_dir) if report is None else report.with_name(EXPLANATION)
    output = explanation_folder(folder, config)
    output.check()
    config = replace(config, model=_model_folders(config.model))
    result = explained(config)
    write_explained(output, result)
    if report is not None:
        importances = importances_html(result.explanations, result.notes, config.top)
        features = {one.effects.spec.name: features_html(one, config.top) for one in result.explanations}
        write_text(report, with_importances(report.read_text(encoding="utf-8"), importances, features))
        log.info("%s shows the importances now", report)
