"""Phylogenies: tips matched, pruning that changes no distance, rooting at the midpoint."""

from __future__ import annotations

import numpy as np
import pytest
from skbio import TreeNode

from aam.errors import InputError
from aam.io.newick import parse_newick, read_tree
from aam.io.phylogeny import Phylogeny, match_tips, midpoint_root, prune
from tests.data.small_trees import depths, random_newick, skbio_tree


def pair_depths(tree: Phylogeny) -> np.ndarray:
    """Length shared by the ways from the root to two tips, [T, T] in the order of the names."""
    order = np.argsort(tree.tips)
    below = (tree.lo[:, None] <= order) & (order < tree.hi[:, None])
    below = below[:-1].astype(float)
    return (below * tree.length[:-1, None]).T @ below


def test_tips_are_matched_missing_ones_refused_or_dropped():
    tree = parse_newick("((a:1,b:1):1,c:1);")
    assert match_tips(tree, ("c", "a")).tolist() == [2, 0]
    assert match_tips(tree, ("c", "x", "a"), "drop").tolist() == [2, -1, 0]
    with pytest.raises(InputError, match=r"like 'a' \(2 differ in case, quotes or blanks only\)"):
        match_tips(tree, ("A", '"b"', "c"))
    with pytest.raises(InputError, match=r"2 of 3 features .* 'x', 'y'; .*--missing-tips drop"):
        match_tips(tree, ("c", "x", "y"))
    with pytest.raises(InputError, match="2 of 2 features") as caught:
        match_tips(tree, ("x", "y"), "drop")
    assert "--missing-tips" not in str(caught.value)


@pytest.mark.parametrize("seed", range(10))
def test_pruning_keeps_every_branch_up_to_the_root(seed):
    rng = np.random.default_rng(seed)
    tree = parse_newick(random_newick(rng, 40) + ";")
    chosen = rng.permutation(40)[: 1 + 3 * seed]
    pruned = prune(tree, chosen)
    names = [tree.tips[tip] for tip in np.sort(chosen)]
    assert list(pruned.tips) == names
    assert len(pruned.parent) <= 2 * len(names) + 1
    kept = np.isin(np.sort(tree.tips), names)
    np.testing.assert_allclose(pair_depths(pruned), pair_depths(tree)[np.ix_(kept, kept)], atol=1e-12)
    assert pruned.length[-1] == tree.length[-1]
    # The arrays are those that parsing would have made.
    children = np.bincount(pruned.parent[:-1], minlength=len(pruned.parent))
    assert (children[:-1] != 1).all()
    assert pruned.lo[-1] == 0
    assert pruned.hi[-1] == len(names)
    assert (pruned.parent[:-1] > np.arange(len(pruned.parent) - 1)).all()
    assert (pruned.lo[:-1] >= pruned.lo[pruned.parent[:-1]]).all()
    assert (pruned.hi[:-1] <= pruned.hi[pruned.parent[:-1]]).all()


@pytest.mark.parametrize("seed", range(30))
def test_midpoint_rooting_equals_scikit_bio(seed):
    rng = np.random.default_rng(seed)
    text = random_newick(rng, 3 + seed, single=0.0) + ";"
    tree, expected = parse_newick(text), skbio_tree(text).root_at_midpoint()
    rooted = midpoint_root(tree)
    wanted = {tip.name: tip.distance(expected) for tip in expected.tips()}
    depth_of = depths(rooted)
    assert depth_of.keys() == wanted.keys()
    for name, distance in wanted.items():
        assert abs(depth_of[name] - distance) < 1e-12
    if rooted is not tree:
        assert (rooted.parent == len(rooted.parent) - 1).sum() == 2
        children = np.bincount(rooted.parent[:-1], minlength=len(rooted.parent))
        assert (children != 1).all()


@pytest.mark.parametrize("seed", range(10))
def test_midpoint_rooting_keeps_distances_between_tips(seed):
    rng = np.random.default_rng(100 + seed)
    tree = parse_newick(random_newick(rng, 25, single=0.3) + ";")
    rooted = midpoint_root(tree)

    def apart(one: Phylogeny) -> np.ndarray:
        shared = pair_depths(one)
        depth = np.diagonal(shared)
        return depth[:, None] + depth - 2 * shared

    np.testing.assert_allclose(apart(rooted), apart(tree), atol=1e-12)
    deepest = sorted(depths(rooted).values())
    assert abs(deepest[-1] - apart(tree).max() / 2) < 1e-12


def test_a_trunk_above_the_first_fork_disappears():
    assert depths(midpoint_root(parse_newick("(((a:1,b:3):5):2):1;"))) == {"a": 2.0, "b": 2.0}


def test_coinciding_tips_have_no_midpoint():
    tree = parse_newick("(a:0,b:0);")
    assert midpoint_root(tree) is tree


@pytest.mark.parametrize("study", ["infant-age", "ibd", "oral-age"])
def test_real_trees_equal_scikit_bio(bench_data, study):
    path = bench_data / study / "tree.nwk"
    expected = TreeNode.read(str(path), convert_underscores=False)
    nodes = list(expected.postorder())
    index = {id(node): place for place, node in enumerate(nodes)}
    tree = read_tree(path)
    assert list(tree.tips) == [node.name for node in nodes if node.is_tip()]
    assert tree.parent.tolist() == [index.get(id(node.parent), -1) for node in nodes]
    assert tree.length.tolist() == [node.length or 0.0 for node in nodes]


def test_ibd_misses_128_tips(bench_data):
    from aam.data.table import read_table

    features = read_table(bench_data / "ibd" / "table.biom", need_sequences=False).feature_ids
    tree = read_tree(bench_data / "ibd" / "tree.nwk")
    with pytest.raises(InputError, match=r"128 of 10074 features .*--missing-tips drop"):
        match_tips(tree, features)
    assert (match_tips(tree, features, "drop") < 0).sum() == 128
