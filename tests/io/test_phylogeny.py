"""Phylogenies: Newick as scikit-bio reads it, faults with their place; tips matched, pruned, rooted
at the midpoint.
"""

from __future__ import annotations

import numpy as np
import pytest
from skbio import TreeNode

from aam.errors import InputError
from aam.io.ids import md5
from aam.io.phylogeny import Phylogeny, match_tips, midpoint_root, parse_newick, prune, read_tree
from tests.archives import write_artifact
from tests.data.small_trees import depths, random_newick, skbio_tree
from tests.refusals import refusal


def assert_same(tree: Phylogeny, expected: TreeNode) -> None:
    nodes = list(expected.postorder())
    index = {id(node): place for place, node in enumerate(nodes)}
    tips = [node.name for node in nodes if node.is_tip()]
    assert list(tree.tips) == tips
    assert tree.parent.tolist() == [index.get(id(node.parent), -1) for node in nodes]
    lengths = [np.nan if node.length is None else node.length for node in nodes[:-1]]
    np.testing.assert_array_equal(tree.length, [*lengths, nodes[-1].length or 0.0])
    for node, lo, hi in zip(nodes, tree.lo, tree.hi, strict=True):
        assert tips[lo:hi] == [tip.name for tip in node.tips(include_self=True)]


@pytest.mark.parametrize("seed", range(0, 20, 2))
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


def test_one_tip_is_a_tree():
    tree = parse_newick("a:2;")
    assert (tree.tips, tree.parent.tolist(), tree.length.tolist()) == (("a",), [-1], [2.0])
    for coinciding in (tree, parse_newick("(a:0,b:0);")):
        assert midpoint_root(coinciding) is coinciding


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
        ("#NEXUS\nbegin trees;", "the format is NEXUS, expected Newick"),
        ("(a:1,b:1);(c:1,d:1);", "text after ';' at character 11"),
        ("((a:1,b:1);", "a '(' without its ')', at character 11"),
        ("(a:1,b:1));", "a ')' outside all parentheses, at character 10"),
        ("a:1,b:1;", "',' outside all parentheses, at character 4"),
        ("(a:1,:1);", "1 tips have no name, the first before character 8"),
        ("(a:1,);", "1 tips have no name, the first before character 6"),
        (";", "1 tips have no name, the first before character 1"),
        ("('':1,a:1);", "1 tips have no name, the first before character 6"),
        ("(a b:1,c:1);", "'a b:1,c:1);' at character 2 cannot be read; a label that holds a blank"),
        ("(a'b:1,c':1);", "at character 2 cannot be read"),
        ("((b:1,c:1)(d:1,e:1):1);", "a '(' where none can be; is a ',' missing?, at character 11"),
        ("(a:1:2,b:1);", "at character 2 cannot be read"),
        ("(a:,b:1);", "0 or more (set negative lengths to 0), the first '' before character 4"),
        ("(a:x,(b:1,):1);", "1 tips have no name, the first before character 11"),
        ("(a:nan,b:1);", "the first 'nan' before character 7"),
        ("(a:1_0,b:1);", "the first '1_0' before character 7"),
        ("(a:٣,b:1);", "the first '٣' before character 5"),
        ("(a:1e999,b:-1);", "2 branch lengths are not finite numbers of 0 or more (set negative "),
        ("(a:1,(b:1,a:1):1,b:2);", "2 tips are repeated ('a', 'b'); keep one of each"),
        ("(a:1,b" + " " * 100_000 + "c;", "at character 6 cannot be read"),
        ("(a:1,'" + "b" * 100_000 + ";", "at character 6 cannot be read"),
    ],
)
def test_bad_trees_name_the_place(text, message):
    problems = refusal(parse_newick, text, "T.nwk").split("\n")
    assert any(message in problem for problem in problems), problems
    assert all(problem.startswith("T.nwk: ") for problem in problems)


def test_files_with_byte_order_mark_and_archives(tmp_path):
    plain, packed = tmp_path / "t.nwk", tmp_path / "t.qza"
    plain.write_bytes(b"\xef\xbb\xbf(a:1,\r\nb:2)\r\n;\r\n")
    write_artifact(packed, "Phylogeny[Rooted]", "F", {"tree.nwk": b"(a:1,b:2);\n"})
    assert read_tree(plain).tips == read_tree(packed).tips == ("a", "b")


def test_unrooted_archives_need_midpoint_rooting(tmp_path):
    path = tmp_path / "t.qza"
    write_artifact(path, "Phylogeny[Unrooted]", "F", {"tree.nwk": b"(a:1,b:2,c:3);"})
    assert "--midpoint-root" in refusal(read_tree, path)
    assert depths(read_tree(path, midpoint=True)) == {"a": 1.5, "b": 2.5, "c": 2.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"(a:1,b:1,c:1);",
            "the root has 3 children, .*--midpoint-root of aam train, pretrain and",
        ),
        (b"((a,b:1):1,c);", "2 of 4 branches have no length; .*--midpoint-root"),
        (b"((a:1e308,b:1):1,c:1);", "1 branch lengths are not finite numbers of 0 or more"),
        (b"((a:0,b:0):0,c:0);", "all branches have length 0"),
        (b"((a:1e-320,b:0):0,c:0);", "all branches have length 0"),
        (b"(a\xff:1,b:1);", "line 1: byte 0xff at byte position 2 is not UTF-8"),
        (None, "no such file"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "t.nwk"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_tree(path)


def pair_depths(tree: Phylogeny) -> np.ndarray:
    """Length shared by the ways from the root to two tips, [T, T] in the order of the names."""
    order = np.argsort(tree.tips)
    below = (tree.lo[:, None] <= order) & (order < tree.hi[:, None])
    below = below[:-1].astype(float)
    return (below * tree.length[:-1, None]).T @ below


def apart(tree: Phylogeny) -> np.ndarray:
    """Distances between tips, [T, T] in the order of the names."""
    shared = pair_depths(tree)
    depth = np.diagonal(shared)
    return depth[:, None] + depth - 2 * shared


def test_tips_are_matched_missing_ones_refused_or_dropped():
    tree = parse_newick("((a:1,b:1):1,c:1);")
    assert match_tips(tree, ("c", "a")).tolist() == [2, 0]
    assert match_tips(tree, ("c", "x", "a"), "drop").tolist() == [2, -1, 0]
    assert (
        "like 'a'; 2 of 2 match when you ignore quotes around them and case ('\"b\"' and"
        in refusal(match_tips, tree, ("A", '"b"', "c"))
    )
    hashed = parse_newick(f"({md5('ACGT')}:1,GGGG:1);")
    assert match_tips(hashed, ("x", "y"), sequences=("GGGG", "ACGT")).tolist() == [1, 0]
    with pytest.raises(InputError, match=r"2 of 3 features .* 'x', 'y'; .*--missing-tips drop"):
        match_tips(tree, ("c", "x", "y"))
    message = refusal(match_tips, tree, ("x", "y"), "drop")
    assert "2 of 2 features of the table have no tip in the tree by id, e.g. 'x', 'y'" in message
    assert "--missing-tips" not in message


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
    np.testing.assert_allclose(
        pair_depths(pruned), pair_depths(tree)[np.ix_(kept, kept)], atol=1e-12
    )
    assert pruned.length[-1] == tree.length[-1]
    # The arrays are those that parsing would have made.
    children = np.bincount(pruned.parent[:-1], minlength=len(pruned.parent))
    assert (children[:-1] != 1).all()
    assert pruned.lo[-1] == 0
    assert pruned.hi[-1] == len(names)
    assert (pruned.parent[:-1] > np.arange(len(pruned.parent) - 1)).all()
    assert (pruned.lo[:-1] >= pruned.lo[pruned.parent[:-1]]).all()
    assert (pruned.hi[:-1] <= pruned.hi[pruned.parent[:-1]]).all()


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_midpoint_rooting_equals_scikit_bio(seed):
    rng = np.random.default_rng(seed)
    text = random_newick(rng, 3 + seed, single=0.0) + ";"
    tree, expected = parse_newick(text), skbio_tree(text).root_at_midpoint()
    rooted = midpoint_root(tree)
    np.testing.assert_allclose(apart(rooted), apart(tree), atol=1e-12)
    wanted = {tip.name: tip.distance(expected) for tip in expected.tips()}
    depth_of = depths(rooted)
    assert depth_of.keys() == wanted.keys()
    for name, distance in wanted.items():
        assert abs(depth_of[name] - distance) < 1e-12
    if rooted is not tree:
        assert (rooted.parent == len(rooted.parent) - 1).sum() == 2
        children = np.bincount(rooted.parent[:-1], minlength=len(rooted.parent))
        assert (children != 1).all()


def test_a_trunk_above_the_first_fork_disappears():
    assert depths(midpoint_root(parse_newick("(((a:1,b:3):5):2):1;"))) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize("study", ["infant-age", "ibd", "oral-age"])
def test_real_trees_equal_scikit_bio(bench_data, study):
    path = bench_data / study / "tree.nwk"
    assert_same(read_tree(path), TreeNode.read(str(path), convert_underscores=False))
