"""A table of predictions to write, join and compare."""

from __future__ import annotations

import numpy as np
import pandas as pd

from aam.data.targets import Scale, TargetSpec
from aam.evaluate.predictions import PredictionTable, make_predictions

AGE = TargetSpec("age", "numeric", (), "zscore", Scale(40.0, 15.0), bounds=(0.0, 90.0))
READS = TargetSpec("reads", "numeric", (), "log-zscore", Scale(2.0, 0.5), bounds=(0.0, 100.0))
SITE = TargetSpec("site", "class", ("gut", "oral", "skin"))


def table(
    ids=("a", "007"), notes=("", ""), folds=("", ""), deviations=True, specs=(AGE, SITE)
) -> PredictionTable:
    n, rng = len(ids), np.random.default_rng(0)
    weights = rng.random((n, 3))
    numeric = [spec.name for spec in specs if spec.kind == "numeric"]
    classes = [spec.name for spec in specs if spec.kind == "class"]
    predicted = {name: rng.normal(50, 20, n) for name in numeric}
    spread = {name: rng.random(n) for name in numeric} if deviations else {}
    predicted |= {name: weights / weights.sum(1, keepdims=True) for name in classes}
    return make_predictions(ids, specs, predicted, spread, note=notes, fold=folds)


def assert_same(
    actual: PredictionTable, expected: PredictionTable, tolerance: float = 1e-6
) -> None:
    specs = [
        [(spec.name, spec.kind, spec.labels) for spec in table.specs]
        for table in (actual, expected)
    ]
    assert specs[0] == specs[1]
    pd.testing.assert_frame_equal(
        actual.frame,
        expected.frame,
        rtol=tolerance,
        atol=0,
        check_like=True,
        check_dtype=False,
        check_index_type=False,
    )
