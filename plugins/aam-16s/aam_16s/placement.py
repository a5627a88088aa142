"""Where the ASVs of a table may stand on a reference tree, and whether they are 16S at all.

Legend for shapes: N samples, F ASVs, L nucleotides, E branches, T tips.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.data.tokens import PAD, K
from aam.errors import InputError
from aam.typing import Tokens
from aam_16s.presence import WORDS

log = logging.getLogger("aam")

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

# Share of its 8-mers below which an ASV is no 16S: the first number, or for a short one the second
# and so many of its 8-mers for each natural logarithm of the number of references. Random sequences
# share less.
NOT_16S, NOT_16S_SHARE, NOT_16S_WORDS = 0.2, 0.1, 1.3

# Share of 8-mers that the median ASV of a table of 16S has in common with a reference: .78 to .90
# in six studies, at most .4 in reads of 100 nucleotides of 18S.
MEDIAN_16S = 0.4

# Length of an ASV's own branch where it shares no 8-mer with the tips, in substitutions per site.
OWN_LENGTH = 0.15

# One 8-mer of so many is a branch above the ASVs that hold it: those whose number times an odd one
# is low, modulo 4^8. Its length in substitutions per site.
ONE_WORD_OF, MIXED, WORD_LENGTH = 4, 40503, 0.004


@dataclass(frozen=True, eq=False)
class SoftPlacement:
    """Where the F ASVs of a table may stand on a reference tree of E branches.

    Attributes
    ----------
    probability : CSR float32 [F, E]
        Of each branch to lie above each ASV; none where the ASV is no 16S.
    similarity : float32 [F]
        Largest share of an ASV's 8-mers that a tip holds.
    least : float32 [F]
        The share below which it is no 16S (`least_share`).
    turned : bool [F]
        Whether its reverse complement was read.
    length : float32 [E]
        Of each branch, in substitutions per site.
    nearest : int32 [F]
        The tip that holds most of an ASV's 8-mers.
    tips : CSR float32 [F, T]
        Probability of each ASV to stand at each tip.
    words : CSR float32 [F, 4^8]
        1 where an ASV, as it was read, holds an 8-mer; none where it is no 16S.
    """

    probability: sparse.csr_matrix
    similarity: Floats
    least: Floats
    turned: npt.NDArray[np.bool_]
    length: Floats
    nearest: Ints
    tips: sparse.csr_matrix
    words: sparse.csr_matrix

    @property
    def with_words(self) -> tuple[sparse.csr_matrix, Floats]:
        """Return which branches lie above each ASV, 8-mers among them, CSR float32 [F, E + W], and
        their lengths.

        An 8-mer is above the ASVs that hold it: what a tree of references does not tell apart,
        8-mers may.
        """
        some = np.flatnonzero(np.arange(WORDS) * MIXED % WORDS < WORDS // ONE_WORD_OF)
        columns = sparse.hstack([self.probability, self.words[:, some]]).tocsr()
        return columns, np.concatenate([self.length, np.full(len(some), WORD_LENGTH, np.float32)])

    @property
    def is_16s(self) -> npt.NDArray[np.bool_]:
        """Which ASVs share enough with a tip to be 16S at all, bool [F]."""
        return np.asarray(self.similarity >= self.least)

    def check_16s(self, counts: sparse.csr_matrix, table: str) -> None:
        """Raise `InputError` where most reads [N, F] of a table, or half of its ASVs, are not of
        16S.
        """
        strange, best = ~self.is_16s, float(np.median(self.similarity))
        if np.median(self.least) >= 1:
            raise InputError(
                f"{table}: its ASVs are too short to be told from random sequences; expected 50 "
                "bases or more"
            )
        if counts[:, np.flatnonzero(strange)].sum() > counts.sum() / 2:
            raise InputError(
                f"{table}: {strange.mean():.0%} of the ASVs are no 16S of bacteria or archaea: "
                "they share less than "
                f"{np.median(self.least):.0%} of their 8-mers with any sequence of the reference "
                "(median of all ASVs "
                f"{best:.0%}), as all but 1 in 500 random sequences of their length do; expected "
                "16S reads without "
                "primers"
            )
        if best < MEDIAN_16S:
            raise InputError(
                f"{table}: half of the ASVs share less than {best:.0%} of their 8-mers with any "
                "sequence of the "
                "reference; ASVs of 16S share some 80%, those of 18S less than "
                f"{MEDIAN_16S:.0%}; expected 16S reads"
            )

    def warn(self) -> None:
        """Log how many ASVs were reverse-complemented, and how many are not 16S."""
        strange, turned = ~self.is_16s, self.turned & self.is_16s
        if turned.any():
            log.warning("%d of %d ASVs were reverse-complemented", turned.sum(), len(turned))
        if strange.any():
            log.warning(
                "%d of %d ASVs are not 16S and are left out of distances",
                strange.sum(),
                len(strange),
            )

    def at(self, rows: npt.NDArray[np.int64]) -> SoftPlacement:
        """Return where the ASVs at `rows` may stand."""
        arrays = {
            field.name: getattr(self, field.name)[rows]
            for field in fields(self)
            if field.name != "length"
        }
        return SoftPlacement(length=self.length, **arrays)

    @property
    def own_length(self) -> Floats:
        """The length of each ASV's own branch, float32 [F]: the less it shares with the tips, the
        longer.
        """
        return OWN_LENGTH * (1 - self.similarity) * self.is_16s


def least_share(tokens: Tokens, references: int) -> Floats:
    """Return the share of its 8-mers that an ASV ``[F, L]`` of 16S has in common with some
    reference, float32 [F].

    The fewer 8-mers a sequence has, and the more references there are, the larger is the share that
    it has by chance.
    """
    words = np.maximum((tokens != PAD).sum(axis=1) - K + 1, 1)
    share = np.maximum(NOT_16S, NOT_16S_SHARE + NOT_16S_WORDS * np.log(references) / words)
    return np.asarray(share, np.float32)
