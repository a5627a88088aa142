"""Where ASVs stand on a reference tree: at the tip with which they share most 8-mers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.data.tokens import PAD, N, Tokens, encode, kmer_words
from aam.errors import InputError
from aam.io.newick import read_tree
from aam.io.phylogeny import Phylogeny

K = 8

WORDS: int = 4**K

ASVS_AT_ONCE = 500

BASES_PER_BYTE = 4

Ints = npt.NDArray[np.int32]


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
    """

    parent: Ints
    length: npt.NDArray[np.float32]
    tokens: Tokens

    @property
    def features(self) -> int:
        """Branches and words that an ASV may have: ``E + 4^8``; branches come first."""
        return len(self.parent) + WORDS

    @functools.cached_property
    def ancestors(self) -> Ints:
        """The branches from each tip to the root, int32 [T, depth]; -1 after the last."""
        node = np.flatnonzero(np.bincount(self.parent[:-1], minlength=len(self.parent)) == 0).astype(np.int32)
        columns = []
        while (node >= 0).any():
            columns.append(node)
            # Above the root there is -1 again, which stands last.
            node = np.where(node >= 0, self.parent[node], -1).astype(np.int32)
        return np.stack(columns, axis=1)

    def place(self, tokens: Tokens) -> Ints:
        """Return the branches above each ASV ``[F, L]`` and its words, int32 [F, P].

        An ASV stands at the tip with which it shares most 8-mers (Jaccard index; the first of equal ones), and on no
        branch where it shares none with any tip. The number of the features fills the rows up.
        """
        _, tips = _words(self.tokens)
        parts = []
        for start in range(0, len(tokens), ASVS_AT_ONCE):
            words, present = _words(tokens[start : start + ASVS_AT_ONCE])
            shared = (present @ tips.T).toarray()
            either = np.diff(present.indptr)[:, None] + np.diff(tips.indptr) - shared
            similarity = shared / np.maximum(either, 1)
            branches = self.ancestors[similarity.argmax(axis=1)]
            branches[~similarity.any(axis=1)] = -1
            branches[branches < 0] = self.features
            # The number that stands for no word is the last, hence the number of the features here.
            parts.append(np.concatenate([branches, words + np.int32(len(self.parent))], axis=1))
        return np.concatenate(parts)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tree as named arrays: two bits for each base."""
        bits = np.where(self.tokens == PAD, 0, self.tokens - 1)
        bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % BASES_PER_BYTE))).reshape(len(bits), -1, BASES_PER_BYTE)
        packed = (bits << (2 * np.arange(BASES_PER_BYTE))).sum(axis=2).astype(np.uint8)
        lengths = (self.tokens != PAD).sum(axis=1).astype(np.int32)
        return {"parent": self.parent, "length": self.length, "bases": packed, "nucleotides": lengths}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ReferenceTree:
        """Rebuild the tree of `to_arrays`."""
        lengths, packed = arrays["nucleotides"], arrays["bases"]
        bases = (packed[:, :, None] >> (2 * np.arange(BASES_PER_BYTE, dtype=np.uint8))) & 3
        tokens = bases.reshape(len(packed), -1)[:, : lengths.max()] + 1
        tokens[np.arange(tokens.shape[1]) >= lengths[:, None]] = PAD
        return cls(arrays["parent"], arrays["length"], tokens.astype(np.uint8))


def _words(tokens: Tokens) -> tuple[Ints, sparse.csr_matrix]:
    """Return the word that starts at each position of ASVs ``[F, L]``, int32 [F, L], and which they hold [F, 4^8]."""
    words = kmer_words(torch.from_numpy(tokens), K).numpy()
    rows, positions = np.nonzero(words < WORDS)
    shape = (len(words), WORDS)
    # Words that an ASV holds several times are added up.
    present = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, words[rows, positions])), shape)
    present.data[:] = 1
    return words.astype(np.int32), present


def reference_of(tree: Phylogeny, source: str) -> ReferenceTree:
    """Return a tree whose tips are sequences as a reference; `InputError` where a tip is none."""
    tokens = encode(tree.tips)
    if (tokens >= N).any():
        raise InputError(f"{source}: a tip holds another letter than A, C, G and T")
    return ReferenceTree(tree.parent.astype(np.int32), np.nan_to_num(tree.length).astype(np.float32), tokens)


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
        problems = (p if str(path) in p else f"--reference-tree {path}, a tip: {p}" for p in error.problems)
        raise InputError(*problems) from None


@dataclass(frozen=True, eq=False)
class Placement:
    """The ASVs of a table on a reference tree: `features` int32 [F, P] are those of `ReferenceTree.place`."""

    reference: ReferenceTree
    features: torch.Tensor

    @classmethod
    def make(cls, reference: ReferenceTree, tokens: torch.Tensor) -> Placement:
        """Place ASVs ``[F, L]``."""
        return cls(reference, torch.from_numpy(reference.place(tokens.numpy())))
