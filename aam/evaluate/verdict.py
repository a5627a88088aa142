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
from aam.evaluate.predictions import EvaluatedSubset, TargetPredictions

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

# The same where guessing is not beaten, by the outcome against it.
CHANCE_TITLES: dict[Outcome, tuple[str, Sign]] = {
    "not shown": ("Chance not excluded", "open"),
    "worse": ("Worse than guessing", "worse"),
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


def _in_words(rival: Comparison) -> str:
    """The difference from a baseline in a sentence, with its p if it is tested."""
    p, kind = rival.corrected_p, "one-sided" if rival.constant else "corrected (Holm)"
    tested = f"p {number(p)}, {kind}" if p >= 0.001 else f"p below 0.001, {kind}"
    difference = with_limits(rival.tested_difference)
    text = f"The {TITLES[rival.key]} of the model minus that of {rival.name}: {difference}"
    return f"{text}; {'not tested' if math.isnan(p) else tested}."


def compare_in_words(comparisons: Sequence[Comparison]) -> Verdict:
    """Compare with the best baseline and with guessing."""
    full, constant = comparison.full_baselines(comparisons), comparison.best_constant(comparisons)
    if not full or constant is None:
        return Verdict("No baseline given", "Nothing is compared.")
    best, against_chance = full[0], comparison.outcome(constant, constant)
    if against_chance in CHANCE_TITLES:
        words, sign = CHANCE_TITLES[against_chance]
        return Verdict(words, _in_words(constant), sign)
    state, beats_chance = comparison.outcome(best, constant), against_chance == "better"
    sentence = _in_words(best)
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
        cautions += _solved(result.comparisons, complete.labels)
        cautions += batch_sentences(complete, result.names.batch)
    cautions += _spread_of_new_batches(result)
    if complete.group_count < LEAST_GROUPS:
        few = too_few(complete.group_count, "groups")
        cautions.append(f"Nothing is tested: {few}, {LEAST_GROUPS} are needed.")
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
    """Number of samples with a truth that are in no metric."""
    truth = predictions.truth
    has_truth = truth != -1 if predictions.labels else ~np.isnan(truth)
    unscored = (has_truth & ~predictions.has_both).sum()
    return [
        f"{unscored} of {has_truth.sum()} samples with a value are in no metric: they have no "
        "prediction, or a class that the model does not know."
    ] * bool(unscored)


def _absent_classes(complete: TargetPredictions) -> list[str]:
    """Say that all samples are of one class, or that folds lack one of two and have no AUROC."""
    labels, truth = complete.labels, complete.truth
    if len(np.unique(truth)) == 1:
        return [f"All samples are {labels[truth[0]]!r}: other classes are not judged."]
    has_both = pd.Series(truth).groupby(complete.folds).nunique() > 1
    folds = f"{has_both.sum()} of {len(has_both)} folds have both classes"
    return [f"{folds}: the others have no AUROC."] * (len(labels) == 2 and not has_both.all())


def _frequent_class(complete: TargetPredictions) -> list[str]:
    """Say that nearly all samples are predicted as one class."""
    truth, predicted = complete.truth, complete.predicted.argmax(axis=1)
    most = int(np.bincount(predicted).argmax())
    predicted_share, true_share = float(np.mean(predicted == most)), float(np.mean(truth == most))
    least = max(ONE_CLASS, true_share + 1 - ONE_CLASS)
    if len(truth) < LEAST_VERDICT_SAMPLES or predicted_share < least:
        return []
    label = complete.labels[most]
    return [
        f"{predicted_share:.0%} of the samples are predicted as {label}, but {true_share:.0%} are. "
        "--class-weights balanced gives each class the same weight in training."
    ]


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Trivial baselines of at least half of the samples that solve the task by themselves."""
    key = {0: "r2", 2: "auroc"}.get(len(labels), "balanced_accuracy")
    most = max((rival.samples for rival in comparisons), default=0)
    return [
        f'The baseline "{rival.name}" has {TITLES[key]} {number(value)}: the model may have '
        "learned this instead of biology."
        for rival in comparisons
        if rival.trivial and not rival.constant and 2 * rival.samples >= most
        if rival.groups >= LEAST_GROUPS and (value := rival.metrics[key].value) >= SOLVED[key]
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


def batch_sentences(complete: TargetPredictions, name: str) -> list[str]:
    """Sentences about the metrics inside batches and about new batches."""
    if complete.batch is None:
        return []
    complete = complete.at(complete.batch.astype(str) != "")
    if len(np.unique(np.asarray(complete.batch))) < 2:
        return []
    sentences = [_inside_batches(complete, name)]
    if complete.fold is not None and not complete.batches_held_out_whole:
        sentences.append(
            f"Samples of one {name} are in several folds: the metrics do not hold for a {name} "
            f"never seen; --cv {name} holds each out whole."
        )
    return sentences


def _inside_batches(complete: TargetPredictions, name: str) -> str:
    """Say how good the predictions are inside batches, compared with all samples."""
    labels, inside = complete.labels, within_batches(complete)
    if math.isnan(inside):
        return (
            f"No {name} holds two values of the target in one fold: the target may not be told "
            f"from the {name}."
        )
    # In batches of one class nothing is told of classes.
    varies = pd.Series(complete.truth).groupby(complete.batch).transform("nunique") > 1
    compared = complete.at(varies.to_numpy()) if labels else complete
    key, reference = ("auroc", "") if labels else ("r2", f" against each {name}'s own mean")
    over = unweighted_metrics(compared.measure, compared.truth, compared.predicted)[key]
    text = f"Within a {name}, the {TITLES[key]}{reference} is {number(inside)}"
    return f"{text}; over all of these samples it is {number(over)}."
