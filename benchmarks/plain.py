"""The plain implementation: a row of tokens for each ASV of each sample, with the same losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from aam.data.batch import Batch, Masks, PaddedBatch, pad_batch
from aam.training.losses import make_masks
from aam.training.pretrain import AmpliconTask, Layout


def every_slot(batch: Batch) -> Batch:
    """Return `batch` as a plain implementation holds it: a row of tokens for each slot, up to the
    largest sample.
    """
    samples, slots = batch.asv.shape
    rows = batch.asv.flatten()
    asv = torch.arange(len(rows), device=rows.device).view(samples, slots)
    return replace(
        batch,
        tokens=batch.tokens[rows],
        key=None if batch.key is None else batch.key[rows],
        asv=asv,
        column=None,
        sizes=(slots,) * samples,
    )


class PlainLayout(Layout):
    """Lays out batches with a row for each slot."""

    def __call__(self, batch: Batch, number: int) -> PaddedBatch:
        """Return a batch laid out; `number` is its number in the run."""
        plain = every_slot(batch)
        masks = make_masks(plain, self.train, self.seed, number)
        if masks is not None:
            # One masked copy of each distinct ASV.
            _, distinct = np.unique(masks.tokens.numpy(), axis=0, return_index=True)
            rows = torch.from_numpy(np.sort(distinct))
            masks = Masks(masks.rows[rows], masks.tokens[rows], masks.where[rows], masks.counts)
        return pad_batch(plain, masks, self.capacities)


class PlainTask(AmpliconTask):
    """The task on batches with a row for each slot: the same losses as on those of distinct
    ASVs.
    """

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self.layout = PlainLayout(self.layout.train, self.layout.seed, self.layout.capacities)
