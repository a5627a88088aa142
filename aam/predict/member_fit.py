"""Members beside a trained network: fitted on the same split, and weighted with it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from aam.data.splits import Split
from aam.data.study import EVALUATION, Study
from aam.predict.members import Members, fit_members, specs_in_order
from aam.predict.network import NETWORK, join_network, per_target
from aam.predict.saved_model import SavedModel
from aam.training.inference import run_model
from aam.training.inputs import Prepared

log = logging.getLogger("aam")


def with_members(saved: SavedModel, prepared: Prepared, study: Study, split: Split) -> SavedModel:
    """Return the model with the members that were asked for, and their weights in its notes.

    Members learn from the training and the validation samples of the split; the weight of the network is fitted on the
    latter, from which it has not learned. Nothing of a test subset is read.
    """
    names = member_names(prepared)
    if not names or not saved.targets.specs:
        return saved
    validation = split.ids("validation")
    members = _fit(saved, prepared, study, (*split.ids("train"), *validation), names)
    if NETWORK in prepared.config.targets.members:
        rows, device = study.rows(validation), prepared.device
        of_network = [np.zeros((0, 1)) for _ in members.fitted]
        if len(rows):
            asvs = prepared.frozen_asvs(saved.network, study)
            predicted = run_model(saved.network, study, rows, device, prepared.config.runtime, EVALUATION, asvs)
            of_network = per_target(predicted.target, predicted.probabilities)
        members = join_network(members, rows, of_network)
    weights = {
        spec.name: fitted.weights for spec, fitted in zip(specs_in_order(saved.targets), members.fitted, strict=True)
    }
    for name, by_member in weights.items():
        log.info("%s: %s", name, ", ".join(f"{member} {weight:.2f}" for member, weight in by_member.items()))
    return dataclasses.replace(saved, members=members, notes={**saved.notes, "members": weights})


def without_validation(blended: SavedModel, prepared: Prepared, study: Study, split: Split) -> SavedModel:
    """Return a model `with_members` made whose members learn from the training samples only, its weights unchanged.

    Its predictions of validation samples can be reported where there is no test subset.
    """
    if blended.members is None:
        return blended
    members = _fit(blended, prepared, study, split.ids("train"), member_names(prepared))
    fitted = [
        dataclasses.replace(alone, weights=final.weights, power=final.power)
        for alone, final in zip(members.fitted, blended.members.fitted, strict=True)
    ]
    return dataclasses.replace(blended, members=dataclasses.replace(members, fitted=tuple(fitted)))


def member_names(prepared: Prepared) -> list[str]:
    """Return the members that are asked for beside the network."""
    return [name for name in prepared.config.targets.members if name != NETWORK]


def _fit(saved: SavedModel, prepared: Prepared, study: Study, ids: Sequence[str], names: Sequence[str]) -> Members:
    groups, column = None, prepared.config.data.group_column
    if study.metadata is not None and column is not None:
        groups = [str(group) for group in study.metadata.values(column, ids)]
    return fit_members(study, saved.targets, study.rows(ids), groups, prepared.config.runtime.seed, names)
