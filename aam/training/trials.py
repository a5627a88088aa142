"""What the probe tries of a training: steps that are captured or compiled, and workers."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig, PretrainConfig
from aam.data.batch import PaddedBatch
from aam.device.measure import held_memory, memory_limit
from aam.device.platform import Facts
from aam.device.precision import resolve_precision
from aam.engine.capture import WARM_UP_STEPS, CapturedSteps
from aam.engine.step import MicroBatch, Snapshot, StepRunner, TakeStep, weight_distance
from aam.errors import RunError
from aam.options import configured
from aam.training.decisions import PretrainingSteps, batch_of_most_asvs, make_steps
from aam.training.pretrain import GPU_WORKERS, NetworkOptions

# Batches of each shape that a trial takes, and the number of batches that it looks at for them.
BATCHES_PER_SHAPE, TRIAL_BATCHES = 3, 64
# Batches that the trial of workers takes.
FORKED_BATCHES = 4
# How many times the difference of eager runs may be exceeded, and the bounds of that limit.
FACTOR, LEAST_LIMIT, LARGEST_NOISE = 10.0, 1e-6, 0.1
# The least limit of compiled steps: a compiler joins operations, which rounds all results anew.
COMPILED_LIMIT = 1e-2
# Learning rates of the trial, as shares of the run's.
RATES = (1.0, 0.5, 0.75)
# Share of a device's memory that eager steps and graphs may hold together.
MEMORY_SHARE = 0.95

CONFIGS: dict[str, NetworkOptions] = {
    "PretrainConfig": PretrainConfig(),
    "FineTuneConfig": FineTuneConfig(),
}


def run_steps(
    steps: StepRunner, take: TakeStep, batches: Sequence[Any], rounding: float = 0.0
) -> list[Tensor]:
    """Take a step on each batch with `take`, and put the training back; return the weights at the
    end.

    The learning rate changes from step to step. With `rounding` each weight begins off by that
    share of itself, up or down: as far as results may differ that sum in another order.
    """
    before = Snapshot(steps.model, steps.optimizer, steps.device)
    rates = [float(group["lr"]) for group in steps.optimizer.param_groups]
    task = steps.task
    try:
        if rounding:
            _round_weights(steps.model, rounding)
        for number, (batch, share) in enumerate(zip(batches, itertools.cycle(RATES), strict=False)):
            for group, rate in zip(steps.optimizer.param_groups, rates, strict=True):
                group["lr"] = share * rate
            window = [MicroBatch(task.prepare(batch, number), number)]
            take(window)
        return before.weights()
    finally:
        before.restore()
        for group, rate in zip(steps.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


@torch.no_grad()
def _round_weights(model: nn.Module, share: float) -> None:
    """Move each weight up or down by a share of itself, without the generator of dropout."""
    for weight in model.parameters():
        draw = torch.Generator(weight.device).manual_seed(weight.numel())
        up = torch.rand(weight.shape, generator=draw, device=weight.device) < 0.5
        weight.mul_(torch.where(up, 1 + share, 1 - share))


class EagerSteps(NamedTuple):
    """What eager steps do to the weights.

    Attributes
    ----------
    end : list of tensors
        The weights at the end.
    movement : float
        Norm of the change of all weights.
    noise : float
        Largest difference between two eager runs, as a share of the movement.
    """

    end: list[Tensor]
    movement: float
    noise: float


def run_eager(steps: StepRunner, batches: Sequence[Any], rounding: float) -> EagerSteps:
    """Take eager steps three times, once with `rounding`, and leave the training as it was.

    Runs differ: some devices add in another order each time, and training enlarges what rounding
    does.

    Raises
    ------
    RunError
        The weights do not move, are not finite, or differ too much to judge other steps by.
    """
    begin = Snapshot(steps.model, steps.optimizer, steps.device).values
    end, *others = (
        run_steps(steps, steps.setup.take, batches, share) for share in (0.0, 0.0, rounding)
    )
    movement = weight_distance(end, begin)
    if not 0 < movement < math.inf:
        raise RunError(f"eager steps move the weights by {movement:g}")
    noise = max(weight_distance(other, end) for other in others) / movement
    if not noise <= LARGEST_NOISE:
        raise RunError(f"eager steps differ by {noise:.2g} from each other: nothing can be judged")
    return EagerSteps(end, movement, noise)


def check_steps(
    steps: StepRunner,
    take: TakeStep,
    batches: Sequence[Any],
    eager: EagerSteps,
    least: float = LEAST_LIMIT,
) -> Facts:
    """Compare the weights after steps of `take` with those after eager steps.

    Returns
    -------
    dict
        ``difference``, ``eager_difference`` and ``limit``, as shares of the movement, and a
        ``reason`` in words.

    Raises
    ------
    RunError
        The difference is above `FACTOR` times that of eager runs, and above `least`.
    """
    difference = weight_distance(run_steps(steps, take, batches), eager.end) / eager.movement
    limit = min(max(FACTOR * eager.noise, least), LARGEST_NOISE)
    reason = (
        f"after {len(batches)} steps the weights differ by {difference:.2g} from eager ones, "
        f"and those by {eager.noise:.2g} from each other"
    )
    if not difference <= limit:
        raise RunError(reason)
    numbers = {"difference": difference, "eager_difference": eager.noise, "limit": limit}
    return {"reason": reason, **numbers}


def trial_batches(steps: PretrainingSteps) -> list[PaddedBatch]:
    """Return batches of a run: several of each shape, in turn, and one with the most ASVs."""
    task, by_shape = steps.task, defaultdict[Hashable, list[PaddedBatch]](list)
    epochs = itertools.chain.from_iterable(task.batches(epoch, 0) for epoch in itertools.count(0))
    for number, batch in enumerate(itertools.islice(epochs, TRIAL_BATCHES)):
        same = by_shape[task.shape(task.prepare(batch, number))]
        if len(same) < BATCHES_PER_SHAPE:
            same.append(batch)
    # The first steps are eager, and one more of each shape.
    rounds = range(BATCHES_PER_SHAPE + (WARM_UP_STEPS if task.capacities is not None else 0))
    turns = [same[turn % len(same)] for turn in rounds for same in by_shape.values()]
    return [*turns, batch_of_most_asvs(steps.loader)]  # type: ignore[list-item]


def try_steps(
    device: torch.device,
    config: Facts,
    kind: str,
    study: Facts | None = None,
    compiler: str = "",
    captured: bool = False,
) -> Facts:
    """Compare steps of a run that are captured, compiled or both with eager ones.

    Parameters
    ----------
    device : torch.device
    config : dict
        The options of the run, of the configuration `kind`.
    kind : str
        Key of `CONFIGS`.
    study : dict
        Sizes of the study that the run reads; only distinguishes verdicts.
    compiler : str
        Back end of torch.compile; empty for none.
    captured : bool

    Raises
    ------
    RunError
        The weights differ, or the graphs do not fit into memory beside eager steps.
    """
    steps = steps_for(device, config, kind)
    task, runtime, model = steps.task, steps.task.config.runtime, steps.task.config.model
    if captured and task.capacities is None:
        task.use_constant_shapes()
    task.train = replace(task.train, workers=0)
    batches = trial_batches(steps)
    precision = resolve_precision(runtime, device, model.trains_in_bf16)
    eager = run_eager(steps, batches, torch.finfo(precision).eps / 2)
    if compiler:
        task.compile_losses(compiler)
    least = COMPILED_LIMIT if compiler else LEAST_LIMIT
    if not captured:
        return check_steps(steps, steps.setup.take, batches, eager, least)
    return check_captured(steps, batches, eager, least)


def check_captured(
    steps: StepRunner, batches: Sequence[Any], eager: EagerSteps, least: float = LEAST_LIMIT
) -> Facts:
    """Compare captured with eager steps as `check_steps` does, and count their memory together.

    Raises
    ------
    RunError
        The weights differ, nothing could be captured, or the memory is above the limit.
    """
    device, captured = steps.device, CapturedSteps(steps.setup)
    # This trial is the check, and a shape that fails ends it.
    captured.is_right, captured.falls_back = True, False
    facts = check_steps(steps, captured.take, batches, eager, least)
    if not captured.graphs:
        raise RunError("no batch has a constant shape")
    held, limit = held_memory(device), memory_limit(device, MEMORY_SHARE)
    if held > limit:
        memory = f"{held / 1e9:.1f} GB of the {limit / 1e9:.1f} GB that may be held"
        raise RunError(f"eager steps and {len(captured.graphs)} graphs together need {memory}")
    return {**facts, "graphs": len(captured.graphs), "held_bytes": held, "limit_bytes": limit}


def steps_for(device: torch.device, config: Facts, kind: str) -> PretrainingSteps:
    """Return the steps of a run from its options as plain data."""
    options = configured(CONFIGS[kind], config, "")
    runtime = replace(options.runtime, device=str(device))
    return make_steps(replace(options, runtime=runtime))


def try_workers(
    device: torch.device, config: Facts, kind: str, study: Facts | None = None
) -> Facts:
    """Prepare batches by processes that are forked while the device is in use; compare them with
    those of this process.
    """
    steps = steps_for(device, config, kind)
    task = steps.task
    task.train = replace(task.train, workers=task.train.workers or GPU_WORKERS)
    # The device is in use before the first process is forked.
    float(torch.ones(2, device=device).sum())
    ahead = [*itertools.islice(task.batches(0, 0), FORKED_BATCHES)]
    for number, batch in enumerate(ahead):
        steps.step(batch, number)
    workers = task.train.workers
    task.train.close()
    task.train = replace(task.train, workers=0)
    for batch, other in zip(ahead, task.batches(0, 0), strict=False):
        for name, value in batch.tensors().items():
            if not torch.equal(value.nan_to_num(-1), other.tensors()[name].nan_to_num(-1)):
                raise RunError(f"{name} of a batch differs from that of the main process")
    return {"reason": f"{len(ahead)} batches of {workers} processes", "workers": workers}
