"""The answer that opens a report: how well, beside what, the verdict in three words, and what to
keep in mind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from aam.evaluate import intervals
from aam.evaluate.comparison import (
    Comparison,
    Outcome,
    best_constant,
    headline,
    outcome,
    share_of_gain,
    tests_corrected_for,
)
from aam.evaluate.intervals import Interval, limits_text, number, too_few, with_limits
from aam.evaluate.metrics import LOWER_IS_BETTER, TITLES
from aam.evaluate.new_studies import InNewStudies
from aam.evaluate.verdict import OPEN, between_batches, p_text
from aam.report.report import ReportData, TargetResult
from aam.report.samples import worse_levels

# The share of samples called one class from which on the report says so, of at least so many
# samples.
ONE_CLASS, LEAST_SAMPLES = 0.95, 20

JUDGED = {
    "held-out": "by models that had not seen them",
    "validation": "that chose the epoch, and so are not unseen",
    "training": "that training has seen",
    "unknown": "of which it is not known whether training has seen them",
}

# The verdict in three words, and which of the signs of the page goes with it.
VERDICTS: dict[Outcome, tuple[str, str]] = {
    "better": ("Beats best baseline", "better"),
    "close": ("Close to baseline", "open"),
    "not shown": ("Not shown better", "open"),
    "worse": ("Worse than baseline", "worse"),
    "untested": ("Cannot be tested", "none"),
}


@dataclass(frozen=True)
class Tile:
    """A number or a few words that answer a question, with one plain sentence.

    `limits` are those of the interval; `state` (better, open, worse, none) is the sign that a
    verdict has.
    """

    question: str
    answer: str
    sentence: str
    limits: str = ""
    state: str = ""


def full_baselines(result: TargetResult) -> list[Comparison]:
    """Return the baselines that predict the most samples, the one with the best headline metric
    first.
    """
    key = headline(result.predictions.labels)
    sign = 1 if key in LOWER_IS_BETTER else -1
    comparable = [one for one in result.comparisons if not math.isnan(one.metrics[key].value)]
    most = max((one.samples for one in comparable), default=0)
    return sorted(
        (one for one in comparable if one.samples == most),
        key=lambda one: sign * one.metrics[key].value,
    )


def _new_study_tile(new: InNewStudies, name: str, value: Interval) -> Tile:
    """Return the mean over studies that were held out whole, each alike."""
    of_studies = [one.value for _, one in new.studies.values()]
    ends = f"{number(min(of_studies))} to {number(max(of_studies))}"
    sentence = (
        f"Mean over {len(of_studies)} values of {name}, each held out whole and counted "
        f"alike ({ends})."
    )
    return Tile(
        f"{TITLES[new.metric]} in a study never seen",
        number(new.mean),
        f"{sentence} As beside, where the larger count more: {with_limits(value)}.",
    )


def _metric_tile(result: TargetResult, key: str) -> Tile:
    if result.new_studies is not None:
        return _new_study_tile(result.new_studies, result.names.batch, result.metrics[key])
    value, labels, target = result.metrics[key], result.predictions.labels, result.names.target
    if key == "mae":
        title, r2 = "Mean absolute error (MAE)", number(result.metrics["r2"].value)
        sentence = f"Predictions miss {target} by {number(value.value)} on average (R2 {r2})."
    elif key == "auroc":
        title, share = TITLES[key], f"{100 * value.value:.0f} %"
        sentence = (
            f"Of two samples, one of each class, {share} are ranked in the right order; "
            "guessing ranks 50 %."
        )
    else:
        title = "Share that is right (accuracy)"
        sentence = (
            f"{100 * value.value:.0f} of 100 samples get the right one of {len(labels)} classes."
        )
    return Tile(title, number(value.value), sentence, limits_text(value))


def _baseline_tile(result: TargetResult, key: str) -> Tile:
    full = full_baselines(result)
    if not full:
        return Tile("Best baseline", "none", "How good this is cannot be judged from it alone.")
    best, value = full[0], full[0].metrics[key]
    others = sum(not one.constant for one in full)
    which = " (guessing), the only one of all samples"
    if others:
        which = f", the best of {others} baseline{'s' if others > 1 else ''} and guessing"
    sentence = f"{best.name[0].upper()}{best.name[1:]}{which}."
    return Tile("Best baseline", number(value.value), sentence, limits_text(value))


def _verdict_tile(result: TargetResult, key: str) -> Tile:
    full, constant = full_baselines(result), best_constant(result.comparisons, key)
    if result.subset == "training":
        return Tile(
            "Verdict",
            "Seen in training",
            "Nothing is compared on samples of training.",
            state="none",
        )
    if not full or constant is None:
        return Tile("Verdict", "No baseline given", "Nothing is compared.", state="none")
    best = full[0]
    state = outcome(best, constant, key)
    words, sign = VERDICTS[state]
    if state == "better" and all(one.constant for one in full):
        words, sign = "Better than guessing", "open"
    elif state == "better" and all(one.trivial for one in full):
        words = "Beats trivial baselines"
    difference = (
        f"The {TITLES[key]} of the model minus that of {best.name}: "
        f"{with_limits(best.tested_difference)}"
    )
    sentence = f"{difference}; {p_text(best, tests_corrected_for(result.comparisons))}."
    if state == "not shown":
        sentence = f"{sentence[:-1]}: {OPEN}."
    elif state == "close":
        share = f"{100 * share_of_gain(best, constant, key):.0f} %"
        sentence = (
            f"{best.name[0].upper()}{best.name[1:]} has {share} of the model's gain over "
            f"{constant.name}."
        )
    elif state == "untested":
        few = f": {too_few(best.groups)}, {intervals.LEAST_GROUPS} are needed"
        sentence = f"{difference}; not tested{few if best.groups < intervals.LEAST_GROUPS else ''}."
    chance = outcome(constant, constant, key)
    if chance in ("not shown", "worse"):
        words, sign = {
            "not shown": ("Chance not excluded", "open"),
            "worse": ("Worse than guessing", "worse"),
        }[chance]
        does = {"not shown": "not shown to do better than", "worse": "worse than"}[chance]
        sentence = f"The model is {does} {constant.name} ({p_text(constant, 1)})."
    elif chance in ("better", "close") and best is not constant:
        if state == "not shown":
            words, sentence = (
                "Better than guessing",
                f"Not shown to do better than {best.name}. {sentence}",
            )
        else:
            sentence = f"Better than guessing ({constant.name}). {sentence}"
    caution = "" if result.subset == "held-out" else f" These are samples {JUDGED[result.subset]}."
    return Tile("Verdict", words, f"{sentence}{caution}", state=sign)


def tiles(result: TargetResult) -> list[Tile]:
    """Return the metric that decides, the best baseline and the verdict; nothing where there is no
    metric.
    """
    key = headline(result.predictions.labels)
    if math.isnan(result.metrics[key].value):
        return []
    return [_metric_tile(result, key), _baseline_tile(result, key), _verdict_tile(result, key)]


def judged_samples(result: TargetResult) -> str:
    """Return what was predicted, on which samples."""
    key, complete, names = (
        headline(result.predictions.labels),
        result.predictions.complete(),
        result.names,
    )
    if not len(complete.truth):
        return (
            f"No sample has both a value of {names.target} and a prediction: there is nothing "
            "to judge."
        )
    of = "" if complete.groups is None else f" from {complete.group_count} groups ({names.group})"
    classes = f"One of {len(complete.labels)} classes, p" if complete.labels else "P"
    text = f"{classes}redicted for {len(complete.truth)} samples{of} {JUDGED[result.subset]}."
    if math.isnan(result.metrics[key].value):
        return (
            f"{text} There is no {TITLES[key]} of them, so that nothing is compared; the "
            "verdict says why."
        )
    return text


def _one_class(result: TargetResult) -> list[str]:
    """Return that nearly all samples are called one class, where they are not of it."""
    complete = result.predictions.complete()
    if not complete.labels or len(complete.truth) < LEAST_SAMPLES:
        return []
    chosen = np.bincount(complete.predicted.argmax(axis=1), minlength=len(complete.labels)) / len(
        complete.truth
    )
    most = int(chosen.argmax())
    share = float(np.mean(complete.truth == most))
    if chosen[most] < ONE_CLASS or chosen[most] - share < 1 - ONE_CLASS:
        return []
    return [
        (
            f"{chosen[most]:.0%} of the samples are called {complete.labels[most]}, while "
            f"{share:.0%} are."
        )
    ]


def keep_in_mind(result: TargetResult, transductive: bool = False) -> list[str]:
    """Return what limits the numbers of a target, a sentence each."""
    complete = result.predictions.complete()
    if not len(complete.truth):
        return []
    reasons = _one_class(result)
    if result.subset != "held-out":
        reasons.append("These samples were not held out.")
    if complete.groups is None:
        reasons.append(
            "No group column was named: several samples of one subject would count as independent."
        )
    if complete.group_count < intervals.LEAST_GROUPS:
        reasons.append(f"{too_few(complete.group_count).capitalize()} for intervals.")
    elif rests_on := intervals.rough(complete):
        reasons.append(f"Intervals rest on {rests_on}.")
    if not result.comparisons and result.subset != "training":
        reasons.append(
            "There is no baseline beside it: how good this is cannot be judged from it alone."
        )
    elif result.comparisons and all(one.trivial for one in result.comparisons):
        reasons.append(
            "No learned baseline, such as a forest, stands beside it; aam train --rf-baseline "
            "adds them."
        )
    if complete.batch is not None:
        reasons.extend(filter(None, [between_batches(complete, result.names.batch)]))
    if result.names.fold and result.new_studies is None and len(result.folds) > 1:
        key = headline(complete.labels)
        of_folds = sorted(values[key].value for _, values in result.folds.values())
        reasons.append(
            f"Each of {len(of_folds)} values of {result.names.fold} was held out whole: "
            f"{TITLES[key]} "
            f"{number(of_folds[0])} to {number(of_folds[-1])}. This spread, not the interval, "
            "speaks of a further one."
        )
    dropped = sum(n - kept for n, kept in result.dropped.values())
    if dropped:
        of = sum(n for n, _ in result.dropped.values())
        reasons.append(
            f"{dropped} of {of} samples have fewer reads than the depth and are left out."
        )
    if larger := [one for one in worse_levels(result)[1] if one.stands_out]:
        worst = max(larger, key=lambda one: one.error - one.others_error)
        where = f"for {worst.label}, " if worst.label else "for "
        what = f"mean error {number(worst.error)}, elsewhere {number(worst.others_error)}"
        if worst.label:
            what = (
                f"{worst.right} of {worst.samples} right, elsewhere {worst.others_right} of "
                f"{worst.others}"
            )
        reasons.append(
            f"Errors are larger {where}{worst.column}: {worst.level} ({what}); a table below has "
            "more."
        )
    if transductive:
        reasons.append("Pretraining saw these samples, without labels.")
    return reasons


def introduction(results: ReportData) -> list[str]:
    """Return the words that open a report without targets."""
    if results.targets:
        return []
    if results.tables:
        return [
            "The encoder learned without labels. What follows is how well it does on samples and "
            "ASVs that it has not "
            "seen, beside rules that need no model. It predicts no metadata column: fine-tune it "
            "with aam train, and "
            "judge it by that report."
        ]
    return [
        "Nothing was held out, so there is nothing to judge: --test-size or --cv holds samples out."
    ]
