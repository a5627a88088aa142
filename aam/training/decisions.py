"""Decisions of a run by its machine: attention, the largest batch that fits, the memory of a step, the compiler."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import nnls

from aam.config import FineTuneConfig, TrainConfig
from aam.data.collate import Collation
from aam.data.loader import Budget, Loader
from aam.data.study import Study
from aam.device.attention import decide_execution
from aam.device.memory import memory_limit
from aam.device.platform import Facts
from aam.engine.finders import batch_and_accumulation, fitting_batches
from aam.engine.run import earlier_decisions
from aam.errors import InputError, RunError
from aam.training.compilation import compiler_for
from aam.training.inputs import Prepared
from aam.training.steps import PretrainingSteps, steps_of

log = logging.getLogger("aam")

ADVICE = "raise --max-memory-fraction, lower --asv-chunk-size or --token-limit, or pass --gradient-checkpointing"


def _epoch_peak(steps: PretrainingSteps, size: int) -> int:
    """Return the peak bytes of two steps on the batch of `size` samples that has the most ASVs in an epoch."""
    loader = dataclasses.replace(steps.loader, batch_size=size)
    # Samples differ far more than rarefactions do, so the expected number of ASVs says which batch is largest.
    largest = max(loader.order(0), key=lambda rows: loader.study.richness[rows].sum())
    return steps.peak_bytes(loader.batch(largest, 0))


def largest_fitting_batch(steps: PretrainingSteps, limit: int, max_size: int | None = None) -> dict[int, int]:
    """Return the peak bytes of each batch size that was tried and stays below `limit`.

    Parameters
    ----------
    steps : PretrainingSteps
        Left as they were.
    limit : int
        Bytes that may be held.
    max_size : int, optional
        Largest size to try; unset: all samples that there are.

    Raises
    ------
    RunError
        Not even one sample fits.
    """
    max_size = min(max_size or len(steps.loader.rows), len(steps.loader.rows))
    try:
        return fitting_batches(steps, lambda size: _epoch_peak(steps, size), limit, max_size)
    except RunError as error:
        raise RunError(f"{error}; {ADVICE}") from None


def _fit_budget(measurements: Sequence[Sequence[float]], limit: int) -> Budget:
    """Return the non-negative least-squares fit of peak bytes to rows of 1, tokens, slots and peak bytes."""
    values = np.array(measurements)
    scale = values.max(0)
    fitted = nnls(values[:, :3] / scale[:3], values[:, 3] / scale[3])[0] * scale[3] / scale[:3]
    return Budget._make([*fitted.tolist(), limit])


def fit_memory_model(steps: PretrainingSteps, limit: int) -> Budget:
    """Return the bytes of a step by the size of its batch, measured on ever larger batches within `limit` bytes.

    Half of them hold the samples of the most ASVs, whose distinct ASVs and slots grow together; half hold one sample
    again and again, so that the slots grow alone.

    Raises
    ------
    RunError
        Not even one sample fits.
    """
    loader = steps.loader
    richest = np.argsort(-loader.study.richness, kind="stable")
    measurements: list[tuple[float, ...]] = []
    with steps.restored():
        # The first steps fill what stays: the state of the optimizer and of the libraries.
        budget = Budget(steps.peak_bytes(loader.batch(richest[-1:], 0)), 0, 0, limit)
        for size in (1 << power for power in range(loader.batch_size.bit_length())):
            for rows in (richest[:size], np.repeat(richest[:1], size)):
                batch = loader.batch(rows, 0)
                if budget.allows(batch):
                    measurements.append((1.0, batch.tokens.numel(), batch.asv.numel(), steps.peak_bytes(batch)))
                    budget = _fit_budget(measurements, limit)
    if not measurements or not budget.allows(loader.batch(richest[:1], 0)):
        raise RunError(f"not even one sample fits into {limit / 1e9:.1f} GB; {ADVICE}")
    return budget


def measure_budget(
    config: FineTuneConfig, study: Study, device: torch.device, earlier: Facts, processes: int
) -> Budget | None:
    """Return what a step needs and may take with ``--max-memory-fraction``, else None.

    Parameters
    ----------
    config : FineTuneConfig
    study : Study
    device : torch.device
    earlier : Facts
        Decisions of the run that is resumed; a budget among them is used again.
    processes : int
        On a CPU all of them share the memory.

    Raises
    ------
    RunError
        Not even one sample fits.
    """
    train = config.train
    values = earlier.get("memory", {})
    if train.max_memory_fraction is None or train.auto_batch_size:
        return None
    if values.keys() != set(Budget._fields) or any(type(value) not in (int, float) for value in values.values()):
        share = train.max_memory_fraction / (processes if device.type == "cpu" else 1)
        values = fit_memory_model(steps_of(config, study, device), memory_limit(device, share))._asdict()
    budget = Budget(**values)
    rows = np.argsort(-study.richness, kind="stable")[: train.batch_size]
    parts = len(Loader(study, rows, train.batch_size, how=Collation(distances=False), budget=budget).cut(rows, 0))
    formula = (
        f"{budget.base / 1e9:.2f} GB + {budget.token:.0f} bytes a base + {budget.slot:.0f} bytes an ASV of a sample"
    )
    limit = f"{budget.limit / 1e9:.2f} GB"
    log.info("a step takes %s, at most %s; the largest batch comes in parts: %d", formula, limit, parts)
    return budget


def _effective_batch_size(config: TrainConfig) -> int:
    return config.target_effective_batch_size or config.batch_size * config.gradient_accumulation_steps


def split_batch(config: TrainConfig, fitting: int | None) -> tuple[int, int]:
    """Return batch size and accumulation that keep the effective batch, with at most `fitting` samples in a batch.

    Raises
    ------
    InputError
        ``--target-effective-batch-size`` is no multiple of the batch size.
    """
    effective = _effective_batch_size(config)
    if fitting is None:
        if effective % config.batch_size:
            raise InputError(
                f"--target-effective-batch-size is {effective}, expected a multiple of --batch-size {config.batch_size}"
            )
        return config.batch_size, effective // config.batch_size
    return batch_and_accumulation(effective, fitting)


def choose_batch_size(
    config: FineTuneConfig, study: Study, device: torch.device, earlier: Facts
) -> tuple[FineTuneConfig, Facts]:
    """Return the configuration with its batch size and accumulation, and both by name.

    With ``--auto-batch-size`` they are those of the run that is resumed, whose decisions are `earlier`, where its
    effective batch is the same; otherwise the largest batch that fits is searched for.
    """
    train = config.train
    names = ["batch_size", "gradient_accumulation_steps"]
    effective = _effective_batch_size(train)
    fitting = None
    sizes = earlier.get("batch", {})
    valid = (
        isinstance(sizes, dict)
        and [*sizes] == names
        and all(type(size) is int and size > 0 for size in sizes.values())
        and math.prod(sizes.values()) == effective
    )
    if not train.auto_batch_size or not valid:
        if train.auto_batch_size:
            limit = memory_limit(device, train.max_memory_fraction)
            steps = steps_of(config, study, device)
            fitting = max(largest_fitting_batch(steps, limit, effective))
            # All samples there are.
            fitting = effective if fitting == len(steps.loader.rows) else fitting
        sizes = dict(zip(names, split_batch(train, fitting), strict=True))
    if train.auto_batch_size:
        log.info("batches of %d, %d for each step of %d samples", *sizes.values(), effective)
    return dataclasses.replace(config, train=dataclasses.replace(train, **sizes)), sizes


def decide(prepared: Prepared) -> tuple[Prepared, Facts]:
    """Return the inputs of a run with its batch size and memory, and all decisions, by this machine or a resumed run.

    All ranks take the decisions of the main rank.
    """
    runtime, model, world = prepared.config.runtime, prepared.config.model, prepared.world
    earlier = earlier_decisions(runtime) if world.is_main else json.loads(world.broadcast(b""))
    decisions = decide_execution(runtime, prepared.device, model.head_width, earlier)
    config, decisions["batch"] = choose_batch_size(prepared.config, prepared.study, prepared.device, earlier)
    budget = measure_budget(config, prepared.study, prepared.device, earlier, world.size)
    decisions |= {} if budget is None else {"memory": budget._asdict()}
    if runtime.compile_model:
        decisions["compile"] = compiler_for(model, runtime, prepared.device, earlier)
    if world.is_main:
        world.broadcast(json.dumps(decisions).encode())
    return dataclasses.replace(prepared, config=config, budget=budget), decisions
