"""Judge predictions: metrics, comparison with baselines and the verdict, target by target."""

from __future__ import annotations

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
from aam.evaluate.intervals import Metrics, number
from aam.evaluate.metrics import TITLES, Array
from aam.evaluate.new_studies import InNewStudies, in_new_studies, new_study_sentence
from aam.evaluate.predictions import PredictionTable
from aam.evaluate.target_predictions import (
    Columns,
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
    folds: Mapping[str, tuple[int, Metrics]]
    batches: Mapping[str, tuple[int, Metrics]]
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    coverage: Metrics = field(default_factory=dict)
    dropped: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    subset: Subset = "held-out"
    new_studies: InNewStudies | None = None


def own_guess(predictions: TargetPredictions) -> list[Baseline]:
    """Median or majority class of the evaluated samples themselves, as a baseline."""
    if not predictions.has_both.any():
        return []
    name = OWN_MAJORITY if predictions.labels else OWN_MEDIAN
    own = guess(predictions.truth[predictions.has_both], len(predictions.labels))
    return [Baseline(name, np.broadcast_to(own, (len(predictions.truth), *own.shape)))]


def _spread_of_folds(names: Names, folds: Mapping[str, tuple[int, Metrics]], key: str) -> list[str]:
    """Describe how the metric differs between values of a column that were held out whole."""
    if not names.fold or len(folds) < 2:
        return []
    values = sorted(metrics[key].value for _, metrics in folds.values())
    return [
        f"Each of {len(values)} values of {names.fold} was held out whole: {TITLES[key]} "
        f"{number(values[0])} to {number(values[-1])}. Expect a new one within this spread, not "
        "within the interval."
    ]


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

    def by(levels: Array | None, repeats: int) -> Mapping[str, tuple[int, Metrics]]:
        if levels is None:
            return {}
        return intervals.metrics_by_level(predictions, levels, seed, repeats)

    compared = () if subset == "training" else baselines
    comparisons = compare_with_baselines(predictions, compared, seed, repeats)
    coverage = conformal_coverage(predictions, seed, repeats)
    new_studies = in_new_studies(predictions, seed, repeats) if subset == "held-out" else None
    folds = by(predictions.fold, 0)
    found = verdict(predictions, comparisons, names.batch, subset)
    more = conformal_sentences(predictions, coverage, unlike or {})
    if new_studies is not None:
        more.append(new_study_sentence(new_studies, names.batch))
    else:
        more += _spread_of_folds(names, folds, headline(predictions.labels))
    if predictions.groups is None:
        more.append("No group column is named: samples of one subject count as independent.")
    return Evaluation(
        names=names,
        predictions=predictions,
        metrics=intervals.metrics_with_intervals(predictions, seed, repeats),
        folds=folds,
        batches=by(predictions.batch, repeats),
        comparisons=comparisons,
        verdict=replace(found, cautions=(*found.cautions, *more)),
        coverage=coverage,
        dropped=dropped or {},
        subset=subset,
        new_studies=new_studies,
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
        known = list(baselines.get(spec.name, ()))
        result = evaluate_target(
            Names(spec.name, columns.batch or "batch", columns.group or "sample", fold),
            predictions,
            [*known, *(own_guess(predictions) if new_cohort else ())],
            subset=subset,
            dropped=(dropped or {}).get(spec.name),
            unlike=unlike,
        )
        results.append(result)
    return tuple(results)
