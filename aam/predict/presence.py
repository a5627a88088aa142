"""Which ASVs are present in rarefied samples, as themselves and by the 8-mers of their sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.data.collate import rarefied_rows
from aam.data.study import Study
from aam.data.tokens import PAD, N
from aam.device.rng import splitmix64

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# An ASV of fewer training samples says nothing of others.
FEWEST = 3

K = 8

# Two samples' kernel is kept to about sqrt(1 / BUCKETS), 1 %, of their own.
BUCKETS = 8192


def presence(study: Study, rows: Rows, draw: int) -> sparse.csr_matrix:
    """Return 0 or 1 for each ASV of the table in the samples at `rows`, rarefied in one draw, float64 ``[n, F]``.

    Expected presence over all draws would be smoother, but its small values carry the sequencing depth.
    """
    drawn = rarefied_rows(study, rows, draw)
    starts = np.cumsum([0, *(len(columns) for columns, _ in drawn)])
    columns = np.concatenate([np.zeros(0, np.int64), *(columns for columns, _ in drawn)])
    shape = (len(rows), len(study.table.sequences))
    return sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape=shape)


def common_columns(presences: Sequence[sparse.csr_matrix]) -> Rows:
    """Return the columns of ASVs that are in at least `FEWEST` samples, on average over draws ``[n, F]``."""
    samples = sum(np.bincount(draw.indices, minlength=draw.shape[1]) for draw in presences) / max(len(presences), 1)
    return np.flatnonzero(samples >= FEWEST).astype(np.int64)


def kmer_sketch(tokens: Bytes) -> sparse.csr_matrix:
    """Return a sketch of the 8-mers of each sequence ``[F, L]`` of tokens, float64 ``[F, BUCKETS]``.

    The 8-mers present, each 1 or -1 in the bucket of its hash (Weinberger et al. 2009), as rows of length one: inner
    products are, up to noise, the cosine similarity of the sequences' sets of 8-mers. An 8-mer with N is left out.
    """
    asvs, length = tokens.shape
    if length < K:
        return sparse.csr_matrix((asvs, BUCKETS))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, K, axis=1)
    codes = ((windows.astype(np.int64) - 1) * 4 ** np.arange(K)).sum(axis=2)
    whole = ((windows != PAD) & (windows != N)).all(axis=2)
    row = np.broadcast_to(np.arange(asvs)[:, None], codes.shape)[whole]
    # A sequence may repeat an 8-mer, which is present once.
    pairs = np.unique(row * 4**K + codes[whole])
    row, code = np.divmod(pairs, 4**K)
    hashed = splitmix64(torch.from_numpy(code + 1)).numpy()
    sign = np.where(hashed & BUCKETS, 1.0, -1.0)
    number = np.maximum(np.bincount(row, minlength=asvs), 1)
    values = sign / np.sqrt(number[row])
    return sparse.csr_matrix((values, (row, hashed & (BUCKETS - 1))), shape=(asvs, BUCKETS))


def sketch_of(study: Study, columns: Rows, at_once: int = 4096) -> sparse.csr_matrix:
    """Return the 8-mer sketch of some ASVs of a study, float64 ``[U, BUCKETS]``."""
    tokens = study.tokens.numpy()
    parts = [kmer_sketch(tokens[columns[start : start + at_once]]) for start in range(0, max(len(columns), 1), at_once)]
    return sparse.vstack(parts, format="csr")


def as_bytes(sequences: Sequence[str]) -> Bytes:
    """Return sequences as ASCII letters, uint8 ``[F, L]``, shorter ones padded with 0."""
    longest = max(map(len, sequences), default=0)
    text = b"".join(sequence.encode("ascii", "replace").ljust(longest, b"\0") for sequence in sequences)
    return np.frombuffer(bytearray(text), np.uint8).reshape(len(sequences), longest)


def as_sequences(letters: Bytes) -> tuple[str, ...]:
    """Return the sequences of which `as_bytes` made `letters`."""
    return tuple(row.tobytes().rstrip(b"\0").decode("ascii") for row in letters)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What a model knows by name: the sequences of its ASVs, and how many levels each categorical covariate has."""

    sequences: tuple[str, ...]
    levels: tuple[int, ...] = ()
    numbers: int = 0

    def columns(self, sequences: Iterable[str]) -> tuple[Rows, Rows]:
        """Return which of some ASVs are known, and their places in the vocabulary."""
        place = {sequence: index for index, sequence in enumerate(self.sequences)}
        pairs = [(column, place[s]) for column, s in enumerate(sequences) if s in place]
        columns, places = np.array(pairs, np.int64).reshape(-1, 2).T
        return columns, places

    def select(self, known: tuple[Rows, Rows], draw: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return the presence ``[n, V]`` of the known ASVs, in the order of the vocabulary, in a draw ``[n, U]``.

        `known` is what `columns` returns for the ASVs of the draw.
        """
        columns, places = known
        ones = (np.ones(len(columns)), (columns, places))
        return (draw @ sparse.csr_matrix(ones, shape=(draw.shape[1], len(self.sequences)))).sign()

    def covariates(self, study: Study, rows: Rows) -> Floats:
        """Return covariates ``[n, P]``: one column for each category, then numbers; 0 where unknown or missing."""
        if not study.labels.category.shape[1] + study.labels.covariate.shape[1]:
            return np.zeros((len(rows), sum(self.levels) + self.numbers))
        categories = study.labels.category[rows]
        parts = [categories[:, [i]] == np.arange(1, levels + 1) for i, levels in enumerate(self.levels)]
        return np.concatenate([*parts, np.nan_to_num(study.labels.covariate[rows])], axis=1).astype(np.float64)


def make_vocabulary(study: Study, rows: Rows, common: Rows) -> Vocabulary:
    """Return the vocabulary of a model that learns from `rows`, with the ASVs at the columns `common`."""
    sequences = tuple(study.table.sequences[column] for column in common.tolist())
    levels = study.labels.category[rows].max(axis=0, initial=0)
    return Vocabulary(sequences, tuple(int(level) for level in levels), study.labels.covariate.shape[1])


@dataclass(frozen=True, eq=False)
class Features:
    """What members read of n samples in one draw.

    Attributes
    ----------
    all_asvs : float64 [n, F]
        Presence of every ASV of the table, or of all that occur.
    known_asvs : float64 [n, V]
        Presence of those of the vocabulary.
    sketch : float64 [F, BUCKETS]
        8-mers of these ASVs; all 0 where no member reads them.
    covariates : float64 [n, P]
    """

    all_asvs: sparse.csr_matrix
    known_asvs: sparse.csr_matrix
    sketch: sparse.csr_matrix
    covariates: Floats

    def rows(self, places: Rows) -> Features:
        """Return the features of some of the samples."""
        return Features(self.all_asvs[places], self.known_asvs[places], self.sketch, self.covariates[places])


def read_features(
    study: Study, rows: Rows, rarefactions: Sequence[sparse.csr_matrix], vocabulary: Vocabulary
) -> tuple[Features, ...]:
    """Return what members read of the samples at `rows`, whose `rarefactions` ``[n, F]`` are given."""
    return _features(study, rows, rarefactions, vocabulary, np.arange(len(study.table.sequences)))


def read_present(
    study: Study, rows: Rows, rarefactions: Sequence[sparse.csr_matrix], vocabulary: Vocabulary, sequences: bool = True
) -> tuple[Features, ...]:
    """Return what `read_features` does, of the ASVs that occur in the rarefactions only: large tables have more.

    Without `sequences` their 8-mers are not counted, which takes most of the time.
    """
    columns = np.unique(np.concatenate([np.unique(draw.indices) for draw in rarefactions])).astype(np.int64)
    compact = [
        sparse.csr_matrix(
            (draw.data, np.searchsorted(columns, draw.indices), draw.indptr), shape=(draw.shape[0], len(columns))
        )
        for draw in rarefactions
    ]
    return _features(study, rows, compact, vocabulary, columns, sequences)


def _features(
    study: Study, rows: Rows, rarefactions: Sequence[sparse.csr_matrix], vocabulary: Vocabulary, columns: Rows,
    sequences: bool = True,
) -> tuple[Features, ...]:  # fmt: skip
    sketch = sketch_of(study, columns) if sequences else sparse.csr_matrix((len(columns), BUCKETS))
    covariates = vocabulary.covariates(study, rows)
    known = vocabulary.columns([study.table.sequences[column] for column in columns])
    return tuple(Features(draw, vocabulary.select(known, draw), sketch, covariates) for draw in rarefactions)
