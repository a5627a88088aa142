"""Input of estimators: samples with raw counts, their rarefactions, and features of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize

from aam.data.rarefaction import EVALUATION, rarefy
from aam.data.study import Study
from aam.device.rng import generator
from aam.errors import InputError, shown

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Matrix: TypeAlias = sparse.csr_matrix

# Estimators do not learn from features that fewer training samples have.
MIN_SAMPLES = 3

# Maximum number of features of trees and dense models: time grows with it, and rare features add
# little.
MAX_FEATURES = 2000

# Rarefactions that are learned from.
PASSES = 6


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a table, in rows that scikit-learn can divide.

    Attributes
    ----------
    counts : csr [n, F]
        Reads of each feature, columns ascending.
    sample_ids, names : tuple of str
        Names of the samples and of the features: sequences, or ids.
    covariates : float64 [n, C]
        Further columns, one for each category or number.
    """

    counts: Any
    sample_ids: tuple[str, ...]
    names: tuple[str, ...]
    covariates: Floats
    drawn: dict[tuple[int, int, int], Matrix] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, X: Any) -> Samples:
        """Samples of whatever scikit-learn users have: `Samples`, a table with `counts`,
        `sample_ids` and `feature_ids`, a DataFrame of samples by features, or a matrix [n, F].
        """
        if isinstance(X, Samples):
            return X
        if hasattr(X, "feature_ids") and hasattr(X, "counts"):
            counts, ids, names = X.counts, X.sample_ids, getattr(X, "names", X.feature_ids)
        elif hasattr(X, "iloc"):
            counts, ids, names = X.to_numpy(), X.index, X.columns
        else:
            counts = X if sparse.issparse(X) else np.asarray(X)
            ids, names = range(counts.shape[0]), range(counts.shape[1])
        counts = sparse.csr_matrix(counts)
        counts.sort_indices()
        empty = np.zeros((counts.shape[0], 0))
        return cls(counts, tuple(map(str, ids)), tuple(map(str, names)), empty)

    @classmethod
    def of_study(
        cls, study: Study, rows: Rows, levels: Sequence[int] = (), counts: Any = None
    ) -> Samples:
        """Samples of a study at `rows`, with `levels` of each category, and numbers.

        A category that training lacks, and a missing number, are 0 in all columns. Other `counts`
        may take the place of those of the table.
        """
        labels = study.labels
        columns = [
            labels.category[rows][:, [place]] == np.arange(1, number + 1)
            for place, number in enumerate(levels)
        ]
        numbers = np.nan_to_num(labels.covariate[rows])
        covariates = np.concatenate([*columns, numbers], axis=1).astype(np.float64)
        ids = tuple(study.table.sample_ids[row] for row in rows.tolist())
        counts = study.table.counts[rows] if counts is None else counts
        return cls(counts, ids, study.table.names, covariates)

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples and of features."""
        return len(self.sample_ids), len(self.names)

    def __getitem__(self, rows: Any) -> Samples:
        """Some of the samples: a slice, a mask or positions; all features stay."""
        rows = np.atleast_1d(np.arange(len(self))[rows[0] if isinstance(rows, tuple) else rows])
        ids = tuple(self.sample_ids[row] for row in rows.tolist())
        covariates = self.covariates[rows]
        drawn = {key: counts[rows] for key, counts in self.drawn.items()}
        return replace(
            self, counts=self.counts[rows], sample_ids=ids, covariates=covariates, drawn=drawn
        )

    def rarefied(self, depth: int, seed: int, number: int) -> Samples:
        """A numbered rarefaction of the samples to `depth` reads each, drawn once.

        It depends on the counts and the id of each sample and on nothing else in the table.
        """
        if (key := (depth, seed, number)) not in self.drawn:
            counts = sparse.csr_matrix(self.counts)
            parts = np.split(counts.data, counts.indptr[1:-1])
            reads_of = zip(self.sample_ids, counts.sum(axis=1).flat, strict=True)
            if short := [name for name, reads in reads_of if reads < depth]:
                raise InputError(
                    f"{len(short)} samples have fewer than {depth} reads: {shown(short)}; "
                    "remove them, or use a smaller depth"
                )
            reads = [
                rarefy(part, depth, generator(seed, "rarefy", number, name))
                for name, part in zip(self.sample_ids, parts, strict=True)
            ]
            drawn = np.concatenate([*reads, np.zeros(0, np.int64)])
            matrix = sparse.csr_matrix((drawn, counts.indices, counts.indptr), counts.shape)
            matrix = sparse.csr_matrix(matrix.astype(np.float64))
            matrix.eliminate_zeros()
            self.drawn[key] = matrix
        return replace(self, counts=self.drawn[key], drawn={})

    def rarefactions(
        self, depth: int, seed: int, passes: int, training: bool = False
    ) -> list[Samples]:
        """Several rarefactions: those that are learned from, or others that are predicted from."""
        numbers = range(passes) if training else range(EVALUATION - 1, EVALUATION - 1 - passes, -1)
        return [self.rarefied(depth, seed, number) for number in numbers]

    def columns(self, names: Sequence[str]) -> sparse.csr_matrix:
        """A matrix [F, P] that selects features by name; absent ones have an empty column."""
        place = {name: column for column, name in enumerate(names)}
        pairs = [(row, place[name]) for row, name in enumerate(self.names) if name in place]
        rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
        values = np.ones(len(pairs), np.float32)
        return sparse.csr_matrix((values, (rows, columns)), (len(self.names), len(names)))


# --- values of features -------------------------------------------------------------------------


def present(counts: Matrix) -> Matrix:
    """1 for each entry above 0, as float32."""
    ones = np.ones(counts.nnz, np.float32)
    return sparse.csr_matrix((ones, counts.indices, counts.indptr), counts.shape)


def shares(counts: Matrix) -> Matrix:
    """Relative abundances."""
    return sparse.csr_matrix(normalize(counts, norm="l1"))


def centred_log_ratios(counts: Matrix) -> Floats:
    """log(reads + 1) minus its mean over the features of the sample (Aitchison 1986)."""
    logs = counts.log1p().toarray()
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))


# Features of counts, and whether they are computed of the features that were learned only.
VALUES: dict[str, tuple[Callable[[Matrix], Any], bool]] = {
    "presence": (present, True),
    "shares": (shares, False),
    "clr": (centred_log_ratios, True),
}


def feature_values(kind: str, rarefied: Samples, names: Sequence[str]) -> Any:
    """Values [n, P] of named features of rarefied samples; features that they lack are absent."""
    counts, columns = sparse.csr_matrix(rarefied.counts), rarefied.columns(names)
    compute, of_learned = VALUES[kind]
    return compute(sparse.csr_matrix(counts @ columns)) if of_learned else compute(counts) @ columns


def common_names(rarefactions: Sequence[Samples], least: int = MIN_SAMPLES) -> tuple[str, ...]:
    """Names of the features of at least `least` samples, on average over rarefactions."""
    carriers = sum(
        np.bincount(rarefaction.counts.indices, minlength=rarefaction.shape[1])
        for rarefaction in rarefactions
    )
    common = np.flatnonzero(carriers / max(len(rarefactions), 1) >= least)
    return tuple(rarefactions[0].names[column] for column in common.tolist())


def informative_names(
    rarefactions: Sequence[Samples], names: Sequence[str], limit: int = MAX_FEATURES
) -> tuple[str, ...]:
    """At most `limit` of the names: those of the features that divide the samples most evenly."""
    if len(names) <= limit:
        return tuple(names)
    counts = rarefactions[0].counts @ rarefactions[0].columns(names)
    carriers = np.bincount(counts.indices, minlength=len(names))
    order = np.argsort(-np.minimum(carriers, counts.shape[0] - carriers), kind="stable")
    return tuple(names[place] for place in sorted(order[:limit].tolist()))
