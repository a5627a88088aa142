"""How like the training table a new table is; samples that are unlike it get no interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from aam.typing import Array, Ints, Label, PositiveCount, Proportion, SmallNumber

# Training and held-out samples of folds.
Folds = Sequence[tuple[Ints, Ints]]

# Only ASVs that neither nearly all nor nearly no training samples have tell tables apart.
RAREST, COMMONEST, MOST_ASVS = 0.05, 0.95, 1000

# How much more a table may differ than chance explains. On 19 studies of stool, held-out samples
# differed 0.7 to 1.5 times as much in 99 of 100 draws, another study of the same disease 1.5 times
# or more (96 % of draws of 20 samples, all of 50).
LEAST_SHIFT = 1.5

# A table differs too much only if its prevalences do by so much (mean squared difference over
# p (1 - p), beyond chance): below it, intervals of a large second study held 92 and 96 %.
LEAST_DIFFERENCE = 0.03

# Held-out folds of grouped samples differ more than chance: a table may differ by so much more.
ABOVE_FOLDS = 1.25

# A smaller table is not judged as a whole.
LEAST_SAMPLES = 10

# A sample may have as many reads in ASVs that training lacks as this share of held-out samples has.
HELD_OUT_LEVEL, LEAST_UNSEEN = 0.99, 0.01


@dataclass(frozen=True)
class TableLikeness:
    """Description of the training samples, to compare new samples with.

    Attributes
    ----------
    asvs : tuple of str [F]
        Sequences (or ids) of ASVs of medium prevalence.
    prevalence : tuple of float [F]
        Share of the training samples that have each ASV after rarefaction.
    samples : int
        Number of training samples.
    most_shift : float
        Largest `shift` of a table like that of training.
    most_unseen : float
        Largest share of reads in ASVs that training lacks, of a sample like those of training.
    """

    asvs: tuple[Label, ...]
    prevalence: tuple[Proportion, ...]
    samples: PositiveCount
    most_shift: SmallNumber
    most_unseen: Proportion

    def contradictions(self) -> Iterator[str]:
        """Say why the values cannot be fitted together."""
        if not len(set(self.asvs)) == len(self.asvs) == len(self.prevalence):
            yield "its ASVs are not distinct, or not each with a prevalence"

    @classmethod
    def fit(
        cls, presence: sparse.csr_matrix, asvs: Sequence[str], folds: Folds, unseen: Array
    ) -> TableLikeness:
        """Describe training samples with presence [N, A] of `asvs` [A].

        Parameters
        ----------
        presence : sparse matrix
            1 where a rarefied sample has the ASV.
        asvs : sequence of str
        folds : sequence of (rows, rows)
            Training and held-out samples of each fold: how much they differ sets the limit.
        unseen : float64 [n]
            Share of the reads of each held-out sample in ASVs that its fold's training lacks.
        """
        share = _prevalence(presence)
        usable = np.flatnonzero((share >= RAREST) & (share <= COMMONEST))
        kept = np.sort(usable[np.argsort(np.abs(share[usable] - 0.5), kind="stable")][:MOST_ASVS])
        most_shift = LEAST_SHIFT
        for rows in folds:
            if len(rows[0]) and len(rows[1]) >= LEAST_SAMPLES:
                train, test = (_prevalence(presence[part])[kept] for part in rows)
                shift = _shift(train, len(rows[0]), test, len(rows[1]))
                most_shift = max(most_shift, ABOVE_FOLDS * shift)
        most_unseen = float(np.quantile(unseen, HELD_OUT_LEVEL)) if len(unseen) else 0.0
        names = tuple(asvs[at] for at in kept.tolist())
        prevalence = tuple(round(value, 5) for value in share[kept].tolist())
        return cls(names, prevalence, presence.shape[0], most_shift, max(LEAST_UNSEEN, most_unseen))

    def shift(self, presence: sparse.csr_matrix, asvs: Sequence[str]) -> float:
        """Compare how common ASVs are in a table and in training, as a multiple of chance.

        The mean over ASVs of the squared difference of prevalences, divided by its expectation for
        samples drawn from the training samples' population: about 1 for such samples.
        """
        column = {name: at for at, name in enumerate(asvs)}
        share = np.append(_prevalence(presence), 0.0)
        new = share[[column.get(name, -1) for name in self.asvs]]
        return _shift(np.array(self.prevalence), self.samples, new, presence.shape[0])

    def reasons(self, presence: sparse.csr_matrix, asvs: Sequence[str], unseen: Array) -> list[str]:
        """Reasons why samples are unlike training, one text per sample; empty where they are not.

        Parameters
        ----------
        presence : sparse matrix [n, A]
        asvs : sequence of str [A]
        unseen : float64 [n]
            Share of the reads of each sample in ASVs that training lacks.
        """
        samples, most = presence.shape[0], self.most_unseen
        if samples >= LEAST_SAMPLES and self.asvs:
            shift, chance = self.shift(presence, asvs), 1 / self.samples + 1 / samples
            if shift > self.most_shift and (shift - 1) * chance > LEAST_DIFFERENCE:
                text = (
                    f"the table is unlike the training table: the prevalence of its ASVs differs "
                    f"{shift:.1f} times as much as chance explains (limit {self.most_shift:.1f})"
                )
                return [text] * samples
        text = "{:.0%} of its reads are of ASVs that training lacks, at most {:.0%} in samples "
        text += "like those of training"
        return [text.format(share, most) if share > most else "" for share in unseen.tolist()]


def _prevalence(presence: sparse.csr_matrix) -> Array:
    """Share of the samples that have each ASV, [A]."""
    return np.asarray(presence.mean(axis=0), np.float64).ravel()


def _shift(training: Array, samples: int, new: Array, new_samples: int) -> float:
    """Squared differences of prevalences [F], divided by what chance gives on average."""
    usable = (training > 0) & (training < 1)
    training, new = training[usable], new[usable]
    if not len(training):
        return 0.0
    chance = training * (1 - training) * (1 / samples + 1 / new_samples)
    return float(np.mean((new - training) ** 2 / chance))
