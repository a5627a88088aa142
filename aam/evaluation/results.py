"""Results of a run: held-out predictions beside baselines, with intervals, written."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aam.config_commands import ForestConfig
from aam.data.metadata import Metadata
from aam.data.split import Split, kfold
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.evaluation import report, report_html
from aam.evaluation.baselines import Baseline
from aam.evaluation.bootstrap import Interval, Predictions
from aam.evaluation.conformal import LEVEL, Conformal
from aam.evaluation.metrics import Array
from aam.evaluation.predictions import PredictionTable
from aam.evaluation.report import ReportData, TargetResult, plain_json
from aam.evaluation.study_baselines import Columns, baselines_in, baselines_of, laid_out, levels, truth_of
from aam.runtime.files import write_text

log = logging.getLogger("aam")


def _losses(study: Study, spec: TargetSpec, metadata: Metadata) -> dict[str, tuple[int, int]]:
    """Samples of each class in the metadata of the table, and those that reach the depth."""
    kept, dropped = (
        Counter(metadata.values(spec.name, [name for name in names if name in metadata]))
        for names in (study.table.sample_ids, study.dropped)
    )
    return {label: (kept[label] + dropped[label], kept[label]) for label in spec.labels}


def _predictions(table: PredictionTable, spec: TargetSpec, metadata: Metadata, columns: Columns) -> Predictions:
    return Predictions(
        sample_ids=table.sample_ids,
        truth=truth_of(metadata, spec, table.sample_ids),
        predicted=table.values[spec.name] if spec.kind == "numeric" else table.probabilities[spec.name],
        labels=spec.labels,
        fold=np.array(table.folds) if len(set(table.folds)) > 1 else None,
        groups=levels(metadata, columns.group, table.sample_ids),
        batch=levels(metadata, columns.batch, table.sample_ids),
        limits=table.limits(spec.name),
    )


def with_intervals(
    table: PredictionTable, metadata: Metadata, columns: Columns, seed: int
) -> tuple[PredictionTable, dict[str, Conformal]]:
    """Held-out predictions with conformal intervals, and by target what makes those of new samples.

    All of these samples were held out of training and of early stopping. The interval of each comes from samples of
    other folds or, where there is one fold only, of other fifths of the groups; that of new samples from all. Where
    that would be fewer than `metrics.FEW_GROUPS` groups there are none, which is logged.
    """
    fitted = {}
    for spec in table.specs:
        if spec.kind != "numeric":
            continue
        predictions = _predictions(table, spec, metadata, columns)
        known = predictions.known()
        limits, fit = _held_out_limits(known, _parts(known, seed)), Conformal.fit(known)
        if limits is None or fit is None:
            drawn = len(np.unique(known.resampled))
            log.warning("%s: no %.0f %% intervals, %d held-out groups are too few", spec.name, 100 * LEVEL, drawn)
            continue
        every = np.full((len(table.sample_ids), 2), math.nan)
        every[predictions.complete] = limits
        table, fitted[spec.name] = table.with_limits(spec.name, every), fit
    return table, fitted


def _held_out_limits(known: Predictions, parts: Array) -> Array | None:
    """Limits [N, 2] of each sample's interval, fitted on the samples of the other `parts` [N] of whole groups."""
    limits = np.empty((len(parts), 2))
    for part in np.unique(parts):
        fitted = Conformal.fit(known.at(parts != part))
        if fitted is None:
            return None
        limits[parts == part] = fitted.limits(known.predicted[parts == part])
    return limits


def _parts(known: Predictions, seed: int) -> Array:
    """Folds or, without them, five parts of whole groups, [N]."""
    if known.fold is not None or len(np.unique(known.resampled)) < 5:
        return np.zeros(len(known.truth)) if known.fold is None else known.fold
    splits = kfold(known.sample_ids, 5, None if known.groups is None else known.groups.tolist(), seed=seed)
    place = dict(zip(splits[0].sample_ids, splits[0].folds, strict=True))
    return np.array([place[name] for name in known.sample_ids])


@dataclasses.dataclass(frozen=True)
class BaselineSource:
    """Baselines of a report: trivial ones on the `splits` of a study, with `forest` learned ones, those of a file."""

    study: Study | None = None
    splits: Sequence[Split] = ()
    forest: ForestConfig | None = None
    given: PredictionTable | None = None

    def of(
        self, spec: TargetSpec, metadata: Metadata, columns: Columns, table: PredictionTable
    ) -> tuple[Baseline, ...]:
        """Baselines of one target, laid out like the predictions `table`; those of the file come first."""
        found: dict[str, Baseline] = {}
        if self.study is not None and self.splits:
            ids, fitted = baselines_of(self.study, self.splits, spec, metadata, columns, self.forest)
            found = {one.name: laid_out(one, ids, table.sample_ids) for one in fitted}
        if self.given is not None:
            found |= {one.name: one for one in baselines_in(self.given, spec, table)}
        return tuple(found.values())


def evaluate_targets(
    table: PredictionTable, metadata: Metadata, columns: Columns, rivals: BaselineSource | None = None
) -> tuple[TargetResult, ...]:
    """Figures of every target beside those of its `rivals`."""
    results, rivals = [], rivals or BaselineSource()
    ids = table.sample_ids
    for spec in table.specs:
        predictions = _predictions(table, spec, metadata, columns)
        names = report.Names(spec.name, columns.batch or "batch", columns.group or "sample")
        losses = {} if rivals.study is None else _losses(rivals.study, spec, metadata)
        asked = [*columns.categories, *([] if columns.group is None else [columns.group])]
        parts = {name: values for name in asked if (values := levels(metadata, name, ids)) is not None}
        found = rivals.of(spec, metadata, columns, table)
        results.append(report.target_result(names, predictions, found, losses, parts))
    return tuple(results)


def write_results(folder: Path, results: ReportData) -> None:
    """Write report.html and metrics.json, and log what matters."""
    write_text(folder / "report.html", report_html.report_html(results))

    def plain(figures: dict[str, Interval]) -> dict[str, float]:
        return {name: figure.value for name, figure in figures.items()}

    targets = {
        result.names.target: {
            "pooled": {name: dataclasses.asdict(figure) for name, figure in result.pooled.items()},
            "folds": {fold: plain(values) for fold, (_, values) in result.folds.items()},
            "parts": {
                column: {level: {"samples": n, **plain(values)} for level, (n, values) in part.items()}
                for column, part in {result.names.batch: result.batches, **result.parts}.items()
                if part
            },
            "intervals": {name: dataclasses.asdict(figure) for name, figure in result.coverage.items()},
            "baselines": {one.name: plain(one.figures) for one in result.comparisons},
            "verdict": list(result.sentences),
        }
        for result in results.targets
    }
    tables = {t.title: [dict(zip(t.header, row, strict=True)) for row in t.rows] for t in results.tables}
    text = json.dumps(plain_json({"targets": targets, "tables": tables}), indent=1) + "\n"
    write_text(folder / "metrics.json", text)
    for line in report.summary_lines(results):
        log.info("%s", line)
