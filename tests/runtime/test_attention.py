"""Attention against its formula, masked and not."""

from __future__ import annotations

import math

import torch

from aam.runtime.attention import attend, masked_softmax


def test_attention_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8, generator=generator, dtype=torch.float64)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    torch.testing.assert_close(attend(query, key, value), scores.softmax(-1) @ value)
    keep = torch.tensor([[True, True, False, True, False], [True] * 5])[:, None, None, :]
    expected = scores.masked_fill(~keep, -math.inf).softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, keep), expected)
    changed = torch.where(keep.transpose(-1, -2), value, 1e6)
    torch.testing.assert_close(attend(query, key, changed, keep), expected)


def test_masked_softmax():
    scores = torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 900.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    found = masked_softmax(scores, mask, dim=1)
    torch.testing.assert_close(found[0], scores[0].softmax(0))
    torch.testing.assert_close(found[1], torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(masked_softmax(scores, None, dim=0), scores.softmax(0))
    found.square().sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[1, 2] == 0
    nothing = masked_softmax(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool), dim=1)
    assert torch.isfinite(nothing).all(), "no NaN where nothing is kept"
    half = masked_softmax(torch.ones(1, 3, dtype=torch.bfloat16), mask[1:], dim=1)
    assert half.tolist() == [[0.5, 0.5, 0.0]]
