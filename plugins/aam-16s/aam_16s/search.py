"""Samples of two tables compared on a reference tree, whatever region of 16S each is from.

Legend for shapes: N samples of a table, M samples of a collection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

import aam
from aam.data.study import PlacedMetric
from aam.errors import InputError
from aam.io.matrices import Tile
from aam_16s.distances import PlacedDistance, placed_between
from aam_16s.samples import PlacedSamples


def place(table: Any, model: str | aam.Model = "16s-v4", **options: Any) -> PlacedSamples:
    """Place the samples of a table on the reference tree of an encoder.

    Parameters
    ----------
    table : biom.Table, DataFrame, AmpliconTable or path
    model : str or aam.Model
        ``16s-v4``, or the folder of a model that has such a tree, such as that of any region.
    **options
        Of `aam embed`, such as ``rarefy_depth``, ``sequences`` or ``trim_primers``.

    Raises
    ------
    InputError
        Bad options or a bad table, a model without a reference tree, a table that is not 16S.
    """
    placed = (aam.load(model) if isinstance(model, str) else model).place(table, **options)
    if not isinstance(placed, PlacedSamples):
        raise InputError("model: it has another reference than a tree of 16S")
    return placed


def branches(
    table: Any, metric: PlacedMetric = "unifrac", model: str | aam.Model = "16s-v4", **options: Any
) -> pd.DataFrame:
    """What each sample has of each branch of the reference tree, by sample id.

    For ``unifrac`` the probability that one of its ASVs stands below the branch, for
    ``weighted-normalized`` the expected share of its reads. The columns are the same for every
    table and region. Other parameters are those of `place`.
    """
    _check(metric, PlacedMetric)
    samples = place(table, model, **options)
    return pd.DataFrame(samples.branches(metric), pd.Index(samples.sample_ids, name="sample-id"))


def similarity(
    table: Any, other: Any, model: str | aam.Model = "16s-v4", **options: Any
) -> pd.DataFrame:
    """Similarity of the samples of two tables, between 0 and 1, whatever region each is from.

    It is the cosine between the cube roots of the expected shares of reads below each branch of the
    reference tree, times fourth roots of its length. It does not depend on the other samples of a
    table. Rows are the samples of `table`, columns those of `other`. Other parameters are those of
    `place`.
    """
    first, second = (place(samples, model, **options) for samples in (table, other))
    values = np.zeros((len(first.sample_ids), len(second.sample_ids)), np.float32)
    for rows, columns, tile in distances_between(first, second, "cosine"):
        values[rows, columns] = 1 - tile
    index, columns = (pd.Index(each.sample_ids, name="sample-id") for each in (first, second))
    return pd.DataFrame(values, index, columns)


def search(
    table: Any,
    among: Any = None,
    model: str | aam.Model = "16s-v4",
    *,
    distance: PlacedDistance = "cosine",
    nearest: int = 10,
    **options: Any,
) -> pd.DataFrame:
    """Find the nearest samples of a collection for each sample of a table.

    Parameters
    ----------
    table : biom.Table, DataFrame, AmpliconTable or path
    among : the same, optional
        The collection, of whatever region of 16S. Without it the other samples of the table.
    model : str or aam.Model
    distance : str
        ``cosine`` (one minus `similarity`; any region), or ``unifrac`` or ``weighted-normalized``
        (one region).
    nearest : int
        Number of samples to find for each.
    **options
        As for `place`.

    Returns
    -------
    pandas.DataFrame
        Columns ``sample-id``, ``rank``, ``neighbour`` and ``distance``, nearest first. All samples
        are compared, so none is missed.
    """
    _check(distance, PlacedDistance)
    if nearest < 1:
        raise InputError(f"nearest is {nearest}, expected 1 or more")
    model = aam.load(model) if isinstance(model, str) else model
    samples = place(table, model, **options)
    others = None if among is None else place(among, model, **options)
    return nearest_samples(samples, others, distance, nearest)


def _check(metric: str, metrics: Any) -> None:
    if metric not in get_args(metrics):
        raise InputError(f"metric is {metric!r}, expected {' or '.join(get_args(metrics))}")


def distances_between(
    samples: PlacedSamples, collection: PlacedSamples, distance: PlacedDistance
) -> Iterator[Tile]:
    """Yield the distances of samples to those of a collection in tiles, row after row of them
    (`placed_between`).

    The cosine is of all reads of a sample, so that it is as sure as they allow; UniFrac is of
    rarefied ones.
    """
    column_of = {sequence: column for column, sequence in enumerate(samples.sequences)}
    new = [at for at, sequence in enumerate(collection.sequences) if sequence not in column_of]
    column_of |= {collection.sequences[at]: len(column_of) + place for place, at in enumerate(new)}
    one, other = samples.placement, collection.placement
    # An ASV of both tables has one branch of its own.
    columns = np.array([column_of[sequence] for sequence in collection.sequences])
    width = len(column_of)
    left, right = (
        each.reads if distance == "cosine" else each.counts for each in (samples, collection)
    )
    left, right = left.copy(), right.copy()
    right.indices = columns[right.indices].astype(right.indices.dtype)
    left.resize(len(samples.sample_ids), width)
    right.resize(len(collection.sample_ids), width)
    # 8-mers of two regions are others, so that they have no part where regions are compared.
    both = [
        (each.probability, each.length) if distance == "cosine" else each.with_words
        for each in (one, other)
    ]
    probability = sparse.vstack([both[0][0], both[1][0][new]]).tocsr()
    own_length = np.concatenate([one.own_length, other.own_length[new]])
    return placed_between(left, right, probability, both[0][1], own_length, distance)


def nearest_samples(
    samples: PlacedSamples, among: PlacedSamples | None, distance: PlacedDistance, k: int
) -> pd.DataFrame:
    """Return the `k` samples of a collection that are nearest to each sample, found by comparing
    with all of them.

    Without a collection these are other samples of the same table. Columns are ``sample-id``,
    ``rank`` from 1, ``neighbour`` and ``distance``; the nearest comes first, equal ones come in the
    order of the collection.
    """
    # The import takes half a second, and other commands make no DataFrame.
    import pandas as pd

    collection = among or samples
    if among is None and len(samples.sample_ids) < 2:
        raise InputError(
            "--among: the table itself, which has one sample, and that does not find itself; "
            "name another"
        )
    k = min(k, len(collection.sample_ids) - (among is None))
    tiles = distances_between(samples, collection, distance)
    parts = [
        _nearest(at, some, k, among is None)
        for at, some in itertools.groupby(tiles, key=lambda tile: tile[0])
    ]
    rows, distances = (np.concatenate(each) for each in zip(*parts, strict=True))
    return pd.DataFrame(
        {
            "sample-id": np.repeat(np.array(samples.sample_ids, object), k),
            "rank": np.tile(np.arange(1, k + 1), len(rows)),
            "neighbour": np.array(collection.sample_ids, object)[rows.ravel()],
            "distance": [round(value, 6) for value in distances.ravel().tolist()],
        }
    )


def _nearest(
    rows: slice, tiles: Iterable[Tile], k: int, itself: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return places in the collection and distances of the `k` nearest of some rows, from the tiles
    of these.
    """
    places = np.zeros((rows.stop - rows.start, 0), np.int64)
    distances = np.zeros(places.shape, np.float32)
    for _, columns, tile in tiles:
        of_tile = np.arange(columns.start, columns.stop)
        if itself:
            tile = np.where(
                of_tile == np.arange(rows.start, rows.stop)[:, None], np.inf, tile
            ).astype(np.float32)
        places = np.concatenate([places, np.broadcast_to(of_tile, tile.shape)], axis=1)
        distances = np.concatenate([distances, tile], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        places, distances = (
            np.take_along_axis(each, order, axis=1) for each in (places, distances)
        )
    return places, distances
