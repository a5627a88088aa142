"""A table of predictions to write, join and compare."""

from __future__ import annotations

import numpy as np

from aam.data.targets import Scale, TargetSpec
from aam.evaluate.predictions import PredictionTable

AGE = TargetSpec("age", "numeric", (), "zscore", Scale(40.0, 15.0), bounds=(0.0, 90.0))
READS = TargetSpec("reads", "numeric", (), "log-zscore", Scale(2.0, 0.5), bounds=(0.0, 100.0))
SITE = TargetSpec("site", "class", ("gut", "oral", "skin"))


def table(ids=("a", "007"), notes=("", ""), folds=("", ""), deviations=True, specs=(AGE, SITE)) -> PredictionTable:
    n, rng = len(ids), np.random.default_rng(0)
    weights = rng.random((n, 3))
    numeric = [spec.name for spec in specs if spec.kind == "numeric"]
    classes = [spec.name for spec in specs if spec.kind == "class"]
    return PredictionTable(
        tuple(ids),
        tuple(specs),
        {name: rng.normal(50, 20, n) for name in numeric},
        {name: rng.random(n) for name in numeric} if deviations else {},
        {name: weights / weights.sum(1, keepdims=True) for name in classes},
        tuple(notes),
        tuple(folds),
    )


def different(actual: PredictionTable, expected: PredictionTable, tolerance: float = 1e-6) -> list[str]:
    """What of two tables differs, numbers by more than the relative tolerance."""
    names = [name for name in ("sample_ids", "notes", "folds") if getattr(actual, name) != getattr(expected, name)]
    if [(s.name, s.kind, s.labels) for s in actual.specs] != [(s.name, s.kind, s.labels) for s in expected.specs]:
        names.append("specs")
    for part in ("values", "deviations", "probabilities", "derived"):
        one, other = getattr(actual, part), getattr(expected, part)
        names += [f"{part} of {name}" for name in one.keys() ^ other.keys()]
        names += [
            f"{part} of {name}"
            for name in one.keys() & other.keys()
            if one[name].shape != other[name].shape
            or not np.allclose(one[name], other[name], rtol=tolerance, atol=0, equal_nan=True)
        ]
    return names
