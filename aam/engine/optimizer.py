"""The optimizer and its state."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.config import TrainConfig
from aam.runtime.distributed import shard_like
from aam.training.warm_start import CONDITIONED


def make_optimizer(model: nn.Module, config: TrainConfig, categorical_lr: float | None = None) -> Optimizer:
    """AdamW, Adam or SGD over the trainable parameters, fused; only weight matrices decay.

    What reads categories learns at `categorical_lr`: ``factor`` of a group multiplies the rate of the moment.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    ways = [(trainable, 1.0)]
    if categorical_lr is not None:
        named = {id(p) for name, p in model.named_parameters() if name.startswith(CONDITIONED)}
        ways = [
            ([p for p in trainable if (id(p) in named) == one], f)
            for one, f in ((False, 1.0), (True, categorical_lr / config.lr))
        ]
    groups = [
        {"params": [p for p in parameters if (p.ndim >= 2) == matrices], "weight_decay": decay, "factor": factor}
        for parameters, factor in ways
        for matrices, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    if config.optimizer != "sgd":
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, lr=config.lr, fused=True)
    sgd = torch.optim.SGD(groups, lr=config.lr, momentum=0.9, fused=True)
    for parameter in trainable:
        # Left to torch, a first step that is skipped would leave what memory held.
        sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def optimizer_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """What an optimizer remembers, as ``PARAMETER.NAME``."""
    state = optimizer.state_dict()["state"]
    return {f"{place}.{name}": value for place, values in state.items() for name, value in values.items()}


def load_optimizer_state(optimizer: Optimizer, remembered: dict[str, Tensor]) -> None:
    """Put back what `moments` gave."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, value in remembered.items():
        place, _, kind = name.partition(".")
        like = parameters[int(place)]
        state[int(place)][kind] = shard_like(value, like) if value.shape == like.shape else value
    optimizer.load_state_dict({"state": dict(state), "param_groups": optimizer.state_dict()["param_groups"]})
