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
from aam.options import RuntimeConfig

CPU = torch.device("cpu")


KINDS = {"auto": torch.float32, "none": torch.float32}
KINDS |= {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("asked", KINDS)
def test_a_cpu_computes_in_what_is_asked_for_and_only_fp16_scales_the_loss(asked):
    config, ones = RuntimeConfig(mixed_precision=asked), torch.ones(2, 2)
    assert resolve_precision(config, CPU) == KINDS[asked]
    with autocast(config, CPU):
        assert (ones @ ones).dtype == KINDS[asked]
    assert (ones @ ones).dtype == torch.float32
    scaler, is_scaled = make_scaler(config, CPU), asked == "fp16"
    assert scaler.is_enabled() == bool(scaler.state_dict()) == is_scaled
    assert float(scaler.scale(torch.ones(()))) == (1024.0 if is_scaled else 1.0)


def test_unasked_only_the_training_of_wide_networks_is_in_bf16(monkeypatch):
    widths = {96: False, 255: False, 256: True}
    assert {w: ModelConfig(embedding_dim=w).trains_in_bf16 for w in widths} == widths
    monkeypatch.setattr(precision, "platform_here", lambda device: SimpleNamespace(bf16=True))
    gpu = torch.device("cuda")
    assert resolve_precision(RuntimeConfig(), gpu) == torch.bfloat16
    assert resolve_precision(RuntimeConfig(), gpu, in_bf16=False) == torch.float32
    asked = RuntimeConfig(mixed_precision="bf16")
    assert resolve_precision(asked, gpu, in_bf16=False) == torch.bfloat16


def test_a_step_that_is_not_finite_is_an_error_only_when_the_search_has_ended():
    yes = torch.tensor(True)
    assert bool(UNSCALED.update_scale(yes))
    assert not bool(UNSCALED.update_scale(~yes))
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter])
    scaler = make_scaler(RuntimeConfig(mixed_precision="fp16"), CPU)
    errors = []
    for _ in range(12):
        scaler.scale(parameter.sum() * torch.inf).backward()
        scaler.unscale_(optimizer)
        errors.append(bool(scaler.update_scale(yes)))
        optimizer.zero_grad()
    assert errors == [False] * 10 + [True] * 2
