"""Members beside a trained network: fitted on the same split, and weighted with it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from aam.data.split import Split
from aam.data.study import EVALUATION, Study
from aam.training.inference import encode_table, run_model
from aam.training.inputs import Prepared
from aam.training.members.members import fit_members, specs_in_order
from aam.training.members.network import NETWORK, join_network, per_target
from aam.training.saved_model import SavedModel

log = logging.getLogger("aam")


def with_members(
    saved: SavedModel, prepared: Prepared, study: Study, split: Split, train_ids: Sequence[str]
) -> SavedModel:
    """Return the model with the members that were asked for, and their weights in its notes.

    Members learn from the training samples and, where a test subset is held out, from the validation samples too, on
    which the weight of the network is fitted. Without a test subset those are reported: no member learns from them,
    and the network gets an equal share.
    """
    config = prepared.config
    names = [name for name in config.targets.members if name != NETWORK]
    if not names or not saved.targets.specs:
        return saved
    validation = split.ids("validation") if split.ids("test") else ()
    ids = (*train_ids, *validation)
    groups = None
    if study.metadata is not None and config.data.group_column is not None:
        groups = [str(group) for group in study.metadata.values(config.data.group_column, ids)]
    members = fit_members(study, saved.targets, study.rows(ids), groups, config.runtime.seed, names)
    if NETWORK in config.targets.members:
        rows, device = study.rows(validation), prepared.device
        said = [np.zeros((0, 1)) for _ in members.fitted]
        if len(rows):
            asvs = encode_table(saved.network, study, device, config.runtime)
            predicted = run_model(saved.network, study, rows, device, config.runtime, EVALUATION, asvs)
            said = per_target(predicted.target, predicted.probabilities)
        members = join_network(members, rows, said)
    weights = {
        spec.name: fitted.weights for spec, fitted in zip(specs_in_order(saved.targets), members.fitted, strict=True)
    }
    for name, by_member in weights.items():
        log.info("%s: %s", name, ", ".join(f"{member} {weight:.2f}" for member, weight in by_member.items()))
    return dataclasses.replace(saved, members=members, notes={**saved.notes, "members": weights})
