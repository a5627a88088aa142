"""UniFrac between samples whose ASVs stand on branches with a probability, in closed form.

Legend for shapes: N or B samples, F ASVs, E branches of the reference tree.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.data.study import PlacedMetric
from aam.diversity.distances import TILE, blocks_of, inner, mirror, tile_pairs
from aam.diversity.unifrac import Input, Layout, UnifracOptions, between
from aam.io.matrices import Tile

Floats: TypeAlias = npt.NDArray[np.float32]
PlacedDistance: TypeAlias = Literal["unifrac", "weighted-normalized", "cosine"]

# A probability counts as at most this, so that its complement has a logarithm.
SURE = 1 - 1e-6

# Tiles of samples whose branches are kept while tables are compared, some 40 MB each.
KEPT_TILES = 8

# Numbers of a sample's vector.
WIDTH = 1024


def sample_branches(
    counts: sparse.csr_matrix, probability: sparse.csr_matrix, metric: PlacedMetric
) -> Floats:
    """Abundance of samples on each branch, float32 [N, E].

    For ``unifrac`` the probability that at least one of the sample's ASVs stands below the branch,
    ``1 - prod(1 - p)``; for ``weighted-normalized`` the expected share of its reads below.

    Parameters
    ----------
    counts : CSR [N, F]
    probability : CSR [F, E]
        Of each branch to lie above each ASV.
    metric : str
    """
    if metric == "unifrac":
        absent = probability.copy()
        absent.data = np.log1p(-np.minimum(absent.data, SURE))
        return np.asarray(-np.expm1(((counts > 0).astype(np.float32) @ absent).toarray()))
    reads = np.maximum(np.asarray(counts.sum(axis=1)), 1)
    return np.asarray((counts.astype(np.float32) @ probability).toarray() / reads, np.float32)


def _input(
    counts: sparse.csr_matrix, probability: sparse.csr_matrix, layout: Layout, metric: PlacedMetric
) -> Input:
    """Return what the metric reads of some samples: branches of the reference are common, own ones
    of ASVs rare.
    """
    total = np.asarray(counts.sum(axis=1)).ravel()
    common = sample_branches(counts, probability, metric).T
    length = layout.length[:, None].astype(np.float32)
    rare = counts.astype(np.float64)
    if metric == "unifrac":
        rare.data[:] = np.sqrt(layout.rare_length[rare.indices])
        common = np.ascontiguousarray(common * np.sqrt(length))
        # The Tanimoto distance: squares, so that a sample is 0 away from itself though its branches
        # are not sure.
        height = (common**2).sum(axis=0, dtype=np.float64) + np.asarray(
            rare.power(2).sum(axis=1)
        ).ravel()
    else:
        rare.data *= layout.rare_length[rare.indices] / np.repeat(
            np.maximum(total, 1), np.diff(rare.indptr)
        )
        common = np.ascontiguousarray(common * length)
        height = common.sum(axis=0, dtype=np.float64) + np.asarray(rare.sum(axis=1)).ravel()
    return Input(common, rare, height)


def _between(layout: Layout, left: Input, right: Input, metric: PlacedMetric) -> Floats:
    """Return the distances [I, J] between the samples of two blocks, float32.

    Products for ``unifrac`` are of all branches at once: probabilities are not exact in any type.
    """
    if metric != "unifrac":
        return between(layout, left, right, UnifracOptions(metric), inner).astype(np.float32)
    shared = (
        inner(left.common, right.common).astype(np.float64) + (left.rare @ right.rare.T).toarray()
    )
    union = left.height[:, None] + right.height - shared
    distance = (union - shared) / np.maximum(union, 1e-12)
    return np.asarray(np.maximum(distance, 0), np.float32)


def _laid_out(
    probability: sparse.csr_matrix, length: Floats, own_length: Floats
) -> tuple[sparse.csr_matrix, Layout]:
    """Return the different branches that some ASV may have, [F, C], and their layout: those above
    the same are one.
    """
    none = np.zeros(0, np.int64)
    # Two branches that the same ASVs have, with the same probabilities, have the same of two sums
    # with random weights.
    weights = np.random.default_rng(0).random((2, probability.shape[0]))
    held = np.unique(probability.indices)
    sums = (
        (probability.tocsc()[:, held].T.astype(np.float64) @ weights.T).view(np.complex128).ravel()
    )
    _, some, group = np.unique(sums, return_index=True, return_inverse=True)
    lengths = np.bincount(group, length[held]).astype(np.float64)
    own = own_length.astype(np.float64)
    return probability[:, held[some]], Layout(
        lengths, none, none, none, own, sparse.csc_matrix((0, len(own))), True
    )


def placed_tiles(
    counts: sparse.csr_matrix,
    probability: sparse.csr_matrix,
    length: Floats,
    own_length: Floats,
    metric: PlacedMetric = "unifrac",
) -> Iterator[Tile]:
    """Yield the predicted distances between samples in tiles on and above the diagonal, as
    `unifrac_tiles` does.

    ``unifrac`` is ``1 - sum l p q / sum l (p^2 + q^2 - p q)`` over branches of length l that two
    samples have with probabilities p and q, ``weighted-normalized`` ``sum l |p - q| / sum l (p +
    q)`` of expected shares. Where nothing is in doubt, both are UniFrac itself.

    Parameters
    ----------
    counts : CSR [N, F]
        Reads.
    probability : CSR [F, E]
    length : float32 [E]
    own_length : float32 [F]
        Of a further branch above each ASV alone.
    metric : str
    """
    probability, layout = _laid_out(probability, length, own_length)
    parts = blocks_of(counts.shape[0], TILE)

    @functools.lru_cache(maxsize=KEPT_TILES)
    def read(part: int) -> Input:
        return _input(counts[parts[part]], probability, layout, metric)

    for i, j in tile_pairs(len(parts)):
        tile = _between(layout, read(i), read(j), metric)
        if i == j:
            mirror(tile)
        yield parts[i], parts[j], tile


def placed_between(
    counts: sparse.csr_matrix,
    among: sparse.csr_matrix,
    probability: sparse.csr_matrix,
    length: Floats,
    own_length: Floats,
    distance: PlacedDistance = "unifrac",
) -> Iterator[Tile]:
    """Yield the distances of samples `counts` [N, F] to other samples `among` [M, F] in tiles, row
    after row of them.

    Parameters are those of `placed_tiles`. The distance may also be ``cosine``: that between the
    cube roots of the expected shares of reads below each branch, times fourth roots of its length.
    Own branches have no part in it, so that regions can be compared.
    """
    if distance == "cosine":
        for rows in blocks_of(counts.shape[0], TILE):
            left = _composition(counts[rows], probability, length)
            for columns in blocks_of(among.shape[0], TILE):
                yield rows, columns, 1 - left @ _composition(among[columns], probability, length).T
        return
    probability, layout = _laid_out(probability, length, own_length)
    for rows in blocks_of(counts.shape[0], TILE):
        one = _input(counts[rows], probability, layout, distance)
        for columns in blocks_of(among.shape[0], TILE):
            other = _input(among[columns], probability, layout, distance)
            yield rows, columns, _between(layout, one, other, distance)


def sample_vectors(
    counts: sparse.csr_matrix,
    probability: sparse.csr_matrix,
    length: Floats,
    own_length: Floats,
    sequences: Sequence[str],
) -> Iterator[Floats]:
    """Yield vectors of length 1 of some samples at a time, float32 [B, 1024].

    The root of the length of each branch, times the probability that the sample has it, is added
    with a random sign to one of the numbers (Charikar et al. 2002, count sketch), which keeps
    scalar products. Sign and number are those of the branch, and of the sequence `sequences` [F] of
    an own branch: nothing of a sample depends on its table.
    """
    common = _sketch([f"branch {at}" for at in range(len(length))], np.sqrt(length))
    own = _sketch(sequences, np.sqrt(own_length))
    for rows in blocks_of(counts.shape[0], TILE):
        branches = sample_branches(counts[rows], probability, "unifrac")
        vectors = branches @ common + ((counts[rows] > 0).astype(np.float32) @ own).toarray()
        yield np.asarray(
            vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32
        )


def _sketch(names: Sequence[str], weight: Floats) -> sparse.csr_matrix:
    """Return to which number of a vector each name adds which weight, CSR float32 [names, 1024]."""
    digests = b"".join(
        hashlib.blake2b(name.encode("ascii"), digest_size=8).digest() for name in names
    )
    numbers = np.frombuffer(digests, "<u8")
    signed = np.where(numbers & 1, weight, -weight).astype(np.float32)
    columns = (numbers >> 1) % WIDTH
    return sparse.csr_matrix(
        (signed, columns.astype(np.int32), np.arange(len(names) + 1)), (len(names), WIDTH)
    )


def _composition(
    counts: sparse.csr_matrix, probability: sparse.csr_matrix, length: Floats
) -> Floats:
    """Return cube roots of the expected share of reads below each branch, times fourth roots of its
    length, [N, E].

    Float32, each row of length 1.
    """
    roots = np.cbrt(sample_branches(counts, probability, "weighted-normalized")) * np.power(
        length, 0.25
    )
    return np.asarray(
        roots / np.maximum(np.linalg.norm(roots, axis=1, keepdims=True), 1e-12), np.float32
    )
