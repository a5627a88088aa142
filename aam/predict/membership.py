"""Whether a network joins the mean of other members: they are compared on the validation samples,
from which the others have not learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from aam.config import PREDICTION_PASSES
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.errors import shown
from aam.evaluate.comparison import headline
from aam.evaluate.metrics import unweighted_metrics, weighted_classification_metrics
from aam.evaluate.predictions import PredictionTable
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
    constant = [spec.name for spec in specs if not varies(spec.truth(metadata, ids))]
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
    standard error over groups, the rule that chooses penalties too (docs/adr/005), and a better
    headline metric of each target of classes: the squared error of probabilities falls too where
    they only become surer.
    """
    column, errors, others = study.config.group_column, list[Floats](), saved.members
    studies, headlines = study.column(study.config.study_column, ids), list[dict[str, float]]()
    for names in (others, (*others, Network.name), (Network.name,)):
        inputs = saved.only(*names), study, ids, runtime, PREDICTION_PASSES
        table = predict_rows(*inputs, encoded=encoded, studies=studies)
        error_of_samples, headlines_of_classes = figures_of(table, saved.targets.specs, study)
        errors.append(error_of_samples)
        headlines.append(headlines_of_classes)
    groups = np.array(study.column(column, ids) or ids)
    change, error = change_of_error(errors[1], errors[0], groups)
    network_change, _ = change_of_error(errors[2], errors[0], groups)
    unit = f" of {len(np.unique(groups))} {column}" if column else ""
    old, new = headlines[0], headlines[1]
    joins = earns_place(change, error, old, new)
    changes = "".join(f", {name} from {old[name]:.3f} to {new[name]:.3f}" for name in old)
    return joins, (
        f"{JOINS if joins else LEFT_OUT}: with it the error on the {len(ids)} validation samples"
        f"{unit} changes by {change:+.1%} (standard error {error:.1%}; the network alone has "
        f"{network_change:+.1%}){changes}"
    )


def earns_place(
    change: float, error: float, old: Mapping[str, float], new: Mapping[str, float]
) -> bool:
    """Whether a change of the error is below its standard error, and each headline metric of
    classes rises from `old` to `new`.
    """
    return change < -error and all(new[name] > old[name] for name in old)


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


def figures_of(
    table: PredictionTable, specs: Sequence[TargetSpec], study: Study
) -> tuple[Floats, dict[str, float]]:
    """Absolute errors of numbers and squared errors of class probabilities (Brier 1950), [n, T],
    and the headline metric of each target of classes by its name.
    """
    errors, headlines = [], {}
    for spec in specs:
        truth = spec.truth(not_none(study.metadata), table.sample_ids)
        predicted = table.predicted(spec.name)
        if not varies(truth):
            continue
        if spec.labels:
            known, name = truth >= 0, headline(spec.labels)
            squares = (predicted - np.eye(len(spec.labels))[truth]) ** 2
            errors.append(np.where(known, squares.sum(axis=1), math.nan))
            measured = unweighted_metrics(
                weighted_classification_metrics, truth[known], predicted[known]
            )
            headlines[f"{name} of {spec.name}"] = measured[name]
        else:
            errors.append(np.abs(predicted - truth))
    return np.stack(errors, axis=1), headlines


def varies(truth: Array) -> bool:
    """Whether the known values, codes of classes or numbers, are not all the same."""
    known = truth[truth >= 0] if truth.dtype.kind == "i" else truth[np.isfinite(truth)]
    return len(np.unique(known)) > 1
