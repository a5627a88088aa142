"""The paragraph that opens a report: what was predicted, on whom, how well, against what, and what to distrust."""

from __future__ import annotations

import math

import numpy as np

from aam.evaluate import intervals
from aam.evaluate.comparison import Comparison, headline, outcome
from aam.evaluate.intervals import too_few, with_limits
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES
from aam.evaluate.verdict import p_text
from aam.report.report import ReportData, TargetResult

# The share of samples called one class from which on the report says so, of at least so many samples.
ONE_CLASS, LEAST_SAMPLES = 0.95, 20

# What a metric says, for a reader who does not know its name.
MEANING = {
    "mae": "the mean absolute error (MAE), in the units of the column, is",
    "auroc": "the AUROC (the chance that a sample of one class is ranked above one of the other; 0.5 is guessing) is",
    "accuracy": "the share of samples whose class is right (accuracy) is",
}

JUDGED = {
    "held-out": "that took no part in training",
    "validation": "that chose the epoch, and so are not unseen",
    "training": "that training has seen",
    "unknown": "of which it is not known whether training has seen them",
}

OUTCOMES = {
    "better": "the model does better than it",
    "close": "that comes close to the model",
    "not shown": "the model is not shown to do better than it",
    "worse": "the model does worse than it",
    "untested": "with so few groups nothing is tested",
}


def full_baselines(result: TargetResult) -> list[Comparison]:
    """Return the baselines that predict the most samples, the one with the best headline metric first."""
    key = headline(result.predictions.labels)
    sign = 1 if key in LOWER_IS_BETTER else -1
    comparable = [one for one in result.comparisons if not math.isnan(one.metrics[key].value)]
    most = max((one.samples for one in comparable), default=0)
    return sorted((one for one in comparable if one.samples == most), key=lambda one: sign * one.metrics[key].value)


def _doubts(result: TargetResult) -> list[str]:
    """Return what in the predictions themselves speaks against them: no gain over a constant, one class for all."""
    complete, reasons = result.predictions.complete(), []
    constant = next((one for one in result.comparisons if one.constant), None)
    if constant is not None:
        state = outcome(constant, constant, headline(complete.labels))
        words = {"not shown": "it is not shown to do better than", "worse": "it does worse than"}
        reasons += [f"{words[state]} {constant.name} ({p_text(constant, 1)})"] if state in words else []
    if complete.labels and len(complete.truth) >= LEAST_SAMPLES:
        chosen = np.bincount(complete.predicted.argmax(axis=1), minlength=len(complete.labels)) / len(complete.truth)
        most = int(chosen.argmax())
        share = float(np.mean(complete.truth == most))
        if chosen[most] >= ONE_CLASS and chosen[most] - share >= 1 - ONE_CLASS:
            label = complete.labels[most]
            reasons.append(f"{chosen[most]:.0%} of the samples are called {label}, while {share:.0%} are")
    return reasons


def _distrust(result: TargetResult, transductive: bool) -> list[str]:
    """Return what limits the numbers of a target, in few words each."""
    complete = result.predictions.complete()
    reasons = _doubts(result)
    if result.subset != "held-out":
        reasons.append("these samples were not held out")
    if complete.groups is None:
        reasons.append("no group column was named, so that several samples of one subject would count as independent")
    if complete.group_count < intervals.LEAST_GROUPS:
        reasons.append(f"{too_few(complete.group_count)} for intervals")
    elif rests_on := intervals.rough(complete):
        reasons.append(f"intervals rest on {rests_on}")
    if result.comparisons and all(one.trivial for one in result.comparisons):
        reasons.append("no learned baseline, such as a forest, stands beside it")
    if complete.batch is not None and len(result.batches) > 1:
        reasons.append(f"what differs between values of {result.names.batch} may be what was learned")
    if any(n - kept for n, kept in result.dropped.values()):
        reasons.append("samples below the depth are left out")
    if transductive:
        reasons.append("pretraining saw these samples, without labels")
    return reasons


def opening_of_target(result: TargetResult, transductive: bool = False) -> str:
    """Return the opening words on one target."""
    key, complete, names = headline(result.predictions.labels), result.predictions.complete(), result.names
    if not len(complete.truth):
        return f"No sample has both a value of {names.target} and a prediction: there is nothing to judge."
    of = "" if complete.groups is None else f" from {complete.group_count} groups ({names.group})"
    classes = f", one of {len(complete.labels)} classes," if complete.labels else ""
    predicts = (
        f"The model predicts {names.target}{classes} of {len(complete.truth)} samples{of} {JUDGED[result.subset]}"
    )
    if math.isnan(result.metrics[key].value):
        return f"{predicts}. There is no {TITLES[key]} of them, so that nothing is compared; the verdict says why."
    sentences = [f"{predicts}: {MEANING[key]} {with_limits(result.metrics[key])}."]
    full = full_baselines(result)
    best = next(iter(full), None)
    constant = next((one for one in result.comparisons if one.constant), None)
    if best is not None and constant is not None:
        beside = with_limits(best.metrics[key])
        verdict = OUTCOMES[outcome(best, constant, key)]
        which = "The one baseline" if len(full) == 1 else f"The best of {len(full)} baselines"
        sentences.append(f"{which}, {best.name}, has {TITLES[key]} {beside}: {verdict}.")
    elif result.subset != "training":
        sentences.append("There is no baseline beside it: how good this is cannot be judged from it alone.")
    reasons = _distrust(result, transductive)
    if reasons:
        sentences.append(f"What to keep in mind: {'; '.join(reasons)}.")
    return " ".join(sentences)


def opening(results: ReportData) -> list[str]:
    """Return the paragraphs that open a report, one for each target."""
    if results.targets:
        return [opening_of_target(result, results.transductive) for result in results.targets]
    if results.tables:
        return [
            "The encoder learned without labels. What follows is how well it does on samples and ASVs that it has not "
            "seen, beside rules that need no model. It predicts no metadata column: fine-tune it with aam train, and "
            "judge it by that report."
        ]
    return ["Nothing was held out, so there is nothing to judge: --test-size or --cv holds samples out."]
