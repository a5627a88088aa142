"""Metrics of studies that were held out whole: by study, and on average over studies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from aam.evaluate.comparison import headline
from aam.evaluate.intervals import Interval, metrics_with_intervals, number
from aam.evaluate.metrics import TITLES, sorted_levels
from aam.evaluate.target_predictions import TargetPredictions


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


def in_new_studies(
    predictions: TargetPredictions, seed: int = 0, repeats: int = 1000
) -> InNewStudies | None:
    """Return the headline metric by study, where every study was held out whole; none for fewer
    than two studies.

    A study's interval is over its groups, or over its samples where it is one group. A study
    without the metric, as one of a single class, is left out.
    """
    complete = predictions.complete()
    if not batches_held_out_whole(complete):
        return None
    metric, studies = headline(complete.labels), {}
    for level in sorted_levels(np.asarray(complete.batch)):
        part = complete.at(np.asarray(complete.batch) == level)
        one_group = part.groups is not None and len(np.unique(part.groups)) == 1
        part = replace(part, fold=None, groups=None if one_group else part.groups)
        value = metrics_with_intervals(part, seed, repeats)[metric]
        if math.isfinite(value.value):
            studies[str(level)] = (len(part.truth), value)
    if len(studies) < 2:
        return None
    mean = float(np.mean([value.value for _, value in studies.values()]))
    return InNewStudies(metric, studies, mean)


def batches_held_out_whole(predictions: TargetPredictions) -> bool:
    """Return whether no batch has samples in two folds, so that each was predicted without any
    sample of its own.
    """
    fold, batch = predictions.fold, predictions.batch
    if fold is None or batch is None:
        return False
    levels = np.unique(batch)
    return predictions.cross_validated and all(
        len(np.unique(fold[batch == level])) == 1 for level in levels
    )


def new_study_sentence(result: InNewStudies, name: str) -> str:
    """Say how well samples of a study never seen are predicted, and how much studies differ."""
    values = [value.value for _, value in result.studies.values()]
    return (
        f"In a new {name} the {TITLES[result.metric]} is {number(result.mean)} on average over "
        f"{len(values)} values of {name} with equal weights ({number(min(values))} to "
        f"{number(max(values))})."
    )
