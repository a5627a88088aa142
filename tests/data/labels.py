"""Studies with labels that a test makes, and the counts that the model reads of a
batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aam.data.batch import Batch
from aam.data.study import Study
from aam.data.targets import Labels


def labelled(study: Study, **values: Any) -> Study:
    """The study with other `Labels`: target, label, category, covariate, weight; None for
    nothing.
    """
    nothing = Labels.none(len(study.table.sample_ids))
    values = {
        name: getattr(nothing, name) if value is None else value for name, value in values.items()
    }
    return replace(study, labels=replace(study.labels, **values))


def counts_read(study: Study, batch: Batch) -> np.ndarray:
    """Dense counts that the model reads, [B, F]."""
    counts = np.zeros((len(batch.sample_ids), len(study.table.feature_ids)), np.int64)
    rows, slots = np.nonzero(batch.counts.numpy())
    columns = batch.column[batch.asv].numpy()
    np.add.at(counts, (rows, columns[rows, slots]), batch.counts.numpy()[rows, slots].astype(int))
    return counts
