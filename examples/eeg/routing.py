"""The place of the Fourier transform: some consumer GPUs compute it wrong, or hang at it."""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

from aam.device.platform import platform_here
from aam.device.probe import ProbeSpec, verdict
from aam.errors import InputError, RunError

# Environment variable that decides: fft=cpu or fft=device.
ROUTE = "AAM_ROUTE"

# Chips whose transform is known to be wrong.
WRONG = ("gfx1010",)

# Largest error of a transform and its inverse, and the time that the probe has for them.
TOLERANCE, PROBE_SECONDS = 1e-3, 60.0


def try_transform(device: torch.device) -> dict[str, object]:
    """Transform and back, in the child process of the probe: a hang or a crash counts as wrong."""
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    error = float((x - torch.fft.irfft(torch.fft.rfft(x.to(device))).cpu()).abs().max())
    if not error < TOLERANCE:
        raise RunError(f"off by {error:.2g}")
    return {}


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
    return not verdict("fft", ProbeSpec(f"{__name__}:try_transform", {}, device, PROBE_SECONDS)).ok


def rfft(x: Tensor) -> Tensor:
    """Return `torch.fft.rfft` of the last axis on the device of `x`, computed where it is right."""
    place = torch.device("cpu") if fft_runs_on_cpu(x.device) else x.device
    spectrum: Tensor = torch.fft.rfft(x.to(place)).to(x.device)
    return spectrum
