"""The place of the Fourier transform: some consumer GPUs compute it wrong, or hang at it."""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

from aam.device.environment import first_tensor
from aam.device.platform import cached_verdict, device_name, platform_here
from aam.errors import InputError

# Environment variable that decides: fft=cpu or fft=device.
ROUTE = "AAM_ROUTE"

# Chips whose transform is known to be wrong.
WRONG = ("gfx1010",)

# A hang or a crash of the probe ends a child process, and counts as wrong.
PROBE = """import torch
x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
y = torch.fft.irfft(torch.fft.rfft(x.to({!r}))).cpu()
assert float((x - y).abs().max()) < 1e-3"""
PROBE_SECONDS = 60.0


@functools.cache
def fft_runs_on_cpu(device: torch.device) -> bool:
    """Return whether transforms of `device` are computed on the CPU: by AAM_ROUTE, the chip, or a
    probe.

    Raises
    ------
    InputError
        AAM_ROUTE has an unknown value.
    """
    rule = os.environ.get(ROUTE)
    if rule:
        if rule not in ("fft=cpu", "fft=device"):
            raise InputError(f"{ROUTE} is {rule!r}, expected fft=cpu or fft=device")
        return rule == "fft=cpu"
    if device.type == "cpu":
        return False
    if device.type == "cuda" and platform_here(device).architecture in WRONG:
        return True
    question = {"device": device_name(device), "torch": torch.__version__}
    verdict = cached_verdict(
        "fft",
        question,
        lambda: {"failure": first_tensor(str(device), PROBE, PROBE_SECONDS)},
        lambda value: isinstance(value, dict) and isinstance(value.get("failure"), str),
    )
    return bool(verdict["failure"])


def rfft(x: Tensor) -> Tensor:
    """Return `torch.fft.rfft` of the last axis on the device of `x`, computed where it is right."""
    place = torch.device("cpu") if fft_runs_on_cpu(x.device) else x.device
    spectrum: Tensor = torch.fft.rfft(x.to(place)).to(x.device)
    return spectrum
