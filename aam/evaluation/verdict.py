"""The model beside baselines, and the sentences that a report must carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from aam.evaluation import bootstrap, metrics
from aam.evaluation.baselines import DEPTH, DEPTH_AND_RICHNESS, RICHNESS, Baseline
from aam.evaluation.bootstrap import Interval, Predictions, interval
from aam.evaluation.metrics import TITLES

# A baseline with this share of the model's gain over the constant ties it, however narrow the interval.
TYING_SHARE = 0.9

# A trivial baseline at these figures solves the task by itself.
SOLVED = {"auroc": 0.9, "accuracy": 0.9, "r2": 0.8}

# At most these figures inside the batches are next to nothing.
NOTHING = {"auroc": 0.55, "r2": 0.05}

Outcome = Literal["beats", "nearly ties", "ties", "loses", "untested"]


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


def compare_with_baselines(
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
        draw = partial(bootstrap.resampled, part.measure, part.truth)
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
    within = bootstrap.within_batches(known)
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
    if groups < bootstrap.FEW_GROUPS:
        said.append(f"Intervals and tests rest on {groups} groups only: read them as rough.")
    return tuple(said)
