"""A task whose batches are rows of a data set: their order, the share of each rank, and resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from aam.device.distributed import SINGLE, World
from aam.device.rng import generator
from aam.engine.task import Task


class RowsTask(Task):
    """A task whose batches are rows of a data set, in an order by seed and epoch; the ranks share each batch.

    A subclass overrides `take` and `losses`. What `take` returns has ``to(device)`` and a length.

    Parameters
    ----------
    model : nn.Module
    rows : ndarray
        int ``[N]``: the rows to train on.
    batch_size : int
        Rows of a batch on each rank.
    seed : int
    device : torch.device
    world : World
    splits_batches : bool
        Whether each rank has its own rows of a batch; otherwise all have the same.
    """

    def __init__(
        self, model: nn.Module, rows: npt.NDArray[np.int64], batch_size: int, seed: int, device: torch.device,
        world: World = SINGLE, splits_batches: bool = True,
    ) -> None:  # fmt: skip
        self.model = model.to(device)
        self.rows, self.seed, self.device, self.world = rows, seed, device, world
        self.splits_batches = splits_batches
        self.ranks = world.size if splits_batches else 1
        self.batch_rows = batch_size * self.ranks
        self.batches_per_epoch = -(-len(rows) // self.batch_rows)

    def take(self, rows: Tensor) -> Any:
        """Return the batch of these rows."""
        raise NotImplementedError

    def order(self, epoch: int) -> Tensor:
        """Return the rows of an epoch in their order, ``[N]``; of ``[N, k]`` the k rows stay on one rank."""
        return torch.from_numpy(generator(self.seed, "order", epoch).permutation(self.rows))

    def batches(self, epoch: int, skip: int) -> Iterator[Sequence[Any]]:
        """Yield the batches of an epoch, this rank's share of each."""
        for rows in self.order(epoch).split(self.batch_rows)[skip:]:
            yield [self.take(rows.tensor_split(self.ranks)[self.world.rank if self.ranks > 1 else 0].flatten())]

    def prepare(self, batch: Any, number: int) -> Any:
        """Return a batch on the device."""
        return batch.to(self.device)

    def samples(self, batch: Any) -> int:
        """Return the rows of a batch on all ranks."""
        return len(batch) * self.ranks
