"""The optimizer: what it trains and how fast, and its state, keyed by the names of parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.sharding import shard_like
from aam.engine.options import TrainingOptions


def make_optimizer(
    model: nn.Module, options: TrainingOptions, factor: Callable[[str], float] = lambda name: 1.0
) -> Optimizer:
    """Return AdamW, Adam or SGD over the trainable parameters, fused; only weight matrices decay.

    Parameters
    ----------
    model : nn.Module
    options : TrainingOptions
    factor : callable
        Factor of the learning rate by the name of a parameter; stands as ``factor`` in each group.
    """
    trainable = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    factors = list(dict.fromkeys([1.0, *sorted({factor(name) for name in trainable})]))
    groups = [
        {
            "params": [
                p
                for name, p in trainable.items()
                if factor(name) == rate and (p.ndim >= 2) == is_matrix
            ],
            "weight_decay": options.weight_decay if is_matrix else 0.0,
            "factor": rate,
        }
        for rate in factors
        for is_matrix in (True, False)
    ]
    if options.optimizer != "sgd":
        kind = torch.optim.Adam if options.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, lr=options.lr, fused=True)
    sgd = torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=True)
    for parameter in trainable.values() if options.momentum else ():
        # Left to torch, a first step that is skipped would leave what memory held.
        sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


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
