"""UniFrac of a whole table: tiles within a memory limit, on several threads."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import combinations_with_replacement, islice

import numpy as np
from threadpoolctl import threadpool_limits

from aam.diversity.batch import DEFAULTS, inner, mirror
from aam.diversity.branches import Counts, Layout, common_branches, make_block, make_layout, on_tree
from aam.diversity.unifrac import MetricInput, Multiply, UnifracOptions, between, metric_of
from aam.errors import InputError
from aam.io.matrices import Matrix, Tile, fill_tiles
from aam.io.phylogeny import Ints, Phylogeny

TILE = 512

# Bytes per branch and sample of a block while it is made, all temporaries of the greediest metric
# included.
CELL = 40


def blocks_of(samples: int, size: int) -> list[slice]:
    """Return the samples of each block of at most `size`."""
    return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]


def _make_blocks(
    phylogeny: Phylogeny,
    tips: Ints,
    counts: Counts,
    options: UnifracOptions,
    memory: tuple[int, int],
) -> tuple[Layout, list[slice], Callable[[int], MetricInput]]:
    """Return the layout of a table, its blocks, and what the metric reads of each: made when it is
    asked for.

    Making, keeping and comparing blocks takes `memory` = (bytes, threads) at most; they are smaller
    for it.
    """
    memory_limit, threads = memory
    branches, by_tip = on_tree(phylogeny, tips, counts, options.root_length)
    single = options.metric == "unifrac" and not options.double
    layout = make_layout(branches, common_branches(branches, by_tip), single)
    size = TILE
    while (needed := CELL * max(len(layout.length), 1) * size) * threads > memory_limit:
        if size == 1:
            raise InputError(
                f"the memory limit is {memory_limit} bytes, expected at least {needed * threads}"
            )
        size //= 2
    stored = (1 if options.metric == "unifrac" else 8) * max(len(layout.length), 1) * size
    kept = max(2 * threads, (memory_limit - needed * threads) // stored)
    real = np.float64 if options.double else np.float32
    blocks = blocks_of(by_tip.shape[0], size)

    @functools.lru_cache(kept)
    def read(number: int) -> MetricInput:
        return metric_of(options).read(layout, make_block(layout, by_tip[blocks[number]]), real)

    return layout, blocks, read


def tile_pairs(blocks: int) -> list[tuple[int, int]]:
    """Pairs of blocks on and above the diagonal."""
    return list(combinations_with_replacement(range(blocks), 2))


def _in_order(
    pool: ThreadPoolExecutor,
    threads: int,
    work: Callable[[tuple[int, int]], Tile],
    pairs: Sequence[tuple[int, int]],
) -> Iterator[Tile]:
    """Yield the results of `work` in the order of `pairs`; no more than two for each thread wait or
    run.
    """
    remaining = iter(pairs)
    running: deque[Future[Tile]] = deque(
        pool.submit(work, pair) for pair in islice(remaining, 2 * threads)
    )
    while running:
        tile = running.popleft().result()
        running.extend(pool.submit(work, pair) for pair in islice(remaining, 1))
        yield tile


def unifrac_tiles(
    phylogeny: Phylogeny,
    tips: Ints,
    counts: Counts,
    options: UnifracOptions = DEFAULTS,
    multiply: Multiply = inner,
    memory_limit: int = 1 << 29,
    threads: int = 1,
) -> Iterator[Tile]:
    """Yield the distances between all samples of a table, tile by tile on and above the diagonal.

    Parameters
    ----------
    phylogeny, tips, counts, options, multiply
        As for `batch_unifrac`. NumPy's products run on one thread meanwhile, each tile on its own.
    memory_limit : int
        Bytes for the tiles in work with all temporaries, table and result not counted.
    threads : int

    Yields
    ------
    rows, columns, tile
        Two slices of samples and the distances between them; `columns` never begin before `rows`,
        and the mirror image below the diagonal is left to whoever stores the tile.

    Raises
    ------
    InputError
        As `batch_unifrac`, and a memory limit too low for the table.
    """
    layout, blocks, read = _make_blocks(phylogeny, tips, counts, options, (memory_limit, threads))

    def tile(pair: tuple[int, int]) -> Tile:
        i, j = pair
        distances: Matrix = between(layout, read(i), read(j), options, multiply)
        if i == j:
            mirror(distances)
        return blocks[i], blocks[j], distances if options.double else distances.astype(np.float32)

    pairs = tile_pairs(len(blocks))
    with threadpool_limits(1, user_api="blas"):
        if threads == 1:
            yield from map(tile, pairs)
            return
        with ThreadPoolExecutor(threads) as pool:
            yield from _in_order(pool, threads, tile, pairs)


def unifrac_matrix(
    phylogeny: Phylogeny,
    tips: Ints,
    counts: Counts,
    options: UnifracOptions = DEFAULTS,
    threads: int = 1,
) -> Matrix:
    """Return all tiles of `unifrac_tiles` put together in memory: float32 or float64 [N, N]."""
    samples = counts.shape[0]
    result = np.zeros((samples, samples), np.float64 if options.double else np.float32)
    fill_tiles(result, unifrac_tiles(phylogeny, tips, counts, options, threads=threads))
    return result
