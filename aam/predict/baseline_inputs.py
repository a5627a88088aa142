"""What learned baselines read of rarefied samples: shares, presence, and distances between samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array, csr_matrix, hstack, vstack
from scipy.spatial.distance import cdist

from aam.data.collate import distances_of, rarefied_table
from aam.data.study import EVALUATION, Study
from aam.evaluate.distances import word_counts
from aam.evaluate.metrics import Array

# Words whose presence in all samples is held at once.
WORDS_AT_ONCE = 4096

ASVS_AT_ONCE = 8192


def rarefactions(study: Study, rows: Array, number: int) -> list[csr_matrix]:
    """Return reads ``[N, F]`` of the samples at `rows` in the rarefactions that a model's predictions average."""
    return [rarefied_table(study, EVALUATION - 1 - draw)[rows] for draw in range(number)]


def with_covariates(features: csr_matrix, covariates: Sequence[Array]) -> csr_matrix:
    """Return features ``[N, P]`` and blocks of covariates as further columns, float32."""
    joined = csr_matrix(hstack([features, *covariates]), dtype=np.float32) if covariates else features
    # scikit-learn's trees read 32-bit indices only.
    joined.indices, joined.indptr = joined.indices.astype(np.int32), joined.indptr.astype(np.int32)
    return joined


def shares(counts: csr_matrix, covariates: Sequence[Array]) -> csr_matrix:
    """Return relative abundances, and covariates, of rarefied reads ``[N, F]``."""
    total = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1)
    relative = csr_matrix(counts, dtype=np.float32)
    relative.data /= np.repeat(total, np.diff(counts.indptr)).astype(np.float32)
    return with_covariates(relative, covariates)


def presence(counts: csr_matrix, covariates: Sequence[Array]) -> csr_matrix:
    """Return 0 or 1 for each ASV, and covariates, of rarefied reads ``[N, F]``."""
    return with_covariates(csr_matrix(counts, dtype=np.float32).sign(), covariates)


def linear_features(counts: csr_matrix, covariates: Sequence[Array]) -> csr_matrix:
    """Return presence, and covariates that vary as much in all as presence does, of rarefied reads ``[N, F]``.

    A penalty on the length of the coefficients would otherwise silence few covariates beside many ASVs.
    """
    present = csr_matrix(counts, dtype=np.float32).sign()
    mean = np.asarray(present.mean(axis=0)).ravel()
    spread = np.sqrt(present.sum() / max(present.shape[0], 1) - mean @ mean)
    joined = np.concatenate([np.zeros((present.shape[0], 0)), *covariates], axis=1)
    factor = spread / max(float(np.sqrt(joined.var(axis=0).sum())), 1e-12) if joined.any() else 1.0
    return with_covariates(present, [factor * joined] if covariates else ())


def _plus_covariates(distance: Array, covariates: Sequence[Array]) -> Array:
    """Return distances ``[N, N]`` plus the mean distance of the covariates, 0 to 1 for each (Gower 1971)."""
    for block in covariates:
        distance = distance + np.minimum(cdist(block, block, "cityblock"), 1) / len(covariates)
    return distance


def unifrac_of(study: Study, counts: csr_matrix, rows: Array, covariates: Sequence[Array]) -> Array | None:
    """Return UniFrac ``[N, N]``, with the distance of the covariates; none without a tree or a matrix."""
    distance = distances_of(study, counts, rows).get("distance")
    return None if distance is None else _plus_covariates(np.maximum(distance.numpy(), 0), covariates)


def words_of(study: Study) -> csr_array:
    """Return how often each 8-mer stands in each ASV, float32 ``[F, 4 ** 8]``."""
    tokens = study.tokens.numpy()
    starts = range(0, max(len(tokens), 1), ASVS_AT_ONCE)
    return csr_array(vstack([word_counts(tokens[start : start + ASVS_AT_ONCE]) for start in starts]))


def kmer_distance(words: csr_array, counts: csr_matrix, covariates: Sequence[Array]) -> Array:
    """Return the Jaccard distance ``[N, N]`` of the sets of 8-mers in samples, with the distance of the covariates.

    `words` are those of `words_of`, `counts` rarefied reads ``[N, F]``. The union of two samples' sets is their sizes
    less what they share.
    """
    present = csr_array(counts, dtype=np.float32)
    shared = np.zeros((present.shape[0],) * 2, np.float64)
    for start in range(0, words.shape[1], WORDS_AT_ONCE):
        block = ((present @ words[:, start : start + WORDS_AT_ONCE]).toarray() > 0).astype(np.float32)
        shared += block @ block.T
    size = np.diag(shared)
    return _plus_covariates(1 - shared / np.maximum(size[:, None] + size - shared, 1), covariates)
