"""Covariates join sample vectors as the formulas of each fusion say."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from aam.config import CovariateConfig
from aam.data.batch import Batch
from aam.model.heads import CovariateFusion, CrossAttention, HeadConfig

FUSIONS = ("concat", "add", "gmu", "cross-attention", "perceiver")


def fusion_of(kind: str, **options) -> CovariateFusion:
    torch.manual_seed(2)
    config = CovariateConfig(categorical_fusion=kind, categorical_embed_dim=3, cross_attn_heads=2, **options)
    return CovariateFusion(8, HeadConfig(levels=(3, 4), numbers=1, covariates=config)).eval()


def joined(fusion: CovariateFusion, category, covariate, counts=None, context=None, samples=None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    n = len(category)
    samples = torch.randn(n, 8, generator=generator) if samples is None else samples
    context = torch.randn(n, 4, 8, generator=generator) if context is None else context
    counts = torch.ones(n, 4) if counts is None else counts
    batch = Batch(
        torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(counts.shape, dtype=torch.long), counts,
        category=torch.tensor(category), covariate=torch.tensor(covariate),
    )  # fmt: skip
    with torch.no_grad():
        return fusion(samples, batch, context)


@pytest.mark.parametrize("kind", FUSIONS)
def test_every_covariate_shows_in_what_heads_read(kind):
    fusion, samples = fusion_of(kind), torch.zeros(6, 8)
    context = torch.randn(1, 4, 8).expand(6, -1, -1)
    category = [[1, 1], [2, 1], [1, 3], [1, 1], [1, 1], [0, 1]]
    vectors = joined(fusion, category, [[0.0]] * 3 + [[2.0], [math.nan], [0.0]], context=context, samples=samples)
    assert vectors.shape == (6, 8 + 9 if kind == "concat" else 8)
    assert all((vectors[0] - vectors[other]).abs().max() > 1e-4 for other in range(1, 6)), "missing is not the mean"
    assert fusion.width == vectors.shape[1]
    with pytest.raises(ValueError, match="the batch has none"):
        fusion(samples, dataclasses.replace(batch_without(), counts=torch.ones(6, 4)), context)


def batch_without() -> Batch:
    return Batch(torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(6, 4, dtype=torch.long), torch.ones(6, 4))


def test_the_formulas_of_the_fusions():
    category, covariate, h = [[1, 2], [0, 3]], [[0.5], [math.nan]], torch.randn(2, 8)
    for kind in ("concat", "add", "gmu"):
        fusion = fusion_of(kind)
        vectors = joined(fusion, category, covariate, samples=h)
        with torch.no_grad():
            number = fusion.numbers[0](torch.tensor([[0.5, 0.0], [0.0, 1.0]]))
            c = torch.cat(
                [t.weight[[row[k] for row in category]] for k, t in enumerate(fusion.categories)] + [number], 1
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
    fusion, samples = fusion_of("perceiver", perceiver_num_latents=3, perceiver_num_layers=2), torch.randn(2, 8)
    with torch.no_grad():
        for layer in fusion.layers:
            layer.query.weight.mul_(5)
    assert fusion.latents.shape == (3, 8)
    assert len(fusion.layers) == 2
    counts, context = torch.tensor([[3.0, 1, 0, 0], [1, 1, 1, 0]]), torch.randn(2, 4, 8)
    vectors = joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], counts, context, samples)
    junk = context + 100 * (counts == 0)[..., None]
    assert torch.equal(joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], counts, junk, samples), vectors)
    wider = torch.cat([junk, torch.full((2, 3, 8), 9.0)], 1)
    more = torch.nn.functional.pad(counts, (0, 3))
    torch.testing.assert_close(joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], more, wider, samples), vectors)
    seen = joined(fusion, [[1, 1], [2, 2]], [[0.0], [1.0]], counts, 2 * context, samples)
    assert (seen - vectors).abs().max() > 1e-5, "it reads the ASVs"
