"""Drawing: samples rarefied and put into batches, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import itertools
import math
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch.utils.data import DataLoader, Dataset

from aam.data.batch import Batch, Budget, asv_keys
from aam.data.study import EVALUATION, Row, Rows, Study
from aam.data.table import rarefied_row
from aam.data.unifrac import Metric, UnifracOptions, batch_unifrac, faith_pd
from aam.errors import WARNINGS, RunError
from aam.runtime.device import generator
from aam.runtime.distributed import ALONE, World

# A draw below the depth keeps at least this share of it.
SHALLOWEST = 0.25


def _limited(study: Study, row: Row, name: str, draw: int) -> Row:
    """At most `token_limit` ASVs of a rarefied sample, chosen as configured, columns ascending."""
    columns, reads = row
    limit = study.config.token_limit
    if len(columns) <= limit:
        return row
    if study.config.asv_sampling == "abundance":
        kept = np.sort(np.argsort(-reads, kind="stable")[:limit])
    elif study.config.asv_sampling == "random":
        kept = np.sort(generator(study.seed, "limit", draw, name).permutation(len(columns))[:limit])
    else:
        kept = np.arange(limit)
    return columns[kept], reads[kept]


def _sparse(study: Study, drawn: Sequence[Row]) -> sparse.csr_matrix:
    starts = np.cumsum([0, *(len(columns) for columns, _ in drawn)])
    columns = np.concatenate([columns for columns, _ in drawn])
    reads = np.concatenate([reads for _, reads in drawn])
    return sparse.csr_matrix((reads, columns, starts), shape=(len(drawn), len(study.table.feature_ids)))


def rarefied_table(study: Study) -> sparse.csr_matrix:
    """Reads [N, F] of every sample in the one draw that evaluation uses."""
    rows = range(len(study.table.sample_ids))
    return _sparse(study, [rarefied_row(study.table, row, study.depth, study.seed, EVALUATION) for row in rows])


def distances_of(
    study: Study, counts: sparse.csr_matrix, rows: Rows, own: slice = slice(None)
) -> dict[str, torch.Tensor]:
    """UniFrac of those at `own` to all, or their Faith PD, from the rarefied reads [B, F] of the samples at `rows`."""
    config, real = study.config, np.float64 if torch.get_default_dtype() == torch.float64 else np.float32
    if study.matrix is not None:
        return {"distance": torch.from_numpy(study.matrix.values[np.ix_(rows[own], rows)].astype(real))}
    if study.tree is None or study.tips is None:
        return {}
    if config.unifrac_metric == "faith_pd":
        diversity = faith_pd(study.tree, study.tips, counts[own], config.root_length)
        return {"faith_pd": torch.from_numpy(diversity.astype(real))}
    metric: Metric = config.unifrac_metric
    options = UnifracOptions(metric, config.alpha, config.root_length, double=real == np.float64)
    asked = slice(None) if len(rows[own]) == len(rows) else own
    return {"distance": torch.from_numpy(batch_unifrac(study.tree, study.tips, counts, options, asked))}


def _drawn_depth(study: Study, name: str, draw: int, shallow: float) -> int:
    """Reads of one draw: the depth or, in a share `shallow` of the draws, less, down to `SHALLOWEST` of it."""
    rng = generator(study.seed, "shallow", draw, name)
    return study.depth if rng.random() >= shallow else max(1, round(study.depth * SHALLOWEST ** rng.random()))


def draw_rows(study: Study, rows: Rows, draw: int, shallow: float = 0.0) -> list[Row]:
    """Columns and reads of the samples at `rows`, rarefied; the parameters are those of `draw_batch`."""
    names = study.table.sample_ids
    return [
        rarefied_row(study.table, row, _drawn_depth(study, names[row], draw, shallow), study.seed, draw)
        for row in rows.tolist()
    ]


def _read(study: Study, row: Row, name: str, draw: int, share: float) -> Row:
    """What the model reads of a rarefied sample: at most `token_limit` ASVs, a `share` of them left out, not all."""
    columns, reads = _limited(study, row, name, draw)
    if not share:
        return columns, reads
    kept = generator(study.seed, "asv dropout", draw, name).random(len(columns)) >= share
    kept[reads.argmax()] = True
    return columns[kept], reads[kept]


def _conditions(study: Study, rows: Rows, draw: int, hidden: float) -> dict[str, torch.Tensor]:
    """Covariates, a share `hidden` of them unknown, and weights of the samples."""
    weight, real = study.weight, torch.get_default_dtype()
    found = {} if weight is None else {"weight": torch.from_numpy(weight[rows]).to(real)}
    if study.category is None or study.covariate is None:
        return found
    category, covariate = study.category[rows], study.covariate[rows]
    for at, row in enumerate(rows.tolist() if hidden else ()):
        rng = generator(study.seed, "covariates", draw, study.table.sample_ids[row])
        gone = rng.random(category.shape[1] + covariate.shape[1]) < hidden
        category[at, gone[: category.shape[1]]] = 0
        covariate[at, gone[category.shape[1] :]] = np.nan
    return {**found, "category": torch.from_numpy(category), "covariate": torch.from_numpy(covariate)}


class Withheld(NamedTuple):
    """Shares of what a draw leaves out: of a sample's ASVs, from the input alone, and of its covariates."""

    asvs: float = 0.0
    covariates: float = 0.0


NOTHING = Withheld()


def draw_batch(
    study: Study,
    rows: Rows,
    draw: int,
    tokens: bool = True,
    distances: bool = True,
    shallow: float = 0.0,
    withheld: Withheld = NOTHING,
) -> Batch:
    """Rarefy the samples at `rows` and put them into one batch, largest first.

    Parameters
    ----------
    study : Study
    rows : int64 [B]
    draw : int
        Epoch of the draw; `EVALUATION` and below are draws outside training.
    tokens : bool
        Fill `tokens`; without it the caller has the ASV vectors already.
    distances : bool
        Compute the UniFrac target.
    shallow : float
        Share of the samples that get fewer reads than the depth; which ones, and how many, depends on `draw`.
    withheld : Withheld
    """
    return make_batch(study, [rows], [draw_rows(study, rows, draw, shallow)], draw, 0, tokens, distances, withheld)


def _balanced(lengths: Rows, ranks: int) -> tuple[int, ...]:
    """How many of the ASVs each rank encodes, one rank after the other, so that all have as many bases."""
    done = np.cumsum(lengths)
    ends = np.searchsorted(done, done[-1] * np.arange(1, ranks + 1) / ranks, side="right")
    return tuple(np.diff(ends, prepend=0).tolist())


def _laid_out(position: Rows, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """`Batch.asv` and `Batch.counts` of samples, largest first, where a column stands at `position` of the batch."""
    sizes = [len(columns) for columns, _ in rows]
    slot = np.arange(sizes[0]) < np.array(sizes)[:, None]
    asv, counts = np.zeros(slot.shape, np.int64), np.zeros(slot.shape, np.float32)
    asv[slot] = position[np.concatenate([columns for columns, _ in rows])]
    counts[slot] = np.concatenate([reads for _, reads in rows])
    return torch.from_numpy(asv), torch.from_numpy(counts)


def make_batch(
    study: Study,
    parts: Sequence[Rows],
    drawn: Sequence[Sequence[Row]],
    draw: int,
    rank: int,
    tokens: bool = True,
    distances: bool = True,
    withheld: Withheld = NOTHING,
) -> Batch:
    """One rank's share of a batch.

    Parameters
    ----------
    study : Study
    parts : sequence of int64 [B]
        The rows of the table that each rank holds.
    drawn : sequence of sequences of (columns, reads)
        What `draw_rows` gave for them.
    draw, tokens, distances, withheld
        As for `draw_batch`.
    rank : int
        Its own samples are those of ``parts[rank]``, largest first; distances go to those of all ranks. The distinct
        ASVs of all ranks stand in order of length, and each rank has the tokens of its stretch of them.
    """
    names, places, limited = study.table.sample_ids, [], []
    for rows, some in zip(parts, drawn, strict=True):
        read = [_read(study, row, names[at], draw, withheld.asvs) for row, at in zip(some, rows, strict=True)]
        order = np.argsort([-len(columns) for columns, _ in read], kind="stable")
        places.append(order)
        limited += [read[i] for i in order]
    at = [rows[order] for rows, order in zip(parts, places, strict=True)]
    full = [some[i] for some, order in zip(drawn, places, strict=True) for i in order]
    own = slice(start := sum(map(len, parts[:rank])), start + len(parts[rank]))
    columns = np.unique(np.concatenate([columns for columns, _ in limited]))
    columns = columns[np.argsort(study.lengths[columns], kind="stable")]
    shares = _balanced(study.lengths[columns], len(parts))
    mine = columns[sum(shares[:rank]) :][: shares[rank]]
    longest = int(study.lengths[mine if len(mine) else columns].max()) if tokens else 0
    position = np.empty(len(study.lengths), np.int64)
    position[columns] = np.arange(len(columns))
    asv, counts = _laid_out(position, limited[own])
    column, rows = torch.from_numpy(columns.astype(np.int64)), at[rank]
    return Batch(
        tokens=study.tokens[torch.from_numpy(mine.astype(np.int64)), :longest],
        asv=asv,
        counts=counts,
        column=column,
        key=asv_keys(study.tokens[column]) if tokens else None,
        sizes=tuple(len(columns) for columns, _ in limited[own]),
        padded=bool(tokens and (study.lengths[mine] < longest).any()),
        target=None if study.target is None else torch.from_numpy(study.target[rows]),
        label=None if study.label is None else torch.from_numpy(study.label[rows]),
        sample_ids=tuple(names[row] for row in rows),
        rank=rank,
        samples_by_rank=tuple(map(len, parts)),
        asvs_by_rank=shares,
        **_conditions(study, rows, draw, withheld.covariates),
        **(distances_of(study, _sparse(study, full), np.concatenate(at), own) if distances else {}),
    )


# --- epochs ------------------------------------------------------------------------------------------------


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
    world: World = ALONE
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
            rows = exchanged(drawn, [len(part) for part in parts], world)
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


def exchanged(drawn: Sequence[Row], sizes: Sequence[int], world: World) -> list[list[Row]]:
    """The rarefied samples of every rank, `sizes` of each, from one's own; int32 columns and reads travel."""
    lengths = [len(columns) for columns, _ in drawn]
    own = np.concatenate([lengths, *(columns for columns, _ in drawn), *(reads for _, reads in drawn)])
    every = []
    for message, size in zip(world.arrays(own.astype(np.int32), "rarefied rows"), sizes, strict=True):
        ends = np.cumsum(message[:size])[:-1]
        columns, reads = message[size:].reshape(2, -1)
        every.append(list(zip(np.split(columns, ends), np.split(reads.astype(np.int64), ends), strict=True)))
    return every
