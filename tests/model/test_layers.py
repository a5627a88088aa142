"""What a sample holds, and the heads, against formulas; a wrong shape fails in tests, which alone
need jaxtyping.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import TypeCheckError

from aam.config import CovariateConfig, ModelConfig
from aam.data.batch import Batch
from aam.model.aam import CovariateFusion, DistanceHead, HeadConfig, Outputs
from aam.model.asv import AsvEncoder
from aam.model.layers import SequenceBins
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
    """The slots of samples of one size, in one bin."""
    samples, size = asv.shape
    row = torch.arange(samples).repeat_interleave(size)
    bins = SequenceBins(((samples, size),), counts.flatten() > 0)
    return Slots(asv.flatten(), row, counts.flatten(), bins)


def test_composition_and_presence_follow_their_formulas(contents):
    actual = contents(ASVS, slots_of(ASV, COUNTS))
    for sample, slots in ((0, [0, 1]), (1, [0, 1, 2])):
        reads, vectors = COUNTS[sample, slots], ASVS[ASV[sample, slots]]
        mean = (reads / reads.sum()).sqrt() @ vectors
        absent = torch.exp(-F.softplus(contents.features(vectors)).sum(dim=0))
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
        parts = encoder.contents.composition(composition), encoder.contents.presence(presence)
        parts = (*parts, encoder(asvs, slots_of(asv, counts))[1])
    for part, scale in zip(parts, (1.0, 0.5, 0.2), strict=True):
        assert part.mean(dim=0).abs().max() < 1e-4
        assert float(part.var(dim=0).mean().sqrt()) == pytest.approx(scale, rel=1e-3)


def head_of(bounded: bool, scale: float = 2.0, power: float = 1.5) -> DistanceHead:
    head = DistanceHead(4, bounded)
    with torch.no_grad():
        head.log_scale.fill_(torch.tensor(scale).log())
        head.log_power.fill_(torch.tensor(power).log())
    return head


@pytest.mark.parametrize("bounded", [True, False])
def test_the_formula(bounded):
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * 2
    distances = head_of(bounded)(rows, rows[:3]).detach()
    x = (torch.cdist(rows.double(), rows[:3].double()) / 2.0) ** 1.5
    expected = 1 - torch.exp(-x) if bounded else x
    torch.testing.assert_close(distances.double(), expected, atol=1e-4, rtol=1e-5)


def test_gradients_are_finite_where_two_samples_are_the_same():
    head = head_of(True, power=0.5)
    rows = torch.ones(3, 4, requires_grad=True)
    head(rows, rows).sum().backward()
    assert torch.isfinite(rows.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in (head.log_scale, head.log_power))


def test_a_new_head_begins_near_the_truth():
    """The predecessor's began at 0.10 to 0.13 where UniFrac is 0.6 to 0.9."""
    torch.manual_seed(0)
    head = DistanceHead(96, True)
    vectors = head.vectors(torch.randn(50, 96))
    assert 0.3 < head(vectors, vectors).median() < 0.95


@pytest.mark.parametrize(
    "samples", [torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.ones(5, 2), torch.ones(1, 2)]
)
def test_the_scale_is_finite_for_two_samples_and_for_equal_ones(samples):
    head = DistanceHead(2, True)
    vectors = head.vectors(samples)
    head.standardize(vectors, 0.6)
    distances = head(vectors, vectors)
    distances.sum().backward()
    assert torch.isfinite(head.log_scale).all()
    assert torch.isfinite(head.project.weight.grad).all()
    if len(samples) == 2:
        assert distances[0, 1].item() == pytest.approx(0.6, abs=1e-4)


def test_near_samples_are_resolved():
    """Vectors far from the origin and near to each other lose no digits (squares and a product
    would).
    """
    generator = torch.Generator().manual_seed(0)
    rows = 5 * torch.randn(20, 4, generator=generator)
    columns = rows + 0.01 * torch.randn(20, 4, generator=generator)
    x = (torch.cdist(rows.double(), columns.double()) / 2.0) ** 1.5
    distances = head_of(True)(rows, columns).detach()
    torch.testing.assert_close(distances.double(), 1 - torch.exp(-x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["concat", "add"])
def test_covariates_are_joined_and_every_value_shows(kind):
    torch.manual_seed(2)
    config = CovariateConfig(categorical_fusion=kind, categorical_embed_dim=3)
    fusion = CovariateFusion(8, HeadConfig(levels=(3, 4), numbers=1, covariates=config))
    samples = torch.randn(1, 8).expand(6, -1)
    category = torch.tensor([[1, 1], [2, 1], [1, 3], [1, 1], [1, 1], [0, 1]])
    covariate = torch.tensor([[0.0]] * 3 + [[2.0], [math.nan], [0.0]])
    tokens, asv = torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(6, 4, dtype=torch.long)
    conditions = {"category": category, "covariate": covariate}
    batch = Batch(tokens, asv, torch.ones(6, 4), **conditions)
    with torch.no_grad():
        vectors = fusion(samples, batch)
        pairs = torch.stack([covariate.nan_to_num()[:, 0], covariate.isnan()[:, 0].float()], 1)
        tables = [table.weight[category[:, at]] for at, table in enumerate(fusion.categories)]
        flat = torch.cat([*tables, fusion.numbers[0](pairs)], dim=1)
        joined = torch.cat([samples, flat], 1)
        expected = samples + fusion.project(flat) if kind == "add" else joined
    torch.testing.assert_close(vectors, expected)
    assert all((vectors[0] - vectors[other]).abs().max() > 1e-4 for other in range(1, 6))
    assert fusion.width == vectors.shape[1]


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


@pytest.mark.slow
def test_jaxtyping_is_no_runtime_dependency(plain_python):
    source = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jaxtyping", "beartype"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch
from aam.config import CovariateConfig, ModelConfig
from aam.data.batch import Batch
from aam.model.aam import Aam, HeadConfig
tokens, asv = torch.randint(1, 5, (64, 100), dtype=torch.uint8), torch.arange(240).view(6, 40) % 64
batch = Batch(tokens, asv, torch.ones(6, 40), sizes=(40,) * 6, sample_ids=tuple("abcdef"))
outputs = Aam(ModelConfig(), 1000, HeadConfig("unifrac"))(batch)
print(tuple(outputs.distance.shape), "jaxtyping" in sys.modules)
"""
    assert plain_python(source).split("\n")[0] == "(6, 6) False"
