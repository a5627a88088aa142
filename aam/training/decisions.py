"""Decisions of a run by its machine: attention, the largest batch that fits, the memory of a step,
the compiler.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from aam.config import FineTuneConfig, PretrainConfig
from aam.data.batch import Batch, PaddedBatch
from aam.data.inputs import read_inputs
from aam.data.loader import Loader
from aam.data.study import Study, make_study
from aam.device.attention import decide_execution
from aam.device.distributed import SINGLE, World
from aam.device.measure import StageTimer, memory_limit, seconds, stage
from aam.device.platform import Facts, prepare_device
from aam.device.precision import make_scaler
from aam.device.probe import PROBE_SECONDS, ProbeSpec, machine_facts, read_verdict, verdict
from aam.engine.ranks import RankSteps
from aam.engine.run import earlier_decisions
from aam.engine.step import StepRunner, batch_and_accumulation, largest_batch
from aam.errors import RunError
from aam.model.aam import Aam, HeadConfig
from aam.options import to_dict
from aam.training.pretrain import AmpliconTask, NetworkOptions, create_network, pretraining_loaders

log = logging.getLogger("aam")

# --- single steps of pretraining, as benchmarks, profiles and finders take them -----------------

PREPARING = ("data wait", "UniFrac", "transfer")
STAGES = (*PREPARING, "ASV encoder", "sample encoder", "losses", "backward", "optimizer")


@contextlib.contextmanager
def encoder_stages() -> Iterator[None]:
    """Mark the stages of both encoders while the context lasts, in copies of a network too."""
    stages = {"encode_batch": "ASV encoder", "encode_samples": "sample encoder"}
    with contextlib.ExitStack() as methods:
        for method, name in stages.items():
            encode = getattr(Aam, method)
            methods.callback(setattr, Aam, method, encode)
            setattr(Aam, method, stage(name)(encode))
        yield


@dataclass(eq=False)
class PretrainingSteps(StepRunner):
    """Steps of `aam pretrain`: loader, masks, network, losses and optimizer of the real run."""

    task: AmpliconTask

    @property
    def loader(self) -> Loader:
        """The loader of the training samples."""
        return self.task.train

    def take(self, number: int, epoch: int) -> tuple[list[float], list[PaddedBatch]]:
        """Return seconds and batches of `number` steps from the start of epoch `epoch` on."""
        epochs = (self.task.batches(count, 0) for count in itertools.count(epoch))
        loaded, batches = itertools.chain.from_iterable(epochs), list[PaddedBatch]()

        def step() -> None:
            with stage("data wait"):
                batches.append(next(loaded))
            self.step(batches[-1], len(batches) - 1)

        return [seconds(step, self.device) for _ in range(number)], batches

    def stages(self, number: int, epoch: int) -> dict[str, Any]:
        """Return mean seconds of each stage of a step, and their sum's share of the wall time."""
        with encoder_stages(), StageTimer(self.device, STAGES) as times:
            wall = sum(self.take(number, epoch)[0])
        means = {name: times.get(name, 0.0) / number for name in STAGES}
        return {"stages": means, "accounted": number * sum(means.values()) / wall}


def make_steps(
    config: NetworkOptions, task_class: type[AmpliconTask] = AmpliconTask, world: World = SINGLE
) -> PretrainingSteps:
    """Return everything that a step of pretraining on all samples needs, or of another task
    (`steps_of`).
    """
    device, model = prepare_device(config.runtime), config.model
    data = config.inputs if isinstance(config, PretrainConfig) else config.data
    decide_execution(config.runtime, device, model.attention_shapes, in_bf16=model.trains_in_bf16)
    study = make_study(read_inputs(data), data, model.max_bp, config.runtime.seed)
    config = replace(config, model=replace(model, max_bp=model.max_bp or study.longest))
    return steps_of(config, study, device, task_class, world)


def steps_of(
    config: NetworkOptions,
    study: Study,
    device: torch.device,
    task_class: type[AmpliconTask] = AmpliconTask,
    world: World = SINGLE,
) -> PretrainingSteps:
    """Return steps on all samples of a study; those of supervised training have one numeric
    target.
    """
    targets = int(isinstance(config, FineTuneConfig))
    if targets:
        zeros = np.zeros((len(study.table.sample_ids), targets), np.float32)
        study = replace(study, labels=replace(study.labels, target=zeros))
    counts = config.train.count_penalty > 0
    heads = HeadConfig(study.metric, (0.5, 0.2), counts=counts, n_targets=targets)
    model = create_network(study, heads, config).to(device).train()
    model.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    rows = np.arange(len(study.table.sample_ids))
    loaders = pretraining_loaders(study, (rows, rows[:0]), config, world)
    task = task_class(model, config, *loaders, device, world=world)
    optimizer, scaler = task.configure_optimizer(config.train), make_scaler(config.runtime, device)
    steps = PretrainingSteps(task, optimizer, scaler, config.train.max_grad_norm, world=world)
    if task.shares_vectors:
        steps.take_step = RankSteps(steps.setup).take
    return steps


# --- the largest batch, and the memory of a step -----------------------------------------------

MEMORY_ADVICE = "lower --asv-chunk-size or --token-limit, or pass --gradient-checkpointing"


def batch_of_most_asvs(loader: Loader) -> Batch:
    """Return the batch of an epoch that is expected to have the most ASVs, as no other is drawn for
    it.

    Samples differ far more than rarefactions do; to draw all batches of a large study takes longer
    than steps.
    """
    rows = max(loader.order(0), key=lambda rows: loader.study.richness[rows].sum())
    return loader.draw(rows, 0)


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
        raise RunError(f"{error}; {MEMORY_ADVICE}") from None


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
    default = type(config)().train.samples_per_batch
    effective = default * train.gradient_accumulation_steps
    config = replace(config, train=replace(train, batch_size=default))
    batch = earlier.get("batch")
    sizes: list[Any] = [batch.get(name) for name in names] if isinstance(batch, dict) else [0]
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(sizes) != effective:
        steps = steps_of(config, study, device)
        fitting = max(largest_fitting_batch(steps, memory_limit(device), effective))
        # Where all samples fit, so does any batch.
        fitting = effective if fitting == len(steps.loader.rows) else fitting
        sizes = [*batch_and_accumulation(effective, fitting)]
    log.info("batches of %d, %d for each step of %d samples", *sizes, effective)
    return dict(zip(names, sizes, strict=True))


# --- what the probe says of this device -----------------------------------------------------------


# From the most to the least that torch.compile does.
COMPILERS = {f"compile-{name}": name for name in ("inductor", "aot_eager")}
# What the probe tries of a run, and what a run does instead where it fails.
CHECKS = {
    "workers": "the main process prepares the batches",
    "capture": "steps are started one operation at a time, and slower",
    **dict.fromkeys(COMPILERS, "--compile-model takes another compiler, or none"),
}

# Options that change no step of a run, by section.
NO_MATTER = {
    "runtime": {
        *("debug", "overwrite", "output_dir", "resume_from", "dry_run", "seed", "device"),
        *("checkpoint_minutes", "memory_profile", "compile_model"),
    },
    "train": {"epochs", "patience", "ema_decay", "warmup_steps"},
}


def step_spec(
    trial: str,
    config: NetworkOptions,
    study: Study | None,
    device: torch.device,
    world: World = SINGLE,
    **options: Any,
) -> ProbeSpec:
    """Return what the probe is to try of the steps of a run (`aam.training.trials`).

    Parameters
    ----------
    trial : str
        Name of the function.
    config : NetworkOptions
    study : Study, optional
        The study of the run, whose sizes decide the shapes of batches. Without one the verdict is
        not kept.
    device : torch.device
    world : World
        The ranks of the run, which try its steps together.
    **options
        Further options of the function.
    """
    plain = to_dict(config)
    for section, names in NO_MATTER.items():
        plain[section] = {n: value for n, value in plain[section].items() if n not in names}
    sizes: Facts = {}
    if study is not None:
        counts = study.table.counts
        sizes = {"samples": counts.shape[0], "asvs": counts.shape[1], "entries": int(counts.nnz)}
        sizes |= {"depth": study.depth, "length": study.longest}
    arguments = {"config": plain, "kind": type(config).__name__, "study": sizes, **options}
    name = f"aam.training.trials:{trial}"
    # The child reads the table again: about a second for a million entries.
    limit = PROBE_SECONDS + sizes.get("entries", 0) / 1e6
    # On a busy CPU inductor took 297 s.
    limit += PROBE_SECONDS if options.get("compiler") else 0.0
    together = trial == "try_steps"
    return ProbeSpec(name, arguments, device, limit, world, together, kept=study is not None)


def probed_names(config: NetworkOptions, device: torch.device) -> list[str]:
    """Return the `CHECKS` before a run with these options; what the run does not do is not
    tried.
    """
    runtime, names = config.runtime, list[str]()
    if device.type == "cuda":
        names.append("workers")
        is_single = config.train.gradient_accumulation_steps == 1 and not runtime.fsdp
        if is_single and not runtime.no_capture and runtime.mixed_precision != "fp16":
            names.append("capture")
    return [*names, *COMPILERS] if runtime.compile_model else names


def chosen_compiler(verdicts: Facts) -> str:
    """Return the first compiler that works; empty without one."""
    return next((COMPILERS[name] for name in COMPILERS if verdicts.get(name, {}).get("ok")), "")


def probe_run(
    config: NetworkOptions,
    study: Study | None,
    device: torch.device,
    world: World = SINGLE,
    known: Mapping[str, Facts] = {},
) -> Facts:
    """Return whether this device can do what a run is about to do; every rank must call it.

    Verdicts that are `known` are not asked for again. After a compiler that works no other is
    tried.

    Returns
    -------
    dict
        For each of `CHECKS` that was tried ``ok``, ``reason`` and ``seconds``.
    """
    verdicts = Facts()
    for name in probed_names(config, device):
        trial, options = "try_workers", Facts()
        if name != "workers":
            captured = name == "capture" or verdicts.get("capture", {}).get("ok", False)
            trial, options = "try_steps", {"compiler": COMPILERS.get(name), "captured": captured}
        if name in known:
            verdicts[name] = known[name]
        elif name not in COMPILERS or not chosen_compiler(verdicts):
            spec = step_spec(trial, config, study, device, world, **options)
            verdicts[name] = verdict(name, spec).as_facts()
    return verdicts


def decide_steps(
    config: NetworkOptions,
    study: Study,
    device: torch.device,
    earlier: Facts,
    world: World = SINGLE,
) -> Facts:
    """Return the verdicts of the probe on a run, or those of the run that is resumed on the same
    machine, so that its steps stay the same; every rank must call it, and gets those of rank 0.
    """
    if not probed_names(config, device):
        return {}
    machine, known = machine_facts(device), {n: earlier[n] for n in CHECKS if n in earlier}
    if earlier.get("machine") != machine or None in map(read_verdict, known.values()):
        known = {}
    machine, known = world.broadcast([machine, known])
    verdicts = probe_run(config, study, device, world, known)
    compiler = chosen_compiler(verdicts)
    if config.runtime.compile_model:
        log.info("torch.compile: %s", compiler or "eager")
    return {"machine": machine, **verdicts, "compiler": compiler}


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
    kind = (runtime, device, model.attention_shapes)
    earlier, decisions = Facts(), Facts()
    if world.is_main:
        earlier = earlier_decisions(runtime)
        decisions = decide_execution(*kind, earlier, model.trains_in_bf16)
        decisions["batch"] = choose_batch_size(config, study, device, earlier)
    decisions = world.broadcast(decisions)
    if not world.is_main:
        decide_execution(*kind, decisions, model.trains_in_bf16)
    config = replace(config, train=replace(config.train, **decisions["batch"]))
    decisions |= decide_steps(config, study, device, earlier, world)
    if decisions.get("compiler"):
        # Where a shape fails later all the same, its frame runs uncompiled.
        torch._dynamo.config.suppress_errors = True
    return config, decisions
