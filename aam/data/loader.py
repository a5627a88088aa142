"""The loader: batches of an epoch, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import itertools
import math
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from aam.data.batch import Batch, Budget
from aam.data.draw import NOTHING, Withheld, draw_batch, draw_rows, make_batch
from aam.data.study import Row, Rows, Study
from aam.errors import WARNINGS, RunError
from aam.runtime.distributed import SINGLE, World
from aam.runtime.rng import generator


def _ignore_warnings(worker: int) -> None:
    """Whoever warns the whole group of processes means the main one, which still needs its workers."""
    for one in WARNINGS:
        signal.signal(one, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WARNINGS)


def _begun(ahead: DataLoader[Any]) -> Iterator[Any]:
    """The iterator of a loader whose workers begin with warnings blocked, until they ignore them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)
    try:
        return iter(ahead)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, eq=False)
class _Draws(Dataset[Any]):
    """What one epoch draws, drawn when asked for, in this process or another."""

    rows: list[Rows]
    take: Callable[[Rows], Any]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.take(self.rows[index])


@dataclass(frozen=True, eq=False)
class Loader:
    """Draws the samples at `rows` in batches of nearly equal size, at most `batch_size` on each rank of `world`.

    `rows` int64 [n] stand in a new order each epoch when `shuffle`, else by sample id; the number of `workers`,
    processes that draw ahead, changes no bit; `tokens`, `distances`, `shallow` and `withheld` are those of
    `draw_batch`; a batch that is too large for `budget` comes in parts.
    """

    study: Study
    rows: Rows
    batch_size: int
    shuffle: bool = False
    workers: int = 0
    tokens: bool = True
    distances: bool = True
    shallow: float = 0.0
    withheld: Withheld = NOTHING
    world: World = SINGLE
    budget: Budget | None = None

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / (self.batch_size * self.world.size))

    def draw(self, rows: Rows, draw: int) -> Batch:
        """One batch of given rows."""
        return draw_batch(self.study, rows, draw, self.tokens, self.distances, self.shallow, self.withheld)

    def order(self, draw: int) -> list[Rows]:
        """Rows of each batch of an epoch; the order of the table changes nothing."""
        names = self.study.table.sample_ids
        rows = np.array(sorted(self.rows.tolist(), key=names.__getitem__), np.int64)
        if self.shuffle:
            rows = rows[generator(self.study.seed, "order", draw).permutation(len(rows))]
        return np.array_split(rows, len(self)) if len(rows) else []

    def parts(self, rows: Rows) -> list[Rows]:
        """The rows of a batch that each rank holds: as many samples, and of nearly as many ASVs."""
        ranks = self.world.size
        most = [(len(rows) + rank) // ranks for rank in range(ranks)][::-1]
        parts: list[list[int]] = [[] for _ in range(ranks)]
        loads = np.zeros(ranks)
        for row in sorted(rows.tolist(), key=lambda row: -self.study.richness[row]):
            free = [rank for rank in range(ranks) if len(parts[rank]) < most[rank]]
            rank = min(free, key=loads.__getitem__)
            parts[rank].append(row)
            loads[rank] += self.study.richness[row]
        return [np.array(sorted(part, key=self.study.table.sample_ids.__getitem__), np.int64) for part in parts]

    def window(self, parts: Sequence[Rows], drawn: Sequence[Sequence[Row]], draw: int) -> list[Batch]:
        """This rank's share of a batch, in the fewest parts that `budget` allows on every rank, or of one sample each.

        `parts` and `drawn` are those of `make_batch`; each part has as many samples, rich and poor ones alike.
        """
        study, rank = self.study, self.world.rank

        def made(number: int, distances: bool) -> list[Batch]:
            every = []
            for at in range(number):
                cut = [np.sort(order[at::number]) for order in orders]
                rows = [part[own] for part, own in zip(parts, cut, strict=True)]
                some = [[part[i] for i in own] for part, own in zip(drawn, cut, strict=True)]
                every.append(make_batch(study, rows, some, draw, rank, self.tokens, distances, self.withheld))
            return every

        orders = [np.argsort([-len(columns) for columns, _ in part], kind="stable") for part in drawn]
        number, most = 1, max(1, min(map(len, parts)))
        while self.budget and number < most and self.world.any(not all(map(self.budget.allows, made(number, False)))):
            number += 1
        return made(number, self.distances)

    def cut(self, rows: Rows, draw: int) -> list[Batch]:
        """One batch of given rows, in the parts that `budget` makes of it."""
        return self.window([rows], [draw_rows(self.study, rows, draw, self.shallow)], draw)

    def epoch(self, draw: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of epoch `draw` after the first `skip`."""
        return itertools.chain.from_iterable(self.windows(draw, skip))

    def windows(self, draw: int, skip: int = 0) -> Iterator[list[Batch]]:
        """The batches of epoch `draw` after the first `skip`, each as the parts that `budget` makes of it."""
        order, world = self.order(draw)[skip:], self.world
        if world.size == 1:
            yield from self._ahead(_Draws(order, partial(self.cut, draw=draw)))
            return
        every = [self.parts(rows) for rows in order]
        take = partial(draw_rows, self.study, draw=draw, shallow=self.shallow)
        own = self._ahead(_Draws([parts[world.rank] for parts in every], take))
        for parts, drawn in zip(every, own, strict=True):
            rows = exchange_rows(drawn, [len(part) for part in parts], world)
            yield self.window(parts, rows, draw)

    def _ahead(self, draws: _Draws) -> Iterator[Any]:
        """The draws, one after the other, by `workers` where there are such."""
        if not self.workers:
            yield from map(draws.__getitem__, range(len(draws)))
            return
        with warnings.catch_warnings():
            # torch warns when there are more workers than cores; the user asked for them.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            # Without a generator of its own it would advance the one that dropout draws from.
            own = torch.Generator()
            ahead = DataLoader(
                draws, batch_size=None, num_workers=self.workers, generator=own, worker_init_fn=_ignore_warnings
            )
            try:
                yield from _begun(ahead)
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                lost = "a process that prepares batches was killed, perhaps for want of memory"
                raise RunError(f"{lost} ({error}); lower --num-workers {self.workers}") from error


def exchange_rows(drawn: Sequence[Row], sizes: Sequence[int], world: World) -> list[list[Row]]:
    """The rarefied samples of every rank, `sizes` of each, from one's own; int32 columns and reads travel."""
    lengths = [len(columns) for columns, _ in drawn]
    own = np.concatenate([lengths, *(columns for columns, _ in drawn), *(reads for _, reads in drawn)])
    every = []
    for message, size in zip(world.all_gather_arrays(own.astype(np.int32), "rarefied rows"), sizes, strict=True):
        ends = np.cumsum(message[:size])[:-1]
        columns, reads = message[size:].reshape(2, -1)
        every.append(list(zip(np.split(columns, ends), np.split(reads.astype(np.int64), ends), strict=True)))
    return every
