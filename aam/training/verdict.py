"""The model beside its baselines and inside the batches, and the sentences that every report must carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from aam.training.baselines import DEPTH, DEPTH_AND_RICHNESS, RICHNESS, Baseline
from aam.training.metrics import (
    LOWER_IS_BETTER,
    Array,
    Difference,
    Interval,
    Predictions,
    auroc,
    differences,
    intervals,
    mean_known,
    pearson,
    predicted_rows,
    resampled_figures,
)

# A baseline with this share of the model's gain over the constant ties it, however narrow the interval.
TYING_SHARE = 0.9
# A trivial baseline at these figures solves the task by itself.
SOLVED = {"auroc": 0.9, "accuracy": 0.9, "r2": 0.8}
# At most these figures inside the batches are next to nothing.
NOTHING = {"auroc": 0.55, "r2": 0.05}
# Percentile intervals over fewer groups are too narrow to be read as 95 %.
FEW_GROUPS = 20

TITLES = {
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R2",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "nrmse": "NRMSE",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
}

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
    difference: dict[str, Difference]


def compare(
    predictions: Predictions, baselines: Sequence[Baseline], seed: int, repeats: int = 1000
) -> tuple[Comparison, ...]:
    """Figures of baselines, their rows those of `predictions`, and the model's paired difference from them.

    A constant ranks nothing: its AUROC is that of equal probabilities, though pooling folds whose majority
    differs would give another. A baseline that predicts none of the samples is left out.
    """

    def drawn(part: Predictions, predicted: Array) -> tuple[dict[str, float], Array]:
        rows = resampled_figures(part.measure, part.truth, predicted, part.resampled, seed, repeats)
        return part.measure(part.truth, predicted), rows

    found, models = [], {}
    for baseline in baselines:
        both = predictions.complete & predicted_rows(baseline.predicted)
        if not both.any():
            continue
        part, other = predictions.at(both), baseline.predicted[both]
        if both.tobytes() not in models:
            models[both.tobytes()] = drawn(part, part.predicted)
        model, model_rows = models[both.tobytes()]
        values, rows = drawn(part, other)
        if baseline.constant and predictions.labels:
            flat, flat_rows = drawn(part, np.full_like(other, 1 / len(predictions.labels)))
            areas = [name in ("auroc", "auprc") for name in values]
            values |= {name: flat[name] for name in ("auroc", "auprc")}
            rows[:, areas] = flat_rows[:, areas]
        kind = (baseline.name, baseline.trivial, baseline.constant, int(both.sum()))
        paired = differences(model, values, model_rows - rows)
        found.append(Comparison(*kind, intervals(values, rows), model, paired))
    return tuple(found)


# --- batches -----------------------------------------------------------------------------------------------


def held_out_whole(predictions: Predictions) -> bool:
    """Whether no batch has samples in two folds, so that each was predicted without any sample of its own."""
    if predictions.fold is None or predictions.batch is None:
        return False
    pairs = {(str(fold), str(batch)) for fold, batch in zip(predictions.fold, predictions.batch, strict=True)}
    return len(pairs) == len({batch for _, batch in pairs}) and len({fold for fold, _ in pairs}) > 1


def within_batches(predictions: Predictions) -> dict[str, float]:
    """What is predicted beyond the batch itself: differences among samples of one batch.

    For a numeric target the R2 against each batch's own mean and the Pearson correlation of truth and
    prediction after subtracting their batch means; for classes the AUROC of the pairs that lie in one batch.
    """
    known = predictions.known()
    if known.batch is None:
        raise ValueError("predictions hold no batch")
    parts = [known.batch == level for level in np.unique(known.batch)]
    if known.labels:
        return {"auroc": mean_known(np.array([_auroc_within(known, k, parts) for k in _scored(known)]))}
    truth, predicted = known.truth.astype(np.float64), known.predicted.astype(np.float64)
    for rows in parts:
        truth[rows] -= truth[rows].mean()
        predicted[rows] -= predicted[rows].mean()
    error, spread = known.predicted - known.truth, float(truth @ truth)
    r2 = 1 - float(error @ error) / spread if spread else math.nan
    return {"r2": r2, "pearson": pearson(truth, predicted)}


def _scored(predictions: Predictions) -> Sequence[int]:
    return [1] if len(predictions.labels) == 2 else range(len(predictions.labels))


def _auroc_within(known: Predictions, label: int, parts: Sequence[Array]) -> float:
    """Share of ordered pairs over the pairs of all batches."""
    ordered = pairs = 0.0
    for rows in parts:
        positive = known.truth[rows] == label
        number = float(positive.sum()) * float((~positive).sum())
        if number:
            ordered += number * auroc(positive, known.predicted[rows, label])
            pairs += number
    return ordered / pairs if pairs else math.nan


# --- judging -----------------------------------------------------------------------------------------------


def headline(labels: Sequence[str]) -> str:
    """The figure that decides: MAE, AUROC of two classes, accuracy of more."""
    return {0: "mae", 2: "auroc"}.get(len(labels), "accuracy")


def share_of_gain(comparison: Comparison, constant: Comparison, key: str) -> float:
    """What part of the model's gain over the constant the baseline has too.

    NaN where the model gains nothing or the baseline predicts other samples than the constant.
    """
    floor = constant.figures[key].value
    gain = comparison.model[key] - floor
    better = gain < 0 if key in LOWER_IS_BETTER else gain > 0
    if not better or comparison.samples != constant.samples:
        return math.nan
    return (comparison.figures[key].value - floor) / gain


def outcome(comparison: Comparison, constant: Comparison, key: str) -> Outcome:
    """What the model does to a baseline.

    It ties where the paired 95 % interval includes 0, and nearly where a trivial baseline has 90 % of the
    model's gain over the constant.
    """
    difference = comparison.difference[key]
    if math.isnan(difference.low):
        return "untested"
    if difference.low <= 0 <= difference.high:
        return "ties"
    if (difference.value < 0) != (key in LOWER_IS_BETTER):
        return "loses"
    nearly = comparison.trivial and share_of_gain(comparison, constant, key) >= TYING_SHARE
    return "nearly ties" if nearly else "beats"


# --- saying it ---------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """A figure for reading: three significant digits, and all that stand before the point."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _does(name: str, verb: str, adverb: str = "") -> str:
    """`Depth alone separates`, `The study's classes separate`."""
    plural = " and " in name or name.endswith("classes")
    return f"{name[0].upper()}{name[1:]} {adverb}{verb}{'' if plural else 's'}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _not_beaten(comparison: Comparison, constant: Comparison, key: str) -> str:
    """What is said of a baseline that the model does not beat."""
    difference, values = comparison.difference[key], (comparison.figures[key].value, comparison.model[key])
    beside = f"{TITLES[key]} {number(values[0])} against {number(values[1])}"
    if comparison.samples != constant.samples:
        beside += f" on {comparison.samples} of {constant.samples} samples"
    limits = f"paired 95 % interval of the difference {number(difference.low)} to {number(difference.high)}"
    found = outcome(comparison, constant, key)
    if found == "loses":
        return f"{_does(comparison.name, 'predict')} better than the model ({beside}; {limits})."
    if found == "nearly ties":
        share = 100 * share_of_gain(comparison, constant, key)
        gain = f"{share:.0f} % of the model's gain over {constant.name}"
        return f"{_does(comparison.name, 'tie', 'practically ')} the model ({beside}): {gain}."
    if found == "untested":
        return f"Whether the model beats {comparison.name} cannot be tested within one group ({beside})."
    signal = ": what it learned cannot be told from chance." if comparison.constant else "."
    return f"{_does(comparison.name, 'tie')} the model ({beside}; {limits}, includes 0){signal}"


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Which trivial baselines solve the task by themselves."""
    key = headline(labels) if labels else "r2"
    solved = {
        one.name: one.figures[key].value
        for one in comparisons
        if one.trivial and not one.constant and one.figures[key].value >= SOLVED[key]
    }
    if DEPTH in solved or RICHNESS in solved:
        solved.pop(DEPTH_AND_RICHNESS, None)
    does = ("separate", "the classes") if labels else ("explain", "most of the target")
    return [
        f"{_does(name, does[0])} {does[1]} ({TITLES[key]} {number(value)}): a model of this table may "
        "have learned that and nothing of the biology."
        for name, value in solved.items()
    ]


def _batches(predictions: Predictions, name: str) -> list[str]:
    """What is left of the figures inside the batches, and whether they hold for a new one."""
    known = predictions.known()
    if known.batch is None or len(np.unique(known.batch)) < 2:
        return []
    within, pooled = within_batches(known), known.measure(known.truth, known.predicted)
    if known.labels:
        said = [
            f"Within a {name} the AUROC is {number(within['auroc'])}; pooled it is {number(pooled['auroc'])}."
        ]
        if within["auroc"] <= NOTHING["auroc"]:
            said.append(f"Inside a {name} the model hardly orders samples better than chance.")
    else:
        said = [
            f"Within a {name}, against each {name}'s own mean, R2 is {number(within['r2'])} (Pearson "
            f"{number(within['pearson'])}); pooled it is {number(pooled['r2'])}."
        ]
        if within["r2"] <= NOTHING["r2"]:
            said.append(f"Inside a {name} the model hardly does better than that {name}'s mean.")
    if held_out_whole(known):
        said.append(f"Every {name} was held out whole: the figures are those for a {name} never seen.")
    elif known.fold is not None:
        said.append(
            f"Samples of one {name} stand on both sides: the figures do not hold for a {name} never seen; "
            f"--cv {name} would tell."
        )
    return said


def verdict(
    predictions: Predictions, comparisons: Sequence[Comparison], batch_name: str = "batch"
) -> tuple[str, ...]:
    """What a reader must know before believing the figures, one sentence each.

    Names every baseline that the model beats, ties or loses to, by the headline figure; every trivial
    baseline that solves the task by itself; what is left within batches; and intervals of few groups.
    """
    key, said = headline(predictions.labels), []
    constant = next((one for one in comparisons if one.constant), None)
    if constant is not None:
        beaten = [one for one in comparisons if outcome(one, constant, key) == "beats"]
        if beaten:
            names = [f"{one.name} ({number(one.figures[key].value)})" for one in beaten]
            value = number(constant.model[key])
            said.append(f"The model ({TITLES[key]} {value}) does better than {_listed(names)}.")
        said += [_not_beaten(one, constant, key) for one in comparisons if one not in beaten]
        said += _solved(comparisons, predictions.labels)
    said += _batches(predictions, batch_name)
    groups = len(np.unique(predictions.known().resampled))
    if groups < FEW_GROUPS:
        said.append(f"Intervals and tests rest on {groups} groups only: read them as rough.")
    return tuple(said)
