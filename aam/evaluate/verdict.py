"""The verdict on predictions: whether they beat the baselines, and what limits that statement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from aam.evaluate import intervals
from aam.evaluate.comparison import (
    DEPTH,
    DEPTH_AND_RICHNESS,
    RICHNESS,
    Comparison,
    Outcome,
    best_constant,
    full_baselines,
    headline,
    outcome,
    share_of_gain,
    tests_corrected_for,
)
from aam.evaluate.intervals import number, too_few, with_limits
from aam.evaluate.metrics import TITLES, Array, auroc, mean_of_defined, pearson, unweighted_metrics
from aam.evaluate.new_studies import batches_held_out_whole
from aam.evaluate.target_predictions import UNKNOWN_CLASS, Subset, TargetPredictions

# What a sign of a page says.
Sign = Literal["better", "open", "worse", "none"]

# The verdict in three words, and the sign that goes with it, by the outcome against the best
# baseline.
WORDS: dict[Outcome, tuple[str, Sign]] = {
    "better": ("Beats best baseline", "better"),
    "close": ("Close to baseline", "open"),
    "not shown": ("Not shown better", "open"),
    "worse": ("Worse than baseline", "worse"),
    "untested": ("Cannot be tested", "none"),
}

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

# A caution names the class if at least this share of at least this number of samples is predicted
# as one class.
ONE_CLASS, LEAST_SAMPLES = 0.95, 20

# A trivial baseline with these metrics solves the task by itself. Where one class is frequent,
# plain accuracy says nothing of the others.
SOLVED = {"auroc": 0.9, "balanced_accuracy": 0.9, "r2": 0.8}

# At most these metrics inside the batches are next to nothing; at most those, chance.
NOTHING, CHANCE = {"auroc": 0.55, "r2": 0.05}, {"auroc": 0.5, "r2": 0.0}


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


def verdict(
    predictions: TargetPredictions,
    comparisons: Sequence[Comparison],
    batch_name: str = "batch",
    subset: Subset = "held-out",
) -> Verdict:
    """Judge predictions by their comparison with baselines, and say what limits the judgement."""
    complete = predictions.complete()
    constant = best_constant(comparisons, headline(complete.labels))
    cautions = [CAUTION[subset]] if subset in CAUTION else []
    cautions += _left_out(predictions)
    if subset == "training":
        found = Verdict("Seen in training", "Samples of training are not compared.")
    elif not len(complete.truth):
        found = Verdict("Nothing to judge", "No sample has both a value and a prediction.")
    else:
        found = _compared(comparisons, headline(complete.labels))
        cautions += [
            *_undefined_folds(complete),
            *_one_class(complete),
            *_below_base_rate(complete, constant),
            *_solved(comparisons, complete.labels),
            *batch_sentences(complete, batch_name),
        ]
    if complete.group_count < intervals.LEAST_GROUPS:
        cautions.append(
            f"{too_few(complete.group_count)} for intervals and tests; {intervals.LEAST_GROUPS} "
            "are needed, so nothing is tested."
        )
    elif rests_on := intervals.rough(complete):
        cautions.append(f"Intervals and tests rest on {rests_on}: read them as rough.")
    return replace(found, cautions=tuple(cautions))


# --- the comparison ----------------------------------------------------------------------------


def _p_text(comparison: Comparison, tests: int) -> str:
    """p as text, with the number of baselines of its correction, or "one-sided"."""
    p = comparison.corrected_p
    text = f"p {number(p)}" if p >= 0.001 else "p below 0.001"
    if comparison.constant:
        return f"{text}, one-sided"
    return f"{text}, corrected for {tests} baselines (Holm)" if tests > 1 else text


def _against_best(best: Comparison, constant: Comparison, key: str, tests: int) -> Verdict:
    """Compare with the best baseline."""
    state = outcome(best, constant, key)
    words, sign = WORDS[state]
    if state == "close":
        share = f"{100 * share_of_gain(best, constant, key):.0f} %"
        name = f"{best.name[0].upper()}{best.name[1:]}"
        return Verdict(words, f"{name} has {share} of the model's gain over {constant.name}.", sign)
    difference = with_limits(best.tested_difference)
    if state == "not shown":
        text = f"Not shown to do better than {best.name}: the {TITLES[key]} differs by {difference}"
        return Verdict(words, f"{text}; {_p_text(best, tests)}.", sign)
    text = f"The {TITLES[key]} of the model minus that of {best.name}: {difference}; "
    if state == "untested":
        few = f": {too_few(best.groups)}, {intervals.LEAST_GROUPS} are needed"
        text += f"not tested{few if best.groups < intervals.LEAST_GROUPS else ''}."
    else:
        text += f"{_p_text(best, tests)}."
    return Verdict(words, text, sign)


def _compared(comparisons: Sequence[Comparison], key: str) -> Verdict:
    """Compare with the best baseline and with guessing."""
    full, constant = full_baselines(comparisons, key), best_constant(comparisons, key)
    if not full or constant is None:
        return Verdict("No baseline given", "Nothing is compared.")
    best, chance = full[0], outcome(constant, constant, key)
    found = _against_best(best, constant, key, tests_corrected_for(comparisons))
    if found.sign == "better" and all(comparison.constant for comparison in full):
        found = replace(found, words="Better than guessing", sign="open")
    elif found.sign == "better" and all(comparison.trivial for comparison in full):
        found = replace(found, words="Beats trivial baselines")
    p = _p_text(constant, 1)
    if chance == "worse":
        text = f"The model is worse than {constant.name} ({p})."
        return Verdict("Worse than guessing", text, "worse")
    if chance == "not shown":
        text = f"The model is not shown to do better than {constant.name} ({p})."
        return Verdict("Chance not excluded", text, "open")
    if chance == "untested" or best is constant:
        return found
    if found.words == WORDS["not shown"][0]:
        return replace(found, words="Better than guessing")
    return replace(found, sentence=f"Better than guessing ({constant.name}). {found.sentence}")


# --- cautions ----------------------------------------------------------------------------------


def _left_out(predictions: TargetPredictions) -> list[str]:
    """Number of samples with a truth that are in no metric, and the reason."""
    truth = predictions.truth
    unknown = (truth == UNKNOWN_CLASS) if predictions.labels else np.zeros(len(truth), bool)
    known = (truth >= 0) if predictions.labels else np.isfinite(truth)
    absent, total = int((known & ~predictions.has_both).sum()), int((known | unknown).sum())
    sentences = []
    if absent:
        sentences.append(f"{absent} of {total} samples have no prediction and are in no metric.")
    if unknown.any():
        sentences.append(
            f"{unknown.sum()} of {total} samples are of classes that the model does not know. "
            "Metrics leave them out; each would be an error."
        )
    return sentences


def _undefined_folds(complete: TargetPredictions) -> list[str]:
    """Folds on which the headline of two classes rests, or the reason why it is undefined."""
    if len(complete.labels) != 2:
        return []
    classes = np.unique(complete.truth)
    if len(classes) < 2:
        label = complete.labels[classes[0]]
        return [f"All samples are {label!r}: there is no AUROC, and nothing is compared."]
    if not complete.cross_validated:
        return []
    of_folds = pd.Series(complete.truth).groupby(np.asarray(complete.fold)).nunique()
    both = int((of_folds > 1).sum())
    if both == len(of_folds):
        return []
    if both:
        return [
            f"The AUROC is the mean over {both} of {len(of_folds)} folds: the others hold samples "
            "of one class only."
        ]
    return [
        "No fold holds samples of both classes: there is no AUROC inside a fold, and nothing is "
        "compared. The pooled AUROC mixes the scores of different models; fewer folds "
        "hold both classes."
    ]


def _one_class(complete: TargetPredictions) -> list[str]:
    """Say that nearly all samples are predicted to be of one class, although they are not."""
    if not complete.labels or len(complete.truth) < LEAST_SAMPLES:
        return []
    predicted = complete.predicted.argmax(axis=1)
    most = int(np.bincount(predicted).argmax())
    chosen, share = float(np.mean(predicted == most)), float(np.mean(complete.truth == most))
    if chosen < ONE_CLASS or chosen - share < 1 - ONE_CLASS:
        return []
    label = complete.labels[most]
    return [f"{chosen:.0%} of the samples are predicted as {label}, but {share:.0%} are."]


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


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Trivial baselines of at least half of the samples that solve the task by themselves."""
    key = {0: "r2", 2: "auroc"}.get(len(labels), "balanced_accuracy")
    most = max((comparison.samples for comparison in comparisons), default=0)
    solved = {
        comparison.name: comparison.metrics[key].value
        for comparison in comparisons
        if comparison.trivial
        and not comparison.constant
        and comparison.groups >= intervals.LEAST_GROUPS
        and 2 * comparison.samples >= most
        and comparison.metrics[key].value >= SOLVED[key]
    }
    if DEPTH in solved or RICHNESS in solved:
        solved.pop(DEPTH_AND_RICHNESS, None)
    does = "separates the classes" if labels else "explains most of the target"
    return [
        f'The baseline "{name}" {does} ({TITLES[key]} {number(value)}): the model may have '
        "learned this instead of biology."
        for name, value in solved.items()
    ]


# --- batches -----------------------------------------------------------------------------------


def within_batches(complete: TargetPredictions) -> dict[str, float]:
    """Metrics of differences among samples of one batch, without the batch itself.

    For a numeric target the R2 against each batch's own mean and the Pearson correlation of truth
    and prediction after subtracting their batch means; for classes the AUROC of the pairs that lie
    in one batch and, under cross-validation, in one fold: the scores of two models have no common
    order.
    """
    batch = np.asarray(complete.batch)
    if not complete.labels:
        values = pd.DataFrame({"truth": complete.truth, "predicted": complete.predicted})
        truth, predicted = (values - values.groupby(batch).transform("mean")).to_numpy().T
        squares = float(np.square(complete.predicted - complete.truth).sum())
        varies = bool((values["truth"].groupby(batch).nunique() > 1).any())
        r2 = 1 - squares / float(truth @ truth) if varies else math.nan
        return {"r2": r2, "pearson": pearson(truth, predicted)}
    levels = [batch] if not complete.cross_validated else [batch, np.asarray(complete.fold)]
    cells = list(pd.Series(complete.truth).groupby(levels).indices.values())
    areas = []
    for k in [1] if len(complete.labels) == 2 else range(len(complete.labels)):
        positive, score = complete.truth == k, complete.predicted[:, k]
        pairs = np.array([float(positive[at].sum()) * float((~positive[at]).sum()) for at in cells])
        ordered = np.nansum(pairs * np.array([auroc(positive[at], score[at]) for at in cells]))
        areas.append(ordered / pairs.sum() if pairs.any() else math.nan)
    return {"auroc": float(mean_of_defined(np.array(areas)[None])[0])}


def _varying(complete: TargetPredictions) -> Array:
    """Samples of batches with two classes or values, bool [N]."""
    levels = pd.Series(complete.truth).groupby(np.asarray(complete.batch))
    return np.asarray(levels.transform("nunique") > 1)


def batch_sentences(complete: TargetPredictions, name: str) -> list[str]:
    """Sentences about the metrics inside batches, and about new batches."""
    if complete.batch is None:
        return []
    sentences, named = [], complete.batch.astype(str) != ""
    if not named.all():
        sentences.append(
            f"{(~named).sum()} of {len(named)} samples have no {name} and are left out of "
            "statements about it."
        )
        complete = complete.at(named)
    if len(np.unique(np.asarray(complete.batch))) < 2:
        return sentences
    key, varying = "auroc" if complete.labels else "r2", _varying(complete)
    within = within_batches(complete)
    if math.isnan(within[key]):
        what = "samples of two classes" if complete.labels else "two values of the target"
        why = ": the target cannot be told from the " + name
        if varying.any():
            why = f" in one fold: there is no AUROC within a {name}"
        sentences.append(f"No {name} holds {what}{why}.")
        return sentences + _new_batches(complete, name)
    # In batches of one class nothing is told of classes.
    told = complete.at(varying) if complete.labels else complete
    overall = unweighted_metrics(told.measure, told.truth, told.predicted)[key]
    nothing = "order samples better than chance"
    if complete.labels:
        mean = ", averaged over the classes" if len(complete.labels) > 2 else ""
        text = f"of pairs of samples of one {name} and of different classes{mean}, the AUROC is "
        text += f"{number(within[key])}; over all of these samples it is {number(overall)}."
    else:
        nothing = f"do better than that {name}'s mean"
        text = f"against each {name}'s own mean, R2 is {number(within[key])} (Pearson "
        text += f"{number(within['pearson'])}); over all batches it is {number(overall)}."
    sentences.append(f"Within a {name}, {text}")
    if within[key] <= NOTHING[key]:
        seen = "is not seen to" if within[key] <= CHANCE[key] else "is hardly seen to"
        sentences.append(f"Inside a {name} the model {seen} {nothing}.")
    return sentences + _new_batches(complete, name)


def _new_batches(complete: TargetPredictions, name: str) -> list[str]:
    """Whether the metrics hold for a batch never seen, as far as folds say."""
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
            return [f"{text}; {label} is of one {name} only, so --cv {name} cannot test it."]
    return [f"{text}; --cv {name} would test it."]
