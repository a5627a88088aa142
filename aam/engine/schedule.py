"""The learning-rate schedule: a linear warm-up, then half a cosine down to 0."""

from __future__ import annotations

import math

from aam.options import TrainingOptions


def warmup_steps(config: TrainingOptions, total: int) -> int:
    """Return the steps of warm-up: as set, or a tenth of the run up to 1,000; always shorter than
    the run.
    """
    steps = min(1000, total // 10) if config.warmup_steps is None else config.warmup_steps
    return min(steps, max(total - 1, 0))


def learning_rate(config: TrainingOptions, step: int, total: int) -> float:
    """Return the learning rate of `step` (from 0) in a run of `total` steps; past the end it is
    0.
    """
    warmup = warmup_steps(config, total)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    share = min((step - warmup) / max(total - warmup, 1), 1.0)
    return config.lr * 0.5 * (1 + math.cos(math.pi * share))
