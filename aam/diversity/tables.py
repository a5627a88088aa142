"""UniFrac of a whole table: tiles within a memory limit, on several threads, or in parts by several
processes.
"""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from threadpoolctl import threadpool_limits

from aam.diversity.batch import DEFAULTS, inner, mirror
from aam.diversity.branches import Counts, Layout, common_branches, make_block, make_layout, on_tree
from aam.diversity.unifrac import MetricInput, Multiply, UnifracOptions, between, metric_of
from aam.errors import InputError, Problems, shown
from aam.io.hdf5 import create_hdf5, open_hdf5
from aam.io.matrices import Matrix, Tile, fill_tiles
from aam.io.phylogeny import Ints, Phylogeny

TILE = 512

# Whole numbers up to this one are exact in float32.
EXACT_READS = 1 << 24
# Bytes per branch and sample of a block while it is made, all temporaries of the greediest metric
# included.
CELL = 40

FORMAT = "aam unifrac stripe 1"
# Distances that are written or read at a time.
CHUNK = 1 << 18


def blocks_of(samples: int, size: int) -> list[slice]:
    """Return the samples of each block of at most `size`."""
    return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]


def _make_blocks(
    phylogeny: Phylogeny,
    tips: Ints,
    counts: Counts,
    options: UnifracOptions,
    memory: tuple[int, int],
    fixed: bool,
) -> tuple[Layout, list[slice], Callable[[int], MetricInput]]:
    """Return the layout of a table, its blocks, and what the metric reads of each: made when it is
    asked for.

    Making, keeping and comparing blocks takes `memory` = (bytes, threads) at most; they are smaller
    for it, unless `fixed`.
    """
    memory_limit, threads = memory
    branches, by_tip = on_tree(phylogeny, tips, counts, options.root_length)
    single = options.metric == "unifrac" and not options.double and not options.variance_adjusted
    layout = make_layout(branches, common_branches(branches, by_tip), single)
    size = TILE
    while (needed := CELL * max(len(layout.length), 1) * size) * threads > memory_limit:
        if size == 1 or fixed:
            raise InputError(
                f"the memory limit is {memory_limit} bytes, expected at least {needed * threads}"
            )
        size //= 2
    stored = (1 if options.metric == "unifrac" else 8) * max(len(layout.length), 1) * size
    kept = max(2 * threads, (memory_limit - needed * threads) // stored)
    # Variance-adjusted forms compare reads of two samples, of which differences must be exact.
    exact = (
        not options.variance_adjusted or 2 * by_tip.sum(axis=1, dtype=np.int64).max() < EXACT_READS
    )
    real = np.float32 if exact and not options.double else np.float64
    blocks = blocks_of(by_tip.shape[0], size)

    @functools.lru_cache(kept)
    def read(number: int) -> MetricInput:
        return metric_of(options).read(layout, make_block(layout, by_tip[blocks[number]]), real)

    return layout, blocks, read


def tile_pairs(blocks: int, stripe: tuple[int, int] = (1, 1)) -> list[tuple[int, int]]:
    """Return the pairs of blocks on and above the diagonal that stripe `stripe` = (number from 1,
    count) computes.
    """
    pairs = list(combinations_with_replacement(range(blocks), 2))
    number, count = stripe
    return pairs[len(pairs) * (number - 1) // count : len(pairs) * number // count]


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
    stripe: tuple[int, int] = (1, 1),
) -> Iterator[Tile]:
    """Yield the distances between all samples of a table, tile by tile on and above the diagonal.

    Parameters
    ----------
    phylogeny, tips, counts, options, multiply
        As for `batch_unifrac`. NumPy's products run on one thread meanwhile, each tile on its own.
    memory_limit : int
        Bytes for the tiles in work with all temporaries, table and result not counted.
    threads : int
    stripe : (int, int)
        Number, from 1, and count: only this part of the tiles, of as many equal ones.

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
    # Stripes of one matrix need the same blocks on every machine.
    layout, blocks, read = _make_blocks(
        phylogeny, tips, counts, options, (memory_limit, threads), stripe != (1, 1)
    )

    def tile(pair: tuple[int, int]) -> Tile:
        i, j = pair
        distances: Matrix = between(layout, read(i), read(j), options, multiply)
        if i == j:
            mirror(distances)
        return blocks[i], blocks[j], distances if options.double else distances.astype(np.float32)

    pairs = tile_pairs(len(blocks), stripe)
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


def parse_stripe(text: str) -> tuple[int, int]:
    """Return number and count of ``I/N``; `InputError` unless 1 <= I <= N."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InputError(
            f"--stripe is {text!r}, expected I/N such as 1/8: a number from 1 to N, and N"
        )
    return int(number), int(count)


@dataclass(frozen=True, eq=False)
class Stripe:
    """The head of a file with a part of a matrix.

    Attributes
    ----------
    path : Path
    number, count : int
        Which part, from 1, of how many.
    identity : dict
        What must be equal for parts to belong together: checksums of the inputs, and options.
    sample_ids : tuple of str
    """

    path: Path
    number: int
    count: int
    identity: Mapping[str, Any]
    sample_ids: tuple[str, ...]


def write_stripe(
    path: Path,
    stripe: tuple[int, int],
    identity: Mapping[str, Any],
    ids: Sequence[str],
    tiles: Iterable[Tile],
) -> None:
    """Write the tiles of one part, whole or not at all."""
    with create_hdf5(path) as file:
        file.attrs["format"] = FORMAT
        file.attrs["stripe"] = stripe
        file.attrs["identity"] = json.dumps(identity, sort_keys=True)
        file.create_dataset("order", data=list(ids), dtype=h5py.string_dtype())
        values = file.create_dataset("values", (0,), np.float32, maxshape=(None,), chunks=(CHUNK,))
        places = []
        for rows, columns, tile in tiles:
            start = len(values)
            values.resize(start + tile.size, axis=0)
            values[start:] = tile.ravel()
            places.append((rows.start, rows.stop, columns.start, columns.stop))
        file["places"] = np.array(places, np.int64).reshape(-1, 4)


def _read_head(path: Path) -> Stripe:
    with open_hdf5(path, f"{path}: not a readable part of a matrix") as file:
        if file.attrs.get("format") != FORMAT:
            raise InputError(
                f"{path}: not a part of a matrix; expected a file of aam unifrac --stripe"
            )
        number, count = file.attrs["stripe"].tolist()
        names = tuple(name.decode() for name in file["order"][()])
        return Stripe(path, number, count, json.loads(file.attrs["identity"]), names)


def read_stripes(paths: Sequence[Path]) -> list[Stripe]:
    """Return the heads of all parts of one matrix, in order.

    Raises
    ------
    InputError
        A file that is no part, parts of different tables, trees or options, and parts that are
        missing or twice there.
    """
    heads: list[Stripe] = []
    problems = Problems()

    for path in paths:
        with problems.collected():
            heads.append(_read_head(path))
    problems.raise_if_any()
    first = heads[0]
    for head in heads[1:]:
        keys = sorted(first.identity.keys() | head.identity.keys())
        differing = [key for key in keys if first.identity.get(key) != head.identity.get(key)]
        differing += ["samples"] if head.sample_ids != first.sample_ids else []
        if differing:
            problems.add(
                f"--merge: {head.path} and {first.path} differ in {shown(differing, 20)}; "
                "expected one matrix"
            )
        if head.count != first.count:
            problems.add(
                f"--merge: {head.path} is a part of {head.count}, {first.path} of {first.count}"
            )
    numbers = [head.number for head in heads]
    if absent := [
        f"{number}/{first.count}" for number in range(1, first.count + 1) if number not in numbers
    ]:
        problems.add(f"--merge: parts {shown(absent)} are missing; compute them with --stripe")
    if twice := [str(head.path) for at, head in enumerate(heads) if head.number in numbers[:at]]:
        problems.add(f"--merge: {shown(twice)} repeat parts that other files hold")
    problems.raise_if_any()
    return sorted(heads, key=lambda head: head.number)


def _tiles_of(stripe: Stripe) -> Iterator[Tile]:
    """Yield the tiles of one part; `InputError` where it is damaged."""
    with open_hdf5(
        stripe.path, f"{stripe.path}: a damaged part of a matrix; compute it again"
    ) as file:
        start = 0
        for top, bottom, left, right in file["places"][()].tolist():
            stop = start + (bottom - top) * (right - left)
            tile = file["values"][start:stop].reshape(bottom - top, right - left)
            start = stop
            yield slice(top, bottom), slice(left, right), tile


def stripe_tiles(stripes: Sequence[Stripe]) -> Iterator[Tile]:
    """Yield the tiles of all parts; `InputError` where one is damaged or they do not cover the
    matrix once.
    """
    samples, covered = len(stripes[0].sample_ids), 0
    for stripe in stripes:
        for rows, columns, tile in _tiles_of(stripe):
            covered += tile.size if rows == columns else 2 * tile.size
            yield rows, columns, tile
    if covered != samples**2:
        raise InputError(
            f"--merge: the parts hold {covered} of {samples**2} distances; compute them again"
        )
