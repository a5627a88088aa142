"""The learning-rate schedule: the learning rate of each step."""

from __future__ import annotations

import math

from aam.engine.options import TrainingOptions


def warmup_steps(config: TrainingOptions, total: int) -> int:
    """Return the steps of warm-up: as set, or a tenth of the run up to 1,000; always shorter than
    the run.
    """
    steps = min(1000, total // 10) if config.warmup_steps is None else config.warmup_steps
    return min(steps, max(total - 1, 0))


def _cosine(share: float) -> float:
    """Return half a cosine, from 1 at `share` 0 to 0 at 1 and beyond."""
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def learning_rate(
    config: TrainingOptions, step: int, total: int, epoch_steps: int = 1, plateaus: int = 0
) -> float:
    """Return the learning rate of `step` (from 0) in a run of `total` steps; past the end it stays
    constant.

    ``cosine_restarts`` is that of Loshchilov and Hutter (2017), with periods in epochs of
    `epoch_steps`; ``onecycle`` that of Smith and Topin (2019) with torch's proportions; ``plateau``
    lowers the rate `plateaus` times.
    """
    low, high = config.scheduler_eta_min, config.lr
    if config.scheduler == "onecycle":
        top = max(0.3 * total - 1, 0.0)
        if step < top:
            return high / 25 + (high - high / 25) * (1 - _cosine(step / top))
        return high / 25e4 + (high - high / 25e4) * _cosine((step - top) / max(total - 1 - top, 1))
    warmup = 0 if config.scheduler == "cosine" else warmup_steps(config, total)
    if step < warmup:
        return high * (step + 1) / warmup
    if config.scheduler == "constant":
        return high
    if config.scheduler == "plateau":
        return max(high * config.scheduler_factor**plateaus, min(config.scheduler_min_lr, high))
    done, period = step - warmup, float(total - warmup)
    if config.scheduler == "cosine_restarts":
        period = float(config.scheduler_t0 * epoch_steps)
        while done >= period:
            done, period = done - int(period), period * config.scheduler_t_mult
    return low + (high - low) * _cosine(done / max(period, 1))
