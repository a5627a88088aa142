"""What kernels and forests say of variants of samples: in closed form, and along the paths in the trees."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.explain.variants import Floats, Ints, Variants
from aam.predict.features import Inputs, Presence, Product
from aam.predict.forest import Forest, Trees, stacked
from aam.predict.linear import Linear

SAMPLES_AT_ONCE = 64

VARIANTS_AT_ONCE = 1 << 15


def asv_weights(learner: Linear, X: Inputs, place: Ints) -> Floats:
    """Return what the presence of each ASV adds to the indicators of a linear model, ``[F, C]``.

    `place` int64 [F] is the place of each ASV among those that are known, -1 where it is unknown.
    """
    weights = np.zeros((len(place), len(learner.intercept_)))
    if "kmers" in learner.coef_:
        smoothed = X.read("kmers")
        assert isinstance(smoothed, Product)
        weights += smoothed.right @ learner.coef_["kmers"]
    columns = np.flatnonzero(place >= 0)
    weights[columns] += learner.coef_["presence"][place[columns]]
    return weights


def known_places(X: Inputs) -> Ints:
    """Return the place of each ASV of some samples among those that are known, -1 where it is unknown."""
    presence = X.features["presence"]
    assert isinstance(presence, Presence)
    return presence.places(X.samples)


def linear_variants(learner: Linear, X: Inputs, variants: Variants) -> Floats:
    """Return the predictions ``[M, W]`` of a linear model for variants, exactly: its indicators are linear.

    Parameters
    ----------
    learner : Linear
    X : Inputs
        Of the n samples in one rarefaction.
    variants : Variants
        Those that change the presence of an ASV, whose columns are those of the samples.
    """
    weights, indicators = asv_weights(learner, X, known_places(X)), learner.indicators(X)
    sign = np.where(variants.after > 0, 1.0, -1.0)
    parts = [learner.published(indicators[:0])]
    for start in range(0, len(sign), VARIANTS_AT_ONCE):
        some = slice(start, start + VARIANTS_AT_ONCE)
        changed = indicators[variants.sample[some]] + sign[some, None] * weights[variants.column[some]]
        parts.append(learner.published(changed))
    return np.concatenate(parts)


class _Walk:
    """The way of samples down all trees, and where it leads when one ASV is present instead of absent, or vice versa.

    A tree compares an ASV at most once on a way, because below that node all its training samples agree on it.
    """

    def __init__(self, trees: Trees, values: npt.NDArray[np.float32], lookup: Ints) -> None:
        """Walk samples ``[n, P]``; `lookup` ``[n, P]`` is the variant that flips a feature, -1 without one."""
        number = len(trees.root)
        node = np.tile(trees.root, (len(values), 1)).ravel().astype(np.int64)
        sample = np.repeat(np.arange(len(values)), number)
        tree = np.tile(np.arange(number), len(values))
        active = np.flatnonzero(trees.left[node] != node)
        variants, tree_of, start = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        while len(active):
            at = node[active]
            feature = trees.feature[at]
            goes_left = values[sample[active], feature] <= trees.threshold[at]
            flipped = lookup[sample[active], feature]
            hit = flipped >= 0
            variants.append(flipped[hit])
            tree_of.append(tree[active[hit]])
            start.append(np.where(goes_left, trees.right[at], trees.left[at])[hit])
            node[active] = np.where(goes_left, trees.left[at], trees.right[at])
            active = active[trees.left[node[active]] != node[active]]
        self.variant, self.tree = np.concatenate(variants), np.concatenate(tree_of)
        self.leaf = node.reshape(len(values), number)
        self.start = np.concatenate(start)

    def other_leaves(self, trees: Trees, values: npt.NDArray[np.float32], sample_of: Ints) -> Ints:
        """Return the leaf of each pair of variant and tree that a flip changes; `sample_of` ``[m]`` is of variants."""
        node, sample = self.start.copy(), sample_of[self.variant]
        active = np.flatnonzero(trees.left[node] != node)
        while len(active):
            at = node[active]
            goes_left = values[sample[active], trees.feature[at]] <= trees.threshold[at]
            node[active] = np.where(goes_left, trees.left[at], trees.right[at])
            active = active[trees.left[node[active]] != node[active]]
        return node


def forest_variants(learner: Forest, X: Inputs, variants: Variants) -> Floats:
    """Return the predictions ``[M, W]`` of a forest for variants, exactly; parameters as `linear_variants`.

    Only the trees that ask for the ASV on the way of the sample change, and they are followed from there on.
    """
    values, width, place = stacked([X.read(name) for name in learner.reads]), learner.n_classes or 1, known_places(X)
    trees = Trees(**learner.trees_)
    predictions = np.zeros((len(variants.sample), width))
    for start in range(0, values.shape[0], SAMPLES_AT_ONCE):
        part = values[start : start + SAMPLES_AT_ONCE]
        dense = part.toarray() if sparse.issparse(part) else part
        low, high = np.searchsorted(variants.sample, [start, start + SAMPLES_AT_ONCE])
        sample, column = variants.sample[low:high] - start, variants.column[low:high]
        lookup = np.full(dense.shape, -1, np.int64)
        in_vocabulary = np.flatnonzero(place[column] >= 0)
        lookup[sample[in_vocabulary], place[column[in_vocabulary]]] = in_vocabulary
        walk = _Walk(trees, dense, lookup)
        leaf = walk.other_leaves(trees, dense, sample)
        value = trees.value
        if learner.n_classes:
            leaf_values = value[walk.leaf]
            change = value[leaf] - leaf_values[sample[walk.variant], walk.tree]
            sums = leaf_values.sum(axis=1)[sample]
            np.add.at(sums, walk.variant, change)
            predictions[low:high] = sums / leaf_values.shape[1]
            continue
        tree_values = value[walk.leaf][:, :, 0][sample]
        tree_values[walk.variant, walk.tree] = value[leaf, 0]
        predictions[low:high, 0] = np.median(tree_values, axis=1) if len(tree_values) else 0.0
    return predictions
