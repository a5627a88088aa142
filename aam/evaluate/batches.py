"""What a model predicts inside batches (study, run, plate), and whether its metrics hold for a new one."""

from __future__ import annotations

import math

import numpy as np

from aam.evaluate.metrics import Array, auroc, mean_of_defined, pearson, unweighted_metrics
from aam.evaluate.numbers import number
from aam.evaluate.target_predictions import TargetPredictions

# At most these metrics inside the batches are next to nothing.
NOTHING = {"auroc": 0.55, "r2": 0.05}

# At most these, nothing.
CHANCE = {"auroc": 0.5, "r2": 0.0}


def _levels(values: Array) -> list[Array]:
    """Return which samples have each of the values, bool [N] for each."""
    return [values == level for level in np.unique(values)]


def within_batches(complete: TargetPredictions) -> dict[str, float]:
    """Return what is predicted beyond the batch itself: differences among samples of one batch.

    For a numeric target the R2 against each batch's own mean and the Pearson correlation of truth and
    prediction after subtracting their batch means; for classes the AUROC of the pairs that lie in one batch and, under
    cross-validation, in one fold: the scores of two models have no common order.
    """
    batches = _levels(np.asarray(complete.batch))
    if complete.labels:
        if complete.cross_validated:
            folds = _levels(np.asarray(complete.fold))
            batches = [batch & fold for batch in batches for fold in folds if (batch & fold).any()]
        areas = []
        for k in [1] if len(complete.labels) == 2 else range(len(complete.labels)):
            in_batches = [(complete.truth[batch] == k, complete.predicted[batch, k]) for batch in batches]
            pairs = np.array([float(positive.sum()) * float((~positive).sum()) for positive, _ in in_batches])
            ordered = np.nansum(pairs * np.array([auroc(positive, score) for positive, score in in_batches]))
            areas.append(ordered / pairs.sum() if pairs.any() else math.nan)
        return {"auroc": float(mean_of_defined(np.array(areas)[None])[0])}
    truth = complete.truth.astype(np.float64)
    predicted = complete.predicted.astype(np.float64)
    for batch in batches:
        truth[batch] -= truth[batch].mean()
        predicted[batch] -= predicted[batch].mean()
    squares = float(np.square(complete.predicted - complete.truth).sum())
    spread = float(truth @ truth)
    return {"r2": 1 - squares / spread if spread else math.nan, "pearson": pearson(truth, predicted)}


def batches_held_out_whole(predictions: TargetPredictions) -> bool:
    """Return whether no batch has samples in two folds, so that each was predicted without any sample of its own."""
    fold, batch = predictions.fold, predictions.batch
    if fold is None or batch is None:
        return False
    levels = np.unique(batch)
    return predictions.cross_validated and all(len(np.unique(fold[batch == level])) == 1 for level in levels)


def batch_sentences(complete: TargetPredictions, name: str) -> list[str]:
    """Return what is left of the metrics inside the batches, and whether they hold for a new one."""
    if complete.batch is None:
        return []
    named = complete.batch.astype(str) != ""
    sentences = []
    if not named.all():
        sentences = [f"{(~named).sum()} of {len(named)} samples have no {name}: what is said of one leaves them out."]
        complete = complete.at(named)
    if len(np.unique(np.asarray(complete.batch))) < 2:
        return sentences
    key = "auroc" if complete.labels else "r2"
    within = within_batches(complete)
    if math.isnan(within[key]):
        what = "samples of two classes" if complete.labels else "two values of the target"
        sentence = f"No {name} holds {what}: the target cannot be told from the {name}."
        if any(len(np.unique(complete.truth[batch])) > 1 for batch in _levels(np.asarray(complete.batch))):
            sentence = f"No {name} holds {what} in one fold: there is no AUROC within a {name}."
        return [*sentences, sentence, *_new_batches(complete, name)]
    overall = unweighted_metrics(complete.measure, complete.truth, complete.predicted)
    if complete.labels:
        sentences += [
            f"Within a {name} the AUROC is {number(within[key])}; over all batches it is {number(overall[key])}."
        ]
        nothing = f"Inside a {name} the model {{}} samples better than chance."
        verbs = ("hardly orders", "is not seen to order")
    else:
        sentences += [
            f"Within a {name}, against each {name}'s own mean, R2 is {number(within[key])} (Pearson "
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
    return [
        f"Samples of one {name} are in several folds: the metrics do not hold for a {name} never seen; "
        f"--cv {name} would tell."
    ]
