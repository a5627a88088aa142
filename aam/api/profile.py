"""`aam profile`: where the time and the memory of a training step go."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aam.api.machine_report import read_baseline, write_report
from aam.config import PretrainConfig, ProfileConfig
from aam.device import attention, measure
from aam.device.distributed import SINGLE, World, process_group, start_ranks
from aam.device.environment import rank_of
from aam.device.platform import Facts, choose_device, device_name
from aam.device.precision import resolve_precision
from aam.engine.run import describe
from aam.errors import InputError, RunError
from aam.files.atomic import read_json, write_text
from aam.files.output_folder import MEMORY_FILES, RUN, OutputFolder
from aam.options import LARGEST, RunConfig, files_read, not_none, to_dict
from aam.training.decisions import (
    PretrainingSteps,
    batch_of_most_asvs,
    largest_fitting_batch,
    make_steps,
    step_numbers,
)

UNTIMED_STEPS = 2
# What one of several ranks counts, until it is read.
RANK_NUMBERS = "ranks.json"


def make_profile_steps(
    config: PretrainConfig, constant: bool, world: World = SINGLE
) -> PretrainingSteps:
    """Return steps of pretraining, with `constant` in batches of constant shape, all of whose ASVs
    are encoded at once.
    """
    if constant:
        at_once = config.runtime.asv_chunk_size or LARGEST
        config = replace(config, runtime=replace(config.runtime, asv_chunk_size=at_once))
    steps = make_steps(config, world=world)
    if constant:
        steps.task.use_constant_shapes()
    return steps


@contextlib.contextmanager
def attention_of_gpu(constant: bool) -> Iterator[None]:
    """Let a CPU compute attention by one operation, as a GPU does, if `constant`."""
    limits = dict(attention.SHORT)
    if constant:
        attention.SHORT.clear()
    try:
        yield
    finally:
        attention.SHORT.update(limits)


def count_on_ranks(config: ProfileConfig, folder: Path) -> Facts:
    """Return the numbers of `step_numbers` of one of several ranks, which are started here.

    Raises
    ------
    RunError
        A rank fails.
    """
    words = ["profile", "--config", str(folder / RUN)]
    processes = start_ranks(config.ranks, words, "aam")
    try:
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(statuses):
        raise RunError(f"--ranks {config.ranks}: the processes ended with {statuses}")
    numbers: Any = read_json(folder / RANK_NUMBERS)
    (folder / RANK_NUMBERS).unlink()
    return dict(numbers)


def _count_as_rank(config: ProfileConfig, training: PretrainConfig) -> None:
    """Take steps as one of several ranks; the first of them writes its numbers."""
    runtime = replace(training.runtime, distributed=True)
    constant = attention_of_gpu(config.constant_shapes)
    with process_group(runtime) as world, constant:
        training = replace(training, runtime=runtime)
        steps = make_profile_steps(training, config.constant_shapes, world)
        steps.take(UNTIMED_STEPS, 0)
        numbers = step_numbers(steps, steps.take(config.steps, 1)[1])
        if world.is_main:
            path = not_none(config.runtime.output_dir) / RANK_NUMBERS
            write_text(path, json.dumps({"ranks": world.size, **numbers}))


def measure_steps(config: PretrainConfig, repeats: int, constant: bool = False) -> Facts:
    """Return speed, memory, arithmetic and stages of training steps.

    ``samples_per_s`` is the median over `repeats` steps without timers, ``share`` the rate of
    arithmetic over that of a matrix product in the same precision, ``accounted`` the share of the
    wall time in ``stages`` (mean seconds); ``peak_bytes`` includes the epoch's largest batch.
    """
    steps = make_profile_steps(config, constant)
    wide = steps.task.config.model.trains_in_bf16
    # On a CPU float32, as a product in fp16 takes minutes there.
    on_cpu = steps.device.type == "cpu"
    dtype = torch.float32 if on_cpu else resolve_precision(config.runtime, steps.device, wide)
    measure.reset_peak(steps.device)
    steps.take(UNTIMED_STEPS, 0)
    times, batches = steps.take(repeats, 1)
    speeds = [len(batch.sample_ids) / took for batch, took in zip(batches, times, strict=True)]
    losses = [float(loss) for loss in steps.losses]
    steps.step(batch_of_most_asvs(steps.loader))
    peak = measure.peak_memory(steps.device)
    middle = int(np.argsort(times)[(repeats - 1) // 2])
    stages = steps.stages(max(repeats // 2, 1), 2)
    flops = measure.count_flops(lambda: steps.step(batches[middle]))
    product, rate = measure.product_rate(steps.device, dtype=dtype), flops / times[middle]
    half, most = np.percentile(times, [50, 95]).tolist()
    return {
        "samples_per_s": float(np.median(speeds)),
        "step_s": {"p50": half, "p95": most},
        "steps": repeats,
        "batch_size": config.train.samples_per_batch,
        "rows": float(np.mean([len(batch.tokens) for batch in batches])),
        **step_numbers(steps, batches),
        "flops": flops,
        "flops_per_s": rate,
        "product_flops_per_s": product,
        "share": rate / product,
        "peak_bytes": peak,
        "losses": losses,
        **stages,
    }


def _print_steps(measured: Facts) -> None:
    total = sum(measured["stages"].values())
    for name, seconds in measured["stages"].items():
        print(f"{name:<15} {1e3 * seconds:8.1f} ms {seconds / total:6.1%}")
    rate, product = measured["flops_per_s"] / 1e9, measured["product_flops_per_s"] / 1e9
    speed, peak = measured["samples_per_s"], measured["peak_bytes"] / 1e9
    print(f"{measured['accounted']:.1%} of the wall time; {speed:.1f} samples/s")
    print(f"{rate:.0f} GFLOP/s, {measured['share']:.1%} of the product's {product:.0f}")
    print(_counts(measured, measured["steps"]))
    if rank_numbers := measured.get("of_ranks"):
        print(f"{rank_numbers['ranks']} ranks: {_counts(rank_numbers, measured['steps'])}")
    print(f"{peak:.2f} GB of memory at most")


def _counts(numbers: Facts, steps: int) -> str:
    operations, waits = numbers["operations_per_step"], numbers["host_waits_per_step"]
    shapes = f"{numbers['distinct_shapes']} shapes in {steps} steps, {numbers['graphs']} graphs"
    return f"{operations} operations, {waits} host waits; {shapes}"


# Names of attention kernels: of AOTriton, of CK and CUTLASS, and of flash attention.
ATTENTION = re.compile(r"attn|attention|fmha|flash|bwd_kernel_d|bwd_preprocess", re.IGNORECASE)

# How many kernels are listed.
LISTED_KERNELS = 10


def read_kernels(path: Path) -> dict[str, float]:
    """Return the seconds of each kernel, longest first, from a file ``*_kernel_stats.csv``, or from
    the folder that rocprofv3 wrote; `InputError` without kernels.
    """
    import pandas as pd

    files = sorted(path.rglob("*kernel_stats.csv")) if path.is_dir() else [path]
    try:
        rows = pd.concat(map(pd.read_csv, files))
        seconds = rows.groupby("Name", sort=False)["TotalDurationNs"].sum() / 1e9
    except (OSError, KeyError, TypeError, ValueError) as error:
        expected = "*kernel_stats.csv of rocprofv3 --kernel-trace --stats --output-format csv"
        problem = f"--rocprof: {path}: no kernels can be read ({error})"
        raise InputError(f"{problem}; expected {expected}") from None
    kernels: dict[str, float] = seconds.sort_values(ascending=False, kind="stable").to_dict()
    return kernels


def kernel_table(kernels: Mapping[str, float]) -> list[str]:
    """Return lines with the ten kernels that cost most, attention apart."""
    total = sum(kernels.values())
    attention = {name: seconds for name, seconds in kernels.items() if ATTENTION.search(name)}
    remainder = {name: seconds for name, seconds in kernels.items() if name not in attention}
    lines = [f"kernels: {total:.3g} s, attention {sum(attention.values()) / total:.1%}"]
    for title, group in (("attention", attention), ("other", remainder)):
        for name, seconds in [*group.items()][:LISTED_KERNELS]:
            share = f"{1e3 * seconds:10.2f} ms {seconds / total:6.1%}"
            lines.append(f"{title:<10} {name[:60]:<60} {share}")
    return lines


def profile(config: ProfileConfig) -> None:
    """Run `aam profile`: print what was measured and write profile.json to ``--output-dir``."""
    runtime = RunConfig(**vars(config.runtime))
    training = PretrainConfig(config.data, config.model, config.train, runtime)
    if config.ranks > 1 and rank_of(os.environ) is not None:
        _count_as_rank(config, training)
        return
    baseline = read_baseline(config.baseline)
    kernels = {} if config.rocprof is None else read_kernels(config.rocprof)
    folder = not_none(config.runtime.output_dir)
    files, outputs = files_read(config), [RUN, "profile.json", *MEMORY_FILES]
    output = OutputFolder(folder, "profile", outputs, [*files.values()], config.runtime.overwrite)
    output.check()
    record = describe("profile", to_dict(config), files, {})
    folder.mkdir(parents=True, exist_ok=True)
    output.begin(record)
    if config.what == "memory":
        measure.memory_profiled(lambda _: make_steps(training).take(config.steps, 0), config)
        return
    device = device_name(choose_device(config.runtime.device))
    report: Facts = {"what": config.what, "device": device, "torch": torch.__version__}
    if config.what == "step":
        with attention_of_gpu(config.constant_shapes):
            report |= measure_steps(training, config.steps, config.constant_shapes)
        if config.ranks > 1:
            report["of_ranks"] = count_on_ranks(config, folder)
        _print_steps(report)
        if kernels:
            report["kernels"] = kernels
            print("\n".join(kernel_table(kernels)))
    else:
        steps = make_steps(training)
        limit = measure.memory_limit(steps.device)
        fits = largest_fitting_batch(steps, limit)
        largest = max(fits)
        memory = f"{fits[largest] / 1e9:.2f} of {limit / 1e9:.2f} GB"
        print(f"largest batch: {largest} samples, {memory}")
        report |= {"limit_bytes": limit, "peak_bytes_of": fits, "batch_size": largest}
    write_report(report, baseline, folder / "profile.json")
