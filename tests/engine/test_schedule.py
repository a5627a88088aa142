"""The learning rate: a warm-up shorter than the run, then down and never up again."""

from __future__ import annotations

import math

import pytest

from aam.engine.schedule import learning_rate, warmup_steps
from aam.options import TrainingOptions


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
    assert rates[:steps] == pytest.approx([0.5 * (n + 1) / steps for n in range(steps)])


@pytest.mark.parametrize("setting", [None, 0, 7])
def test_the_cosine_never_rises_again(setting):
    config = TrainingOptions(warmup_steps=setting, lr=0.1)
    warmup = warmup_steps(config, 50)
    rates = [learning_rate(config, step, 50) for step in range(warmup, 200)]
    assert rates == sorted(rates, reverse=True)
    assert rates[50 - warmup :] == [0.0] * 150
    assert learning_rate(config, warmup + (50 - warmup) // 2, 50) == pytest.approx(0.05, rel=0.05)
    quarter = warmup + (50 - warmup) / 4
    expected = 0.1 * (1 + math.cos(math.pi * (int(quarter) - warmup) / (50 - warmup))) / 2
    assert learning_rate(config, int(quarter), 50) == pytest.approx(expected)
