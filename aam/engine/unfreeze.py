"""Gradual unfreezing: which parameters are trained in an epoch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer


def unfreeze(
    model: nn.Module, optimizer: Optimizer, stages: Sequence[tuple[str, ...]], epochs: int, epoch: int
) -> None:
    """Unfreeze by `epoch`: each of `stages` for `epochs`, then everything that the optimizer has.

    Gradual unfreezing (Howard and Ruder 2018); nothing is changed where `epochs` is 0.

    Parameters
    ----------
    stages : sequence of tuple of str
        Beginnings of the names of the parameters that a stage trains.
    """
    if epochs and epoch <= len(stages) * epochs:
        parts = (*stages, ("",))[epoch // epochs]
        optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(parts) and id(parameter) in optimized)
