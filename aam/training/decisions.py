"""Decisions of a run by its machine: attention, the largest batch that fits, the memory of a step,
the compiler.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from aam.config import FineTuneConfig, ModelConfig, PretrainConfig
from aam.data.batch import Batch, Shelved
from aam.data.loader import Loader, rarefied_batch
from aam.data.study import MetadataColumns, Study, make_study, read_inputs
from aam.device.attention import decide_execution
from aam.device.distributed import SINGLE, World
from aam.device.measure import StageTimer, Trace, memory_limit, seconds, stage
from aam.device.platform import Facts, cached_verdict, device_name, prepare_device
from aam.device.precision import autocast, make_scaler, resolve_precision
from aam.engine.run import earlier_decisions
from aam.engine.step import (
    MicroBatch,
    StepRunner,
    batch_and_accumulation,
    largest_batch,
    train_step,
)
from aam.errors import RunError
from aam.model.aam import Aam, HeadConfig, example_batch
from aam.options import RunConfig, RuntimeConfig, configured, to_dict
from aam.training.pretrain import AmpliconTask, NetworkOptions, pretraining_loaders

log = logging.getLogger("aam")

# --- single steps of pretraining, as benchmarks, profiles and finders take them -----------------

PREPARING = ("data wait", "UniFrac", "transfer")
STAGES = (*PREPARING, "ASV encoder", "sample encoder", "losses", "backward", "optimizer")


@dataclass(eq=False)
class PretrainingSteps(StepRunner):
    """Steps of `aam pretrain`: loader, masks, network, losses and optimizer of the real run."""

    task: AmpliconTask

    @property
    def model(self) -> Aam:
        """The model of the task."""
        return self.task.model

    @property
    def loader(self) -> Loader:
        """The loader of the training samples."""
        return self.task.train

    def take(self, number: int, epoch: int) -> tuple[list[float], list[Shelved]]:
        """Return seconds and batches of `number` steps from the start of epoch `epoch` on."""
        of_epochs = (self.task.batches(at, 0) for at in itertools.count(epoch))
        batches, taken = itertools.chain.from_iterable(of_epochs), list[Shelved]()

        def one_step() -> None:
            with stage("data wait"):
                taken.append(next(batches))
            self.step(taken[-1], len(taken) - 1)

        return [seconds(one_step, self.device) for _ in range(number)], taken

    def stages(self, number: int, epoch: int) -> dict[str, Any]:
        """Return mean seconds of each stage of a step, and their sum's share of the wall time."""
        methods = {"encode_asvs": "ASV encoder", "encode_samples": "sample encoder"}
        plain = {method: getattr(Aam, method) for method in methods}
        for method, name in methods.items():
            setattr(Aam, method, stage(name)(plain[method]))
        try:
            with StageTimer(self.device, STAGES) as taken:
                wall = sum(self.take(number, epoch)[0])
        finally:
            for method, function in plain.items():
                setattr(Aam, method, function)
        means = {name: taken.get(name, 0.0) / number for name in STAGES}
        return {"stages": means, "accounted": number * sum(means.values()) / wall}


def make_steps(
    config: NetworkOptions, task_class: type[AmpliconTask] = AmpliconTask
) -> PretrainingSteps:
    """Return everything that a step of pretraining on all samples needs, or of another task.

    Steps of supervised training have one numeric target.
    """
    device, model = prepare_device(config.runtime), config.model
    data = config.inputs if isinstance(config, PretrainConfig) else config.data
    decide_execution(config.runtime, device, model.attention_shapes, in_bf16=model.trains_in_bf16)
    inputs = read_inputs(data, MetadataColumns())
    study = make_study(inputs, data, model.max_bp, config.runtime.seed)
    config = replace(config, model=replace(model, max_bp=model.max_bp or study.longest))
    targets = int(isinstance(config, FineTuneConfig))
    return steps_of(config, study, device, targets, task_class)


def steps_of(
    config: NetworkOptions,
    study: Study,
    device: torch.device,
    targets: int = 0,
    task_class: type[AmpliconTask] = AmpliconTask,
) -> PretrainingSteps:
    """Return steps on all samples of a study, with a head for this number of numeric targets."""
    if targets:
        zeros = np.zeros((len(study.table.sample_ids), targets), np.float32)
        study = replace(study, labels=replace(study.labels, target=zeros))
    torch.manual_seed(config.runtime.seed)
    counts = config.train.count_penalty > 0
    heads = HeadConfig(study.metric, (0.5, 0.2), counts=counts, n_targets=targets)
    with stage("model creation"):
        model = Aam(config.model, study.depth, heads, study.reference_width).to(device).train()
    model.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    rows = np.arange(len(study.table.sample_ids))
    task = task_class(model, config, *pretraining_loaders(study, (rows, rows[:0]), config), device)
    optimizer, scaler = task.configure_optimizer(config.train), make_scaler(config.runtime, device)
    return PretrainingSteps(task, optimizer, scaler, config.train.max_grad_norm)


def step_numbers(steps: PretrainingSteps, batches: Sequence[Shelved]) -> dict[str, int]:
    """Cost of a step for the host, and the number of shapes of some batches.

    Returns
    -------
    dict
        ``operations_per_step`` that start a kernel, ``host_waits_per_step``, ``distinct_shapes`` of
        the batches, ``graphs`` (shapes that can be captured).
    """
    task = steps.task
    prepared = [task.prepare(batch, number) for number, batch in enumerate(batches)]
    with steps.restored(), Trace() as trace:
        arguments = (task, steps.optimizer, steps.scaler, SINGLE, steps.max_grad_norm)
        train_step(task.network, [MicroBatch(prepared[0], 0)], *arguments)
    shapes = {batch.batch.shape() for batch in prepared}
    graphs = {task.shape(batch) for batch in prepared} - {None}
    host = {"operations_per_step": len(trace.operations), "host_waits_per_step": trace.waits}
    return {**host, "distinct_shapes": len(shapes), "graphs": len(graphs)}


# --- the largest batch, and the memory of a step -----------------------------------------------

ADVICE = "lower --asv-chunk-size or --token-limit, or pass --gradient-checkpointing"


def batch_of_most_asvs(loader: Loader) -> Batch:
    """Return the batch of an epoch that is expected to have the most ASVs, as no other is drawn for
    it.

    Samples differ far more than rarefactions do; to draw all batches of a large study takes longer
    than steps.
    """
    rows = max(loader.order(0), key=lambda rows: loader.study.richness[rows].sum())
    return rarefied_batch(loader.study, rows, 0, loader.how)


def _epoch_peak(steps: PretrainingSteps, size: int) -> int:
    """Return the peak bytes of two steps on the batch of `size` samples with the most ASVs."""
    return steps.peak_bytes(batch_of_most_asvs(replace(steps.loader, batch_size=size)))


def largest_fitting_batch(
    steps: PretrainingSteps, limit: int, max_size: int | None = None
) -> dict[int, int]:
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
    largest = min(max_size or len(steps.loader.rows), len(steps.loader.rows))

    try:
        return largest_batch(steps, partial(_epoch_peak, steps), limit, largest)
    except RunError as error:
        raise RunError(f"{error}; {ADVICE}") from None


def choose_batch_size(
    config: PretrainConfig | FineTuneConfig, study: Study, device: torch.device, earlier: Facts
) -> Facts:
    """Return batch size and accumulation, by name.

    With ``--batch-size auto`` they are those of the run that is resumed, whose decisions are
    `earlier`, where its effective batch is the same; otherwise the largest batch that fits, with
    the accumulation that keeps the samples of a step.
    """
    train, names = config.train, ("batch_size", "gradient_accumulation_steps")
    if train.batch_size != "auto":
        return {name: getattr(train, name) for name in names}
    usual = type(config)().train.samples_per_batch
    effective = usual * train.gradient_accumulation_steps
    config = replace(config, train=replace(train, batch_size=usual))
    known = earlier.get("batch")
    sizes: list[Any] = [known.get(name) for name in names] if isinstance(known, dict) else [0]
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(sizes) != effective:
        steps = steps_of(config, study, device, int(isinstance(config, FineTuneConfig)))
        fitting = max(largest_fitting_batch(steps, memory_limit(device), effective))
        # Where all samples fit, so does any batch.
        fitting = effective if fitting == len(steps.loader.rows) else fitting
        sizes = [*batch_and_accumulation(effective, fitting)]
    log.info("batches of %d, %d for each step of %d samples", *sizes, effective)
    return dict(zip(names, sizes, strict=True))


# --- the compiler of torch that works on this machine ------------------------------------------

# From the most to the least that torch.compile does.
COMPILERS = ("inductor", "aot_eager")

EAGER = "eager"

COMPILE_SECONDS = 240.0

# Largest relative difference from eager: in bf16 the order of sums shows.
COMPILE_TOLERANCE = 5e-2


def try_compiler() -> None:
    """Compile the network that standard input describes, and run it forward and backward.

    Runs in a separate process, which it ends with a message where the result differs from eager
    execution.
    """
    request = json.load(sys.stdin)
    model = configured(ModelConfig(), request["model"], "")
    runtime = configured(RunConfig(), request["runtime"], "")
    device = prepare_device(runtime)
    torch.manual_seed(0)
    network = Aam(model, 1000, HeadConfig("unifrac", counts=True)).to(device).train()
    batch = example_batch(min(model.positions, 100)).to(device)
    with autocast(runtime, device, model.trains_in_bf16):
        expected = network(batch).samples.double()
        network.bound_memory(runtime.asv_chunk_size, runtime.gradient_checkpointing)
        network.compile_encoders(request["compiler"])
        compiled = network(batch).samples.double()
    compiled.sum().backward()
    error = float((compiled - expected).abs().max() / expected.abs().max())
    if not error < COMPILE_TOLERANCE:
        sys.exit(f"off by {error:.3g} against eager")


def try_in_subprocess(compiler: str, model: ModelConfig, runtime: RuntimeConfig) -> str:
    """Return ``right`` where a compiler works for such a network, else what went wrong.

    It runs in a separate process for at most `COMPILE_SECONDS`, so that neither a crash nor a hang
    ends this one.
    """
    request = {"model": to_dict(model), "runtime": to_dict(runtime), "compiler": compiler}
    command = [sys.executable, "-c", f"from {__name__} import try_compiler; try_compiler()"]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": COMPILE_SECONDS}
    try:
        process = subprocess.run(command, input=json.dumps(request), **how)
    except subprocess.TimeoutExpired:
        return f"not done within {COMPILE_SECONDS:.0f} s"
    if process.returncode == 0:
        return "right"
    lines = [f"its process ended with status {process.returncode}"]
    lines += [line for line in process.stderr.splitlines() if "rror" in line or "off by" in line]
    return lines[-1].strip()[:300]


def compile_verdict(
    model: ModelConfig, runtime: RuntimeConfig, device: torch.device, anew: bool = False
) -> Facts:
    """Return the compiler that works here for such a network as ``backend``, and the outcome of
    each as ``tried``.

    A verdict that this machine reached earlier is used again, unless `anew`.
    """

    def try_all() -> Facts:
        tried: dict[str, str] = {}
        for compiler in COMPILERS:
            tried[compiler] = try_in_subprocess(compiler, model, runtime)
            if tried[compiler] == "right":
                return {"backend": compiler, "tried": tried}
        return {"backend": EAGER, "tried": tried}

    precision = resolve_precision(runtime, device, model.trains_in_bf16)
    key = {"device": device_name(device), "torch": torch.__version__, "precision": str(precision)}
    return cached_verdict("compile", {**key, "model": to_dict(model)}, try_all, _is_verdict, anew)


def _is_verdict(value: Any) -> bool:
    """Return whether a value that was read from a file is a verdict."""
    has_backend = isinstance(value, dict) and value.get("backend") in (*COMPILERS, EAGER)
    return has_backend and isinstance(value.get("tried"), dict)


def compiler_for(
    model: ModelConfig, runtime: RuntimeConfig, device: torch.device, earlier: Facts
) -> Facts:
    """Return the verdict for a run with ``--compile-model``, and log the compilers that fail.

    `earlier` are the decisions of the run that is resumed; a verdict among them is used again.
    """
    verdict: Facts = earlier.get("compile", {})
    if not _is_verdict(verdict):
        verdict = compile_verdict(model, runtime, device)
    for name, outcome in verdict["tried"].items():
        if outcome != "right":
            log.warning("torch.compile with %s fails here (%s)", name, outcome)
    log.info("torch.compile: %s", verdict["backend"])
    # Where a shape fails later all the same, its frame runs uncompiled.
    torch._dynamo.config.suppress_errors = True
    return verdict


# --- all decisions of a run --------------------------------------------------------------------


Options = TypeVar("Options", PretrainConfig, FineTuneConfig)


def decide(
    config: Options, study: Study, device: torch.device, world: World
) -> tuple[Options, Facts]:
    """Return the options of a run with its batch size, and all decisions of this machine or of the
    run that is resumed.

    All ranks take the decisions of the main rank.
    """
    runtime, model = config.runtime, config.model
    earlier = earlier_decisions(runtime) if world.is_main else world.broadcast(None)
    decisions = decide_execution(
        runtime, device, model.attention_shapes, earlier, model.trains_in_bf16
    )
    decisions["batch"] = choose_batch_size(config, study, device, earlier)
    if runtime.compile_model:
        decisions["compile"] = compiler_for(model, runtime, device, earlier)
    if world.is_main:
        world.broadcast(decisions)
    train = replace(config.train, **decisions["batch"])
    return replace(config, train=train), decisions
