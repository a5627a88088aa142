"""The forest member: extremely randomized trees on presence, kept as arrays and evaluated without scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.predict.presence import Features
from aam.predict.truth import Floats, Folds, Truth, learned_places

TREES_PER_DRAW = 50

# Share of the ASVs that a split of a tree of numbers looks at (Geurts et al. 2006).
NUMBER_FEATURES = 0.33

INNER_DRAWS = 3

# Of which each rarefaction's trees are grown.
MAX_SAMPLES = 20_000

SAMPLES_AT_ONCE = 1024

# Trees grow twice as fast on dense features: numbers that take 400 MB.
MAX_DENSE = 10**8

# And of the samples that are predicted at once.
MAX_DENSE_PART = 10**7

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Trees:
    """Binary trees, one after the other in arrays of all nodes.

    Attributes
    ----------
    root : int32 [T]
        First node of each tree.
    left, right, feature : int32 [nodes]
        Children, and the feature that is compared; a leaf is its own child.
    threshold : float64 [nodes]
        A feature of at most so much goes left.
    value : float64 [nodes, W]
        What a leaf says: a number, or probabilities.
    """

    root: Ints
    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    value: Floats

    def leaves(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
        """Return the leaf ``[n, T]`` of each tree that each sample ``[n, P]`` falls into."""
        # Tree by tree, so that neighbours read the same memory.
        n, by_feature = len(features), np.ascontiguousarray(features.T).ravel()
        start = self.feature * np.intp(n)
        children = np.stack([self.right, self.left], axis=1).astype(np.intp).ravel()
        is_inner = self.left != np.arange(len(self.left))
        node = np.repeat(self.root.astype(np.intp), n)
        active = np.flatnonzero(is_inner[node])
        at, sample = node[active], active % n
        while len(active):
            goes_left = by_feature.take(start.take(at) + sample) <= self.threshold.take(at)
            at = children.take(2 * at + goes_left)
            node[active] = at
            goes_on = np.flatnonzero(is_inner.take(at))
            active, at, sample = active.take(goes_on), at.take(goes_on), sample.take(goes_on)
        return node.reshape(-1, n).T


def _joined(estimators: Sequence[Any], classes: Sequence[int], width: int) -> Trees:
    """Return fitted scikit-learn trees as arrays; `classes` are those they know of the `width` classes, if any."""
    columns: dict[str, list[Any]] = {name: [] for name in ("left", "right", "feature", "threshold", "value")}
    sizes = [estimator.tree_.node_count for estimator in estimators]
    roots = np.cumsum([0, *sizes[:-1]])
    for estimator, root in zip(estimators, roots, strict=True):
        tree = estimator.tree_
        leaf, node_index = tree.children_left < 0, np.arange(tree.node_count)
        columns["left"].append(np.where(leaf, node_index, tree.children_left) + root)
        columns["right"].append(np.where(leaf, node_index, tree.children_right) + root)
        columns["feature"].append(np.maximum(tree.feature, 0))
        columns["threshold"].append(tree.threshold)
        value = tree.value[:, 0, :]
        if classes:
            # As scikit-learn does, whose older versions keep sums instead of shares.
            totals = value.sum(axis=1, keepdims=True)
            spread = np.zeros((len(value), width))
            spread[:, list(classes)] = value / np.where(totals == 0, 1.0, totals)
            value = spread
        columns["value"].append(value)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    left, right, feature = (joined[name].astype(np.int32) for name in ("left", "right", "feature"))
    return Trees(
        roots.astype(np.int32), left, right, feature, joined["threshold"].astype(np.float64),
        joined["value"].astype(np.float64),
    )  # fmt: skip


def grow(
    features: sparse.csr_matrix | npt.NDArray[np.float32], truth: Truth, trees: int, seed: int
) -> tuple[Any, Trees]:
    """Return a scikit-learn forest grown on samples ``[n, P]``, and the arrays that replace it."""
    # Predictions need no scikit-learn, whose import takes a second.
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    size = {"n_estimators": trees, "random_state": seed, "n_jobs": 1}
    if truth.classes:
        forest = ExtraTreesClassifier(max_features="sqrt", **size)
        forest.fit(features, truth.values.astype(np.int64), truth.weights)
        return forest, _joined(forest.estimators_, [int(label) for label in forest.classes_], truth.classes)
    forest = ExtraTreesRegressor(max_features=NUMBER_FEATURES, **size)
    forest.fit(features, truth.values, truth.weights)
    return forest, _joined(forest.estimators_, (), 1)


def forest_features(features: Features) -> Any:
    """Return what trees compare: presence of known ASVs and covariates, float32 ``[n, V + P]``; dense where small."""
    joined = sparse.hstack([features.known_asvs, features.covariates], format="csr", dtype=np.float32)
    if joined.shape[0] * joined.shape[1] <= MAX_DENSE:
        return np.asarray(joined.toarray())
    # scikit-learn's trees read 32-bit indices only.
    joined.indices, joined.indptr = joined.indices.astype(np.int32), joined.indptr.astype(np.int32)
    return joined


@dataclass(frozen=True, eq=False)
class ForestMember:
    """Trees whose median is the prediction of a number, and whose mean is that of class probabilities.

    A tree's leaf is nearly one training sample, so that the median over trees is that of the predicted distribution
    (Meinshausen 2006), which has a smaller absolute error than the mean.
    """

    trees: Trees
    classes: int

    def raw(self, features: Features) -> Floats:
        """Return what each tree says of one draw, ``[n, T]``, or their mean probabilities ``[n, classes]``."""
        values = forest_features(features)
        parts = []
        at_once = min(SAMPLES_AT_ONCE, max(MAX_DENSE_PART // max(values.shape[1], 1), 1))
        for start in range(0, values.shape[0], at_once):
            part = values[start : start + at_once]
            leaves = self.trees.leaves(part.toarray() if sparse.issparse(part) else part)
            leaf_values = self.trees.value[leaves]
            parts.append(leaf_values.mean(axis=1) if self.classes else leaf_values[:, :, 0])
        width = self.classes or len(self.trees.root)
        return np.concatenate([np.zeros((0, width)), *parts])

    def finish(self, raw_values: Sequence[Floats]) -> Floats:
        """Return numbers ``[n, 1]`` or probabilities ``[n, classes]`` from what was said of several draws."""
        if self.classes:
            return np.asarray(np.mean(raw_values, axis=0))
        return np.asarray(np.median(np.concatenate(raw_values, axis=1), axis=1, keepdims=True))


def _fit(rarefactions: Sequence[Features], truth: Truth, seed: int) -> ForestMember:
    grown = []
    for number, features in enumerate(rarefactions):
        places = learned_places(len(truth.values), number, MAX_SAMPLES)
        learned = forest_features(features.rows(places))
        grown.append(grow(learned, truth.rows(places), TREES_PER_DRAW, seed + number)[1])
    starts = np.cumsum([0, *(len(trees.left) for trees in grown[:-1])]).astype(np.int32)
    moved = [
        np.concatenate([getattr(trees, name) + start for trees, start in zip(grown, starts, strict=True)])
        for name in ("root", "left", "right")
    ]
    kept = [np.concatenate([getattr(trees, name) for trees in grown]) for name in ("feature", "threshold", "value")]
    return ForestMember(Trees(*moved, *kept), truth.classes)


def fit_forest(rarefactions: Sequence[Features], truth: Truth, folds: Folds, seed: int) -> tuple[ForestMember, Floats]:
    """Grow `TREES_PER_DRAW` trees on each draw of the training samples; parameters as `fit_kernel`.

    Returns the member, and what forests of the inner folds say of the samples they have not seen; NaN without folds.
    """
    held_out = np.full((len(truth.values), truth.classes or 1), np.nan)
    for learn, predict in folds:
        inner = rarefactions[:INNER_DRAWS]
        member = _fit([features.rows(learn) for features in inner], truth.rows(learn), seed)
        held_out[predict] = member.finish([member.raw(features.rows(predict)) for features in inner])
    return _fit(rarefactions, truth, seed), held_out
