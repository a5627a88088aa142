"""The distance head is a distance, quantiles do not cross, and predictions stay in their range."""

from __future__ import annotations

import math

import pytest
import torch

from aam.config import RegressorConfig
from aam.model.heads import DistanceHead, HeadConfig, Readout, TargetHead


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


@pytest.mark.parametrize("bounded", [True, False])
def test_it_grows_with_the_distance_of_the_vectors(bounded):
    away = torch.zeros(6, 4)
    away[:, 0] = torch.tensor([0.0, 0.1, 1, 3, 10, 1000])
    distances = head_of(bounded)(away[:1], away)[0]
    assert (distances.diff() > 0).all() if not bounded else (distances.diff() >= 0).all()
    assert distances[0] < 1e-4
    assert (distances[-1] <= 1) == bounded


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


@pytest.mark.parametrize("samples", [torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.ones(5, 2), torch.ones(1, 2)])
def test_the_scale_is_finite_for_two_samples_and_for_equal_ones(samples):
    head = DistanceHead(2, True)
    head.standardize(samples, 0.6)
    vectors = head.vectors(samples)
    distances = head(vectors, vectors)
    distances.sum().backward()
    assert torch.isfinite(head.log_scale).all()
    assert torch.isfinite(head.project.weight.grad).all()
    if len(samples) == 2:
        assert distances[0, 1].item() == pytest.approx(0.6, abs=1e-4)


def test_near_samples_are_resolved():
    """Vectors far from the origin and near to each other lose no digits (squares and a product would)."""
    generator = torch.Generator().manual_seed(0)
    rows = 5 * torch.randn(20, 4, generator=generator)
    columns = rows + 0.01 * torch.randn(20, 4, generator=generator)
    x = (torch.cdist(rows.double(), columns.double()) / 2.0) ** 1.5
    distances = head_of(True)(rows, columns).detach()
    torch.testing.assert_close(distances.double(), 1 - torch.exp(-x), atol=1e-6, rtol=1e-5)


EDGES = {"low": (-1.0, -2.0), "high": (1.0, 3.0), "zero": (-1.5, 0.5)}


LEVELS = (0.05, 0.25, 0.5, 0.95)


def target_head(wild: float = 3.0, losses=("quantile", "quantile"), **shape) -> TargetHead:
    """A head of two columns whose weights are so large that links and scales are driven to their ends."""
    torch.manual_seed(1)
    options = RegressorConfig(**shape)
    head = TargetHead(6, HeadConfig(n_targets=2, losses=losses, quantiles=LEVELS, regressor=options, **EDGES))
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
    head = target_head(losses=(), **({"bounded_targets": True} if kind == "sigmoid" else {"output_activation": kind}))
    with torch.no_grad():
        numbers, quantiles = head.predict(3 * torch.randn(500, 6), None)
        assert quantiles is None
        low, high = {"sigmoid": (EDGES["low"], EDGES["high"]), "none": ((-9e9,) * 2, (9e9,) * 2)}.get(
            kind, (EDGES["zero"], (math.inf,) * 2)
        )
        assert (numbers >= torch.tensor(low)).all()
        assert (numbers <= torch.tensor(high)).all()
        for column, inside in ((0, torch.linspace(-0.9, 0.9, 9)), (1, torch.linspace(0.6, 2.7, 9))):
            wanted = torch.cat([inside, torch.tensor([math.nan])])
            back = head._linked(head.unlinked(wanted, column)[:, None].expand(-1, 2))[:, column]
            torch.testing.assert_close(back, wanted, equal_nan=True, atol=1e-5, rtol=1e-5)
            assert torch.isfinite(head.unlinked(torch.tensor([-1.5, -1.0, 0.5, 1.0, 3.0]), column)).all()


def test_a_hidden_layer_feeds_or_corrects():
    x = torch.randn(4, 6)
    with torch.no_grad():
        plain, linear = Readout(6, 2), torch.nn.Linear(6, 2)
        linear.load_state_dict(plain.linear.state_dict())
        assert torch.equal(plain(x), linear(x)), "the correction starts at zero"
        fed = Readout(6, 2, shape=RegressorConfig(regressor_hidden_dims=(5, 3), residual_regression_head=False))
        assert fed.features(x).shape == (4, 3)
        assert torch.equal(fed(x), fed.linear(fed.features(x)))
        normed = Readout(6, 2, shape=RegressorConfig(target_layer_norm=True))
        torch.testing.assert_close(normed(x), normed(5 * x), atol=1e-3, rtol=1e-3)
        wet = Readout(6, 2, shape=RegressorConfig(regressor_dropout=0.5, residual_regression_head=False))
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
