"""Judge predictions: metrics, comparison with baselines and the verdict, target by target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from aam.evaluate import intervals
from aam.evaluate.comparison import (
    OWN_MAJORITY,
    OWN_MEDIAN,
    Baseline,
    Comparison,
    compare_with_baselines,
    headline,
)
from aam.evaluate.conformal import conformal_coverage, conformal_sentences
from aam.evaluate.intervals import Interval, Levels, Metrics, metrics_with_intervals, number
from aam.evaluate.metrics import TITLES, sorted_levels
from aam.evaluate.predictions import (
    Columns,
    PredictionTable,
    Subset,
    TargetPredictions,
    guess,
    target_predictions,
)
from aam.evaluate.verdict import Verdict, verdict
from aam.io.metadata import Metadata

# The column of folds that a user made only to fix the folds.
FOLDS = "fold"


@dataclass(frozen=True)
class Names:
    """Names of a target, of the batches and groups of its samples, and of what divides the folds.

    `fold` is the metadata column whose values were held out whole; empty where folds were drawn.
    """

    target: str
    batch: str = "batch"
    group: str = "group"
    fold: str = ""


@dataclass(frozen=True)
class InNewStudies:
    """One metric in studies that were held out whole.

    Attributes
    ----------
    metric : str
    studies : mapping of str to (int, Interval)
        Number of samples of each study and its metric, with the interval of its own samples or
        groups.
    mean : float
        Of the studies, with equal weights.
    """

    metric: str
    studies: Mapping[str, tuple[int, Interval]]
    mean: float

    @property
    def spread(self) -> str:
        """The lowest and the highest value in words."""
        values = [value.value for _, value in self.studies.values()]
        return f"{number(min(values))} to {number(max(values))}"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The judgement of one target.

    `metrics` are those of all samples; `folds` and `batches` hold by level the number of samples
    and their metrics; `coverage` is that of conformal intervals; `dropped` holds by class the
    number of samples in the metadata and of those that reach the depth; `subset` is what the
    samples were to the model; `new_studies` are there if every batch was held out whole.
    """

    names: Names
    predictions: TargetPredictions
    metrics: Metrics
    folds: Levels
    batches: Levels
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    coverage: Metrics = field(default_factory=dict)
    dropped: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    subset: Subset = "held-out"
    new_studies: InNewStudies | None = None


def in_new_studies(
    predictions: TargetPredictions, seed: int = 0, repeats: int = 1000
) -> InNewStudies | None:
    """Return the headline metric by study, where every study was held out whole; none for fewer
    than two studies.

    A study's interval is over its groups, or over its samples where it is one group. A study
    without the metric, as one of a single class, is left out.
    """
    known, metric = predictions.complete(), headline(predictions.labels)
    if known.batch is None or not known.batches_held_out_whole:
        return None
    studies = {}
    for level in sorted_levels(known.batch):
        part = known.at(known.batch == level)
        groups = part.groups if part.group_count > 1 else None
        value = metrics_with_intervals(replace(part, fold=None, groups=groups), seed, repeats)[
            metric
        ]
        if math.isfinite(value.value):
            studies[str(level)] = (len(part.truth), value)
    mean = float(np.mean([value.value for _, value in studies.values()])) if studies else math.nan
    return InNewStudies(metric, studies, mean) if len(studies) > 1 else None


def own_guess(predictions: TargetPredictions) -> list[Baseline]:
    """Median or majority class of the evaluated samples themselves, as a baseline."""
    if not predictions.has_both.any():
        return []
    name = OWN_MAJORITY if predictions.labels else OWN_MEDIAN
    own = guess(predictions.truth[predictions.has_both], len(predictions.labels))
    return [Baseline(name, np.broadcast_to(own, (len(predictions.truth), *own.shape)))]


def _spread_sentence(names: Names, new: InNewStudies | None, folds: Levels, key: str) -> list[str]:
    """Say how the metric differs between studies, or values of a column, held out whole."""
    if new is not None:
        text = f"In a new {names.batch} the {TITLES[key]} is {number(new.mean)} on average over "
        over = f"{len(new.studies)} values of {names.batch} with equal weights"
        return [f"{text}{over} ({new.spread})."]
    if not names.fold or len(folds) < 2:
        return []
    values = sorted(metrics[key].value for _, metrics in folds.values())
    ends = f"{number(values[0])} to {number(values[-1])}"
    text = f"Each of {len(values)} values of {names.fold} was held out whole: {TITLES[key]} {ends}."
    return [f"{text} Expect a new one within this spread, not within the interval."]


def evaluate_target(
    names: Names,
    predictions: TargetPredictions,
    baselines: Sequence[Baseline] = (),
    *,
    subset: Subset = "held-out",
    dropped: Mapping[str, tuple[int, int]] | None = None,
    unlike: Mapping[str, str] | None = None,
    seed: int = 0,
    repeats: int = 1000,
) -> Evaluation:
    """Judge one target.

    Parameters
    ----------
    names : Names
    predictions : TargetPredictions
        Of N samples.
    baselines : sequence of Baseline
        With the same rows; samples that training has seen are not compared.
    subset, dropped
        As in `Evaluation`.
    unlike : mapping of sample to reason
        Samples unlike training, which get no interval when they are predicted.
    seed, repeats : int
        Of the resampling.
    """
    by_level, by = intervals.metrics_by_level, predictions
    folds = {} if by.fold is None else by_level(by, by.fold, seed, 0)
    batches = {} if by.batch is None else by_level(by, by.batch, seed, repeats)
    compared = () if subset == "training" else baselines
    comparisons = compare_with_baselines(predictions, compared, seed, repeats)
    coverage = conformal_coverage(predictions, seed, repeats)
    new = in_new_studies(predictions, seed, repeats) if subset == "held-out" else None
    found = verdict(predictions, comparisons, names.batch, subset)
    cautions = [*found.cautions, *conformal_sentences(predictions, coverage, unlike or {})]
    cautions += _spread_sentence(names, new, folds, headline(predictions.labels))
    if predictions.groups is None:
        cautions.append("No group column is named: samples of one subject count as independent.")
    return Evaluation(
        names=names,
        predictions=predictions,
        metrics=metrics_with_intervals(predictions, seed, repeats),
        folds=folds,
        batches=batches,
        comparisons=comparisons,
        verdict=replace(found, cautions=tuple(cautions)),
        coverage=coverage,
        dropped=dropped or {},
        subset=subset,
        new_studies=new,
    )


def evaluate(
    table: PredictionTable,
    metadata: Metadata,
    columns: Columns,
    baselines: Mapping[str, Sequence[Baseline]],
    *,
    subset: Subset = "held-out",
    dropped: Mapping[str, Mapping[str, tuple[int, int]]] | None = None,
    unlike: Mapping[str, str] | None = None,
    new_cohort: bool = False,
) -> tuple[Evaluation, ...]:
    """Judge each target of a table of predictions.

    `baselines` and `dropped` are given by target, with the rows of the table. In a `new_cohort` the
    median or majority class of its own samples is a baseline too.
    """
    fold = "" if columns.fold in (None, FOLDS) else str(columns.fold)
    results = []
    for spec in table.specs:
        predictions = target_predictions(table, spec, metadata, columns)
        known = [*baselines.get(spec.name, ()), *(own_guess(predictions) if new_cohort else ())]
        names = Names(spec.name, columns.batch or "batch", columns.group or "sample", fold)
        lost = (dropped or {}).get(spec.name)
        judged = evaluate_target(
            names, predictions, known, subset=subset, dropped=lost, unlike=unlike
        )
        results.append(judged)
    return tuple(results)
