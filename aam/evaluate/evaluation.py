"""Judge predictions: metrics, comparison with baselines, and the verdict, target by target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from aam.evaluate import comparison, intervals
from aam.evaluate.comparison import Baseline, Comparison, Outcome
from aam.evaluate.conformal import CONFORMAL_LEVEL, conformal_coverage
from aam.evaluate.intervals import (
    LEAST_GROUPS,
    Levels,
    MetricIntervals,
    number,
    too_few,
    with_limits,
)
from aam.evaluate.metrics import TITLES, unweighted_metrics
from aam.evaluate.predictions import (
    UNKNOWN_CLASS,
    Columns,
    EvaluatedSubset,
    PredictionTable,
    TargetPredictions,
    guess,
    target_predictions,
)
from aam.io.metadata import Metadata

# The column of folds that a user made only to fix the folds.
FOLDS = "fold"

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
    "unknown": "If training has seen these samples, which is not known, the metrics are too good.",
}

# A caution names the class if at least this share of at least this number of samples is predicted
# as one class, and that share exceeds the true one by the rest.
ONE_CLASS, LEAST_SAMPLES = 0.95, 20

# A trivial baseline with these metrics solves the task by itself. Where one class is frequent,
# plain accuracy says nothing of the others.
SOLVED = {"auroc": 0.9, "balanced_accuracy": 0.9, "r2": 0.8}

# At most these metrics inside the batches are next to nothing.
NO_SIGNAL = {"auroc": 0.55, "r2": 0.05}


@dataclass(frozen=True)
class Names:
    """Names of a target, of the batches and groups of its samples, and of what divides the folds.

    `fold` is the metadata column whose values were held out whole; empty where folds were drawn.
    """

    target: str
    batch: str = "batch"
    group: str = "group"
    fold: str = ""


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


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The judgement of one target.

    `metrics` are those of all samples; `folds` and `batches` hold by level the number of samples
    and their metrics; `coverage` is that of conformal intervals; `subset` is what the samples were
    to the model.
    """

    names: Names
    predictions: TargetPredictions
    metrics: MetricIntervals
    folds: Levels = field(default_factory=dict)
    batches: Levels = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    coverage: MetricIntervals = field(default_factory=dict)
    subset: EvaluatedSubset = "held-out"

    @property
    def key(self) -> str:
        """The metric that decides."""
        return comparison.headline(self.predictions.labels)

    @cached_property
    def complete(self) -> TargetPredictions:
        """The samples that have both a truth and a prediction."""
        return self.predictions.complete()

    @property
    def in_new_batches(self) -> list[float]:
        """The metric that decides in each batch that has it, sorted; empty unless each of several
        batches was held out whole.
        """
        if self.subset != "held-out" or not self.complete.batches_held_out_whole:
            return []
        # Samples without a batch are no batch.
        return _sorted_values({x: found for x, found in self.batches.items() if x}, self.key)

    @cached_property
    def verdict(self) -> Verdict:
        """The comparison with baselines in words, and what limits that statement."""
        if self.subset == "training":
            found = Verdict("Seen in training", "Samples of training are not compared.")
        elif not len(self.complete.truth):
            found = Verdict("Nothing to judge", "No sample has both a value and a prediction.")
        else:
            found = compared(self.comparisons)
        return replace(found, cautions=tuple(_cautions(self)))


def _sorted_values(levels: Levels, key: str) -> list[float]:
    """The values of a metric at the levels that have it, sorted; empty below two."""
    values = [metrics[key].value for _, metrics in levels.values()]
    known = sorted(value for value in values if math.isfinite(value))
    return known if len(known) > 1 else []


def evaluate_target(
    names: Names,
    predictions: TargetPredictions,
    baselines: Sequence[Baseline] = (),
    *,
    subset: EvaluatedSubset = "held-out",
    seed: int = 0,
    repeats: int = 1000,
) -> Evaluation:
    """Judge one target.

    Parameters
    ----------
    names : Names
    predictions : TargetPredictions
        Of N samples.
    baselines : sequence of Baseline
        With the same rows; samples that training has seen are not compared.
    subset
        As in `Evaluation`.
    seed, repeats : int
        Of the resampling.
    """
    by_level, by = intervals.metrics_by_level, predictions
    rivals = () if subset == "training" else baselines
    return Evaluation(
        names=names,
        predictions=predictions,
        metrics=intervals.metrics_with_intervals(predictions, seed, repeats),
        folds={} if by.fold is None else by_level(by, by.fold, seed, 0),
        batches={} if by.batch is None else by_level(by, by.batch, seed, repeats),
        comparisons=comparison.compare_with_baselines(predictions, rivals, seed, repeats),
        coverage=conformal_coverage(predictions, seed, repeats),
        subset=subset,
    )


def own_guess(predictions: TargetPredictions) -> list[Baseline]:
    """Median or majority class of the evaluated samples themselves, as a baseline."""
    if not predictions.has_both.any():
        return []
    name = comparison.OWN_MAJORITY if predictions.labels else comparison.OWN_MEDIAN
    own = guess(predictions.truth[predictions.has_both], len(predictions.labels))
    return [Baseline(name, np.broadcast_to(own, (len(predictions.truth), *own.shape)))]


def evaluate(
    table: PredictionTable,
    metadata: Metadata,
    columns: Columns,
    baselines: Mapping[str, Sequence[Baseline]],
    *,
    subset: EvaluatedSubset = "held-out",
    new_cohort: bool = False,
) -> tuple[Evaluation, ...]:
    """Judge each target of a table of predictions.

    `baselines` are given by target, with the rows of the table. In a `new_cohort` the median or
    majority class of its own samples is a baseline too.
    """
    fold = "" if columns.fold in (None, FOLDS) else str(columns.fold)
    results = []
    for spec in table.specs:
        predictions = target_predictions(table, spec, metadata, columns)
        known = [*baselines.get(spec.name, ()), *(own_guess(predictions) if new_cohort else ())]
        names = Names(spec.name, columns.batch or "batch", columns.group or "sample", fold)
        results.append(evaluate_target(names, predictions, known, subset=subset))
    return tuple(results)


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


def compared(comparisons: Sequence[Comparison]) -> Verdict:
    """Compare with the best baseline and with guessing."""
    full, constant = comparison.full_baselines(comparisons), comparison.best_constant(comparisons)
    if not full or constant is None:
        return Verdict("No baseline given", "Nothing is compared.")
    best, chance, p = full[0], comparison.outcome(constant, constant), _p_text(constant, 1)
    if chance == "worse":
        text = f"The model is worse than {constant.name} ({p})."
        return Verdict("Worse than guessing", text, "worse")
    if chance == "not shown":
        text = f"The model is not shown to do better than {constant.name} ({p})."
        return Verdict("Chance not excluded", text, "open")
    sentence = _against_best(best, constant, comparison.tests_corrected_for(comparisons))
    state, beats_chance = comparison.outcome(best, constant), chance == "better"
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
    known, names, held = result.complete, result.names, result.coverage.get("coverage")
    cautions = [CAUTION[result.subset]] if result.subset in CAUTION else []
    cautions += _left_out(result.predictions)
    if result.subset != "training" and len(known.truth):
        if known.labels:
            cautions += _of_classes(known, comparison.best_constant(result.comparisons))
        cautions += _solved(result.comparisons, known.labels)
        cautions += batch_sentences(known, names.batch, bool(result.in_new_batches))
    cautions += _held_out_whole(result)
    if known.group_count < LEAST_GROUPS:
        few = f"{too_few(known.group_count)} for intervals and tests"
        cautions.append(f"{few}; {LEAST_GROUPS} are needed, so nothing is tested.")
    elif rests_on := intervals.rough(known):
        cautions.append(f"Intervals and tests rest on {rests_on}: read them as rough.")
    if held is not None and held.high < CONFORMAL_LEVEL:
        few = f"The {100 * CONFORMAL_LEVEL:.0f} % intervals of predictions hold only "
        cautions.append(f"{few}{with_limits(held)} of the true values.")
    if known.groups is None:
        cautions.append("No group column is named: samples of one subject count as independent.")
    return cautions


def _held_out_whole(result: Evaluation) -> list[str]:
    """Say how the metric differs between batches, or values of a column, held out whole."""
    name, values = result.names.batch, result.in_new_batches
    if not values and result.names.fold:
        name, values = result.names.fold, _sorted_values(result.folds, result.key)
    if not values:
        return []
    spread = f"{number(float(np.mean(values)))} on average, {number(values[0])} to "
    text = f"Each of {len(values)} values of {name} was held out whole: {TITLES[result.key]} "
    text += f"{spread}{number(values[-1])}."
    return [f"{text} Expect a new one within this spread, not within the interval."]


def _left_out(predictions: TargetPredictions) -> list[str]:
    """Number of samples with a truth that are in no metric, and the reason."""
    truth, is_class = predictions.truth, bool(predictions.labels)
    unknown = (truth == UNKNOWN_CLASS) & is_class
    missing = truth == -1 if is_class else np.isnan(truth)
    reasons = {
        "have no prediction": ~(missing | unknown | predictions.has_both),
        "are of classes that the model does not know": unknown,
    }
    of = f"of {(~missing).sum()} samples"
    return [
        f"{at.sum()} {of} {why} and are in no metric." for why, at in reasons.items() if any(at)
    ]


def _of_classes(known: TargetPredictions, constant: Comparison | None) -> list[str]:
    """Say what the metrics of classes hide: classes that are absent, or that the model names too
    often or too rarely.
    """
    labels, truth, predicted = known.labels, known.truth, known.predicted.argmax(axis=1)
    sentences = []
    if len(labels) == 2:
        has_both = pd.Series(truth).groupby(known.folds).nunique() > 1
        if not has_both.any():
            why = "No fold has both classes (fewer folds may)"
            if len(np.unique(truth)) == 1:
                why = f"All samples are {labels[truth[0]]!r}"
            sentences.append(f"{why}: there is no AUROC, and nothing is compared.")
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
    most = max((rival.samples for rival in comparisons), default=0)
    solved = dict[str, float]()
    for rival in comparisons:
        enough = rival.groups >= LEAST_GROUPS and 2 * rival.samples >= most
        value = rival.metrics[key].value
        if rival.trivial and not rival.constant and enough and value >= SOLVED[key]:
            solved[rival.name] = value
    if comparison.DEPTH in solved or comparison.RICHNESS in solved:
        solved.pop(comparison.DEPTH_AND_RICHNESS, None)
    does = "separates the classes" if labels else "explains most of the target"
    title, but = TITLES[key], "the model may have learned this instead of biology."
    return [f'The baseline "{n}" {does} ({title} {number(v)}): {but}' for n, v in solved.items()]


def within_batches(known: TargetPredictions) -> float:
    """R2 against each batch's own mean; of classes the AUROC inside each batch and fold, the mean
    weighted by samples. NaN if the target does not vary there.
    """
    truth, batch = pd.Series(known.truth), np.asarray(known.batch)
    if known.labels:
        cells = truth.groupby([batch, known.folds])
        varied = replace(known, fold=cells.ngroup().to_numpy()).at(cells.transform("nunique") > 1)
        return unweighted_metrics(varied.measure, varied.truth, varied.predicted)["auroc"]
    around = float(((truth - truth.groupby(batch).transform("mean")) ** 2).sum())
    varies = bool((truth.groupby(batch).nunique() > 1).any())
    return 1 - float((known.errors**2).sum()) / around if varies else math.nan


def batch_sentences(known: TargetPredictions, name: str, told_of_new: bool = False) -> list[str]:
    """Sentences about the metrics inside batches and, unless others have `told_of_new`, about new
    batches.
    """
    if known.batch is None:
        return []
    sentences, labels, batch = [], known.labels, known.batch
    named = batch.astype(str) != ""
    if not named.all():
        without = f"{(~named).sum()} of {len(named)} samples have no {name}"
        sentences.append(f"{without} and are left out of statements about it.")
        known, batch = known.at(named), batch[named]
    levels = pd.Series(known.truth).groupby(batch)
    if levels.ngroups < 2:
        return sentences
    key, inside, varying = "auroc" if labels else "r2", within_batches(known), levels.nunique() > 1
    if math.isnan(inside):
        what = "samples of two classes" if labels else "two values of the target"
        why = f": the target cannot be told from the {name}"
        if varying.any():
            why = f" in one fold: there is no AUROC within a {name}"
        sentences.append(f"No {name} holds {what}{why}.")
    else:
        # In batches of one class nothing is told of classes.
        told = known.at(np.isin(batch, varying.index[varying])) if labels else known
        over = unweighted_metrics(told.measure, told.truth, told.predicted)[key]
        against = "" if labels else f" against each {name}'s own mean"
        text = f"Within a {name}, the {TITLES[key]}{against} is {number(inside)}"
        sentences.append(f"{text}; over all of these samples it is {number(over)}.")
        if inside <= NO_SIGNAL[key]:
            base = "chance" if labels else f"that {name}'s mean"
            sentences.append(f"Inside a {name} the model is not clearly better than {base}.")
    if known.fold is None or told_of_new:
        return sentences
    if known.batches_held_out_whole:
        whole = f"Every {name} was held out whole: the metrics are those for a {name} never seen."
        return [*sentences, whole]
    advice = f"--cv {name} would test it"
    for place, label in enumerate(labels):
        if len(np.unique(batch[known.truth == place])) == 1:
            advice = f"{label} is of one {name} only, so --cv {name} cannot test it"
    several = f"Samples of one {name} are in several folds: the metrics do not hold for a {name} "
    return [*sentences, f"{several}never seen; {advice}."]
