"""The benchmark: training steps of both stages in one process, and on two that run apart, in
turn.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
from typing import Any

import torch

from aam.device.distributed import process_group
from aam.device.environment import available_cores, rank_of
from aam.device.measure import peak_memory
from aam.device.platform import device_name, prepare_device
from aam.engine.trainer import LOG_STEPS, Trainer
from aam.errors import Problems
from aam.files.atomic import write_text
from aam.files.output_folder import check_output_file
from aam.options import RunConfig
from examples.htft.commands import MODULE, build
from examples.htft.config import BenchmarkConfig, StudentOptions, TrainConfig
from examples.htft.task import Data, PipelinedTask, StudentTask
from examples.htft.windows import Capture, Windows
from examples.runs import run_ranks

LENGTH, WIDTH, CLASSES = 16, 64, 48

# Steps before the clock starts.
WARM_UP = 20


def random_windows(count: int) -> Windows:
    """Return windows of random numbers in the sizes of the example."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(CLASSES, (count, LENGTH), generator=random)
    hidden = torch.randn(count, LENGTH, WIDTH, generator=random)
    target = torch.randint(CLASSES, (count,), generator=random)
    return Windows(tokens, hidden, target, torch.zeros(count, 0))


def time_steps(config: BenchmarkConfig, ranks: int) -> dict[str, float]:
    """Return the seconds of the steps after the warm-up, in wall and processor time, and the
    largest memory.
    """
    training = TrainConfig(student=StudentOptions(units=config.units))
    options = dataclasses.replace(training.train, epochs=1)
    windows = random_windows(options.samples_per_batch * (config.steps + WARM_UP))
    captured = Capture({"train": windows}, CLASSES, {})
    data = Data(windows, windows.rows(slice(options.samples_per_batch)), 0)
    runtime = RunConfig(distributed=ranks > 1, device="cpu", threads=config.threads)
    clocks: list[tuple[float, float]] = []

    def after_step(trainer: Trainer) -> None:
        if trainer.progress.step in (WARM_UP, WARM_UP + config.steps):
            clocks.append((time.perf_counter(), time.process_time()))

    with process_group(runtime) as world:
        device = prepare_device(runtime)
        task = (PipelinedTask if ranks > 1 else StudentTask)(
            build(training, captured, world), data, options, device, world
        )
        Trainer(task, options, runtime, world, after_step=after_step).fit()
    (wall, processor), (wall_end, processor_end) = clocks
    return {
        "wall": wall_end - wall,
        "processor": processor_end - processor,
        "peak_bytes": peak_memory(device),
    }


def measure(ranks: int) -> dict[str, Any]:
    """Return what `time_steps` measures in new processes: of the slowest and largest, and processor
    time of each.
    """
    outputs = run_ranks(ranks, sys.argv[1:], MODULE)
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    largest = {name: max(result[name] for result in results) for name in results[0]}
    processors = [result["processor"] for result in results]
    return {**largest, "processors": processors, "load": os.getloadavg()[0]}


def benchmark(config: BenchmarkConfig) -> None:
    """Measure both kinds in turn, print them, and write the profile; a process that was started for
    it measures.
    """
    problems = Problems()
    if config.steps % LOG_STEPS:
        multiple = f"a multiple of {LOG_STEPS}, after which two processes meet"
        problems.add(f"--steps {config.steps} is not {multiple}")
    if len(config.units) != 2:
        problems.add(f"--units is {' '.join(map(str, config.units))}, expected 2 numbers")
    problems.raise_if_any()
    if place := rank_of(os.environ):
        print(json.dumps(time_steps(config, place.size)))
        return
    check_output_file(config.profile, overwrite=True)
    pairs = [(measure(1), measure(2)) for _ in range(config.repeats)]
    samples = config.steps * TrainConfig().train.samples_per_batch
    cases = {}
    for name, runs in zip(("one process", "two processes"), zip(*pairs, strict=True), strict=True):
        seconds = statistics.median(run["wall"] for run in runs)
        processor = statistics.median(run["processor"] for run in runs)
        cases[name] = {
            "seconds": {"p50": seconds},
            "samples_per_s": {"p50": samples / seconds},
            "processor_seconds": processor,
            "peak_bytes": max(run["peak_bytes"] for run in runs),
        }
        of_busier = f"{processor:.2f} s of processor in the busier process"
        print(f"{name:<14} {samples / seconds:8.0f} windows/s, {of_busier}")
    for kind in ("wall", "processor"):
        ratios = [one[kind] / two[kind] for one, two in pairs]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        faster = f"{statistics.median(ratios):.2f} times as fast by {kind} time"
        print(f"two processes are {faster} ({each})")
    platform = {"device": device_name(torch.device("cpu")), "cores": available_cores()}
    platform |= {"torch": torch.__version__, "threads": config.threads}
    report = {"platform": platform, "steps": config.steps, "units": config.units}
    report |= {"cases": cases, "pairs": pairs}
    config.profile.parent.mkdir(parents=True, exist_ok=True)
    write_text(config.profile, json.dumps(report, indent=1) + "\n")
    print(config.profile)
