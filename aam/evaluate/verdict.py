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
    outcome,
    share_of_gain,
    tests_corrected_for,
)
from aam.evaluate.intervals import number, too_few, with_limits
from aam.evaluate.metrics import TITLES, auroc, mean_of_defined, unweighted_metrics
from aam.evaluate.predictions import UNKNOWN_CLASS, Subset, TargetPredictions

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
        "Training made choices on these samples, so that new samples will do worse; --test-size or "
        "--cv holds samples out."
    ),
    "training": "Training has seen these samples: the metrics say nothing about new ones.",
    "unknown": "If training has seen these samples, which is not known, the metrics are too good.",
}

# A caution names the class if at least this share of at least this number of samples is predicted
# as one class, and that share exceeds the true one by the rest.
ONE_CLASS, LEAST_SAMPLES = 0.95, 20

# A trivial baseline with these metrics solves the task by itself. Where one class is frequent,
# plain accuracy says nothing of the others.
SOLVED = {"auroc": 0.9, "balanced_accuracy": 0.9, "r2": 0.8}

# At most these metrics inside the batches are next to nothing.
NOTHING = {"auroc": 0.55, "r2": 0.05}


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
    known = predictions.complete()
    cautions = [CAUTION[subset]] if subset in CAUTION else []
    cautions += _left_out(predictions)
    if subset == "training":
        found = Verdict("Seen in training", "Samples of training are not compared.")
    elif not len(known.truth):
        found = Verdict("Nothing to judge", "No sample has both a value and a prediction.")
    else:
        found = _compared(comparisons)
        cautions += _of_classes(known, best_constant(comparisons)) if known.labels else []
        cautions += _solved(comparisons, known.labels)
        cautions += batch_sentences(known, batch_name)
    least = intervals.LEAST_GROUPS
    if known.group_count < least:
        few = f"{too_few(known.group_count)} for intervals and tests"
        cautions.append(f"{few}; {least} are needed, so nothing is tested.")
    elif rests_on := intervals.rough(known):
        cautions.append(f"Intervals and tests rest on {rests_on}: read them as rough.")
    return replace(found, cautions=tuple(cautions))


def _p_text(comparison: Comparison, tests: int) -> str:
    """p as text, with the number of baselines of its correction, or "one-sided"."""
    p = comparison.corrected_p
    text = f"p {number(p)}" if p >= 0.001 else "p below 0.001"
    if comparison.constant:
        return f"{text}, one-sided"
    return f"{text}, corrected for {tests} baselines (Holm)" if tests > 1 else text


def _against_best(best: Comparison, constant: Comparison, tests: int) -> str:
    """Compare with the best baseline in a sentence."""
    state, title = outcome(best, constant), TITLES[best.key]
    difference, p = with_limits(best.tested_difference), _p_text(best, tests)
    if state == "close":
        share = f"{100 * share_of_gain(best, constant):.0f} % of the model's gain"
        return f"{best.name[0].upper()}{best.name[1:]} has {share} over {constant.name}."
    if state == "not shown":
        text = f"Not shown to do better than {best.name}: the {title} differs by"
        return f"{text} {difference}; {p}."
    if state == "untested":
        few = f": {too_few(best.groups)}, {intervals.LEAST_GROUPS} are needed"
        p = f"not tested{few if best.groups < intervals.LEAST_GROUPS else ''}"
    return f"The {title} of the model minus that of {best.name}: {difference}; {p}."


def _compared(comparisons: Sequence[Comparison]) -> Verdict:
    """Compare with the best baseline and with guessing."""
    full, constant = full_baselines(comparisons), best_constant(comparisons)
    if not full or constant is None:
        return Verdict("No baseline given", "Nothing is compared.")
    best, chance, p = full[0], outcome(constant, constant), _p_text(constant, 1)
    if chance == "worse":
        text = f"The model is worse than {constant.name} ({p})."
        return Verdict("Worse than guessing", text, "worse")
    if chance == "not shown":
        text = f"The model is not shown to do better than {constant.name} ({p})."
        return Verdict("Chance not excluded", text, "open")
    sentence = _against_best(best, constant, tests_corrected_for(comparisons))
    state, beats_chance = outcome(best, constant), chance == "better"
    only_guesses = state == "better" and all(comparison.constant for comparison in full)
    if only_guesses or (state == "not shown" and beats_chance):
        return Verdict("Better than guessing", sentence, "open")
    if beats_chance and best is not constant:
        sentence = f"Better than guessing ({constant.name}). {sentence}"
    words, sign = WORDS[state]
    if state == "better" and all(comparison.trivial for comparison in full):
        words = "Beats trivial baselines"
    return Verdict(words, sentence, sign)


# --- cautions ----------------------------------------------------------------------------------


def _left_out(predictions: TargetPredictions) -> list[str]:
    """Number of samples with a truth that are in no metric, and the reason."""
    truth, is_class, sentences = predictions.truth, bool(predictions.labels), []
    unknown = (truth == UNKNOWN_CLASS) & is_class
    missing = truth == -1 if is_class else np.isnan(truth)
    absent, total = ~(missing | unknown | predictions.has_both), (~missing).sum()
    if absent.any():
        no = "have no prediction and are in no metric"
        sentences.append(f"{absent.sum()} of {total} samples {no}.")
    if unknown.any():
        no = "are of classes that the model does not know and in no metric"
        sentences.append(f"{unknown.sum()} of {total} samples {no}.")
    return sentences


def _of_classes(known: TargetPredictions, constant: Comparison | None) -> list[str]:
    """Say what the metrics of classes hide: classes that are absent, or that the model names too
    often or too rarely.
    """
    labels, truth, predicted = known.labels, known.truth, known.predicted.argmax(axis=1)
    sentences, no_auroc = [], "there is no AUROC, and nothing is compared."
    if len(labels) == 2:
        has_both = pd.Series(truth).groupby(known.folds).nunique() > 1
        if len(np.unique(truth)) == 1:
            sentences.append(f"All samples are {labels[truth[0]]!r}: {no_auroc}")
        elif not has_both.any():
            sentences.append(f"No fold has both classes: {no_auroc} Fewer folds have both.")
        elif not has_both.all():
            both = f"{has_both.sum()} of {len(has_both)} folds"
            sentences.append(f"The AUROC is the mean over the {both} that have both classes.")
    most = int(np.bincount(predicted).argmax())
    chosen, share = float(np.mean(predicted == most)), float(np.mean(truth == most))
    if len(truth) >= LEAST_SAMPLES and chosen >= max(ONE_CLASS, share + 1 - ONE_CLASS):
        predicted_as = f"{chosen:.0%} of the samples are predicted as {labels[most]}"
        sentences.append(f"{predicted_as}, but {share:.0%} are.")
    if constant is not None and len(labels) == 2:
        model, guessed = constant.model["accuracy"], constant.metrics["accuracy"].value
        if model < guessed:
            than = f"guessing ({constant.name}) has {number(guessed)}"
            sentences.append(f"The accuracy is {number(model)}; {than}. AUROC judges order only.")
    return sentences


def _solved(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[str]:
    """Trivial baselines of at least half of the samples that solve the task by themselves."""
    key = {0: "r2", 2: "auroc"}.get(len(labels), "balanced_accuracy")
    most = max((comparison.samples for comparison in comparisons), default=0)
    solved = dict[str, float]()
    for rival in comparisons:
        enough = rival.groups >= intervals.LEAST_GROUPS and 2 * rival.samples >= most
        value = rival.metrics[key].value
        if rival.trivial and not rival.constant and enough and value >= SOLVED[key]:
            solved[rival.name] = value
    if DEPTH in solved or RICHNESS in solved:
        solved.pop(DEPTH_AND_RICHNESS, None)
    does = "separates the classes" if labels else "explains most of the target"
    title, but = TITLES[key], "the model may have learned this instead of biology."
    return [f'The baseline "{n}" {does} ({title} {number(v)}): {but}' for n, v in solved.items()]


# --- batches -----------------------------------------------------------------------------------


def within_batches(known: TargetPredictions) -> dict[str, float]:
    """Metrics of differences among samples of one batch, without the batch itself.

    For a numeric target the R2 against each batch's own mean; for classes the AUROC of the pairs
    that lie in one batch and, under cross-validation, in one fold: the scores of two models have no
    common order.
    """
    batch, truth = np.asarray(known.batch), pd.Series(known.truth)
    if not known.labels:
        around = float(((truth - truth.groupby(batch).transform("mean")) ** 2).sum())
        varies = bool((truth.groupby(batch).nunique() > 1).any())
        return {"r2": 1 - float((known.errors**2).sum()) / around if varies else math.nan}
    cells, areas = list(truth.groupby([batch, known.folds]).indices.values()), []
    for k in [1] if len(known.labels) == 2 else range(len(known.labels)):
        positive, score = known.truth == k, known.predicted[:, k]
        pairs = np.array([float(positive[at].sum()) * float((~positive[at]).sum()) for at in cells])
        ordered = np.nansum(pairs * np.array([auroc(positive[at], score[at]) for at in cells]))
        areas.append(ordered / pairs.sum() if pairs.any() else math.nan)
    return {"auroc": float(mean_of_defined(np.array(areas)[None])[0])}


def batch_sentences(known: TargetPredictions, name: str) -> list[str]:
    """Sentences about the metrics inside batches, and about new batches."""
    if known.batch is None:
        return []
    sentences, named, labels = [], known.batch.astype(str) != "", known.labels
    if not named.all():
        without = f"{(~named).sum()} of {len(named)} samples have no {name}"
        sentences.append(f"{without} and are left out of statements about it.")
        known = known.at(named)
    levels = pd.Series(known.truth).groupby(np.asarray(known.batch))
    if levels.ngroups < 2:
        return sentences
    key, within = "auroc" if labels else "r2", within_batches(known)
    varying = np.asarray(levels.transform("nunique") > 1)
    if math.isnan(within[key]):
        what = "samples of two classes" if labels else "two values of the target"
        why = f": the target cannot be told from the {name}"
        if varying.any():
            why = f" in one fold: there is no AUROC within a {name}"
        return [*sentences, f"No {name} holds {what}{why}.", *_new_batches(known, name)]
    # In batches of one class nothing is told of classes.
    told = known.at(varying) if labels else known
    over = number(unweighted_metrics(told.measure, told.truth, told.predicted)[key])
    inside, base = number(within[key]), "chance" if labels else f"that {name}'s mean"
    text = f"against each {name}'s own mean, R2 is {inside}; over all batches it is {over}."
    if labels:
        mean = ", averaged over the classes" if len(labels) > 2 else ""
        text = f"of pairs of samples of one {name} and of different classes{mean}, the AUROC "
        text += f"is {inside}; over all of these samples it is {over}."
    sentences.append(f"Within a {name}, {text}")
    if within[key] <= NOTHING[key]:
        sentences.append(f"Inside a {name} the model is not clearly better than {base}.")
    return sentences + _new_batches(known, name)


def _new_batches(known: TargetPredictions, name: str) -> list[str]:
    """Whether the metrics hold for a batch never seen, as far as folds say."""
    if known.batches_held_out_whole:
        return [f"Every {name} was held out whole: the metrics are those for a {name} never seen."]
    if known.fold is None:
        return []
    advice = f"--cv {name} would test it"
    for place, label in enumerate(known.labels):
        if len(np.unique(np.asarray(known.batch)[known.truth == place])) == 1:
            advice = f"{label} is of one {name} only, so --cv {name} cannot test it"
    several = f"Samples of one {name} are in several folds: the metrics do not hold for a {name} "
    return [f"{several}never seen; {advice}."]
