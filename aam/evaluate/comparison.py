"""The model beside baselines: metrics on the samples that both predict, and the corrected paired test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from aam.evaluate import bootstrap, metrics, paired_test
from aam.evaluate.baselines import Baseline
from aam.evaluate.bootstrap import Interval
from aam.evaluate.target_predictions import TargetPredictions

# A baseline with this share of the model's gain over the constant ties it, however small the p.
TYING_SHARE = 0.9

# A difference is shown where the corrected p is at most this.
SIGNIFICANT = 0.05

Outcome = Literal["better", "nearly tied", "tied", "worse", "untested"]


@dataclass(frozen=True)
class Comparison:
    """A baseline beside the model, on the samples that both predict.

    `metrics` are the baseline's and `model` those of the model; `difference` is the model's headline metric minus the
    baseline's, `p` that of the paired test over so many `groups`, and `corrected_p` the one corrected for all
    baselines of the target (Holm).
    """

    name: str
    trivial: bool
    constant: bool
    samples: int
    groups: int
    metrics: dict[str, Interval]
    model: dict[str, float]
    difference: Interval
    p: float
    corrected_p: float = math.nan


def headline(labels: Sequence[str]) -> str:
    """Return the metric that decides: MAE, AUROC of two classes, accuracy of more."""
    return {0: "mae", 2: "auroc"}.get(len(labels), "accuracy")


def _compare(predictions: TargetPredictions, baseline: Baseline, seed: int, repeats: int) -> Comparison | None:
    """Return one comparison; none where the two predict no sample in common."""
    key = headline(predictions.labels)
    in_both = predictions.has_both & metrics.has_prediction(baseline.predicted)
    if not in_both.any():
        return None
    part, other = predictions.at(in_both), baseline.predicted[in_both]
    resample = partial(bootstrap.resample_metrics, part.measure, part.truth)
    units = part.resampling_units
    of_model, of_baseline = (resample(values, units, seed, repeats) for values in (part.predicted, other))
    if baseline.constant and predictions.labels:
        # A constant ranks nothing, though pooling folds whose majority differs would say otherwise.
        flat = resample(np.full_like(other, 1 / len(predictions.labels)), units, seed, repeats)
        of_baseline |= {name: values for name, values in flat.items() if name.startswith(("auroc", "auprc"))}
    difference = of_model[key] - of_baseline[key]
    return Comparison(
        name=baseline.name,
        trivial=baseline.trivial,
        constant=baseline.constant,
        samples=int(in_both.sum()),
        groups=part.group_count,
        metrics=bootstrap.intervals(part, of_baseline),
        model={name: float(values[0]) for name, values in of_model.items()},
        difference=bootstrap.interval(difference, part.group_count, bootstrap.inflation_of_difference(part)),
        p=paired_test.paired_p(part, other, key, seed),
    )


def compare_with_baselines(
    predictions: TargetPredictions, baselines: Sequence[Baseline], seed: int, repeats: int = 1000
) -> tuple[Comparison, ...]:
    """Return each baseline beside the model, their rows those of `predictions`; p is corrected for all of them.

    A baseline that predicts none of the samples is left out.
    """
    compared = [_compare(predictions, baseline, seed, repeats) for baseline in baselines]
    comparisons = [comparison for comparison in compared if comparison is not None]
    corrected = paired_test.holm([comparison.p for comparison in comparisons])
    return tuple(replace(one, corrected_p=p) for one, p in zip(comparisons, corrected, strict=True))


def share_of_gain(comparison: Comparison, constant: Comparison, key: str) -> float:
    """Return what part of the model's gain over the constant the baseline has too; NaN where there is none."""
    start = constant.metrics[key].value
    gain = comparison.model[key] - start
    gains = gain < 0 if key in metrics.LOWER_IS_BETTER else gain > 0
    alike = comparison.samples == constant.samples
    return (comparison.metrics[key].value - start) / gain if gains and alike else math.nan


def outcome(comparison: Comparison, constant: Comparison, key: str) -> Outcome:
    """Return what the model is beside a baseline; they are tied where the corrected p is above `SIGNIFICANT`."""
    if math.isnan(comparison.corrected_p):
        return "untested"
    if comparison.corrected_p > SIGNIFICANT:
        return "tied"
    if (comparison.difference.value < 0) != (key in metrics.LOWER_IS_BETTER):
        return "worse"
    nearly = comparison.trivial and share_of_gain(comparison, constant, key) >= TYING_SHARE
    return "nearly tied" if nearly else "better"
