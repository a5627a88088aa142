"""The plain implementation: a row of tokens for each ASV of each sample, with the same losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from aam.data.batch import Batch
from aam.model.aam import Masks
from aam.training.task import AmpliconTask, MaskedBatch


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
        ranks=replace(batch.ranks, asvs=(len(rows),)),
    )


class PlainTask(AmpliconTask):
    """The task on batches with a row for each slot: the same losses as on those of distinct
    ASVs.
    """

    def prepare(self, batch: Batch, number: int) -> MaskedBatch:
        """Return the batch on the device with a row for each slot."""
        return super().prepare(every_slot(batch), number)

    def masks(self, batch: Batch, number: int) -> Masks | None:
        """Return the masks of a batch, one masked copy of each distinct ASV."""
        masks = super().masks(batch, number)
        if masks is None:
            return None
        _, first = np.unique(masks.tokens.cpu().numpy(), axis=0, return_index=True)
        rows = torch.from_numpy(np.sort(first)).to(masks.rows.device)
        return Masks(masks.rows[rows], masks.tokens[rows], masks.where[rows], masks.counts)
