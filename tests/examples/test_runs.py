"""Tasks whose batches are rows of a data set: each row once in an epoch, on one rank, and resume in
the middle.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aam.device.distributed import World
from examples.runs import RowsTask

ROWS = np.arange(100, 123)


class Echo(RowsTask):
    """Batches are the numbers of their rows."""

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class Pairs(Echo):
    """Rows in pairs of neighbours."""

    def order(self, epoch: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[:22]).view(-1, 2)


def make_task(
    kind: type[RowsTask] = Echo, rank: int = 0, size: int = 1, splits: bool = True
) -> RowsTask:
    return kind(torch.nn.Linear(1, 1), ROWS, 4, 7, torch.device("cpu"), World(rank, size), splits)


def batches_of(task: RowsTask, epoch: int, skip: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in task.batches(epoch, skip)]


def test_an_epoch_has_each_row_once_in_an_order_of_its_own():
    task = make_task()
    first, again, other = (batches_of(task, epoch) for epoch in (0, 0, 1))
    assert len(first) == task.batches_per_epoch == 6
    assert sorted(row for batch in first for row in batch) == ROWS.tolist()
    assert first == again != other
    assert batches_of(task, 0, skip=2) == first[2:]
    assert task.samples(torch.tensor(first[0])) == 4


@pytest.mark.parametrize("kind", [Echo, Pairs])
def test_ranks_share_the_batches_of_one(kind):
    ranks = [make_task(kind, rank, 2) for rank in range(2)]
    halves = zip(*(batches_of(task, 3) for task in ranks), strict=True)
    whole = kind(torch.nn.Linear(1, 1), ROWS, 8, 7, torch.device("cpu"))
    assert [one + other for one, other in halves] == batches_of(whole, 3)
    if kind is Pairs:
        assert all(
            batch[0::2] == [row - 1 for row in batch[1::2]] for batch in batches_of(ranks[0], 3)
        )


def test_ranks_that_share_the_model_have_the_same_batches():
    one, other = (make_task(Echo, rank, 2, splits=False) for rank in range(2))
    assert batches_of(one, 0) == batches_of(other, 0) == batches_of(make_task(), 0)
