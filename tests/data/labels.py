"""Studies with labels that a test makes, and the counts that the model reads of a
batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aam.data.batch import Batch, exact_bins
from aam.data.study import Study
from aam.data.targets import Labels
from aam.model.layers import SequenceBins


def labelled(study: Study, **values: Any) -> Study:
    """The study with other `Labels`: target, label, category, covariate; None for
    nothing.
    """
    nothing = vars(Labels.none(len(study.table)))
    new = {name: nothing[name] if value is None else value for name, value in values.items()}
    return replace(study, labels=replace(study.labels, **new))


def counts_read(study: Study, batch: Batch) -> np.ndarray:
    """Dense counts that the model reads, [B, F]."""
    counts = np.zeros((len(batch.sample_ids), len(study.table.feature_ids)), np.int64)
    rows, slots = np.nonzero(batch.counts.numpy())
    columns = batch.column[batch.asv].numpy()
    np.add.at(counts, (rows, columns[rows, slots]), batch.counts.numpy()[rows, slots].astype(int))
    return counts


def by_slot(batch: Batch, flat: Tensor) -> Tensor:
    """Values of the slots of a batch that is laid out exactly, [T], as [B, S]."""
    bins = SequenceBins(exact_bins(batch.sizes), flat)
    width = batch.counts.shape[1]
    rows = [row for view in bins.views(flat) for row in view]
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
