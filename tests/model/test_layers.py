"""What a sample holds, against formulas; a wrong shape fails in tests, which alone need
jaxtyping.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import TypeCheckError

from aam.config import ModelConfig
from aam.model.aam import DistanceHead, Outputs
from aam.model.asv import AsvEncoder
from aam.model.layers import OnShelves
from aam.model.sample import CompositionAndPresence, SampleEncoder, Slots
from aam.training.losses import unifrac_loss

ASVS = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
ASV = torch.tensor([[0, 3, 4], [2, 1, 0]])
COUNTS = torch.tensor([[4.0, 1.0, 0.0], [9.0, 16.0, 2.0]])


@pytest.fixture
def contents() -> CompositionAndPresence:
    torch.manual_seed(0)
    return CompositionAndPresence(8)


def slots_of(asv: torch.Tensor, counts: torch.Tensor) -> Slots:
    """The slots of samples of one size, on one shelf."""
    samples, size = asv.shape
    row = torch.arange(samples).repeat_interleave(size)
    on = OnShelves(((samples, size),), counts.flatten() > 0)
    return Slots(asv.flatten(), row, counts.flatten(), on)


def test_composition_and_presence_follow_their_formulas(contents):
    actual = contents(ASVS, slots_of(ASV, COUNTS))
    for sample, slots in ((0, [0, 1]), (1, [0, 1, 2])):
        reads, vectors = COUNTS[sample, slots], ASVS[ASV[sample, slots]]
        mean = sum(
            math.sqrt(n / float(reads.sum())) * v for n, v in zip(reads, vectors, strict=True)
        )
        absent = torch.ones(32)
        for vector in vectors:
            absent = absent * torch.exp(-F.softplus(contents.features(vector)))
        expected = contents.composition(mean) + contents.presence(1 - absent)
        torch.testing.assert_close(actual[sample], expected)


def test_standardized_parts_have_mean_zero_and_their_share():
    torch.manual_seed(0)
    encoder = SampleEncoder(ModelConfig(embedding_dim=8, attention_heads=2), depth=30)
    asvs = torch.randn(40, 8)
    asv = torch.stack([torch.randperm(40)[:12] for _ in range(20)])
    counts = torch.randint(1, 9, (20, 12)).float()
    encoder.standardize(asvs, slots_of(asv, counts))
    with torch.no_grad():
        composition, presence = encoder.contents._sums(asvs, slots_of(asv, counts))
        parts = (
            (encoder.contents.composition(composition), 1.0),
            (encoder.contents.presence(presence), 0.5),
            (encoder(asvs, slots_of(asv, counts))[1], 0.2),
        )
    for part, scale in parts:
        assert part.mean(dim=0).abs().max() < 1e-4
        assert float(part.var(dim=0).mean().sqrt()) == pytest.approx(scale, rel=1e-3)


SMALL = ModelConfig(embedding_dim=8, attention_heads=2, max_bp=20)
TOKENS = torch.ones(3, 20, dtype=torch.uint8)


@pytest.mark.parametrize(
    "call",
    [
        lambda: AsvEncoder(SMALL)(TOKENS.float(), False),
        lambda: SampleEncoder(SMALL, 40)(torch.zeros(5), slots_of(ASV, COUNTS)),
        lambda: DistanceHead(8, True)(torch.zeros(2, 8), torch.zeros(2, 7)),
        lambda: Outputs(torch.zeros(2, 8), torch.zeros(3, 7)),
        lambda: unifrac_loss(torch.zeros(3, 3), torch.zeros(3, 4)),
    ],
)
def test_encoders_and_heads_refuse_wrong_shapes(call):
    with pytest.raises(TypeCheckError):
        call()


def test_jaxtyping_is_no_runtime_dependency(plain_python):
    source = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jaxtyping", "beartype"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch
from aam.config import ModelConfig
from aam.model.aam import Aam, example_batch
from aam.model.aam import HeadConfig
outputs = Aam(ModelConfig(), 1000, HeadConfig("unifrac"))(example_batch(100))
print(tuple(outputs.distance.shape), "jaxtyping" in sys.modules)
"""
    assert plain_python(source).split("\n")[0] == "(6, 6) False"
