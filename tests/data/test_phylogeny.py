from __future__ import annotations

import io

import numpy as np
import pytest
from skbio import TreeNode

from aam.data.artifact import write_artifact
from aam.data.newick import parse_newick, read_tree
from aam.data.phylogeny import Phylogeny, match_tips, midpoint_root, prune
from aam.errors import InputError


def random_newick(rng: np.random.Generator, tips: int, single: float = 0.1) -> str:
    """A tree with polytomies and chains of single children, as Newick text without the final ';'."""
    parts = [f"t{index}:{rng.integers(0, 9) / 4}" for index in range(tips)]
    while len(parts) > 1 or rng.random() < single:
        size = 1 if rng.random() < single else min(len(parts), int(rng.integers(2, 5)))
        start = int(rng.integers(0, len(parts) - size + 1))
        joined = f"({','.join(parts[start : start + size])}){rng.integers(100)}:{rng.integers(0, 9) / 4}"
        parts[start : start + size] = [joined]
    return parts[0]


def skbio_tree(text: str) -> TreeNode:
    return TreeNode.read(io.StringIO(text), format="newick", convert_underscores=False)


def assert_same(tree: Phylogeny, expected: TreeNode) -> None:
    nodes = list(expected.postorder())
    index = {id(node): place for place, node in enumerate(nodes)}
    tips = [node.name for node in nodes if node.is_tip()]
    assert list(tree.tips) == tips
    assert tree.parent.tolist() == [index.get(id(node.parent), -1) for node in nodes]
    np.testing.assert_array_equal(tree.length[:-1], [np.nan if n.length is None else n.length for n in nodes[:-1]])
    assert tree.length[-1] == (nodes[-1].length or 0.0)
    for node, lo, hi in zip(nodes, tree.lo, tree.hi, strict=True):
        assert tips[lo:hi] == [tip.name for tip in node.tips(include_self=True)]


def depths(tree: Phylogeny) -> dict[str, float]:
    """Distance of each tip from the root, by walking up from each."""
    tip_nodes = [node for node in range(len(tree.parent)) if node not in set(tree.parent.tolist())]
    result = {}
    for name, tip in zip(tree.tips, tip_nodes, strict=True):
        total, node = 0.0, tip
        while tree.parent[node] >= 0:
            total += tree.length[node]
            node = tree.parent[node]
        result[name] = total
    return result


def pair_depths(tree: Phylogeny) -> np.ndarray:
    """Length shared by the ways from the root to two tips, [T, T] in the order of the names."""
    order = np.argsort(tree.tips)
    below = (tree.lo[:, None] <= order) & (order < tree.hi[:, None])
    below = below[:-1].astype(float)
    return (below * tree.length[:-1, None]).T @ below


# --- parsing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_equal_scikit_bio(seed):
    text = random_newick(np.random.default_rng(seed), 2 + 3 * seed) + ";"
    assert_same(parse_newick(text), skbio_tree(text))


def test_labels_comments_and_blanks():
    text = (
        "\ufeff [&R] ( ( 'it''s (a, b);:[x]' :1e-3 ,\r\n\tACG_T_[c[nested]'s]:.5,é:2.)'in ner':+1E2"
        "[end\n]\r\n,d:0)root:3 ;\r\n\n"
    )
    tree = parse_newick(text)
    assert tree.tips == ("it's (a, b);:[x]", "ACG_T_", "é", "d")
    assert tree.length.tolist() == [1e-3, 0.5, 2.0, 100.0, 0.0, 3.0]
    assert tree.parent.tolist() == [3, 3, 3, 5, 5, -1]


def test_missing_lengths_are_nan_but_for_the_root():
    tree = parse_newick("((a,b:1):2,c:1);")
    np.testing.assert_array_equal(tree.length, [np.nan, 1, 2, 1, 0])


def test_one_tip_is_a_tree():
    tree = parse_newick("a:2;")
    assert (tree.tips, tree.parent.tolist(), tree.length.tolist()) == (("a",), [-1], [2.0])
    assert midpoint_root(tree) is tree


def test_a_hundred_thousand_levels():
    levels = 100_000
    tree = parse_newick("(" * levels + "a:1" + "".join(f",b{i}:1):1" for i in range(levels)) + ";")
    assert len(tree.tips) == levels + 1
    assert tree.parent[:4].tolist() == [2, 2, 4, 4]
    assert tree.lo[tree.parent >= levels].max() <= levels
    assert len(prune(tree, np.array([0, levels])).parent) == 3
    rooted = midpoint_root(tree)
    assert set(rooted.tips) == set(tree.tips)
    assert abs(rooted.length[:-1].sum() - tree.length[:-1].sum()) < 1e-6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no ';'"),
        ("(a:1,b:1)", "no ';' at the end"),
        ("(a:1,b:1);x", "text after ';' at character 11"),
        ("(a:1,b:1);(c:1,d:1);", "text after ';' at character 11"),
        ("((a:1,b:1);", "a '(' without its ')', before character 1"),
        ("(a:1,b:1));", "a ')' without its '(', before character 10"),
        ("a:1,b:1;", "',' outside all parentheses, before character 4"),
        ("(a:1,:1);", "a tip without a name, before character 6"),
        ("(a:1,);", "a tip without a name, before character 6"),
        ("();", "a tip without a name, before character 2"),
        (";", "a tip without a name, before character 1"),
        ("('':1,a:1);", "a label that is empty"),
        ("(a b:1,c:1);", "holds a blank, quote or ']'; put it in quotes, before character 5"),
        ("(a'b:1,c':1);", "put it in quotes, before character 10"),
        ("(a:1]:1,c:1);", "no finite number, before character 6"),
        ("(a(b:1,c:1):1);", "a '(' where none can be; is a ',' missing?, before character 3"),
        ("((b:1,c:1)(d:1,e:1):1);", "a '(' where none can be; is a ',' missing?, before character 11"),
        ("(a:1:2,b:1);", "a second ':'"),
        ("(a:,b:1);", "no finite number, before character 4"),
        ("(a:nan,b:1);", "no finite number, before character 7"),
        ("(a:inf,b:1);", "no finite number, before character 7"),
        ("(a:1_0,b:1);", "no finite number, before character 7"),
        ("(a:٣,b:1);", "no finite number, before character 5"),
        ("(a:1e999,b:-1);", "2 branch lengths are negative or infinite, first 1e999 before character 9"),
        ("(a:1,(b:1,a:1):1,b:2);", "2 tips are repeated ('a', 'b'), first before character 12"),
        ("(a:1,[b:1);", "the comment that begins at character 6 is never closed"),
        ("(a:1,'b:1);", "the quote at character 6 is never closed"),
    ],
)
def test_bad_trees_name_the_place(text, message):
    with pytest.raises(InputError) as caught:
        parse_newick(text, "T.nwk")
    assert any(message in problem for problem in caught.value.problems), caught.value.problems
    assert all(problem.startswith("T.nwk: ") for problem in caught.value.problems)


def test_all_problems_of_a_tree_in_one_message():
    with pytest.raises(InputError) as caught:
        parse_newick("(a:x,(b:1,):1);")
    assert len(caught.value.problems) == 2


# --- files -------------------------------------------------------------------------------------------------


def test_files_with_byte_order_mark_and_archives(tmp_path):
    plain, archive = tmp_path / "t.nwk", tmp_path / "t.qza"
    plain.write_bytes(b"\xef\xbb\xbf(a:1,\r\nb:2)\r\n;\r\n")
    write_artifact(archive, "Phylogeny[Rooted]", "NewickDirectoryFormat", {"tree.nwk": b"(a:1,b:2);\n"})
    assert read_tree(plain).tips == read_tree(archive).tips == ("a", "b")


def test_unrooted_archives_need_midpoint_rooting(tmp_path):
    path = tmp_path / "t.qza"
    write_artifact(path, "Phylogeny[Unrooted]", "NewickDirectoryFormat", {"tree.nwk": b"(a:1,b:2,c:3);"})
    with pytest.raises(InputError, match="--midpoint-root"):
        read_tree(path)
    assert depths(read_tree(path, midpoint=True)) == {"a": 1.5, "b": 2.5, "c": 2.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"(a:1,b:1,c:1);", "the root has 3 children, .*--midpoint-root"),
        (b"((a,b:1):1,c);", "2 of 4 branches have no length, .*--midpoint-root"),
        (b"(a\xff:1,b:1);", "byte 2 is no UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "t.nwk"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_tree(path)


def test_midpoint_rooting_mends_a_polytomy_but_not_missing_lengths(tmp_path):
    path = tmp_path / "t.nwk"
    path.write_text("(a:1,b:1,c:1);")
    assert len(read_tree(path, midpoint=True).tips) == 3
    path.write_text("(a,b:1,c:1);")
    with pytest.raises(InputError, match="no length"):
        read_tree(path, midpoint=True)


# --- tips --------------------------------------------------------------------------------------------------


def test_tips_are_matched_missing_ones_refused_or_dropped():
    tree = parse_newick("((a:1,b:1):1,c:1);")
    assert match_tips(tree, ("c", "a")).tolist() == [2, 0]
    assert match_tips(tree, ("c", "x", "a"), "drop").tolist() == [2, -1, 0]
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


# --- midpoint ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_midpoint_rooting_equals_scikit_bio(seed):
    rng = np.random.default_rng(seed)
    text = random_newick(rng, 3 + seed, single=0.0) + ";"
    tree, expected = parse_newick(text), skbio_tree(text).root_at_midpoint()
    rooted = midpoint_root(tree)
    wanted = {tip.name: tip.distance(expected) for tip in expected.tips()}
    found = depths(rooted)
    assert found.keys() == wanted.keys()
    for name, distance in wanted.items():
        assert abs(found[name] - distance) < 1e-12
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
        own = np.diagonal(shared)
        return own[:, None] + own - 2 * shared

    np.testing.assert_allclose(apart(rooted), apart(tree), atol=1e-12)
    deepest = sorted(depths(rooted).values())
    assert abs(deepest[-1] - apart(tree).max() / 2) < 1e-12


def test_a_trunk_above_the_first_fork_disappears():
    assert depths(midpoint_root(parse_newick("(((a:1,b:3):5):2):1;"))) == {"a": 2.0, "b": 2.0}


def test_coinciding_tips_have_no_midpoint():
    tree = parse_newick("(a:0,b:0);")
    assert midpoint_root(tree) is tree


# --- real trees --------------------------------------------------------------------------------------------


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
