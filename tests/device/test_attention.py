"""Attention against its formula, masked and not, and recomputed with the back end of its first pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointError, checkpoint

from aam.device.attention import SHORT, is_valid_choice, masked_softmax, scaled_dot_product_attention, use_backends


@pytest.fixture(autouse=True)
def _torch_chooses():
    yield
    use_backends({})


def test_attention_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8, generator=generator, dtype=torch.float64)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    torch.testing.assert_close(scaled_dot_product_attention(query, key, value), scores.softmax(-1) @ value)
    keep = torch.tensor([[True, True, False, True, False], [True] * 5])[:, None, None, :]
    expected = scores.masked_fill(~keep, -math.inf).softmax(-1) @ value
    torch.testing.assert_close(scaled_dot_product_attention(query, key, value, keep), expected)
    changed = torch.where(keep.transpose(-1, -2), value, 1e6)
    torch.testing.assert_close(scaled_dot_product_attention(query, key, changed, keep), expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("masked", [False, True])
def test_short_and_long_sequences_of_a_cpu_are_the_same_attention(dtype, tolerance, masked):
    """The last position attends alike whether the sequence is short or is filled up with positions not seen."""
    generator = torch.Generator().manual_seed(0)
    length, longer = 12, SHORT[dtype] + 1
    inputs = torch.randn(3, 2, 4, longer, 8, generator=generator).to(dtype).requires_grad_()
    query, key, value = inputs.unbind(0)
    seen = torch.arange(longer) < torch.tensor([length, 5 if masked else length])[:, None]
    keep = seen[:, None, None, :]
    long = scaled_dot_product_attention(query, key, value, keep)[:, :, :length]
    cut = [x[:, :, :length] for x in (query, key, value)]
    short = scaled_dot_product_attention(*cut, keep[..., :length] if masked else None)
    assert short.dtype == dtype
    torch.testing.assert_close(short, long, rtol=tolerance, atol=tolerance)
    weight = torch.randn(short.shape, generator=generator).to(dtype)
    of_short, of_long = (
        torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True)[0] for out in (short, long)
    )
    torch.testing.assert_close(of_short, of_long, rtol=tolerance, atol=tolerance)


def test_masked_softmax():
    scores = torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 900.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    weights = masked_softmax(scores, mask, dim=1)
    torch.testing.assert_close(weights[0], scores[0].softmax(0))
    torch.testing.assert_close(weights[1], torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(masked_softmax(scores, None, dim=0), scores.softmax(0))
    weights.square().sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[1, 2] == 0
    nothing = masked_softmax(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool), dim=1)
    assert torch.isfinite(nothing).all(), "no NaN where nothing is kept"
    half = masked_softmax(torch.ones(1, 3, dtype=torch.bfloat16), mask[1:], dim=1)
    assert half.tolist() == [[0.5, 0.5, 0.0]]


def attended_sum(x: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(x, x, x).sum()


def test_a_back_end_chosen_inside_is_the_same_when_recomputed():
    x = torch.randn(2, 2, 16, 8, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        outside = checkpoint(attended_sum, x, use_reentrant=False)
    with pytest.raises(
        CheckpointError, match=r"[Rr]ecomputed values.*different metadata|[Dd]ifferent number of tensors"
    ):
        outside.backward()
    use_backends({"float32, unmasked": "math"})
    checkpoint(attended_sum, x, use_reentrant=False).backward()
    recomputed, x.grad = x.grad, None
    attended_sum(x).backward()
    assert torch.equal(x.grad, recomputed)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"float32, masked": "math", "float32, unmasked": "sdpa"}, True),
        ({"float32, masked": "math"}, False),
        ({"float32, masked": "math", "float32, unmasked": "best"}, False),
        ({"bfloat16, masked": "math", "bfloat16, unmasked": "math"}, False),
        ([], False),
    ],
)
def test_a_choice_names_a_back_end_for_each_kind_of_call(names, expected):
    assert is_valid_choice(names, torch.float32) is expected
