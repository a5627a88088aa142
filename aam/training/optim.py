"""Optimizer and the course of its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from aam.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW, Adam or SGD over the trainable parameters; only weight matrices decay."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=0.9)
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, lr=config.lr)
    return torch.optim.AdamW(groups, lr=config.lr)


def warmup_steps(config: TrainConfig, total: int) -> int:
    """Steps of warm-up: as asked, or a tenth of the run up to 1,000; always shorter than the run."""
    asked = min(1000, total // 10) if config.warmup_steps is None else config.warmup_steps
    return min(asked, max(total - 1, 0))


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """Learning rate of `step` (from 0) in a run of `total` steps; past the end it stays at its last value."""
    warmup = 0 if config.scheduler == "cosine" else warmup_steps(config, total)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.scheduler == "constant":
        return config.lr
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return config.lr * 0.5 * (1 + math.cos(math.pi * progress))
