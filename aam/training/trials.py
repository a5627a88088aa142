"""What the probe tries of a training: steps that are captured or compiled, and workers."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from aam.config import FineTuneConfig, PretrainConfig
from aam.data.batch import PaddedBatch
from aam.device.distributed import SINGLE, process_group
from aam.device.environment import rank_of
from aam.device.measure import held_memory, memory_limit
from aam.device.platform import Facts
from aam.device.precision import resolve_precision
from aam.engine.capture import LEAST_LIMIT, MOST_MEMORY, WARM_UP_STEPS, CapturedSteps, gate
from aam.engine.ranks import RankSteps
from aam.engine.step import StepOutcome
from aam.errors import RunError
from aam.options import configured
from aam.training.decisions import PretrainingSteps, batch_of_most_asvs, make_steps
from aam.training.pretrain import GPU_WORKERS, NetworkOptions

# Batches of each shape that a trial takes, and the number of batches that it looks at for them.
BATCHES_PER_SHAPE, TRIAL_BATCHES = 3, 64
# Batches that the trial of workers takes.
FORKED_BATCHES = 4
# The least limit of compiled steps: a compiler joins operations, which rounds all results anew.
COMPILED_LIMIT = 1e-2

CONFIGS = {type(config).__name__: config for config in (PretrainConfig(), FineTuneConfig())}


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
    compiler: str | None = None,
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
    compiler : str, optional
        Back end of torch.compile.
    captured : bool

    Raises
    ------
    RunError
        The weights differ, or the graphs do not fit into memory beside eager steps.
    """
    options = _options_of(device, config, kind)
    is_alone = rank_of(os.environ) is None
    with nullcontext(SINGLE) if is_alone else process_group(options.runtime) as world:
        steps = make_steps(options, world=world)
        task, model = steps.task, steps.task.config.model
        if captured and task.capacities is None:
            task.use_constant_shapes()
        task.train = replace(task.train, workers=0)
        precision = resolve_precision(options.runtime, device, model.trains_in_bf16)
        rounding = torch.finfo(precision).eps / 2
        return check_steps(steps, trial_batches(steps), rounding, compiler, captured)


def check_steps(
    steps: PretrainingSteps,
    batches: Sequence[Any],
    rounding: float,
    compiler: str | None = None,
    captured: bool = False,
) -> Facts:
    """Compare steps that are captured, compiled or both with eager ones by the `gate`, and count
    the memory of graphs and eager steps together.

    Raises
    ------
    RunError
        The weights differ, nothing could be captured, or the memory is above the limit.
    """
    task = steps.task
    eager = RankSteps(steps.setup) if task.shares_vectors else steps.setup
    graphs = CapturedSteps(steps.setup, eager.parts)
    # This trial is the check, and a shape that fails ends it.
    graphs.is_right, graphs.falls_back = True, False

    def take(window: Sequence[Any]) -> StepOutcome:
        if compiler and not task.compiler:
            task.compile_losses(compiler)
        return (graphs if captured else eager).take(window)

    def prepared() -> Iterator[Any]:
        return (task.prepare(batch, number) for number, batch in enumerate(batches))

    least = COMPILED_LIMIT if compiler else LEAST_LIMIT
    facts = gate(steps.setup, take, eager.take, prepared, rounding, least)
    return facts | _graph_facts(graphs) if captured else facts


def _graph_facts(steps: CapturedSteps) -> Facts:
    """Return the number of graphs, and the bytes that they and eager steps hold."""
    if not steps.graphs:
        raise RunError("no batch has a constant shape")
    held = held_memory(steps.task.device)
    limit = memory_limit(steps.task.device, MOST_MEMORY)
    if held > limit:
        memory = f"{held / 1e9:.1f} GB of the {limit / 1e9:.1f} GB that may be held"
        raise RunError(f"eager steps and {len(steps.graphs)} graphs together need {memory}")
    return {"graphs": len(steps.graphs), "held_bytes": held, "limit_bytes": limit}


def _options_of(device: torch.device, config: Facts, kind: str) -> NetworkOptions:
    """Return the options of a run on a device, from plain data."""
    options = configured(CONFIGS[kind], config, "")
    return replace(options, runtime=replace(options.runtime, device=str(device)))


def try_workers(
    device: torch.device, config: Facts, kind: str, study: Facts | None = None
) -> Facts:
    """Prepare batches by processes that are forked while the device is in use; compare them with
    those of this process.
    """
    steps = make_steps(_options_of(device, config, kind))
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
