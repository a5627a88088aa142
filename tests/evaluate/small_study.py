"""A study of 24 samples in two folds, and what its baselines predict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aam.config import DataConfig
from aam.data.splits import Split
from aam.data.targets import TargetSpec
from aam.io.metadata import Metadata
from aam.predict.baselines import baselines_of
from tests.data.studies import typed_metadata

BY_CHILD = DataConfig(group_column="child")
IDS = tuple(f"s{row}" for row in range(24))
SPLITS = tuple(
    Split(
        IDS, tuple("test" if row % 3 == fold else "train" for row in range(24)), (str(fold),) * 24
    )
    for fold in range(2)
)

AGE, DIET = TargetSpec("age", "numeric"), TargetSpec("diet", "class", ("food", "milk"))


def metadata(ages=None) -> Metadata:
    ages = [str(1.5 * row) for row in range(24)] if ages is None else ages
    columns = {
        "age": tuple(ages),
        "diet": ("milk", "food", "food") * 8,
        "child": tuple("abcdefgh" * 3),
    }
    kinds = {"age": "numeric", "diet": "categorical", "child": "categorical"}
    return typed_metadata(IDS, columns, kinds)


def learned(study, spec=AGE, ages=None) -> dict[str, np.ndarray]:
    study = replace(study, metadata=metadata(ages), config=BY_CHILD)
    baselines = baselines_of(study, SPLITS, spec, True, passes=1)
    return {one.name: one.predicted for one in baselines if not one.trivial}
