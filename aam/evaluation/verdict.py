"""The sentences that a report must carry: what the model does beside baselines and inside batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aam.evaluation import bootstrap
from aam.evaluation.baselines import DEPTH, DEPTH_AND_RICHNESS, RICHNESS
from aam.evaluation.batches import batch_sentences
from aam.evaluation.comparison import SIGNIFICANT, Comparison, headline, outcome, share_of_gain
from aam.evaluation.metrics import TITLES
from aam.evaluation.numbers import number
from aam.evaluation.paired_test import smallest_p
from aam.evaluation.target_predictions import Subset, TargetPredictions

# A trivial baseline with these metrics solves the task by itself.
SOLVED = {"auroc": 0.9, "accuracy": 0.9, "r2": 0.8}

# What a reader must know of samples that were not held out.
CAUTION: dict[Subset, str] = {
    "validation": (
        "These samples chose the epoch and the penalty: validation metrics, better than those of new samples would be; "
        "--test-size or --cv holds samples out."
    ),
    "training": "Samples of training are among these: the metrics say nothing of new samples, and nothing is compared.",
    "unknown": "Whether these samples were held out is not known; if the model saw them, the metrics are too good.",
}


def _does(name: str, verb: str) -> str:
    """Return `Depth alone separates`, `The study's classes separate`."""
    plural = " and " in name or name.endswith(("classes", "trees")) or name.startswith(("nearest", "covariates"))
    return f"{name[0].upper()}{name[1:]} {verb}{'' if plural else 's'}"


def _p_text(comparison: Comparison, tests: int) -> str:
    """Return p as it is read, and for how many baselines it was corrected."""
    p = comparison.corrected_p
    text = f"p {number(p)}" if p >= 0.001 else "p below 0.001"
    return f"{text}, corrected for {tests} baselines (Holm)" if tests > 1 else text


def _not_better(comparison: Comparison, constant: Comparison, key: str, tests: int) -> str:
    """Return what is said of a baseline that the model is not better than."""
    name, result = comparison.name, outcome(comparison, constant, key)
    beside = f"{TITLES[key]} {number(comparison.metrics[key].value)} against {number(comparison.model[key])}"
    if comparison.samples != constant.samples:
        beside += f" on {comparison.samples} of {constant.samples} samples"
    if result == "worse":
        return f"{_does(name, 'predict')} better than the model ({beside}; {_p_text(comparison, tests)})."
    if result == "nearly tied":
        share = f"{100 * share_of_gain(comparison, constant, key):.0f} % of the model's gain"
        return f"{_does(name, 'practically tie')} the model ({beside}): {share} over {constant.name}."
    if result == "untested":
        few = f"{comparison.groups} groups are too few, {bootstrap.LEAST_GROUPS} are needed"
        return f"Whether the model does better than {name} is not tested ({beside}): {few}."
    signal = ": what it learned cannot be told from chance." if comparison.constant else "."
    return f"{_does(name, 'tie')} the model ({beside}; {_p_text(comparison, tests)}){signal}"


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Return which trivial baselines solve the task by themselves."""
    key = headline(labels) if labels else "r2"
    values = {one.name: one.metrics[key].value for one in comparisons if one.trivial and not one.constant}
    solved = {name: value for name, value in values.items() if value >= SOLVED[key]}
    if DEPTH in solved or RICHNESS in solved:
        solved.pop(DEPTH_AND_RICHNESS, None)
    does = ("separate", "the classes") if labels else ("explain", "most of the target")
    return [
        f"{_does(name, does[0])} {does[1]} ({TITLES[key]} {number(value)}): a model of this table may "
        "have learned that and nothing of the biology."
        for name, value in solved.items()
    ]


def _compared(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Return what the model is beside the baselines."""
    key = headline(labels)
    constant = next((one for one in comparisons if one.constant), None)
    if constant is None:
        return []
    tests = sum(not math.isnan(one.p) for one in comparisons)
    sentences = []
    better = [one for one in comparisons if outcome(one, constant, key) == "better"]
    if better:
        names = [f"{one.name} ({number(one.metrics[key].value)})" for one in better]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        corrected = f", each p corrected for {tests} baselines (Holm)" if tests > 1 else ""
        model = f"The model ({TITLES[key]} {number(constant.model[key])})"
        sentences.append(f"{model} does better than {listed}{corrected}.")
    sentences += [_not_better(one, constant, key, tests) for one in comparisons if one not in better]
    lowest = tests * smallest_p(constant.groups)
    if lowest > SIGNIFICANT:
        sentences.append(
            f"With {constant.groups} groups and {tests} baselines the smallest possible corrected p is "
            f"{number(min(lowest, 1.0))}: nothing can be shown to be better."
        )
    return sentences + _solved(comparisons, labels)


def verdict(
    predictions: TargetPredictions,
    comparisons: Sequence[Comparison],
    batch_name: str = "batch",
    subset: Subset = "held-out",
) -> tuple[str, ...]:
    """Return what a reader must know before believing the metrics, one sentence each."""
    complete = predictions.complete()
    sentences = [CAUTION[subset]] if subset in CAUTION else []
    if subset != "training":
        sentences += _compared(comparisons, predictions.labels)
        sentences += batch_sentences(complete, batch_name)
    groups = complete.group_count
    if groups < bootstrap.LEAST_GROUPS:
        sentences.append(
            f"{groups} groups are too few for intervals and tests, {bootstrap.LEAST_GROUPS} are needed: nothing is "
            "shown to be better than anything."
        )
    elif groups < bootstrap.FEW_GROUPS:
        sentences.append(f"Intervals and tests rest on {groups} groups only: read them as rough.")
    return tuple(sentences)
