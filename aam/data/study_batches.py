"""The batches of several studies: all samples of a batch are of one study, so that all their pairs can be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aam.data.study import Rows
from aam.device.rng import generator


def each_study(origin: Rows, sample_ids: Sequence[str], rows: Rows, size: int) -> list[Rows]:
    """Return all rows in batches of at most `size`, each of one study and in the order of their ids."""
    batches = []
    for study in np.unique(origin[rows]):
        part = sorted(rows[origin[rows] == study].tolist(), key=sample_ids.__getitem__)
        batches += np.array_split(np.array(part, np.int64), math.ceil(len(part) / size))
    return batches


def batches_by_study(
    origin: Rows, sample_ids: Sequence[str], rows: Rows, size: int, seed: int, draw: int
) -> list[Rows]:
    """Return the rows of each batch of an epoch of training, all samples of a batch from one study.

    There are as many batches as if all samples were dealt once. Studies share them by the square root of their sizes,
    one at least for each, so that a large study does not drown the small ones: some of its samples wait for a later
    epoch, and those of a small study come several times, rarefied anew.
    """
    studies = np.unique(origin[rows])
    by_study = {study: rows[origin[rows] == study] for study in studies.tolist()}
    share = np.sqrt([len(part) for part in by_study.values()])
    batches = max(len(studies), math.ceil(len(rows) / size))
    wanted = np.maximum(1, np.floor(share / share.sum() * batches)).astype(int)
    result = []
    for (study, part), number in zip(by_study.items(), wanted.tolist(), strict=True):
        ordered = np.array(sorted(part.tolist(), key=sample_ids.__getitem__), np.int64)
        needed = number * min(size, len(part))
        dealt: list[Rows] = []
        while len(dealt) * len(part) < needed:
            dealt.append(ordered[generator(seed, "order", draw, study, len(dealt)).permutation(len(ordered))])
        pool = np.concatenate(dealt)[:needed]
        result += [np.unique(batch) for batch in np.array_split(pool, number)]
    return [result[at] for at in generator(seed, "studies", draw).permutation(len(result))]
