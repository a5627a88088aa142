"""The learning rate: a warm-up shorter than the run, then down and never up again."""

from __future__ import annotations

import math

import pytest
import torch

from aam.config import TrainConfig
from aam.training.optim import learning_rate, make_optimizer, warmup_steps


@pytest.mark.parametrize("total", [1, 2, 5, 9, 10, 60, 5_000, 30_000])
@pytest.mark.parametrize("asked", [None, 0, 1, 10_000])
def test_warm_up_is_shorter_than_the_run(total, asked):
    """The predecessor's 10,000 steps exceeded whole runs (failure 8)."""
    config = TrainConfig(warmup_steps=asked, lr=0.5)
    steps = warmup_steps(config, total)
    assert 0 <= steps < total
    assert steps == min({None: min(total // 10, 1000)}.get(asked, asked), total - 1)
    rates = [learning_rate(config, step, total) for step in range(total)]
    assert max(rates) == rates[max(steps - 1, 0)] == 0.5
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize("scheduler", ["warmup_cosine", "cosine"])
@pytest.mark.parametrize("asked", [None, 0, 7])
def test_the_cosine_never_rises_again(scheduler, asked):
    config = TrainConfig(scheduler=scheduler, warmup_steps=asked, lr=0.1)
    warmup = 0 if scheduler == "cosine" else warmup_steps(config, 50)
    rates = [learning_rate(config, step, 50) for step in range(warmup, 200)]
    assert rates == sorted(rates, reverse=True)
    assert rates[50 - warmup :] == [0.0] * 150
    assert learning_rate(config, warmup + (50 - warmup) // 2, 50) == pytest.approx(0.05, rel=0.05)
    quarter = warmup + (50 - warmup) / 4
    expected = 0.1 * (1 + math.cos(math.pi * (int(quarter) - warmup) / (50 - warmup))) / 2
    assert learning_rate(config, int(quarter), 50) == pytest.approx(expected)


def test_warm_up_is_linear_and_constant_stays():
    config = TrainConfig(scheduler="constant", warmup_steps=4, lr=0.8)
    rates = [learning_rate(config, step, 100) for step in (0, 1, 2, 3, 4, 50, 99, 500)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8])


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_only_trainable_matrices_decay(name, kind):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 2))
    model[2].requires_grad_(False)
    optimizer = make_optimizer(model, TrainConfig(optimizer=name, weight_decay=0.25, lr=0.125))
    assert type(optimizer) is kind
    found = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert found == {
        id(model[0].weight): 0.25, id(model[0].bias): 0.0, id(model[1].weight): 0.0, id(model[1].bias): 0.0
    }  # fmt: skip
    assert all(group["lr"] == 0.125 for group in optimizer.param_groups)
