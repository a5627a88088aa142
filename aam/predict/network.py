"""The network as one of the members: its weight in the blend, and the blend of its predictions with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aam.data.study import Study
from aam.predict.blend import blend_power, blend_weights
from aam.predict.members import Members

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

NETWORK = "deep"


def per_target(target: Floats, probabilities: Sequence[Floats]) -> list[Floats]:
    """Return predictions of a network, encoded numbers ``[n, T]`` and class probabilities, one array per target."""
    return [*(target[:, [column]] for column in range(target.shape[1])), *probabilities]


def join_network(members: Members, rows: Rows, predicted: Sequence[Floats]) -> Members:
    """Return the members with the network among them; its weight against theirs is fitted on the samples at `rows`.

    Parameters
    ----------
    members : Members
        As they were fitted, with what they said of samples out of their folds.
    rows : int64 [n]
        Validation samples, from which the network has not learned, though they chose its epoch. Where there are none,
        nothing shows that the network helps, and its weight is 0.
    predicted : sequence of float64 [n, W]
        What it says of them, one array per target.
    """
    joined = []
    for fitted, of_network in zip(members.fitted, predicted, strict=True):
        if fitted.rows is None or fitted.truth is None or fitted.held_out is None:
            raise ValueError("the members were read from a file, which holds nothing to fit weights on")
        names = (NETWORK, *fitted.members)
        place = {row: number for number, row in enumerate(fitted.rows.tolist())}
        pairs = [(number, place[row]) for number, row in enumerate(rows.tolist()) if row in place]
        others = np.array(list(fitted.weights.values()))
        share, power = 0.0, fitted.power
        if pairs:
            taken, at = np.array(pairs, np.int64).T
            both_predictions = np.stack([of_network[taken], np.tensordot(others, fitted.held_out[:, at], axes=1)])
            truth = fitted.truth.rows(at)
            share = float(blend_weights(both_predictions, truth, prior=np.array([share, 1 - share]))[0])
            power = blend_power(np.tensordot([share, 1 - share], both_predictions, axes=1), truth)
        weights = np.array([share, *((1 - share) * others)])
        joined.append(replace(fitted, weights=dict(zip(names, weights.tolist(), strict=True)), power=power))
    return replace(members, fitted=tuple(joined))


def blend_draws(
    members: Members, study: Study, rows: Rows, rarefactions: Sequence[int], network: Sequence[Sequence[Floats]]
) -> list[list[Floats]]:
    """Return the blend for each draw and target of the samples at `rows`.

    `network` is what the network says in each draw, one array per target, as `per_target` gives it.
    """
    raw_values = members.raw(study, rows, rarefactions)
    blended = []
    for number, of_network in enumerate(network):
        scores = []
        for fitted, by_member, network_prediction in zip(members.fitted, raw_values, of_network, strict=True):
            finished = {name: fitted.members[name].finish([parts[number]]) for name, parts in by_member.items()}
            scores.append({NETWORK: network_prediction, **finished})
        blended.append(members.blend(scores))
    return blended
