"""`aam profile`: where the time and the memory of a training step go, and the largest batch."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aam
from aam.config import PretrainConfig, ProfileConfig
from aam.device.measure import count_flops, product_rate
from aam.device.memory import memory_limit, memory_profiled, peak_memory, reset_peak
from aam.device.platform import choose_device, device_name
from aam.device.precision import resolve_precision
from aam.engine.logger import flatten
from aam.engine.options import RunConfig
from aam.engine.run import describe
from aam.errors import InputError
from aam.files.atomic import read_json, write_text
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.options import files_read, not_none, to_dict
from aam.training.decisions import (
    batch_of_most_asvs,
    largest_fitting_batch,
    make_steps,
    step_numbers,
)

Measurements = dict[str, Any]

WARM_UP = 2

# How many kernels are listed.
LISTED = 10

# --- one step -----------------------------------------------------------------------------------


def measure_steps(config: PretrainConfig, repeats: int) -> Measurements:
    """Return speed, memory, arithmetic and stages of training steps.

    Returns
    -------
    dict
        ``samples_per_s`` (median over `repeats` steps, no timer inside), ``step_s`` (p50 and p95),
        ``peak_bytes`` (after those steps and one on the epoch's largest batch), what
        `step_numbers` counts, ``rows`` that the ASV encoder reads (mean), ``flops`` and
        ``flops_per_s`` of the median step, ``share`` of the rate of a matrix product in the same
        precision, ``stages`` (mean seconds), ``accounted`` (their share of the wall time) and
        ``losses``.
    """
    steps = make_steps(config)
    wide = steps.task.config.model.trains_in_bf16
    # On a CPU float32, as a product in fp16 takes minutes there.
    on_cpu = steps.device.type == "cpu"
    dtype = torch.float32 if on_cpu else resolve_precision(config.runtime, steps.device, wide)
    reset_peak(steps.device)
    steps.take(WARM_UP, 0)
    taken, batches = steps.take(repeats, 1)
    speeds = [len(batch.sample_ids) / took for batch, took in zip(batches, taken, strict=True)]
    losses = [float(loss) for loss in steps.losses]
    steps.step(batch_of_most_asvs(steps.loader))
    peak, stages = peak_memory(steps.device), steps.stages(max(repeats // 2, 1), 2)
    middle = int(np.argsort(taken)[(repeats - 1) // 2])
    flops = count_flops(lambda: steps.step(batches[middle]))
    product = product_rate(steps.device, dtype=dtype)
    return {
        "samples_per_s": float(np.median(speeds)),
        "step_s": dict(zip(("p50", "p95"), np.percentile(taken, [50, 95]).tolist(), strict=True)),
        "steps": repeats,
        "batch_size": config.train.samples_per_batch,
        "rows": float(np.mean([len(batch.tokens) for batch in batches])),
        **step_numbers(steps, batches),
        "flops": flops,
        "flops_per_s": flops / taken[middle],
        "product_flops_per_s": product,
        "share": flops / taken[middle] / product,
        "peak_bytes": peak,
        "losses": losses,
        **stages,
    }


def print_steps(measured: Measurements) -> None:
    """Print what was measured of training steps."""
    total = sum(measured["stages"].values())
    for name, taken in measured["stages"].items():
        print(f"{name:<15} {1e3 * taken:8.1f} ms {taken / total:6.1%}")
    print(
        f"{measured['accounted']:.1%} of the wall time; {measured['samples_per_s']:.1f} samples/s; "
        f"{measured['flops_per_s'] / 1e9:.0f} GFLOP/s, {measured['share']:.1%} of the product's "
        f"{measured['product_flops_per_s'] / 1e9:.0f}"
    )
    print(
        f"{measured['operations_per_step']} operations and {measured['host_waits_per_step']} host "
        f"waits per step; {measured['distinct_shapes']} shapes in {measured['steps']} steps; "
        f"{measured['graphs']} graphs; {measured['peak_bytes'] / 1e9:.2f} GB at most"
    )


# --- the kernels of rocprofv3 -------------------------------------------------------------------

# Names of attention kernels: of AOTriton, of CK and CUTLASS, and of flash attention.
ATTENTION = re.compile(r"attn|attention|fmha|flash|bwd_kernel_d|bwd_preprocess", re.IGNORECASE)


def read_kernels(path: Path) -> dict[str, float]:
    """Return the seconds of each kernel, longest first, from CSV files of rocprofv3.

    Parameters
    ----------
    path : Path
        A file ``*_kernel_stats.csv`` or ``*_kernel_trace.csv``, or the folder that rocprofv3 wrote.

    Raises
    ------
    InputError
        There is no such file, or it lacks the columns.
    """
    files = [path]
    if path.is_dir():
        files = sorted(path.rglob("*kernel_stats.csv")) or sorted(path.rglob("*kernel_trace.csv"))
    kernels: dict[str, float] = {}
    try:
        for file in files:
            with file.open(encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    name, nanoseconds = _kernel(row)
                    kernels[name] = kernels.get(name, 0.0) + nanoseconds / 1e9
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"--rocprof: {path} cannot be read ({error}); expected the columns Name and "
            "TotalDurationNs, or Kernel_Name, Start_Timestamp and End_Timestamp"
        ) from None
    if not kernels:
        raise InputError(
            f"--rocprof: {path} contains no kernels; expected *kernel_stats.csv of rocprofv3 "
            "--kernel-trace --stats --output-format csv"
        )
    return dict(sorted(kernels.items(), key=lambda pair: -pair[1]))


def _kernel(row: Mapping[str, str]) -> tuple[str, float]:
    """Return the name of a kernel and its nanoseconds."""
    if "TotalDurationNs" in row:
        return row["Name"], float(row["TotalDurationNs"])
    return row["Kernel_Name"], float(row["End_Timestamp"]) - float(row["Start_Timestamp"])


def kernel_table(kernels: Mapping[str, float]) -> list[str]:
    """Return lines with the ten kernels that cost most, attention apart."""
    total = sum(kernels.values())
    attention = {name: taken for name, taken in kernels.items() if ATTENTION.search(name)}
    others = {name: taken for name, taken in kernels.items() if name not in attention}
    lines = [f"kernels: {total:.3g} s, attention {sum(attention.values()) / total:.1%}"]
    for title, group in (("attention", attention), ("other", others)):
        lines += [
            f"{title:<10} {name[:60]:<60} {1e3 * taken:10.2f} ms {taken / total:6.1%}"
            for name, taken in [*group.items()][:LISTED]
        ]
    return lines


# --- a baseline ---------------------------------------------------------------------------------

# Differences of measured numbers below this share are noise.
NOISE = 0.05


def read_baseline(path: Path) -> Measurements:
    """Return the content of a JSON file that an earlier call wrote."""
    report = read_json(path)
    if not isinstance(report, dict):
        raise InputError(f"--baseline: {path} is not a report of this command")
    return report


def compare_reports(report: Measurements, baseline: Measurements) -> list[str]:
    """Return one line per value that differs from a baseline; numbers with their ratio."""
    now, before = flatten(report), flatten(baseline)
    lines = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if old == new or name == "date" or isinstance(new, list):
            continue
        numbers = all(type(value) in (int, float) for value in (old, new))
        if numbers and old and abs(new / old - 1) >= NOISE:
            lines.append(f"{name}: {old:.4g} -> {new:.4g} ({new / old:.2f} times)")
        elif not numbers or not old:
            lines.append(f"{name}: {old} -> {new}")
    return lines or ["no difference from the baseline"]


# --- the command --------------------------------------------------------------------------------


def _profile_step(
    training: PretrainConfig, repeats: int, kernels: Mapping[str, float]
) -> Measurements:
    measured = measure_steps(training, repeats)
    print_steps(measured)
    if kernels:
        print("\n".join(kernel_table(kernels)))
    return {**measured, **({"kernels": kernels} if kernels else {})}


def _profile_batch_size(training: PretrainConfig) -> Measurements:
    steps = make_steps(training)
    limit = memory_limit(steps.device)
    fits = largest_fitting_batch(steps, limit)
    largest = max(fits)
    used = f"{fits[largest] / 1e9:.2f} of {limit / 1e9:.2f} GB"
    print(f"largest batch: {largest} samples, {used}")
    return {"limit_bytes": limit, "peak_bytes_of": fits, "batch_size": largest}


def profile(config: ProfileConfig) -> None:
    """Run `aam profile`: print what was measured and write profile.json to ``--output-dir``."""
    baseline = None if config.baseline is None else read_baseline(config.baseline)
    kernels = {} if config.rocprof is None else read_kernels(config.rocprof)
    folder = not_none(config.runtime.output_dir)
    files, outputs = files_read(config), [RUN, "profile.json", *MEMORY]
    output = OutputFolder(folder, "profile", outputs, [*files.values()], config.runtime.overwrite)
    output.check()
    about = describe("profile", to_dict(config), files, {})
    folder.mkdir(parents=True, exist_ok=True)
    output.begin(about)
    training = PretrainConfig(
        data=config.data,
        model=config.model,
        train=config.train,
        runtime=RunConfig(**vars(config.runtime)),
    )
    if config.what == "memory":
        memory_profiled(lambda _: make_steps(training).take(config.steps, 0), config)
        return
    report: Measurements = {
        "what": config.what,
        "device": device_name(choose_device(config.runtime.device)),
        "aam": aam.__version__,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    if config.what == "step":
        report |= _profile_step(training, config.steps, kernels)
    else:
        report |= _profile_batch_size(training)
    if baseline is not None:
        print("\n".join(compare_reports(report, baseline)))
    write_text(folder / "profile.json", json.dumps(report, indent=1) + "\n")
    print(folder / "profile.json")
