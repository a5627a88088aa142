"""What learners read of samples: features with scikit-learn's fit and transform, one class each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.data.collate import distances_of
from aam.data.rarefaction import Row, matrix_of, rarefied_rows
from aam.data.study import Study
from aam.data.tokens import kmer_counts
from aam.device.rng import splitmix64
from aam.diversity.batch import jaccard

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# An ASV of fewer training samples says nothing of others.
LEAST_SAMPLES = 3

# Two samples' kernel is kept to about sqrt(1 / BUCKETS), 1 %, of their own.
BUCKETS = 8192

ASVS_AT_ONCE = 4096

ROWS_AT_ONCE, COLUMNS_AT_ONCE = 256, 16


def kmer_sketch(tokens: Bytes) -> sparse.csr_matrix:
    """Return a sketch of the 8-mers of each sequence ``[F, L]`` of tokens, float64 ``[F,
    BUCKETS]``.

    The 8-mers present, each 1 or -1 in the bucket of its hash (Weinberger et al. 2009), as rows of
    length one: inner products are, up to noise, the cosine similarity of the sequences' sets of
    8-mers.
    """
    words = kmer_counts(tokens)
    hashed = splitmix64(torch.from_numpy(words.indices.astype(np.int64) + 1)).numpy()
    number = np.diff(words.indptr)
    values = np.where(hashed & BUCKETS, 1.0, -1.0) / np.sqrt(np.repeat(number, number))
    row = np.repeat(np.arange(len(number)), number)
    return sparse.csr_matrix((values, (row, hashed & (BUCKETS - 1))), shape=(len(tokens), BUCKETS))


@dataclass(frozen=True, eq=False)
class Product:
    """A matrix ``left @ right`` ``[n, P]`` that is multiplied without being computed: it may be
    wide and full.
    """

    left: sparse.csr_matrix
    right: sparse.csr_matrix

    def __matmul__(self, other: Floats) -> Floats:
        """Return the product with a dense matrix, some columns at a time: between the factors stand
        all ASVs.
        """
        starts = range(0, max(other.shape[1], 1), COLUMNS_AT_ONCE)
        parts = (
            self.left @ (self.right @ other[:, start : start + COLUMNS_AT_ONCE]) for start in starts
        )
        return np.concatenate(list(parts), axis=1)

    def __getitem__(self, rows: Rows) -> Product:
        """Return some rows."""
        return Product(self.left[rows], self.right)

    @property
    def T(self) -> Product:  # noqa: N802 (as of arrays)
        """The transposed matrix."""
        return Product(self.right.T, self.left.T)

    def toarray(self, kind: type[np.floating[Any]] = np.float64) -> Floats:
        """Return the matrix as numbers of a `kind`, made of some rows at a time: a full one is
        larger while sparse.
        """
        whole = np.empty((self.left.shape[0], self.right.shape[1]), kind)
        for start in range(0, len(whole), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            whole[some] = (self.left[some] @ self.right).toarray()
        return whole


def stack_rows(parts: Iterable[sparse.csr_matrix]) -> sparse.csr_matrix:
    """Return matrices below each other, at least one, holding no more than one of them beside the
    whole.
    """
    rest = iter(parts)
    whole = next(rest)
    # They grow in place, as arrays of numpy 2.5 do not: the whole is not copied.
    data, columns, widths = bytearray(whole.data), bytearray(whole.indices), [np.diff(whole.indptr)]
    for part in rest:
        data.extend(part.data.astype(whole.data.dtype, copy=False))
        columns.extend(part.indices.astype(whole.indices.dtype, copy=False))
        widths.append(np.diff(part.indptr))
    ends = np.concatenate([np.zeros(1, np.int64), *widths]).cumsum()
    stacked = (
        np.frombuffer(data, whole.data.dtype),
        np.frombuffer(columns, whole.indices.dtype),
        ends,
    )
    return sparse.csr_matrix(stacked, shape=(len(ends) - 1, whole.shape[1]))


Matrix: TypeAlias = Floats | sparse.csr_matrix | Product


@dataclass(frozen=True, eq=False)
class Samples:
    """n samples of a table, rarefied once or several times.

    Attributes
    ----------
    study : Study
    rows : int64 [n]
        Their rows in the table; a row may occur several times.
    columns : int64 [F]
        Columns of the table: the ASVs that occur.
    counts : tuple of float64 [n, F]
        Their reads in each rarefaction.
    """

    study: Study
    rows: Rows
    columns: Rows
    counts: tuple[sparse.csr_matrix, ...]

    @classmethod
    def of_reads(cls, study: Study, rows: Rows, rarefactions: Sequence[Sequence[Row]]) -> Samples:
        """Return samples whose reads (columns, reads) in each rarefaction are known."""
        whole = [matrix_of(reads, len(study.table.sequences)) for reads in rarefactions]
        columns = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(one.indices for one in whole)])
        )
        counts = []
        for one in whole:
            places, shape = np.searchsorted(columns, one.indices), (one.shape[0], len(columns))
            counts.append(
                sparse.csr_matrix((one.data.astype(np.float64), places, one.indptr), shape)
            )
        return cls(study, rows, columns, tuple(counts))

    @classmethod
    def rarefied(cls, study: Study, rows: Rows, rarefactions: Sequence[int]) -> Samples:
        """Return the samples at `rows` in numbered rarefactions of the study."""
        return cls.of_reads(
            study, rows, [rarefied_rows(study, rows, number) for number in rarefactions]
        )

    def at(self, places: Rows) -> Samples:
        """Return some of the samples."""
        return replace(
            self, rows=self.rows[places], counts=tuple(counts[places] for counts in self.counts)
        )

    @property
    def sequences(self) -> list[str]:
        """The sequences of the ASVs, [F]."""
        return [self.study.table.sequences[column] for column in self.columns.tolist()]


class Feature:
    """A feature of samples: `fit` learns from training samples, `transform` gives a matrix for each
    rarefaction.

    What is learned stands in attributes whose names end with an underscore; arrays and lists of
    numbers are saved.
    """

    # The ASVs of the last samples and what was read of them: parts and variants of these samples
    # have no others.
    last: tuple[torch.Tensor, Rows, sparse.csr_matrix] | None = None

    def of_asvs(
        self, samples: Samples, read: Callable[[Bytes], sparse.csr_matrix]
    ) -> sparse.csr_matrix:
        """Return what `read` says of the tokens ``[F, L]`` of ASVs; it reads each once, some
        thousands at a time.
        """
        tokens, columns = samples.study.tokens, samples.columns
        if (
            self.last is None
            or self.last[0] is not tokens
            or not np.isin(columns, self.last[1]).all()
        ):
            starts = range(0, max(len(columns), 1), ASVS_AT_ONCE)
            parts = (
                read(tokens.numpy()[columns[start : start + ASVS_AT_ONCE]]) for start in starts
            )
            self.last = tokens, columns, stack_rows(parts)
        _, known, values = self.last
        return values if np.array_equal(known, columns) else values[np.searchsorted(known, columns)]

    def fit(self, samples: Samples) -> Feature:
        """Learn what the feature needs to know of training samples: nothing, unless a class says
        so.
        """
        return self

    def transform(self, samples: Samples) -> tuple[Matrix, ...]:
        """Return a matrix ``[n, P]`` for each rarefaction."""
        raise NotImplementedError

    def checked_width(self) -> int:
        """Return the number P of columns; `ValueError` where what was read from a file cannot have
        been learned.
        """
        raise NotImplementedError


def as_bytes(sequences: Sequence[str]) -> Bytes:
    """Return sequences as ASCII letters, uint8 ``[F, L]``, shorter ones padded with 0."""
    longest = max(map(len, sequences), default=0)
    text = b"".join(
        sequence.encode("ascii", "replace").ljust(longest, b"\0") for sequence in sequences
    )
    return np.frombuffer(bytearray(text), np.uint8).reshape(len(sequences), longest)


def as_sequences(letters: Bytes) -> tuple[str, ...]:
    """Return the sequences of which `as_bytes` made `letters`."""
    return tuple(
        row.tobytes().rstrip(b"\0").decode("ascii") for row in np.ascontiguousarray(letters)
    )


def present(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return 1 for each entry, all above 0, float32, in the places of `counts` themselves: no copy
    of large ones.
    """
    return sparse.csr_matrix(
        (np.ones(counts.nnz, np.float32), counts.indices, counts.indptr), counts.shape
    )


class Presence(Feature):
    """0 or 1 for each ASV that `LEAST_SAMPLES` training samples had, on average over their
    rarefactions.

    Expected presence over all rarefactions would be smoother, but its small values carry the
    sequencing depth.
    """

    sequences_: Bytes

    def fit(self, samples: Samples) -> Presence:
        """Learn the sequences of common ASVs."""
        carriers = sum(np.bincount(one.indices, minlength=one.shape[1]) for one in samples.counts)
        common = np.flatnonzero(carriers / max(len(samples.counts), 1) >= LEAST_SAMPLES)
        sequences = samples.sequences
        self.sequences_ = as_bytes([sequences[column] for column in common.tolist()])
        return self

    def places(self, samples: Samples) -> Rows:
        """Return the place of each ASV among those that were learned, int64 ``[F]``; -1 where it is
        not one of them.
        """
        place = {sequence: index for index, sequence in enumerate(as_sequences(self.sequences_))}
        return np.array([place.get(sequence, -1) for sequence in samples.sequences], np.int64)

    def checked_width(self) -> int:
        """Return the number of ASVs; `ValueError` where their sequences are no ASCII letters."""
        letters = self.sequences_
        if letters.ndim != 2 or letters.dtype != np.uint8 or (letters > 127).any():
            raise ValueError("the sequences of the learners are no letters")
        return len(letters)

    def value(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return what is read of the reads ``[n, F]`` of one rarefaction."""
        return present(counts)

    def transform(self, samples: Samples) -> tuple[Matrix, ...]:
        """Return ``[n, V]`` for each rarefaction, in the order in which the ASVs were learned."""
        places = self.places(samples)
        known = np.flatnonzero(places >= 0)
        shape = (len(samples.columns), len(self.sequences_))
        select = sparse.csr_matrix(
            (np.ones(len(known), np.float32), (known, places[known])), shape=shape
        )
        return tuple(sparse.csr_matrix(self.value(counts) @ select) for counts in samples.counts)


class Shares(Presence):
    """Relative abundances of the ASVs that `Presence` knows."""

    def value(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return reads as shares of all reads of a sample."""
        total = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1)
        shares = counts.copy()
        shares.data = counts.data / np.repeat(total, np.diff(counts.indptr))
        return shares


class Kmers(Feature):
    """Presence of ASVs, known or not, smoothed over sequences: sums of their sketches of 8-mers,
    ``[n, BUCKETS]``.
    """

    def transform(self, samples: Samples) -> tuple[Matrix, ...]:
        """Return products of presence and sketches, one for each rarefaction."""
        sketch = self.of_asvs(samples, kmer_sketch)
        return tuple(Product(present(counts), sketch) for counts in samples.counts)

    def checked_width(self) -> int:
        """Return the number of buckets of a sketch."""
        return BUCKETS


class Covariates(Feature):
    """Covariates of the study: one column for each category that training had, then numbers; 0
    where unknown.
    """

    levels_: list[int]
    numbers_: int

    def fit(self, samples: Samples) -> Covariates:
        """Learn how many categories each column has."""
        labels = samples.study.labels
        self.levels_ = labels.category[samples.rows].max(axis=0, initial=0).tolist()
        self.numbers_ = labels.covariate.shape[1]
        return self

    def transform(self, samples: Samples) -> tuple[Matrix, ...]:
        """Return the same float64 ``[n, P]`` for each rarefaction."""
        labels, rows = samples.study.labels, samples.rows
        if not labels.category.shape[1] + labels.covariate.shape[1]:
            return (np.zeros((len(rows), sum(self.levels_) + self.numbers_)),) * len(samples.counts)
        categories = labels.category[rows]
        parts = [
            categories[:, [i]] == np.arange(1, levels + 1) for i, levels in enumerate(self.levels_)
        ]
        joined = np.concatenate([*parts, np.nan_to_num(labels.covariate[rows])], axis=1).astype(
            np.float64
        )
        return (joined,) * len(samples.counts)

    def checked_width(self) -> int:
        """Return the number of categories and numbers; `ValueError` where these are no counts."""
        counts: list[Any] = [*self.levels_, self.numbers_]
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            raise ValueError(f"covariates of {self.levels_} categories and {self.numbers_} numbers")
        return sum(self.levels_) + self.numbers_


def _plus_covariates(distance: Floats, samples: Samples) -> Floats:
    """Return distances ``[n, n]`` plus the sum of differences of the covariates."""
    # Few commands compare all samples, and the import takes 0.2 s.
    from scipy.spatial.distance import cdist

    covariates = np.asarray(Covariates().fit(samples).transform(samples)[0])
    return (
        distance + cdist(covariates, covariates, "cityblock") if covariates.shape[1] else distance
    )


class Unifrac(Feature):
    """UniFrac between all of the samples ``[n, n]``, in the rarefactions themselves, and
    differences of covariates.
    """

    def transform(self, samples: Samples) -> tuple[Matrix, ...]:
        """Return the distances in each rarefaction; none without a tree or a matrix."""
        distances = []
        for counts in samples.counts:
            shape = (len(samples.rows), len(samples.study.table.sequences))
            of_table = sparse.csr_matrix(
                (counts.data, samples.columns[counts.indices], counts.indptr), shape
            )
            distance = distances_of(samples.study, of_table, samples.rows)
            distances += (
                []
                if distance is None
                else [_plus_covariates(np.maximum(distance.numpy(), 0), samples)]
            )
        return tuple(distances)


class KmerJaccard(Feature):
    """Jaccard distances between the sets of 8-mers of all samples ``[n, n]``, and differences of
    covariates.
    """

    def transform(self, samples: Samples) -> tuple[Matrix, ...]:
        """Return the distances in each rarefaction."""
        words = self.of_asvs(samples, kmer_counts)
        return tuple(
            _plus_covariates(jaccard(counts, features=words), samples) for counts in samples.counts
        )


FEATURES: dict[str, type[Feature]] = {
    "presence": Presence,
    "shares": Shares,
    "kmers": Kmers,
    "covariates": Covariates,
    "unifrac": Unifrac,
    "kmer-jaccard": KmerJaccard,
}


def fit_features(names: Iterable[str], samples: Samples) -> dict[str, Feature]:
    """Return features by name, fitted to training samples."""
    return {name: FEATURES[name]().fit(samples) for name in dict.fromkeys(names)}


@dataclass(frozen=True, eq=False)
class Inputs:
    """What learners read, their `X`: features of samples by name, each computed when it is first
    asked for.

    `places` int64 [n] are those of these samples among all that features are computed for;
    `numbers` those of their rarefactions.
    """

    features: Mapping[str, Feature]
    samples: Samples
    places: Rows
    numbers: tuple[int, ...]
    computed: dict[str, tuple[Matrix, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, features: Mapping[str, Feature], samples: Samples) -> Inputs:
        """Return the inputs of all samples in all of their rarefactions."""
        return cls(
            features, samples, np.arange(len(samples.rows)), tuple(range(len(samples.counts)))
        )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.places)

    @property
    def ids(self) -> list[str]:
        """The ids of the samples."""
        return [
            self.samples.study.table.sample_ids[row]
            for row in self.samples.rows[self.places].tolist()
        ]

    @property
    def rarefactions(self) -> int:
        """The number of rarefactions."""
        return len(self.numbers)

    def __getitem__(self, places: Rows) -> Inputs:
        """Return the inputs of some of the samples."""
        return replace(self, places=self.places[places])

    def rarefaction(self, *numbers: int) -> Inputs:
        """Return the inputs in some of the rarefactions."""
        return replace(self, numbers=tuple(self.numbers[number] for number in numbers))

    def read(self, name: str, number: int = 0) -> Matrix:
        """Return a feature ``[n, P]`` in one of the rarefactions."""
        if name not in self.computed:
            self.computed[name] = self.features[name].transform(self.samples)
        return self.computed[name][self.numbers[number]][self.places]
