"""The precision of a network: what is chosen, that autocast follows, and the scale of the loss in
fp16.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from aam.config import ModelConfig
from aam.device import precision
from aam.device.precision import UNSCALED, autocast, make_scaler, resolve_precision
from aam.sections import RuntimeConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("auto", torch.float32),
        ("none", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_the_precision_of_a_cpu_is_what_is_asked_for(asked, expected):
    assert resolve_precision(RuntimeConfig(mixed_precision=asked), CPU) == expected


def test_unasked_only_the_training_of_wide_networks_is_in_bf16(monkeypatch):
    assert [ModelConfig(embedding_dim=width).trains_in_bf16 for width in (96, 255, 256)] == [
        False,
        False,
        True,
    ]
    monkeypatch.setattr(precision, "platform_here", lambda device: SimpleNamespace(bf16=True))
    gpu = torch.device("cuda")
    assert resolve_precision(RuntimeConfig(), gpu) == torch.bfloat16
    assert resolve_precision(RuntimeConfig(), gpu, in_bf16=False) == torch.float32
    assert (
        resolve_precision(RuntimeConfig(mixed_precision="bf16"), gpu, in_bf16=False)
        == torch.bfloat16
    )


@pytest.mark.parametrize("asked", ["auto", "none", "bf16", "fp16"])
def test_autocast_follows_the_choice(asked):
    config, ones = RuntimeConfig(mixed_precision=asked), torch.ones(2, 2)
    with autocast(config, CPU):
        assert (ones @ ones).dtype == resolve_precision(config, CPU)
    assert (ones @ ones).dtype == torch.float32


@pytest.mark.parametrize(
    ("asked", "enabled"), [("auto", False), ("none", False), ("bf16", False), ("fp16", True)]
)
def test_only_fp16_scales_the_loss(asked, enabled):
    scaler = make_scaler(RuntimeConfig(mixed_precision=asked), CPU)
    assert scaler.is_enabled() == enabled
    assert bool(scaler.state_dict()) == enabled
    assert float(scaler.scale(torch.ones(()))) == (1024.0 if enabled else 1.0)


def test_a_step_that_is_not_finite_is_an_error_only_when_the_search_has_ended():
    yes = torch.tensor(True)
    assert bool(UNSCALED.update_scale(yes))
    assert not bool(UNSCALED.update_scale(~yes))
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer, scaler = (
        torch.optim.SGD([parameter]),
        make_scaler(RuntimeConfig(mixed_precision="fp16"), CPU),
    )
    errors = []
    for _ in range(12):
        scaler.scale(parameter.sum() * torch.inf).backward()
        scaler.unscale_(optimizer)
        errors.append(bool(scaler.update_scale(yes)))
        optimizer.zero_grad()
    assert errors == [False] * 10 + [True] * 2
