"""Levels of metadata columns where a model errs more: of each true class alone, and over groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr

from aam.evaluate.intervals import LEAST_GROUPS
from aam.evaluate.metrics import Array
from aam.evaluate.target_predictions import TargetPredictions

# Levels are listed up to this p, and stand out up to this q.
LARGER = 0.05

# So many levels are listed.
WORST_LEVELS = 8


@dataclass(frozen=True)
class WorseLevel:
    """A level of a metadata column where errors are larger than elsewhere, of one true class or, if
    empty, of all.

    `right` counts the samples whose class is right, none of numbers; errors are means over samples.
    Both are of the `samples` there, and of the `others`: those of the class that are elsewhere.
    """

    label: str
    column: str
    level: str
    samples: int
    right: int | None
    error: float
    others: int
    others_right: int | None
    others_error: float
    p: float
    q: float = math.nan

    @property
    def stands_out(self) -> bool:
        """Whether errors are larger beyond chance, for all levels that were tested."""
        return self.q <= LARGER


def larger_errors(
    predictions: TargetPredictions, columns: Mapping[str, Array]
) -> tuple[int, list[WorseLevel]]:
    """Return how many levels were tested, of each true class, and those of larger errors, the least
    probable first.

    The test is the rank-sum test of clustered samples (as Datta and Satten 2005): the ranks of the
    errors of single samples inside and outside of a level are compared by a one-sided t-test, whose
    variance is that of sums over groups and whose degrees of freedom are those of the fewer groups.
    Both sides have `LEAST_GROUPS`. q is corrected for all tests by Benjamini and Hochberg (1995).
    Empty values and folds are no levels.

    Parameters
    ----------
    predictions : TargetPredictions
        Of N samples.
    columns : mapping of str to str [N]
        Metadata columns.
    """
    # The import takes a second.
    from scipy.stats import false_discovery_control, rankdata

    complete, has_both = predictions.complete(), predictions.has_both
    some = {name: values[has_both].astype(str) for name, values in columns.items()}
    some = {name: values for name, values in some.items() if not _same_parts(values, complete.fold)}
    found = list[WorseLevel]()
    for place, label in enumerate(complete.labels or ("",)):
        of_class = (
            complete.truth == place if complete.labels else np.ones(len(complete.truth), bool)
        )
        samples, seen = complete.at(of_class), set[bytes]()
        ranks = rankdata(samples.errors) / max(len(samples.errors), 1)
        unit = np.unique(samples.resampling_units.astype(str), return_inverse=True)[1]
        for column, values in some.items():
            for level, inside, p in _tests(ranks, unit, values[of_class]):
                if inside.tobytes() not in seen:
                    seen.add(inside.tobytes())
                    found.append(_worse_level(samples, inside, (label, column, level), p))
    q = false_discovery_control([one.p for one in found]).tolist() if found else []
    worse = [replace(one, q=value) for one, value in zip(found, q, strict=True) if one.p <= LARGER]
    worse = [one for one in worse if one.error > one.others_error and one.right != one.samples]
    return len(found), sorted(worse, key=lambda one: one.p)[:WORST_LEVELS]


def _tests(ranks: Array, unit: Array, values: Array) -> Iterator[tuple[str, Array, float]]:
    """Yield each level of a column `values` [n] that can be tested, which samples it has, and its
    p.

    `ranks` [n] are those of the errors, `unit` int [n] numbers the groups.
    """
    of_unit, sums = np.bincount(unit), np.bincount(unit, ranks)
    levels, level = np.unique(values, return_inverse=True)
    pairs = np.unique(level * len(of_unit) + unit)
    groups = np.bincount(pairs // max(len(of_unit), 1), minlength=len(levels))
    for place in np.flatnonzero((groups >= LEAST_GROUPS) & (levels != "")).tolist():
        inside = level == place
        here, rank_here = (
            np.bincount(unit[inside], by, len(of_unit)) for by in (None, ranks[inside])
        )
        there = of_unit - here
        fewest = min(int((here > 0).sum()), int((there > 0).sum()))
        if fewest < LEAST_GROUPS:
            continue
        means = rank_here.sum() / here.sum(), (sums - rank_here).sum() / there.sum()
        parts = (rank_here - means[0] * here) / here.sum() - (
            sums - rank_here - means[1] * there
        ) / there.sum()
        deviation = math.sqrt(len(of_unit) / (len(of_unit) - 1) * float(parts @ parts))
        difference = means[0] - means[1]
        p = (
            float(stdtr(fewest - 1, -difference / deviation))
            if deviation > 0
            else float(difference <= 0)
        )
        yield str(levels[place]), inside, p


def _worse_level(
    samples: TargetPredictions, inside: Array, names: tuple[str, str, str], p: float
) -> WorseLevel:
    """Return the label, column and level of these `names` with its errors, of the samples of its
    class.
    """
    right = samples.predicted.argmax(axis=1) == samples.truth if samples.labels else None

    def of(rows: Array) -> tuple[int, int | None, float]:
        return (
            int(rows.sum()),
            None if right is None else int(right[rows].sum()),
            float(samples.errors[rows].mean()),
        )

    return WorseLevel(*names, *of(inside), *of(~inside), p)


def _same_parts(values: Array, others: Array | None) -> bool:
    """Return whether two columns [N] divide the samples alike."""
    if others is None:
        return False
    return (
        len(set(zip(values.tolist(), others.tolist(), strict=True)))
        == len(set(values))
        == len(set(others))
    )
