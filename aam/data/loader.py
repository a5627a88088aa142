"""The loader: samples are rarefied and made into batches with the targets of this very
rarefaction, in an order that depends on the seed and the epoch alone.
"""

from __future__ import annotations

import atexit
import itertools
import math
import signal
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch.utils.data import DataLoader

from aam.data.batch import FITTED_BATCHES, Batch, Capacities, Ranks, fit_capacities
from aam.data.rarefaction import RarefiedRow, matrix_of, rarefied_rows
from aam.data.study import Study
from aam.data.tokens import asv_keys
from aam.device.distributed import SINGLE, World
from aam.device.measure import stage
from aam.device.rng import generator, next_generator
from aam.diversity.distances import TreeOnDevice, batch_unifrac
from aam.diversity.unifrac import UnifracOptions
from aam.errors import KILLED, WARNINGS, InputError, RunError
from aam.typing import Integers, Rows

# --- batches of samples ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Collation:
    """Contents of batches, and the rarefaction of their samples.

    Attributes
    ----------
    tokens : bool
        Fill `Batch.tokens`; without it the caller has the ASV vectors already.
    distances : bool
        Compute the UniFrac target.
    shallow : float
        Share of the samples that get fewer reads than the depth; which ones, and how many, depends
        on the rarefaction.
    covariate_dropout : float
        Share of the covariates of a sample that training leaves out.
    """

    tokens: bool = True
    distances: bool = True
    shallow: float = 0.0
    covariate_dropout: float = 0.0


def rows_read(study: Study, rows: Rows, epoch: int, shallow: float = 0.0) -> list[RarefiedRow]:
    """Return columns and reads of the samples at `rows` as a network reads them: rarefied, at most
    `token_limit`; `shallow` as in `Collation`.
    """
    limit = study.config.token_limit
    return [most_abundant(row, limit) for row in rarefied_rows(study, rows, epoch, shallow)]


def most_abundant(row: RarefiedRow, limit: int) -> RarefiedRow:
    """Return the `limit` most abundant ASVs of a rarefied sample."""
    columns, reads = row
    if len(columns) > limit:
        places = np.sort(np.argsort(-reads, kind="stable")[:limit])
        columns, reads = columns[places], reads[places]
    return columns, reads


def rarefied_batch(
    study: Study, rows: Rows, epoch: int, collation: Collation = Collation()
) -> Batch:
    """Rarefy the samples at `rows` and put them into one batch, largest first.

    Parameters
    ----------
    study : Study
    rows : int64 [B]
    epoch : int
        Number of the rarefaction; `EVALUATION` and below are rarefactions outside training.
    collation : Collation
    """
    return collate(
        study, [rows], [rarefied_rows(study, rows, epoch, collation.shallow)], epoch, collation
    )


def collate(
    study: Study,
    parts: Sequence[Rows],
    rarefied: Sequence[Sequence[RarefiedRow]],
    epoch: int,
    collation: Collation = Collation(),
    rank: int = 0,
) -> Batch:
    """Return one rank's share of a batch.

    Parameters
    ----------
    study : Study
    parts : sequence of int64 [B]
        The rows of the table that each rank holds; a row may occur several times.
    rarefied : sequence of sequences of (columns, reads)
        Their rarefied reads, all above 0.
    epoch, collation
        As for `rarefied_batch`.
    rank : int
        Its samples are those of ``parts[rank]``, largest first; distances go to those of all ranks.
    """
    rows, read, full = _sorted_by_size(study, parts, rarefied)
    columns = np.unique(np.concatenate([columns for columns, _ in read]))
    columns = columns[np.argsort(study.lengths[columns], kind="stable")]
    ranks = Ranks()
    if len(parts) > 1:
        # Each rank encodes as many ASVs of each length.
        shares = [columns[first :: len(parts)] for first in range(len(parts))]
        ranks = Ranks(rank, tuple(map(len, parts)), tuple(map(len, shares)))
        columns = np.concatenate(shares)
    rank_rows, samples = rows[ranks.rank_samples], read[ranks.rank_samples]
    asv, counts = _slot_arrays(columns, samples)
    columns_by_sample = [columns for columns, _ in samples]
    distance = None
    if collation.distances:
        matrix = matrix_of(full, len(study.table.feature_ids))
        distance = distances_of(study, matrix, rows, ranks.rank_samples)
    return Batch(
        asv=asv,
        counts=counts,
        column=torch.from_numpy(columns.astype(np.int64)),
        distance=distance,
        reference=study.sample_input and study.sample_input(columns_by_sample),
        sizes=tuple(map(len, columns_by_sample)),
        sample_ids=tuple(study.table.sample_ids[row] for row in rank_rows),
        ranks=ranks,
        **_token_fields(study, columns, ranks.rank_asvs, collation.tokens),
        **(_shared_fields(read, ranks, distance) if ranks.samples else {}),
        **_labels(study, rank_rows, epoch, collation.covariate_dropout),
    )


def _token_fields(
    study: Study, columns: Integers, selected: slice, with_tokens: bool
) -> dict[str, Any]:
    """Return the tokens of the ASVs at `selected` and the keys of all; tokens are cut to the
    longest of all, and to nothing without `with_tokens`.
    """
    tokens = study.tokens[torch.from_numpy(columns.astype(np.int64))]
    if not with_tokens:
        return {"tokens": tokens[selected, :0]}
    lengths = study.lengths[columns]
    longest = int(lengths.max())
    return {
        "tokens": tokens[selected, :longest],
        "key": asv_keys(tokens),
        "has_short_asvs": bool((lengths < longest).any()),
    }


def _shared_fields(
    read: Sequence[RarefiedRow], ranks: Ranks, distance: torch.Tensor | None
) -> dict[str, Any]:
    """Return what several ranks agree on in a batch: each computes it from the reads of all."""
    sizes = tuple(len(columns) for columns, _ in read)
    ends = itertools.accumulate(ranks.samples)
    own, number = ranks.samples[ranks.rank], sum(ranks.samples)
    pairs = torch.tensor([own * (number - 1) / 2], dtype=torch.float64)
    if distance is not None:
        pairs = _half_pairs(distance, ranks.rank_samples.start)
    return {
        "rank_sizes": tuple(
            sizes[end - samples : end] for end, samples in zip(ends, ranks.samples, strict=True)
        ),
        "pairs": pairs,
    }


def _half_pairs(distance: torch.Tensor, first: int) -> torch.Tensor:
    """Return half the number of distances to other samples; the samples start at column `first`."""
    present = torch.isfinite(distance)
    present.diagonal(first).fill_(False)
    return present.sum(dtype=torch.float64)[None] / 2


def _sorted_by_size(
    study: Study, parts: Sequence[Rows], rarefied: Sequence[Sequence[RarefiedRow]]
) -> tuple[Rows, list[RarefiedRow], list[RarefiedRow]]:
    """Return the rows of all ranks, each rank's samples largest first; what the model reads of
    them; their reads.
    """
    rows, read, full = [], [], []
    for part, reads in zip(parts, rarefied, strict=True):
        token_rows = [most_abundant(row, study.config.token_limit) for row in reads]
        order = np.argsort([-len(columns) for columns, _ in token_rows], kind="stable")
        rows.append(part[order])
        read += [token_rows[i] for i in order]
        full += [reads[i] for i in order]
    return np.concatenate(rows), read, full


def _slot_arrays(
    columns: Integers, rows: Sequence[RarefiedRow]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `Batch.asv` and `Batch.counts` of samples, largest first; `columns` are the distinct
    ASVs.
    """
    order, sizes = np.argsort(columns), [len(columns) for columns, _ in rows]
    slot = np.arange(sizes[0]) < np.array(sizes)[:, None]
    asv, counts = np.zeros(slot.shape, np.int64), np.zeros(slot.shape, np.float32)
    carried = np.concatenate([columns for columns, _ in rows])
    asv[slot] = order[np.searchsorted(columns[order], carried)]
    counts[slot] = np.concatenate([reads for _, reads in rows])
    return torch.from_numpy(asv), torch.from_numpy(counts)


def _labels(study: Study, rows: Rows, epoch: int, dropout: float) -> dict[str, Any]:
    """Return weights, labels and covariates of the samples, a share `dropout` of the covariates
    unknown; nothing for what has no columns.
    """
    labels = {name: values[rows] for name, values in vars(study.labels).items()}
    category, covariate = labels["category"], labels["covariate"]
    number = category.shape[1] + covariate.shape[1]
    for at, row in enumerate(rows.tolist() if dropout and number else ()):
        rng = next_generator(study.seed, "covariates", epoch, study.table.sample_ids[row])
        is_hidden = rng.random(number) < dropout
        category[at, is_hidden[: category.shape[1]]] = 0
        covariate[at, is_hidden[category.shape[1] :]] = np.nan
    width = {name: values.shape[1] for name, values in labels.items()}
    width |= {"category": number, "covariate": number}
    tensors = {name: torch.from_numpy(labels[name]) for name in labels if width[name]}
    return {"weight": torch.ones(len(rows)), **tensors}


def distances_of(
    study: Study, counts: sparse.csr_matrix, rows: Rows, selected: slice = slice(None)
) -> torch.Tensor | None:
    """Return UniFrac of the samples at `selected` to all at `rows`, from rarefied reads [B, F]; NaN
    across studies and within one without a tree.
    """
    options, origin = _options(study), study.origin[rows]
    real = np.float64 if options.double else np.float32
    if study.matrix is not None:
        return torch.from_numpy(study.matrix.values[np.ix_(rows[selected], rows)].astype(real))
    if not study.has_tree:
        return None
    start, stop, _ = selected.indices(len(rows))
    distance = np.full((stop - start, len(rows)), np.nan, real)
    with stage("UniFrac"):
        for number in np.unique(origin[selected]).tolist():
            part, inside = study.parts[number], np.flatnonzero(origin == number)
            if part.tree is not None:
                stretch = slice(*np.searchsorted(inside, (start, stop)).tolist())
                distance[np.ix_(inside[stretch] - start, inside)] = batch_unifrac(
                    part.tree, part.tips, counts[inside], options, stretch
                )
    return torch.from_numpy(distance)


def tree_on_device(study: Study, device: torch.device, samples: int) -> TreeOnDevice | None:
    """Tree that computes UniFrac of batches on `device`, from the ASVs that the network reads.

    `samples` are those of a batch on all ranks.

    None where that is not all that the target needs: a matrix is given, several studies are
    joined, a sample has more ASVs than the token limit, or the tree is too large.
    """
    part = study.parts[0]
    richest = min(int(np.diff(study.table.counts.indptr).max(initial=0)), study.depth)
    is_whole = len(study.parts) == 1 and richest <= study.config.token_limit
    if study.matrix is not None or part.tree is None or not is_whole:
        return None
    on_device = TreeOnDevice(part.tree, part.tips, _options(study), device)
    return on_device if on_device.fits(samples) else None


def _options(study: Study) -> UnifracOptions:
    config, double = study.config, torch.get_default_dtype() == torch.float64
    return UnifracOptions(config.unifrac_metric, config.alpha, config.root_length, double=double)


# --- the batches of an epoch ----------------------------------------------------------------------


def _ignore_warnings(worker: int) -> None:
    """Ignore the signals that warn a process: they are meant for the main process, which still
    needs its workers.
    """
    for number in WARNINGS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WARNINGS)


def _start_iterator(ahead: DataLoader[Any]) -> Iterator[Any]:
    """Return the iterator of a loader whose workers start with these signals blocked, until they
    ignore them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)
    try:
        return iter(ahead)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Rows of a batch, its epoch, and its number in the run.
BatchItem = tuple[Rows, int, int]
Finish = Callable[[Batch, int], Any]
# Workers, the list of what they do next, and how they finish a batch.
Workers = tuple[DataLoader[Any], list[Any], Finish | None]


def _stop_workers(pools: list[Workers]) -> None:
    """Stop workers, also of an epoch that is still open: they ignore the signal that would end
    them.
    """
    for ahead, *_ in pools:
        if ahead._iterator is not None:
            ahead._iterator._shutdown_workers()  # type: ignore[attr-defined]
    pools.clear()


class _Items:
    """A data set whose items are their own keys: what a worker shall do travels to it."""

    def __getitem__(self, item: Any) -> Any:
        return item


@dataclass(frozen=True, eq=False)
class Loader:
    """Rarefies the samples at `rows` in batches of nearly equal size, at most `batch_size` on each
    rank of `world`.

    `rows` int64 [n] stand in a new order each epoch when `shuffle`, else by sample id; the number
    of `workers`, processes that rarefy ahead, changes no bit; `collation` is that of
    `rarefied_batch`. The workers start with the first epoch and live as long as the loader: only
    one epoch may be open at a time.
    """

    study: Study
    rows: Rows
    batch_size: int
    shuffle: bool = False
    workers: int = 0
    collation: Collation = Collation()
    world: World = SINGLE
    # The workers, the list that says what they do in the next epoch, and how they finish a batch.
    pools: list[Workers] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        return len(self.order(0))

    def _by_id(self, rows: Iterable[int]) -> Rows:
        """Return rows in the order of their sample ids."""
        return np.array(sorted(rows, key=self.study.table.sample_ids.__getitem__), np.int64)

    def order(self, epoch: int) -> list[Rows]:
        """Return the rows of each batch of an epoch, all of one study; the order of the table
        changes nothing.
        """
        if not len(self.rows):
            return []
        size, origin = self.batch_size * self.world.size, self.study.origin[self.rows]
        names = np.unique(origin).tolist()
        studies = {name: self._by_id(self.rows[origin == name].tolist()) for name in names}
        if not self.shuffle:
            parts = (np.array_split(rows, math.ceil(len(rows) / size)) for rows in studies.values())
            return list(itertools.chain.from_iterable(parts))
        if len(self.study.parts) > 1:
            return batches_by_study(studies, size, self.study.seed, epoch)
        (rows,) = studies.values()
        order = generator(self.study.seed, "order", epoch).permutation(len(rows))
        return np.array_split(rows[order], math.ceil(len(rows) / size))

    def capacities(self, masked: float) -> Capacities:
        """Return the capacities of the batches of a rank, from the rarefactions of the first
        epochs.

        `masked` is the share of the distinct ASVs that have a masked copy.
        """
        study, sizes, asvs, epoch = self.study, list[list[int]](), list[int](), 0
        while len(sizes) < FITTED_BATCHES:
            missing = -(-(FITTED_BATCHES - len(sizes)) // self.world.size)
            for rows in self.order(epoch)[:missing]:
                read = [
                    [row[0] for row in rows_read(study, part, epoch, self.collation.shallow)]
                    for part in self.parts(rows)
                ]
                sizes += (sorted(map(len, part), reverse=True) for part in read)
                distinct = np.unique(np.concatenate([*itertools.chain(*read)]))
                asvs.append(-(-len(distinct) // len(read)))
            epoch += 1
        return fit_capacities(sizes, asvs, self.batch_size, study.longest, masked)

    def parts(self, rows: Rows) -> list[Rows]:
        """Return the rows of a batch that each rank holds: equally many samples, with nearly
        equally many ASVs.
        """
        ranks = self.world.size
        if ranks == 1:
            return [rows]
        sizes = [(len(rows) + rank) // ranks for rank in range(ranks)][::-1]
        parts: list[list[int]] = [[] for _ in range(ranks)]
        loads = np.zeros(ranks)
        for row in sorted(rows.tolist(), key=lambda row: -self.study.richness[row]):
            free = [rank for rank in range(ranks) if len(parts[rank]) < sizes[rank]]
            rank = min(free, key=loads.__getitem__)
            parts[rank].append(row)
            loads[rank] += self.study.richness[row]
        return list(map(self._by_id, parts))

    def check_division(self) -> None:
        """Raise `InputError` where a batch has fewer samples than there are ranks."""
        if self.world.size == 1:
            return
        smallest = min(map(len, self.order(0)), default=self.world.size)
        if smallest < self.world.size:
            raise InputError(
                f"{smallest} of {len(self.rows)} samples are a batch, and {self.world.size} "
                "processes share each batch; start fewer processes"
            )

    def close(self) -> None:
        """Stop the workers; the next epoch starts new ones."""
        _stop_workers(self.pools)

    def epoch(
        self, epoch: int, skip: int = 0, finish: Finish | None = None, first: int = 0
    ) -> Iterator[Any]:
        """Yield this rank's share of the batches of an epoch, after the first `skip`.

        The workers give each batch and its number, counted from `first` on, to `finish`, and its
        result is yielded; without `finish` the batch is. Epochs whose `finish` is equal share
        workers.
        """
        order = self.order(epoch)[skip:]
        items = [(rows, epoch, number) for number, rows in enumerate(order, first + skip)]
        yield from self._results(items, finish)

    def draw(self, rows: Rows, epoch: int) -> Batch:
        """Rarefy the samples of a batch; return the share of this rank.

        Each rank draws the samples of all: a draw depends on seed, epoch and sample alone, so no
        rank asks another one.
        """
        parts, shallow = self.parts(rows), self.collation.shallow
        reads = [rarefied_rows(self.study, part, epoch, shallow) for part in parts]
        return collate(self.study, parts, reads, epoch, self.collation, self.world.rank)

    def _make(self, finish: Finish | None, item: BatchItem) -> Any:
        """Make a batch and finish it."""
        rows, epoch, number = item
        batch = self.draw(rows, epoch)
        return batch if finish is None else finish(batch, number)

    def _results(self, items: list[BatchItem], finish: Finish | None) -> Iterator[Any]:
        """Yield what `_make` returns for each item, in order, in `workers` where there are any."""
        if not self.workers:
            yield from (self._make(finish, item) for item in items)
            return
        try:
            with warnings.catch_warnings():
                # torch warns when there are more workers than cores; the user asked for them.
                warnings.filterwarnings("ignore", message="This DataLoader will create")
                batches = _start_iterator(self._workers(items, finish))
            yield from batches
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise RunError(f"{KILLED} ({error}); lower --num-workers {self.workers}") from error

    def _workers(self, items: list[BatchItem], finish: Finish | None) -> DataLoader[Any]:
        """Return the workers of this loader, which take `items` next."""
        if self.pools and self.pools[0][2] != finish:
            self.close()
        if not self.pools:
            waiting: list[Any] = []
            ahead: DataLoader[Any] = DataLoader(
                _Items(),  # type: ignore[arg-type]
                sampler=waiting,
                batch_size=None,
                # The workers must not keep this loader; they end with it, at the latest at exit.
                collate_fn=partial(replace(self)._make, finish),
                num_workers=self.workers,
                # Without a generator of its own it would advance the one that dropout uses.
                generator=torch.Generator(),
                worker_init_fn=_ignore_warnings,
                persistent_workers=True,
            )
            self.pools.append((ahead, waiting, finish))
            weakref.finalize(self, _stop_workers, self.pools)
            # At exit this must come before multiprocessing waits for the workers.
            atexit.register(_stop_workers, self.pools)
        ahead, next_items, _ = self.pools[0]
        next_items[:] = items
        return ahead


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
    numbers = np.maximum(1, np.floor(share / share.sum() * batches)).astype(int)
    result = []
    for (study, rows), number in zip(studies.items(), numbers.tolist(), strict=True):
        needed = number * min(size, len(rows))
        dealt: list[Rows] = []
        while len(dealt) * len(rows) < needed:
            rng = generator(seed, "order", epoch, study, len(dealt))
            dealt.append(rows[rng.permutation(len(rows))])
        pool = np.concatenate(dealt)[:needed]
        result += [np.unique(batch) for batch in np.array_split(pool, number)]
    return [result[at] for at in generator(seed, "studies", epoch).permutation(len(result))]
