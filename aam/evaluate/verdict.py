"""The verdict on predictions: whether they beat the baselines, and what limits that statement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from aam.evaluate import intervals
from aam.evaluate.comparison import (
    DEPTH,
    DEPTH_AND_RICHNESS,
    RICHNESS,
    SIGNIFICANT,
    Comparison,
    Outcome,
    best_constant,
    full_baselines,
    headline,
    outcome,
    share_of_gain,
    smallest_p,
    tests_corrected_for,
)
from aam.evaluate.intervals import number, too_few, with_limits
from aam.evaluate.metrics import TITLES, Array, auroc, mean_of_defined, pearson, unweighted_metrics
from aam.evaluate.new_studies import batches_held_out_whole
from aam.evaluate.target_predictions import UNKNOWN_CLASS, Subset, TargetPredictions

# What a sign of a page says.
Sign = Literal["better", "open", "worse", "none"]

# From this share of samples predicted as one class on, of at least so many samples, it is said.
ONE_CLASS, LEAST_SAMPLES = 0.95, 20


@dataclass(frozen=True)
class Verdict:
    """Three words, one sentence with the numbers, a sign, and what limits the statement."""

    words: str
    sentence: str
    sign: Sign = "none"
    cautions: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The whole verdict as text."""
        return (f"{self.words}. {self.sentence}", *self.cautions)


# At most these metrics inside the batches are next to nothing.
NOTHING = {"auroc": 0.55, "r2": 0.05}

# Within batches the metric is as good as over all where it is not lower by more than this.
AS_GOOD = 0.02

# At most these, nothing.
CHANCE = {"auroc": 0.5, "r2": 0.0}


def _levels(values: Array) -> list[Array]:
    """Return which samples have each of the values, bool [N] for each."""
    return [values == level for level in np.unique(values)]


def _varies(complete: TargetPredictions, batch: Array) -> bool:
    """Return whether the samples of a batch have two classes or values."""
    return len(np.unique(complete.truth[batch])) > 1


def within_batches(complete: TargetPredictions) -> dict[str, float]:
    """Return what is predicted beyond the batch itself: differences among samples of one batch.

    For a numeric target the R2 against each batch's own mean and the Pearson correlation of truth
    and prediction after subtracting their batch means; for classes the AUROC of the pairs that lie
    in one batch and, under cross-validation, in one fold: the scores of two models have no common
    order.
    """
    batches = _levels(np.asarray(complete.batch))
    if complete.labels:
        if complete.cross_validated:
            folds = _levels(np.asarray(complete.fold))
            batches = [batch & fold for batch in batches for fold in folds if (batch & fold).any()]
        areas = []
        for k in [1] if len(complete.labels) == 2 else range(len(complete.labels)):
            in_batches = [
                (complete.truth[batch] == k, complete.predicted[batch, k]) for batch in batches
            ]
            pairs = np.array(
                [float(positive.sum()) * float((~positive).sum()) for positive, _ in in_batches]
            )
            ordered = np.nansum(
                pairs * np.array([auroc(positive, score) for positive, score in in_batches])
            )
            areas.append(ordered / pairs.sum() if pairs.any() else math.nan)
        return {"auroc": float(mean_of_defined(np.array(areas)[None])[0])}
    truth = complete.truth.astype(np.float64)
    predicted = complete.predicted.astype(np.float64)
    for batch in batches:
        truth[batch] -= truth[batch].mean()
        predicted[batch] -= predicted[batch].mean()
    squares = float(np.square(complete.predicted - complete.truth).sum())
    varies = any(_varies(complete, batch) for batch in batches)
    return {
        "r2": 1 - squares / float(truth @ truth) if varies else math.nan,
        "pearson": pearson(truth, predicted),
    }


def _in_varying_batches(complete: TargetPredictions) -> TargetPredictions:
    """Return the samples of batches that have two classes or values; within others nothing is told
    of classes.
    """
    varying = [batch for batch in _levels(np.asarray(complete.batch)) if _varies(complete, batch)]
    return complete.at(np.any([np.zeros(len(complete.truth), bool), *varying], axis=0))


def _over_batches(complete: TargetPredictions) -> dict[str, float]:
    """Return the metrics of all samples that `within_batches` is of, without regard to their
    batch.
    """
    told = _in_varying_batches(complete) if complete.labels else complete
    return unweighted_metrics(told.measure, told.truth, told.predicted)


def batch_sentences(complete: TargetPredictions, name: str) -> list[str]:
    """Return what is left of the metrics inside the batches, and whether they hold for a new
    one.
    """
    if complete.batch is None:
        return []
    named = complete.batch.astype(str) != ""
    sentences = []
    if not named.all():
        sentences = [
            (
                f"{(~named).sum()} of {len(named)} samples have no {name}: what is said of one "
                "leaves them out."
            )
        ]
        complete = complete.at(named)
    if len(np.unique(np.asarray(complete.batch))) < 2:
        return sentences
    key = "auroc" if complete.labels else "r2"
    within = within_batches(complete)
    if math.isnan(within[key]):
        what = "samples of two classes" if complete.labels else "two values of the target"
        sentence = f"No {name} holds {what}: the target cannot be told from the {name}."
        if any(_varies(complete, batch) for batch in _levels(np.asarray(complete.batch))):
            sentence = f"No {name} holds {what} in one fold: there is no AUROC within a {name}."
        return [*sentences, sentence, *_new_batches(complete, name)]
    overall = _over_batches(complete)
    if complete.labels:
        mean = ", averaged over the classes" if len(complete.labels) > 2 else ""
        sentences += [
            f"Within a {name}, of pairs of samples of one {name} and of different classes{mean}, "
            "the AUROC is "
            f"{number(within[key])}; over all of these samples it is {number(overall[key])}."
        ]
        nothing = f"Inside a {name} the model {{}} samples better than chance."
        verbs = ("hardly orders", "is not seen to order")
    else:
        sentences += [
            f"Within a {name}, against each {name}'s own mean, R2 is {number(within[key])} "
            "(Pearson "
            f"{number(within['pearson'])}); over all batches it is {number(overall[key])}."
        ]
        nothing = f"Inside a {name} the model {{}} better than that {name}'s mean."
        verbs = ("hardly does", "is not seen to do")
    if within[key] <= NOTHING[key]:
        sentences.append(nothing.format(verbs[within[key] <= CHANCE[key]]))
    return sentences + _new_batches(complete, name)


def _new_batches(complete: TargetPredictions, name: str) -> list[str]:
    """Return whether the metrics hold for a batch never seen, as far as folds say."""
    if batches_held_out_whole(complete):
        return [f"Every {name} was held out whole: the metrics are those for a {name} never seen."]
    if complete.fold is None:
        return []
    text = (
        f"Samples of one {name} are in several folds: the metrics do not hold for a {name} "
        "never seen"
    )
    for place, label in enumerate(complete.labels):
        if len(np.unique(np.asarray(complete.batch)[complete.truth == place])) == 1:
            return [f"{text}; {label} is of one {name} only, so that --cv {name} cannot tell."]
    return [f"{text}; --cv {name} would tell."]


# A trivial baseline with these metrics solves the task by itself. Where one class is frequent,
# plain accuracy says nothing of the others.
SOLVED = {"auroc": 0.9, "balanced_accuracy": 0.9, "r2": 0.8}

# What a reader must know of samples that were not held out.
CAUTION: dict[Subset, str] = {
    "validation": (
        "These samples were used to make choices in training, so the metrics are better than those "
        "of new samples; --test-size or --cv holds samples out."
    ),
    "training": (
        "Training has seen samples among these: the metrics say nothing about new samples, and "
        "nothing is compared."
    ),
    "unknown": (
        "It is not known whether training has seen these samples; if it has, the metrics are too "
        "good."
    ),
}


# What a difference that is not shown means.
OPEN = "chance can explain this difference"


def _does(name: str, verb: str) -> str:
    """Return `Depth alone separates`, `The study's classes separate`."""
    plural = (
        " and " in name
        or name.endswith(("classes", "trees"))
        or name.startswith(("nearest", "covariates"))
    )
    return f"{name[0].upper()}{name[1:]} {verb}{'' if plural else 's'}"


def p_text(comparison: Comparison, tests: int) -> str:
    """Return p as it is read, and for how many baselines it was corrected, or that it is
    one-sided.
    """
    p = comparison.corrected_p
    text = f"p {number(p)}" if p >= 0.001 else "p below 0.001"
    if comparison.constant:
        return f"{text}, one-sided"
    return f"{text}, corrected for {tests} baselines (Holm)" if tests > 1 else text


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Return which trivial baselines solve the task by themselves."""
    key = {0: "r2", 2: "auroc"}.get(len(labels), "balanced_accuracy")
    most = max((one.samples for one in comparisons), default=0)
    values = {
        one.name: one.metrics[key].value
        for one in comparisons
        if one.trivial
        and not one.constant
        and one.groups >= intervals.LEAST_GROUPS
        and 2 * one.samples >= most
    }
    solved = {name: value for name, value in values.items() if value >= SOLVED[key]}
    if DEPTH in solved or RICHNESS in solved:
        solved.pop(DEPTH_AND_RICHNESS, None)
    does = ("separate", "the classes") if labels else ("explain", "most of the target")
    return [
        f"{_does(name, does[0])} {does[1]} ({TITLES[key]} {number(value)}): a model of this "
        "table may "
        "have learned that and nothing of the biology."
        for name, value in solved.items()
    ]


def _left_out(predictions: TargetPredictions) -> list[str]:
    """Return how many samples with a truth are in no metric, and why."""
    unknown = (
        predictions.truth == UNKNOWN_CLASS
        if predictions.labels
        else np.zeros(len(predictions.truth), bool)
    )
    has_truth = unknown | (
        predictions.truth >= 0 if predictions.labels else np.isfinite(predictions.truth)
    )
    absent = has_truth & ~unknown & ~predictions.has_both
    sentences = []
    if absent.any():
        sentences.append(
            f"{absent.sum()} of {has_truth.sum()} samples have no prediction and are in no metric."
        )
    if unknown.any():
        sentences.append(
            f"{unknown.sum()} of {has_truth.sum()} samples are of classes that the model does "
            "not know: they are in "
            "no metric, in which each would be an error."
        )
    return sentences


def _undefined_folds(complete: TargetPredictions) -> list[str]:
    """Return why the headline of two classes is not defined, or on which folds it rests, where one
    class is missing.
    """
    if len(complete.labels) != 2 or not len(complete.truth):
        return []
    classes = np.unique(complete.truth)
    if len(classes) < 2:
        return [
            (
                f"All samples are {complete.labels[classes[0]]!r}: there is no AUROC, and "
                "nothing is "
                "compared."
            )
        ]
    if not complete.cross_validated:
        return []
    folds = np.unique(np.asarray(complete.fold))
    both = sum(len(np.unique(complete.truth[complete.fold == fold])) > 1 for fold in folds)
    if both == len(folds):
        return []
    if both:
        return [
            (
                f"The AUROC is the mean over {both} of {len(folds)} folds: the others hold samples "
                "of one class only."
            )
        ]
    return [
        "No fold holds samples of both classes: there is no AUROC inside a fold, and nothing is "
        "compared. The pooled "
        "AUROC mixes the scores of different models; fewer folds hold both classes."
    ]


def _one_class(complete: TargetPredictions) -> list[str]:
    """Say that nearly all samples are predicted to be of one class, although they are not."""
    if not complete.labels or len(complete.truth) < LEAST_SAMPLES:
        return []
    predicted = complete.predicted.argmax(axis=1)
    chosen = np.bincount(predicted, minlength=len(complete.labels)) / len(predicted)
    most = int(chosen.argmax())
    share = float(np.mean(complete.truth == most))
    if chosen[most] < ONE_CLASS or chosen[most] - share < 1 - ONE_CLASS:
        return []
    label = complete.labels[most]
    return [f"{chosen[most]:.0%} of the samples are predicted as {label}, but {share:.0%} are."]


def _below_base_rate(complete: TargetPredictions, constant: Comparison | None) -> list[str]:
    """Say that naming the most frequent class is right more often than a model that ranks well."""
    if constant is None or len(complete.labels) != 2:
        return []
    model, guessed = constant.model["accuracy"], constant.metrics["accuracy"].value
    if not model < guessed:
        return []
    return [
        f"The accuracy is {number(model)}; guessing ({constant.name}) has {number(guessed)}. The "
        "AUROC judges the order of the samples only."
    ]


def _smallest_p(constant: Comparison, tests: int, complete: TargetPredictions) -> list[str]:
    """Say that so many baselines cannot be told from the model with so few groups."""
    inflation = intervals.inflation_of_difference(complete)
    lowest = tests * smallest_p(constant.groups, inflation)
    if not lowest > SIGNIFICANT:
        return []
    return [
        f"With {constant.groups} groups and {tests} baselines the smallest possible corrected p is "
        f"{number(min(lowest, 1.0))}: the model cannot be shown to do better than any of them."
    ]


# The verdict in three words, and the sign that goes with it on a page.
WORDS: dict[Outcome, tuple[str, Sign]] = {
    "better": ("Beats best baseline", "better"),
    "close": ("Close to baseline", "open"),
    "not shown": ("Not shown better", "open"),
    "worse": ("Worse than baseline", "worse"),
    "untested": ("Cannot be tested", "none"),
}


def _against_best(best: Comparison, constant: Comparison, key: str, tests: int) -> Verdict:
    """Compare with the best baseline."""
    state = outcome(best, constant, key)
    words, sign = WORDS[state]
    difference = (
        f"The {TITLES[key]} of the model minus that of {best.name}: "
        f"{with_limits(best.tested_difference)}"
    )
    if state == "untested":
        few = f": {too_few(best.groups)}, {intervals.LEAST_GROUPS} are needed"
        few = few if best.groups < intervals.LEAST_GROUPS else ""
        return Verdict(words, f"{difference}; not tested{few}.", sign)
    if state == "close":
        share = f"{100 * share_of_gain(best, constant, key):.0f} %"
        name = f"{best.name[0].upper()}{best.name[1:]}"
        text = f"{name} has {share} of the model's gain over {constant.name}."
        return Verdict(words, text, sign)
    open_ = f": {OPEN}" if state == "not shown" else ""
    return Verdict(words, f"{difference}; {p_text(best, tests)}{open_}.", sign)


def _compared(comparisons: Sequence[Comparison], key: str) -> Verdict:
    """Compare with the best baseline and with guessing."""
    full, constant = full_baselines(comparisons, key), best_constant(comparisons, key)
    if not full or constant is None:
        return Verdict("No baseline given", "Nothing is compared.")
    best, chance = full[0], outcome(constant, constant, key)
    found = _against_best(best, constant, key, tests_corrected_for(comparisons))
    if found.sign == "better" and all(one.constant for one in full):
        found = replace(found, words="Better than guessing", sign="open")
    elif found.sign == "better" and all(one.trivial for one in full):
        found = replace(found, words="Beats trivial baselines")
    if chance in ("not shown", "worse"):
        text = "not shown to do better than" if chance == "not shown" else "worse than"
        sentence = f"The model is {text} {constant.name} ({p_text(constant, 1)})."
        if chance == "worse":
            return Verdict("Worse than guessing", sentence, "worse")
        return Verdict("Chance not excluded", sentence, "open")
    if chance in ("better", "close") and best is not constant:
        if found.words == WORDS["not shown"][0]:
            sentence = f"Not shown to do better than {best.name}. {found.sentence}"
            return replace(found, words="Better than guessing", sentence=sentence)
        return replace(found, sentence=f"Better than guessing ({constant.name}). {found.sentence}")
    return found


def verdict(
    predictions: TargetPredictions,
    comparisons: Sequence[Comparison],
    batch_name: str = "batch",
    subset: Subset = "held-out",
) -> Verdict:
    """Judge predictions by their comparison with baselines, and say what limits the judgement."""
    complete = predictions.complete()
    key = headline(complete.labels)
    cautions = [CAUTION[subset]] if subset in CAUTION else []
    cautions += _left_out(predictions)
    if subset == "training":
        found = Verdict("Seen in training", "Samples of training are not compared.")
    elif not len(complete.truth):
        found = Verdict("Nothing to judge", "No sample has both a value and a prediction.")
    else:
        found = _compared(comparisons, key)
        constant = best_constant(comparisons, key)
        cautions += [*_undefined_folds(complete), *_one_class(complete)]
        cautions += _below_base_rate(complete, constant)
        if constant is not None:
            cautions += _smallest_p(constant, tests_corrected_for(comparisons), complete)
        cautions += [*_solved(comparisons, complete.labels), *batch_sentences(complete, batch_name)]
    if complete.group_count < intervals.LEAST_GROUPS:
        cautions.append(
            f"{too_few(complete.group_count)} for intervals and tests; {intervals.LEAST_GROUPS} "
            "are needed, so nothing is shown to be better than anything."
        )
    elif rests_on := intervals.rough(complete):
        cautions.append(f"Intervals and tests rest on {rests_on}: read them as rough.")
    return replace(found, cautions=tuple(cautions))
