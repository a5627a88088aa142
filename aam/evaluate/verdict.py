"""The verdict: the comparison with baselines in words, and what limits that statement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from aam.evaluate import comparison, intervals
from aam.evaluate.comparison import Comparison, Outcome
from aam.evaluate.conformal import CONFORMAL_LEVEL
from aam.evaluate.intervals import LEAST_GROUPS, number, too_few, with_limits
from aam.evaluate.metrics import TITLES, unweighted_metrics
from aam.evaluate.predictions import UNKNOWN_CLASS, EvaluatedSubset, TargetPredictions

if TYPE_CHECKING:
    from aam.evaluate.evaluation import Evaluation

# What a sign of a page says.
Sign = Literal["better", "open", "worse", "none"]

# The verdict in three words, and the sign that goes with it, by the outcome against the best
# baseline.
OUTCOME_TITLES: dict[Outcome, tuple[str, Sign]] = {
    "better": ("Beats best baseline", "better"),
    "close": ("Close to baseline", "open"),
    "not shown": ("Not shown better", "open"),
    "worse": ("Worse than baseline", "worse"),
    "untested": ("Cannot be tested", "none"),
}

# What a reader must know of samples that were not held out.
CAUTION: dict[EvaluatedSubset, str] = {
    "validation": (
        "Training made choices on these samples, so that new samples will do worse; --test-size or "
        "--cv holds samples out."
    ),
    "training": "Training has seen these samples: the metrics say nothing about new ones.",
    "seen-group": (
        "Training has seen other samples of these groups: the metrics are too good for new groups."
    ),
}

# A caution names the class if at least this share of at least this number of samples is predicted
# as one class, and that share exceeds the true one by the rest.
ONE_CLASS, LEAST_VERDICT_SAMPLES = 0.95, 20

# A trivial baseline with these metrics solves the task by itself. Where one class is frequent,
# plain accuracy says nothing of the others.
SOLVED = {"auroc": 0.9, "balanced_accuracy": 0.9, "r2": 0.8}


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


def make_verdict(result: Evaluation) -> Verdict:
    """Compare a target with its baselines in words, and say what limits that statement."""
    if result.subset == "training":
        verdict = Verdict("Seen in training", "Samples of training are not compared.")
    elif not len(result.complete.truth):
        verdict = Verdict("Nothing to judge", "No sample has both a value and a prediction.")
    else:
        verdict = compare_in_words(result.comparisons)
    return replace(verdict, cautions=tuple(_cautions(result)))


# --- the comparison in words -------------------------------------------------------------------


def _p_text(rival: Comparison, tests: int) -> str:
    """p as text, with the number of baselines of its correction, or "one-sided"."""
    p = rival.corrected_p
    text = f"p {number(p)}" if p >= 0.001 else "p below 0.001"
    if rival.constant:
        return f"{text}, one-sided"
    return f"{text}, corrected for {tests} baselines (Holm)" if tests > 1 else text


def _against_best(best: Comparison, constant: Comparison, tests: int) -> str:
    """Compare with the best baseline in a sentence."""
    state, title = comparison.outcome(best, constant), TITLES[best.key]
    difference, p = with_limits(best.tested_difference), _p_text(best, tests)
    if state == "close":
        share = f"{100 * comparison.share_of_gain(best, constant):.0f} % of the model's gain"
        return f"{best.name[0].upper()}{best.name[1:]} has {share} over {constant.name}."
    if state == "not shown":
        text = f"Not shown to do better than {best.name}: the {title} differs by"
        return f"{text} {difference}; {p}."
    if state == "untested":
        few = f": {too_few(best.groups)}, {LEAST_GROUPS} are needed"
        p = f"not tested{few if best.groups < LEAST_GROUPS else ''}"
    return f"The {title} of the model minus that of {best.name}: {difference}; {p}."


def compare_in_words(comparisons: Sequence[Comparison]) -> Verdict:
    """Compare with the best baseline and with guessing."""
    full, constant = comparison.full_baselines(comparisons), comparison.best_constant(comparisons)
    if not full or constant is None:
        return Verdict("No baseline given", "Nothing is compared.")
    against_chance, p = comparison.outcome(constant, constant), _p_text(constant, 1)
    if against_chance == "worse":
        text = f"The model is worse than {constant.name} ({p})."
        return Verdict("Worse than guessing", text, "worse")
    if against_chance == "not shown":
        why = (
            f"{p}; the interval of the AUROC contains 0.5" if constant.interval_holds_chance else p
        )
        text = f"The model is not shown to do better than {constant.name} ({why})."
        return Verdict("Chance not excluded", text, "open")
    best, beats_chance = full[0], against_chance == "better"
    state = comparison.outcome(best, constant)
    sentence = _against_best(best, constant, comparison.tests_corrected_for(comparisons))
    only_guesses = state == "better" and all(rival.constant for rival in full)
    if only_guesses or (state == "not shown" and beats_chance):
        return Verdict("Better than guessing", sentence, "open")
    if beats_chance and best is not constant:
        sentence = f"Better than guessing ({constant.name}). {sentence}"
    words, sign = OUTCOME_TITLES[state]
    if state == "better" and all(rival.trivial for rival in full):
        words = "Beats trivial baselines"
    return Verdict(words, sentence, sign)


# --- cautions ----------------------------------------------------------------------------------


def _cautions(result: Evaluation) -> list[str]:
    """What limits the judgement of a target."""
    complete, coverage = result.complete, result.coverage.get("coverage")
    cautions = [CAUTION[result.subset]] if result.subset in CAUTION else []
    cautions += _unscored(result.predictions)
    if result.subset != "training" and len(complete.truth):
        if complete.labels:
            cautions += _absent_classes(complete)
            cautions += _frequent_class(complete)
            cautions += _low_accuracy(comparison.best_constant(result.comparisons))
        cautions += _solved(result.comparisons, complete.labels)
        cautions += batch_sentences(complete, result.names.batch, bool(result.in_new_batches))
    cautions += _spread_of_new_batches(result)
    if complete.group_count < LEAST_GROUPS:
        few = f"{too_few(complete.group_count)} for intervals and tests"
        cautions.append(f"{few}; {LEAST_GROUPS} are needed, so nothing is tested.")
    elif rests_on := intervals.rough(complete):
        cautions.append(f"Intervals and tests rest on {rests_on}: read them as rough.")
    if coverage is not None and coverage.high < CONFORMAL_LEVEL:
        level = f"The {100 * CONFORMAL_LEVEL:.0f} % intervals of predictions"
        cautions.append(f"{level} hold only {with_limits(coverage)} of the true values.")
    if complete.groups is None:
        cautions.append("No group column is named: samples of one subject count as independent.")
    return cautions


def _spread_of_new_batches(result: Evaluation) -> list[str]:
    """Say how the metric differs between batches, or values of a column, held out whole."""
    name, values = result.names.batch, result.in_new_batches
    if not values and (name := result.names.fold):
        values = result.sorted_key(result.folds)
    if not values:
        return []
    mean, low, high = map(number, (float(np.mean(values)), values[0], values[-1]))
    return [
        f"Each of {len(values)} values of {name} was held out whole: {TITLES[result.key]} {mean} "
        f"on average, {low} to {high}. Expect a new one within this spread, not within the "
        "interval."
    ]


def _unscored(predictions: TargetPredictions) -> list[str]:
    """Number of samples with a truth that are in no metric, and the reason."""
    truth, is_class = predictions.truth, bool(predictions.labels)
    unknown = (truth == UNKNOWN_CLASS) & is_class
    missing = truth == -1 if is_class else np.isnan(truth)
    counts = {
        "have no prediction": (~(missing | unknown | predictions.has_both)).sum(),
        "are of classes that the model does not know": unknown.sum(),
    }
    total = f"of {(~missing).sum()} samples"
    return [
        f"{count} {total} {reason} and are in no metric."
        for reason, count in counts.items()
        if count
    ]


def _absent_classes(complete: TargetPredictions) -> list[str]:
    """Say that all samples are of one class, or that folds lack one of two and have no AUROC."""
    labels, truth = complete.labels, complete.truth
    if len(np.unique(truth)) == 1:
        return [f"All samples are {labels[truth[0]]!r}: other classes are not judged."]
    has_both = pd.Series(truth).groupby(complete.folds).nunique() > 1
    if len(labels) > 2 or has_both.all():
        return []
    folds = f"{has_both.sum()} of {len(has_both)} folds have both classes"
    result = "the AUROC is the mean over these" if has_both.any() else "there is no AUROC"
    return [f"{folds}: {result}."]


def _frequent_class(complete: TargetPredictions) -> list[str]:
    """Say that nearly all samples are predicted as one class."""
    truth, predicted = complete.truth, complete.predicted.argmax(axis=1)
    most = int(np.bincount(predicted).argmax())
    predicted_share, true_share = float(np.mean(predicted == most)), float(np.mean(truth == most))
    if len(truth) < LEAST_VERDICT_SAMPLES or predicted_share < max(
        ONE_CLASS, true_share + 1 - ONE_CLASS
    ):
        return []
    label = complete.labels[most]
    return [
        f"{predicted_share:.0%} of the samples are predicted as {label}, but {true_share:.0%} are. "
        "--class-weights balanced gives each class the same weight in training."
    ]


def _low_accuracy(constant: Comparison | None) -> list[str]:
    """Say that guessing one of two classes has a higher accuracy than the model."""
    if constant is None or constant.key != "auroc":
        return []
    model, guess = constant.model["accuracy"], constant.metrics["accuracy"].value
    if model >= guess:
        return []
    return [
        f"The accuracy is {number(model)}; guessing ({constant.name}) has {number(guess)}. "
        "AUROC judges order only."
    ]


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Trivial baselines of at least half of the samples that solve the task by themselves."""
    key = {0: "r2", 2: "auroc"}.get(len(labels), "balanced_accuracy")
    most = max((rival.samples for rival in comparisons), default=0)
    solved = dict[str, float]()
    for rival in comparisons:
        enough = rival.groups >= LEAST_GROUPS and 2 * rival.samples >= most
        value = rival.metrics[key].value
        if rival.trivial and not rival.constant and enough and value >= SOLVED[key]:
            solved[rival.name] = value
    if comparison.DEPTH_ALONE in solved or comparison.RICHNESS_ALONE in solved:
        solved.pop(comparison.DEPTH_AND_RICHNESS, None)
    effect = "separates the classes" if labels else "explains most of the target"
    return [
        f'The baseline "{name}" {effect} ({TITLES[key]} {number(value)}): the model may have '
        "learned this instead of biology."
        for name, value in solved.items()
    ]


# --- cautions about batches ----------------------------------------------------------------------


def within_batches(complete: TargetPredictions) -> float:
    """R2 against each batch's own mean; of classes the AUROC inside each batch and fold, the mean
    weighted by samples. NaN if the target does not vary there.
    """
    truth, batch = pd.Series(complete.truth), np.asarray(complete.batch)
    if complete.labels:
        cells = truth.groupby([batch, complete.folds])
        by_cell = replace(complete, fold=cells.ngroup().to_numpy())
        varied = by_cell.at(cells.transform("nunique") > 1)
        return unweighted_metrics(varied.measure, varied.truth, varied.predicted)["auroc"]
    around = float(((truth - truth.groupby(batch).transform("mean")) ** 2).sum())
    varies = bool((truth.groupby(batch).nunique() > 1).any())
    return 1 - float((complete.errors**2).sum()) / around if varies else math.nan


def batch_sentences(
    complete: TargetPredictions, name: str, has_new_batches: bool = False
) -> list[str]:
    """Sentences about the metrics inside batches and, unless another one says what
    `has_new_batches` mean, about new batches.
    """
    if complete.batch is None:
        return []
    sentences, has_batch = list[str](), complete.batch.astype(str) != ""
    if not has_batch.all():
        without = f"{(~has_batch).sum()} of {len(has_batch)} samples have no {name}"
        sentences.append(f"{without} and are left out of statements about it.")
        complete = complete.at(has_batch)
    if len(np.unique(np.asarray(complete.batch))) < 2:
        return sentences
    sentences += _inside_batches(complete, name)
    if complete.fold is not None and not has_new_batches:
        sentences.append(_new_batches(complete, name))
    return sentences


def _inside_batches(complete: TargetPredictions, name: str) -> list[str]:
    """Say how good the predictions are inside batches, compared with all samples."""
    labels, inside = complete.labels, within_batches(complete)
    if math.isnan(inside):
        return [
            f"No {name} holds two values of the target in one fold: the target may not be told "
            f"from the {name}."
        ]
    # In batches of one class nothing is told of classes.
    varies = pd.Series(complete.truth).groupby(complete.batch).transform("nunique") > 1
    compared = complete.at(varies.to_numpy()) if labels else complete
    key, reference = ("auroc", "") if labels else ("r2", f" against each {name}'s own mean")
    over = unweighted_metrics(compared.measure, compared.truth, compared.predicted)[key]
    text = f"Within a {name}, the {TITLES[key]}{reference} is {number(inside)}"
    return [f"{text}; over all of these samples it is {number(over)}."]


def _new_batches(complete: TargetPredictions, name: str) -> str:
    """Say whether the metrics hold for a new batch."""
    if complete.batches_held_out_whole:
        return f"Every {name} was held out whole: the metrics are those for a {name} never seen."
    return (
        f"Samples of one {name} are in several folds: the metrics do not hold for a {name} never "
        f"seen; --cv {name} holds each out whole."
    )
