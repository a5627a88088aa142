"""The optimizer: what it trains and how fast, and its state, keyed by the names of parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.sharding import shard_like
from aam.engine.options import TrainingOptions


def parameter_groups(
    model: nn.Module, weight_decay: float, factor: Callable[[str], float] = lambda name: 1.0
) -> list[dict[str, Any]]:
    """Return the groups of trainable parameters for an optimizer; only weight matrices decay.

    Parameters
    ----------
    model : nn.Module
    weight_decay : float
    factor : callable
        Factor of the learning rate by the name of a parameter; stands as ``factor`` in each group.
    """
    groups: dict[tuple[float, bool], list[Tensor]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[factor(name), parameter.ndim >= 2].append(parameter)
    return [
        {"params": params, "weight_decay": weight_decay * is_matrix, "factor": rate}
        for (rate, is_matrix), params in groups.items()
    ]


def make_optimizer(
    model: nn.Module, options: TrainingOptions, factor: Callable[[str], float] = lambda name: 1.0
) -> Optimizer:
    """Return fused AdamW over `parameter_groups`."""
    groups = parameter_groups(model, options.weight_decay, factor)
    # A captured step reads its learning rate from the device.
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    return torch.optim.AdamW(groups, lr=options.lr, fused=True, capturable=on_gpu)


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the state of an optimizer as ``PARAMETER:NAME``."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}:{key}": value
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }


def load_optimizer_state(
    optimizer: Optimizer, model: nn.Module, state: Mapping[str, Tensor]
) -> None:
    """Load a state that `optimizer_state` returned, sharded as the parameters are."""
    parameters = dict(model.named_parameters())
    grouped = (parameter for group in optimizer.param_groups for parameter in group["params"])
    position = {parameter: number for number, parameter in enumerate(grouped)}
    values: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, value in state.items():
        parameter_name, _, key = name.rpartition(":")
        parameter = parameters[parameter_name]
        like_parameter = value.shape == parameter.shape
        values[position[parameter]][key] = shard_like(value, parameter) if like_parameter else value
    optimizer.load_state_dict(
        {"state": dict(values), "param_groups": optimizer.state_dict()["param_groups"]}
    )
