"""Variants of rarefied samples, in each of which one ASV is removed, added, or has other reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aam.data.study import Row
from aam.device.rng import generator

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Variants:
    """M variants of n rarefied samples, by sample.

    Attributes
    ----------
    sample : int64 [M]
        Place of the sample among the n.
    column : int64 [M]
        The ASV of the table that is changed.
    before, after : int64 [M]
        Its reads in the rarefied sample and in the variant; 0 where it is absent.
    weight : float64 [M]
        Of the variant in the expected loss after a permutation of the ASV over the samples.
    """

    sample: Ints
    column: Ints
    before: Ints
    after: Ints
    weight: Floats

    @property
    def changes_presence(self) -> Bools:
        """Whether the ASV is removed or added, [M]; where not, only its reads change."""
        return np.asarray((self.before > 0) != (self.after > 0))

    def at(self, places: Bools) -> Variants:
        """Return some of the variants."""
        return Variants(*(getattr(self, name)[places] for name in Variants.__dataclass_fields__))

    def row(self, reads: Row, number: int) -> Row:
        """Return columns and reads of variant `number`, whose sample has `reads`, columns ascending."""
        columns, values = reads
        column, after = self.column[number], self.after[number]
        place = int(np.searchsorted(columns, column))
        present = place < len(columns) and columns[place] == column
        if not after:
            kept = columns != column
            return columns[kept], values[kept]
        if present:
            changed = values.copy()
            changed[place] = after
            return columns, changed
        return np.insert(columns, place, column), np.insert(values, place, after)


class _Occurrences(NamedTuple):
    """Every ASV of every sample: place of the sample, column, reads; by column, then by sample."""

    sample: Ints
    column: Ints
    reads: Ints

    def variants(self, which: Bools, after: Ints, weight: Floats) -> Variants:
        """Return variants of some of the occurrences with other reads; `after` and `weight` are of all of them."""
        return Variants(self.sample[which], self.column[which], self.reads[which], after[which], weight[which])


def _occurrences(rows: Sequence[Row]) -> _Occurrences:
    sizes = [len(columns) for columns, _ in rows]
    sample = np.repeat(np.arange(len(rows)), sizes)
    column = np.concatenate([np.zeros(0, np.int64), *(columns for columns, _ in rows)]).astype(np.int64)
    reads = np.concatenate([np.zeros(0, np.int64), *(values for _, values in rows)]).astype(np.int64)
    order = np.lexsort((sample, column))
    return _Occurrences(sample[order], column[order], reads[order])


def _additions(occurrences: _Occurrences, samples: int, per_carrier: float, rng: np.random.Generator) -> _Occurrences:
    """Return for each ASV some samples without it, and reads that it has in a random sample with it.

    Each of the `samples` without it is chosen with the probability `per_carrier` times the ASV's prevalence, so that
    there are about as many as samples with it, times `per_carrier`.
    """
    columns, starts, carriers = np.unique(occurrences.column, return_index=True, return_counts=True)
    chosen: list[tuple[Ints, Ints, Ints]] = []
    for column, start, count in zip(columns.tolist(), starts.tolist(), carriers.tolist(), strict=True):
        take = rng.random(samples) < per_carrier * count / samples
        take[occurrences.sample[start : start + count]] = False
        sample = np.flatnonzero(take)
        donor = start + rng.integers(0, count, len(sample))
        chosen.append((sample, np.full(len(sample), column), occurrences.reads[donor]))
    if not chosen:
        return occurrences
    sample, column, reads = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
    return _Occurrences(sample, column, reads)


def make_variants(rows: Sequence[Row], per_carrier: float, read_counts: bool, seed: tuple[int, ...]) -> Variants:
    """Return the variants from which the effect and the importance of every ASV of some samples follow.

    For each ASV of each sample the sample without it; for some samples without it, the sample with it. Where the model
    reads counts, also each sample with a single read of the ASV, and some with the reads of another sample.

    A permutation of an ASV over n samples gives each sample the ASV with probability p, its prevalence, with the reads
    of a random sample that has it. So the expected loss after a permutation is known from what is here: a sample with
    the ASV loses it with probability 1 - p (weight of its removal) and otherwise has other reads (chosen with
    probability p, weight 1); one without it gets it with probability p (each is chosen with a probability q, at most 1,
    and has the weight p / q).

    Parameters
    ----------
    rows : sequence of (columns, reads)
        The n rarefied samples.
    per_carrier : float
        How many samples without an ASV get it for each that has it.
    read_counts : bool
        Whether the model reads counts.
    seed : tuple
        Of the random choices.
    """
    occurrences, samples = _occurrences(rows), len(rows)
    rng = generator("explain", *seed)
    carriers = np.bincount(occurrences.column, minlength=int(occurrences.column.max(initial=-1)) + 1)
    prevalence = carriers / max(samples, 1)
    share = prevalence[occurrences.column]
    zeros = np.zeros(len(occurrences.column), np.int64)
    # Of a sample's only ASV nothing can be said: no model reads an empty sample.
    removable = np.bincount(occurrences.sample, minlength=samples)[occurrences.sample] > 1
    parts = [occurrences.variants(removable, zeros, 1 - share)]
    added = _additions(occurrences, samples, per_carrier, rng)
    weight = np.maximum(prevalence[added.column], 1 / per_carrier)
    parts.append(Variants(added.sample, added.column, np.zeros(len(added.sample), np.int64), added.reads, weight))
    if read_counts:
        several = occurrences.reads > 1
        parts.append(occurrences.variants(several, zeros + 1, 0.0 * share))
        starts = np.searchsorted(occurrences.column, occurrences.column)
        donor = starts + (rng.random(len(starts)) * carriers[occurrences.column]).astype(np.int64)
        other = (rng.random(len(starts)) < share) & (occurrences.reads[donor] != occurrences.reads)
        parts.append(occurrences.variants(other, occurrences.reads[donor], np.ones(len(share))))
    joined = Variants(*(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])))
    return _by_sample(joined)


def _by_sample(variants: Variants) -> Variants:
    order = np.argsort(variants.sample, kind="stable")
    return Variants(*(values[order] for values in vars(variants).values()))
