"""Deals groups of samples into parts at random, evenly over strata, whatever the order of the samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aam.errors import InputError, shown
from aam.runtime.rng import generator

Strata = Sequence[str | None] | npt.NDArray[np.float64] | None

# Numeric strata are quintiles.
QUANTILES = 5
MAX_STRATA = 101
# Exchanges tried between parts of unequal groups. Five folds of the 248 fish of `mackerel-type` hold a fifth
# of each type to within 0.008; the best of 100 random divisions holds it to within 0.033.
SWAPS = 2000


@dataclass(frozen=True)
class Samples:
    """Sorted samples with their group and, as numbers from 0, their stratum."""

    ids: list[str]
    groups: list[str]
    strata: npt.NDArray[np.int64]
    grouped: bool

    def without(self, groups: set[str]) -> Samples:
        """The samples of other groups."""
        kept = [row for row, group in enumerate(self.groups) if group not in groups]
        return Samples(
            [self.ids[row] for row in kept],
            [self.groups[row] for row in kept],
            self.strata[kept],
            self.grouped,
        )


def _codes(strata: Strata, n: int) -> npt.NDArray[np.int64]:
    """Stratum of each sample: text as it is, numbers by quantile, what is missing by itself."""
    if strata is None:
        return np.zeros(n, dtype=np.int64)
    if isinstance(strata, np.ndarray):
        present = strata[~np.isnan(strata)]
        shares = np.arange(1, QUANTILES) / QUANTILES
        edges = np.unique(np.quantile(present, shares)) if present.size else present
        codes = np.searchsorted(edges, strata, side="right")
        codes[np.isnan(strata)] = len(edges) + 1
    else:
        names = sorted({each for each in strata if each is not None})
        place = {name: code for code, name in enumerate(names)}
        codes = np.array([len(names) if each is None else place[each] for each in strata])
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def sorted_samples(ids: Sequence[str], groups: Sequence[str | None] | None, strata: Strata) -> Samples:
    """Samples sorted by id; without `groups` each is its own group.

    Raises
    ------
    InputError
        No samples, duplicate ids, samples without a group, more than `MAX_STRATA` strata.
    """
    repeated = sorted(name for name, times in Counter(ids).items() if times > 1)
    if repeated:
        raise InputError(f"split: samples occur more than once: {shown(repeated)}")
    if not ids:
        raise InputError("split: no samples to divide")
    order = sorted(range(len(ids)), key=ids.__getitem__)
    named = [(ids[row], ids[row] if groups is None else groups[row]) for row in order]
    lost = [sample for sample, group in named if group is None]
    if lost:
        raise InputError(
            f"split: {len(lost)} samples have no value in --group-column: {shown(lost)}; fill them in, or "
            "leave these samples out with --missing drop"
        )
    codes = _codes(strata, len(ids))[order]
    if codes.max() >= MAX_STRATA:
        raise InputError(
            f"split: {codes.max() + 1} strata, expected at most {MAX_STRATA}; stratify by a column of fewer "
            "values"
        )
    return Samples([ids[row] for row in order], [str(group) for _, group in named], codes, groups is not None)


def dealt(samples: Samples, sizes: Sequence[int], *names: int | str) -> dict[str, int]:
    """Deal the groups into parts of `sizes` groups each, at random and evenly over the strata.

    Groups of one (most frequent) stratum stand side by side in random order and the parts take turns, so
    that each stratum is divided to within one group. Where groups are unequal, two random groups then
    change places as often as that makes the parts' shares of all strata more even.
    """
    groups = sorted(set(samples.groups))
    row = {group: place for place, group in enumerate(groups)}
    counts = np.zeros((len(groups), int(samples.strata.max()) + 1))
    np.add.at(counts, (np.array([row[group] for group in samples.groups]), samples.strata), 1)
    random = generator(*names)
    turn = np.concatenate([(np.arange(size) + random.random()) / size for size in sizes])
    owner = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(turn, kind="stable")]
    part = np.empty(len(groups), dtype=np.int64)
    part[np.lexsort((random.random(len(groups)), counts.argmax(axis=1)))] = owner
    if samples.grouped:
        _even_out(part, counts / np.maximum(counts.sum(axis=0), 1), sizes, random)
    return dict(zip(groups, part.tolist(), strict=True))


def _even_out(
    part: npt.NDArray[np.int64],
    shares: npt.NDArray[np.float64],
    sizes: Sequence[int],
    random: np.random.Generator,
) -> None:
    """Exchange groups between parts, in place, while the squared excess of the strata's shares falls."""
    expected = np.array(sizes)[:, None] / len(part)
    excess = np.zeros((len(sizes), shares.shape[1])) - expected
    np.add.at(excess, part, shares)
    for one, other in random.integers(len(part), size=(SWAPS, 2)).tolist():
        a, b = part[one], part[other]
        moved = shares[other] - shares[one]
        after_a, after_b = excess[a] + moved, excess[b] - moved
        change = (after_a**2 - excess[a] ** 2) / expected[a] + (after_b**2 - excess[b] ** 2) / expected[b]
        if a != b and change.sum() < -1e-12:
            part[one], part[other] = b, a
            excess[a], excess[b] = after_a, after_b
