"""Learning curves: the error of the default model by the number of training groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from aam.device.rng import generator
from aam.evaluate.comparison import headline
from aam.evaluate.intervals import (
    FEW_GROUPS,
    Interval,
    inflation_of_difference,
    interval,
    resample_metrics,
    with_limits,
)
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES
from aam.evaluate.predictions import TargetPredictions
from aam.options import not_none
from aam.predict.baselines import TargetData
from aam.predict.blend import DEFAULT_MEMBERS, MEMBERS, mean_of
from aam.predict.estimator import CountsEstimator
from aam.predict.out_of_fold import Fold
from aam.typing import Array, Floats, Rows

# Shares of the training groups, and how often each is drawn.
CURVE_DRAWS = {0.2: 5, 0.35: 4, 0.5: 3, 0.7: 2, 1.0: 1}

# Minimum number of groups of a share, and of a class if a group has one class; minimum number of
# shares of a power law.
LEAST_CURVE_GROUPS, LEAST_OF_CLASS, LEAST_SHARES = 6, 2, 3

CURVE_REPEATS, CURVE_PASSES = 400, 3

EXPONENTS = np.arange(0.1, 1.51, 0.1)


def fit_power_laws(sizes: Array, errors: Array) -> Array:
    """Parameters a, b, c [R, 3] of error = a + b size^-c for errors [R, S] at sizes [S].

    a and b are not negative; the exponent is the best of `EXPONENTS`. Sizes are weights: the errors
    of small sizes vary more.
    """
    best, least = np.zeros((len(errors), 3)), np.full(len(errors), np.inf)
    share = sizes / sizes.sum()
    for exponent in EXPONENTS:
        basis = sizes**-exponent
        centred = basis - share @ basis
        slope = np.maximum((errors * share) @ centred / (share @ centred**2), 0.0)
        start = errors @ share - slope * (share @ basis)
        # Below zero the line goes through zero.
        through = (errors * share) @ basis / (share @ basis**2)
        slope, start = np.where(start < 0, through, slope), np.maximum(start, 0.0)
        squares = (errors - start[:, None] - slope[:, None] * basis) ** 2 @ share
        better = squares < least
        best[better] = np.stack([start, slope, np.full(len(errors), exponent)], axis=1)[better]
        least = np.minimum(least, squares)
    return best


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """A metric by the number of training groups, and its power law.

    Attributes
    ----------
    metric : str
    points : DataFrame
        ``groups``, ``draws``, ``value``, ``low``, ``high``: the mean number of training groups of
        the folds, how often they were drawn, and the metric with 95 % limits.
    errors : float64 [1 + R, S]
        Errors at each number of groups: of all test samples, then of resampled test groups.
    group_count : int
        Groups that are predicted.
    inflation : float
        By how much limits are wider for what the folds share.
    """

    metric: str
    points: pd.DataFrame
    errors: Array
    group_count: int
    inflation: float

    def expected(self, groups: float) -> Interval:
        """The metric of a model that learns from this number of groups; NaN with too few points."""
        if len(self.points) < LEAST_SHARES:
            return Interval(math.nan)
        start, slope, exponent = fit_power_laws(self.points["groups"].to_numpy(), self.errors).T
        values = start + slope * groups**-exponent
        if self.metric not in LOWER_IS_BETTER:
            values = 1 - values
        return _possible(interval(values, self.group_count, self.inflation), self.metric)

    def sentences(self, unit: str) -> list[str]:
        """Expected metric with twice as many groups, values of `unit`; empty outside the back-test.

        Curves of half of the groups were asked for the score with all of them, at 21 to 650 groups
        (docs/adr/016-learning-curves.md): smaller studies have no sentence.
        """
        expected = self.expected(2 * float(self.points["groups"].iloc[-1]))
        if math.isnan(expected.low) or self.group_count < FEW_GROUPS:
            return []
        return [
            f"With twice as many groups ({unit}) we expect {TITLES[self.metric]} "
            f"{with_limits(expected)}."
        ]


def _possible(limits: Interval, metric: str) -> Interval:
    """The limits, cut at the least and the largest value that a metric can have."""
    low, high = np.clip([limits.low, limits.high], 0, None if metric in LOWER_IS_BETTER else 1)
    return Interval(limits.value, float(low), float(high))


def _drawn_groups(task: TargetData, train: Rows, share: float, seed: int, draw: int) -> Rows | None:
    """Training samples [n] of a share of the groups of a fold; None if these are too few.

    The smaller share of a draw is part of the larger one. Classes keep their shares if each group
    has one class.
    """
    truth = task.truth[train]
    groups, first, group = np.unique(task.units[train], return_index=True, return_inverse=True)
    stratum = np.zeros(len(groups), np.int64)
    if task.labels and (truth == truth[first][group]).all():
        stratum = truth[first]
    order = generator(seed, "learning curve", draw).permutation(len(groups))
    kept, counts = np.zeros(len(groups), bool), []
    for level in np.unique(stratum):
        inside = order[stratum[order] == level]
        counts.append(round(share * len(inside)))
        kept[inside[: counts[-1]]] = True
    if sum(counts) < LEAST_CURVE_GROUPS or min(counts) < LEAST_OF_CLASS:
        return None
    rows = train[kept[group]]
    return rows if len(np.unique(task.truth[rows])) > 1 else None


def _drawn_task(task: TargetData, share: float, seed: int, draw: int) -> TargetData | None:
    """The task with a share of the training groups of each fold."""
    folds = []
    for train, test in task.folds:
        rows = _drawn_groups(task, train[task.has_truth[train]], share, seed, draw)
        if rows is None:
            return None
        folds.append(Fold(rows, test))
    return replace(task, folds=folds)


def _held_out(task: TargetData, members: Sequence[CountsEstimator]) -> TargetPredictions:
    """Predictions of the test samples that have a truth, the mean of the members."""
    samples, fold = not_none(task.samples), np.full(len(task.truth), -1)
    for number, part in enumerate(task.folds):
        fold[part.test] = number
    predicted = mean_of([task.out_of_fold(member, samples) for member in members])
    return TargetPredictions(
        samples.sample_ids, task.truth, predicted, task.labels, fold, task.groups
    ).complete()


def learning_curve(
    task: TargetData,
    depth: int,
    seed: int,
    members: Sequence[str] = DEFAULT_MEMBERS,
    shares: Mapping[float, int] = CURVE_DRAWS,
) -> LearningCurve | None:
    """The headline metric of a blend of members at shares of the training groups of each fold.

    None if fewer than two shares have enough groups. Test samples are those of the task's folds, at
    every share.
    """
    samples = not_none(task.samples)
    kinds = [MEMBERS[name].estimators[0 if task.labels else 1] for name in members]
    blend = [kind(depth, CURVE_PASSES, seed) for kind in kinds]
    for training in (True, False):
        samples.rarefactions(depth, seed, CURVE_PASSES, training=training)
    metric, points, errors = headline(task.labels), list[dict[str, float]](), list[Floats]()
    random = generator(seed, "learning curve")
    for share, draws in shares.items():
        every_task = (_drawn_task(task, share, seed, draw) for draw in range(draws))
        if not (tasks := [part for part in every_task if part is not None]):
            continue
        results = [_held_out(part, blend) for part in tasks]
        values = np.stack(
            [resample_metrics(result, seed, CURVE_REPEATS)[metric] for result in results]
        )
        # Resamples are over the draws too.
        draw = random.integers(len(values), size=(len(values), values.shape[1]))
        resampled = np.take_along_axis(values, draw, axis=0).mean(axis=0)
        resampled[0] = values[:, 0].mean()
        inflation, count = inflation_of_difference(results[0]), results[0].group_count
        limits = _possible(interval(resampled, count, inflation), metric)
        sizes = [len(np.unique(task.units[fold.train])) for part in tasks for fold in part.folds]
        points.append({"groups": float(np.mean(sizes)), "draws": len(values), **vars(limits)})
        errors.append(resampled if metric in LOWER_IS_BETTER else 1 - resampled)
    if len(points) < min(2, len(shares)) or any(np.isnan(part[0]) for part in errors):
        return None
    table = np.stack(errors, axis=1)
    table = table[np.isfinite(table).all(axis=1)]
    return LearningCurve(metric, pd.DataFrame(points), table, count, inflation)
