"""Whether a network joins the mean of other members: they are compared on the validation samples,
from which the others have not learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aam.config import PREDICTION_PASSES
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.errors import shown
from aam.evaluate.predictions import PredictionTable, truth_of
from aam.options import RuntimeConfig, not_none
from aam.predict.network import Network
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel
from aam.training.inference import EncodedAsvs
from aam.typing import Array, Floats

JOINS, LEFT_OUT = "the network joins the mean", "the network is left out of the mean"
LEAST_ERROR = 1e-12  # Errors that others are compared with are not below it.
TO_JUDGE = "a larger --validation-size lets it be judged"


def untrusted_because(network: Network, study: Study, ids: Sequence[str]) -> str:
    """Why validation samples cannot vouch for a network; empty text if they can."""
    if not ids:
        return f"no validation sample chose its epoch; {TO_JUDGE}"
    subset, column = f"the {len(ids)} validation samples", study.config.group_column
    specs, metadata = not_none(network.targets).specs, not_none(study.metadata)
    constant = [spec.name for spec in specs if not _varies(truth_of(metadata, spec, ids))]
    if len(constant) == len(specs):
        return f"{subset} hold one value of {shown(constant)}; {TO_JUDGE}"
    if len(set(study.column(column, ids) or ids)) < 2:
        return f"{subset} are of one {column or 'sample'}; {TO_JUDGE}"
    if not network.fitted_.best_epoch:
        return "its best epoch is the start; training did not lower its error"
    return ""


def judge_network(
    saved: SavedModel,
    study: Study,
    ids: Sequence[str],
    runtime: RuntimeConfig,
    encoded: EncodedAsvs | None,
) -> tuple[bool, str]:
    """Whether the network joins the other members of `saved`, and why in a sentence, by samples
    from which these have not learned.

    It joins if the mean with it has a smaller error than the mean of the others, by more than one
    standard error over groups, the rule that chooses penalties too (docs/adr/005).
    """
    column, errors, others = study.config.group_column, list[Floats](), saved.members
    studies = study.column(study.config.study_column, ids)
    for names in (others, (*others, Network.name), (Network.name,)):
        inputs = saved.only(*names), study, ids, runtime, PREDICTION_PASSES
        table = predict_rows(*inputs, encoded=encoded, studies=studies)
        errors.append(_errors(table, saved.targets.specs, study))
    groups = np.array(study.column(column, ids) or ids)
    change, error = change_of_error(errors[1], errors[0], groups)
    network_change, _ = change_of_error(errors[2], errors[0], groups)
    unit = f" of {len(np.unique(groups))} {column}" if column else ""
    return change < -error, (
        f"{JOINS if change < -error else LEFT_OUT}: with it the error on the {len(ids)} validation "
        f"samples{unit} changes by {change:+.1%} (standard error {error:.1%}; the network alone "
        f"has {network_change:+.1%})"
    )


def change_of_error(new: Floats, old: Floats, groups: Array) -> tuple[float, float]:
    """Relative change of the error of n samples [n, T], the mean over targets, and its standard
    error over groups; NaN for samples without a target.
    """
    rows = np.isfinite(old).any(axis=1)
    new, old, place = new[rows], old[rows], np.unique(groups[rows], return_inverse=True)[1]
    changes = np.nanmean((new - old) / np.maximum(np.nanmean(old, axis=0), LEAST_ERROR), axis=1)
    sums = np.bincount(place, changes - changes.mean())
    if len(sums) < 2:
        return float(changes.mean()), math.inf
    variance = len(sums) / (len(sums) - 1) * (sums**2).sum() / len(changes) ** 2
    return float(changes.mean()), math.sqrt(variance)


def _errors(table: PredictionTable, specs: Sequence[TargetSpec], study: Study) -> Floats:
    """Absolute errors of numbers and squared errors of class probabilities (Brier 1950), [n, T]."""
    errors = []
    for spec in specs:
        truth = truth_of(not_none(study.metadata), spec, table.sample_ids)
        predicted = table.predicted(spec.name)
        if spec.labels:
            squares = (predicted - np.eye(len(spec.labels))[truth]) ** 2
            error = np.where(truth >= 0, squares.sum(axis=1), math.nan)
        else:
            error = np.abs(predicted - truth)
        if _varies(truth):
            errors.append(error)
    return np.stack(errors, axis=1)


def _varies(truth: Array) -> bool:
    """Whether the known values, codes of classes or numbers, are not all the same."""
    known = truth[truth >= 0] if truth.dtype.kind == "i" else truth[np.isfinite(truth)]
    return len(np.unique(known)) > 1
