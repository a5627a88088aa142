"""Batch size and memory: the largest batch that fits, and what a step needs."""

from __future__ import annotations

import dataclasses
import logging
import math

import numpy as np
import torch
from scipy.optimize import nnls

from aam.config import FineTuneConfig, TrainConfig
from aam.data.batch import Batch, Budget
from aam.data.loader import Loader
from aam.data.study import Study
from aam.engine.finders import largest_batch
from aam.errors import InputError, RunError
from aam.runtime.memory import memory_limit, peak_memory, reset_peak, resident_memory
from aam.runtime.platform import Facts
from aam.training.steps import PretrainingSteps, steps_of

log = logging.getLogger("aam")


LOWER = "raise --max-memory-fraction, lower --asv-chunk-size or --token-limit, or pass --gradient-checkpointing"


def _peak(steps: PretrainingSteps, size: int) -> int:
    """Bytes at most during two steps, the optimizer's included, on the batch of an epoch that has the most ASVs."""
    loader = dataclasses.replace(steps.loader, batch_size=size)
    # Samples differ far more than rarefactions do, so the expected number of ASVs says which batch is largest.
    largest = max(loader.order(0), key=lambda rows: loader.study.richness[rows].sum())
    return _most(steps, loader.draw(largest, 0))


def _most(steps: PretrainingSteps, batch: Batch) -> int:
    """Bytes at most during two steps on `batch`."""
    reset_peak(steps.device)
    for number in range(2):
        steps.step(batch, number)
    return peak_memory(steps.device)


def largest_fitting_batch(steps: PretrainingSteps, limit: int, most: int | None = None) -> dict[int, int]:
    """Return the peak bytes of each batch size, at most `most` and the samples there are, that stays below `limit`."""
    most = min(most or len(steps.loader.rows), len(steps.loader.rows))
    base = resident_memory() if steps.device.type == "cpu" else 0
    with steps.restored():
        try:
            return largest_batch(lambda size: _peak(steps, size), limit, most, base)
        except RunError as error:
            raise RunError(f"{error}; {LOWER}") from None


def memory_model(steps: PretrainingSteps, limit: int) -> Budget:
    """What a step needs by the size of its batch, from steps on ever larger batches, as long as `limit` allows.

    Half of them hold the samples of the most ASVs, whose distinct ASVs and slots grow together; half hold one sample
    again and again, so that the slots grow alone.

    Raises
    ------
    RunError
        Not even one sample fits.
    """
    loader = steps.loader
    richest = np.argsort(-loader.study.richness, kind="stable")
    tried: list[tuple[float, ...]] = []
    with steps.restored():
        # The first steps fill what stays: the optimizer's state and the libraries' own.
        found = Budget(_most(steps, loader.draw(richest[-1:], 0)), 0, 0, limit)
        for size in (1 << power for power in range(loader.batch_size.bit_length())):
            for rows in (richest[:size], np.repeat(richest[:1], size)):
                batch = loader.draw(rows, 0)
                if found.allows(batch):
                    tried.append((1.0, batch.tokens.numel(), batch.asv.numel(), _most(steps, batch)))
                    seen = np.array(tried)
                    scale = seen.max(0)
                    fitted = nnls(seen[:, :3] / scale[:3], seen[:, 3] / scale[3])[0] * scale[3] / scale[:3]
                    found = Budget._make([*fitted.tolist(), limit])
    if not tried or not found.allows(loader.draw(richest[:1], 0)):
        raise RunError(f"not even one sample fits into {limit / 1e9:.1f} GB; {LOWER}")
    return found


def budget_of(
    config: FineTuneConfig, study: Study, device: torch.device, before: Facts, processes: int
) -> Budget | None:
    """With ``--max-memory-fraction`` what a step needs and may take, as `before` where the run goes on.

    On a CPU all `processes` share the memory. Raises `RunError` where not even one sample fits.
    """
    train, known = config.train, before.get("memory", {})
    if train.max_memory_fraction is None or train.auto_batch_size:
        return None
    if known.keys() != set(Budget._fields) or any(type(value) not in (int, float) for value in known.values()):
        share = train.max_memory_fraction / (processes if device.type == "cpu" else 1)
        known = memory_model(steps_of(config, study, device), memory_limit(device, share))._asdict()
    found = Budget(**known)
    rows = np.argsort(-study.richness, kind="stable")[: train.batch_size]
    parts = len(Loader(study, rows, train.batch_size, distances=False, budget=found).cut(rows, 0))
    said = f"{found.base / 1e9:.2f} GB + {found.token:.0f} bytes a base + {found.slot:.0f} bytes an ASV of a sample"
    log.info("a step takes %s, at most %.2f GB; the largest batch comes in parts: %d", said, found.most / 1e9, parts)
    return found


def sizes(config: TrainConfig, fitting: int | None) -> tuple[int, int]:
    """Batch size and accumulation: the effective batch is kept, with batches of at most `fitting` samples.

    Raises `InputError` where the effective batch that is asked for is no multiple of the batch size.
    """
    effective = config.target_effective_batch_size or config.batch_size * config.gradient_accumulation_steps
    if fitting is None:
        if effective % config.batch_size:
            raise InputError(
                f"--target-effective-batch-size is {effective}, expected a multiple of --batch-size {config.batch_size}"
            )
        return config.batch_size, effective // config.batch_size
    size = max(one for one in range(1, min(fitting, effective) + 1) if effective % one == 0)
    return size, effective // size


def sized(config: FineTuneConfig, study: Study, device: torch.device, before: Facts) -> tuple[FineTuneConfig, Facts]:
    """The configuration with its batch size and accumulation, and what decided them; said where they change."""
    train, names = config.train, ["batch_size", "gradient_accumulation_steps"]
    effective = train.target_effective_batch_size or train.batch_size * train.gradient_accumulation_steps
    fitting, found = None, before.get("batch", {})
    known = (
        isinstance(found, dict) and [*found] == names and all(type(each) is int and each > 0 for each in found.values())
    )
    if not train.auto_batch_size or not known or math.prod(found.values()) != effective:
        if train.auto_batch_size:
            limit, steps = memory_limit(device, train.max_memory_fraction), steps_of(config, study, device)
            fitting = max(largest_fitting_batch(steps, limit, effective))
            # All samples there are.
            fitting = effective if fitting == len(steps.loader.rows) else fitting
        found = dict(zip(names, sizes(train, fitting), strict=True))
    if train.auto_batch_size:
        log.info("batches of %d, %d for each step of %d samples", *found.values(), effective)
    return dataclasses.replace(config, train=dataclasses.replace(train, **found)), found
