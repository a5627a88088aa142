"""Importance of ASVs, or of taxa and clades of them, over held-out samples: intervals and tests
over groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.special import stdtr, stdtrit

from aam.data.targets import TargetSpec
from aam.device.rng import generator
from aam.evaluate.intervals import LEAST_GROUPS, Interval, interval
from aam.explain.effects import Floats, Matrix, TargetEffects

# The share of false discoveries among what is said to stand out.
FALSE_DISCOVERIES = 0.05

REPEATS = 1000

COLUMNS_AT_ONCE = 512

HIGHER, LOWER = "higher", "lower"


def one_sided_test(sums: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Return the p [F] of a mean of at most 0 over samples in groups, and the standard error [F] of
    the mean.

    It is a t-test on the sums of groups: `sums` ``[G, F]``, and `sizes` ``[G]``, the samples of
    each.
    """
    groups, total = len(sizes), sizes.sum()
    around = sums - sizes[:, None] * sums.sum(axis=0) / total
    error = np.sqrt(groups / max(groups - 1, 1) * (around**2).sum(axis=0)) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, sums.sum(axis=0) / total / error, 0.0)
    return np.asarray(stdtr(groups - 1, -t)), np.asarray(error)


def _tests(
    raised: Matrix, sizes: Floats, tested: npt.NDArray[np.int64], kinds: Sequence[str]
) -> dict[str, Floats]:
    """Return p, q and corrected limits of the `tested` columns of the sums of groups ``[G, F]``,
    NaN of others.

    p is corrected by Benjamini and Hochberg (1995) within each of the `kinds`. The limits have the
    rate of false coverage `FALSE_DISCOVERIES` among what is said to stand out (Benjamini and
    Yekutieli 2005), each end at the level of the test: they hold 0 wherever the test shows nothing.
    """
    # The import takes a second.
    from scipy.stats import false_discovery_control

    p, q, reach = np.full((3, raised.shape[1]), np.nan)
    mean = _sum(raised) / sizes.sum()
    if len(tested):
        p[tested], reach[tested] = one_sided_test(raised[:, tested].toarray(), sizes)
    kind_of = np.array(kinds or [""] * len(p), object)
    for kind in set(kinds) or {""}:
        chosen = (kind_of == kind) & ~np.isnan(p)
        q[chosen] = false_discovery_control(p[chosen])
        level = (
            FALSE_DISCOVERIES
            * max((q[chosen] <= FALSE_DISCOVERIES).sum(), 1)
            / max(chosen.sum(), 1)
        )
        reach[chosen] *= stdtrit(len(sizes) - 1, 1 - level)
    reach[reach == 0] = np.nan
    return {"p": p, "q": q, "corrected.low": mean - reach, "corrected.high": mean + reach}


def _sum(matrix: Matrix) -> Floats:
    return np.asarray(matrix.sum(axis=0)).ravel()


def _intervals(top: Matrix, bottom: Matrix, seed: int) -> list[Interval]:
    """Return top / bottom of each column with limits over groups; `bottom` is ``[G, F]`` or, for
    all columns, ``[G, 1]``.
    """
    groups, intervals = top.shape[0], list[Interval]()
    drawn = generator(seed, "bootstrap").integers(
        groups, size=(REPEATS if groups >= LEAST_GROUPS else 0, groups)
    )
    # How often each group counts: once, and then as drawn with replacement.
    weights = np.stack([np.ones(groups), *(np.bincount(row, minlength=groups) for row in drawn)])
    for start in range(0, top.shape[1], COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        above = weights @ top[:, columns].toarray()
        below = weights @ bottom[:, columns if bottom.shape[1] > 1 else slice(1)].toarray()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(below > 0, above / below, np.nan)
        intervals += [interval(values, groups) for values in ratio.T]
    return intervals


def _raises(spec: TargetSpec, outputs: Sequence[str], output: int, effect: float) -> str:
    """Direction of an effect on an output: a class, higher or lower for a number, or empty."""
    if np.isnan(effect) or effect == 0:
        return ""
    if spec.kind == "numeric":
        return HIGHER if effect > 0 else LOWER
    return outputs[output] if len(outputs) > 1 else spec.labels[int(effect > 0)]


def _limits(name: str, intervals: Sequence[Interval]) -> dict[str, Floats]:
    """Return the columns of values with limits."""
    parts = np.array([astuple(value) for value in intervals]).reshape(-1, 3).T
    return dict(zip((name, f"{name}.low", f"{name}.high"), parts, strict=True))


def _of_effects(effects: TargetEffects, by_group: Matrix, seed: int) -> dict[str, object]:
    """Return the columns of the effects, from what the presence of an ASV raises to effects on each
    output.
    """
    outputs, carriers = effects.outputs, by_group @ effects.carriers
    intervals = [_intervals(by_group @ matrix, carriers, seed) for matrix in effects.effects]
    means = np.array([[value.value for value in of_output] for of_output in intervals])
    sizes = np.array([_sum(abs(matrix)) for matrix in effects.effects]) / len(effects.sample_ids)
    highest, places = np.argmax(means, axis=0), np.arange(means.shape[1])
    raised = zip(highest.tolist(), means[highest, places].tolist(), strict=True)
    columns = {
        "raises": [_raises(effects.spec, outputs, output, effect) for output, effect in raised],
        **_limits("effect", [intervals[output][place] for place, output in enumerate(highest)]),
        "mean-absolute-effect": sizes[highest, places],
    }
    named = zip(outputs, means, strict=True) if len(outputs) > 1 else ()
    return columns | {f"effect={label}": values for label, values in named}


def importance_of(
    effects: TargetEffects,
    groups: npt.NDArray[np.object_] | None,
    seed: int = 0,
    kinds: Sequence[str] = (),
    tested: npt.NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Return the importance of every ASV, or set of ASVs, that a sample has, the most important one
    first.

    Only groups with a sample whose truth is known count in tests and intervals of importances.

    Parameters
    ----------
    effects : TargetEffects
    groups : array [N], optional
        Groups that are resampled whole; single samples without.
    seed : int
        Of the resampling.
    kinds : sequence of str [F], optional
        Kinds of sets; each kind has a correction of its own.
    tested : bool [F], optional
        Which importances have a p, all by default. A model that has learned from the samples uses
        their noise too.

    Returns
    -------
    pandas.DataFrame
        The columns of features.tsv (docs/reference/files.md) by column of the ASVs, or place among
        the sets. p is one-sided, of an importance of 0, and NaN for an ASV of fewer than
        `LEAST_GROUPS` groups.
    """
    every = np.arange(len(effects.sample_ids))
    _, group = np.unique(every if groups is None else groups.astype(str), return_inverse=True)
    by_group = sparse.csr_matrix((np.ones(len(group)), (group, every)))
    sizes = by_group @ np.isfinite(effects.truth).astype(np.float64)
    judged = np.flatnonzero(sizes)
    carriers, raised = by_group @ effects.carriers, (by_group @ effects.losses)[judged]
    nothing = np.full(raised.shape[1], np.nan)
    known = len(judged) > 0
    limits = _intervals(raised, sparse.csr_matrix(sizes[judged][:, None]), seed)
    tests = dict.fromkeys(("p", "q", "corrected.low", "corrected.high"), nothing)
    if known:
        enough = (_sum(carriers[judged] > 0) >= LEAST_GROUPS) & (True if tested is None else tested)
        tests = _tests(raised, sizes[judged], np.flatnonzero(enough), kinds)
    table = pd.DataFrame(
        {
            "samples": _sum(effects.carriers > 0),
            "groups": _sum(carriers > 0),
            **_limits("importance", limits),
            **tests,
            **_of_effects(effects, by_group, seed),
        }
    )
    largest = np.max([_sum(abs(matrix)) for matrix in effects.effects], axis=0)
    ordered = table.iloc[np.lexsort((-largest, -table["importance"] if known else -largest))]
    return ordered[ordered["samples"] > 0]
