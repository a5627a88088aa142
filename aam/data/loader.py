"""The loader: batches of an epoch, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import itertools
import math
import signal
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from aam.data.batch import Batch
from aam.data.collate import EVERYTHING, Collation, collate, limited, rarefied_batch
from aam.data.rarefaction import Row, rarefied_rows
from aam.data.shelves import BATCHES, Capacities, fit_capacities
from aam.data.study import Rows, Study
from aam.device.distributed import SINGLE, World
from aam.device.rng import generator
from aam.errors import WARNINGS, RunError


def _ignore_warnings(worker: int) -> None:
    """Ignore the signals that warn a process: they are meant for the main process, which still
    needs its workers.
    """
    for number in WARNINGS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WARNINGS)


def _begun(ahead: DataLoader[Any]) -> Iterator[Any]:
    """Return the iterator of a loader whose workers start with these signals blocked, until they
    ignore them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)
    try:
        return iter(ahead)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop_workers(kept: list[tuple[DataLoader[Any], list[Any]]]) -> None:
    """Stop workers, also of an epoch that is still open: they ignore the signal that would end
    them.
    """
    for ahead, _ in kept:
        if ahead._iterator is not None:
            ahead._iterator._shutdown_workers()  # type: ignore[attr-defined]
    kept.clear()


def _as_it_is(batch: Batch, place: int) -> Batch:
    return batch


class _Items:
    """A data set whose items are their own keys: what a worker shall do travels to it."""

    def __getitem__(self, item: Any) -> Any:
        return item


@dataclass(frozen=True, eq=False)
class Loader:
    """Rarefies the samples at `rows` in batches of nearly equal size, at most `batch_size` on each
    rank of `world`.

    `rows` int64 [n] stand in a new order each epoch when `shuffle`, else by sample id; the number
    of `workers`, processes that rarefy ahead, changes no bit; `how` is that of `rarefied_batch`.
    The workers start with the first epoch and live as long as the loader: only one epoch may be
    open at a time.
    """

    study: Study
    rows: Rows
    batch_size: int
    shuffle: bool = False
    workers: int = 0
    how: Collation = EVERYTHING
    world: World = SINGLE
    # The workers, and the list that says what they do in the next epoch.
    kept: list[tuple[DataLoader[Any], list[Any]]] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        if len(self.study.parts) > 1:
            return len(self.order(0))
        return math.ceil(len(self.rows) / (self.batch_size * self.world.size))

    def _by_id(self, rows: Iterable[int]) -> Rows:
        """Return rows in the order of their sample ids."""
        return np.array(sorted(rows, key=self.study.table.sample_ids.__getitem__), np.int64)

    def batch(self, rows: Rows, epoch: int) -> Batch:
        """Return the samples at `rows` as one batch."""
        return rarefied_batch(self.study, rows, epoch, self.how)

    def order(self, epoch: int) -> list[Rows]:
        """Return the rows of each batch of an epoch, all of one study; the order of the table
        changes nothing.
        """
        if not len(self.rows):
            return []
        size, origin = self.batch_size * self.world.size, self.study.origin[self.rows]
        studies = {
            study: self._by_id(self.rows[origin == study].tolist())
            for study in np.unique(origin).tolist()
        }
        if not self.shuffle:
            parts = (np.array_split(rows, math.ceil(len(rows) / size)) for rows in studies.values())
            return list(itertools.chain.from_iterable(parts))
        if len(self.study.parts) > 1:
            return batches_by_study(studies, size, self.study.seed, epoch)
        (rows,) = studies.values()
        return np.array_split(
            rows[generator(self.study.seed, "order", epoch).permutation(len(rows))], len(self)
        )

    def capacities(self, masked: float) -> Capacities:
        """Return the capacities of batches, from the rarefactions of the first epochs.

        `masked` is the share of the distinct ASVs that have a masked copy.
        """
        study, sizes, asvs = self.study, list[list[int]](), list[int]()
        limit, epoch = study.config.token_limit, 0
        while len(sizes) < BATCHES:
            for rows in self.order(epoch)[: BATCHES - len(sizes)]:
                rarefied = rarefied_rows(study, rows, epoch, self.how.shallow)
                read = [limited(row, limit)[0] for row in rarefied]
                sizes.append(sorted(map(len, read), reverse=True))
                asvs.append(len(np.unique(np.concatenate(read))))
            epoch += 1
        return fit_capacities(sizes, asvs, self.batch_size, study.longest, masked)

    def parts(self, rows: Rows) -> list[Rows]:
        """Return the rows of a batch that each rank holds: equally many samples, with nearly
        equally many ASVs.
        """
        ranks = self.world.size
        sizes = [(len(rows) + rank) // ranks for rank in range(ranks)][::-1]
        parts: list[list[int]] = [[] for _ in range(ranks)]
        loads = np.zeros(ranks)
        for row in sorted(rows.tolist(), key=lambda row: -self.study.richness[row]):
            free = [rank for rank in range(ranks) if len(parts[rank]) < sizes[rank]]
            rank = min(free, key=loads.__getitem__)
            parts[rank].append(row)
            loads[rank] += self.study.richness[row]
        return list(map(self._by_id, parts))

    def epoch(
        self, epoch: int, skip: int = 0, finish: Callable[[Batch, int], Any] = _as_it_is
    ) -> Iterator[Any]:
        """Yield this rank's share of the batches of an epoch, after the first `skip`.

        The workers give each batch and its place in the epoch to `finish`, and its result is
        yielded.
        """
        order, world = self.order(epoch)[skip:], self.world
        places = range(skip, skip + len(order))
        if world.size == 1:
            yield from self._ahead(
                [(rows, epoch, finish, at) for at, rows in zip(places, order, strict=True)]
            )
            return
        parts_by_batch = [self.parts(rows) for rows in order]
        rarefied_here = self._ahead(
            [(parts[world.rank], epoch, finish, 0) for parts in parts_by_batch]
        )
        richest = np.minimum(np.diff(self.study.table.counts.indptr), self.study.depth)
        numbers = iter(places)
        waiting: deque[tuple[list[Rows], Callable[[], list[list[Row]]]]] = deque()
        for parts, own in zip(parts_by_batch, rarefied_here, strict=True):
            most = max(int(richest[part].sum()) for part in parts)
            waiting.append((parts, exchange_rows(own, [len(part) for part in parts], most, world)))
            # The rows of a batch arrive while the one before is computed.
            if len(waiting) > 1:
                yield finish(self._share(*waiting.popleft(), epoch), next(numbers))
        for parts, arrived in waiting:
            yield finish(self._share(parts, arrived, epoch), next(numbers))

    def _take(self, item: tuple[Rows, int, Callable[[Batch, int], Any], int]) -> Any:
        """Make a batch and finish it; of several ranks, only rarefy the rows of this one."""
        rows, epoch, finish, place = item
        if self.world.size > 1:
            return rarefied_rows(self.study, rows, epoch, self.how.shallow)
        return finish(self.batch(rows, epoch), place)

    def _share(
        self, parts: Sequence[Rows], arrived: Callable[[], list[list[Row]]], epoch: int
    ) -> Batch:
        """Return this rank's share of a batch, once the rarefied rows of all ranks have arrived."""
        return collate(self.study, parts, arrived(), epoch, self.how, self.world.rank)

    def _ahead(self, items: list[Any]) -> Iterator[Any]:
        """Yield what `_take` makes of each item, in order, in `workers` where there are any."""
        if not self.workers:
            yield from map(self._take, items)
            return
        if not self.kept:
            waiting: list[Any] = []
            # The workers must not keep this loader; they end with it, at the latest at exit.
            self.kept.append((replace(self)._workers(waiting), waiting))
            weakref.finalize(self, _stop_workers, self.kept)
        ahead, next_items = self.kept[0]
        next_items[:] = items
        try:
            yield from _begun(ahead)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            killed = "a process that prepares batches was killed, perhaps because memory was full"
            raise RunError(f"{killed} ({error}); lower --num-workers {self.workers}") from error

    def _workers(self, items: list[Any]) -> DataLoader[Any]:
        """Return workers that take `items`, which may change between epochs."""
        with warnings.catch_warnings():
            # torch warns when there are more workers than cores; the user asked for them.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            return DataLoader(
                _Items(),  # type: ignore[arg-type]
                sampler=items,
                batch_size=None,
                collate_fn=self._take,  # type: ignore[arg-type]
                num_workers=self.workers,
                # Without a generator of its own it would advance the one that dropout uses.
                generator=torch.Generator(),
                worker_init_fn=_ignore_warnings,
                persistent_workers=True,
            )


def exchange_rows(
    rarefied: Sequence[Row], sizes: Sequence[int], most: int, world: World
) -> Callable[[], list[list[Row]]]:
    """Begin to exchange rarefied samples; what is returned waits for those of all ranks, `sizes` of
    each.

    int32 arrays are sent, of a length for which no rank may have more than `most` ASVs in its
    samples together.
    """
    lengths = [len(columns) for columns, _ in rarefied]
    own_rows = np.concatenate(
        [lengths, *(columns for columns, _ in rarefied), *(reads for _, reads in rarefied)]
    )
    message = np.zeros(max(sizes) + 2 * most, np.int32)
    message[: len(own_rows)] = own_rows
    arrived = world.gather_same_shape(message)

    def rows() -> list[list[Row]]:
        rows_by_rank = []
        for message, size in zip(arrived(), sizes, strict=True):
            ends = np.cumsum(message[:size])[:-1]
            columns, reads = message[size : size + 2 * message[:size].sum()].reshape(2, -1)
            rows_by_rank.append(
                list(
                    zip(
                        np.split(columns, ends), np.split(reads.astype(np.int64), ends), strict=True
                    )
                )
            )
        return rows_by_rank

    return rows


def batches_by_study(studies: dict[int, Rows], size: int, seed: int, epoch: int) -> list[Rows]:
    """Return the rows of each batch of an epoch of training, from the rows of each study in the
    order of their ids.

    There are as many batches as if all samples were dealt once. Studies share them by the square
    root of their sizes, one at least for each, so that a large study does not drown the small ones:
    some of its samples wait for a later epoch, and those of a small study come several times,
    rarefied anew.
    """
    sizes = [len(rows) for rows in studies.values()]
    share = np.sqrt(sizes)
    batches = max(len(studies), math.ceil(sum(sizes) / size))
    wanted = np.maximum(1, np.floor(share / share.sum() * batches)).astype(int)
    result = []
    for (study, rows), number in zip(studies.items(), wanted.tolist(), strict=True):
        needed = number * min(size, len(rows))
        dealt: list[Rows] = []
        while len(dealt) * len(rows) < needed:
            dealt.append(
                rows[generator(seed, "order", epoch, study, len(dealt)).permutation(len(rows))]
            )
        pool = np.concatenate(dealt)[:needed]
        result += [np.unique(batch) for batch in np.array_split(pool, number)]
    return [result[at] for at in generator(seed, "studies", epoch).permutation(len(result))]
