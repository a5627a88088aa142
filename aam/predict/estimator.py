"""Samples with raw counts, their features, and the base of the estimators that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import normalize

from aam.data.rarefaction import EVALUATION, rarefied_counts
from aam.data.study import Study
from aam.device.rng import subsample
from aam.errors import InputError, problem, shown
from aam.files.tensors import ArraySpec, check_arrays
from aam.io.tables import AmpliconTable
from aam.options import not_none
from aam.predict.out_of_fold import Fold, group_folds
from aam.typing import Array, Floats, Names, Rows

Matrix: TypeAlias = sparse.csr_matrix

# Estimators do not learn from features that fewer training samples have.
MIN_SAMPLES = 3

# Maximum number of features of trees and dense models: time grows with it, and rare features add
# little.
MAX_FEATURES = 2000

# Rarefactions that are learned from.
PASSES = 6

INNER_FOLDS = 4

# Maximum number of training samples; of more, this number is drawn at random.
MOST_TRAINING_SAMPLES = 20_000

# Samples that are predicted at a time: 300,000 fit in 4 GB.
SAMPLES_AT_ONCE = 8192


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
    study : Study, optional
        The study of the samples, for estimators that read more than counts.
    network_reads : csr [n, F], optional
        Reads of rarefied samples within the token limit, for estimators that have one.
    values, groups, studies, weights : array [n], optional
        What is learned from: numbers or codes of classes, groups, studies and weights.
    number : int
        Number of the rarefaction that the samples are.
    """

    counts: Any
    sample_ids: tuple[str, ...]
    names: tuple[str, ...]
    covariates: Floats
    study: Study | None = field(default=None, repr=False)
    network_reads: Matrix | None = None
    values: Any = None
    groups: Names | None = None
    studies: Names | None = None
    weights: Floats | None = None
    number: int = EVALUATION
    drawn: dict[tuple[int, int, int], Matrix] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, X: Any) -> Samples:
        """Samples of what scikit-learn users have: `Samples`, the result of `aam.read_table`, a
        DataFrame of samples by features, or a matrix [n, F].
        """
        if isinstance(X, Samples):
            return X
        if isinstance(X, AmpliconTable):
            counts = sparse.csr_matrix(X.counts)
            return cls(counts, X.sample_ids, X.names, np.zeros((len(X), 0)))
        if hasattr(X, "iloc"):
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
        cls,
        study: Study,
        rows: Rows,
        levels: Sequence[int] = (),
        counts: Any = None,
        network_reads: Matrix | None = None,
    ) -> Samples:
        """Samples of a study at `rows`, with `levels` of each category, and numbers.

        A category that training lacks, and a missing number, are 0 in all columns. Other `counts`
        may take the place of those of the table.
        """
        category, numbers = study.labels.category[rows], study.labels.covariate[rows]
        columns = [category[:, [at]] == np.arange(1, n + 1) for at, n in enumerate(levels)]
        covariates = np.concatenate([*columns, np.nan_to_num(numbers)], axis=1).astype(np.float64)
        ids = tuple(study.table.sample_ids[row] for row in rows.tolist())
        counts = study.table.counts[rows] if counts is None else counts
        return cls(counts, ids, study.table.names, covariates, study, network_reads)

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples and of features."""
        return len(self.sample_ids), len(self.names)

    @property
    def rows(self) -> Rows:
        """Rows of the samples in their study."""
        return not_none(self.study).rows(self.sample_ids)

    def __getitem__(self, rows: Any) -> Samples:
        """Some of the samples: a slice, a mask or positions; all features stay."""
        rows = np.atleast_1d(np.arange(len(self))[rows[0] if isinstance(rows, tuple) else rows])
        if np.array_equal(rows, np.arange(len(self))):
            return self
        ids = tuple(self.sample_ids[row] for row in rows.tolist())
        arrays = {name: x[rows] for name, x in vars(self).items() if hasattr(x, "shape")}
        drawn = {key: counts[rows] for key, counts in self.drawn.items()}
        return replace(self, sample_ids=ids, drawn=drawn, **arrays)

    def rarefied(self, depth: int, seed: int, number: int) -> Samples:
        """A numbered rarefaction of the samples to `depth` reads each, drawn once.

        It depends on the counts and the id of each sample and on nothing else in the table.
        """
        if (key := (depth, seed, number)) not in self.drawn:
            table = AmpliconTable(sparse.csr_array(self.counts), self.sample_ids, self.names)
            if (is_short := table.depths < depth).any():
                raise InputError(
                    f"{is_short.sum()} samples have fewer than {depth} reads: "
                    f"{shown(np.array(self.sample_ids)[is_short].tolist())}; "
                    "remove them, or use a smaller depth"
                )
            self.drawn[key] = rarefied_counts(table, *key).astype(np.float64)
        return replace(self, counts=self.drawn[key], drawn={}, number=number)

    def rarefactions(
        self, depth: int, seed: int, passes: int, training: bool = False
    ) -> list[Samples]:
        """Several rarefactions: those that are learned from, or others that are predicted from."""
        numbers = range(passes) if training else range(EVALUATION - 1, EVALUATION - 1 - passes, -1)
        return [self.rarefied(depth, seed, number) for number in numbers]

    def columns(self, names: Sequence[str]) -> Matrix:
        """A matrix [F, P] that selects features by name; absent ones have an empty column."""
        place = {name: column for column, name in enumerate(names)}
        columns = np.array([place.get(name, -1) for name in self.names], np.int64)
        rows = np.flatnonzero(columns >= 0)
        ones = np.ones(len(rows), np.float32)
        return sparse.csr_matrix((ones, (rows, columns[rows])), (len(self.names), len(names)))


# --- values of features -------------------------------------------------------------------------


def feature_values(kind: str, rarefied: Samples, names: Sequence[str]) -> Any:
    """Values [n, P] of named features of rarefied samples; features that they lack are absent.

    They are presence, shares of all reads, or log(reads + 1) minus its mean over the named features
    of the sample ("clr", Aitchison 1986).
    """
    counts, columns = sparse.csr_matrix(rarefied.counts), rarefied.columns(names)
    if kind == "shares":
        return sparse.csr_matrix(normalize(counts, norm="l1")) @ columns
    counts = sparse.csr_matrix(counts @ columns)
    if kind == "presence":
        ones = np.ones(counts.nnz, np.float32)
        return sparse.csr_matrix((ones, counts.indices, counts.indptr), counts.shape)
    logs = counts.log1p().toarray()
    return logs - logs.mean(axis=1, keepdims=True)


def common_names(rarefactions: Sequence[Samples], least: int = MIN_SAMPLES) -> tuple[str, ...]:
    """Names of the features of at least `least` samples, on average over rarefactions."""
    width = rarefactions[0].shape[1]
    carriers = sum(np.bincount(drawn.counts.indices, minlength=width) for drawn in rarefactions)
    common = np.flatnonzero(carriers / len(rarefactions) >= least)
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


# --- the base of estimators ---------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class CountsEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator on raw counts, which it rarefies itself.

    Its subclasses define `_fit` and `outputs`. Predictions are means over rarefactions that
    training has not drawn.

    Parameters
    ----------
    depth : int
        Reads of each rarefied sample; samples with fewer are refused.
    passes : int
        Rarefactions to learn from, and to average predictions over.
    seed : int
        Seed of all random draws.
    """

    depth: int = 1000
    passes: int = PASSES
    seed: int = 0
    classes_: Array = field(init=False)
    names_: tuple[str, ...] = field(init=False)

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for numbers."""
        return len(self.classes_) if isinstance(self, ClassifierMixin) else 0

    def fit(
        self, X: Any, y: Any, groups: Any = None, studies: Any = None, sample_weight: Any = None
    ) -> Any:
        """Learn from n samples.

        Parameters
        ----------
        X : Samples, DataFrame or matrix [n, F]
            Raw counts.
        y : array [n]
            Numbers or classes.
        groups : array [n], optional
            Samples of one group are never separated by inner folds.
        studies : array [n], optional
            The model is to hold in further studies: inner folds hold out whole studies, and
            features may be centred by study.
        sample_weight : array [n], optional
            Weights of the samples, at least 0; their sum does not matter. Samples of weight 0 are
            left out.

        Raises
        ------
        InputError
            Fewer than `MIN_SAMPLES` weights are above 0.
        """
        if isinstance(self, ClassifierMixin):
            self.classes_, values = np.unique(np.asarray(y), return_inverse=True)
        else:
            values = np.asarray(y).astype(np.float64)
        groups = None if groups is None else np.asarray(groups, str)
        studies = None if studies is None else np.asarray(studies, str)
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        labels = {"values": values, "groups": groups, "studies": studies, "weights": weights}
        samples = replace(Samples.of(X), **labels)
        if weights is not None:
            samples = samples[np.flatnonzero(weights > 0)]
            if (number := len(samples)) < MIN_SAMPLES:
                fault = f"is above 0 for {number} samples with a target and enough reads"
                raise InputError(problem("sample_weight", fault, f"at least {MIN_SAMPLES}"))
        codes = samples.values if self.n_classes else None
        self._fit(samples[subsample(len(samples), 0, MOST_TRAINING_SAMPLES, codes)])
        return self

    def _fit(self, samples: Samples) -> None:
        raise NotImplementedError

    def outputs(self, rarefied: Samples) -> Floats:
        """Numbers [n, 1] or probabilities [n, K] of samples that are rarefied already."""
        raise NotImplementedError

    def predict_draws(self, X: Any, passes: int | None = None) -> Floats:
        """Predictions of each rarefaction, [passes, n, 1] or [passes, n, K]."""
        samples, parts = Samples.of(X), []
        for start in range(0, max(len(samples), 1), SAMPLES_AT_ONCE):
            part = samples[start : start + SAMPLES_AT_ONCE]
            rarefactions = part.rarefactions(self.depth, self.seed, passes or self.passes)
            parts.append(np.stack([self.outputs(rarefaction) for rarefaction in rarefactions]))
        return np.concatenate(parts, axis=1)

    def centred_on(self, X: Any) -> Any:
        """The estimator for a new study, given its samples without labels.

        It is the estimator itself if it was not centred by study.
        """
        return self

    def arrays(self, expected: Expected) -> dict[str, ArraySpec]:
        """The arrays that are learned; the estimator reads `inputs` columns."""
        return {"names_": ArraySpec("u1", ("bytes",))}

    def state(self) -> dict[str, Array]:
        """The arrays that were learned, as `restore` takes them."""
        names = np.array(list("\n".join(self.names_).encode()), np.uint8)
        learned = {name: value for name, value in vars(self).items() if name.endswith("_")}
        arrays = {name: x for name, x in learned.items() if isinstance(x, np.ndarray)}
        arrays.pop("classes_", None)
        return {"names_": names, **arrays}

    def restore(self, learned: Mapping[str, Array], expected: Expected) -> None:
        """Take what `state` gave; `ValueError` if its parts do not belong together."""
        text = learned.get("names_", np.zeros(0, np.uint8)).tobytes().decode()
        names = tuple(text.split("\n")) if text else ()
        sizes = {"inputs": len(names) + expected.covariates}
        if expected.classes:
            sizes["outputs"] = expected.classes
            self.classes_ = np.arange(expected.classes)
        check_arrays(learned, self.arrays(expected), **sizes)
        self.__dict__.update({name: x for name, x in learned.items() if name.endswith("_")})
        self.names_ = names
        if len(set(names)) < len(names):
            raise ValueError("names_ contains a feature twice")


class Expected(NamedTuple):
    """What a saved estimator must fit: the number of columns of covariates and of classes, the
    smallest and largest value that it can predict, and whether it is centred by study.
    """

    covariates: int
    classes: int
    limits: tuple[float, float] = (0.0, 1.0)
    is_centred: bool = False


class Classifier(ClassifierMixin):  # type: ignore[misc]
    """Methods of classifiers."""

    def predict_proba(self: Any, X: Any) -> Floats:
        """Probabilities of the classes, [n, K]."""
        return np.asarray(self.predict_draws(X).mean(axis=0))

    def predict(self: Any, X: Any) -> Array:
        """The most probable class of each sample, [n]."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


class Regressor(RegressorMixin):  # type: ignore[misc]
    """Methods of regressors."""

    def predict(self: Any, X: Any) -> Floats:
        """The predicted number of each sample, [n]."""
        return np.asarray(self.predict_draws(X).mean(axis=0)[:, 0])


def training_weights(samples: Samples, classes: int) -> Floats:
    """Weights of training samples, 1 on average.

    They are those of the user. With studies, each weighs by the root of its size, and its two
    classes the same.
    """
    weights = np.ones(len(samples.values)) if samples.weights is None else samples.weights
    weights = weights * (len(weights) / weights.sum())
    if samples.studies is None:
        return np.asarray(weights)
    study = np.unique(samples.studies, return_inverse=True)[1]
    if classes == 2:
        cell = 2 * study + samples.values
        weights = weights / np.bincount(cell, weights)[cell]
    weights = weights * (np.sqrt(np.bincount(study)) / np.bincount(study, weights))[study]
    return np.asarray(weights * (len(weights) / weights.sum()))


def inner_folds(samples: Samples, classes: int, seed: int) -> list[Fold]:
    """Up to `INNER_FOLDS` folds of whole groups or whole studies.

    The list is empty if there is one group only.
    """
    names, studies = samples.sample_ids, samples.studies
    groups = list(names) if samples.groups is None else samples.groups.tolist()
    if studies is not None and len(set(studies)) > 1:
        groups = studies.tolist()
    strata = [str(value) for value in samples.values] if classes else samples.values
    return group_folds(names, INNER_FOLDS, groups, strata, seed)
