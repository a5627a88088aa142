"""The learning rate: a warm-up shorter than the run, then down and never up again."""

from __future__ import annotations

import math

import pytest
import torch

from aam.engine.options import TrainingOptions
from aam.engine.schedule import learning_rate, warmup_steps


@pytest.mark.parametrize("total", [1, 2, 5, 9, 10, 60, 5_000, 30_000])
@pytest.mark.parametrize("setting", [None, 0, 1, 10_000])
def test_warm_up_is_shorter_than_the_run(total, setting):
    """The predecessor's 10,000 steps exceeded whole runs (failure 8)."""
    config = TrainingOptions(warmup_steps=setting, lr=0.5)
    steps = warmup_steps(config, total)
    assert 0 <= steps < total
    assert steps == min({None: min(total // 10, 1000)}.get(setting, setting), total - 1)
    rates = [learning_rate(config, step, total) for step in range(total)]
    assert max(rates) == rates[max(steps - 1, 0)] == 0.5
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize("scheduler", ["warmup_cosine", "cosine"])
@pytest.mark.parametrize("setting", [None, 0, 7])
def test_the_cosine_never_rises_again(scheduler, setting):
    config = TrainingOptions(scheduler=scheduler, warmup_steps=setting, lr=0.1)
    warmup = 0 if scheduler == "cosine" else warmup_steps(config, 50)
    rates = [learning_rate(config, step, 50) for step in range(warmup, 200)]
    assert rates == sorted(rates, reverse=True)
    assert rates[50 - warmup :] == [0.0] * 150
    assert learning_rate(config, warmup + (50 - warmup) // 2, 50) == pytest.approx(0.05, rel=0.05)
    quarter = warmup + (50 - warmup) / 4
    expected = 0.1 * (1 + math.cos(math.pi * (int(quarter) - warmup) / (50 - warmup))) / 2
    assert learning_rate(config, int(quarter), 50) == pytest.approx(expected)


def test_warm_up_is_linear_and_constant_stays():
    config = TrainingOptions(scheduler="constant", warmup_steps=4, lr=0.8)
    rates = [learning_rate(config, step, 100) for step in (0, 1, 2, 3, 4, 50, 99, 500)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8])


def rates_of(scheduler, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    return torch.optim.SGD([parameter], lr=0.2)


def test_restarts_are_those_of_torch(optimizer):
    config = TrainingOptions(
        scheduler="cosine_restarts",
        scheduler_t0=2,
        scheduler_t_mult=3,
        scheduler_eta_min=0.01,
        lr=0.2,
        warmup_steps=0,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        optimizer, 2 * 5, 3, eta_min=0.01
    )
    expected = rates_of(schedule, optimizer, 150)
    assert [learning_rate(config, step, 150, 5) for step in range(150)] == pytest.approx(expected)
    assert expected[10] == expected[40] == 0.2, "periods of 10, 30, 90 steps"
    shifted = TrainingOptions(scheduler="cosine_restarts", scheduler_t0=2, lr=0.2, warmup_steps=4)
    assert learning_rate(shifted, 4, 150, 5) == 0.2
    assert learning_rate(shifted, 0, 150, 5) == pytest.approx(0.05)


@pytest.mark.parametrize("total", [2, 3, 10, 57])
def test_one_cycle_rises_once_and_ends_low(optimizer, total):
    """Failure 2 of the predecessor; with accumulation, `total` counts steps of the optimizer."""
    config = TrainingOptions(scheduler="onecycle", lr=0.2)
    rates = [learning_rate(config, step, total) for step in range(total + 5)]
    assert rates[0] == pytest.approx(0.2 / 25 if total > 3 else 0.2), (
        "three steps are too few to rise"
    )
    assert rates[total - 1 :] == pytest.approx([0.2 / 25e4] * 6)
    assert max(rates) <= 0.2
    if total == 57:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=57)
        assert rates[:57] == pytest.approx(rates_of(schedule, optimizer, 57))


def test_plateau_lowers_down_to_a_floor():
    config = TrainingOptions(
        scheduler="plateau", lr=0.2, warmup_steps=2, scheduler_factor=0.1, scheduler_min_lr=1e-3
    )
    assert [learning_rate(config, step, 50) for step in (0, 1, 2, 49)] == pytest.approx(
        [0.1, 0.2, 0.2, 0.2]
    )
    assert [learning_rate(config, 9, 50, 1, k) for k in range(5)] == pytest.approx(
        [0.2, 0.02, 2e-3, 1e-3, 1e-3]
    )
