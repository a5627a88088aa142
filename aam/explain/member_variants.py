"""What kernels and forests say of variants of samples: in closed form, and along the paths in the trees."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.explain.variants import Floats, Ints, Variants
from aam.predict.forest import ForestMember, forest_features
from aam.predict.kernel import KernelMember
from aam.predict.presence import Features

SAMPLES_AT_ONCE = 64

VARIANTS_AT_ONCE = 1 << 15


def asv_weights(member: KernelMember, features: Features, place: Ints) -> Floats:
    """Return what the presence of each ASV adds to the indicators of a kernel member, ``[F, C]``.

    `place` int64 [F] is the place of each ASV in the vocabulary, -1 where it is unknown.
    """
    weights = np.asarray(features.sketch @ member.kmers)
    columns = np.flatnonzero(place >= 0)
    weights[columns] += member.asvs[place[columns]]
    return weights


def kernel_variants(member: KernelMember, features: Features, place: Ints, variants: Variants) -> Floats:
    """Return the predictions ``[M, W]`` of a kernel member for variants, exactly: its indicators are linear.

    Parameters
    ----------
    member : KernelMember
    features : Features
        Of the n samples.
    place : int64 [F]
        Place of each ASV of the table in the vocabulary, -1 where it is unknown.
    variants : Variants
        Those that change the presence of an ASV.
    """
    weights, raw = asv_weights(member, features, place), member.raw(features)
    sign = np.where(variants.after > 0, 1.0, -1.0)
    parts = []
    for start in range(0, len(sign), VARIANTS_AT_ONCE):
        some = slice(start, start + VARIANTS_AT_ONCE)
        changed = raw[variants.sample[some]] + sign[some, None] * weights[variants.column[some]]
        parts.append(member.finish([changed]))
    return np.concatenate([member.finish([raw[:0]]), *parts]) if parts else member.finish([raw])[:0]


class _Walk:
    """The way of samples down all trees, and where it leads when one ASV is present instead of absent, or vice versa.

    A tree compares an ASV at most once on a way, because below that node all its training samples agree on it.
    """

    def __init__(self, member: ForestMember, values: npt.NDArray[np.float32], lookup: Ints) -> None:
        """Walk samples ``[n, P]``; `lookup` ``[n, P]`` is the variant that flips a feature, -1 without one."""
        trees, number = member.trees, len(member.trees.root)
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

    def other_leaves(self, member: ForestMember, values: npt.NDArray[np.float32], sample_of: Ints) -> Ints:
        """Return the leaf of each pair of variant and tree that a flip changes; `sample_of` ``[m]`` is of variants."""
        trees, node, sample = member.trees, self.start.copy(), sample_of[self.variant]
        active = np.flatnonzero(trees.left[node] != node)
        while len(active):
            at = node[active]
            goes_left = values[sample[active], trees.feature[at]] <= trees.threshold[at]
            node[active] = np.where(goes_left, trees.left[at], trees.right[at])
            active = active[trees.left[node[active]] != node[active]]
        return node


def forest_variants(member: ForestMember, features: Features, place: Ints, variants: Variants) -> Floats:
    """Return the predictions ``[M, W]`` of a forest for variants, exactly; parameters as `kernel_variants`.

    Only the trees that ask for the ASV on the way of the sample change, and they are followed from there on.
    """
    values, width = forest_features(features), member.classes or 1
    predictions = np.zeros((len(variants.sample), width))
    for start in range(0, values.shape[0], SAMPLES_AT_ONCE):
        part = values[start : start + SAMPLES_AT_ONCE]
        dense = part.toarray() if sparse.issparse(part) else part
        low, high = np.searchsorted(variants.sample, [start, start + SAMPLES_AT_ONCE])
        sample, column = variants.sample[low:high] - start, variants.column[low:high]
        lookup = np.full(dense.shape, -1, np.int64)
        in_vocabulary = np.flatnonzero(place[column] >= 0)
        lookup[sample[in_vocabulary], place[column[in_vocabulary]]] = in_vocabulary
        walk = _Walk(member, dense, lookup)
        leaf = walk.other_leaves(member, dense, sample)
        value = member.trees.value
        if member.classes:
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
