"""The answer of a report: what was predicted, how well, next to the best baseline, and the
verdict.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass

import numpy as np

from aam.evaluate.comparison import full_baselines
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import limits_text, number, with_limits
from aam.evaluate.metrics import TITLES
from aam.evaluate.predictions import EvaluatedSubset

# The last word of a column's name, where that is a unit.
TIMES = ("year", "month", "week", "day", "hour", "minute", "second")
UNITS = ("kg", "g", "mg", "cm", "mm", "m", "ml", "mmol", "percent")

# How a report calls the metrics of samples, and the samples in a sentence.
SUBSET_TITLES: dict[EvaluatedSubset, tuple[str, str]] = {
    "held-out": ("Held-out metrics", "held-out samples"),
    "validation": ("Validation metrics (not held out)", "validation samples (not held out)"),
    "training": ("Metrics of samples seen in training", "samples seen in training"),
    "seen-group": ("Metrics of groups seen in training", "samples of groups seen in training"),
}


@dataclass(frozen=True)
class Tile:
    """A number or a few words that answer a question, with one plain sentence.

    `limits` are those of the interval; `sign` (better, open, worse, none) is that of a verdict.
    """

    question: str
    answer: str
    sentence: str
    limits: str = ""
    sign: str = ""

    def to_dict(self) -> dict[str, str]:
        """The tile for a page."""
        return asdict(self)


def unit_of(column: str) -> str:
    """The unit that the name of a column ends with, after a blank: " months"; '' without one."""
    word = (re.findall(r"[a-z]+", column.lower()) or [""])[-1]
    time = word.removesuffix("s")
    return f" {time}s" if time in TIMES else f" {word}" if word in UNITS else ""


def _metric_tile(result: Evaluation) -> Tile:
    key, target, batches = result.key, result.names.target, result.in_new_batches
    value, name = result.metrics[key], result.names.batch
    share = 100 * value.value
    if batches:
        text = (
            f"Mean over {len(batches)} values of {name}, each held out whole, with equal weights "
        )
        text += f"({number(batches[0])} to {number(batches[-1])}). "
        text += f"Over all samples: {with_limits(value)}."
        mean = number(float(np.mean(batches)))
        return Tile(f"{TITLES[key]} in a new {name}", mean, text)
    if key == "mae":
        title, r2 = "Mean absolute error (MAE)", number(result.metrics["r2"].value)
        off = f"{number(value.value)}{unit_of(target)}"
        text = f"Predictions miss {target} by {off} on average (R2 {r2})."
    elif key == "auroc":
        title, text = TITLES[key], f"Of two samples, one of each class, {share:.0f} % are ranked "
        text += "in the right order; guessing ranks 50 %."
    else:
        title, classes = "Accuracy", len(result.predictions.labels)
        text = f"{share:.0f} of 100 samples get the right class, of {classes} classes."
    return Tile(title, number(value.value), text, limits_text(value))


def _baseline_tile(result: Evaluation) -> Tile:
    baselines = full_baselines(result.comparisons)
    if not baselines:
        return Tile("Best baseline", "none", "Without a baseline this number cannot be judged.")
    best, count = baselines[0], sum(not comparison.constant for comparison in baselines)
    rank = " (guessing), the only one of all samples"
    if count:
        rank = f", the best of {count} baseline{'s' if count > 1 else ''} and guessing"
    value, name = best.metrics[result.key], f"{best.name[0].upper()}{best.name[1:]}"
    return Tile("Best baseline", number(value.value), f"{name}{rank}.", limits_text(value))


def tiles(result: Evaluation) -> list[Tile]:
    """The metric that decides, the best baseline, and the verdict; none without a metric."""
    if math.isnan(result.metrics[result.key].value):
        return []
    verdict = result.verdict
    answer = Tile("Verdict", verdict.words, verdict.sentence, sign=verdict.sign)
    return [_metric_tile(result), _baseline_tile(result), answer]


def judged_samples(result: Evaluation) -> str:
    """The target and the judged samples in words."""
    complete, names = result.complete, result.names
    size = len(complete.truth)
    if not size:
        return f"No sample has both a value of {names.target} and a prediction."
    groups = "" if complete.groups is None else f" of {complete.group_count} {names.group}"
    words, part = SUBSET_TITLES[result.subset][1], complete.count_that_decides
    if part < size:
        return f"{size} samples{groups}, among them {part} {words}."
    return f"{size} {words}{groups}."
