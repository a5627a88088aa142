"""Judge predictions: metrics, comparison with baselines, and the verdict, target by target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from aam.config import DataConfig
from aam.data.splits import fold_column
from aam.evaluate import comparison, intervals
from aam.evaluate.comparison import Baseline, Comparison
from aam.evaluate.conformal import conformal_coverage
from aam.evaluate.intervals import Levels, MetricIntervals
from aam.evaluate.predictions import (
    EvaluatedSubset,
    PredictionTable,
    TargetPredictions,
    guess,
    target_predictions,
)
from aam.evaluate.verdict import Verdict, make_verdict
from aam.io.metadata import Metadata

# The column of folds that a user made only to fix the folds.
FOLD_COLUMN = "fold"


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
    and their metrics; `coverage` is that of conformal intervals.
    """

    names: Names
    predictions: TargetPredictions
    metrics: MetricIntervals
    folds: Levels = field(default_factory=dict)
    batches: Levels = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    coverage: MetricIntervals = field(default_factory=dict)

    @property
    def subset(self) -> EvaluatedSubset:
        """What the judged samples were to the model."""
        return self.complete.evaluated_as

    @property
    def key(self) -> str:
        """The metric that decides."""
        return comparison.headline(self.predictions.labels)

    @cached_property
    def complete(self) -> TargetPredictions:
        """The samples that have both a truth and a prediction."""
        return self.predictions.complete()

    @property
    def in_new_batches(self) -> list[float]:
        """The metric that decides in each batch that has it, sorted; empty unless each of several
        batches was held out whole.
        """
        is_new = self.subset == "held-out" and self.complete.batches_held_out_whole
        # Samples without a batch are no batch.
        return self.sorted_key({x: y for x, y in self.batches.items() if x and is_new})

    def sorted_key(self, levels: Levels) -> list[float]:
        """The metric that decides at the levels that have it, sorted; empty below two."""
        values = [metrics[self.key].value for _, metrics in levels.values()]
        finite = sorted(value for value in values if math.isfinite(value))
        return finite if len(finite) > 1 else []

    @cached_property
    def verdict(self) -> Verdict:
        """The comparison with baselines in words, and what limits that statement."""
        return make_verdict(self)


def evaluate_target(
    names: Names,
    predictions: TargetPredictions,
    baselines: Sequence[Baseline] = (),
    *,
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
    seed, repeats : int
        Of the resampling.
    """
    fold, batch, by_level = predictions.fold, predictions.batch, intervals.metrics_by_level
    rivals = () if predictions.complete().evaluated_as == "training" else baselines
    return Evaluation(
        names=names,
        predictions=predictions,
        metrics=intervals.metrics_with_intervals(predictions, seed, repeats),
        folds={} if fold is None else by_level(predictions, fold, seed, 0),
        batches={} if batch is None else by_level(predictions, batch, seed, repeats),
        comparisons=comparison.compare_with_baselines(predictions, rivals, seed, repeats),
        coverage=conformal_coverage(predictions, seed, repeats),
    )


def own_guess(predictions: TargetPredictions) -> list[Baseline]:
    """Median or majority class of the evaluated samples themselves, as a baseline."""
    if not predictions.has_both.any():
        return []
    name = comparison.OWN_MAJORITY if predictions.labels else comparison.OWN_MEDIAN
    value = guess(predictions.truth[predictions.has_both], len(predictions.labels))
    return [Baseline(name, np.broadcast_to(value, (len(predictions.truth), *value.shape)))]


def evaluate(
    table: PredictionTable,
    metadata: Metadata,
    data: DataConfig,
    baselines: Mapping[str, Sequence[Baseline]],
) -> tuple[Evaluation, ...]:
    """Judge each target of a table of predictions by the columns that `data` names.

    `baselines` are given by target, with the rows of the table. The median or majority class of the
    samples themselves is a baseline too if they are of a new cohort, or if there is no other.
    """
    column = fold_column(data)
    fold = "" if column in (None, FOLD_COLUMN) else str(column)
    results, is_new = [], not {"new", "seen-group"}.isdisjoint(table.texts("subset"))
    for spec in table.specs:
        predictions = target_predictions(table, spec, metadata, data)
        rivals = [*baselines.get(spec.name, ())]
        rivals += own_guess(predictions) if is_new or not rivals else []
        names = Names(spec.name, data.batch_column or "batch", data.group_column or "sample", fold)
        results.append(evaluate_target(names, predictions, rivals))
    return tuple(results)
