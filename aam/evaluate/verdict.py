"""The sentences that a report must carry: what the model does beside baselines and inside
batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aam.evaluate import intervals
from aam.evaluate.comparison import (
    DEPTH,
    DEPTH_AND_RICHNESS,
    RICHNESS,
    SIGNIFICANT,
    Comparison,
    best_constant,
    headline,
    outcome,
    share_of_gain,
    smallest_p,
    tests_corrected_for,
)
from aam.evaluate.intervals import number, too_few
from aam.evaluate.metrics import TITLES, Array, auroc, mean_of_defined, pearson, unweighted_metrics
from aam.evaluate.new_studies import batches_held_out_whole
from aam.evaluate.target_predictions import UNKNOWN_CLASS, Subset, TargetPredictions

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


def between_batches(complete: TargetPredictions, name: str) -> str:
    """Return that differences between batches may be what was learned, unless it is as good within
    one.

    Whether it is as good is known where half of the samples, and some of each class, are in batches
    that vary.
    """
    complete = complete.at(np.asarray(complete.batch).astype(str) != "")
    if len(np.unique(np.asarray(complete.batch))) < 2:
        return ""
    key = "auroc" if complete.labels else "r2"
    within = within_batches(complete)[key]
    if (
        not unweighted_metrics(complete.measure, complete.truth, complete.predicted)[key]
        > CHANCE[key]
    ):
        return ""
    told = _in_varying_batches(complete)
    some_of_each = not complete.labels or set(told.truth) == set(complete.truth)
    if math.isnan(within) or 2 * len(told.truth) < len(complete.truth) or not some_of_each:
        return f"What differs between values of {name} may be what was learned."
    overall = _over_batches(complete)[key]
    if within >= overall - AS_GOOD:
        return ""
    metric = f"{key.upper()} is {number(within)} within one, {number(overall)} over all"
    return f"Part of what was learned may be what differs between values of {name}: {metric}."


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

# Whose comparison a sentence tells, where the samples were not held out for certain.
ON_SAMPLES: dict[Subset, str] = {
    "validation": "On the validation samples the model",
    "unknown": "On these samples the model",
}

# What a reader must know of samples that were not held out.
CAUTION: dict[Subset, str] = {
    "validation": (
        "These samples chose the epoch and helped to choose the penalty: validation metrics, "
        "better than "
        "those of new samples would be; "
        "--test-size or --cv holds samples out."
    ),
    "training": (
        "Samples of training are among these: the metrics say nothing of new samples, "
        "and nothing is compared."
    ),
    "unknown": (
        "Whether these samples were held out is not known; if the model saw them, the "
        "metrics are too good."
    ),
}


# What a difference that is not shown means.
OPEN = (
    "chance alone may give such a difference on the same samples, and either may predict new "
    "ones better"
)


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


def _not_better(comparison: Comparison, constant: Comparison, key: str, tests: int) -> str:
    """Return what is said of a baseline that the model is not shown to be better than."""
    name, result = comparison.name, outcome(comparison, constant, key)
    values = [number(comparison.metrics[key].value), number(comparison.model[key])]
    on = (
        f" on {comparison.samples} of {constant.samples} samples"
        if comparison.samples != constant.samples
        else ""
    )
    beside = f"{TITLES[key]} {' against '.join(values)}{on}"
    if result == "worse":
        return (
            f"{_does(name, 'predict')} better than the model ({beside}; "
            f"{p_text(comparison, tests)})."
        )
    if result == "close":
        share = f"{100 * share_of_gain(comparison, constant, key):.0f} % of the model's gain"
        return f"{_does(name, 'come')} close to the model ({beside}): {share} over {constant.name}."
    beside = f"{TITLES[key]} {' against '.join(reversed(values))}{on}"
    if result == "untested":
        why = f"{too_few(comparison.groups)}, {intervals.LEAST_GROUPS} are needed"
        if comparison.groups >= intervals.LEAST_GROUPS:
            why = f"there is no {TITLES[key]} of the samples that both predict"
        return f"Whether the model does better than {name} is not tested ({beside}): {why}."
    return (
        f"The model is not shown to do better than {name} ({beside}; "
        f"{p_text(comparison, tests)}): {OPEN}."
    )


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
        "AUROC mixes the scores of different models; fewer folds, or --stratify, hold both classes."
    ]


def _compared(
    comparisons: Sequence[Comparison], complete: TargetPredictions, subset: Subset
) -> list[str]:
    """Return what the model is beside the baselines; nothing where the metric that decides is not
    defined.
    """
    labels = complete.labels
    key = headline(labels)
    constant = best_constant(comparisons, key)
    if constant is None or math.isnan(constant.model[key]):
        return []
    tests = tests_corrected_for(comparisons)
    beaten = [one for one in comparisons if outcome(one, constant, key) == "better"]
    model = f"{ON_SAMPLES.get(subset, 'The model')} ({TITLES[key]} {number(constant.model[key])})"
    sentences = []
    if constant in beaten:
        value = number(constant.metrics[key].value)
        sentences.append(
            f"{model} does better than {constant.name} ({value}; {p_text(constant, tests)})."
        )
    if better := [one for one in beaten if not one.constant]:
        names = [f"{one.name} ({number(one.metrics[key].value)})" for one in better]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        corrected = f", each p corrected for {tests} baselines (Holm)" if tests > 1 else ""
        sentences.append(f"{model} does better than {listed}{corrected}.")
    unshown = [
        one for one in comparisons if not one.trivial and outcome(one, constant, key) == "not shown"
    ]
    unshown = [one for one in unshown if one.samples == constant.samples]
    if len(unshown) < 2:
        unshown = []
    sentences += [
        _not_better(one, constant, key, tests)
        for one in comparisons
        if one not in (*beaten, *unshown)
    ]
    if unshown:
        names = [
            f"{one.name} ({number(one.metrics[key].value)}, p {number(one.corrected_p)})"
            for one in unshown
        ]
        sentences.append(
            f"Learned baselines that the model ({TITLES[key]} {number(constant.model[key])}) is "
            "not shown to do better "
            f"than, p corrected for {tests} baselines: {', '.join(names[:-1])} and {names[-1]}. "
            f"Of each, {OPEN}."
        )
    lowest = tests * smallest_p(constant.groups, intervals.inflation_of_difference(complete))
    if lowest > SIGNIFICANT:
        sentences.append(
            f"With {constant.groups} groups and {tests} baselines the smallest possible "
            "corrected p is "
            f"{number(min(lowest, 1.0))}: the model cannot be shown to do better than any of them."
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
    sentences += _left_out(predictions)
    if subset != "training":
        sentences += _undefined_folds(complete)
        sentences += _compared(comparisons, complete, subset)
        sentences += batch_sentences(complete, batch_name)
    groups = complete.group_count
    if groups < intervals.LEAST_GROUPS:
        sentences.append(
            f"{too_few(groups)} for intervals and tests, {intervals.LEAST_GROUPS} are needed: "
            "nothing is "
            "shown to be better than anything."
        )
    elif rests_on := intervals.rough(complete):
        sentences.append(f"Intervals and tests rest on {rests_on}: read them as rough.")
    return tuple(sentences)
