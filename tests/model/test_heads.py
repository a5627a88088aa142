"""The distance head is a distance, quantiles do not cross, and predictions stay in their range."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from aam.config import CovariateConfig, ModelConfig, RegressorConfig
from aam.data.batch import Batch
from aam.data.collate import rarefied_batch
from aam.model.aam import Aam
from aam.model.heads import (
    AuxiliaryConfig,
    CovariateFusion,
    CrossAttention,
    DistanceHead,
    HeadConfig,
    Readout,
    TargetHead,
)
from tests.data.labels import with_auxiliary_targets


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


EDGES = {"low": (-1.0, -2.0), "high": (1.0, 3.0), "zero": (-1.5, 0.5)}


LEVELS = (0.05, 0.25, 0.5, 0.95)


def target_head(wild: float = 3.0, losses=("quantile", "quantile"), **shape) -> TargetHead:
    """A head of two columns whose weights are so large that links and scales are driven to their
    ends.
    """
    torch.manual_seed(1)
    options = RegressorConfig(**shape)
    head = TargetHead(
        6, HeadConfig(n_targets=2, losses=losses, quantiles=LEVELS, regressor=options, **EDGES)
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += wild * torch.randn_like(parameter)
    return head.eval()


SHAPES = [
    {},
    {"learnable_output_scale": True},
    {"bounded_targets": True, "learnable_output_scale": True},
    *({"output_activation": one} for one in ("relu", "softplus", "exp")),
    {"regressor_hidden_dims": (5, 3), "residual_regression_head": False, "target_layer_norm": True},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantiles_never_cross_and_the_median_is_the_prediction(shape):
    head = target_head(**shape)
    with torch.no_grad():
        numbers, quantiles = head.predict(torch.randn(200, 6), None)
    assert (quantiles.diff(dim=1) >= 0).all()
    assert (quantiles.diff(dim=1) > 0).any()
    assert torch.equal(quantiles[:, LEVELS.index(0.5)], numbers)


@pytest.mark.parametrize("kind", ["sigmoid", "relu", "softplus", "exp", "none"])
def test_predictions_stay_where_they_may_be_and_can_be_undone(kind):
    """Zero in own units is -1.5 and 0.5 in transformed ones here."""
    head = target_head(
        losses=(),
        **({"bounded_targets": True} if kind == "sigmoid" else {"output_activation": kind}),
    )
    with torch.no_grad():
        numbers, quantiles = head.predict(3 * torch.randn(500, 6), None)
        assert quantiles is None
        low, high = {
            "sigmoid": (EDGES["low"], EDGES["high"]),
            "none": ((-9e9,) * 2, (9e9,) * 2),
        }.get(kind, (EDGES["zero"], (math.inf,) * 2))
        assert (numbers >= torch.tensor(low)).all()
        assert (numbers <= torch.tensor(high)).all()
        for column, inside in ((0, torch.linspace(-0.9, 0.9, 9)), (1, torch.linspace(0.6, 2.7, 9))):
            wanted = torch.cat([inside, torch.tensor([math.nan])])
            back = head._linked(head.unlinked(wanted, column)[:, None].expand(-1, 2))[:, column]
            torch.testing.assert_close(back, wanted, equal_nan=True, atol=1e-5, rtol=1e-5)
            assert torch.isfinite(
                head.unlinked(torch.tensor([-1.5, -1.0, 0.5, 1.0, 3.0]), column)
            ).all()


def test_a_hidden_layer_feeds_or_corrects():
    x = torch.randn(4, 6)
    with torch.no_grad():
        plain, linear = Readout(6, 2), torch.nn.Linear(6, 2)
        linear.load_state_dict(plain.linear.state_dict())
        assert torch.equal(plain(x), linear(x)), "the correction starts at zero"
        fed = Readout(
            6,
            2,
            shape=RegressorConfig(regressor_hidden_dims=(5, 3), residual_regression_head=False),
        )
        assert fed.features(x).shape == (4, 3)
        assert torch.equal(fed(x), fed.linear(fed.features(x)))
        normed = Readout(6, 2, shape=RegressorConfig(target_layer_norm=True))
        torch.testing.assert_close(normed(x), normed(5 * x), atol=1e-3, rtol=1e-3)
        wet = Readout(
            6, 2, shape=RegressorConfig(regressor_dropout=0.5, residual_regression_head=False)
        )
        assert not torch.equal(wet.train()(x), wet(x))
        assert torch.equal(wet.eval()(x), wet(x))


def test_outputs_are_scaled_by_category():
    """y * scale[category] + bias[category], which starts as y."""
    heads = HeadConfig(n_targets=2, levels=(3, 4), scaled_by=(1,))
    torch.manual_seed(0)
    head, x = TargetHead(6, heads), torch.randn(5, 6)
    category = torch.tensor([[2, 0], [1, 1], [0, 2], [1, 3], [2, 3]])
    with torch.no_grad():
        before = head.predict(x, category)[0]
        assert torch.equal(before, head(x))
        head.factors[0].weight[3], head.offsets[0].weight[3] = 2.0, 7.0
        after = head.predict(x, category)[0]
    assert torch.equal(after[:3], before[:3])
    torch.testing.assert_close(after[3:], before[3:] * 2 + 7)
    with pytest.raises(ValueError, match="the batch has none"):
        head.predict(x, None)


ALL = AuxiliaryConfig(
    ("bray-curtis", "jaccard", "faith-pd", "taxonomy"),
    ((0.7, 0.1), (0.8, 0.1), (5.0, 2.0), (0.0, 1.0)),
    ("phylum", "class"),
    (("a", "b"), ("x", "y", "z")),
    (0.5, 1.0),
)


@pytest.fixture
def study(study_of, tiny):
    study = study_of(**tiny(), depth=40)
    lineages = tuple(("k", sequence[0], sequence[:2]) for sequence in study.table.sequences)
    return with_auxiliary_targets(study, lineages, ALL.names)


def test_all_other_weights_start_as_without_them():
    made = []
    for further in (AuxiliaryConfig(), ALL):
        torch.manual_seed(0)
        heads = HeadConfig("unifrac", counts=True, n_targets=1, n_classes=(2,), further=further)
        made.append(
            Aam(ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30), 40, heads).state_dict()
        )
    without, beside = made
    assert {name for name in beside if not name.startswith("further.")} == without.keys()
    assert all(torch.equal(value, beside[name]) for name, value in without.items())


def test_only_what_the_batch_asks_for_is_answered(study, model_of):
    network = model_of(HeadConfig("unifrac", further=ALL))
    batch = rarefied_batch(study, np.arange(4), 0)
    predicted = network(batch).auxiliary
    assert {name: tuple(value.shape) for name, value in predicted.items()} == {
        "bray-curtis": (4, 4),
        "jaccard": (4, 4),
        "faith-pd": (4,),
        "taxonomy": (len(batch.tokens), 5),
    }
    jaccard = predicted["jaccard"]
    assert torch.equal(jaccard, jaccard.T)
    assert ((jaccard >= 0) & (jaccard <= 1)).all()
    asked = replace(batch, auxiliary={"jaccard": batch.auxiliary["jaccard"]})
    alone = network(asked).auxiliary
    assert alone.keys() == {"jaccard"}
    assert torch.equal(alone["jaccard"], jaccard)
    assert network(replace(batch, auxiliary={})).auxiliary == {}


def test_distances_start_at_their_mean_and_the_others_know_nothing(study):
    torch.manual_seed(0)
    network = Aam(
        ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30), 40, HeadConfig(further=ALL)
    )
    batch = rarefied_batch(study, np.arange(9), 0)
    network.standardize(batch)
    with torch.no_grad():
        predicted = network(batch).auxiliary
    rows, columns = torch.triu_indices(9, 9, 1)
    for name, (mean, _) in zip(ALL.names[:2], ALL.scales, strict=False):
        assert float(predicted[name][rows, columns].median()) == pytest.approx(mean, abs=0.05)
    torch.testing.assert_close(predicted["faith-pd"], torch.full((9,), 5.0))
    assert not predicted["taxonomy"].any()
    phyla, classes = network.further["taxonomy"].by_rank(predicted["taxonomy"])
    assert (phyla.shape[1], classes.shape[1]) == (2, 3)


def test_taxa_alone_read_whole_asvs(study, model_of):
    further = AuxiliaryConfig(("taxonomy",), ((0.0, 1.0),), ALL.ranks, ALL.taxa, ALL.entropies)
    network = model_of(HeadConfig(further=further))
    assert not network.reads_samples
    batch = rarefied_batch(study, np.arange(4), 0)
    outputs = network(batch)
    assert len(outputs.asvs) == len(outputs.auxiliary["taxonomy"]) == len(batch.tokens)


FUSIONS = ("concat", "add", "gmu", "cross-attention", "perceiver")


def fusion_of(kind: str, **options) -> CovariateFusion:
    torch.manual_seed(2)
    config = CovariateConfig(
        categorical_fusion=kind, categorical_embed_dim=3, cross_attn_heads=2, **options
    )
    return CovariateFusion(8, HeadConfig(levels=(3, 4), numbers=1, covariates=config)).eval()


def joined(
    fusion: CovariateFusion, category, covariate, counts=None, context=None, samples=None
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    n = len(category)
    samples = torch.randn(n, 8, generator=generator) if samples is None else samples
    context = torch.randn(n, 4, 8, generator=generator) if context is None else context
    counts = torch.ones(n, 4) if counts is None else counts
    batch = Batch(
        torch.zeros(1, 1, dtype=torch.uint8),
        torch.zeros(counts.shape, dtype=torch.long),
        counts,
        category=torch.tensor(category),
        covariate=torch.tensor(covariate),
    )
    with torch.no_grad():
        return fusion(samples, batch, context)


@pytest.mark.parametrize("kind", FUSIONS)
def test_every_covariate_shows_in_what_heads_read(kind):
    fusion, samples = fusion_of(kind), torch.zeros(6, 8)
    context = torch.randn(1, 4, 8).expand(6, -1, -1)
    category = [[1, 1], [2, 1], [1, 3], [1, 1], [1, 1], [0, 1]]
    vectors = joined(
        fusion, category, [[0.0]] * 3 + [[2.0], [math.nan], [0.0]], context=context, samples=samples
    )
    assert vectors.shape == (6, 8 + 9 if kind == "concat" else 8)
    assert all((vectors[0] - vectors[other]).abs().max() > 1e-4 for other in range(1, 6)), (
        "missing is not the mean"
    )
    assert fusion.width == vectors.shape[1]
    with pytest.raises(ValueError, match="the batch has none"):
        fusion(samples, dataclasses.replace(batch_without(), counts=torch.ones(6, 4)), context)


def batch_without() -> Batch:
    return Batch(
        torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(6, 4, dtype=torch.long), torch.ones(6, 4)
    )


def test_the_formulas_of_the_fusions():
    category, covariate, h = [[1, 2], [0, 3]], [[0.5], [math.nan]], torch.randn(2, 8)
    for kind in ("concat", "add", "gmu"):
        fusion = fusion_of(kind)
        vectors = joined(fusion, category, covariate, samples=h)
        with torch.no_grad():
            number = fusion.numbers[0](torch.tensor([[0.5, 0.0], [0.0, 1.0]]))
            c = torch.cat(
                [t.weight[[row[k] for row in category]] for k, t in enumerate(fusion.categories)]
                + [number],
                1,
            )
            if kind == "concat":
                expected = torch.cat([h, c], 1)
            elif kind == "add":
                expected = h + fusion.project(c)
            else:
                gate = torch.sigmoid(fusion.gate(torch.cat([h, c], 1)))
                expected = h + gate * torch.tanh(fusion.project(c))
        torch.testing.assert_close(vectors, expected)


def test_cross_attention_is_that_of_torch_with_one_key_more_than_columns():
    attention = CrossAttention(8, 3, 2)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, kdim=3, vdim=3)
    with torch.no_grad():
        key, value = attention.pair.weight.chunk(2)
        theirs.q_proj_weight.copy_(attention.query.weight)
        theirs.k_proj_weight.copy_(key)
        theirs.v_proj_weight.copy_(value)
        theirs.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.pair.bias]))
        theirs.out_proj.load_state_dict(attention.out.state_dict())
        x, keys = torch.randn(5, 2, 8), torch.randn(5, 3, 3)
        mask = torch.tensor([[True, True, False]]).expand(5, -1)
        with_null = torch.cat([attention.null.expand(5, -1, -1), keys], 1)
        expected, weights = theirs(x, with_null, with_null, torch.nn.functional.pad(~mask, (1, 0)))
        torch.testing.assert_close(attention(x, keys, mask), expected)
        assert weights.shape[-1] == 4
        assert (weights[..., :3] > 0).all()


def test_the_perceiver_does_not_see_padding():
    """The predecessor's attended to it."""
    fusion, samples = (
        fusion_of("perceiver", perceiver_num_latents=3, perceiver_num_layers=2),
        torch.randn(2, 8),
    )
    with torch.no_grad():
        for layer in fusion.layers:
            layer.query.weight.mul_(5)
    assert fusion.latents.shape == (3, 8)
    assert len(fusion.layers) == 2
    counts, context = torch.tensor([[3.0, 1, 0, 0], [1, 1, 1, 0]]), torch.randn(2, 4, 8)
    vectors = joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], counts, context, samples)
    junk = context + 100 * (counts == 0)[..., None]
    assert torch.equal(
        joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], counts, junk, samples), vectors
    )
    wider = torch.cat([junk, torch.full((2, 3, 8), 9.0)], 1)
    more = torch.nn.functional.pad(counts, (0, 3))
    torch.testing.assert_close(
        joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], more, wider, samples), vectors
    )
    seen = joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], counts, 2 * context, samples)
    assert (seen - vectors).abs().max() > 1e-5, "it reads the ASVs"
