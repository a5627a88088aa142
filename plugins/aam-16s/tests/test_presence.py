"""What a network reads of samples on the reference tree, against naive loops."""

from __future__ import annotations

import numpy as np
import torch

from aam.data.tokens import encode
from aam.io.phylogeny import parse_newick
from aam_16s.presence import SKETCH, WORD_LENGTH, Presence, count_sketch
from aam_16s.reference import reference_of

TIPS = ["ACGTACGTACGT", "ACGTACGTATTA", "TTTTGGTTTTTT", "CCGATTACAGGA"]
A, B, C, D = TIPS
TREE = reference_of(parse_newick(f"(({A}:1,{B}:2):3,({C}:4,{D}:1):1);", "tree"), "tree")


def test_presence_counts_once_however_many_asvs_have_a_branch():
    samples = [np.array([0, 1, 3]), np.array([2]), np.array([], int)]
    numbers = TREE.sample_input(encode(TIPS))(samples)
    assert numbers.shape == (3, SKETCH)
    place, sign = count_sketch(TREE.features, SKETCH)
    for row, columns in zip(numbers, samples, strict=True):
        features = {f for column in columns for f in TREE.features_of(encode(TIPS))[column]}
        expected = torch.zeros(SKETCH)
        for feature in sorted(features - {TREE.features}):
            branch = feature < len(TREE.parent)
            length = TREE.length[feature] if branch else WORD_LENGTH
            expected[place[feature]] += sign[feature] * float(length) ** 0.5
        torch.testing.assert_close(row, expected)
    held = TREE.features_of(encode(TIPS[:2])).ravel()
    branches = set(held[held < len(TREE.parent)].tolist())
    assert TREE.length[list(branches)].sum() == 1 + 2 + 3


def test_a_sketch_keeps_products():
    place, sign = count_sketch(4**8, SKETCH)
    draw = np.random.default_rng(0)
    full = torch.from_numpy((draw.random((6, 4**8)) < 0.02).astype(np.float32))
    sketch = torch.zeros(6, SKETCH).index_add(1, place, full * sign)
    products, kept = full @ full.T, sketch @ sketch.T
    assert float((products - kept).abs().max() / products.diagonal().mean()) < 0.08


def test_numbers_of_a_sample_do_not_depend_on_the_batch():
    rng = np.random.default_rng(0)
    features = rng.integers(0, 4**8, (30, 20)).astype(np.int32)
    presence = Presence(features, rng.random(50).astype(np.float32))
    samples = [rng.permutation(30)[:size] for size in (20, 7, 1)]
    together = presence(samples)
    for row, columns in zip(together, samples, strict=True):
        assert torch.equal(row, presence([columns[::-1]])[0])
