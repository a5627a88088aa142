"""Checks of predictions that were read from a file: values that no model writes are refused, not evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.errors import Problems, shown
from aam.evaluate.metrics import Array
from aam.evaluate.predictions import PredictionTable

# Files of others hold few digits: so far may probabilities be from a sum of 1, and a label's from the largest.
ROUNDING = 0.02


def _samples(table: PredictionTable, wrong: npt.NDArray[np.bool_]) -> str:
    """Return how many samples are wrong, and the first of them."""
    names = [table.sample_ids[row] for row in np.flatnonzero(wrong)]
    return f"{len(names)} of {len(wrong)} samples ({shown(names, 3)})"


def _probability_problems(
    table: PredictionTable, probabilities: Array, labels: Sequence[str], cells: Sequence[str]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which samples have each problem, [N], of probabilities [N, K] and of the labels in the cells [N]."""
    given = np.isfinite(probabilities).all(axis=1)
    outside = (probabilities < -ROUNDING) | (probabilities > 1 + ROUNDING)
    sums = np.abs(probabilities.sum(axis=1) - 1)
    place = {label: column for column, label in enumerate(labels)}
    column = np.array([place.get(cell, -1) for cell in cells], np.int64)
    of_label = probabilities[np.arange(len(column)), column]
    named = np.array([cell != "" for cell in cells], bool)
    disagrees = (column < 0) | (of_label < probabilities.max(axis=1) - ROUNDING)
    return {
        "probabilities that are no numbers from 0 to 1 with a sum of 1": given
        & (outside.any(axis=1) | (sums > ROUNDING)),
        "a label that has not the largest probability": given & named & disagrees,
        "infinite probabilities": np.isinf(probabilities).any(axis=1),
    }


def check_predictions(path: Path, table: PredictionTable, cells: Mapping[str, Sequence[str]]) -> None:
    """Refuse predictions that are infinite, no probabilities, or have limits the wrong way round.

    `cells` are the columns of the file as text. A missing value (empty, or nan) is none of these.

    Raises
    ------
    InputError
        With every such column, how many samples it has wrong, and the first of them.
    """
    problems = Problems()
    for spec in table.specs:
        wrong: dict[str, npt.NDArray[np.bool_]] = {}
        if spec.labels:
            values = table.probabilities[spec.name]
            wrong = _probability_problems(table, values, spec.labels, cells[spec.name])
        else:
            wrong["an infinite prediction"] = np.isinf(table.values[spec.name])
            limits = table.limits(spec.name)
            if limits is not None:
                wrong["a lower limit above the upper one"] = limits[:, 0] > limits[:, 1]
        for what, rows in wrong.items():
            if rows.any():
                problems.add(f"{path}: {_samples(table, rows)} have {what} in {spec.name!r}; correct them")
    problems.raise_if_any()
