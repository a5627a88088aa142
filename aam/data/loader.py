"""Batches of an epoch, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from aam.data.batch import Batch
from aam.data.study import Study, draw_batch
from aam.errors import RunError
from aam.runtime.device import generator

Rows = npt.NDArray[np.int64]


def _ignore_warnings(worker: int) -> None:
    """Whoever warns the whole group of processes means the main one, which still needs its workers."""
    for name in ("SIGTERM", "SIGUSR2", "SIGINT"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


@dataclass(frozen=True, eq=False)
class _Batches(Dataset[Batch]):
    """The batches of one epoch, drawn when asked for, in this process or another."""

    loader: Loader
    rows: list[Rows]
    draw: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        return self.loader.draw(self.rows[index], self.draw)


@dataclass(frozen=True, eq=False)
class Loader:
    """Draws the samples at `rows` in batches of nearly equal size, at most `batch_size`.

    `rows` int64 [n] stand in a new order each epoch when `shuffle`, else by sample id; the number of `workers`,
    processes that draw ahead, changes no bit; `tokens`, `distances`, `shallow`, `asv_dropout` and `hidden` are those of
    `draw_batch`.
    """

    study: Study
    rows: Rows
    batch_size: int
    shuffle: bool = False
    workers: int = 0
    tokens: bool = True
    distances: bool = True
    shallow: float = 0.0
    asv_dropout: float = 0.0
    hidden: float = 0.0

    def __len__(self) -> int:
        return (len(self.rows) + self.batch_size - 1) // self.batch_size

    def draw(self, rows: Rows, draw: int) -> Batch:
        """One batch of given rows."""
        augmented = self.shallow, self.asv_dropout, self.hidden
        return draw_batch(self.study, rows, draw, self.tokens, self.distances, *augmented)

    def order(self, draw: int) -> list[Rows]:
        """Rows of each batch of an epoch; the order of the table changes nothing."""
        names = self.study.table.sample_ids
        rows = np.array(sorted(self.rows.tolist(), key=names.__getitem__), np.int64)
        if self.shuffle:
            rows = rows[generator(self.study.seed, "order", draw).permutation(len(rows))]
        return np.array_split(rows, len(self)) if len(rows) else []

    def epoch(self, draw: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of epoch `draw` after the first `skip`."""
        batches = _Batches(self, self.order(draw)[skip:], draw)
        if not self.workers:
            yield from (batches[index] for index in range(len(batches)))
            return
        with warnings.catch_warnings():
            # torch warns when there are more workers than cores; the user asked for them.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            # Without a generator of its own it would advance the one that dropout draws from.
            own = torch.Generator()
            ahead = DataLoader(
                batches, batch_size=None, num_workers=self.workers, generator=own, worker_init_fn=_ignore_warnings
            )
            try:
                yield from ahead
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                lost = "a process that prepares batches was killed, perhaps for want of memory"
                raise RunError(f"{lost} ({error}); lower --num-workers {self.workers}") from error
