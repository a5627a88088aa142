"""Baselines on the folds of a model, the model beside them, and the sentences that a report must carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn import ensemble
from sklearn.base import BaseEstimator, clone

from aam.training import metrics
from aam.training.metrics import TITLES, Array, Interval, Predictions, interval

MEDIAN = "the training median"
MAJORITY = "the majority class"
DEPTH = "depth alone"
RICHNESS = "richness alone"
DEPTH_AND_RICHNESS = "depth and richness alone"

# A baseline with this share of the model's gain over the constant ties it, however narrow the interval.
TYING_SHARE = 0.9
# A trivial baseline at these figures solves the task by itself.
SOLVED = {"auroc": 0.9, "accuracy": 0.9, "r2": 0.8}
# At most these figures inside the batches are next to nothing.
NOTHING = {"auroc": 0.55, "r2": 0.05}

Mask = npt.NDArray[np.bool_]
Outcome = Literal["beats", "nearly ties", "ties", "loses", "untested"]


class Fold(NamedTuple):
    """Samples that a baseline learns from and those that it is scored on, masks [N]."""

    train: Mask
    test: Mask


@dataclass(frozen=True, eq=False)
class Task:
    """What baselines may know of one target.

    `truth` is as in `Predictions`; test sides of `folds` do not overlap; `depth` int [N] are reads before
    rarefaction, `richness` int [N] ASVs after; `levels` str [N] are group and batch columns whose own median
    or classes are a baseline; samples of one of `groups` [N] are never parted when a baseline is tuned.
    """

    truth: Array
    labels: tuple[str, ...]
    folds: tuple[Fold, ...]
    depth: Array
    richness: Array
    levels: Mapping[str, Array] = field(default_factory=dict)
    groups: Array | None = None


@dataclass(frozen=True, eq=False)
class Baseline:
    """Held-out predictions of a baseline: float [N] or [N, K], NaN where it has none."""

    name: str
    predicted: Array
    trivial: bool = True

    @property
    def constant(self) -> bool:
        """Whether it knows nothing of a sample."""
        return self.name in (MEDIAN, MAJORITY)


# --- predicting --------------------------------------------------------------------------------------------
def by_folds(task: Task, predict: Callable[[Array, Array], Array]) -> Array:
    """Predictions [N] or [N, K] of `predict(train rows, test rows)` on the test side of every fold."""
    result = np.full((len(task.truth), len(task.labels)) if task.labels else len(task.truth), math.nan)
    known = task.truth >= 0 if task.labels else np.isfinite(task.truth)
    for fold in task.folds:
        train = np.flatnonzero(fold.train & known)
        if len(train):
            result[fold.test] = predict(train, np.flatnonzero(fold.test))
    return result


def _constant(task: Task, train: Array, test: Array) -> Array:
    """The training median, or all probability [K] on the most frequent class."""
    if not task.labels:
        return np.asarray(np.median(task.truth[train]))
    return np.asarray(np.eye(len(task.labels))[np.bincount(task.truth[train]).argmax()])


def _of_level(task: Task, levels: Array, train: Array, test: Array) -> Array:
    """Median or class shares of the training samples of each test sample's own level; NaN if it has none."""
    result = np.full((len(test), len(task.labels)) if task.labels else len(test), math.nan)
    for level in np.unique(levels[test]):
        own = task.truth[train[levels[train] == level]]
        if len(own):
            shares = np.bincount(own, minlength=len(task.labels)) / len(own) if task.labels else None
            result[levels[test] == level] = np.median(own) if shares is None else shares
    return result


def predicted_by(task: Task, model: BaseEstimator, own: Any, other: Any, train: Array) -> Array:
    """Predictions for the inputs `other` of a model, fitted anew to the inputs `own` of the rows `train`."""
    # Threads would add the trees up in any order, which shows in the last bits.
    fitted = clone(model).fit(own, task.truth[train]).set_params(n_jobs=1)
    if not task.labels:
        return np.asarray(fitted.predict(other))
    probabilities = np.asarray(fitted.predict_proba(other))
    result = np.zeros((len(probabilities), len(task.labels)))
    result[:, fitted.classes_] = probabilities
    return result


def _forest(task: Task, inputs: Array, trees: BaseEstimator, train: Array, test: Array) -> Array:
    return predicted_by(task, trees, inputs[train], inputs[test], train)


def _ordered(task: Task, values: Array, train: Array, test: Array) -> Array:
    """Probabilities of two classes in the order of one value, its direction chosen on the training side.

    The sigmoid is the same in every fold, so that the pooled AUROC is that of the value itself.
    """
    rising = metrics.auroc(task.truth[train] == 1, values[train])
    distance = (values[test] - np.median(values)) * (-1 if rising < 0.5 else 1)
    second = 1 / (1 + np.exp(-distance))
    return np.stack([1 - second, second], axis=1)


def trivial_baselines(task: Task, seed: int = 0) -> tuple[Baseline, ...]:
    """Baselines that do not look at which ASVs a sample has, learned on the training side of each fold.

    The median or majority class; sequencing depth and richness, together and each alone; the median or class
    shares of the sample's own level of each column of `task.levels`, where the training side has that level.
    A value that is the same in all samples, and a level never seen in training, gives no baseline.
    """

    def of(name: str, predict: Callable[..., Array], *given: Any) -> Baseline:
        return Baseline(name, by_folds(task, lambda train, test: predict(task, *given, train, test)))

    kind = ensemble.RandomForestClassifier if task.labels else ensemble.RandomForestRegressor
    trees = kind(n_estimators=100, max_features=1.0, min_samples_leaf=10, random_state=seed)
    found = [of(MAJORITY if task.labels else MEDIAN, _constant)]
    columns = {DEPTH: np.log1p(task.depth), RICHNESS: np.log1p(task.richness)}
    columns = {name: values for name, values in columns.items() if np.ptp(values) > 0}
    if len(columns) == 2:
        found.append(of(DEPTH_AND_RICHNESS, _forest, np.stack([*columns.values()], axis=1), trees))
    for name, values in columns.items():
        two = len(task.labels) == 2
        found.append(of(name, _ordered, values) if two else of(name, _forest, values[:, None], trees))
    for column, levels in task.levels.items():
        own = of(f"the {column}'s {'classes' if task.labels else 'median'}", _of_level, levels)
        found += [own] if np.isfinite(own.predicted).any() else []
    return tuple(found)


# --- comparing ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    """A baseline beside the model, on the samples that both predict.

    `difference` holds the model's figures minus the baseline's, paired over resampled groups.
    """

    name: str
    trivial: bool
    constant: bool
    samples: int
    figures: dict[str, Interval]
    model: dict[str, float]
    difference: dict[str, Interval]


def compare(
    predictions: Predictions, baselines: Sequence[Baseline], seed: int, repeats: int = 1000
) -> tuple[Comparison, ...]:
    """Figures of baselines, their rows those of `predictions`, and the model's paired difference from them.

    A constant ranks nothing: its AUROC is that of equal probabilities, though pooling folds whose majority
    differs would give another. A baseline that predicts none of the samples is left out.
    """
    found = []
    for one in baselines:
        both = predictions.complete & metrics.predicted_rows(one.predicted)
        if not both.any():
            continue
        part, other = predictions.at(both), one.predicted[both]
        draw = partial(metrics.resampled, part.measure, part.truth)
        model, rows = (draw(each, part.resampled, seed, repeats) for each in (part.predicted, other))
        if one.constant and predictions.labels:
            flat = draw(np.full_like(other, 1 / len(predictions.labels)), part.resampled, seed, repeats)
            rows |= {name: flat[name] for name in ("auroc", "auprc")}
        found.append(
            Comparison(
                *(one.name, one.trivial, one.constant, int(both.sum())),
                figures={name: interval(values) for name, values in rows.items()},
                model={name: float(values[0]) for name, values in model.items()},
                difference={name: interval(model[name] - rows[name], paired=True) for name in rows},
            )
        )
    return tuple(found)


def headline(labels: Sequence[str]) -> str:
    """The figure that decides: MAE, AUROC of two classes, accuracy of more."""
    return {0: "mae", 2: "auroc"}.get(len(labels), "accuracy")


def share_of_gain(comparison: Comparison, constant: Comparison, key: str) -> float:
    """What part of the model's gain over the constant the baseline has too; NaN where there is none."""
    floor = constant.figures[key].value
    gain = comparison.model[key] - floor
    gains = gain < 0 if key in metrics.LOWER_IS_BETTER else gain > 0
    alike = comparison.samples == constant.samples
    return (comparison.figures[key].value - floor) / gain if gains and alike else math.nan


def outcome(comparison: Comparison, constant: Comparison, key: str) -> Outcome:
    """What the model does to a baseline; it ties where the paired 95 % interval includes 0."""
    difference = comparison.difference[key]
    if math.isnan(difference.low):
        return "untested"
    if difference.low <= 0 <= difference.high:
        return "ties"
    if (difference.value < 0) != (key in metrics.LOWER_IS_BETTER):
        return "loses"
    nearly = comparison.trivial and share_of_gain(comparison, constant, key) >= TYING_SHARE
    return "nearly ties" if nearly else "beats"


# --- saying it ---------------------------------------------------------------------------------------------
def number(value: float) -> str:
    """A figure for reading: three significant digits, and all that stand before the point."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _does(name: str, verb: str) -> str:
    """`Depth alone separates`, `The study's classes separate`."""
    plural = " and " in name or name.endswith(("classes", "trees")) or name.startswith("nearest neighbours")
    return f"{name[0].upper()}{name[1:]} {verb}{'' if plural else 's'}"


def _not_beaten(comparison: Comparison, constant: Comparison, key: str) -> str:
    """What is said of a baseline that the model does not beat."""
    name, found = comparison.name, outcome(comparison, constant, key)
    difference = comparison.difference[key]
    beside = f"{TITLES[key]} {number(comparison.figures[key].value)} against {number(comparison.model[key])}"
    if comparison.samples != constant.samples:
        beside += f" on {comparison.samples} of {constant.samples} samples"
    limits = f"paired 95 % interval of the difference {number(difference.low)} to {number(difference.high)}"
    if found == "loses":
        return f"{_does(name, 'predict')} better than the model ({beside}; {limits})."
    if found == "nearly ties":
        share = f"{100 * share_of_gain(comparison, constant, key):.0f} % of the model's gain"
        return f"{_does(name, 'practically tie')} the model ({beside}): {share} over {constant.name}."
    if found == "untested":
        return f"Whether the model beats {name} cannot be tested within one group ({beside})."
    signal = ": what it learned cannot be told from chance." if comparison.constant else "."
    return f"{_does(name, 'tie')} the model ({beside}; {limits}, includes 0){signal}"


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Which trivial baselines solve the task by themselves."""
    key = headline(labels) if labels else "r2"
    figures = {one.name: one.figures[key].value for one in comparisons if one.trivial and not one.constant}
    solved = {name: value for name, value in figures.items() if value >= SOLVED[key]}
    if DEPTH in solved or RICHNESS in solved:
        solved.pop(DEPTH_AND_RICHNESS, None)
    does = ("separate", "the classes") if labels else ("explain", "most of the target")
    return [
        f"{_does(name, does[0])} {does[1]} ({TITLES[key]} {number(value)}): a model of this table may "
        "have learned that and nothing of the biology."
        for name, value in solved.items()
    ]


def held_out_whole(predictions: Predictions) -> bool:
    """Whether no batch has samples in two folds, so that each was predicted without any sample of its own."""
    fold, batch = predictions.fold, predictions.batch
    if fold is None or batch is None:
        return False
    return len(np.unique(fold)) > 1 and all(len(np.unique(fold[batch == one])) == 1 for one in batch)


def _batches(known: Predictions, name: str) -> list[str]:
    """What is left of the figures inside the batches, and whether they hold for a new one."""
    if known.batch is None or len(np.unique(known.batch)) < 2:
        return []
    key = "auroc" if known.labels else "r2"
    within = metrics.within_batches(known)
    pooled = metrics.measured(known.measure, known.truth, known.predicted)
    inside, overall = number(within[key]), number(pooled[key])
    if known.labels:
        said = [f"Within a {name} the AUROC is {inside}; pooled it is {overall}."]
        nothing = f"Inside a {name} the model hardly orders samples better than chance."
    else:
        said = [
            f"Within a {name}, against each {name}'s own mean, R2 is {inside} (Pearson "
            f"{number(within['pearson'])}); pooled it is {overall}."
        ]
        nothing = f"Inside a {name} the model hardly does better than that {name}'s mean."
    said += [nothing] if within[key] <= NOTHING[key] else []
    if held_out_whole(known):
        said.append(f"Every {name} was held out whole: the figures are those for a {name} never seen.")
    elif known.fold is not None:
        said.append(
            f"Samples of one {name} stand on both sides: the figures do not hold for a {name} never seen; "
            f"--cv {name} would tell."
        )
    return said


def verdict(predictions: Predictions, comparisons: Sequence[Comparison], batch_name: str = "batch") -> tuple[str, ...]:
    """What a reader must know before believing the figures, one sentence each."""
    key, known = headline(predictions.labels), predictions.known()
    said: list[str] = []
    constant = next((one for one in comparisons if one.constant), None)
    if constant is not None:
        beaten = [one for one in comparisons if outcome(one, constant, key) == "beats"]
        if beaten:
            names = [f"{one.name} ({number(one.figures[key].value)})" for one in beaten]
            listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            value = number(constant.model[key])
            said.append(f"The model ({TITLES[key]} {value}) does better than {listed}.")
        said += [_not_beaten(one, constant, key) for one in comparisons if one not in beaten]
        said += _solved(comparisons, predictions.labels)
    said += _batches(known, batch_name)
    groups = len(np.unique(known.resampled))
    if groups < metrics.FEW_GROUPS:
        said.append(f"Intervals and tests rest on {groups} groups only: read them as rough.")
    return tuple(said)
