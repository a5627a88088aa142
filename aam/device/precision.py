"""Floating-point precision of a network: its choice, autocast, bf16 copies of float32 weights, and
loss scaling for fp16.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from aam.device.platform import platform_here
from aam.options import RuntimeConfig

# torch starts at 65,536: each halving from there costs a step, and small studies have few.
INITIAL_SCALE = 1024.0


def resolve_precision(
    config: RuntimeConfig, device: torch.device, in_bf16: bool = True
) -> torch.dtype:
    """Return the precision that ``--mixed-precision`` means on `device`.

    ``auto`` means bf16 where it is in hardware and worth it (`in_bf16`): for the training of wide
    networks. Predictions are float32, so that they are the same on every device.
    """
    if config.mixed_precision in ("fp16", "bf16"):
        return {"fp16": torch.float16, "bf16": torch.bfloat16}[config.mixed_precision]
    # Asked in each step; only a GPU needs its properties for the answer.
    is_auto = config.mixed_precision == "auto" and in_bf16 and device.type == "cuda"
    return torch.bfloat16 if is_auto and platform_here(device).bf16 else torch.float32


def autocast(
    config: RuntimeConfig, device: torch.device, in_bf16: bool = True
) -> AbstractContextManager[object]:
    """Return the context in which the network runs in the precision of `resolve_precision`."""
    dtype = resolve_precision(config, device, in_bf16)
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


class Bf16Copy:
    """A bf16 copy of a network, which a step runs forward and backward in place of autocast.

    The weights of the network are the float32 masters: the optimizer trains them, gradients are
    added up, clipped and checked there, and checkpoints and averages hold them.

    Parameters
    ----------
    model : nn.Module
    in_float32 : sequence of str
        Parameters that the copy keeps in float32.
    """

    def __init__(self, model: nn.Module, in_float32: Sequence[str] = ()) -> None:
        self.model, self.network = model, copy.deepcopy(model).bfloat16()
        self.pairs = [*zip(model.parameters(), self.network.parameters(), strict=True)]
        for name in in_float32:
            parameter = self.network.get_parameter(name)
            parameter.data = parameter.data.float()
        for master, weight in self.pairs:
            weight.requires_grad_(True)
            weight.register_post_accumulate_grad_hook(partial(_add_gradient, master))

    @torch.no_grad()
    def refreshed(self) -> nn.Module:
        """Return the copy with the present weights of the network."""
        masters, weights = zip(*self.pairs, strict=True)
        torch._foreach_copy_(list(weights), list(masters))
        for master, weight in self.pairs:
            weight.requires_grad_(master.requires_grad)
        return self.network.train(self.model.training)


def _add_gradient(master: nn.Parameter, weight: Tensor) -> None:
    """Add the gradient of a copied weight to that of its master, in float32."""
    assert weight.grad is not None
    gradient, weight.grad = weight.grad.to(master.dtype), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)


class Scaler(torch.amp.GradScaler):
    """Scale the loss so that gradients do not underflow in fp16; disabled, it does nothing.

    The scale is searched: it is halved after each step that is not finite.
    """

    def update_scale(self, nonfinite: Tensor) -> Tensor:
        """Update the scale after a step, and return whether a step that was `nonfinite` is an
        error.

        It is no error while the search may lower the scale further; the search ends at 1.
        """
        error = nonfinite & (self.scale(torch.ones_like(nonfinite, dtype=torch.float32)) <= 1)
        self.update()
        return error


UNSCALED = Scaler("cpu", enabled=False)


def make_scaler(config: RuntimeConfig, device: torch.device) -> Scaler:
    """Return a scaler for fp16, a disabled one for every other precision."""
    return Scaler(device.type, INITIAL_SCALE, enabled=config.mixed_precision == "fp16")
