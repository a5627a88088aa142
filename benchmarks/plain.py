"""The plain implementation: a row of tokens for each ASV of each sample, with the same losses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from aam.data.batch import Batch
from aam.data.shelves import Masks, Shelved, on_shelves
from aam.training.masking import make_masks
from aam.training.task import AmpliconTask, Prepared


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

    def prepare(self, batch: Batch | Shelved, number: int) -> Prepared:
        """Return the batch on the device with a row for each slot."""
        if not isinstance(batch, Batch):
            raise TypeError("a plain batch is laid out here")
        plain, train = every_slot(batch), self.config.train
        masks = make_masks(plain, train, self.config.runtime.seed, number)
        if masks is not None:
            # One masked copy of each distinct ASV.
            _, first = np.unique(masks.tokens.numpy(), axis=0, return_index=True)
            rows = torch.from_numpy(np.sort(first))
            masks = Masks(masks.rows[rows], masks.tokens[rows], masks.where[rows], masks.counts)
        return Prepared(on_shelves(plain, masks).to(self.device))
