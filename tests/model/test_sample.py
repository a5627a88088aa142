"""What a sample holds: its composition and the presence of features, against their formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from aam.config import ModelConfig
from aam.model.layers import CompositionAndPresence, SampleEncoder

ASVS = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
ASV = torch.tensor([[0, 3, 4], [2, 1, 0]])
COUNTS = torch.tensor([[4.0, 1.0, 0.0], [9.0, 16.0, 2.0]])


@pytest.fixture
def contents() -> CompositionAndPresence:
    torch.manual_seed(0)
    return CompositionAndPresence(8, abundances=True)


def test_composition_and_presence_follow_their_formulas(contents):
    actual = contents(ASVS, ASV, COUNTS)
    for sample, slots in ((0, [0, 1]), (1, [0, 1, 2])):
        reads, vectors = COUNTS[sample, slots], ASVS[ASV[sample, slots]]
        mean = sum(math.sqrt(n / float(reads.sum())) * v for n, v in zip(reads, vectors, strict=True))
        absent = torch.ones(32)
        for vector in vectors:
            absent = absent * torch.exp(-F.softplus(contents.features(vector)))
        expected = contents.composition(mean) + contents.presence(1 - absent)
        torch.testing.assert_close(actual[sample], expected)


def test_without_abundances_reads_change_nothing():
    contents = CompositionAndPresence(8, abundances=False)
    torch.testing.assert_close(contents(ASVS, ASV, COUNTS), contents(ASVS, ASV, (COUNTS > 0).float() * 7))


def test_standardized_parts_have_mean_zero_and_their_share():
    torch.manual_seed(0)
    encoder = SampleEncoder(ModelConfig(embedding_dim=8, attention_heads=2), depth=30)
    asvs = torch.randn(40, 8)
    asv = torch.stack([torch.randperm(40)[:12] for _ in range(20)])
    counts = torch.randint(1, 9, (20, 12)).float()
    encoder.standardize(asvs, asv, counts)
    with torch.no_grad():
        composition, presence = encoder.contents._sums(asvs, asv, counts)
        parts = (
            (encoder.contents.composition(composition), 1.0),
            (encoder.contents.presence(presence), 0.5),
            (encoder(asvs[asv], counts)[1], 0.2),
        )
    for part, scale in parts:
        assert part.mean(dim=0).abs().max() < 1e-4
        assert float(part.var(dim=0).mean().sqrt()) == pytest.approx(scale, rel=1e-3)
