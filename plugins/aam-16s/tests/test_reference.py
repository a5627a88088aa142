"""Placement on a reference tree, against naive loops, and its packed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aam.data.tokens import K, encode, reverse_complement
from aam.errors import InputError
from aam_16s.reference import ReferenceTree, read_reference

RNG = np.random.default_rng(0)
TIPS = [
    "".join("ACGT"[base] for base in RNG.integers(0, 4, length)) for length in (40, 40, 37, 40, 33)
]


@pytest.fixture
def tree(tmp_path) -> ReferenceTree:
    path = tmp_path / "tree.nwk"
    a, b, c, d, e = TIPS
    path.write_text(f"(({a}:1,{b}:2):3,({c}:4,({d}:1,{e}:1):2):1);")
    return read_reference(path)


def words(sequence: str) -> set[str]:
    return {
        sequence[at : at + K]
        for at in range(len(sequence) - K + 1)
        if "N" not in sequence[at : at + K]
    }


def number(word: str) -> int:
    return sum("ACGT".index(letter) * 4**place for place, letter in enumerate(word))


def nearest(sequence: str) -> str | None:
    def similarity(tip: str) -> float:
        return len(words(tip) & words(sequence)) / max(len(words(tip) | words(sequence)), 1)

    best = max(TIPS, key=similarity)
    return best if similarity(best) else None


def path_lengths(tree: ReferenceTree) -> dict[str, float]:
    """The length from each tip to the root, walked node by node."""
    tips = np.flatnonzero(~np.isin(np.arange(len(tree.parent)), tree.parent))
    lengths = {}
    for tip, tokens in zip(tips.tolist(), tree.tokens, strict=True):
        node, total = tip, 0.0
        while node >= 0:
            total += float(tree.length[node])
            node = int(tree.parent[node])
        lengths["".join(".ACGT"[token] for token in tokens).rstrip(".")] = total
    return lengths


def test_asvs_stand_at_the_tip_that_shares_most_words(tree):
    asvs = [
        TIPS[3],
        TIPS[4][:30],
        TIPS[0][:20] + "N" + TIPS[0][21:],
        TIPS[1][:25] + TIPS[2][25:],
        "A" * 30,
    ]
    features = tree.features_of(encode(asvs))
    lengths, branches = path_lengths(tree), len(tree.parent)
    for sequence, row in zip(asvs, features, strict=True):
        tip = nearest(sequence)
        above = [feature for feature in row.tolist() if feature < branches]
        assert tree.length[above].sum() == pytest.approx(0 if tip is None else lengths[tip])
        of_words = {
            feature - branches for feature in row.tolist() if branches <= feature < tree.features
        }
        assert of_words == {number(word) for word in words(sequence)}
    assert nearest("A" * 30) is None


def test_many_asvs_are_placed_as_each_alone(tree, monkeypatch):
    tokens = encode([tip[:33] for tip in TIPS])
    monkeypatch.setattr("aam_16s.reference.ASVS_AT_ONCE", 2)
    together = tree.features_of(tokens)
    for row, one in zip(together, tokens, strict=True):
        np.testing.assert_array_equal(row, tree.features_of(one[None])[0])


def test_tips_must_be_sequences(tmp_path):
    path = tmp_path / "named.nwk"
    path.write_text("((first:1,second:2):3,third:4);")
    with pytest.raises(InputError, match=r"named\.nwk, a tip: .*expected nucleotides"):
        read_reference(path)
    path.write_text("((ACGTACGTAN:1,ACGTTTTTT:2):3,ACCCCCCCC:4);")
    with pytest.raises(InputError, match="another letter than A, C, G and T"):
        read_reference(path)


def test_soft_placement_is_as_sure_as_the_8_mers_are_unlike(tree):
    half = TIPS[0][:20] + TIPS[1][20:]
    random = "".join("ACGT"[base] for base in np.random.default_rng(5).integers(0, 4, 40))
    found = tree.place_softly(encode([TIPS[3], half, random]))
    for row, sequence in enumerate([TIPS[3], half]):
        share = {tip: len(words(tip) & words(sequence)) / len(words(sequence)) for tip in TIPS}
        weight = {tip: np.exp(50 * (value - max(share.values()))) for tip, value in share.items()}
        weight = {tip: value if value >= 1e-3 else 0 for tip, value in weight.items()}
        lengths = path_lengths(tree)
        expected = sum(weight[tip] * lengths[tip] for tip in TIPS) / sum(weight.values())
        np.testing.assert_allclose((found.probability @ tree.length)[row], expected, rtol=1e-5)
        assert found.similarity[row] == pytest.approx(max(share.values()))
    np.testing.assert_allclose(found.probability[:2, -1].toarray(), 1, rtol=1e-6)
    np.testing.assert_array_equal(found.is_16s, [True, True, False])
    assert found.probability[2].nnz == 0
    np.testing.assert_allclose(
        found.own_length, [0, 0.15 * (1 - found.similarity[1]), 0], rtol=1e-5
    )


def test_the_other_strand_is_placed_as_its_reverse_complement(tree):
    tokens = encode([TIPS[0], TIPS[2]])
    turned = tree.place_softly(reverse_complement(tokens))
    assert turned.turned.all()
    assert not tree.place_softly(tokens).turned.any()
    np.testing.assert_allclose(
        turned.probability.toarray(), tree.place_softly(tokens).probability.toarray()
    )


def test_one_8_mer_of_four_is_a_branch_above_the_asvs_that_hold_it_as_they_were_read(tree):
    random = "".join("ACGT"[base] for base in np.random.default_rng(5).integers(0, 4, 40))
    found = tree.place_softly(
        np.concatenate([reverse_complement(encode([TIPS[0]])), encode([TIPS[1], random])])
    )
    columns, length = found.with_words
    branches = len(tree.parent)
    np.testing.assert_array_equal(columns[:, :branches].toarray(), found.probability.toarray())
    held = columns[:, branches:].toarray()
    assert set(np.unique(held)) == {0, 1}
    assert not held[2].any()
    every = [len(words(tip)) for tip in TIPS[:2]]
    assert 0 < held[0].sum() < every[0]
    assert 0 < held[1].sum() < every[1]
    # All together a quarter of all 8-mers, each four times as long.
    assert held.shape[1] == 4**8 // 4
    np.testing.assert_allclose(length[branches:], 0.004)


def test_two_bits_a_base_bring_the_tree_back(tree, monkeypatch):
    monkeypatch.setattr("aam_16s.reference.TIPS_OF_PART", 2)
    arrays = tree.to_arrays()
    shapes = [array.shape for name, array in arrays.items() if name.startswith("bases")]
    assert shapes == [(2, 10), (2, 10), (1, 10)]
    again = ReferenceTree.from_arrays(arrays)
    for name in ("parent", "length", "tokens", "lineages"):
        np.testing.assert_array_equal(getattr(again, name), getattr(tree, name))


def test_a_taxonomy_of_other_tips_is_refused(tree):
    named = replace(tree, lineages=("k__A", "k__B"), taxon=np.array([0, 1, 1, 0, 0], np.int32))
    arrays = named.to_arrays()
    assert ReferenceTree.from_arrays(arrays).lineages == named.lineages
    for taxon in (named.taxon[1:], named.taxon + 1, named.taxon - 1):
        with pytest.raises(ValueError, match="taxonomy of the reference is not one of its tips"):
            ReferenceTree.from_arrays({**arrays, "taxon": taxon})
