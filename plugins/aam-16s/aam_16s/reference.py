"""The reference tree: where ASVs stand on it, and which taxa and regions they are of.

Legend for shapes: F ASVs, L nucleotides, E branches, T tips, W 8-mers.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from threadpoolctl import threadpool_limits

from aam.data.tokens import PAD, K, N, encode, kmer_counts, kmer_words, reverse_complement
from aam.errors import InputError
from aam.files.tensors import read_arrays
from aam.io.phylogeny import Phylogeny, read_tree
from aam.io.tables import AmpliconTable
from aam.typing import Tokens
from aam_16s.placement import Floats, Ints, SoftPlacement, least_share
from aam_16s.presence import SKETCH, WORDS, Presence
from aam_16s.regions import first_regions
from aam_16s.samples import PlacedSamples

Item = TypeVar("Item")
Result = TypeVar("Result")

log = logging.getLogger("aam")

ASVS_AT_ONCE = 500

BASES_PER_BYTE = 4

TIPS_OF_PART = 1000

# Tips on which an ASV may stand, and how fast their probability falls with their similarity;
# chosen on the studies that the card of 16s names.
TIPS, SHARPNESS, LEAST_WEIGHT = 50, 30.0, 1e-3

# Share of its 8-mers below which an ASV is tried the other way round.
TURNED = 0.5

# Number of ASVs whose region is looked up, and the share of them from which a region is named.
ASVS_OF_REGIONS, LEAST_SHARE = 300, 0.05

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")


def in_parts(tokens: Tokens) -> list[Tokens]:
    """Return the ASVs `ASVS_AT_ONCE` at a time, one part at least: memory for a part does not grow
    with a table.
    """
    starts = range(0, max(len(tokens), 1), ASVS_AT_ONCE)
    return [tokens[start : start + ASVS_AT_ONCE] for start in starts]


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what `function` gives of each item, in as many threads as torch has (``--threads``).

    Each has one thread of BLAS: the bits do not depend on how many there are.
    """
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(function, items))


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
    def encoder(self) -> str:
        """Name of the entry point that rebuilds a reference tree."""
        return "16s-v4"

    @property
    def width(self) -> int:
        """Numbers of a sample that a network reads."""
        return SKETCH

    def sample_input(self, tokens: Tokens) -> Presence:
        """Place the ASVs [F, L] of a table for a network."""
        return Presence(self.features_of(tokens), self.length)

    def place(
        self, table: AmpliconTable, tokens: Tokens, counts: sparse.csr_matrix, source: str
    ) -> PlacedSamples:
        """Place the samples of a table whose ASVs are `tokens` [F, L].

        Parameters
        ----------
        table : AmpliconTable
        tokens : uint8 [F, L]
        counts : CSR [N, F]
            Rarefied reads.
        source : str
            Name of the table in messages.

        Raises
        ------
        InputError
            The table holds no 16S.
        """
        placement = self.place_softly(tokens)
        placement.check_16s(counts, source)
        placement.warn()
        self._warn_of_regions(tokens, placement)
        reads = sparse.csr_matrix(table.counts)
        return PlacedSamples(
            table.sample_ids, tuple(table.sequences), reads, counts, placement, self
        )

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

    def features_of(self, tokens: Tokens) -> Ints:
        """Return the branches above each ASV ``[F, L]`` and its words, int32 [F, P].

        An ASV stands at the tip with which it shares most 8-mers (Jaccard index; the first of equal
        ones), and on no branch where it shares none with any tip. The number of the features fills
        the rows up.
        """
        tips, words_of_tips = self._tip_words, self._tip_words.getnnz(axis=0)
        parts = []
        for some in in_parts(tokens):
            words, present = kmer_words(torch.from_numpy(some), K).numpy(), kmer_counts(some).sign()
            shared = (present @ tips).toarray()
            either = np.diff(present.indptr)[:, None] + words_of_tips - shared
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
            in_threads(lambda some: kmer_counts(some).sign(), in_parts(self.tokens))
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

        tips, similarity = zip(*in_threads(nearest, in_parts(tokens)), strict=True)
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

    def _warn_of_regions(self, tokens: Tokens, placement: SoftPlacement) -> None:
        """Name the regions of the ASVs of a table if it mixes several."""
        rows = np.flatnonzero(placement.is_16s)
        rows = rows[:: max(len(rows) // ASVS_OF_REGIONS, 1)]
        regions = Counter(self.first_regions(tokens[rows], placement.at(rows)))
        del regions[""]
        shares = {name: number / regions.total() for name, number in regions.most_common()}
        named = [
            f"{share:.0%} begin before {name}"
            for name, share in shares.items()
            if share > LEAST_SHARE
        ]
        if len(named) > 1:
            log.warning(
                "warning: the ASVs are of several regions: %s; UniFrac between samples of "
                "different regions is too long. `python -m aam_16s search` with the reference of "
                "any region compares them",
                ", ".join(named),
            )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The tree as named arrays: two bits per base, the bases of 1,000 tips per array."""
        bits = np.where(self.tokens == PAD, 0, self.tokens - 1)
        bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % BASES_PER_BYTE))).reshape(
            len(bits), -1, BASES_PER_BYTE
        )
        packed = (bits << (2 * np.arange(BASES_PER_BYTE))).sum(axis=2).astype(np.uint8)
        lengths = (self.tokens != PAD).sum(axis=1).astype(np.int32)
        bases = {
            f"bases.{at:06d}": packed[at : at + TIPS_OF_PART]
            for at in range(0, len(packed), TIPS_OF_PART)
        }
        arrays = {"parent": self.parent, "length": self.length, "nucleotides": lengths, **bases}
        if self.lineages:
            text = np.frombuffer("\n".join(self.lineages).encode("utf-8"), np.uint8).copy()
            arrays |= {"taxon": self.taxon, "lineages": text}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ReferenceTree:
        """Rebuild the tree of `to_arrays`."""
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


def tree_of_model(folder: Path) -> ReferenceTree:
    """The reference tree of a saved model."""
    return ReferenceTree.from_arrays(read_arrays(folder / "reference.safetensors"))


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
        return reference_of(read_tree(path, midpoint=True), str(path))
    except InputError as error:
        problems = (p if str(path) in p else f"{path}, a tip: {p}" for p in error.problems)
        raise InputError(*problems) from None
