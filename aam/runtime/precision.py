"""In which floating-point precision a network runs: autocast, and loss scaling for fp16."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from aam.runtime.device import platform_here
from aam.runtime.options import RuntimeConfig
from aam.runtime.routing import RouteToCpu, cpu_operations


def precision(config: RuntimeConfig, device: torch.device) -> torch.dtype:
    """The precision of the network on `device`."""
    # Every step asks; only a GPU needs its properties for the answer.
    return resolve_precision(config, device.type == "cuda" and platform_here(device).bf16)


def resolve_precision(config: RuntimeConfig, in_hardware: bool) -> torch.dtype:
    """What is asked for or, on ``auto``, bf16 where a GPU has it in hardware; else float32."""
    if config.mixed_precision == "fp16":
        return torch.float16
    wanted = config.mixed_precision == "bf16" or (config.mixed_precision == "auto" and in_hardware)
    return torch.bfloat16 if wanted else torch.float32


@contextlib.contextmanager
def autocast(config: RuntimeConfig, device: torch.device) -> Iterator[None]:
    """The context in which the network runs: in the precision of `precision`, each operation where it is right."""
    dtype, names = precision(config, device), cpu_operations(device)
    with contextlib.ExitStack() as stack:
        if dtype != torch.float32:
            stack.enter_context(torch.autocast(device.type, dtype=dtype))
        if names:
            stack.enter_context(RouteToCpu(names))
        yield


class Scaler(torch.amp.GradScaler):
    """Scales the loss so that gradients survive in fp16, by a factor that it looks for; elsewhere it does nothing."""

    def update_scale(self, nonfinite: Tensor) -> Tensor:
        """Choose the next factor; return whether a `nonfinite` step is more than the search for one."""
        failed = nonfinite & (self.scale(torch.ones_like(nonfinite, dtype=torch.float32)) <= 1)
        self.update()
        return failed


UNSCALED = Scaler("cpu", enabled=False)

# torch starts at 65,536: each halving from there costs a step, and small studies have few.
FACTOR = 1024.0


def make_scaler(config: RuntimeConfig, device: torch.device) -> Scaler:
    """A scaler for fp16; in every other precision one that does nothing."""
    return Scaler(device.type, FACTOR, enabled=precision(config, device) == torch.float16)
