"""The distance head is a distance: symmetric, growing, bounded where the metric is."""

from __future__ import annotations

import pytest
import torch

from aam.model.heads import DistanceHead


def head_of(bounded: bool, scale: float = 2.0, power: float = 1.5) -> DistanceHead:
    head = DistanceHead(4, bounded)
    with torch.no_grad():
        head.log_scale.fill_(torch.tensor(scale).log())
        head.log_power.fill_(torch.tensor(power).log())
    return head


@pytest.mark.parametrize("bounded", [True, False])
def test_the_formula(bounded):
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * 2
    found = head_of(bounded)(rows, rows[:3]).detach()
    x = (torch.cdist(rows.double(), rows[:3].double()) / 2.0) ** 1.5
    expected = 1 - torch.exp(-x) if bounded else x
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("bounded", [True, False])
def test_it_grows_with_the_distance_of_the_vectors(bounded):
    away = torch.zeros(6, 4)
    away[:, 0] = torch.tensor([0.0, 0.1, 1, 3, 10, 1000])
    found = head_of(bounded)(away[:1], away)[0]
    assert (found.diff() > 0).all() if not bounded else (found.diff() >= 0).all()
    assert found[0] < 1e-4
    assert (found[-1] <= 1) == bounded


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


def test_near_samples_are_resolved():
    """Vectors far from the origin and near to each other lose no digits (squares and a product would)."""
    generator = torch.Generator().manual_seed(0)
    rows = 5 * torch.randn(20, 4, generator=generator)
    columns = rows + 0.01 * torch.randn(20, 4, generator=generator)
    x = (torch.cdist(rows.double(), columns.double()) / 2.0) ** 1.5
    found = head_of(True)(rows, columns).detach()
    torch.testing.assert_close(found.double(), 1 - torch.exp(-x), atol=1e-6, rtol=1e-5)
