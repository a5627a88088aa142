"""Rows of a sheet whose subjects may have been shifted by one row.

S rows of the sheet, in its order, K samples that each one resembles most.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aam.typing import Bools, Ints

# Chance of a shift in a sheet without one, and least number of subjects in a shift.
FAMILY_WISE, LEAST_SUBJECTS = 0.05, 3

# A shift must be found again on this number of random parts, each of this share of the samples.
RANDOM_PARTS, RETURNS, PART = 20, 19, 0.9


def shifted_rows(nearest: Ints, subject: Ints) -> list[tuple[Ints, int]]:
    """Find runs of rows that resemble the subject of the next row (1), or of the row before (-1).

    Parameters
    ----------
    nearest : int64 [S, K]
        Rows that a row resembles most, the most similar one first, -1 where there is none.
    subject : int64 [S]
        Subject of each row.
    """
    n = len(subject)
    rng, kept, found = np.random.default_rng(0), np.ones(n, bool), list[tuple[Ints, int]]()
    while runs := [*possible_runs(most_similar(nearest, kept), subject)]:
        run, step = max(runs, key=lambda one: len(one[0]))
        returns = 0
        for _ in range(RANDOM_PARTS):
            again = possible_runs(most_similar(nearest, kept & (rng.random(n) < PART)), subject)
            returns += any(way == step and np.isin(run, rows).any() for rows, way in again)
        if returns >= RETURNS:
            found.append((run, step))
        # Without them, the other samples of these subjects no longer resemble a wrong one.
        kept[run[0] : run[-1] + 1] = False
    return found


def most_similar(nearest: Ints, kept: Bools) -> Ints:
    """The most similar row of those that are kept, -1 of others and where there is none, [S]."""
    can_be = (nearest >= 0) & kept[nearest] & kept[:, None]
    best = np.take_along_axis(nearest, can_be.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(can_be.any(axis=1), best, -1)


def possible_runs(nearest: Ints, subject: Ints) -> Iterator[tuple[Ints, int]]:
    """Runs of rows of which more resemble the subject of a neighbour than not.

    The difference must be larger than anywhere in a sheet without a shift. Each row that resembles
    its neighbour multiplies the likelihood of a shift by the same ratio, and the others divide it
    by that ratio (Karlin and Altschul 1990).
    """
    resembled, is_judged = subject[nearest], nearest >= 0
    own = np.mean(resembled == subject, where=is_judged) if is_judged.any() else 0.0
    ratio = own * (len(np.unique(subject)) - 1) / max(1 - own, 1 / len(subject))
    if ratio <= 1:
        return
    least = max(LEAST_SUBJECTS, np.log(2 * len(subject) / FAMILY_WISE) / np.log(ratio))
    for step in (1, -1):
        neighbour, opposite = np.roll(subject, -step), np.roll(subject, step)
        edge = -1 if step == 1 else 0
        neighbour[edge] = subject[edge]
        # Where two subjects take turns, the one resembles the other without a shift.
        rows = np.flatnonzero(is_judged & (neighbour != subject) & (neighbour != opposite))
        is_hit = (resembled == neighbour)[rows]
        for part in _sections(is_hit, least):
            run = rows[part][is_hit[part]]
            if len(np.unique(subject[run])) >= LEAST_SUBJECTS:
                yield run, step


def _sections(is_hit: Bools, least: float) -> Iterator[slice]:
    """Sections in which hits outnumber the other rows by at least this number."""
    start = end = total = largest = 0
    # Other rows at the end close the last section.
    for at, change in enumerate(np.append(np.where(is_hit, 1, -1), -np.ones(len(is_hit)))):
        if total == 0:
            start, largest = at, 0
        total = max(0, total + int(change))
        if total > largest:
            end, largest = at + 1, total
        if total == 0 and largest >= least:
            yield slice(start, end)
