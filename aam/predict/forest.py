"""Forests: trees grown by scikit-learn, kept as arrays and evaluated without it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.device.platform import in_threads
from aam.predict.features import Inputs, Matrix
from aam.predict.learner import Floats, Folds, Learner, Truth, check_shape, error_of, subsample

# Share of the ASVs that a split of a tree of numbers looks at: a third (Geurts et al. 2006) errs
# more and takes longer.
NUMBER_FEATURES = 0.1

# Rarefactions that inner folds learn from, and at most so many trees of each.
INNER_RAREFACTIONS = 2
INNER_TREES = 25

# Trees look at so many ASVs: time grows with them, and those of few samples tell little.
MAX_FEATURES = 2000

# Of which each rarefaction's trees are grown.
MAX_SAMPLES = 20_000

SAMPLES_AT_ONCE = 1024
LEVELS_AT_ONCE = 3

# Trees grow twice as fast on dense features: numbers that take 400 MB.
MAX_DENSE = 10**8

# And of the samples that are predicted at once.
MAX_DENSE_PART = 10**7

Ints = npt.NDArray[np.int32]


class Trees(NamedTuple):
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


# A feature above the threshold leads to the child after this one; a leaf is its own, below a
# threshold of infinity.
NODE = np.dtype([("column", np.int32), ("child", np.int32), ("threshold", np.float64)])


@dataclass(frozen=True, eq=False)
class Walk:
    """Trees laid out so that each step of a walk reads one piece of memory; made once for all
    samples.

    Attributes
    ----------
    features : int [P]
        Those that any tree compares, ascending; a walk reads these alone, so that no wide table
        becomes dense.
    roots : int
        The first so many nodes are roots.
    nodes : NODE [nodes]
        The two children of a node side by side.
    value : float64 [nodes, W]
    """

    features: npt.NDArray[np.intp]
    roots: int
    nodes: npt.NDArray[np.void]
    value: Floats

    @classmethod
    def of(cls, trees: Trees) -> Walk:
        """Return the walk of some trees."""
        number, roots = len(trees.left), len(trees.root)
        used = np.zeros(int(trees.feature.max(initial=0)) + 1, bool)
        used[trees.feature] = True
        inner = np.flatnonzero(trees.left != np.arange(number))
        child = np.arange(roots, number, 2)
        place = np.empty(number, np.intp)
        place[trees.root] = np.arange(roots)
        place[trees.left[inner]], place[trees.right[inner]] = child, child + 1
        nodes, value = np.empty(number, NODE), np.empty_like(trees.value)
        nodes["column"][place] = (np.cumsum(used) - 1)[trees.feature]
        nodes["child"], nodes["threshold"] = np.arange(number), np.inf
        nodes["child"][place[inner]], nodes["threshold"][place[inner]] = (
            child,
            trees.threshold[inner],
        )
        value[place] = trees.value
        return cls(np.flatnonzero(used), roots, nodes, value)

    def leaves(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
        """Return the leaf ``[n, T]`` of each tree that each sample ``[n, P]`` falls into."""
        # Tree by tree, so that neighbours read the same memory.
        n, by_feature = len(features), np.ascontiguousarray(_as_bytes_if_whole(features).T).ravel()
        leaf, sample = (
            np.repeat(np.arange(self.roots), n),
            np.tile(np.arange(n, dtype=np.int32), self.roots),
        )
        walks, node = np.arange(len(leaf)), self.nodes.take(leaf)
        while len(walks):
            # Only after some levels it is looked up who is there.
            for _ in range(LEVELS_AT_ONCE):
                at = node["child"] + (
                    by_feature.take(node["column"] * n + sample) > node["threshold"]
                )
                node = self.nodes.take(at)
            leaf[walks] = at
            goes_on = np.flatnonzero(node["child"] != at)
            walks, sample, node = walks.take(goes_on), sample.take(goes_on), node.take(goes_on)
        return leaf.reshape(-1, n).T


def _as_bytes_if_whole(features: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Return features that are all whole numbers up to 255, such as presence, as uint8, a quarter
    of the memory.
    """
    with np.errstate(invalid="ignore"):
        whole = features.astype(np.uint8)
    return whole if np.array_equal(whole, features) else features


def telling_columns(blocks: Sequence[Floats | sparse.csr_matrix]) -> npt.NDArray[np.intp]:
    """Return which features trees look at, ascending: of sparse ones those that divide the samples
    most evenly.
    """
    chosen, start = [], 0
    for block in blocks:
        columns = np.arange(block.shape[1])
        if isinstance(block, sparse.csr_matrix) and len(columns) > MAX_FEATURES:
            present = np.bincount(block.indices, minlength=len(columns))
            rarer = np.minimum(present, block.shape[0] - present)
            columns = np.sort(np.argsort(-rarer, kind="stable")[:MAX_FEATURES])
        chosen.append(start + columns)
        start += block.shape[1]
    return np.concatenate(chosen)


def as_arrays(estimators: Sequence[Any], classes: Sequence[int], width: int) -> Trees:
    """Return fitted scikit-learn trees as arrays; `classes` are those they know of the `width`
    classes, if any.
    """
    roots = np.cumsum([0, *(estimator.tree_.node_count for estimator in estimators)])[:-1]
    parts = []
    for estimator, root in zip(estimators, roots, strict=True):
        tree = estimator.tree_
        leaf, nodes, value = tree.children_left < 0, np.arange(tree.node_count), tree.value[:, 0, :]
        if classes:
            # As scikit-learn does, whose older versions keep sums instead of shares.
            totals = value.sum(axis=1, keepdims=True)
            shares = np.zeros((len(value), width))
            shares[:, list(classes)] = value / np.where(totals == 0, 1.0, totals)
            value = shares
        left, right = (
            np.where(leaf, nodes, one) + root for one in (tree.children_left, tree.children_right)
        )
        parts.append((left, right, np.maximum(tree.feature, 0), tree.threshold, value))
    left, right, feature, threshold, value = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    root, left, right, feature = (one.astype(np.int32) for one in (roots, left, right, feature))
    return Trees(root, left, right, feature, threshold.astype(np.float64), value.astype(np.float64))


def joined(parts: list[Trees]) -> Trees:
    """Return trees one after the other. The list is emptied, field by field: large trees are not
    held twice.
    """
    starts = np.cumsum([0, *(len(one.left) for one in parts)]).astype(np.int32)
    fields, whole = [list(values) for values in zip(*parts, strict=True)], list[Any]()
    parts.clear()
    while fields:
        values = fields.pop(0)
        # The first three fields are places of nodes.
        if len(whole) < 3:
            values = [one + start for one, start in zip(values, starts, strict=False)]
        whole.append(np.concatenate(values))
    return Trees(*whole)


def stacked(blocks: Sequence[Matrix], columns: npt.NDArray[np.intp] | None = None) -> Any:
    """Return features of the same samples side by side, or some of them, float32 ``[n, P]``; dense
    where small.
    """
    joined = sparse.hstack(blocks, format="csr", dtype=np.float32)
    joined = joined if columns is None or len(columns) == joined.shape[1] else joined[:, columns]
    if joined.shape[0] * joined.shape[1] <= MAX_DENSE:
        return np.asarray(joined.toarray())
    # scikit-learn's trees read 32-bit indices only.
    joined.indices, joined.indptr = joined.indices.astype(np.int32), joined.indptr.astype(np.int32)
    return joined


@dataclass(eq=False)
class Forest(Learner):
    """Extra trees or a random forest on features, grown on each rarefaction of the training
    samples.

    Attributes
    ----------
    reads : tuple of str
        Features, side by side.
    kind : "extra" or "random"
        Extremely randomized trees (Geurts et al. 2006), or those of a random forest (Breiman 2001).
    n_estimators : int
        Trees of each rarefaction.
    max_features : tuple
        Candidates for how many features a split looks at; inner folds choose. Empty: a tenth of
        them for numbers, the square root for classes.
    min_samples_leaf : int
    median : bool
        Numbers are the median over trees, which has a smaller absolute error than the mean: a leaf
        is nearly one training sample, so that it is the median of the predicted distribution
        (Meinshausen 2006).
    balanced : bool
        Two classes weigh as much as each other.
    out_of_fold : bool
        Learn `out_of_fold_` too.
    n_jobs : int
        Threads that grow trees, which change no bit of them; 0: those of torch (``--threads``).
    """

    reads: tuple[str, ...] = ("presence", "covariates")
    kind: Literal["extra", "random"] = "extra"
    n_estimators: int = 50
    max_features: tuple[float | str, ...] = ()
    min_samples_leaf: int = 1
    median: bool = True
    balanced: bool = True
    out_of_fold: bool = True
    n_jobs: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that are read."""
        return self.reads

    def grow(
        self, values: Any, truth: Truth, max_features: float | str, trees: int, seed: int
    ) -> Any:
        """Return scikit-learn's forest, grown on what `stacked` gives of samples ``[n, P]``."""
        # Predictions need no scikit-learn, whose import takes a second.
        from sklearn import ensemble

        name = "ExtraTrees" if self.kind == "extra" else "RandomForest"
        forest = getattr(ensemble, name + ("Classifier" if self.n_classes else "Regressor"))(
            trees,
            max_features=max_features,
            min_samples_leaf=self.min_samples_leaf,
            random_state=seed,
            n_jobs=self.n_jobs or torch.get_num_threads(),
        )
        target = truth.values.astype(np.int64) if self.n_classes else truth.values
        weights = truth.weights if self.balanced else truth.sample_weights
        # With weights, even equal ones, scikit-learn draws bootstrap samples in another way.
        # Threads of scikit-learn 1.9 empty each other's filters of warnings.
        with warnings.catch_warnings(record=True):
            return forest.fit(values, target, weights if np.ptp(weights) else None)

    def _grow_all(self, X: Inputs, truth: Truth, max_features: float | str, trees: int) -> Trees:
        """Return the trees of all rarefactions."""
        parts = list[Trees]()
        for number in range(X.rarefactions):
            places = subsample(len(truth.values), number, MAX_SAMPLES)
            blocks = self._blocks(X[places], number)
            columns, seed = telling_columns(blocks), self.random_state + number
            forest = self.grow(
                stacked(blocks, columns), truth.rows(places), max_features, trees, seed
            )
            classes = [int(label) for label in forest.classes_] if self.n_classes else []
            grown = as_arrays(forest.estimators_, classes, self.n_classes)
            parts.append(grown._replace(feature=columns[grown.feature].astype(np.int32)))
        return joined(parts)

    def _blocks(self, X: Inputs, number: int) -> list[Matrix]:
        return [X.read(name, number) for name in self.reads]

    def _fit(self, X: Inputs, truth: Truth, folds: Folds) -> None:
        candidates = self.max_features or ("sqrt" if self.n_classes else NUMBER_FEATURES,)
        chosen = candidates[0]
        if folds and (len(candidates) > 1 or self.out_of_fold):
            inner = X.rarefaction(
                *range(min(1 if len(candidates) > 1 else INNER_RAREFACTIONS, X.rarefactions))
            )
            held_out = np.empty((len(candidates), *self.out_of_fold_.shape))
            for learn, predict in folds:
                for candidate, predicted in zip(candidates, held_out, strict=True):
                    trees = self._grow_all(
                        inner[learn],
                        truth.rows(learn),
                        candidate,
                        min(self.n_estimators, INNER_TREES),
                    )
                    predicted[predict] = self._combined(Walk.of(trees), inner[predict])
            best = int(np.argmin([error_of(truth, predicted) for predicted in held_out]))
            chosen, self.out_of_fold_ = candidates[best], held_out[best]
        self.trees_ = self._grow_all(X, truth, chosen, self.n_estimators)._asdict()
        vars(self).pop("walk", None)

    def outputs(self, X: Inputs) -> Floats:
        """Return the median or mean over trees of numbers ``[n, 1]``, or mean probabilities ``[n,
        n_classes]``.
        """
        return self._combined(self.walk, X)

    @cached_property
    def walk(self) -> Walk:
        """The walk down all trees."""
        return Walk.of(Trees(**self.trees_))

    def _combined(self, walk: Walk, X: Inputs) -> Floats:
        each = (stacked(self._blocks(X, number), walk.features) for number in range(X.rarefactions))
        by_rarefaction = [self._of_trees(walk, values) for values in each]
        if self.n_classes:
            return np.asarray(np.mean(by_rarefaction, axis=0))
        combine = np.median if self.median else np.mean
        return np.asarray(combine(np.concatenate(by_rarefaction, axis=1), axis=1, keepdims=True))

    def check(self, widths: Mapping[str, int]) -> None:
        """Raise `ValueError` where a node is none of the trees, has a child before it, or reads no
        feature.
        """
        trees = Trees(**self.trees_)
        nodes, columns = np.arange(len(trees.left)), sum(widths[name] for name in self.reads)
        for name in ("left", "right", "feature", "threshold"):
            check_shape(f"{name} of trees", getattr(trees, name), len(nodes))
        check_shape("value of trees", trees.value, len(nodes), self.n_classes or 1)
        check_shape("root of trees", trees.root, trees.root.size)
        if any(one.dtype.kind != "i" for one in trees[:4]):
            raise ValueError("nodes of trees are no integers")
        inner = (trees.left != nodes) | (trees.right != nodes)
        # A child after its one parent: no path through a tree goes on for ever.
        after = all(
            ((one > nodes) | ~inner).all() and (one < len(nodes)).all()
            for one in (trees.left, trees.right)
        )
        if (
            not after
            or not trees.root.size
            or trees.root.min() < 0
            or trees.root.max() >= len(nodes)
        ):
            raise ValueError("a node of a tree is out of range")
        reached = np.concatenate([trees.root, trees.left[inner], trees.right[inner]])
        if len(reached) != len(nodes) or not np.bincount(reached, minlength=len(nodes)).all():
            raise ValueError("a node of the trees has two parents, or none")
        if (trees.feature < 0).any() or (trees.feature[inner] >= columns).any():
            raise ValueError(f"a tree reads a feature that is none of {columns}")

    def _of_trees(self, walk: Walk, values: Any) -> Floats:
        """Return what each tree says in one rarefaction, ``[n, T]``, or mean probabilities ``[n,
        n_classes]``.
        """
        at_once = min(SAMPLES_AT_ONCE, max(MAX_DENSE_PART // max(values.shape[1], 1), 1))

        def part(start: int) -> Floats:
            some = values[start : start + at_once]
            leaf_values = walk.value[walk.leaves(some.toarray() if sparse.issparse(some) else some)]
            return np.asarray(leaf_values.mean(axis=1) if self.n_classes else leaf_values[:, :, 0])

        nothing = np.zeros((0, self.n_classes or walk.roots))
        return np.concatenate([nothing, *in_threads(part, range(0, values.shape[0], at_once))])
