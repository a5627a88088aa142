"""Results of a run: held-out predictions beside baselines, with intervals, written."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aam.config_commands import ForestConfig
from aam.data.splits import Split, kfold
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.evaluate.comparison import MAJORITY, MEDIAN, OWN_MAJORITY, OWN_MEDIAN, Baseline
from aam.evaluate.intervals import (
    CONFORMAL_GROUPS,
    CONFORMAL_LEVEL,
    LEAST_GROUPS_IN_PART,
    Bounds,
    Conformal,
    Interval,
    too_few,
)
from aam.evaluate.metrics import Array
from aam.evaluate.new_studies import batches_held_out_whole
from aam.evaluate.predictions import PredictionTable
from aam.evaluate.target_predictions import Subset, TargetPredictions
from aam.files.atomic import write_text
from aam.io.metadata import Metadata
from aam.predict.baselines import (
    Columns,
    baselines_of,
    column_values,
    group_values,
    guess,
    rows_for,
    truth_of,
)
from aam.report import report, report_html
from aam.report.report import ReportData, TargetResult
from aam.report.samples import sample_figures, worse_levels
from aam.report.target_figures import target_figures

log = logging.getLogger("aam")

# Columns of the metadata of more values than this are not searched for levels with larger errors,
# nor folds of others, which no user asks about.
MOST_VALUES, FOLDS = 20, "fold"

# Without folds, intervals of held-out samples come from the others of so many parts of whole
# groups.
PARTS = 5


def _dropped_by_class(
    study: Study, spec: TargetSpec, metadata: Metadata
) -> dict[str, tuple[int, int]]:
    """Return samples of each class in the metadata of the table, and those that reach the depth."""
    kept, dropped = (
        Counter(metadata.values(spec.name, [name for name in names if name in metadata]))
        for names in (study.table.sample_ids, study.selection.dropped)
    )
    return {label: (kept[label] + dropped[label], kept[label]) for label in spec.labels}


def _predictions(
    table: PredictionTable, spec: TargetSpec, metadata: Metadata, columns: Columns
) -> TargetPredictions:
    quantiles = table.quantiles.get(spec.name)
    return TargetPredictions(
        sample_ids=table.sample_ids,
        truth=truth_of(metadata, spec, table.sample_ids),
        predicted=table.predicted(spec.name),
        labels=spec.labels,
        fold=np.array(table.folds) if len(set(table.folds)) > 1 else None,
        groups=group_values(metadata, columns.group, table.sample_ids),
        batch=column_values(metadata, columns.batch, table.sample_ids),
        limits=table.limits(spec.name),
        quantiles=quantiles,
        levels=() if quantiles is None else spec.quantiles,
    )


def with_conformal_intervals(
    table: PredictionTable, metadata: Metadata, columns: Columns, seed: int, bounded: bool = False
) -> tuple[PredictionTable, dict[str, Conformal]]:
    """Return held-out predictions with conformal intervals, and by target what makes those of new
    samples.

    All of these samples were held out of training and of early stopping. The interval of each comes
    from samples of other folds or, where there is one fold only, of other fifths of the groups;
    that of new samples from all. Where whole batches were held out, batches are the groups: an
    interval is then for a sample of a new batch. There are none, which is logged, below
    `CONFORMAL_GROUPS` groups, or where the other folds hold fewer than `LEAST_GROUPS_IN_PART`. With
    `bounded` (``--bounded-targets``) limits are cut at the bounds of the target, else at 0 where no
    value that they are fitted on is negative.
    """
    fitted = {}
    for spec in table.specs:
        if spec.kind != "numeric":
            continue
        predictions = _predictions(table, spec, metadata, columns)
        complete, of = predictions.complete(), ""
        if batches_held_out_whole(complete):
            complete, of = (
                dataclasses.replace(complete, groups=complete.batch),
                f" of {columns.batch}",
            )
        bounds = spec.bounds if bounded else None
        fit = Conformal.fit(complete, bounds=bounds or _floor(spec, complete))
        limits = (
            None
            if fit is None
            else _held_out_limits(complete, _parts(complete, seed), spec, bounds)
        )
        if limits is None or fit is None:
            few = too_few(complete.group_count, "held-out value" if of else "held-out group", of)
            log.warning(
                "%s: no %.0f %% intervals, %s: %d are needed, and %d outside of each fold",
                spec.name,
                100 * CONFORMAL_LEVEL,
                few,
                CONFORMAL_GROUPS,
                LEAST_GROUPS_IN_PART,
            )
            continue
        log.info(
            "%s: %.0f %% intervals fitted to the errors in %d groups, those of a sample without "
            "its own",
            spec.name,
            100 * CONFORMAL_LEVEL,
            fit.groups,
        )
        of_all = np.full((len(table.sample_ids), 2), math.nan)
        of_all[predictions.has_both] = limits
        table, fitted[spec.name] = table.with_limits(spec.name, of_all), fit
    return table, fitted


def _floor(spec: TargetSpec, known: TargetPredictions) -> Bounds | None:
    """Return where limits are cut: at 0 where no value of training, and none that they are fitted
    on, is negative.
    """
    # The bounds of several folds are of all their training samples, those held out of one among
    # them.
    trained = spec.bounds[0] if spec.bounds is not None and known.fold is None else 0.0
    lowest = min(trained, float(known.truth.min(initial=0.0)))
    return None if lowest < 0 else (0.0, None)


def _held_out_limits(
    complete: TargetPredictions, parts: Array, spec: TargetSpec, bounds: Bounds | None
) -> Array | None:
    """Return limits [N, 2] of each sample's interval, fitted on the samples of the other `parts`
    [N] of groups.
    """
    limits = np.empty((len(parts), 2))
    for part in np.unique(parts):
        inside = parts == part
        known = complete.at(~inside)
        fitted = Conformal.fit(
            known, least=LEAST_GROUPS_IN_PART, bounds=bounds or _floor(spec, known)
        )
        if fitted is None:
            return None
        limits[inside] = fitted.limits(complete.predicted[inside])
    return limits


def _parts(complete: TargetPredictions, seed: int) -> Array:
    """Return folds or, without them, five parts of whole groups, [N]."""
    if complete.fold is not None:
        return complete.fold
    groups = None if complete.groups is None else complete.groups.tolist()
    splits = kfold(complete.sample_ids, PARTS, groups, seed=seed)
    part_of = dict(zip(splits[0].sample_ids, splits[0].folds, strict=True))
    return np.array([part_of[name] for name in complete.sample_ids])


@dataclasses.dataclass(frozen=True)
class BaselineSource:
    """Where the baselines of a report come from.

    Trivial ones are learned on the `splits` of a study, with `forest` learned ones too, but for
    learners of the model: what each of these predicts alone is `in_blend`. `guesses` are what a
    model's notes say of guessing, by target, where nothing is learned.
    """

    study: Study | None = None
    splits: Sequence[Split] = ()
    forest: ForestConfig | None = None
    in_blend: Mapping[str, PredictionTable] = dataclasses.field(default_factory=dict)
    guesses: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def of(
        self, spec: TargetSpec, metadata: Metadata, columns: Columns, table: PredictionTable
    ) -> tuple[Baseline, ...]:
        """Return baselines of one target with the rows of the predictions `table`."""
        baselines: dict[str, Baseline] = {}
        if self.study is not None and self.splits:
            ids, fitted = baselines_of(
                self.study, self.splits, spec, metadata, columns, self.forest, self.in_blend
            )
            baselines = {one.name: rows_for(one, ids, table.sample_ids) for one in fitted}
        elif spec.name in self.guesses:
            guessed = np.asarray(self.guesses[spec.name], np.float64)
            shape = (len(table.sample_ids), *guessed.shape)
            constant = MAJORITY if spec.labels else MEDIAN
            baselines[constant] = Baseline(constant, np.broadcast_to(guessed, shape))
        for name, alone in self.in_blend.items():
            baseline = Baseline(name, alone.predicted(spec.name), trivial=False)
            baselines[name] = rows_for(baseline, alone.sample_ids, table.sample_ids)
        return tuple(baselines.values())


def _own_guess(predictions: TargetPredictions) -> list[Baseline]:
    """The median or majority class of the evaluated samples themselves."""
    if not predictions.has_both.any():
        return []
    name = OWN_MAJORITY if predictions.labels else OWN_MEDIAN
    own = guess(predictions.truth[predictions.has_both], len(predictions.labels))
    return [Baseline(name, np.broadcast_to(own, (len(predictions.truth), *own.shape)))]


def evaluate_targets(
    table: PredictionTable,
    metadata: Metadata,
    columns: Columns,
    baselines: BaselineSource | None = None,
    subset: Subset = "held-out",
    unlike: Mapping[str, str] | None = None,
    own_guess: bool = False,
) -> tuple[TargetResult, ...]:
    """Return the metrics of each target compared with those of its baselines.

    `subset` is what the samples were to the model; samples `unlike` training, with the reason, get
    no interval from `aam predict`. With `own_guess` the median or majority class of these very
    samples is a baseline.
    """
    source = baselines or BaselineSource()
    ids = table.sample_ids
    few = [
        name
        for name, cells in metadata.columns.items()
        if len(set(cells)) <= MOST_VALUES and name != FOLDS
    ]
    every = {
        name: values for name in few if (values := column_values(metadata, name, ids)) is not None
    }
    reported = [*columns.categories, *([] if columns.group is None else [columns.group])]
    parts = {
        name: values
        for name in reported
        if (values := column_values(metadata, name, ids)) is not None
    }
    results = []
    for spec in table.specs:
        predictions = _predictions(table, spec, metadata, columns)
        fold = "" if columns.fold in (None, FOLDS) else str(columns.fold)
        names = report.Names(spec.name, columns.batch or "batch", columns.group or "sample", fold)
        dropped = {} if source.study is None else _dropped_by_class(source.study, spec, metadata)
        levels = {name: values for name, values in {**every, **parts}.items() if name != spec.name}
        of_target = () if subset == "training" else source.of(spec, metadata, columns, table)
        if own_guess and subset != "training":
            of_target = (*of_target, *_own_guess(predictions))
        result = report.target_result(
            names, predictions, of_target, dropped, parts, subset, unlike=unlike
        )
        results.append(dataclasses.replace(result, levels=levels))
    return tuple(results)


def plain_json(value: object) -> object:
    """Return what JSON can hold of nested dicts of numbers: NaN and infinity become null."""
    if isinstance(value, dict):
        return {name: plain_json(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _values(metrics: dict[str, Interval]) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items()}


def _with_limits(metrics: dict[str, Interval]) -> dict[str, object]:
    return {name: dataclasses.asdict(metric) for name, metric in metrics.items()}


def _target_json(result: TargetResult) -> dict[str, object]:
    """Return what metrics.json holds of one target."""
    columns = {result.names.batch: result.batches, **result.parts}
    tests = {
        one.name: {
            "difference": dataclasses.asdict(one.difference),
            "p": one.p,
            "corrected_p": one.corrected_p,
        }
        for one in result.comparisons
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
        "quantiles": _with_limits(result.quantiles),
        "baselines": {one.name: _values(one.metrics) for one in result.comparisons},
        "tests": tests,
        "larger_errors": [dataclasses.asdict(one) for one in worse_levels(result)[1]],
        "verdict": list(result.sentences),
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
        placed += [
            (place, figure)
            for figure in (*target_figures(result), *sample_figures(result, results.around))
        ]
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
    text = json.dumps(plain_json({"targets": targets, "tables": tables}), indent=1) + "\n"
    write_text(folder / "metrics.json", text)
    for line in report.summary_lines(results):
        log.info("%s", line)
