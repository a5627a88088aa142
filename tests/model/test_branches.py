"""Presence on a reference tree and the distance head that compares it, against naive loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aam.config import ModelConfig
from aam.data.placement import ReferenceTree, reference_of
from aam.data.tokens import count_sketch
from aam.io.phylogeny import parse_newick
from aam.model.aam import Aam
from aam.model.branches import SKETCH, WORD_LENGTH, BranchDistanceHead, BranchPresence
from aam.model.heads import HeadConfig
from aam.model.reference import fixed_batch

TIPS = ["ACGTACGTACGT", "ACGTACGTATTA", "TTTTGGTTTTTT", "CCGATTACAGGA"]
SIZES = ModelConfig(embedding_dim=16, attention_heads=2, attention_layers=1, max_bp=100)


@pytest.fixture
def reference() -> ReferenceTree:
    a, b, c, d = TIPS
    return reference_of(parse_newick(f"(({a}:1,{b}:2):3,({c}:4,{d}:1):1);", "tree"), "tree")


def features_of(reference: ReferenceTree, tokens: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(reference.place(tokens.numpy())).long()


def test_presence_is_once_however_many_asvs_have_a_branch(reference):
    features = features_of(reference, torch.from_numpy(reference.tokens))
    present = BranchPresence(6, reference)(features, torch.tensor([[0, 1, 3], [2, 0, 0]]), (3, 1))
    branches = len(reference.parent)
    lengths = present[:, :branches].square()
    torch.testing.assert_close(lengths.sum(dim=1), torch.tensor([1.0 + 2 + 3 + 1 + 1, 4.0 + 1]))
    words = [
        len({tip[at : at + 8] for tip in tips for at in range(5)})
        for tips in (TIPS[:2] + TIPS[3:], TIPS[2:3])
    ]
    torch.testing.assert_close(
        present[:, branches:].square().sum(dim=1), WORD_LENGTH * torch.tensor(words).float()
    )


def test_a_sketch_keeps_products():
    place, sign = count_sketch(4**8, SKETCH)
    draw = np.random.default_rng(0)
    full = torch.from_numpy((draw.random((6, 4**8)) < 0.02).astype(np.float32))
    sketch = torch.zeros(6, SKETCH).index_add(1, place, full * sign)
    products, kept = full @ full.T, sketch @ sketch.T
    assert float((products - kept).abs().max() / products.diagonal().mean()) < 0.08


def test_untrained_distances_are_unifrac_on_the_tree_and_words():
    torch.manual_seed(0)
    head = BranchDistanceHead(6, bounded=True)
    length = torch.rand(200)
    present = (torch.rand(7, 200) < 0.3).float()
    with torch.no_grad():
        head.project.weight.zero_()
        vectors = head.vectors(torch.randn(7, 6), present * length.sqrt())
        distances = head(vectors, vectors)
    for one in range(7):
        for other in range(one):
            shared, either = (
                length[(mask > 0)].sum()
                for mask in (present[one] * present[other], present[one] + present[other])
            )
            assert float(distances[one, other]) == pytest.approx(
                float(1 - shared / either), abs=1e-5
            )
    with pytest.raises(ValueError, match="nothing is known of the branches"):
        head.vectors(torch.randn(7, 6), None)
    with torch.no_grad():
        head.standardize(vectors, 0.6)
        assert torch.equal(head(vectors, vectors), distances)
        weighted = BranchDistanceHead(6, bounded=False)
        weighted.standardize(vectors, 1.7)
        assert float(weighted(vectors, vectors).median()) == pytest.approx(1.7, abs=1e-4)


def test_the_network_reads_them_into_samples_and_distances(reference):
    torch.manual_seed(0)
    network, batch = (
        Aam(SIZES, 1000, HeadConfig(metric="unifrac", scale=(0.6, 0.1)), reference),
        fixed_batch(),
    )
    with pytest.raises(ValueError, match="not placed"):
        network(batch)
    batch = replace(batch, features=features_of(reference, batch.tokens))
    network.standardize(batch)
    outputs = network(batch)
    assert outputs.compared.shape == (6, reference.features + 16)
    assert 0.3 < float(outputs.distance.detach()[~torch.eye(6, dtype=torch.bool)].mean()) < 0.9
    outputs.distance.sum().backward()
    assert network.distance.log_power.grad.abs().sum() > 0
    without = replace(batch, features=torch.full_like(batch.features, reference.features))
    assert not torch.equal(network(without).samples, outputs.samples)


def test_heads_say_whether_samples_are_read():
    network = Aam(SIZES, 1000, HeadConfig())
    assert not network.reads_samples
    assert Aam(ModelConfig(), 1000, HeadConfig(counts=True)).reads_samples
    assert Aam(ModelConfig(), 1000, HeadConfig(n_classes=(2,))).reads_samples
