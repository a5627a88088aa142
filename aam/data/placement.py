"""Where ASVs stand on a reference tree: at the tip with which they share most 8-mers, or near it
with a probability.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.data.region import first_regions
from aam.data.tokens import (
    PAD,
    K,
    N,
    Tokens,
    encode,
    in_parts,
    kmer_counts,
    kmer_words,
    reverse_complement,
)
from aam.device.platform import in_threads
from aam.encoders import REFERENCE, shipped_encoders
from aam.errors import InputError
from aam.files.tensors import read_arrays
from aam.io.phylogeny import Phylogeny, read_tree

WORDS: int = 4**K

ASVS_AT_ONCE = 500

BASES_PER_BYTE = 4

TIPS_OF_PART = 1000

# Tips on which an ASV may stand, and how fast their probability falls with their similarity
# (docs/decisions.md).
TIPS, SHARPNESS, LEAST_WEIGHT = 50, 30.0, 1e-3

# Share of its 8-mers below which an ASV is tried the other way round.
TURNED = 0.5

# Share of its 8-mers below which an ASV is no 16S: the first number, or for a short one the second
# and so many of its 8-mers for each natural logarithm of the number of references. Random sequences
# share less (docs/decisions.md).
NOT_16S, NOT_16S_SHARE, NOT_16S_WORDS = 0.2, 0.1, 1.3

# Share of 8-mers that the median ASV of a table of 16S has in common with a reference: .78 to .90
# in six studies, at most .4 in reads of 100 nucleotides of 18S.
MEDIAN_16S = 0.4

# Length of an ASV's own branch where it shares no 8-mer with the tips, in substitutions per site.
OWN_LENGTH = 0.15

# One 8-mer of so many is a branch above the ASVs that hold it: those whose number times an odd one
# is low, modulo 4^8. Its length in substitutions per site.
ONE_WORD_OF, MIXED, WORD_LENGTH = 4, 40503, 0.004

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


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


@dataclass(frozen=True, eq=False)
class ReferenceTree:
    """A rooted tree of E branches whose T tips are sequences of A, C, G and T, in post-order.

    Attributes
    ----------
    parent : int32 [E]
        The node above each node; -1 for the root, which is the last.
    length : float32 [E]
        Length of the branch above each node; 0 for the root.
    tokens : uint8 [T, L]
        The sequences of the tips.
    lineages : tuple of str
        Different taxa of tips, from `RANKS` on, with semicolons; none where they are not known.
    taxon : int32 [T]
        The lineage of each tip.
    """

    parent: Ints
    length: Floats
    tokens: Tokens
    lineages: tuple[str, ...] = ()
    taxon: Ints = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def features(self) -> int:
        """Branches and words that an ASV may have: ``E + 4^8``; branches come first."""
        return len(self.parent) + WORDS

    @functools.cached_property
    def ancestors(self) -> Ints:
        """The branches from each tip to the root, int32 [T, depth]; -1 after the last."""
        node = np.flatnonzero(
            np.bincount(self.parent[:-1], minlength=len(self.parent)) == 0
        ).astype(np.int32)
        columns = []
        while (node >= 0).any():
            columns.append(node)
            # Above the root there is -1 again, which stands last.
            node = np.where(node >= 0, self.parent[node], -1).astype(np.int32)
        return np.stack(columns, axis=1)

    def place(self, tokens: Tokens) -> Ints:
        """Return the branches above each ASV ``[F, L]`` and its words, int32 [F, P].

        An ASV stands at the tip with which it shares most 8-mers (Jaccard index; the first of equal
        ones), and on no branch where it shares none with any tip. The number of the features fills
        the rows up.
        """
        tips = kmer_counts(self.tokens).sign()
        parts = []
        for some in in_parts(tokens, ASVS_AT_ONCE):
            words, present = kmer_words(torch.from_numpy(some), K).numpy(), kmer_counts(some).sign()
            shared = (present @ tips.T).toarray()
            either = np.diff(present.indptr)[:, None] + np.diff(tips.indptr) - shared
            similarity = shared / np.maximum(either, 1)
            branches = self.ancestors[similarity.argmax(axis=1)]
            branches[~similarity.any(axis=1)] = -1
            branches[branches < 0] = self.features
            # The number that stands for no word is the last, hence the number of the features here.
            parts.append(
                np.concatenate([branches, (words + len(self.parent)).astype(np.int32)], axis=1)
            )
        return np.concatenate(parts)

    @functools.cached_property
    def _tip_words(self) -> sparse.csr_matrix:
        """Return which words tips hold, [4^8, T]."""
        return sparse.vstack(
            in_threads(lambda some: kmer_counts(some).sign(), in_parts(self.tokens, ASVS_AT_ONCE))
        ).T.tocsr()

    def _nearest(self, tokens: Tokens) -> tuple[Ints, Floats]:
        """Return the `TIPS` tips that hold most words of each ASV, int32 [F, K], and the share of
        its words.
        """
        kept, tip_words = min(TIPS, len(self.tokens)), self._tip_words

        def nearest(some: Tokens) -> tuple[Ints, Floats]:
            present = kmer_counts(some).sign()
            shared = (present @ tip_words).toarray() / np.maximum(np.diff(present.indptr), 1)[
                :, None
            ]
            best = np.sort(np.argpartition(-shared, kept - 1, axis=1)[:, :kept], axis=1)
            order = np.argsort(-np.take_along_axis(shared, best, axis=1), axis=1, kind="stable")
            best = np.take_along_axis(best, order, axis=1)
            return best.astype(np.int32), np.take_along_axis(shared, best, axis=1).astype(
                np.float32
            )

        tips, similarity = zip(*in_threads(nearest, in_parts(tokens, ASVS_AT_ONCE)), strict=True)
        return np.concatenate(tips), np.concatenate(similarity)

    def place_softly(self, tokens: Tokens) -> SoftPlacement:
        """Return the probability of each branch to lie above each ASV ``[F, L]``; nothing of it is
        learned.

        An ASV stands at one of the `TIPS` tips that hold most of its 8-mers, with a probability
        that falls by ``exp(SHARPNESS x difference in the share of its 8-mers)``. Where the other
        strand fits better, it is read.
        """
        tips, similarity = self._nearest(tokens)
        unlike = np.flatnonzero(similarity[:, 0] < TURNED)
        turned = np.zeros(len(tokens), bool)
        if len(unlike):
            other_tips, other = self._nearest(reverse_complement(tokens[unlike]))
            better = other[:, 0] > similarity[unlike, 0]
            turned[unlike[better]] = True
            tips[turned], similarity[turned] = other_tips[better], other[better]
        weights = np.exp(SHARPNESS * (similarity - similarity[:, :1]))
        least = least_share(tokens, len(self.tokens))
        weights[(weights < LEAST_WEIGHT) | (similarity[:, :1] < least[:, None])] = 0
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), LEAST_WEIGHT)
        rows, columns = np.nonzero(weights)
        on_tips = sparse.csr_matrix(
            (weights[rows, columns], (rows, tips[rows, columns])), (len(tokens), len(self.tokens))
        )
        rows, columns = np.nonzero(self.ancestors >= 0)
        ones = np.ones(len(rows), np.float32)
        above = sparse.csr_matrix(
            (ones, (rows, self.ancestors[rows, columns])), (len(self.tokens), len(self.parent))
        )
        known = sparse.diags((similarity[:, 0] >= least).astype(np.float32))
        words = kmer_counts(np.where(turned[:, None], reverse_complement(tokens), tokens)).sign()
        return SoftPlacement(
            (on_tips @ above).tocsr(),
            similarity[:, 0],
            least,
            turned,
            self.length,
            tips[:, 0],
            on_tips,
            (known @ words).tocsr(),
        )

    def taxa(self, placement: SoftPlacement) -> Iterator[tuple[str, list[str], Floats]]:
        """Yield each rank with the likeliest taxon of every ASV, '' where none has a name, and its
        probability [F].

        That of a taxon is the sum of its tips. Tips without a name at a rank have no taxon there.
        """
        cells = [[cell.strip() for cell in lineage.split(";")] for lineage in self.lineages]
        for rank, name in enumerate(RANKS):
            # A taxon is called by its lineage, for genera of two families may have one name.
            paths = [
                ";".join(row[: rank + 1]) if len(row) > rank and row[rank][3:] else ""
                for row in cells
            ]
            taxa = [*dict.fromkeys(path for path in paths if path)] or [""]
            place = {path: at for at, path in enumerate(taxa)}
            rows = np.array([place.get(path, -1) for path in paths])[self.taxon]
            named = np.flatnonzero(rows >= 0)
            ones = np.ones(len(named), np.float32)
            shape = (len(rows), len(taxa))
            shares = (
                placement.tips @ sparse.csr_matrix((ones, (named, rows[named])), shape)
            ).tocsr()
            probability = np.asarray(shares.max(axis=1).todense()).ravel()
            best = np.asarray(shares.argmax(axis=1)).ravel()
            names = [
                taxa[at] if share > 0 else ""
                for at, share in zip(best.tolist(), probability, strict=True)
            ]
            yield name, names, probability

    def first_regions(self, tokens: Tokens, placement: SoftPlacement) -> list[str]:
        """Return the variable region before which each of some ASVs ``[F, L]`` begins, '' where
        that is not known.
        """
        read = np.where(placement.turned[:, None], reverse_complement(tokens), tokens)
        references = self.tokens[placement.nearest]
        words, of_references = (
            kmer_words(torch.from_numpy(some), K).numpy() for some in (read, references)
        )
        shift = np.zeros(len(tokens), np.int64)
        for row, (own, other) in enumerate(zip(words, of_references, strict=True)):
            _, at, there = np.intersect1d(
                own[own < WORDS], other[other < WORDS], return_indices=True
            )
            shift[row] = np.median(there - at) if len(at) else 0
        return first_regions(references, shift)

    def to_arrays(self, parts: bool = False) -> dict[str, npt.NDArray[Any]]:
        """Return the tree as named arrays: two bits for each base; in `parts` those of some tips at
        a time.
        """
        bits = np.where(self.tokens == PAD, 0, self.tokens - 1)
        bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % BASES_PER_BYTE))).reshape(
            len(bits), -1, BASES_PER_BYTE
        )
        packed = (bits << (2 * np.arange(BASES_PER_BYTE))).sum(axis=2).astype(np.uint8)
        lengths = (self.tokens != PAD).sum(axis=1).astype(np.int32)
        starts = range(0, len(packed), TIPS_OF_PART if parts else len(packed))
        bases = {
            f"bases.{at:06d}" if parts else "bases": packed[at : at + starts.step] for at in starts
        }
        return {"parent": self.parent, "length": self.length, "nucleotides": lengths, **bases}

    def taxa_to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the lineages of the tips as named arrays; none where there are none."""
        if not self.lineages:
            return {}
        text = np.frombuffer("\n".join(self.lineages).encode("utf-8"), np.uint8).copy()
        return {"taxon": self.taxon, "lineages": text}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ReferenceTree:
        """Rebuild the tree of `to_arrays`, and the lineages of `taxa_to_arrays` where they are
        there.
        """
        lengths = arrays["nucleotides"]
        packed = np.concatenate(
            [arrays[name] for name in sorted(arrays) if name.startswith("bases")]
        )
        bases = (packed[:, :, None] >> (2 * np.arange(BASES_PER_BYTE, dtype=np.uint8))) & 3
        tokens = bases.reshape(len(packed), -1)[:, : lengths.max()] + 1
        tokens[np.arange(tokens.shape[1]) >= lengths[:, None]] = PAD
        tree = cls(arrays["parent"], arrays["length"], tokens.astype(np.uint8))
        if "taxon" not in arrays:
            return tree
        lineages, taxon = (
            tuple(arrays["lineages"].tobytes().decode("utf-8").split("\n")),
            arrays["taxon"],
        )
        if taxon.shape != lengths.shape or taxon.min() < 0 or taxon.max() >= len(lineages):
            raise ValueError("the taxonomy of the reference is not one of its tips")
        return replace(tree, lineages=lineages, taxon=taxon)


@functools.cache
def shipped_reference() -> ReferenceTree:
    """Return the reference tree of the encoder 16s, which reads any region of 16S."""
    return ReferenceTree.from_arrays(read_arrays(shipped_encoders()["16s"] / REFERENCE))


def least_share(tokens: Tokens, references: int) -> Floats:
    """Return the share of its 8-mers that an ASV ``[F, L]`` of 16S has in common with some
    reference, float32 [F].

    The fewer 8-mers a sequence has, and the more references there are, the larger is the share that
    it has by chance.
    """
    words = np.maximum((tokens != PAD).sum(axis=1) - K + 1, 1)
    share = np.maximum(NOT_16S, NOT_16S_SHARE + NOT_16S_WORDS * np.log(references) / words)
    return np.asarray(share, np.float32)


def reference_of(tree: Phylogeny, source: str) -> ReferenceTree:
    """Return a tree whose tips are sequences as a reference; `InputError` where a tip is none."""
    tokens = encode(tree.tips)
    if (tokens >= N).any():
        raise InputError(f"{source}: a tip holds another letter than A, C, G and T")
    return ReferenceTree(
        tree.parent.astype(np.int32), np.nan_to_num(tree.length).astype(np.float32), tokens
    )


def read_reference(path: Path) -> ReferenceTree:
    """Read a reference tree, rooted at its midpoint.

    Raises
    ------
    InputError
        No tree, branches without a length, or tips that are no sequences.
    """
    try:
        return reference_of(read_tree(path, midpoint=True), f"--reference-tree {path}")
    except InputError as error:
        problems = (
            p if str(path) in p else f"--reference-tree {path}, a tip: {p}" for p in error.problems
        )
        raise InputError(*problems) from None


@dataclass(frozen=True, eq=False)
class Placement:
    """The ASVs of a table on a reference tree: `features` int32 [F, P] are those of
    `ReferenceTree.place`.
    """

    reference: ReferenceTree
    features: torch.Tensor
